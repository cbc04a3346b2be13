//! `epilogue.dev/disruption-limit`: how many failures the podFailurePolicy may ignore.
//!
//! The count stands in a condition of the Job's status, so that it outlives pods and processes.
//! It is exact for the same reason as the API's own counters: the condition also lists the pods
//! that are counted and may still have their finalizer, and both are written before any of them
//! is released.

use std::collections::BTreeSet;

use super::census::Census;
use crate::view::{Job, Uid};
use epilogue_common::names::job_condition::DISRUPTIONS_IGNORED;

/// What stands between the count and the pods in the condition's message.
const PODS: &str = "; not released yet: ";

/// Failures that were ignored so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disruptions {
    /// How many, with those of this sync.
    pub ignored: u32,
    /// Whether some of them are of this sync.
    pub is_new: bool,
    /// Those of them that still have their finalizer.
    pending: BTreeSet<Uid>,
}

impl Disruptions {
    /// Adds what the census found to what the status says.
    pub(super) fn read(job: &Job, census: &Census) -> Self {
        let (stored, listed) = stored(job);
        let counted: BTreeSet<&Uid> =
            census.newly_failed_counted.iter().map(|pod| &pod.uid).collect();
        let pending: BTreeSet<Uid> = census
            .newly_failed
            .iter()
            .map(|pod| &pod.uid)
            .filter(|uid| !counted.contains(uid))
            .cloned()
            .collect();
        let new = pending.difference(&listed).count();
        Self {
            ignored: stored.saturating_add(u32::try_from(new).unwrap_or(u32::MAX)),
            is_new: new > 0,
            pending,
        }
    }

    /// The message of the condition.
    pub(super) fn message(&self) -> String {
        let pods: Vec<&str> = self.pending.iter().map(Uid::as_str).collect();
        let count = self.ignored;
        let failures = if count == 1 { "failure was" } else { "failures were" };
        format!("{count} pod {failures} ignored by podFailurePolicy{PODS}{}", pods.join(" "))
    }
}

fn stored(job: &Job) -> (u32, BTreeSet<Uid>) {
    let message = job
        .true_condition(DISRUPTIONS_IGNORED)
        .and_then(|condition| condition.message.as_deref())
        .unwrap_or_default();
    let count = message.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let pods = message.split_once(PODS).map_or("", |(_, pods)| pods);
    (count, pods.split_whitespace().map(Uid::from).collect())
}
