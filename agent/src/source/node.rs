//! Reads the node's own object: the agent's entries on it, and the kubelet's reports about itself.

use std::pin::pin;

use agent_core::protocol::event::{EndSign, Event, NodeCondition, NodeView, VolumesInUse};
use epilogue_common::names::node::{ENDS_SOON_TAINTS, SHUTTING_DOWN_TAINT};
use epilogue_common::names::node_condition::{
    ENDS_SOON, MAINTENANCE_PLANNED, OURS, SHARED, is_ours,
};
use epilogue_runtime::watch::WatchEvent;
use futures::StreamExt as _;
use kube::Client;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::tell;
use super::watch::{Kind, Watch};

/// The kubelet's message in its condition Ready. ([SD8])
const KUBELET_SHUTS_DOWN: &str = "node is shutting down";
/// The kubelet's conditions for a shortage. ([EV19])
const KUBELET_PRESSURE: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// The part of a node that the agent reads.
#[derive(Debug, Default, Deserialize)]
struct WireNode {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    resource_version: String,
    annotations: Option<Annotations>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations {
    #[serde(rename = "epilogue.dev/state")]
    state: Option<String>,
    #[serde(rename = "epilogue.dev/readiness")]
    readiness: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Option<Vec<Condition>>,
    volumes_in_use: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: Option<String>,
}

impl WireNode {
    fn view(self) -> NodeView {
        let says_shutdown = |condition: &Condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.kind == "Ready"
                && condition.status == "False"
                && message.contains(KUBELET_SHUTS_DOWN)
        };
        let taints = self.spec.taints.unwrap_or_default();
        let conditions = self.status.conditions.unwrap_or_default();
        let is_true = |condition: &Condition| condition.status == "True";
        let is_pressure = |condition: &&Condition| {
            is_true(condition) && KUBELET_PRESSURE.contains(&condition.kind.as_str())
        };
        let may_write = |condition: &&Condition| {
            let kind = condition.kind.as_str();
            OURS.contains(&kind) || SHARED.contains(&kind)
        };
        let annotations = self.metadata.annotations.unwrap_or_default();
        NodeView {
            uid: self.metadata.uid,
            announced: annotations.state,
            readiness: annotations.readiness,
            tainted: taints.iter().any(|taint| taint.key == SHUTTING_DOWN_TAINT),
            kubelet_says_shutdown: conditions.iter().any(says_shutdown),
            kubelet_pressure: conditions
                .iter()
                .filter(is_pressure)
                .map(|condition| condition.kind.clone())
                .collect(),
            conditions: conditions
                .iter()
                .filter(may_write)
                .map(|condition| NodeCondition {
                    kind: condition.kind.clone(),
                    is_true: is_true(condition),
                    is_ours: is_ours(&condition.kind, condition.message.as_deref().unwrap_or("")),
                })
                .collect(),
            end_sign: end_sign(&taints, &conditions),
            volumes_in_use: VolumesInUse::of(self.status.volumes_in_use.unwrap_or_default()),
        }
    }
}

/// By what another program says that the node is about to end: of several, by a taint, as that
/// keeps new pods away.
fn end_sign(taints: &[Taint], conditions: &[Condition]) -> Option<EndSign> {
    let says = |taint: &&Taint| ENDS_SOON_TAINTS.contains(&taint.key.as_str());
    if let Some(Taint { key, effect }) = taints.iter().find(says) {
        let keeps_pods_away = ["NoSchedule", "NoExecute"].contains(&effect.as_str());
        return Some(EndSign { name: key.clone(), needs_taint: !keeps_pods_away });
    }
    let says = |condition: &&Condition| {
        let Condition { kind, status, message } = condition;
        let is_own = is_ours(kind, message.as_deref().unwrap_or(""));
        status == "True" && ENDS_SOON.contains(&kind.as_str()) && !is_own
    };
    // A maintenance that is only planned may be days away.
    let latest = conditions.iter().filter(says).max_by_key(|it| it.kind != MAINTENANCE_PLANNED)?;
    let needs_taint = latest.kind != MAINTENANCE_PLANNED;
    Some(EndSign { name: latest.kind.clone(), needs_taint })
}

