//! Holds what pod GC and disruption write to the newest golden file, and what they read to the
//! files of all versions of both programs.

use std::collections::BTreeMap;

use epilogue_common::announcement::Announcement;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::podgc::NodeView;
use crate::podgc::evidence::{Evidence, ForceFailPolicy};
use crate::podgc::patches::{TargetRule, cleared, failed, marked};
use crate::view::{Interner, Phase, Pod, Said, Target, WirePod};

type Bodies = BTreeMap<String, Value>;

/// What each version of the agent writes.
const AGENT: &[&str] = &[
    include_str!("../../../../../common/golden/agent-1.json"),
    include_str!("../../../../../common/golden/agent-2.json"),
];
/// What each version of the controller writes, the newest last.
const OURS: &[&str] = &[include_str!("../../../../../common/golden/controller-1.json")];

fn bodies(text: &str) -> Bodies {
    serde_json::from_str(text).expect("must be JSON")
}

fn at() -> Timestamp {
    "2026-11-21T14:05:06Z".parse().expect("must be a time")
}

/// The pod as the controller reads it after this body was written. Its status still shows a
/// container that runs.
fn read(body: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"uid": "uid-a", "name": "a", "namespace": "jobs", "generation": 3,
                     "resourceVersion": "4711"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"},
                           {"type": "ContainersReady", "status": "True"}],
            "containerStatuses": [{
                "name": "main", "state": {"running": {"startedAt": "2026-11-21T14:00:00Z"}}}],
        },
    });
    for part in ["metadata", "spec", "status"] {
        for (name, value) in body[part].as_object().into_iter().flatten() {
            pod[part][name] = value.clone();
        }
    }
    // The API removes what a patch names as null.
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|_, value| !value.is_null());
    }
    let pod: WirePod = serde_json::from_value(pod).expect("must be a pod");
    pod.view(&mut Interner::default())
}

fn evidence() -> [Evidence; 6] {
    let policy = ForceFailPolicy { after: SignedDuration::from_mins(10), by: "Job j".to_owned() };
    [
        Evidence::NeverScheduled,
        Evidence::NodeGone,
        Evidence::OutOfService,
        Evidence::Rebooted { from: "boot-1".into(), to: "boot-2".into() },
        Evidence::Drained { boot_id: "boot-1".to_owned(), at: at() },
        Evidence::ForceFail(policy),
    ]
}

#[test]
fn what_is_written_to_pods_is_as_in_the_newest_golden_file() {
    let pod = read(&json!({}));
    let mut written = Bodies::new();
    written.insert("pod: marked".to_owned(), marked(&pod, at()));
    written.insert("pod: mark removed".to_owned(), cleared(&pod, at()));
    for evidence in evidence() {
        let name = format!("pod: failed, {}", evidence.reason());
        written.insert(name, failed(&pod, &evidence, TargetRule::Set, at()));
    }
    let mut golden = bodies(OURS.last().expect("there must be one"));
    golden.retain(|name, _| name.starts_with("pod: "));
    let names = |bodies: &Bodies| bodies.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&written), names(&golden));
    for (name, body) in written {
        let golden = &golden[&name];
        assert_eq!(&body, golden, "{name} has changed: keep the former file, and add a new one");
    }
}

fn target(stands: bool, reason: &str) -> Target {
    let says = if reason == "TerminationByKubelet" { Said::Shutdown } else { Said::Other };
    Target { stands, reason: reason.into(), says, since: Some(at()) }
}

/// A pod that a program of ours has failed needs no more proof that nothing of it runs.
#[test]
fn pods_of_each_former_version_of_the_controller_are_read() {
    for bodies in OURS.iter().map(|text| bodies(text)) {
        let marked = read(&bodies["pod: marked"]);
        assert_eq!(marked.gc.target(), Some(&target(true, "TerminationByKubelet")));
        let removed = read(&bodies["pod: mark removed"]);
        assert_eq!(removed.gc.target(), Some(&target(false, "")));
        for evidence in evidence() {
            let reason = evidence.reason();
            let pod = read(&bodies[&format!("pod: failed, {reason}")]);
            assert_eq!((pod.phase, pod.shown_running_since), (Phase::Failed, None), "{reason}");
            assert_eq!(pod.gc.target(), Some(&target(true, "DeletionByPodGC")), "{reason}");
        }
    }
}

#[test]
fn pods_of_each_former_version_of_the_agent_are_read() {
    let by_kubelet = target(true, "TerminationByKubelet");
    for bodies in AGENT.iter().map(|text| bodies(text)) {
        for (name, says) in [
            ("pod: marked", Said::Shutdown),
            ("pod: lost", Said::Loss),
            ("pod: marked for pressure", Said::Pressure),
        ] {
            let marked = Target { says, ..by_kubelet.clone() };
            assert_eq!(read(&bodies[name]).gc.target(), Some(&marked), "{name}");
        }
        let removed = read(&bodies["pod: mark removed"]);
        assert_eq!(removed.gc.target(), Some(&target(false, "")));
        for (name, target) in [
            ("pod: failed", Some(&by_kubelet)),
            ("pod: failed for its deleter", None),
            ("pod: evicted", None),
        ] {
            let mut body = bodies[name].clone();
            let pod = read(&body);
            assert_eq!((pod.phase, pod.shown_running_since), (Phase::Failed, None), "{name}");
            assert_eq!(pod.gc.target(), target, "{name}");
            // The annotation is the proof: without it the container counts as running.
            body["metadata"]["annotations"] = json!({});
            assert_eq!(read(&body).shown_running_since, Some(at()), "{name}");
        }
        let pod = read(&bodies["pod: killed at its limit"]);
        assert!(pod.has_condition("epilogue.dev/OOMKilled"));
    }
}

#[test]
fn nodes_of_each_former_version_of_the_agent_are_read() {
    let boot_id = || "7d0c9ee0-3a1d".to_owned();
    let announcements = [
        ("node: idle", Announcement::Idle),
        ("node: shutting down", Announcement::ShuttingDown { boot_id: boot_id(), since: at() }),
        ("node: drained", Announcement::Drained { boot_id: boot_id(), at: at() }),
    ];
    for bodies in AGENT.iter().map(|text| bodies(text)) {
        let read = |name: &str| {
            let node = serde_json::from_value(bodies[name].clone()).expect("must be a node");
            NodeView::read(&node)
        };
        for (name, announcement) in &announcements {
            assert_eq!(read(name).announcement.as_ref(), Some(announcement), "{name}");
        }
        let tainted = read("node: tainted");
        assert_eq!((tainted.shutting_down, tainted.announcement), (true, None));
        // The first version wrote no time of an end.
        let ends_at = bodies.contains_key("node: notice given").then(|| read("node: notice given"));
        assert!(ends_at.is_none_or(|node| node.ends_at == Some(at())));
    }
}
