//! Reports kills that only the pod's status shows as `OOMKilled`, because no other witness saw
//! them. If the pod has ended, this is too late for a policy; people still read it.

use std::collections::BTreeSet;

use super::super::facts::Facts;
use super::Oom;
use super::kills::{Inspect, Kill};
use crate::pod::{PodUid, PodView};
use crate::protocol::pressure::{OomConstraint, OomKill, OomWitness};

/// The pods that are already covered.
#[derive(Clone, Debug, Default)]
pub(super) struct Late {
    /// Whether the pods of the first list were excluded.
    begun: bool,
    /// Pods whose status is older than this agent, or was already reported.
    over: BTreeSet<PodUid>,
}

impl Late {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.over.remove(uid);
    }
}

impl Oom {
    /// Collects the kills that only the pods' status shows; returns whether there is a new one.
    pub(super) fn find_late(&mut self, facts: &Facts) -> bool {
        if !facts.pods.is_listed() {
            return false;
        }
        let reported = facts.pods.iter().filter(|pod| !pod.details.oom_reported.is_empty());
        if !std::mem::replace(&mut self.late.begun, true) {
            self.late.over = reported.map(|pod| pod.uid.clone()).collect();
            return false;
        }
        let mut found = false;
        for pod in reported {
            if self.late.over.contains(&pod.uid) || self.is_being_decided(&pod.uid) {
                continue;
            }
            self.late.over.insert(pod.uid.clone());
            if !self.conditions.has(&pod.uid) && pod.details.oom_killed.is_none() {
                self.take_late(pod, facts);
                found = true;
            }
        }
        found
    }

    fn is_being_decided(&self, uid: &PodUid) -> bool {
        self.kills.iter().any(|((pod, _), kill)| pod == uid && !kill.decided)
    }

    fn take_late(&mut self, pod: &PodView, facts: &Facts) {
        let Some(name) = pod.details.oom_reported.first() else { return };
        // A kill of a child process was seen, and the container ended soon after it.
        let seen = self.kills.iter().find(|((uid, _), kill)| {
            uid == &pod.uid && kill.container.as_ref().is_none_or(|known| known == name)
        });
        let seen = seen.map(|(_, kill)| (kill.what.constraint, kill.what.limit));
        let (constraint, limit) = seen.unwrap_or((OomConstraint::Unknown, None));
        let what = OomKill {
            pod: pod.uid.clone(),
            container_id: None,
            constraint,
            limit,
            process: None,
            container_lives: Some(false),
            witness: OomWitness::Runtime,
            at: facts.clock.monotonic(),
        };
        let mut kill = Kill::new(what, facts.clock.now());
        kill.container = Some(name.clone());
        kill.inspect = Inspect::Over;
        self.kills.insert((pod.uid.clone(), None), kill);
    }
}
