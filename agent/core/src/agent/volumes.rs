//! Remembers which volumes the kubelet reports as in use, and how many of them the pods that have
//! not ended may use. ([SD28])

use std::time::Duration;

use super::pods::Pods;
use crate::protocol::event::VolumesInUse;
use crate::termination::clock::Clock;

/// Within this time a kubelet reports that a volume is no longer in use: it compares its node's
/// status every 10 s.
const REPORTED_WITHIN: Duration = Duration::from_secs(12);
/// How many volumes a message names; an event has little room.
const NAMED_MAX: usize = 3;

/// The volumes in use.
#[derive(Clone, Debug, Default)]
pub(super) struct VolumeMemory {
    in_use: VolumesInUse,
    /// How many volumes the pods that have not ended may have attached. Only a persistent volume
    /// says which ones, and the agent reads none.
    of_pods: usize,
    /// When one of the two last changed.
    since: Duration,
}

impl VolumeMemory {
    /// Compares with what the API shows now.
    pub(super) fn note(&mut self, in_use: Option<&VolumesInUse>, pods: &Pods, now: Duration) {
        let none = VolumesInUse::default();
        let in_use = in_use.unwrap_or(&none);
        let going_on = pods.iter().filter(|pod| !pod.is_terminal());
        let of_pods = going_on.map(|pod| pod.details.attachable_volumes).sum();
        if self.of_pods != of_pods || self.in_use != *in_use {
            *self = Self { in_use: in_use.clone(), of_pods, since: now };
        }
    }

    /// Whether one of them may be of a pod that has ended. If there are no more of them than pods
    /// that go on may use, they are taken for theirs once the kubelet has had time to report.
    pub(super) fn may_be_of_ended_pods(&self, clock: &Clock) -> bool {
        let more = self.in_use.number > self.of_pods;
        let many = self.in_use.number > 0;
        many && (more || !clock.reached(self.since + REPORTED_WITHIN))
    }

    /// How many, and their names.
    pub(super) fn words(&self) -> String {
        let VolumesInUse { number, names } = &self.in_use;
        let named: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
        let more = match number.saturating_sub(named.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let of_pods = match self.of_pods.min(*number) {
            0 => String::new(),
            some => format!("; pods that go on may use {some} of them"),
        };
        format!("{number} ({}{more}{of_pods})", named.join(", "))
    }
}
