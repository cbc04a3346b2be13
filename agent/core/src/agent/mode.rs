//! Detects the node's mode from facts about the kubelet. Each source alone can be wrong. ([SD24],
//! [AP16])

use std::time::Duration;

use crate::protocol::node::{Healthz, KubeletFacts};
use crate::shutdown::Mode;

/// A kubelet without pods to terminate releases its lock at once. ([SD25])
pub const ARMED_LASTS: Duration = Duration::from_mins(1);
/// The kubelet renews the node's lease every 10 s; the lease lasts 40 s.
const LEASE_LASTS: Duration = Duration::from_secs(40);

/// What a kubelet can do for its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It terminates pods and reports.
    Lives,
    /// It has no process.
    Dead,
    /// It has a process, but its sync loop is stuck.
    Hangs,
    /// No proof of either. The agent treats it as living, because a phase written alongside a live
    /// kubelet is a race. ([API13])
    Unknown,
}

/// What the agent is allowed to do.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Act at all.
    pub enforce: bool,
    /// Use the runtime's socket.
    pub runtime: bool,
    /// Terminate pods.
    pub ends_pods: bool,
}

/// A mode, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detected {
    /// The mode.
    pub mode: Mode,
    /// No component can terminate pods and report them. The agent only marks the pods that cannot
    /// run again.
    pub marks_only: bool,
    /// The reason, in a phrase.
    pub why: &'static str,
}

/// Judges what the kubelet can do.
pub fn kubelet(facts: &KubeletFacts) -> Kubelet {
    let lease_stale = lease_is_stale(facts);
    let armed = facts.lock_armed == Some(true);
    match (facts.healthy, facts.unit_active) {
        (Some(Healthz::Ok), _) => Kubelet::Lives,
        // The kubelet itself reports this, after five minutes without an iteration of its loop.
        // ([SD26])
        (Some(Healthz::Failing), _) => Kubelet::Hangs,
        (Some(Healthz::Silent), _) if lease_stale => Kubelet::Hangs,
        // A process holds the lock; the unit may have another name.
        _ if armed => Kubelet::Lives,
        (Some(Healthz::Refused), Some(false)) => Kubelet::Dead,
        (Some(Healthz::Refused) | None, Some(false) | None) if lease_stale => Kubelet::Dead,
        // The port of /healthz may be turned off.
        (Some(Healthz::Refused) | None, Some(true)) if !lease_stale => Kubelet::Lives,
        _ => Kubelet::Unknown,
    }
}

/// Whether no kubelet has renewed the node's lease for longer than it lasts.
pub(super) fn lease_is_stale(facts: &KubeletFacts) -> bool {
    facts.lease_age.is_some_and(|age| age > LEASE_LASTS)
}

/// Detects the mode. `armed_ago` is the time since the kubelet's lock was last seen; it counts only
/// at the signal.
pub fn detect(
    facts: Option<&KubeletFacts>,
    armed_ago: Option<Duration>,
    allowed: Allowed,
) -> Detected {
    let found = |mode, why| Detected { mode, marks_only: false, why };
    if !allowed.enforce {
        return found(Mode::Observe, "the agent is set to observe");
    }
    let Some(facts) = facts else {
        return found(Mode::Assist, "the kubelet's state is not known");
    };
    if let gone @ (Kubelet::Dead | Kubelet::Hangs) = kubelet(facts) {
        return without_kubelet(gone, allowed);
    }
    if facts.lock_armed == Some(true) || armed_ago.is_some_and(|ago| ago <= ARMED_LASTS) {
        return found(Mode::Assist, "the kubelet's own graceful shutdown is armed");
    }
    let configured = facts.shutdown_period.map(|period| !period.is_zero());
    let (mode, why) = match (facts.lock_armed, configured) {
        (Some(_), Some(true)) => {
            (Mode::Replace, "the kubelet's graceful shutdown is configured, but holds no lock")
        }
        (Some(_), _) | (None, Some(false)) => {
            (Mode::Replace, "the kubelet has no graceful shutdown of its own")
        }
        (None, _) => (Mode::Assist, "whether the kubelet holds a lock is not known"),
    };
    if mode == Mode::Replace && !allowed.ends_pods {
        let why = "the kubelet has no graceful shutdown, and the agent's is turned off";
        return Detected { mode, marks_only: true, why };
    }
    found(mode, why)
}

