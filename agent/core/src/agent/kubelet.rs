//! Remembers what is known of the kubelet, and since when.

use std::time::Duration;

use super::mode::{self, Kubelet, Silence, is_absent, is_silent, shows_life};
use crate::protocol::node::{KubeletFacts, MainPort};
use crate::shutdown::priority_groups::PriorityGroups;
use crate::termination::hanging::{KubeletLiveness, StuckTimes};

/// The kubelet's last known state.
#[derive(Clone, Debug, Default)]
pub(super) struct KubeletMemory {
    pub(super) facts: Option<KubeletFacts>,
    /// What these facts meant when they came.
    judged: Option<Kubelet>,
    pub(super) seen_at: Duration,
    pub(super) armed_at: Option<Duration>,
    pub(super) gone_since: Option<Duration>,
    pub(super) lives_since: Option<Duration>,
    /// Since when its ports are silent.
    silent_since: Option<Duration>,
    /// Since when it has no process, as far as its ports and its unit say.
    absent_since: Option<Duration>,
    /// Since when the kubelet is dead without a sign of life in between.
    dead_since: Option<Duration>,
    /// Since when it is silent and no kubelet has renewed the lease, or its sync loop is stuck.
    hung_since: Option<Duration>,
    /// The priority groups that were last known of it, if its graceful shutdown is on.
    pub(super) groups: Option<PriorityGroups>,
}

/// The shell reports facts about the kubelet at least once a minute.
const FACTS_LAST: Duration = Duration::from_secs(90);

impl KubeletMemory {
    /// The last facts, and what they meant.
    pub(super) fn judged(&self) -> Option<(&KubeletFacts, Kubelet)> {
        self.facts.as_ref().zip(self.judged)
    }

    /// Whether the kubelet may live: then only it writes its pods' phases.
    pub(super) fn lives(&self) -> bool {
        !matches!(self.judged, Some(Kubelet::Dead | Kubelet::Hangs))
    }

    /// The kubelet's state for pods that hang; `None` while it is uncertain. A kubelet that
    /// restarts again and again is neither dead nor alive for long enough.
    pub(super) fn liveness(&self, now: Duration, times: &StuckTimes) -> Option<KubeletLiveness> {
        let (facts, judged) = self.judged().filter(|_| now < self.seen_at + FACTS_LAST)?;
        let reached = |since: Option<Duration>, time| since.is_some_and(|at| now >= at + time);
        if judged == Kubelet::Lives {
            return Some(KubeletLiveness::Lives);
        }
        if reached(self.dead_since, times.dead) {
            return Some(KubeletLiveness::Dead);
        }
        let stuck = facts.main_port == Some(MainPort::Stuck);
        let hangs = stuck || mode::lease_is_stale(facts);
        (reached(self.hung_since, times.hung) && hangs).then_some(KubeletLiveness::Hangs)
    }

    /// Counts the time since the last sign of life. A renewed lease is one, even of a kubelet that
    /// came and went between two samples; but a kubelet renews it next to a stuck sync loop.
    fn note_silence(&mut self, facts: &KubeletFacts, judged: Kubelet, now: Duration) {
        let renewed = facts.lease_age.map(|age| now.saturating_sub(age)).unwrap_or_default();
        let since = |before: Option<Duration>, renewed| Some(before.unwrap_or(now).max(renewed));
        self.dead_since = match judged {
            Kubelet::Dead => since(self.dead_since, renewed),
            _ => None,
        };
        self.hung_since = if facts.main_port == Some(MainPort::Stuck) {
            since(self.hung_since, Duration::ZERO)
        } else if is_silent(facts) {
            since(self.hung_since, renewed)
        } else {
            None
        };
    }

    /// Takes new facts; `shutdown` is the delay of the shutdown that goes on.
    pub(super) fn see(&mut self, facts: KubeletFacts, shutdown: Option<Duration>, now: Duration) {
        self.seen_at = now;
        if facts.lock_armed == Some(true) {
            self.armed_at = Some(now);
        }
        self.silent_since = is_silent(&facts).then(|| self.silent_since.unwrap_or(now));
        // One that systemd starts again and again shows no life in between.
        if is_absent(&facts) {
            self.absent_since.get_or_insert(now);
        } else if shows_life(&facts) {
            self.absent_since = None;
        }
        let lasts =
            |since: Option<Duration>| since.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let (silent, absent) = (lasts(self.silent_since), lasts(self.absent_since));
        let judged = mode::kubelet(&facts, &Silence { silent, absent, shutdown });
        let gone = matches!(judged, Kubelet::Dead | Kubelet::Hangs);
        self.gone_since =
            gone.then(|| self.gone_since.unwrap_or(now.saturating_sub(silent.max(absent))));
        let lives = judged == Kubelet::Lives;
        self.lives_since = lives.then(|| self.lives_since.unwrap_or(now));
        self.note_silence(&facts, judged, now);
        // One that is dead still had them.
        if let Some(groups) = &facts.shutdown_groups {
            self.groups = PriorityGroups::of_kubelet(groups);
        }
        (self.facts, self.judged) = (Some(facts), Some(judged));
    }
}
