//! Tests findings on clusters of a few objects.

mod of_gangs;
mod of_leases;
mod of_one_node;
mod unprepared;
mod waiting;

use epilogue_common::finding_code::FindingCode as Code;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::dump::rules::redact;
use crate::kind::Kind;
use crate::lease::LeaseName;
use crate::samples::{announces, at, boot, deleted, node, out_of_service, phase, pod, ready};
use crate::samples::{start, target};

const HOUR: i64 = 3600;

fn now() -> Timestamp {
    start() + SignedDuration::from_secs(HOUR)
}

fn kind(kind: &str, mut object: Value) -> Value {
    object["kind"] = kind.into();
    if object["metadata"]["uid"].is_null() {
        object["metadata"]["uid"] = object["metadata"]["name"].clone();
    }
    object
}

fn job(name: &str, fields: impl Into<Value>) -> Value {
    let fields = fields.into();
    let mut job = json!({
        "kind": "Job",
        "metadata": {"namespace": "default", "name": name, "uid": name,
                     "creationTimestamp": at(0)},
        "spec": {"template": {}},
    });
    for (key, value) in fields.as_object().expect("must be fields") {
        job[key.as_str()] = value.clone();
    }
    job
}

fn managed(name: &str, by: &str) -> Value {
    job(name, json!({"spec": {"managedBy": by, "template": {}}}))
}

fn lease(namespace: &str, name: &str, holder: &str, second: i64) -> Value {
    json!({
        "kind": "Lease",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
                 "renewTime": at(second).replace('Z', ".000000Z")},
    })
}

fn silent(node: Value) -> Value {
    ready(node, "Unknown", "Kubelet stopped posting node status.", 60)
}

fn scene_at(objects: Vec<Value>, now: Timestamp) -> Scene {
    let objects = objects.into_iter().map(|object| {
        let of_node =
            object["spec"]["nodeName"].is_null() && !object["status"]["nodeInfo"].is_null();
        match object["kind"].as_str().map(ToOwned::to_owned) {
            Some(name) => kind(&name, object),
            None if of_node => kind("Node", object),
            None => kind("Pod", object),
        }
    });
    let objects: Vec<Value> = objects.collect();
    let scene = |objects| Scene::new(Kind::ALL, objects, now).expect("must be readable");
    let (dumped, seen) = (scene(redact(&objects)), scene(objects));
    assert_same(&dumped, &seen, now);
    seen
}

/// A dump shows what its cluster shows.
#[track_caller]
fn assert_same(dumped: &Scene, seen: &Scene, now: Timestamp) {
    let lease = our_lease();
    assert_eq!(findings(dumped, Some(&lease), now), findings(seen, Some(&lease), now));
    assert_eq!(gang_state(dumped, Some(&lease)), gang_state(seen, Some(&lease)));
    for node in seen.nodes.keys() {
        assert_eq!(node_report(dumped, node, now), node_report(seen, node, now));
    }
}

fn scene(objects: Vec<Value>) -> Scene {
    scene_at(objects, now())
}

fn our_lease() -> LeaseName {
    "epilogue-system/epilogue-controller".parse().expect("must be a name")
}

/// One line per finding, with its remedies after it.
fn reported(scene: &Scene) -> Vec<String> {
    let found = findings(scene, Some(&our_lease()), now());
    let line = |found: &Finding| {
        assert!(!found.remedies.is_empty(), "{found:?}");
        format!(
            "{}: {} [{}] | {}",
            found.subject,
            found.problem,
            found.code,
            found.remedies.join(" | ")
        )
    };
    found.iter().map(line).collect()
}

#[track_caller]
fn assert_reported(objects: Vec<Value>, words: &[&str]) {
    let reported = reported(&scene(objects));
    assert_eq!(reported.len(), 1, "{reported:#?}");
    for word in words {
        assert!(reported[0].contains(word), "{word:?} must be in {:?}", reported[0]);
    }
}

#[track_caller]
fn assert_fine(objects: Vec<Value>) {
    assert_eq!(reported(&scene(objects)), [""; 0]);
}

