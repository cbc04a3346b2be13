//! Holds what is known of a cluster for the judgement of its pods: nodes, events, stuck pods.

use std::collections::BTreeMap;

use epilogue_common::announcement::Announcement;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize as _;
use serde_json::Value;

use super::answer::{Cause, NodeDisruption};
use super::event_log::{About, EventLog, Meaning, SeenEvent, Writer};
use super::pod::PodSeen;
use crate::doctor::rules::{Finding, Rule};
use controller_core::podgc::{NodeView, WireNode};

/// A kubelet that is back reports its pods within this time.
const KUBELET_BACK: SignedDuration = SignedDuration::from_mins(2);
/// A node that does not report for less than this may be back at once.
const SILENT_MIN: SignedDuration = SignedDuration::from_mins(5);

/// An event that is kept for its pod or node.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub(super) at: Timestamp,
    pub(super) writer: Writer,
    pub(super) reason: &'static str,
    pub(super) meaning: Meaning,
}

/// The cluster and the time range.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) from: Timestamp,
    pub(super) now: Timestamp,
    /// `None` if nodes were not read.
    nodes: Option<BTreeMap<String, NodeView>>,
    node_hits: BTreeMap<String, Vec<Hit>>,
    /// By UID, or by `NAMESPACE/NAME` if the event has no UID.
    pod_hits: BTreeMap<String, Vec<Hit>>,
    stuck: BTreeMap<String, Finding>,
}

impl Hit {
    fn of(event: &SeenEvent) -> Self {
        let &SeenEvent { at, writer, reason, meaning, .. } = event;
        Self { at, writer, reason, meaning }
    }

    /// The event in words.
    pub(super) fn words(&self) -> String {
        format!("event {} of {} at {}", self.reason, self.writer.program(), seconds(self.at))
    }
}

impl Cluster {
    pub(super) fn new(
        (from, now): (Timestamp, Timestamp),
        nodes: Option<Vec<&Value>>,
        events: &EventLog,
        findings: Vec<Finding>,
    ) -> Self {
        let (mut node_hits, mut pod_hits) = (BTreeMap::new(), BTreeMap::new());
        for event in events.kept.iter().filter(|event| (from..=now).contains(&event.at)) {
            let hits: &mut Vec<Hit> = match &event.about {
                About::Node(name) => node_hits.entry(name.clone()).or_default(),
                About::Pod { namespace, name, uid } => {
                    pod_hits.entry(key(namespace, name, uid)).or_default()
                }
            };
            hits.push(Hit::of(event));
        }
        for hits in node_hits.values_mut().chain(pod_hits.values_mut()) {
            hits.sort_by_key(|hit| hit.at);
        }
        let stuck = findings.into_iter().filter(|finding| finding.rule == Rule::StuckPod);
        Self {
            from,
            now,
            nodes: nodes.map(|nodes| nodes.into_iter().filter_map(node).collect()),
            node_hits,
            pod_hits,
            stuck: stuck.map(|finding| (finding.subject.clone(), finding)).collect(),
        }
    }

    /// The events about a pod, earliest first.
    pub(super) fn hits_of(&self, pod: &PodSeen) -> Vec<&Hit> {
        let view = &pod.view;
        let by_uid = self.pod_hits.get(view.uid.as_str());
        let by_name = self.pod_hits.get(&key(&view.namespace, &view.name, ""));
        by_uid.into_iter().chain(by_name).flatten().collect()
    }

    /// What doctor finds of a pod that should have ended.
    pub(super) fn stuck(&self, pod: &PodSeen) -> Option<&Finding> {
        self.stuck.get(&format!("pod/{}/{}", pod.view.namespace, pod.view.name))
    }

    /// Whether the node object is gone for certain.
    pub(super) fn is_node_gone(&self, name: &str) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| !nodes.contains_key(name))
    }

    /// Since when a node does not report, if that is long enough to count.
    pub(super) fn silent_since(&self, name: &str) -> Option<Timestamp> {
        let node = self.nodes.as_ref()?.get(name).filter(|node| node.is_silent())?;
        let since = node.ready_since?;
        (self.now.duration_since(since) >= SILENT_MIN).then_some(since)
    }

    /// The first event of this cause on a node within a time range.
    pub(super) fn node_hit(
        &self,
        name: &str,
        cause: Cause,
        (from, to): (Timestamp, Timestamp),
    ) -> Option<&Hit> {
        let hits = self.node_hits.get(name)?;
        hits.iter().find(|hit| hit.meaning == Meaning::Hit(cause) && (from..=to).contains(&hit.at))
    }

    /// A boot of the node after this time: when at the latest, and what shows it.
    pub(super) fn boot_after(&self, name: &str, start: Timestamp) -> Option<(Timestamp, String)> {
        let until = self.now.checked_sub(KUBELET_BACK).unwrap_or(self.now);
        if let Some(hit) = self.node_hit(name, Cause::NodeRebooted, (start, until)) {
            return Some((hit.at, hit.words()));
        }
        let node = self.nodes.as_ref()?.get(name)?;
        let current = node.boot_id.as_deref()?;
        let (Announcement::ShuttingDown { boot_id, since: at }
        | Announcement::Drained { boot_id, at }) = node.announcement.as_ref()?
        else {
            return None;
        };
        let is_over = boot_id != current && (start..=until).contains(at);
        let how = format!("the agent's record of boot {boot_id}; the node runs in {current}");
        is_over.then_some((*at, how))
    }

    /// Whether a shutdown of the node was announced in this time range.
    pub(super) fn shutdown_in(&self, name: &str, range: (Timestamp, Timestamp)) -> Option<&Hit> {
        self.node_hit(name, Cause::NodeShutdown, range)
    }

    /// The pods of the events that are not among these.
    pub(super) fn hits_of_others(
        &self,
        known: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (&str, &[Hit])> {
        let others = self.pod_hits.iter().filter(move |(key, _)| !known(key));
        others.map(|(key, hits)| (key.as_str(), hits.as_slice()))
    }

    /// The disruptions of nodes, earliest first.
    pub(super) fn node_disruptions(&self) -> Vec<NodeDisruption> {
        let mut all = Vec::new();
        for (node, hits) in &self.node_hits {
            all.extend(hits.iter().filter_map(|hit| {
                let Meaning::Hit(cause) = hit.meaning else { return None };
                let (node, reason) = (node.clone(), hit.reason);
                Some(NodeDisruption { node, reason, cause, at: hit.at })
            }));
        }
        all.sort_by(|a, b| (a.at, &a.node).cmp(&(b.at, &b.node)));
        all
    }
}

fn node(object: &Value) -> Option<(String, NodeView)> {
    let wire = WireNode::deserialize(object).ok()?;
    Some((wire.name().to_owned(), NodeView::read(&wire)))
}

/// The key of a pod in the events.
pub(super) fn key(namespace: &str, name: &str, uid: &str) -> String {
    if uid.is_empty() { format!("{namespace}/{name}") } else { uid.to_owned() }
}

/// Formats a time as the API does.
pub(super) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