fn without_kubelet(kubelet: Kubelet, allowed: Allowed) -> Detected {
    let hangs = kubelet == Kubelet::Hangs;
    if allowed.runtime && allowed.ends_pods {
        let why = if hangs { "the kubelet hangs" } else { "the kubelet is dead" };
        return Detected { mode: Mode::Substitute, marks_only: false, why };
    }
    let why = match (hangs, allowed.runtime) {
        (true, false) => "the kubelet hangs, and the container runtime may not be used",
        (false, false) => "the kubelet is dead, and the container runtime may not be used",
        (true, true) => "the kubelet hangs, and the termination of pods is turned off",
        (false, true) => "the kubelet is dead, and the termination of pods is turned off",
    };
    Detected { mode: Mode::Assist, marks_only: true, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Allowed = Allowed { enforce: true, runtime: true, ends_pods: true };

    fn facts() -> KubeletFacts {
        KubeletFacts {
            lock_armed: Some(false),
            shutdown_period: Some(Duration::ZERO),
            main_pid: Some(700),
            unit_active: Some(true),
            healthy: Some(Healthz::Ok),
            lease_age: Some(Duration::from_secs(3)),
            eviction: None,
        }
    }

    fn with(change: impl FnOnce(&mut KubeletFacts)) -> KubeletFacts {
        let mut facts = facts();
        change(&mut facts);
        facts
    }

    fn stale(facts: &mut KubeletFacts) {
        facts.lease_age = Some(Duration::from_secs(41));
    }

    #[test]
    fn a_kubelet_is_dead_only_by_proof() {
        use Kubelet::{Dead, Hangs, Lives, Unknown};
        let refused = |facts: &mut KubeletFacts| facts.healthy = Some(Healthz::Refused);
        let table = [
            (facts(), Lives),
            // The unit has another name on this distribution.
            (with(|facts| facts.unit_active = Some(false)), Lives),
            (with(|facts| facts.healthy = Some(Healthz::Failing)), Hangs),
            (with(|facts| facts.healthy = Some(Healthz::Silent)), Unknown),
            (with(|f| (stale(f), f.healthy = Some(Healthz::Silent)).1), Hangs),
            (with(|f| (refused(f), f.unit_active = Some(false)).1), Dead),
            (with(|f| (refused(f), f.unit_active = None).1), Unknown),
            (with(|f| (refused(f), stale(f), f.unit_active = None).2), Dead),
            // /healthz may be turned off.
            (with(refused), Lives),
            (with(|f| (refused(f), stale(f)).1), Unknown),
            // A process holds the lock.
            (
                with(|f| {
                    refused(f);
                    f.unit_active = Some(false);
                    f.lock_armed = Some(true);
                }),
                Lives,
            ),
            (KubeletFacts::default(), Unknown),
        ];
        for (row, (facts, expected)) in table.into_iter().enumerate() {
            assert_eq!(kubelet(&facts), expected, "row {row}: {facts:?}");
        }
    }

    #[test]
    fn the_mode_follows_what_is_known() {
        use Mode::{Assist, Observe, Replace, Substitute};
        let dead = || {
            with(|facts| {
                facts.healthy = Some(Healthz::Refused);
                facts.unit_active = Some(false);
            })
        };
        let period = |seconds| {
            move |facts: &mut KubeletFacts| {
                facts.shutdown_period = Some(Duration::from_secs(seconds));
            }
        };
        let unsaid = |change: fn(&mut KubeletFacts)| {
            with(|facts| {
                facts.lock_armed = None;
                change(facts);
            })
        };
        let no_runtime = Allowed { runtime: false, ..ALL };
        let no_priority_groups = Allowed { ends_pods: false, ..ALL };
        let ago = |seconds| Some(Duration::from_secs(seconds));
        let table = [
            // The kubelet's lock, health and unit determine the mode. ([AP16])
            (Some(with(|facts| facts.lock_armed = Some(true))), None, ALL, Assist, false),
            (Some(facts()), None, ALL, Replace, false),
            (Some(with(period(30))), None, ALL, Replace, false), // configured, no lock ([W1])
            (Some(dead()), None, ALL, Substitute, false),
            (Some(dead()), None, no_runtime, Assist, true),
            (Some(dead()), ago(1), ALL, Substitute, false),
            (Some(facts()), None, Allowed { enforce: false, ..ALL }, Observe, false),
            // A lock that was seen at most 60 s ago counts as held. ([SD25])
            (Some(facts()), ago(60), ALL, Assist, false),
            (Some(facts()), ago(61), ALL, Replace, false),
            // Unknown facts lead to a more careful mode.
            (None, None, ALL, Assist, false),
            (Some(unsaid(|_| ())), None, ALL, Replace, false),
            (Some(unsaid(|facts| facts.shutdown_period = None)), None, ALL, Assist, false),
            // The operator set 0: the agent terminates nothing and waits for nothing.
            (Some(facts()), None, no_priority_groups, Replace, true),
            (Some(dead()), None, no_priority_groups, Assist, true),
            (
                Some(with(|facts| facts.lock_armed = Some(true))),
                None,
                no_priority_groups,
                Assist,
                false,
            ),
        ];
        for (row, (facts, ago, allowed, mode, marks_only)) in table.into_iter().enumerate() {
            let found = detect(facts.as_ref(), ago, allowed);
            assert_eq!((found.mode, found.marks_only), (mode, marks_only), "row {row}");
        }
    }
}