fn running_job() -> Value {
    job("j", json!({"status": {"startTime": at(0)}}))
}

#[test]
fn a_healthy_cluster_has_nothing_to_find() {
    let ours = job(
        "o",
        json!({"spec": {"managedBy": "epilogue.dev/job-controller", "template": {}},
               "status": {"startTime": at(0)}}),
    );
    assert_fine(vec![
        node("n"),
        pod("p"),
        running_job(),
        ours,
        lease("epilogue-system", "epilogue-controller", "c_1", HOUR - 5),
        announces(node("m"), "idle"),
    ]);
    // The pod is deleted and within its grace.
    assert_fine(vec![node("n"), deleted(pod("p"), HOUR - 20), running_job()]);
}

#[test]
fn a_pod_of_a_silent_node_comes_with_what_would_prove_its_end() {
    assert_reported(
        vec![silent(node("n")), deleted(pod("p"), 0), running_job()],
        &[
            "pod/default/p: Terminating: node n is silent since",
            "[node-silent-no-proof]",
            "nothing proves",
            "kubectl taint node n node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            "kubectl delete node n",
            "annotate job --namespace default j epilogue.dev/force-fail-after=10m",
        ],
    );
    let mut bare = deleted(pod("p"), 0);
    bare["metadata"]["ownerReferences"] = json!(null);
    let reported = reported(&scene(vec![silent(node("n")), bare]));
    assert!(
        !reported[0].contains("force-fail-after"),
        "only Jobs' owners can say so: {reported:?}"
    );
}

#[test]
fn a_pod_that_has_ended_and_stays_is_not_said_to_run() {
    for node in [silent(node("n")), node("n")] {
        assert_reported(
            vec![node, phase(deleted(pod("p"), 0), "Succeeded"), running_job()],
            &["the kubelet of n does not remove it [pod-kept-by-kubelet]", "--force"],
        );
    }
}

#[test]
fn a_pod_that_pod_gc_would_fail_is_reported_with_its_evidence() {
    let pods = || vec![deleted(pod("p"), 0), running_job()];
    let with = |node: Value| [vec![node], pods()].concat();
    assert_reported(
        pods(),
        &["Terminating: node no longer exists", "of kube-controller-manager, or"],
    );
    assert_reported(
        vec![pod("p"), running_job()],
        &["cannot run: node no longer exists [pod-gc-overdue]"],
    );
    assert_fine(vec![phase(pod("p"), "Succeeded"), running_job()]);
    let off = out_of_service(silent(node("n")));
    assert_reported(with(off), &["node is out of service", "--grace-period=0 --force"]);
    let rebooted = boot(node("n"), "boot-2");
    let text = format!("shutting-down;boot=boot-1;since={}", at(5));
    let rebooted = silent(announces(rebooted, &text));
    assert_reported(with(rebooted), &["has booted since", "pod GC of epilogue-controller fails"]);
    let mut accepts = running_job();
    accepts["metadata"]["annotations"] = json!({"epilogue.dev/force-fail-after": "10m"});
    let objects = vec![silent(node("n")), deleted(pod("p"), 0), accepts];
    assert_reported(objects, &["epilogue.dev/force-fail-after of Job j accepts a double run"]);
}

#[test]
fn a_pod_that_its_kubelet_does_not_end_says_where_to_look() {
    let objects = |node: Value, more: Vec<Value>| {
        [vec![node, deleted(pod("p"), 0), running_job()], more].concat()
    };
    assert_reported(
        objects(node("n"), vec![]),
        &["kubelet of n runs (ready)", "[pod-slow-under-live-kubelet]", "FailedKillPod"],
    );
    let unready = ready(node("n"), "False", "runtime is down", 0);
    assert_reported(objects(unready, vec![]), &["kubelet of n runs (not ready)"]);
    let stale = lease("kube-node-lease", "n", "n", HOUR - 300);
    assert_reported(
        objects(node("n"), vec![stale]),
        &["does not renew its lease (last: 20", "[kubelet-silent]"],
    );
    let text = format!("shutting-down;boot=boot-1;since={}", at(HOUR - 60));
    assert_reported(
        objects(announces(node("n"), &text), vec![]),
        &["node n shuts down since", "[pod-on-node-shutting-down]"],
    );
}

