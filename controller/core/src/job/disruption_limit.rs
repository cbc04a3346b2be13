//! Applies `epilogue.dev/disruption-limit`: how many failures the podFailurePolicy may ignore.
//!
//! The count stands in a condition of the Job's status, so that it outlives pods and processes. It
//! is exact for the same reason as the API's own counters. The condition also lists the counted
//! pods that may still have their finalizer. Both are written before any of these pods is released.
//! A sync counts at most `--max-uncounted-pods` of them, so that the message stays within what the
//! API stores. The others keep their finalizers until the next sync.

use std::collections::BTreeSet;

use super::census::Census;
use crate::view::{Job, Uid};
use epilogue_common::names::job_condition::DISRUPTIONS_IGNORED;

/// The separator between the count and the pods in the condition's message.
const PODS: &str = "; not released yet: ";

/// Ignored failures so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disruptions {
    /// The number, including this sync's.
    pub ignored: u32,
    /// Whether this sync adds some.
    pub is_new: bool,
    /// Counted pods that still have their finalizer.
    pending: BTreeSet<Uid>,
    /// Pods that a later sync counts.
    held: BTreeSet<Uid>,
}

impl Disruptions {
    /// Adds what the census found to the count in the status, at most this many pods.
    pub(super) fn read(job: &Job, census: &Census, pods_per_sync: usize) -> Self {
        let (stored, listed) = stored(job);
        let counted: BTreeSet<&Uid> =
            census.newly_failed_counted.iter().map(|pod| &pod.uid).collect();
        let ignored = census.newly_failed.iter().map(|pod| &pod.uid);
        let (mut pending, mut new): (BTreeSet<Uid>, BTreeSet<Uid>) = ignored
            .filter(|uid| !counted.contains(uid))
            .cloned()
            .partition(|uid| listed.contains(uid));
        let room = pods_per_sync.saturating_sub(pending.len()).max(1);
        let held = new.iter().nth(room).cloned().map(|first| new.split_off(&first));
        let count = u32::try_from(new.len()).unwrap_or(u32::MAX);
        let is_new = !new.is_empty();
        pending.append(&mut new);
        Self {
            ignored: stored.saturating_add(count),
            is_new,
            pending,
            held: held.unwrap_or_default(),
        }
    }

    /// Whether a later sync counts this pod, so that it must keep its finalizer.
    pub(super) fn holds(&self, pod: &Uid) -> bool {
        self.held.contains(pod)
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
