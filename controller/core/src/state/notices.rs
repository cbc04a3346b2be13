//! Follows notices of nodes' ends for Jobs that have their pods replaced early.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};

use super::ClusterState;
use super::event::{Entry, Now, Reaction};
use crate::job::replaces_early;
use crate::job_pods::JobPods;
use crate::podgc::NodeView;
use crate::view::{Job, Pod, Uid};

/// The API's times of creation are whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// What is known of a node before an event that shows it.
pub(super) struct Before {
    node: Arc<str>,
    notice_seen: Option<Timestamp>,
}

impl ClusterState {
    /// What an event of a node may change; `None` if it shows none.
    pub(super) fn before_node(&self, event: &WatchEvent<NodeView>) -> Option<Before> {
        let WatchEvent::Shown(node) = event else { return None };
        let notice_seen = self.notice_seen(&node.name);
        Some(Before { node: Arc::clone(&node.name), notice_seen })
    }

    /// Notice of a node's end was given or withdrawn: the Jobs of its pods that ask are synced.
    pub(super) fn follow_notice(&mut self, before: &Before, now: &Now, reaction: &mut Reaction) {
        let notice_seen = self.notice_seen(&before.node);
        if notice_seen == before.notice_seen {
            return;
        }
        let Some(gc) = &self.gc else { return };
        let uids = gc.by_node.get(&before.node).into_iter().flatten();
        let pods: Vec<Arc<Pod>> = uids.filter_map(|uid| self.pods.readable(uid)).cloned().collect();
        let mut keys = BTreeSet::new();
        for pod in pods.iter().filter(|pod| pod.is_active()) {
            let job = self.jobs.of_pod(pod).filter(|job| self.jobs.is_ours(job));
            let Some(job) = job.filter(|job| replaces_early(job) && !job.is_finished()) else {
                continue;
            };
            keys.insert(job.key.clone());
            if notice_seen.is_none() {
                self.disruption_times.withdraw(&pod.uid);
            } else if pod.group.is_none() && self.is_noticed(pod) {
                self.disruption_times.notice(pod, job, now.time);
            }
        }
        reaction.entries.extend(keys.into_iter().map(|key| Entry::Job(key, None)));
    }

    /// The active pods of a Job that were on their nodes before notice was given of the nodes'
    /// ends. What came to such a node since is replaced at its mark, as its successor might come
    /// there, too.
    pub(super) fn noticed(&self, job: &Job, pods: &JobPods) -> HashSet<Uid> {
        if self.gc.is_none() || !replaces_early(job) {
            return HashSet::new();
        }
        let is_noticed = |pod: &&Arc<Pod>| pod.is_active() && self.is_noticed(pod);
        pods.iter().filter(is_noticed).map(|pod| pod.uid.clone()).collect()
    }

    fn is_noticed(&self, pod: &Pod) -> bool {
        let seen = pod.node.as_ref().and_then(|node| self.notice_seen(node));
        let created = pod.created.and_then(|created| created.checked_add(SECOND).ok());
        seen.is_some_and(|seen| created.is_some_and(|created| created <= seen))
    }

    fn notice_seen(&self, node: &str) -> Option<Timestamp> {
        self.gc.as_ref()?.nodes.get(node)?.notice_seen
    }
}