#[test]
fn without_nodes_nothing_is_said_of_nodes() {
    let objects = vec![kind("Pod", deleted(pod("p"), 0)), kind("Pod", pod("q"))];
    let scene = Scene::new([Kind::Pod], objects, now()).expect("must be readable");
    let found = findings(&scene, Some(&our_lease()), now());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].problem.contains("node n was not read"), "{found:?}");
    assert_eq!(found[0].code, Code::PodNodeNotRead);
    let unread = omissions(&scene);
    let codes: Vec<Code> = unread.iter().map(|it| it.code).collect();
    let all = [
        Code::JobsNotRead,
        Code::NodesNotRead,
        Code::EventsNotRead,
        Code::LeasesNotRead,
        Code::NamespacesNotRead,
    ];
    assert_eq!(codes, all);
}

#[test]
fn a_finalizer_that_no_controller_takes_off_comes_with_the_command() {
    let tracked = |mut pod: Value| {
        let finalizers = json!(["example.com/a", "batch.kubernetes.io/job-tracking"]);
        pod["metadata"]["finalizers"] = finalizers;
        phase(pod, "Succeeded")
    };
    let freed = r#"[{"op":"test","path":"/metadata/finalizers/1","value":"batch."#;
    assert_reported(
        vec![node("n"), tracked(deleted(pod("p"), 0))],
        &[
            "job-tracking keeps the pod, but its Job j is gone [finalizer-job-gone]",
            freed,
            r#""op":"remove""#,
        ],
    );
    let done = |second: i64| {
        job(
            "j",
            json!({"status": {"startTime": at(0), "conditions": [
                {"type": "Complete", "status": "True", "lastTransitionTime": at(second)}]}}),
        )
    };
    assert_reported(
        vec![node("n"), tracked(pod("p")), done(0)],
        &["but its Job j has finished [finalizer-job-finished]"],
    );
    assert_fine(vec![node("n"), tracked(pod("p")), done(HOUR - 5)]);
    let mut alone = tracked(pod("p"));
    alone["metadata"]["ownerReferences"] = json!(null);
    assert_reported(vec![node("n"), alone], &["but no Job owns it [finalizer-no-job]"]);
    // The Job is live and still has to count the pod.
    assert_fine(vec![node("n"), tracked(pod("p")), running_job()]);
    assert_reported(
        vec![node("n"), tracked(deleted(pod("p"), 0)), running_job()],
        &[
            "kept by example.com/a, batch.kubernetes.io/job-tracking [pod-not-counted]",
            "controller of Job j runs",
        ],
    );
}

#[test]
fn a_finalizer_that_admission_holds_is_reported() {
    let uncounted = |uid: &str, second: i64| {
        let lists = json!({"succeeded": [uid]});
        job("j", json!({"status": {"startTime": at(second), "uncountedTerminatedPods": lists}}))
    };
    let mut pod = phase(pod("p"), "Succeeded");
    pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    pod["metadata"]["uid"] = "uid-p".into();
    assert_reported(
        vec![node("n"), pod.clone(), uncounted("uid-p", 0)],
        &[
            "the Job does not finish [finalizer-not-removed]",
            "FailedRelease shows which webhook or policy",
            "controller of the Job runs",
        ],
    );
    assert_fine(vec![node("n"), pod, uncounted("another", 0)]);
}

#[test]
fn foreign_finalizers_are_named() {
    let mut held = phase(deleted(pod("p"), 0), "Failed");
    held["metadata"]["finalizers"] = json!(["example.com/a"]);
    assert_reported(
        vec![node("n"), held, running_job()],
        &["kept by example.com/a [pod-held-by-finalizers]", "gone for good"],
    );
}

