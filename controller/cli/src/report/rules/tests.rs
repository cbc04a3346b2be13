//! Tests reports on clusters of a few objects. Each report of a dump is that of its cluster.

mod of_ends;
mod of_jobs;

use epilogue_common::finding_code::FindingCode as Code;
use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::dump::rules::redact;
use crate::samples::{announces, at, boot, deleted, node, out_of_service, phase, pod, ready};
use crate::samples::{start, target};

/// One hour after the start, and a day back.
fn input(mut objects: Vec<Value>) -> Input {
    for object in &mut objects {
        let is_node = !object["status"]["nodeInfo"].is_null();
        if object["kind"].is_null() {
            object["kind"] = if is_node { "Node" } else { "Pod" }.into();
        }
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = object["metadata"]["name"].clone();
        }
    }
    let mut events = EventLog::default();
    for event in objects.iter().filter(|object| object["kind"] == "Event") {
        events.add(event);
    }
    Input {
        read: Kind::ALL.to_vec(),
        objects,
        events,
        metrics: Metrics::default(),
        controller: Controller::NotRead,
        namespace: None,
        since: "24h".parse().expect("must be a duration"),
        now: start() + SignedDuration::from_hours(1),
    }
}

#[track_caller]
fn reported(objects: Vec<Value>) -> Report {
    let original = input(objects);
    let found = report(&original).expect("must be readable");
    let has_messages = original.objects.iter().any(|it| !it["status"]["message"].is_null());
    if !has_messages {
        let dumped = report(&input(redact(&original.objects))).expect("must be readable");
        assert_eq!(dumped, found);
    }
    found
}

/// A pod in one line.
fn line(pod: &DisruptedPod) -> String {
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let words = [
        json!(pod.code),
        json!(pod.cause),
        json!(pod.basis),
        json!(pod.epilogue),
        json!(pod.epilogue_basis),
    ];
    format!("{}: {}", pod.name, words.map(word).join(" "))
}

#[track_caller]
fn assert_found(objects: Vec<Value>, expected: &[&str]) {
    let found: Vec<String> = reported(objects).pods.iter().map(line).collect();
    assert_eq!(found, expected);
}

fn event(reporter: &str, kind: &str, name: &str, reason: &str, second: i64) -> Value {
    json!({"kind": "Event", "metadata": {"name": format!("{name}.{reason}.{second}")},
           "reason": reason, "message": "The node was low on resource: memory.",
           "involvedObject": {"kind": kind, "namespace": "default", "name": name, "uid": name},
           "reportingComponent": reporter, "lastTimestamp": at(second)})
}

fn of_node(reason: &str, second: i64) -> Value {
    event("kubelet", "Node", "n", reason, second)
}

fn of_agent(pod: &str, reason: &str, second: i64) -> Value {
    event("epilogue.dev/agent", "Pod", pod, reason, second)
}

fn silent(node: Value) -> Value {
    ready(node, "Unknown", "Kubelet stopped posting node status.", 60)
}

/// A pod that failed at this second, its container with this code and reason.
fn failed(name: &str, code: i32, reason: &str, second: i64) -> Value {
    let mut pod = phase(pod(name), "Failed");
    pod["status"]["conditions"] = json!([]);
    pod["status"]["containerStatuses"][0]["state"] = json!({"terminated": {
        "exitCode": code, "reason": reason, "startedAt": at(-3590), "finishedAt": at(second)}});
    pod
}

fn because(mut pod: Value, reason: &str, message: &str) -> Value {
    pod["status"]["reason"] = reason.into();
    if !message.is_empty() {
        pod["status"]["message"] = message.into();
    }
    pod
}

