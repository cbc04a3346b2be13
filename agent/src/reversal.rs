//! Notices when the API shows that a write of ours was undone by somebody else. Only for metrics:
//! what it means for the pod is the core's to say. (spec/node-agent.md §7.3, ST8, §9.11)

use std::collections::BTreeMap;

use agent_core::pod::{PodUid, PodView};
use agent_core::protocol::action::{Action, Purpose};
use agent_core::protocol::event::{ActionResult, Event};

use crate::metrics::Metrics;

/// Writes that are looked after; a node has some hundred pods.
const WRITES_MAX: usize = 4096;

/// Acknowledged writes that would show if they were undone.
#[derive(Debug)]
pub struct Reversals {
    standing: BTreeMap<PodUid, Purpose>,
    metrics: Metrics,
}

impl Reversals {
    /// Knows of no writes yet.
    pub fn new(metrics: Metrics) -> Self {
        Self { standing: BTreeMap::new(), metrics }
    }

    /// A write that is to be looked after once it is acknowledged.
    pub fn candidate(action: &Action) -> Option<(PodUid, Purpose)> {
        match action {
            Action::PatchStatus {
                pod,
                purpose: purpose @ (Purpose::Fail | Purpose::Clear),
                ..
            } => Some((pod.uid.clone(), *purpose)),
            _ => None,
        }
    }

    /// Such a write has ended.
    pub fn ended(&mut self, write: (PodUid, Purpose), result: &ActionResult) {
        if matches!(result, ActionResult::Done(Ok(()))) && self.standing.len() < WRITES_MAX {
            self.standing.insert(write.0, write.1);
        }
    }

    /// Looks at what the API shows.
    pub fn see(&mut self, event: &Event) {
        if self.standing.is_empty() {
            return;
        }
        match event {
            Event::PodsListed(pods) => pods.iter().for_each(|pod| self.pod(pod)),
            Event::PodObserved(pod) => self.pod(pod),
            Event::PodGone(uid) => drop(self.standing.remove(uid)),
            _ => {}
        }
    }

    fn pod(&mut self, pod: &PodView) {
        let Some(purpose) = self.standing.get(&pod.uid) else { return };
        let undone = match purpose {
            Purpose::Fail => !pod.is_terminal(),
            Purpose::Clear => pod.is_disrupted(),
            Purpose::Mark | Purpose::Cause => false,
        };
        if undone {
            let (pod, uid) = (format!("{}/{}", pod.namespace, pod.name), &pod.uid.0);
            tracing::warn!(pod, uid, ?purpose, "a write of ours was undone");
            self.metrics.reverted(*purpose);
            self.standing.remove(&PodUid(uid.clone()));
        }
    }
}