#[test]
fn a_slip_in_managed_by_is_understood() {
    assert_reported(
        vec![managed("x", "epilogue.dev/job-controler")],
        &[
            "job/default/x: unknown managedBy epilogue.dev/job-controler; did you mean \
             epilogue.dev/job-controller? [managed-by-misspelled]",
            "immutable",
            "with managedBy: epilogue.dev/job-controller",
        ],
    );
    assert_reported(
        vec![managed("x", "example.com/y")],
        &["unknown managedBy example.com/y", "[managed-by-unknown]"],
    );
    assert_reported(vec![managed("x", "kueue.x-k8s.io/multikueue")], &["[managed-by-not-running]"]);
    assert_reported(
        vec![job("x", json!({}))],
        &["no Job controller has written its status [job-not-taken-up]"],
    );
}

#[test]
fn a_job_that_somebody_serves_or_that_is_new_is_left_alone() {
    let served = |by: &str| {
        let mut job = managed("x", by);
        job["status"] = json!({"startTime": at(1)});
        job
    };
    assert_fine(vec![served("epilogue.dev/job-controler")]);
    assert_fine(vec![served("example.com/y")]);
    // Its start may be stored after its pods.
    assert_fine(vec![node("n"), pod("p"), job("j", json!({}))]);
    let mut queued = managed("x", "kueue.x-k8s.io/multikueue");
    queued["spec"]["suspend"] = true.into();
    assert_fine(vec![queued]);
    let mut new = managed("x", "epilogue.dev/job-controler");
    new["metadata"]["creationTimestamp"] = at(HOUR - 20).into();
    assert_fine(vec![new]);
}

#[test]
fn jobs_of_ours_need_a_controller_that_leads() {
    let ours = || managed("x", "epilogue.dev/job-controller");
    let lease = |holder, second| lease("epilogue-system", "epilogue-controller", holder, second);
    assert_reported(
        vec![ours()],
        &["it does not exist; its unfinished Jobs: default/x", "get deployment,pod"],
    );
    assert_reported(vec![ours(), lease("c_1", 0)], &["its last holder c_1 does not renew it"]);
    assert_reported(
        vec![ours(), lease("", HOUR)],
        &["it has no holder", "[controller-without-leader]"],
    );
    assert_fine(vec![ours(), lease("c_1", HOUR)]);
    let four: Vec<Value> =
        ["a", "b", "c", "d"].map(|name| managed(name, "epilogue.dev/job-controller")).into();
    assert_reported(four, &["default/a, default/b, default/c and 1 more"]);
    assert_eq!(findings(&scene(vec![ours()]), None, now()), []);
}

#[test]
fn a_target_that_lives_on_is_stale() {
    let lives = |reason: &str, second: i64| {
        vec![node("n"), target(pod("p"), "True", reason, second), running_job()]
    };
    assert_reported(
        lives("TerminationByKubelet", 0),
        &[
            "DisruptionTarget (TerminationByKubelet) is True, but node did not shut down",
            "=epilogue",
            "[stale-disruption-target]",
            "--subresource=status",
        ],
    );
    assert_reported(lives("EvictionByEvictionAPI", 0), &["but pod was not deleted", "=all"]);
    assert_fine(lives("TerminationByKubelet", HOUR - 60));
}