#[test]
fn how_the_controller_runs_is_what_its_lease_says() {
    let lease = |mode: &str, renewed: i64| {
        json!({"kind": "Lease",
               "metadata": {"namespace": "epilogue-system", "name": "epilogue-controller",
                            "annotations": {"epilogue.dev/version": "0.1.0",
                                            "epilogue.dev/manage-all-jobs": "true",
                                            "epilogue.dev/mode": mode}},
               "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15,
                        "renewTime": at(renewed)}})
    };
    let name = "epilogue-system/epilogue-controller".parse().expect("a name");
    let said = |lease: Value| {
        let mut input = input(Vec::new());
        input.controller = Controller::of(Some(&name), Some(&[lease])).expect("a lease");
        let report = report(&input).expect("must be readable");
        crate::report::text::controller(&report).unwrap_or_default()
    };
    let words = "The controller 0.1.0 runs all Jobs without spec.managedBy too, and writes nothing \
                 of pod GC (--pod-gc=observe).";
    assert_eq!(said(lease("observe", 3600)), words);
    assert_eq!(
        said(lease("instead", 0)),
        "No replica of epilogue-controller holds the lease \
               epilogue-system/epilogue-controller: its last holder one does not renew it."
    );
}

#[test]
fn terminal_phases_that_never_came_are_found_by_their_cause() {
    assert_found(
        vec![pod("p")],
        &["p: status-missing-node-gone node-gone seen would-have-acted seen"],
    );
    let rebooted = "p: status-missing-node-rebooted node-rebooted seen would-have-acted estimated";
    assert_found(vec![node("n"), pod("p"), of_node("Rebooted", 600)], &[rebooted]);
    let state = format!("drained;boot=boot-1;at={}", at(60));
    assert_found(vec![boot(announces(node("n"), &state), "boot-2"), pod("p")], &[rebooted]);
    assert_found(
        vec![node("n"), deleted(pod("p"), 0)],
        &["p: status-missing-terminating stuck seen no-help estimated"],
    );
    assert_found(
        vec![silent(node("n")), deleted(pod("p"), 0)],
        &["p: status-missing-node-silent node-silent seen no-help estimated"],
    );
    assert_found(
        vec![silent(node("n")), pod("p")],
        &["p: status-missing-node-silent node-silent estimated no-help estimated"],
    );
    assert_found(
        vec![out_of_service(silent(node("n"))), deleted(pod("p"), 0)],
        &["p: status-missing-node-silent node-silent seen would-have-acted seen"],
    );
    assert_found(
        vec![silent(node("n")), pod("p"), of_node("NodeShutdown", 0)],
        &["p: status-missing-node-silent node-silent estimated would-have-acted estimated"],
    );
}

