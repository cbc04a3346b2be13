//! Detects the node's mode from facts about the kubelet. Each source alone can be wrong. ([SD24],
//! [AP16])

use std::time::Duration;

use crate::protocol::node::{Healthz, KubeletFacts, MainPort, Unit};
use crate::shutdown::Mode;

/// A kubelet without pods to terminate releases its lock at once. ([SD25])
pub const ARMED_LASTS: Duration = Duration::from_mins(1);
/// The kubelet renews the node's lease every 10 s; the lease lasts 40 s.
const LEASE_LASTS: Duration = Duration::from_secs(40);
/// In a shutdown, the time between the first question without an answer and the last. Each waits
/// for 2 s itself; a kubelet under load answers a ping in less.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// How long systemd takes to start the kubelet again: kubeadm's unit waits 10 s. In a shutdown, at
/// most a third of what is granted.
const RESTARTED_WITHIN: Duration = Duration::from_secs(12);

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

/// For how long the kubelet has given no sign of life, at the time of its facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// Its ports take connections and do not answer.
    pub silent: Duration,
    /// Nothing listens, and its unit does not run.
    pub absent: Duration,
    /// The delay that logind grants to the shutdown that goes on; `None` without one.
    pub shutdown: Option<Duration>,
}

impl Silence {
    /// Whether a shutdown goes on, and a kubelet that only were slow would have answered. Outside
    /// of a shutdown nothing is urgent, and its lease decides.
    fn proves_stop(&self) -> bool {
        self.shutdown.is_some() && self.silent >= SILENT_MAX
    }

    /// Whether systemd had enough time to start the kubelet again.
    fn is_long_absent(&self) -> bool {
        let share = self.shutdown.map_or(RESTARTED_WITHIN, |granted| granted / 3);
        self.absent >= share.min(RESTARTED_WITHIN)
    }
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

/// What the kubelet's ports say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    /// One of them answers.
    Answer,
    /// The main port says that the sync loop is stuck.
    Stuck,
    /// They take connections and do not answer.
    Silent,
    /// No process listens.
    Refuse,
    /// They were not asked, or another process answered.
    Unknown,
}

/// The port of `/healthz` alone answers a ping, and knows nothing of the sync loop. ([SD26])
fn ports(facts: &KubeletFacts) -> Ports {
    match (facts.main_port, facts.healthy) {
        (Some(MainPort::Stuck), _) => Ports::Stuck,
        (Some(MainPort::Answers), _) | (_, Some(Healthz::Ok)) => Ports::Answer,
        (_, Some(Healthz::Silent)) | (Some(MainPort::Silent), Some(Healthz::Failing) | None) => {
            Ports::Silent
        }
        (_, Some(Healthz::Refused)) | (Some(MainPort::Refused), _) => Ports::Refuse,
        (None, Some(Healthz::Failing) | None) => Ports::Unknown,
    }
}

/// Whether its ports take connections and do not answer.
pub(super) fn is_silent(facts: &KubeletFacts) -> bool {
    ports(facts) == Ports::Silent
}

/// Whether neither a port nor the unit shows a process.
pub(super) fn is_absent(facts: &KubeletFacts) -> bool {
    matches!(ports(facts), Ports::Refuse | Ports::Unknown)
        && matches!(facts.unit, Some(Unit::Changing | Unit::Inactive))
}

/// Whether a port answers, or the unit runs where no port can be asked.
pub(super) fn shows_life(facts: &KubeletFacts) -> bool {
    match ports(facts) {
        Ports::Answer | Ports::Stuck | Ports::Silent => true,
        Ports::Unknown => facts.unit == Some(Unit::Active),
        Ports::Refuse => false,
    }
}

/// Judges what the kubelet can do.
///
/// The node's condition `Ready` has no row: the kubelet's own process writes it, whatever its sync
/// loop does, and it becomes `Unknown` because of the lease.
#[expect(clippy::match_same_arms, reason = "the order of the rows is their weight")]
pub fn kubelet(facts: &KubeletFacts, silence: &Silence) -> Kubelet {
    use Kubelet::{Dead, Hangs, Lives, Unknown};
    let stale = lease_is_stale(facts);
    match (ports(facts), facts.unit) {
        // The kubelet itself reports this, after five minutes without an iteration of its loop.
        (Ports::Stuck, _) => Hangs,
        // Another process may answer in its place.
        (Ports::Answer, Some(Unit::Inactive)) if stale => Unknown,
        (Ports::Answer, _) => Lives,
        // A stopped process keeps its port, its lock, and for 40 s its lease.
        (Ports::Silent, _) if stale || silence.proves_stop() => Hangs,
        (Ports::Silent, _) => Unknown,
        // A process holds the lock; the unit may have another name.
        _ if facts.lock_armed == Some(true) => Lives,
        // systemd stops it or starts it again.
        (_, Some(Unit::Changing)) if silence.is_long_absent() => Dead,
        (_, Some(Unit::Changing)) => Unknown,
        (Ports::Refuse, Some(Unit::Inactive)) => Dead,
        (_, Some(Unit::Inactive) | None) if stale => Dead,
        // The ports may be turned off.
        (_, Some(Unit::Active)) if !stale => Lives,
        _ => Unknown,
    }
}