/// Reports the node's object. Only what the agent reads of it counts as a change: a kubelet writes
/// its node every few minutes.
pub async fn run(client: Client, watch: Watch, events: mpsc::Sender<Event>) {
    let read = |text: &str| serde_json::from_str::<WireNode>(text);
    let path = "/api/v1/nodes";
    let scope = Kind { path, names: path, field: "metadata.name" };
    let observed = watch.events(client, scope, read, |node| &node.metadata.resource_version);
    let mut observed = pin!(observed);
    let mut last = None;
    while let Some(event) = observed.next().await {
        let view = match event {
            WatchEvent::Shown(node) => node.view(),
            // The same view tells that what was written since is undone.
            WatchEvent::Restored => {
                last = None;
                continue;
            }
            _ => continue,
        };
        if last.as_ref() != Some(&view) {
            last = Some(view.clone());
            tell(&events, Event::NodeObserved(view)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epilogue_common::announcement::Announcement;
    use serde_json::{Value, json};

    fn view(node: Value) -> NodeView {
        serde_json::from_value::<WireNode>(node).expect("must parse").view()
    }

    #[test]
    fn the_agents_own_fields_and_the_kubelets_message_are_read() {
        let node = view(json!({
            "metadata": {"uid": "u", "annotations": {"epilogue.dev/state": "idle", "other": "x"}},
            "spec": {"taints": [{"key": "other", "effect": "NoSchedule"},
                {"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "False",
                "message": "[container runtime is down, node is shutting down]"}]},
        }));
        let expected = NodeView {
            uid: "u".into(),
            announced: Some("idle".into()),
            tainted: true,
            kubelet_says_shutdown: true,
            ..NodeView::default()
        };
        assert_eq!(node, expected);
    }

    #[test]
    fn a_ready_node_and_one_that_says_nothing_do_not_shut_down() {
        let condition = |kind: &str, status: &str| {
            json!({"status": {"conditions": [
                {"type": kind, "status": status, "message": "node is shutting down"}]}})
        };
        assert!(!view(condition("Ready", "True")).kubelet_says_shutdown);
        assert!(!view(condition("Other", "False")).kubelet_says_shutdown);
        assert_eq!(view(json!({})), NodeView::default());
    }

    #[test]
    fn the_kubelet_s_pressure_and_our_own_conditions_are_distinguished() {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let node = view(json!({"status": {"conditions": [
            condition("MemoryPressure", "True"), condition("DiskPressure", "False"),
            condition("PIDPressure", "Unknown"), condition("Ready", "True"),
            condition("epilogue.dev/MemoryStall", "True"),
            condition("epilogue.dev/IOStall", "False"), condition("example.com/Odd", "True"),
        ]}}));
        assert_eq!(node.kubelet_pressure, ["MemoryPressure"]);
        let expected = [
            NodeCondition::ours("epilogue.dev/MemoryStall", true),
            NodeCondition::ours("epilogue.dev/IOStall", false),
        ];
        assert_eq!(node.conditions, expected);
    }

    #[test]
    fn a_condition_that_others_may_write_is_ours_by_its_message() {
        let read = |message: Value| {
            let kind = "GracefulNodeShutdownInProgress";
            let condition = json!({"type": kind, "status": "True", "message": message});
            let view = view(json!({"status": {"conditions": [condition]}}));
            assert!(view.shows(kind));
            view.condition(kind).expect("must be read").is_ours
        };
        assert!(read(json!("epilogue-agent: the node is shutting down.")));
        for others in [json!(null), json!(""), json!("kubelet: the node is shutting down.")] {
            assert!(!read(others.clone()), "{others}");
        }
    }

    #[test]
    fn others_say_by_taints_and_conditions_that_the_node_is_about_to_end() {
        let sign = |taints: &[(&str, &str)], conditions: &[(&str, &str, &str)]| {
            let taints = taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect}));
            let conditions = conditions.iter().map(|(kind, status, message)| {
                json!({"type": kind, "status": status, "message": message})
            });
            let node = view(json!({
                "spec": {"taints": taints.collect::<Vec<_>>()},
                "status": {"conditions": conditions.collect::<Vec<_>>()},
            }));
            node.end_sign.map(|sign| (sign.name, sign.needs_taint))
        };
        for key in ENDS_SOON_TAINTS {
            let named = |needs_taint| Some((key.to_owned(), needs_taint));
            let draining = ("DrainInProgress", "True", "");
            assert_eq!(
                sign(&[("a", "NoSchedule"), (key, "NoSchedule")], &[draining]),
                named(false)
            );
            assert_eq!(sign(&[(key, "PreferNoSchedule")], &[]), named(true));
        }
        let planned = ("MaintenancePlanned", "True", "kured: on Monday");
        let ours = ("MaintenancePlanned", "True", "epilogue-agent: aws has given notice");
        let named = |name: &str, needs_taint| Some((name.to_owned(), needs_taint));
        assert_eq!(sign(&[], &[planned]), named("MaintenancePlanned", false));
        for kind in ["MaintenanceInProgress", "DrainInProgress", "Drained"] {
            assert_eq!(sign(&[], &[(kind, "True", ""), planned]), named(kind, true));
            assert_eq!(sign(&[], &[(kind, "False", ""), (kind, "Unknown", "")]), None);
        }
        let kubelet = ("GracefulNodeShutdownInProgress", "True", "");
        assert_eq!(sign(&[("node.kubernetes.io/unschedulable", "NoSchedule")], &[ours]), None);
        assert_eq!(
            sign(&[("DeletionCandidateOfClusterAutoscaler", "NoSchedule")], &[kubelet]),
            None
        );
    }

    #[test]
    fn the_volumes_in_use_are_read_and_bounded() {
        let read = |names: Value| view(json!({"status": {"volumesInUse": names}})).volumes_in_use;
        for none in [json!(null), json!([])] {
            assert_eq!(read(none), VolumesInUse::default());
        }
        let few = read(json!(["kubernetes.io/csi/a^1", "kubernetes.io/csi/a^2"]));
        assert_eq!(few.names, ["kubernetes.io/csi/a^1", "kubernetes.io/csi/a^2"]);
        let many = read(json!(vec!["ä".repeat(1_000); 1_000]));
        assert_eq!((many.number, many.names.len()), (1_000, 128));
        assert!(many.names.iter().all(|name| name.len() == 256));
    }

    /// The agent finds on its node what a former version of it has written.
    #[test]
    fn what_each_former_version_has_written_on_the_node_is_read() {
        for golden in [
            include_str!("../../../common/golden/agent-1.json"),
            include_str!("../../../common/golden/agent-2.json"),
        ] {
            let golden: Value = serde_json::from_str(golden).expect("must be JSON");
            let read = |name: &str| view(golden[name].clone());
            for name in ["node: idle", "node: shutting down", "node: drained"] {
                let said = read(name).announced.expect(name);
                assert!(said.parse::<Announcement>().is_ok(), "{said}");
            }
            assert!(read("node: ready for a shutdown").readiness.is_some());
            assert!(read("node: tainted").tainted);
            let stalls = [NodeCondition::ours("epilogue.dev/MemoryStall", true)];
            assert_eq!(read("node: stalls").conditions, stalls);
        }
    }
}