#[test]
fn what_an_agent_left_on_a_node_that_is_up_is_stale() {
    let said = |word: &str, boot: &str, second: i64| {
        announces(node("n"), &format!("{word};boot={boot};{}", at(second)))
    };
    let since = |second: i64, boot: &str| {
        let time = format!("since={}", at(second));
        announces(node("n"), &format!("shutting-down;boot={boot};{time}"))
    };
    let old = since(0, "boot-1");
    assert_reported(
        vec![old],
        &["node/n: a shutdown began at", "[shutdown-overdue]", "annotate node n epilogue.dev/s"],
    );
    assert_reported(
        vec![since(0, "boot-0")],
        &["is of boot boot-0", "[state-of-earlier-boot]", "start the agent of n"],
    );
    assert_reported(
        vec![said("drained", "boot-1", 0)],
        &["invalid epilogue.dev/state", "[state-unreadable]"],
    );
    assert_fine(vec![since(HOUR - 60, "boot-1")]);
    assert_fine(vec![silent(since(0, "boot-1"))]);
    let mut tainted = announces(node("n"), "idle");
    tainted["spec"]["taints"] =
        json!([{"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"}]);
    // Notice of an end is a reason.
    let mut noticed = tainted.clone();
    noticed["metadata"]["annotations"]["epilogue.dev/readiness"] =
        json!("mode=replace;lock=held;granted=40;wanted=40;notice=aws;ends=2026-11-21T14:05:06Z");
    assert_fine(vec![noticed]);
    assert_reported(
        vec![tainted],
        &["taint epilogue.dev/shutting-down is set without a shutdown [taint-without-shutdown]"],
    );
}

#[test]
fn a_ready_node_is_not_out_of_service() {
    assert_reported(
        vec![out_of_service(node("n"))],
        &[
            "node/n: it is ready, and has the taint node.kubernetes.io/out-of-service",
            "[out-of-service-on-ready-node]",
            "kubectl taint node n node.kubernetes.io/out-of-service-",
        ],
    );
    assert_fine(vec![out_of_service(silent(node("n")))]);
    // It has just come back: whoever set the taint is about to remove it.
    assert_fine(vec![out_of_service(ready(node("n"), "True", "", HOUR - 60))]);
}

fn labelled(name: &str, labels: &Value) -> Value {
    kind("Namespace", json!({"metadata": {"name": name, "labels": labels}}))
}

fn binding(name: &str) -> Value {
    kind("MutatingAdmissionPolicyBinding", json!({"metadata": {"name": name}}))
}

#[test]
fn a_label_to_opt_in_needs_its_policy_and_a_known_value() {
    let managed = || labelled("work", &json!({"epilogue.dev/jobs": "managed"}));
    let failed = || labelled("work", &json!({"epilogue.dev/pod-replacement-policy": "Failed"}));
    assert_fine(vec![managed(), binding("epilogue-jobs")]);
    assert_fine(vec![failed(), binding("epilogue-pod-replacement-policy")]);
    assert_fine(vec![labelled("work", &json!({"epilogue.dev/other": "managed"}))]);
    assert_reported(
        vec![managed(), binding("epilogue-pod-replacement-policy")],
        &[
            "namespace/work: has the label epilogue.dev/jobs, but the cluster has no",
            "Binding epilogue-jobs: new Jobs without managedBy stay with kube-controller-manager",
            "[opt-in-without-policy] | kubectl apply -k deploy/policy/opt-in",
        ],
    );
    assert_reported(
        vec![failed(), binding("epilogue-jobs")],
        &["epilogue-pod-replacement-policy: new Jobs keep", "[opt-in-without-policy]"],
    );
    assert_reported(
        vec![labelled("work", &json!({"epilogue.dev/jobs": "true"})), binding("epilogue-jobs")],
        &[
            "unknown value \"true\" of the label epilogue.dev/jobs; expected managed [opt-in-value-u",
            "kubectl label --overwrite namespace work epilogue.dev/jobs=managed",
        ],
    );
}

#[test]
fn without_the_bindings_a_label_is_not_judged_and_that_is_said() {
    let read = Kind::ALL.into_iter().filter(|kind| *kind != Kind::PolicyBinding);
    let labelled = labelled("work", &json!({"epilogue.dev/jobs": "managed"}));
    let scene = |objects| Scene::new(read.clone(), objects, now()).expect("must be readable");
    assert_eq!(omissions(&scene(vec![])), []);
    let scene = scene(vec![labelled]);
    assert_eq!(findings(&scene, None, now()), []);
    let omitted = omissions(&scene);
    assert_eq!(omitted.len(), 1);
    assert_eq!(omitted[0].code, Code::PolicyBindingsNotRead);
}
