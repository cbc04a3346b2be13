//! Remembers what is known of the kubelet, and since when.

use std::time::Duration;

use super::mode::{self, Kubelet};
use crate::protocol::node::{Healthz, KubeletFacts};
use crate::termination::hanging::{KubeletLiveness, StuckTimes};

/// The kubelet's last known state.
#[derive(Clone, Debug, Default)]
pub(super) struct KubeletMemory {
    pub(super) facts: Option<KubeletFacts>,
    pub(super) seen_at: Duration,
    pub(super) armed_at: Option<Duration>,
    pub(super) gone_since: Option<Duration>,
    pub(super) lives_since: Option<Duration>,
    /// Since when the kubelet is dead without a sign of life in between.
    dead_since: Option<Duration>,
    /// Since when its `/healthz` is bad and no kubelet has renewed the lease.
    hung_since: Option<Duration>,
}

/// The shell reports facts about the kubelet at least once a minute.
const FACTS_LAST: Duration = Duration::from_secs(90);

impl KubeletMemory {
    /// Whether the kubelet may live: then only it writes its pods' phases.
    pub(super) fn lives(&self) -> bool {
        self.facts
            .as_ref()
            .is_none_or(|facts| !matches!(mode::kubelet(facts), Kubelet::Dead | Kubelet::Hangs))
    }

    /// The kubelet's state for pods that hang; `None` while it is uncertain. A kubelet that
    /// restarts again and again is neither dead nor alive for long enough.
    pub(super) fn liveness(&self, now: Duration, times: &StuckTimes) -> Option<KubeletLiveness> {
        let facts = self.facts.as_ref().filter(|_| now < self.seen_at + FACTS_LAST)?;
        let reached = |since: Option<Duration>, time| since.is_some_and(|at| now >= at + time);
        if mode::kubelet(facts) == Kubelet::Lives {
            return Some(KubeletLiveness::Lives);
        }
        if reached(self.dead_since, times.dead) {
            return Some(KubeletLiveness::Dead);
        }
        let hangs = reached(self.hung_since, times.hung) && mode::lease_is_stale(facts);
        hangs.then_some(KubeletLiveness::Hangs)
    }

    /// Counts the time since the last sign of life. A renewed lease is one, even of a kubelet that
    /// came and went between two samples.
    fn note_silence(&mut self, facts: &KubeletFacts, now: Duration) {
        let renewed = facts.lease_age.map(|age| now.saturating_sub(age)).unwrap_or_default();
        let since = |before: Option<Duration>| Some(before.unwrap_or(now).max(renewed));
        let dead = mode::kubelet(facts) == Kubelet::Dead;
        self.dead_since = if dead { since(self.dead_since) } else { None };
        let bad = matches!(facts.healthy, Some(Healthz::Failing | Healthz::Silent));
        self.hung_since = if bad { since(self.hung_since) } else { None };
    }

    /// Takes new facts.
    pub(super) fn see(&mut self, facts: KubeletFacts, now: Duration) {
        self.seen_at = now;
        if facts.lock_armed == Some(true) {
            self.armed_at = Some(now);
        }
        let gone = matches!(mode::kubelet(&facts), Kubelet::Dead | Kubelet::Hangs);
        self.gone_since = gone.then(|| self.gone_since.unwrap_or(now));
        let lives = mode::kubelet(&facts) == Kubelet::Lives;
        self.lives_since = lives.then(|| self.lives_since.unwrap_or(now));
        self.note_silence(&facts, now);
        self.facts = Some(facts);
    }
}
