//! Finds annotations and taints that agents left on nodes.

use std::collections::BTreeMap;

use epilogue_common::announcement::Announcement;
use epilogue_common::names::node::{READINESS, SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::readiness::Readiness;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::finding::{Finding, Rule};
use super::scene::Scene;
use super::seconds;
use crate::podgc::{NodeView, WireNode};

/// A shutdown lasts no longer. ([ST9])
const SHUTDOWN_MAX: SignedDuration = SignedDuration::from_mins(15);
/// Within this time of the node's readiness its agent is back and has removed what an earlier boot
/// left.
const AGENT_BACK: SignedDuration = SignedDuration::from_mins(5);

/// A node with the fields that pod GC does not read.
#[derive(Clone, Debug)]
pub(super) struct NodeSeen {
    pub(super) view: NodeView,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Taint>,
    pub(super) unschedulable: bool,
    pub(super) conditions: Vec<Condition>,
    /// The agent's annotation as it is written.
    pub(super) state: Option<String>,
    /// What the agent states about a future shutdown.
    pub(super) readiness: Option<Readiness>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) effect: String,
    time_added: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) last_transition_time: Option<Timestamp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireNodeMore {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Meta {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Option<Vec<Taint>>,
    unschedulable: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Option<Vec<Condition>>,
}

impl NodeSeen {
    pub(super) fn read(node: Value, view: &WireNode) -> Result<Self, serde_json::Error> {
        let node: WireNodeMore = serde_json::from_value(node)?;
        let mut annotations = node.metadata.annotations.unwrap_or_default();
        let readiness = annotations.remove(READINESS).and_then(|text| text.parse().ok());
        Ok(Self {
            readiness,
            view: NodeView::read(view),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: node.spec.taints.unwrap_or_default(),
            unschedulable: node.spec.unschedulable.unwrap_or(false),
            conditions: node.status.conditions.unwrap_or_default(),
            state: annotations.remove(STATE),
        })
    }

    /// Marks that its agent should have removed, each with the time since when.
    pub(super) fn stale_marks(&self, now: Timestamp) -> Vec<(String, Option<Timestamp>)> {
        let mut stale = Vec::new();
        stale.extend(self.stale_state(now));
        let announced = matches!(
            self.view.announcement,
            Some(Announcement::ShuttingDown { .. } | Announcement::Drained { .. })
        );
        let taint = self.taints.iter().find(|taint| taint.key == SHUTTING_DOWN_TAINT);
        if let Some(taint) = taint.filter(|_| !announced && self.is_up_for(now)) {
            let problem = format!("the taint {SHUTTING_DOWN_TAINT} stands without a shutdown");
            stale.push((problem, taint.time_added));
        }
        stale
    }

    fn stale_state(&self, now: Timestamp) -> Option<(String, Option<Timestamp>)> {
        let text = self.state.as_deref()?;
        let (boot_id, at) = match &self.view.announcement {
            None => return Some((format!("{STATE}={text} is nothing that an agent says"), None)),
            Some(Announcement::Idle) => return None,
            Some(
                Announcement::ShuttingDown { boot_id, since: at }
                | Announcement::Drained { boot_id, at },
            ) => (boot_id, *at),
        };
        // A silent node is off, as announced.
        if !self.is_up_for(now) {
            return None;
        }
        if !self.view.runs_in(boot_id) {
            let problem = format!(
                "its agent's word of {} is of boot {boot_id}, and no agent has taken it back \
                 since the node is up again",
                seconds(at)
            );
            return Some((problem, self.view.ready_since));
        }
        let late = now.duration_since(at) > SHUTDOWN_MAX;
        let problem = format!("it was said to shut down at {}, and is still up", seconds(at));
        late.then_some((problem, Some(at)))
    }

    /// Whether the node is ready for so long that an agent would have come back.
    fn is_up_for(&self, now: Timestamp) -> bool {
        let since = self.view.ready_since;
        self.view.is_ready() && since.is_none_or(|since| now.duration_since(since) > AGENT_BACK)
    }
}

pub(super) fn findings(scene: &Scene, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, node) in &scene.nodes {
        for (problem, since) in node.stale_marks(now) {
            let finding = Finding::new(Rule::StaleNodeMark, format!("node/{name}"), problem);
            found.push(with_remedies(finding.since(since), name, scene));
        }
    }
    found
}

fn with_remedies(finding: Finding, name: &str, scene: &Scene) -> Finding {
    let agent = scene.agent_of(name).map_or_else(
        || format!("start the agent of {name}: it takes back what is stale"),
        |pod| {
            let agent = format!("--namespace {} {}", pod.namespace, pod.name);
            format!("the agent takes back what is stale: see kubectl logs {agent}")
        },
    );
    finding.remedy(agent).remedy(format!(
        "where no agent is wanted: kubectl annotate node {name} {STATE}-; kubectl taint node \
         {name} {SHUTTING_DOWN_TAINT}-"
    ))
}