#[test]
fn what_runs_or_may_still_be_reported_is_left_alone() {
    assert_found(vec![node("n"), pod("p")], &[]);
    assert_found(vec![node("n"), deleted(pod("p"), 3580)], &[]);
    // The kubelet is just back, and the pod started after the boot.
    assert_found(vec![node("n"), pod("p"), of_node("Rebooted", 3590)], &[]);
    assert_found(vec![node("n"), pod("p"), of_node("Rebooted", -3595)], &[]);
    let state = format!("shutting-down;boot=boot-1;since={}", at(3000));
    assert_found(vec![announces(node("n"), &state), deleted(pod("p"), 3001)], &[]);
    assert_found(vec![node("n"), phase(deleted(pod("p"), 0), "Succeeded")], &[]);
    let mut of_daemon_set = pod("p");
    of_daemon_set["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet".into();
    assert_found(vec![of_daemon_set], &[]);
}

#[test]
fn failures_that_were_disruptions_are_found_by_their_evidence() {
    let found = |rest: &str| format!("p: failure-without-disruption-target {rest}");
    let shutdown = found("node-shutdown seen would-have-acted estimated");
    let reboot = "node-rebooted seen would-have-acted estimated";
    let guessed = "node-rebooted estimated would-have-acted estimated";
    let low = "The node was low on resource: memory. ";
    let signal = failed("p", 143, "Error", 700);
    let lost = failed("p", 255, "Unknown", 700);
    let table = [
        (vec![because(signal.clone(), "Terminated", "")], shutdown.clone()),
        (vec![because(signal.clone(), "NodeShutdown", "")], shutdown),
        (
            vec![because(signal.clone(), "NodeLost", "")],
            found("node-silent seen no-help estimated"),
        ),
        (
            vec![because(signal.clone(), "Evicted", low)],
            found("node-pressure seen would-have-acted estimated"),
        ),
        // The kubelet made room for a critical pod.
        (
            vec![because(signal.clone(), "Preempting", "")],
            found("preemption seen no-help estimated"),
        ),
        (vec![lost.clone()], found(guessed)),
        (vec![failed("p", 137, "ContainerStatusUnknown", 700)], found(guessed)),
        (vec![lost.clone(), of_node("Rebooted", 710)], found(reboot)),
        (vec![lost, of_node("NodeShutdown", 650)], found(reboot)),
        (
            vec![signal.clone(), of_node("NodeShutdown", 650)],
            found("node-shutdown estimated would-have-acted estimated"),
        ),
        (
            vec![signal.clone(), of_agent("p", "PodWouldBeDisrupted", 690)],
            found("node-shutdown seen would-have-acted seen"),
        ),
        (
            vec![signal, event("scheduler", "Pod", "p", "Preempted", 690)],
            found("preemption seen no-help estimated"),
        ),
    ];
    for (mut objects, expected) in table {
        objects.push(node("n"));
        assert_found(objects, &[&expected]);
    }
}

#[test]
fn failures_of_the_program_itself_are_no_disruptions() {
    let own = "Container main exceeded its local ephemeral storage limit \"1Mi\". ";
    let table = [
        vec![failed("p", 1, "Error", 700), of_node("NodeShutdown", 650)],
        vec![failed("p", 143, "Error", 700)],
        vec![failed("p", 143, "Error", 3000), of_node("NodeShutdown", 650)],
        vec![because(failed("p", 137, "Error", 700), "Evicted", own)],
        vec![failed("p", 137, "OOMKilled", 700), of_agent("p", "PodStuckTerminating", 690)],
        // Two days ago.
        vec![because(failed("p", 143, "Error", -172_800), "Terminated", "")],
    ];
    for mut objects in table {
        objects.push(node("n"));
        assert_found(objects, &[]);
    }
}

#[test]
fn true_causes_are_counted_by_who_set_them() {
    let of_kubernetes =
        target(failed("p", 143, "Error", 700), "True", "EvictionByEvictionAPI", 690);
    assert_found(
        vec![node("n"), of_kubernetes.clone()],
        &["p: disruption-reported drain seen not-needed seen"],
    );
    assert_found(
        vec![node("n"), of_kubernetes, of_agent("p", "PodDisrupted", 690)],
        &["p: disruption-reported node-shutdown seen acted seen"],
    );
    let mut ended = failed("p", 143, "Error", 700);
    ended["status"]["conditions"] = json!([{"type": "epilogue.dev/Ended", "status": "True"}]);
    assert_found(vec![node("n"), ended], &["p: disruption-reported stuck seen acted seen"]);
}

#[test]
fn a_pod_that_is_gone_is_judged_by_its_events() {
    let table = [
        (
            of_agent("p", "PodWouldBeDisrupted", 60),
            "status-missing-pod-deleted node-shutdown estimated would-have-acted seen",
        ),
        (of_agent("p", "PodStopped", 60), "disruption-reported node-shutdown seen acted seen"),
        (
            event("kubelet", "Pod", "p", "Evicted", 60),
            "disruption-reported node-pressure seen not-needed seen",
        ),
        (
            event("scheduler", "Pod", "p", "Preempted", 60),
            "disruption-reported preemption estimated not-needed seen",
        ),
    ];
    for (event, expected) in table {
        let mut only = input(vec![event.clone()]);
        let found: Vec<String> =
            report(&only).expect("must be readable").pods.iter().map(line).collect();
        assert_eq!(found, [format!("p: {expected}")]);
        // Without the pods it is not known to be gone.
        only.read.retain(|kind| *kind != Kind::Pod);
        assert!(report(&only).expect("must be readable").pods.is_empty());
    }
}

#[test]
fn an_eviction_without_its_message_is_unclear() {
    let evicted = because(failed("p", 137, "Error", 700), "Evicted", "");
    let found = reported(vec![node("n"), evicted]);
    assert!(found.pods.is_empty());
    let codes: Vec<&str> = found.not_known.iter().map(|it| it.code.as_str()).collect();
    let expected = ["events-window", "eviction-cause-unknown", "pods-collected", "jobs-expired"];
    assert_eq!(codes, expected);
}

#[test]
fn work_and_waiting_are_measured_from_the_disruption() {
    let found = reported(vec![silent(node("n")), deleted(pod("p"), 0)]);
    // Started at -3590; the node is silent since 60; now is 3600.
    assert_eq!(found.pods[0].work_seconds, Some(3650));
    assert_eq!(found.pods[0].waited_seconds, Some(3540));
    let mut for_ever = deleted(pod("p"), 0);
    for_ever["spec"]["restartPolicy"] = "Always".into();
    let found = reported(vec![silent(node("n")), for_ever]);
    assert_eq!(found.pods[0].work_seconds, None);
    let figure = |name: &str| {
        let figure = found.figures.iter().find(|figure| figure.name == name);
        figure.map(|figure| (figure.seen, figure.estimated))
    };
    assert_eq!(figure("waited"), Some((3540, 0)));
    assert_eq!(figure("work-lost"), Some((0, 0)));
    assert_eq!(figure("status-missing-node-silent"), Some((1, 0)));
    assert_eq!(figure("epilogue-no-help"), Some((0, 1)));
}

#[test]
fn each_job_has_the_sum_of_the_work_of_its_disrupted_pods() {
    let of_job = |name: &str, job: &str, second: i64| {
        let mut pod = target(failed(name, 143, "Error", second), "True", "Evicted", 0);
        pod["metadata"]["ownerReferences"][0]["name"] = job.into();
        pod
    };
    let mut for_ever = of_job("d", "b", 600);
    for_ever["spec"]["restartPolicy"] = "Always".into();
    let mut bare = of_job("e", "b", 600);
    bare["metadata"]["ownerReferences"] = json!([]);
    let own = failed("f", 1, "Error", 600);
    let pods = vec![of_job("a", "a", 600), of_job("b", "b", 700), of_job("c", "b", 10)];
    let found = reported(pods.into_iter().chain([for_ever, bare, own, node("n")]).collect());
    let lost: Vec<_> =
        found.lost_work.iter().map(|it| (it.name.as_str(), it.pods, it.seconds)).collect();
    assert_eq!(lost, [("b", 2, 4290 + 3600), ("a", 1, 4190)]);
}

#[test]
fn a_half_that_does_not_run_is_named_with_its_phases() {
    let of = |apps: &[&str], page: Option<&str>| {
        let ours = apps.iter().map(|app| {
            let mut own = pod(app);
            own["metadata"]["labels"] = json!({"app.kubernetes.io/name": app});
            own
        });
        let mut metrics = Metrics::default();
        if let Some(page) = page {
            metrics.add(page);
        }
        let found = report(&Input { metrics, ..input(ours.collect()) }).expect("must be readable");
        let mut missing = found.not_known.into_iter();
        let missing = missing.find(|it| it.code == Code::PhasesNotMeasured).map(|it| it.text);
        missing.map_or("", |text| if text.contains("notice") { "notice" } else { "all" })
    };
    let (agent, controller) = ("epilogue-agent", "epilogue-controller");
    assert_eq!(of(&[agent], Some("")), "all");
    assert_eq!(of(&[controller], Some("")), "notice");
    assert_eq!(of(&[agent, controller], Some("")), "");
    assert_eq!(of(&[controller], None), "", "why there are no metrics is said already");
    let noticed = "epilogue_disruption_seconds_count{phase=\"notice\",source=\"shutdown\"} 1";
    assert_eq!(of(&[controller], Some(noticed)), "", "agents are services of the host");
}

#[test]
fn what_was_not_read_is_named_and_the_window_of_events_too() {
    let mut none = input(Vec::new());
    none.read.clear();
    none.metrics = Metrics::none("the right get pods/proxy is missing");
    let found = report(&none).expect("must be readable");
    let codes: Vec<&str> = found.not_known.iter().map(|it| it.code.as_str()).collect();
    let expected = [
        "pods-not-read",
        "jobs-not-read",
        "nodes-not-read",
        "events-not-read",
        "pods-collected",
        "jobs-expired",
        "metrics-not-included",
    ];
    assert_eq!(codes, expected);
    let found = reported(vec![event("kubelet", "Pod", "p", "Started", 600)]);
    assert_eq!(found.oldest_event.map(|at| at.to_string()), Some(at(600)));
    let text = &found.not_known[0].text;
    assert!(text.contains("is of 2026-11-21T12:10:00Z, 50 min before"), "{text}");
    let found = reported(vec![event("kubelet", "Pod", "p", "Started", -90_000)]);
    let text = &found.not_known[0].text;
    assert!(text.contains("beyond the beginning"), "{text}");
}

#[test]
fn events_and_pods_of_epilogue_are_counted() {
    let mut agent = pod("agent-1");
    agent["metadata"]["labels"] = json!({"app.kubernetes.io/name": "epilogue-agent"});
    let mut twice = of_agent("p", "WouldEvict", 20);
    twice["count"] = 4.into();
    let found = reported(vec![
        node("n"),
        agent,
        of_agent("p", "WouldEvict", 10),
        twice,
        of_agent("q", "WouldEvict", 30),
        event("epilogue-pod-gc", "Pod", "p", "PodWouldBeDeleted", 40),
        event("epilogue.dev/agent", "Node", "n", "NodeShutdownIncomplete", 50),
        of_node("Rebooted", 55),
    ]);
    assert_eq!(found.installed, Some(Installed { agents: 1, controllers: 0 }));
    let counts =
        found.events.iter().map(|it| format!("{} {} {}", it.reason, it.events, it.objects));
    let counts: Vec<String> = counts.collect();
    let expected = ["NodeShutdownIncomplete 1 1", "WouldEvict 6 2", "PodWouldBeDeleted 1 1"];
    assert_eq!(counts, expected);
    let nodes: Vec<_> = found.nodes.iter().map(|it| (it.node.as_str(), it.reason)).collect();
    assert_eq!(nodes, [("n", "Rebooted")]);
}

/// Programs read these names. A new one may come; none goes.
#[test]
fn the_json_has_the_documented_fields() {
    let objects = vec![
        deleted(pod("p"), 0),
        of_jobs::job("j", 0, &json!([])),
        of_node("Rebooted", 9),
        of_ends::with_a_rest(),
    ];
    let mut metrics = Metrics::default();
    metrics.add("epilogue_disruption_seconds_count{phase=\"running\",source=\"drain\"} 1");
    let input = Input { metrics, ..input(objects) };
    let found = report(&input).expect("must be readable");
    let found = serde_json::to_value(found).expect("must be JSON");
    let names = |value: &Value| {
        let fields = value.as_object().expect("must be an object");
        fields.keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let page = include_str!("../../../../../docs/report.md");
    for (value, expected) in [
        (
            &found,
            "controller disruption_times ends events figures from installed jobs lost_work metrics \
             namespace nodes not_known oldest_event pods to version",
        ),
        (&found["figures"][0], "estimated how name seen text unit"),
        (
            &found["pods"][0],
            "at basis cause code epilogue epilogue_basis epilogue_how how job name namespace node \
             waited_seconds work_seconds",
        ),
        (
            &found["jobs"][0],
            "at backoff_limit basis code disruptions epilogue epilogue_how failures how \
             ignores_disruptions name namespace reason work_seconds",
        ),
        (&found["lost_work"][0], "name namespace pods seconds"),
        (&found["disruption_times"][0], "count mean_seconds p50_at_most p99_at_most phase source"),
        (&found["nodes"][0], "at cause node reason"),
        (&found["ends"], "between by_cause by_hour by_job by_node disruptions total"),
        (&found["ends"]["by_cause"][0], "cause counted disruption ends"),
        (&found["ends"]["by_job"][0], "causes disruptions ends name namespace"),
        (&found["ends"]["by_node"][0], "causes disruptions ends node"),
        (&found["ends"]["by_hour"][0], "at cause ends"),
        (&found["ends"]["between"][0], "cause ends from to"),
        (&found["not_known"][0], "code text"),
    ] {
        assert_eq!(names(value), expected);
        for name in expected.split(' ') {
            assert!(page.contains(&format!("`{name}`")), "docs/report.md lacks {name}");
        }
    }
    assert_eq!(found["version"], 1);
    for figure in found["figures"].as_array().into_iter().flatten() {
        let name = figure["name"].as_str().unwrap_or_default();
        assert!(page.contains(&format!("`{name}`")), "docs/report.md lacks {name}");
    }
}
