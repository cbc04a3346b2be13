//! Holds what the agent writes to the API to its newest golden file, and what it reads there to the
//! files of all versions: a later agent finds them on its node, and the controller's as well.

use std::collections::BTreeMap;

use agent_core::pod::{Phase, PodUid, PodView};
use agent_core::protocol::action::{Action, PodRef};
use agent_core::protocol::event::ActionResult;
use agent_core::termination::patches::{self, OomKilled};
use epilogue_common::announcement::Announcement;
use epilogue_common::readiness::{DelayLock, Readiness};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::carried_out;
use crate::server::Answer;

type Bodies = BTreeMap<String, Value>;

/// What each version of the agent writes, the newest last.
const OURS: &[&str] = &[
    include_str!("../../../common/golden/agent-1.json"),
    include_str!("../../../common/golden/agent-2.json"),
];
/// What each version of the controller writes.
const CONTROLLER: &[&str] = &[include_str!("../../../common/golden/controller-1.json")];

const BOOT: &str = "7d0c9ee0-3a1d";
const PRESSURE: &str = "The node was low on resource: memory. ";

fn bodies(text: &str) -> Bodies {
    serde_json::from_str(text).expect("must be JSON")
}

fn at() -> Timestamp {
    "2026-11-21T14:05:06.987654Z".parse().expect("must be a time")
}

/// By the API's clock, which has whole seconds.
fn at_second() -> Timestamp {
    "2026-11-21T14:05:06Z".parse().expect("must be a time")
}

/// The pod as the agent reads it after this body was written.
async fn read(body: &Value) -> PodView {
    let mut pod = json!({
        "metadata": {"uid": "uid-a", "name": "a", "namespace": "jobs", "generation": 3,
                     "resourceVersion": "4711"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "main", "state": {"running": {"startedAt": "2026-11-21T14:00:00Z"}}}]},
    });
    for part in ["metadata", "spec", "status"] {
        let fields = body[part].as_object().into_iter().flatten();
        for (name, value) in fields {
            pod[part][name] = value.clone();
        }
    }
    let uid = PodUid("uid-a".into());
    let action = Action::ReadPod(PodRef { namespace: "jobs".into(), name: "a".into(), uid });
    match carried_out(action, vec![Answer::ok(pod)]).await {
        (ActionResult::Pod(Ok(Some(pod))), _) => *pod,
        (other, _) => panic!("no pod: {other:?}"),
    }
}

fn announcements() -> [(&'static str, Announcement); 3] {
    let boot_id = || BOOT.to_owned();
    [
        ("node: idle", Announcement::Idle),
        (
            "node: shutting down",
            Announcement::ShuttingDown { boot_id: boot_id(), since: at_second() },
        ),
        ("node: drained", Announcement::Drained { boot_id: boot_id(), at: at_second() }),
    ]
}

fn readiness() -> [(&'static str, Readiness); 3] {
    let readiness = |mode: &str, lock, granted_seconds, wanted_seconds| Readiness {
        mode: mode.to_owned(),
        lock,
        granted_seconds,
        wanted_seconds,
        notice: None,
        ends_at: None,
    };
    [
        ("node: ready for a shutdown", readiness("replace", DelayLock::Held, Some(40), 40)),
        ("node: without a lock", readiness("assist", DelayLock::Missing, None, 40)),
        ("node: without logind", readiness("substitute", DelayLock::NotUsed, None, 0)),
    ]
}

/// Notice of an end that is certain; the first version wrote no time.
fn noticed() -> (&'static str, Readiness) {
    let [(_, calm), ..] = readiness();
    let (notice, ends_at) = (Some("aws".to_owned()), Some(at_second()));
    ("node: notice given", Readiness { notice, ends_at, ..calm })
}

/// What this version sends to the node. The API answers the taint's read with a node of no taints.
async fn sent_to_the_node() -> Bodies {
    let mut actions: Vec<(&str, Action)> = Vec::new();
    let texts = announcements().map(|(name, it)| (name, Action::Announce(it.to_string())));
    actions.extend(texts);
    let readiness = readiness().into_iter().chain([noticed()]);
    actions.extend(readiness.map(|(name, it)| (name, Action::Publish(it.to_string()))));
    actions.push(("node: tainted", Action::Taint { present: true }));
    let stalls = Action::SetNodeCondition {
        kind: "epilogue.dev/MemoryStall",
        stands: true,
        reason: "why",
        message: "pods stall".into(),
        since: at(),
    };
    actions.push(("node: stalls", stalls));
    let mut bodies = Bodies::new();
    for (name, action) in actions {
        let node = || Answer::ok(json!({"metadata": {"resourceVersion": "4711"}}));
        let (result, mut asked) = carried_out(action, vec![node(), node()]).await;
        assert_eq!(result, ActionResult::Done(Ok(())), "{name}");
        bodies.insert(name.to_owned(), asked.pop().expect("it must write").body);
    }
    bodies
}

/// What this version sends to a pod.
async fn sent_to_the_pod() -> Bodies {
    let pod = read(&json!({})).await;
    let ends_at = "2026-11-21T14:05:36.5Z".parse().expect("must be a time");
    let killed = OomKilled {
        reason: "ContainerLimit",
        message: "main was killed at its limit",
        since: Some(at()),
        disruption: None,
    };
    let bodies = [
        ("pod: marked", patches::announced(&pod, at(), ends_at)),
        ("pod: lost", patches::lost(&pod, at())),
        ("pod: marked for pressure", patches::pressed(&pod, at(), PRESSURE)),
        ("pod: mark removed", patches::clear(&pod, at())),
        ("pod: failed", patches::failed(&pod, at())),
        ("pod: failed for its deleter", patches::failed_for_deleter(&pod, at())),
        ("pod: evicted", patches::evicted(&pod, at(), PRESSURE)),
        ("pod: deadline", patches::deadline(&pod, "4711")),
        ("pod: killed at its limit", patches::oom_killed(&pod, &killed)),
    ];
    bodies.into_iter().map(|(name, body)| (name.to_owned(), body)).collect()
}

#[tokio::test]
async fn what_is_written_to_the_api_is_as_in_the_newest_golden_file() {
    let mut written = sent_to_the_node().await;
    written.append(&mut sent_to_the_pod().await);
    let golden = bodies(OURS.last().expect("there must be one"));
    let names = |bodies: &Bodies| bodies.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&written), names(&golden));
    for (name, body) in written {
        let golden = &golden[&name];
        assert_eq!(&body, golden, "{name} has changed: keep the former file, and add a new one");
    }
}

