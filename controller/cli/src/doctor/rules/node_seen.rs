//! Reads a node, with the fields that pod GC does not read, and what its agent left on it.

use std::collections::BTreeMap;

use epilogue_common::announcement::Announcement;
use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::node::{READINESS, SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::readiness::Readiness;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::times::seconds;
use controller_core::podgc::{NodeView, WireNode};

/// A shutdown lasts no longer. ([ST9])
const SHUTDOWN_MAX: SignedDuration = SignedDuration::from_mins(15);
/// Within this time of the node's readiness its agent is back and has removed what an earlier boot
/// left.
const AGENT_BACK: SignedDuration = SignedDuration::from_mins(5);

/// A node.
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

/// What an agent left on its node.
pub(super) struct Leftover {
    pub(super) code: Code,
    pub(super) problem: String,
    pub(super) since: Option<Timestamp>,
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

    /// Finds what the node's agent should have removed.
    pub(super) fn leftovers(&self, now: Timestamp) -> Vec<Leftover> {
        let mut left: Vec<Leftover> = self.stale_state(now).into_iter().collect();
        let announced = matches!(
            self.view.announcement,
            Some(Announcement::ShuttingDown { .. } | Announcement::Drained { .. })
        );
        let taint = self.taints.iter().find(|taint| taint.key == SHUTTING_DOWN_TAINT);
        // Notice of an end keeps pods away before the shutdown begins.
        let is_noticed = self.readiness.as_ref().is_some_and(|it| it.notice.is_some());
        if let Some(taint) = taint.filter(|_| !announced && !is_noticed && self.is_up_for(now)) {
            let problem = format!("the taint {SHUTTING_DOWN_TAINT} is set without a shutdown");
            let (code, since) = (Code::TaintWithoutShutdown, taint.time_added);
            left.push(Leftover { code, problem, since });
        }
        left
    }

    /// Whether the node has the out-of-service taint, and has been ready for so long that whoever
    /// set it seems to have forgotten it.
    pub(super) fn is_wrongly_out_of_service(&self, now: Timestamp) -> bool {
        self.view.out_of_service && self.is_up_for(now)
    }

    fn stale_state(&self, now: Timestamp) -> Option<Leftover> {
        let text = self.state.as_deref()?;
        let (boot_id, at) = match &self.view.announcement {
            None => {
                let problem = format!(
                    "invalid {STATE} {text:?}: expected idle, shutting-down;… or drained;…"
                );
                return Some(Leftover { code: Code::StateUnreadable, problem, since: None });
            }
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
                "{STATE} of {} is of boot {boot_id}; no agent has reset it in the current boot",
                seconds(at)
            );
            let (code, since) = (Code::StateOfEarlierBoot, self.view.ready_since);
            return Some(Leftover { code, problem, since });
        }
        let late = now.duration_since(at) > SHUTDOWN_MAX;
        let problem = format!("a shutdown began at {}, and the node is still up", seconds(at));
        late.then_some(Leftover { code: Code::ShutdownOverdue, problem, since: Some(at) })
    }

    /// Whether the node is ready for so long that an agent would have come back.
    fn is_up_for(&self, now: Timestamp) -> bool {
        let since = self.view.ready_since;
        self.view.is_ready() && since.is_none_or(|since| now.duration_since(since) > AGENT_BACK)
    }
}
