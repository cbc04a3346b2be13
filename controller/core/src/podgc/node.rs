//! Reads a node for the rules of pod GC and of disruption, and remembers its boots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::announcement::Announcement;
use epilogue_common::names::node::{READINESS, SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::readiness::Readiness;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use crate::job::NodeBoots;
use crate::view::Tristate;
use crate::view::lenient::lenient_time;
use crate::workqueue::Moment;

/// The key of the taint that states that the machine is off; a person or a cloud sets it.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// The message in the Ready condition of a kubelet that shuts down. ([SD8])
const SHUTDOWN_MESSAGE: &str = "node is shutting down";

/// A kubelet that boots writes its status before it starts pods. That status arrives within this
/// time unless the watch lags.
const FRESH_MAX: SignedDuration = SignedDuration::from_secs(30);

/// After a boot a kubelet reports the pods that it lost within this time, unless their failure has
/// another cause.
const REPORTED_WITHIN: Duration = Duration::from_hours(1);

/// A node as the API sends it, reduced to the fields that the rules read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct WireNode {
    #[serde(default)]
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct WireSpec {
    taints: Option<Vec<WireTaint>>,
}

#[derive(Clone, Debug, Deserialize)]
struct WireTaint {
    #[serde(default)]
    key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    conditions: Option<Vec<WireCondition>>,
    node_info: Option<WireInfo>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCondition {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
    message: Option<String>,
    #[serde(default, deserialize_with = "lenient_time")]
    last_transition_time: Option<Time>,
    #[serde(default, deserialize_with = "lenient_time")]
    last_heartbeat_time: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
struct WireInfo {
    #[serde(rename = "bootID", default)]
    boot_id: String,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Status of the condition `Ready`; `None` if there is no such condition.
    pub ready: Option<Tristate>,
    /// Since when `Ready` has this status.
    pub ready_since: Option<Timestamp>,
    /// Whether the kubelet reports that it shuts down.
    pub says_shutdown: bool,
    /// Whether it has the out-of-service taint, with any value and effect.
    pub out_of_service: bool,
    /// Whether it has the taint by which an agent keeps pods away while the node shuts down.
    pub shutting_down: bool,
    /// `status.nodeInfo.bootID`; `None` if it is not known.
    pub boot_id: Option<Arc<str>>,
    /// The announcement of its agent.
    pub announcement: Option<Announcement>,
    /// When its agent expects the end of the machine of which a source has given notice; `None` if
    /// that end may not come, or is not near.
    pub ends_at: Option<Timestamp>,
    /// When its kubelet last wrote the condition `Ready`.
    pub heard: Option<Timestamp>,
}

/// A node, and what was seen of its boots.
#[derive(Clone, Debug)]
pub struct NodeRecord {
    /// The current state of the node.
    pub view: NodeView,
    /// When the node was first seen in its current boot, by the clock of the work queue.
    seen_since: Moment,
    /// The boot that was shown before the current one.
    boot_before: Option<Arc<str>>,
    /// When the current boot was first seen; `None` if no earlier one was.
    pub booted_by: Option<Timestamp>,
    /// Everything done in the API up to this time was done before the current boot. A watch that
    /// lags shows a boot long after it, so our clock alone proves nothing.
    pub booted_after: Option<Timestamp>,
    /// When a change of the facts was last seen.
    pub changed_at: Timestamp,
    /// When it was first seen that the node shuts down; `None` if it does not.
    pub(crate) shutdown_seen: Option<Timestamp>,
    /// When it was first seen that the node ends soon; `None` if it does not.
    pub(crate) notice_seen: Option<Timestamp>,
}

impl WireNode {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// `metadata.resourceVersion`.
    pub fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl NodeView {
    /// Reads the facts of a node. An announcement that cannot be read counts as absent.
    pub fn read(node: &WireNode) -> Self {
        let conditions = node.status.conditions.as_deref().unwrap_or_default();
        let ready = conditions.iter().find(|each| each.kind == "Ready");
        let message = ready.and_then(|each| each.message.as_deref()).unwrap_or_default();
        let annotation = |name| node.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let (announcement, readiness) = (annotation(STATE), annotation(READINESS));
        let readiness: Option<Readiness> = readiness.and_then(|text| text.parse().ok());
        let boot_id = node.status.node_info.as_ref().map(|info| info.boot_id.as_str());
        let is_tainted =
            |key: &str| node.spec.taints.iter().flatten().any(|taint| taint.key == key);
        Self {
            name: node.metadata.name.as_str().into(),
            ready: ready.map(|each| Tristate::parse(&each.status)),
            ready_since: ready.and_then(|each| Some(each.last_transition_time.as_ref()?.0)),
            says_shutdown: ready.is_some_and(|each| each.status == "False")
                && message.contains(SHUTDOWN_MESSAGE),
            out_of_service: is_tainted(OUT_OF_SERVICE_TAINT),
            shutting_down: is_tainted(SHUTTING_DOWN_TAINT),
            boot_id: boot_id.filter(|id| !id.is_empty()).map(Arc::from),
            announcement: announcement.and_then(|text| text.parse().ok()),
            ends_at: readiness.and_then(|it| it.ends_at),
            heard: ready.and_then(|each| Some(each.last_heartbeat_time.as_ref()?.0)),
        }
    }

    /// Whether the kubelet reports that it can run pods.
    pub fn is_ready(&self) -> bool {
        self.ready == Some(Tristate::True)
    }

    /// Whether it can run pods and is in no shutdown.
    pub(crate) fn is_up(&self) -> bool {
        self.is_ready() && self.shuts_down_since().is_none()
    }

    /// Whether the control plane calls the state of its kubelet unknown, or never heard of it. A
    /// kubelet that is alive terminates its own pods.
    pub fn is_silent(&self) -> bool {
        matches!(self.ready, None | Some(Tristate::Unknown))
    }

    /// Whether notice was given of an end that is certain and near, and new pods stay away by now.
    pub(crate) fn ends_soon(&self) -> bool {
        self.shutting_down && self.ends_at.is_some()
    }

    /// Whether this is its current boot.
    pub fn runs_in(&self, boot_id: &str) -> bool {
        self.boot_id.as_deref() == Some(boot_id)
    }

    /// Since when it shuts down, as its agent or its kubelet reports for the current boot.
    pub fn shuts_down_since(&self) -> Option<Timestamp> {
        match &self.announcement {
            Some(Announcement::ShuttingDown { boot_id, since }) if self.runs_in(boot_id) => {
                Some(*since)
            }
            Some(Announcement::Drained { boot_id, at }) if self.runs_in(boot_id) => Some(*at),
            _ if self.says_shutdown => self.ready_since,
            _ => None,
        }
    }
}

impl NodeRecord {
    /// A node that was not known before.
    pub fn new(view: NodeView, now: Timestamp, elapsed: Moment) -> Self {
        Self {
            view,
            seen_since: elapsed,
            boot_before: None,
            booted_by: None,
            booted_after: None,
            changed_at: now,
            shutdown_seen: None,
            notice_seen: None,
        }
    }

    /// Remembers when a shutdown was first seen: now, or since when it is by the node's own word if
    /// the watch is late. A notice has no such word.
    pub(crate) fn watch_shutdown(&mut self, is_late: bool, now: Timestamp) {
        let since = self.view.shuts_down_since();
        let seen = since.map(|since| if is_late { since.min(now) } else { now });
        self.shutdown_seen = seen.map(|seen| self.shutdown_seen.unwrap_or(seen));
        let notice = self.view.ends_soon().then_some(now);
        self.notice_seen = notice.map(|now| self.notice_seen.unwrap_or(now));
    }

    /// Takes the current state of a node; returns whether that matters to its pods.
    pub fn show(&mut self, view: NodeView, now: Timestamp, elapsed: Moment) -> bool {
        let heard = std::mem::replace(&mut self.view.heard, view.heard);
        if self.view == view {
            return false;
        }
        self.changed_at = now;
        if self.view.boot_id.is_some() && view.boot_id.is_some() {
            if self.view.boot_id != view.boot_id {
                self.boot_before = self.view.boot_id.take();
                (self.booted_by, self.seen_since) = (Some(now), elapsed);
                self.booted_after =
                    if is_fresh(&view, now) { now.checked_sub(FRESH_MAX).ok() } else { heard };
            }
            self.view = view;
        } else {
            // A status without a boot id proves nothing about boots: the last known id stays.
            let boot_id = view.boot_id.clone().or_else(|| self.view.boot_id.clone());
            self.view = NodeView { boot_id, ..view };
        }
        true
    }
}

impl NodeRecord {
    /// The boots since a pod was created, by the API's clock; `None` if they are not known.
    ///
    /// This machine may itself have booted with a clock that is behind, and that is set since. So
    /// the age of a boot comes from a clock that is never set. A creation in the future tells
    /// nothing.
    pub(crate) fn boots_since(
        &self,
        created: Timestamp,
        now: Timestamp,
        elapsed: Moment,
    ) -> Option<NodeBoots> {
        let to = self.view.boot_id.as_ref()?;
        let age = elapsed.saturating_sub(self.seen_since);
        let shown = now.checked_sub(SignedDuration::try_from(age).ok()?).ok()?;
        if created > shown && created <= now || age > REPORTED_WITHIN {
            return Some(NodeBoots::Same);
        }
        let from = self.boot_before.clone()?;
        Some(NodeBoots::Booted { shown, from, to: Arc::clone(to) })
    }
}

/// Whether the kubelet's last status arrived at once.
fn is_fresh(view: &NodeView, now: Timestamp) -> bool {
    view.heard.is_some_and(|heard| now.duration_since(heard).abs() <= FRESH_MAX)
}
