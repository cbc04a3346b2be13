//! Tests what a person reads of a Job.

mod of_causes;
mod of_disruptions;

use controller_core::job::{JobGroups, Memory, Settings, Versions};
use controller_core::job_pods::JobPods;
use controller_core::view::{Interner, PodGroup, WireJob, WirePod};
use epilogue_common::names::{MANAGED_BY, TRACKING_FINALIZER};
use jiff::SignedDuration;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::*;
use crate::samples::{at, start};

/// A Job that is ours, with parallelism 1, completions 1 and backoffLimit 6.
fn job() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "j", "uid": "job-uid", "resourceVersion": "7",
                     "generation": 1},
        "spec": {
            "managedBy": MANAGED_BY, "parallelism": 1, "completions": 1, "backoffLimit": 6,
            "selector": {"matchLabels": {"job": "j"}},
            "template": {"metadata": {"labels": {"job": "j"}},
                         "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}},
        },
        "status": {"uncountedTerminatedPods": {}},
    })
}

/// A pod of the Job with the finalizer, in this phase.
fn pod(name: &str, phase: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-{name}"),
            "resourceVersion": "5", "labels": {"job": "j"}, "creationTimestamp": at(-60),
            "finalizers": [TRACKING_FINALIZER],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j",
                                 "uid": "job-uid", "controller": true}],
            "annotations": {},
        },
        "spec": {},
        "status": {"phase": phase},
    })
}

/// With these fields of the spec.
fn spec(mut job: Value, fields: &[(&str, Value)]) -> Value {
    for (field, value) in fields {
        job["spec"][field] = value.clone();
    }
    job
}

/// Started 100 s ago, with two pods of two.
fn started() -> Value {
    let mut job = spec(job(), &[("parallelism", 2.into()), ("completions", 2.into())]);
    job["status"]["startTime"] = at(-100).into();
    job
}

fn finished() -> Value {
    let mut job = spec(job(), &[("completions", 3.into())]);
    job["status"] = json!({
        "uncountedTerminatedPods": {}, "succeeded": 3, "failed": 2,
        "conditions": [{"type": "Complete", "status": "True", "reason": "CompletionsReached",
                        "message": "reached", "lastTransitionTime": at(-5)}],
    });
    job
}

fn explained(job: Value, pods: Vec<Value>) -> Explanation {
    explained_by(job, pods, &Controller::WithoutLease)
}

fn explained_by(job: Value, pods: Vec<Value>, controller: &Controller) -> Explanation {
    explained_with(job, pods, None, controller)
}

fn explained_with(
    object: Value,
    objects: Vec<Value>,
    events: Option<&[Value]>,
    controller: &Controller,
) -> Explanation {
    explained_among((object, objects), events, controller, None)
}

fn explained_among(
    (object, objects): (Value, Vec<Value>),
    events: Option<&[Value]>,
    controller: &Controller,
    groups: Option<&JobGroups>,
) -> Explanation {
    let mut interner = Interner::default();
    let mut read = |pod: &Value| {
        let pod = WirePod::deserialize(pod).expect("must be a pod");
        Arc::new(pod.view(&mut interner))
    };
    let pods: Vec<_> = objects.iter().map(&mut read).collect();
    let uid = |pod: Value| (pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(), pod);
    let (object, objects): (Value, Vec<_>) = (object, objects.into_iter().map(uid).collect());
    let setup = controller.setup();
    let runs_all = setup.and_then(|setup| setup.manage_all_jobs) == Some(true);
    let job = WireJob::parse(object.clone()).and_then(WireJob::view).expect("must be a Job");
    let job = Arc::new(job);
    let known = Known {
        job: &object,
        pods: objects.iter().map(|(uid, pod)| (&**uid, pod)).collect(),
        events,
        controller,
        only: None,
    };
    explain(
        &SyncInput {
            job: &job,
            pods: &JobPods::of(&job, &pods),
            memory: &Memory::default(),
            groups,
            seen: Versions::default(),
            now: start(),
            settings: &Settings { manage_all_jobs: runs_all, ..Settings::default() },
            counts_max: SignedDuration::ZERO,
        },
        &known,
    )
}

