//! Creates pods by slow start: in batches of 1, 2, 4, …, where the first batch with an error is the
//! last. ([P8], [P9])

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::steps::{EventDraft, PodDraft, WrittenPod};

/// The longest list of names in one event, so that the message stays within the API's 1,024 bytes.
const NAMES_BYTES_MAX: usize = 900;

/// Pods to create, and how far their creation has come.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    drafts: Vec<PodDraft>,
    batch: usize,
    created: Vec<Arc<str>>,
    failures: Vec<Failure>,
    attempted: usize,
}

impl SlowStart {
    /// Starts with a batch of this size.
    pub(super) fn new(drafts: Vec<PodDraft>, initial_batch: usize) -> Self {
        Self { drafts, batch: initial_batch.max(1), ..Self::default() }
    }

    /// The next batch; `None` when all are created or a call failed.
    pub(super) fn next_batch(&mut self) -> Option<Vec<PodDraft>> {
        let left = self.drafts.len() - self.attempted;
        if left == 0 || self.created.len() < self.attempted {
            return None;
        }
        let size = self.batch.min(left);
        let batch = self.drafts[self.attempted..self.attempted + size].to_vec();
        self.attempted += size;
        self.batch = self.batch.saturating_mul(2);
        Some(batch)
    }

    /// Takes the outcomes of a batch.
    pub(super) fn done(&mut self, outcomes: &[Outcome<WrittenPod>]) {
        for outcome in outcomes {
            match outcome {
                Ok(pod) => self.created.push(Arc::clone(&pod.name)),
                Err(failure) => self.failures.push(failure.clone()),
            }
        }
    }

    /// How many pods were created.
    pub(super) fn created(&self) -> usize {
        self.created.len()
    }

    /// How many calls failed.
    pub(super) fn failed(&self) -> usize {
        self.failures.len()
    }

    /// The failure that makes the controller repeat the sync. A terminating namespace takes the Job
    /// with it, so there is nothing to repeat.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failures.iter().find(|each| each.kind != FailureKind::NamespaceTerminating)
    }

    /// One event for the created pods, and one for each kind of failure.
    ///
    /// DIVERGES(upstream): one event reports all pods that are created together. Upstream sends one
    /// per pod, which the client's rate limit then drops, together with `Completed`.
    pub(super) fn events(&self) -> Vec<EventDraft> {
        let mut events = Vec::new();
        if !self.created.is_empty() {
            events.push(EventDraft::normal(
                "SuccessfulCreate",
                pods_message("Created", &self.created),
            ));
        }
        let mut kinds: Vec<FailureKind> = vec![FailureKind::NamespaceTerminating];
        for first in &self.failures {
            if kinds.contains(&first.kind) {
                continue;
            }
            kinds.push(first.kind);
            let alike = self.failures.iter().filter(|each| each.kind == first.kind).count();
            let more = if alike > 1 { format!(" (and {} more)", alike - 1) } else { String::new() };
            let message = format!("Error creating: {}{more}", first.message);
            events.push(EventDraft::warning("FailedCreate", message));
        }
        events
    }
}

/// `Created pod: a` for one, `Created pods: a, b` for more.
pub(super) fn pods_message(verb: &str, names: &[Arc<str>]) -> String {
    if let [only] = names {
        return format!("{verb} pod: {only}");
    }
    let mut message = format!("{verb} pods: ");
    for (position, name) in names.iter().enumerate() {
        if message.len() + name.len() > NAMES_BYTES_MAX {
            return format!("{message} and {} more", names.len() - position);
        }
        if position > 0 {
            message += ", ";
        }
        message += name;
    }
    message
}