/// Whether no kubelet has renewed the node's lease for longer than it lasts.
pub(super) fn lease_is_stale(facts: &KubeletFacts) -> bool {
    facts.lease_age.is_some_and(|age| age > LEASE_LASTS)
}

/// Detects the mode from facts about the kubelet and what they mean. `armed_ago` is the time since
/// the kubelet's lock was last seen; it counts only at the signal.
pub fn detect(
    facts: Option<(&KubeletFacts, Kubelet)>,
    armed_ago: Option<Duration>,
    allowed: Allowed,
) -> Detected {
    let found = |mode, why| Detected { mode, marks_only: false, why };
    if !allowed.enforce {
        return found(Mode::Observe, "the agent is set to observe");
    }
    let Some((facts, judged)) = facts else {
        return found(Mode::Assist, "the kubelet's state is not known");
    };
    if let gone @ (Kubelet::Dead | Kubelet::Hangs) = judged {
        return without_kubelet(gone, allowed);
    }
    if facts.lock_armed == Some(true) || armed_ago.is_some_and(|ago| ago <= ARMED_LASTS) {
        return found(Mode::Assist, "the kubelet's own graceful shutdown is armed");
    }
    let configured = facts.shutdown_period().map(|period| !period.is_zero());
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
    use crate::shutdown::priority_groups::PriorityGroup;

    const ALL: Allowed = Allowed { enforce: true, runtime: true, ends_pods: true };

    fn facts() -> KubeletFacts {
        KubeletFacts {
            lock_armed: Some(false),
            shutdown_groups: Some(Vec::new()),
            main_pid: Some(700),
            unit: Some(Unit::Active),
            healthy: Some(Healthz::Ok),
            main_port: Some(MainPort::Answers),
            lease_age: Some(Duration::from_secs(3)),
            eviction: None,
        }
    }

    fn with(change: impl FnOnce(&mut KubeletFacts)) -> KubeletFacts {
        let mut facts = facts();
        change(&mut facts);
        facts
    }

    /// The two ports' answers.
    type Answers = (Option<MainPort>, Option<Healthz>);

    const FRESH: bool = false;
    const STALE: bool = true;
    const OFF: Answers = (None, None);
    const REFUSE: Answers = (Some(MainPort::Refused), Some(Healthz::Refused));
    const SILENT: Answers = (Some(MainPort::Silent), Some(Healthz::Silent));

    fn judged(answers: Answers, unit: Option<Unit>, stale: bool, silence: Silence) -> Kubelet {
        let lease_age = Some(Duration::from_secs(if stale { 41 } else { 3 }));
        let (main_port, healthy) = answers;
        kubelet(&KubeletFacts { unit, healthy, main_port, lease_age, ..facts() }, &silence)
    }

    #[test]
    fn what_the_ports_the_unit_and_the_lease_say_together() {
        use Kubelet::{Dead, Hangs, Lives, Unknown};
        use Unit::{Active, Inactive};
        const ANSWERS: Option<MainPort> = Some(MainPort::Answers);
        const STUCK: Option<MainPort> = Some(MainPort::Stuck);
        const NO_MAIN: Option<MainPort> = Some(MainPort::Refused);
        const SLOW: Option<MainPort> = Some(MainPort::Silent);
        const OK: Option<Healthz> = Some(Healthz::Ok);
        const REFUSED: Option<Healthz> = Some(Healthz::Refused);
        const QUIET: Option<Healthz> = Some(Healthz::Silent);
        const OTHER: Option<Healthz> = Some(Healthz::Failing);
        let table = [
            ((ANSWERS, OK), Some(Active), FRESH, Lives),
            // It does not reach the API, and works.
            ((ANSWERS, OK), Some(Active), STALE, Lives),
            // The unit has another name on this distribution.
            ((ANSWERS, OK), Some(Inactive), FRESH, Lives),
            ((None, OK), None, FRESH, Lives),
            // Somebody else listens on the kubelet's ports.
            ((None, OK), Some(Inactive), STALE, Unknown),
            ((ANSWERS, OK), Some(Inactive), STALE, Unknown),
            // The sync loop hangs next to a fresh lease and a ping that is answered.
            ((STUCK, OK), Some(Active), FRESH, Hangs),
            ((STUCK, None), None, FRESH, Hangs),
            // The main port is slow with its token, or turned off.
            ((SLOW, OK), Some(Active), FRESH, Lives),
            ((NO_MAIN, OK), Some(Active), FRESH, Lives),
            // The other port is turned off, or another's.
            ((ANSWERS, REFUSED), Some(Active), FRESH, Lives),
            ((ANSWERS, None), None, FRESH, Lives),
            ((ANSWERS, QUIET), Some(Active), FRESH, Lives),
            ((ANSWERS, OTHER), Some(Active), FRESH, Lives),
            ((None, OTHER), Some(Active), FRESH, Lives),
            ((None, OTHER), None, FRESH, Unknown),
            // A process that does not run is silent.
            (SILENT, Some(Active), FRESH, Unknown),
            (SILENT, Some(Active), STALE, Hangs),
            ((None, QUIET), None, STALE, Hangs),
            ((SLOW, None), Some(Active), STALE, Hangs),
            ((SLOW, REFUSED), Some(Inactive), FRESH, Dead),
            // No process.
            (REFUSE, Some(Inactive), FRESH, Dead),
            (REFUSE, Some(Inactive), STALE, Dead),
            ((NO_MAIN, None), Some(Inactive), FRESH, Dead),
            (REFUSE, None, FRESH, Unknown),
            (REFUSE, None, STALE, Dead),
            // The ports may be turned off.
            (REFUSE, Some(Active), FRESH, Lives),
            (REFUSE, Some(Active), STALE, Unknown),
            (OFF, Some(Active), FRESH, Lives),
            (OFF, Some(Active), STALE, Unknown),
            (OFF, Some(Inactive), FRESH, Unknown),
            (OFF, Some(Inactive), STALE, Dead),
            (OFF, None, FRESH, Unknown),
            (OFF, None, STALE, Dead),
        ];
        for (row, (answers, unit, stale, expected)) in table.into_iter().enumerate() {
            let found = judged(answers, unit, stale, Silence::default());
            assert_eq!(found, expected, "row {row}: {answers:?} {unit:?} {stale}");
        }
        assert_eq!(kubelet(&KubeletFacts::default(), &Silence::default()), Unknown);
    }

    #[test]
    fn in_a_shutdown_silence_counts_after_seconds() {
        let silent = |seconds, shutdown: Option<u64>| Silence {
            silent: Duration::from_secs(seconds),
            shutdown: shutdown.map(Duration::from_secs),
            ..Silence::default()
        };
        let table = [
            (silent(0, Some(30)), Kubelet::Unknown),
            (silent(1, Some(30)), Kubelet::Unknown),
            (silent(2, Some(30)), Kubelet::Hangs),
            (silent(39, None), Kubelet::Unknown),
        ];
        for (silence, expected) in table {
            let found = judged(SILENT, Some(Unit::Active), FRESH, silence);
            assert_eq!(found, expected, "{silence:?}");
            // An answer ends it, whatever was before.
            let answers = (Some(MainPort::Answers), Some(Healthz::Silent));
            assert_eq!(judged(answers, Some(Unit::Active), FRESH, silence), Kubelet::Lives);
        }
        // The stopped process still holds its lock.
        let armed = with(|facts| {
            facts.lock_armed = Some(true);
            (facts.main_port, facts.healthy) = SILENT;
        });
        assert_eq!(kubelet(&armed, &silent(2, Some(30))), Kubelet::Hangs);
    }

    #[test]
    fn a_kubelet_that_systemd_starts_again_is_waited_for() {
        let absent = |millis, shutdown: Option<u64>| Silence {
            absent: Duration::from_millis(millis),
            shutdown: shutdown.map(Duration::from_secs),
            ..Silence::default()
        };
        let table = [
            (absent(0, Some(40)), Kubelet::Unknown),
            (absent(11_900, Some(40)), Kubelet::Unknown),
            (absent(12_000, Some(40)), Kubelet::Dead),
            // A third of the time is its share.
            (absent(1_600, Some(5)), Kubelet::Unknown),
            (absent(1_700, Some(5)), Kubelet::Dead),
            (absent(11_900, None), Kubelet::Unknown),
            (absent(12_000, None), Kubelet::Dead),
        ];
        for (silence, expected) in table {
            for answers in [REFUSE, OFF] {
                let found = judged(answers, Some(Unit::Changing), FRESH, silence);
                assert_eq!(found, expected, "{answers:?} {silence:?}");
            }
            // One that was stopped for good is not.
            assert_eq!(judged(REFUSE, Some(Unit::Inactive), FRESH, silence), Kubelet::Dead);
        }
    }

    #[test]
    fn a_process_with_the_lock_lives() {
        for unit in [Some(Unit::Inactive), Some(Unit::Changing), None] {
            let armed = with(|facts| {
                (facts.main_port, facts.healthy) = REFUSE;
                facts.unit = unit;
                facts.lock_armed = Some(true);
            });
            assert_eq!(kubelet(&armed, &Silence::default()), Kubelet::Lives, "{unit:?}");
        }
    }

    #[test]
    fn the_mode_follows_what_is_known() {
        use Mode::{Assist, Observe, Replace, Substitute};
        let dead = || {
            with(|facts| {
                (facts.main_port, facts.healthy) = REFUSE;
                facts.unit = Some(Unit::Inactive);
            })
        };
        let period = |seconds| {
            move |facts: &mut KubeletFacts| {
                let period = Duration::from_secs(seconds);
                facts.shutdown_groups = Some(PriorityGroup::of_all(period));
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
            (Some(unsaid(|facts| facts.shutdown_groups = None)), None, ALL, Assist, false),
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
            let facts = facts.as_ref().map(|facts| (facts, kubelet(facts, &Silence::default())));
            let found = detect(facts, ago, allowed);
            assert_eq!((found.mode, found.marks_only), (mode, marks_only), "row {row}");
        }
    }
}