/// Field, used and limit of each limit.
fn limits(explanation: &Explanation) -> Vec<(&str, i64, i64)> {
    explanation.limits.iter().map(|it| (it.field, it.used, it.limit)).collect()
}

fn waits(explanation: &Explanation) -> Vec<&str> {
    explanation.waits_for.iter().map(|it| &*it.text).collect()
}

/// Where the controller makes groups, the next sync says which.
#[test]
fn the_next_sync_names_the_scheduling_group() {
    let groups = JobGroups::default();
    let among = |job, groups: Option<&JobGroups>| {
        explained_among((job, vec![]), None, &Controller::WithoutLease, groups).next_sync
    };
    let mut gang = job();
    gang["spec"]["scheduling"] = json!({"schedulingPolicy": {"gang": {}}});
    let lines = among(gang.clone(), Some(&groups));
    assert!(lines[0].starts_with("create Workload ") && lines[0].ends_with(" and its PodGroup"));
    assert!(!among(gang, None).iter().any(|line| line.contains("Workload")));
    let mut follows = job();
    follows["metadata"]["creationTimestamp"] = at(0).into();
    follows["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-template-name": "t"});
    follows["metadata"]["ownerReferences"] = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet", "name": "p", "uid": "p", "controller": true}]);
    let explained =
        explained_among((follows, vec![]), None, &Controller::WithoutLease, Some(&groups));
    let expected = "its scheduling group: no Workload names the controller of the Job";
    assert!(waits(&explained).contains(&expected), "{:?}", waits(&explained));
    assert_eq!(explained.next_sync, Vec::<String>::new());
    let mut later = job();
    later["spec"]["scheduling"] = json!({"schedulingPolicy": {"later": {}}});
    let expected = "spec.scheduling.schedulingPolicy asks for what this version does not know";
    assert_eq!(among(later, Some(&groups)), [expected]);
}

#[test]
fn the_next_sync_says_why_a_group_starts_anew() {
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid",
                        "controller": true}]);
    let group = json!({
        "metadata": {"namespace": "ns", "name": "g", "uid": "g", "ownerReferences": owner},
        "spec": {"disruptionMode": {"all": {}}},
    });
    let group = Arc::new(PodGroup::read(&group.to_string()).expect("must be a PodGroup"));
    let groups = JobGroups { pod_groups: vec![group], ..JobGroups::default() };
    let member = |name: &str, phase: &str| {
        let mut pod = pod(name, phase);
        pod["spec"] = json!({"nodeName": "n", "schedulingGroup": {"podGroupName": "g"}});
        pod
    };
    let mut lost = member("a", "Failed");
    lost["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
        "reason": "TerminationByKubelet", "lastTransitionTime": at(-1)}]);
    let pods = vec![lost.clone(), member("b", "Running")];
    let controller = Controller::WithoutLease;
    let explained = explained_among((started(), pods), None, &controller, Some(&groups));
    let why = "a is lost (TerminationByKubelet), and disruptionMode is all:";
    let expected = [format!("{why} its group starts anew"), "delete 1 pod: b".to_owned()];
    assert_eq!(explained.next_sync[..2], expected);
    let mut ending = member("b", "Running");
    ending["metadata"]["deletionTimestamp"] = at(20).into();
    ending["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    let job = spec(started(), &[("podReplacementPolicy", "Failed".into())]);
    let pods = vec![lost, ending];
    let explained = explained_among((job, pods), None, &controller, Some(&groups));
    let expected = format!("{why} its group starts anew once 1 pod of it ended");
    assert_eq!(explained.next_sync[0], expected);
}