#[test]
fn a_node_s_annotations_of_each_former_version_are_read() {
    let said = |bodies: &Bodies, name: &str, key: &str| {
        let text = bodies[name]["metadata"]["annotations"][key].as_str();
        text.unwrap_or_else(|| panic!("{name} must have {key}")).to_owned()
    };
    for bodies in OURS.iter().map(|text| bodies(text)) {
        for (name, meaning) in announcements() {
            assert_eq!(said(&bodies, name, "epilogue.dev/state").parse(), Ok(meaning), "{name}");
        }
        for (name, meaning) in readiness() {
            let text = said(&bodies, name, "epilogue.dev/readiness");
            assert_eq!(text.parse(), Ok(meaning), "{name}");
        }
        let (name, meaning) = noticed();
        if bodies.contains_key(name) {
            assert_eq!(said(&bodies, name, "epilogue.dev/readiness").parse(), Ok(meaning));
        }
    }
}

/// What a body means to the agent: whose mark it is, if it stands.
#[derive(Debug, PartialEq)]
enum Mark {
    None,
    Ours { of_pressure: bool },
}

fn mark(pod: &PodView) -> Mark {
    let disruption = pod.disruption.as_ref().filter(|it| patches::is_ours(it, at_second()));
    disruption.map_or(Mark::None, |disruption| Mark::Ours {
        of_pressure: patches::is_of_pressure(disruption),
    })
}

#[tokio::test]
async fn a_pod_of_each_former_version_is_read() {
    let ours = Mark::Ours { of_pressure: false };
    let pressed = Mark::Ours { of_pressure: true };
    let table = [
        ("pod: marked", &ours, true, Phase::Running),
        ("pod: lost", &ours, true, Phase::Running),
        ("pod: marked for pressure", &pressed, true, Phase::Running),
        ("pod: mark removed", &Mark::None, false, Phase::Running),
        ("pod: failed", &ours, false, Phase::Failed),
        ("pod: failed for its deleter", &Mark::None, false, Phase::Failed),
        ("pod: evicted", &Mark::None, false, Phase::Failed),
        ("pod: deadline", &Mark::None, false, Phase::Running),
    ];
    for bodies in OURS.iter().map(|text| bodies(text)) {
        for (name, meaning, lives_on, phase) in &table {
            let pod = read(&bodies[*name]).await;
            assert_eq!(mark(&pod), **meaning, "{name}");
            assert_eq!(patches::stands(&pod, at_second()), *lives_on, "{name}");
            assert_eq!(pod.phase, *phase, "{name}");
            assert_eq!(pod.deadline_set, *name == "pod: deadline", "{name}");
        }
        let killed = read(&bodies["pod: killed at its limit"]).await;
        assert_eq!(killed.details.oom_killed, Some((true, "ContainerLimit".to_owned())));
    }
}

/// The agent takes over a mark that the controller set in its place, and leaves what pod GC failed.
#[tokio::test]
async fn a_pod_of_each_former_version_of_the_controller_is_read() {
    for bodies in CONTROLLER.iter().map(|text| bodies(text)) {
        let marked = read(&bodies["pod: marked"]).await;
        assert_eq!(mark(&marked), Mark::Ours { of_pressure: false });
        assert!(patches::stands(&marked, at_second()));
        let removed = read(&bodies["pod: mark removed"]).await;
        assert_eq!((mark(&removed), removed.is_disrupted()), (Mark::None, false));
        let failed = bodies.iter().filter(|(name, _)| name.starts_with("pod: failed"));
        for (name, body) in failed {
            let pod = read(body).await;
            assert!(pod.is_terminal() && pod.is_disrupted(), "{name}");
            assert_eq!(mark(&pod), Mark::None, "{name}");
        }
    }
}