#[test]
fn a_finished_job_shows_its_limits_and_its_pods() {
    let explanation = explained(finished(), vec![pod("a", "Succeeded"), pod("b", "Failed")]);
    assert_eq!(limits(&explanation), [("completions", 3, 3), ("backoffLimit", 2, 6)]);
    let pods = explanation.pods.iter().map(|it| (&*it.name, it.counts_as));
    assert_eq!(pods.collect::<Vec<_>>(), [("a", "succeeded"), ("b", "failed")]);
    assert_eq!(waits(&explanation), ["nothing: the Job is finished"]);
}

#[test]
fn a_finished_job_of_another_controller_waits_for_nothing() {
    let explanation = explained(spec(finished(), &[("managedBy", json!(null))]), Vec::new());
    assert_eq!(waits(&explanation), ["nothing: the Job is finished"]);
}

#[test]
fn a_misspelled_manager_is_a_question() {
    let of = |manager: &str| explained(spec(job(), &[("managedBy", manager.into())]), Vec::new());
    let explanation = of("epilogue.dev/job-controler");
    let expected = "epilogue.dev/job-controler, which spec.managedBy names; did you mean \
                    epilogue.dev/job-controller?";
    assert_eq!(waits(&explanation), [expected]);
    let expected = "example.com/other, which spec.managedBy names";
    assert_eq!(waits(&of("example.com/other")), [expected]);
    let known = "kueue.x-k8s.io/multikueue";
    assert_eq!(waits(&of(known)), [format!("{known}, which spec.managedBy names")]);
}

/// A controller whose lease has these annotations and was renewed at this second.
fn controller(annotations: &Value, renewed: i64) -> Controller {
    let lease = json!({
        "kind": "Lease",
        "metadata": {"namespace": "a", "name": "b", "annotations": annotations},
        "spec": {"holderIdentity": "c_1", "leaseDurationSeconds": 15, "renewTime": at(renewed)},
    });
    Controller::of("a/b".parse().ok().as_ref(), Some(&[lease])).expect("must be a lease")
}

#[test]
fn the_lease_says_which_controller_runs_a_job_without_manager() {
    let unmanaged = || spec(started(), &[("managedBy", json!(null))]);
    let upstream = "kube-controller-manager's Job controller";
    let doubt = "unless epilogue-controller runs with --manage-all-jobs: its lease";
    let says_all = |all: &str| controller(&json!({"epilogue.dev/manage-all-jobs": all}), -5);
    let table = [
        (says_all("true"), "running", None),
        (says_all("false"), "not managed by this controller", Some(upstream.to_owned())),
        (
            controller(&json!({}), -5),
            "not managed by this controller",
            Some(format!("{upstream}, {doubt} does not say")),
        ),
        (
            Controller::NotRead,
            "not managed by this controller",
            Some(format!("{upstream}, {doubt} was not read")),
        ),
    ];
    for (controller, state, wait) in table {
        let found = explained_by(unmanaged(), Vec::new(), &controller);
        assert_eq!((&*found.state, found.notes.len()), (state, 0));
        assert_eq!(waits(&found).first().copied(), wait.as_deref());
    }
}

#[test]
fn where_no_controller_works_it_is_said_first() {
    let dead = controller(&json!({}), -300);
    let found = explained_by(started(), Vec::new(), &dead);
    let expected = "no replica of epilogue-controller holds the lease a/b: its last holder c_1 \
                    does not renew it";
    assert_eq!(found.notes.iter().map(|it| &*it.text).collect::<Vec<_>>(), [expected]);
    let text = crate::render::text(&found, crate::colour::Paint::Plain);
    assert!(text.starts_with(expected), "{text}");
    let others = spec(started(), &[("managedBy", "example.com/other".into())]);
    for quiet in [finished(), others] {
        assert!(explained_by(quiet, Vec::new(), &dead).notes.is_empty());
    }
    let elsewhere = controller(&json!({"epilogue.dev/watch-namespace": "x,y"}), -5);
    let found = explained_by(started(), Vec::new(), &elsewhere);
    let expected = "epilogue-controller does not watch the namespace ns; it watches x, y";
    assert_eq!(found.notes.iter().map(|it| &*it.text).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_job_that_no_sync_has_started_is_not_running() {
    assert_eq!(explained(job(), Vec::new()).state, "not started yet");
    assert_eq!(explained(started(), Vec::new()).state, "running");
}

#[test]
fn the_next_sync_shows_its_writes_of_the_status_and_the_pods_it_releases() {
    let explanation = explained(started(), vec![pod("won", "Succeeded")]);
    assert_eq!(explanation.released_pods, ["won"]);
    let status = explanation.next_status.as_ref().expect("the sync counts a pod");
    assert_eq!((status.succeeded, status.active), (Some(1), Some(1)));
    let lines = &explanation.next_sync;
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start));
    let release = at("remove the tracking finalizer from 1 pod: won").expect("it is released");
    assert!(at("create ") < at("write the status: "), "{lines:?}");
    assert!(at("write the status: ") < Some(release), "counted before it is released: {lines:?}");
    let last = lines.last().map(String::as_str).unwrap_or_default();
    assert!(last.starts_with("write the status: active 1, ready 0, terminating 0, succeeded 1"));
    let quiet = explained(finished(), Vec::new());
    assert_eq!((quiet.next_status, quiet.released_pods.len()), (None, 0));
}

#[test]
fn limits_of_annotations_and_of_indexes_are_shown() {
    let rule = json!({"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}]});
    let annotations = json!({"epilogue.dev/disruption-limit": "5",
                             "epilogue.dev/pending-timeout": "10m"});
    let mut job = spec(started(), &[("podFailurePolicy", json!({"rules": [rule]}))]);
    job["metadata"]["annotations"] = annotations;
    let mut lost = pod("lost", "Failed");
    lost["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let explanation = explained(job, vec![lost, pod("late", "Pending")]);
    let found = limits(&explanation);
    assert!(found.contains(&("epilogue.dev/disruption-limit", 1, 5)), "{found:?}");
    assert!(found.contains(&("epilogue.dev/pending-timeout", 60, 600)), "{found:?}");
}

#[test]
fn the_worst_index_counts_for_the_limit_per_index() {
    let fields = [
        ("completionMode", "Indexed".into()),
        ("backoffLimitPerIndex", 3.into()),
        ("backoffLimit", i32::MAX.into()),
    ];
    let of_index = |name: &str, index: &str, failures: &str| {
        let mut pod = pod(name, "Running");
        pod["metadata"]["annotations"] = json!({
            "batch.kubernetes.io/job-completion-index": index,
            "batch.kubernetes.io/job-index-failure-count": failures,
        });
        pod
    };
    let pods = vec![of_index("a", "0", "2"), of_index("b", "1", "0")];
    let found = explained(spec(started(), &fields), pods);
    assert!(limits(&found).contains(&("backoffLimitPerIndex", 2, 3)), "{found:?}");
}

#[test]
fn pod_that_is_about_to_end_is_shown_with_what_ends_it_and_when() {
    let because = |ends_at: &str, message: &str| {
        let mut pod = pod("a", "Running");
        pod["metadata"]["annotations"] = json!({"epilogue.dev/ends-at": ends_at});
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
            "reason": "TerminationByKubelet", "message": message}]);
        let found = explained(spec(started(), &[]), vec![pod]);
        found.pods[0].because.clone()
    };
    let shutdown = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(
        because("2026-11-21T14:05:36Z", shutdown),
        "not terminal; it is to end by 2026-11-21T14:05:36Z (DisruptionTarget, source shutdown)"
    );
    let pressure = "The node was low on resource: memory. ";
    let words = "not terminal; it is to end (DisruptionTarget, source pressure)";
    assert_eq!(because("soon", pressure), words);
}
