//! Merges the reports of several witnesses about one kill. The kernel's log decides what was short;
//! the cgroup shows what became of the container.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::pod::{PodUid, PodView};
use crate::protocol::event::{Now, RuntimeState};
use crate::protocol::pressure::{OomConstraint, OomKill, OomWitness};

/// How long after one witness another may report the same kill.
pub(super) const SAME_KILL: Duration = Duration::from_secs(1);
/// How long a report about a container that lives waits for the container's name.
const NAME_WAIT: Duration = Duration::from_millis(100);
/// The first wait before the runtime is asked again about a container that has just ended: its exit
/// code comes a moment after its last process is gone. Each further wait is twice as long.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(320);
/// How long a condition waits to learn whether the container lives on.
const FATE_WAIT: Duration = Duration::from_secs(1);
/// How long a condition waits for the exit code of a container that has ended. A kubelet cannot
/// report the end before, as it asks the same runtime.
const EXIT_WAIT: Duration = Duration::from_secs(5);

/// The exit code of a container whose main process got SIGKILL.
const SIGKILLED: i32 = 137;

/// The state of the runtime's check of a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Inspect {
    /// Not asked yet.
    #[default]
    Open,
    /// The response is pending.
    Asked,
    /// The runtime has responded, or it failed.
    Over,
}

/// The place of a kill: a pod, and its container by the runtime's id.
pub(super) type Place = (PodUid, Option<String>);

/// One kill.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    /// The merged reports of the witnesses.
    pub(super) what: OomKill,
    witnesses: BTreeSet<OomWitness>,
    /// When the first report came: at the end of the container, if the agent waited for that.
    pub(super) heard_at: Duration,
    /// The same by the API's clock.
    pub(super) wall: Timestamp,
    /// The container's name, once it is known.
    pub(super) container: Option<String>,
    pub(super) inspect: Inspect,
    /// When the runtime is asked, on CLOCK_MONOTONIC.
    ask_at: Duration,
    /// The wait before it is asked again.
    ask_again: Duration,
    /// Whether the container exited with 0 although one of its processes was killed: the kill was
    /// not its end.
    pub(super) exited_well: bool,
    /// Whether the condition was decided with the present facts.
    pub(super) decided: bool,
    /// Whether the kill was reported and counted.
    pub(super) reported: bool,
}

impl Kill {
    pub(super) fn new(what: OomKill, now: Now) -> Self {
        Self {
            witnesses: BTreeSet::from([what.witness]),
            what,
            heard_at: now.monotonic,
            wall: now.wall,
            container: None,
            inspect: Inspect::default(),
            ask_at: now.monotonic,
            ask_again: ASK_AGAIN,
            exited_well: false,
            decided: false,
            reported: false,
        }
    }

    /// Takes the cause from an earlier report. A container ends once, and a report that does not
    /// know the cause must not replace one that does.
    pub(super) fn take_cause_of(&mut self, earlier: &Self) {
        let vague = self.what.constraint == OomConstraint::Unknown;
        if vague && earlier.what.container_lives == Some(false) {
            self.what.constraint = earlier.what.constraint;
            self.what.limit = earlier.what.limit;
        }
    }

    /// Whether it ended its container, which is known by its id, and so ends once.
    pub(super) fn has_ended_container(&self) -> bool {
        self.what.container_id.is_some() && self.what.container_lives == Some(false)
    }

    /// Whether another witness reports this kill, rather than the same witness the next kill.
    pub(super) fn is_seen_by(&self, other: &OomKill) -> bool {
        let apart = other.at.abs_diff(self.what.at);
        apart <= SAME_KILL && !self.witnesses.contains(&other.witness)
    }

    /// Merges another witness's report.
    pub(super) fn hear(&mut self, other: OomKill) {
        let known = other.constraint != OomConstraint::Unknown;
        // The order of witnesses is the order of trust. Of the same witness the last word counts:
        // earlier ones were about children.
        let last = other.witness == self.what.witness && other.at >= self.what.at;
        let trusted = other.witness < self.what.witness || last;
        let what = &mut self.what;
        if known && (trusted || what.constraint == OomConstraint::Unknown) {
            what.limit = other.limit.or(what.limit.filter(|_| what.constraint == other.constraint));
            what.constraint = other.constraint;
            what.witness = other.witness;
        } else if other.constraint == what.constraint {
            what.limit = what.limit.or(other.limit);
        }
        self.witnesses.insert(other.witness);
        let what = &mut self.what;
        what.process = what.process.take().or(other.process);
        what.container_lives = match (what.container_lives, other.container_lives) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), _) | (_, Some(true)) => Some(true),
            (None, None) => None,
        };
        self.decided = false;
    }

    /// Finds the container's name in the pod's status.
    pub(super) fn name_by(&mut self, pod: &PodView) {
        if self.container.is_none()
            && let Some(id) = &self.what.container_id
        {
            let known = pod.details.container_ids.iter().find(|(_, known)| known == id);
            self.container = known.map(|(name, _)| name.clone());
        }
    }

    /// Takes the runtime's response. `ends`: whether someone may have killed the container to end
    /// its pod, as at the end of its grace. Then its exit does not tell who has killed it.
    pub(super) fn inspected(&mut self, state: Option<&RuntimeState>, ends: bool, now: Duration) {
        self.inspect = Inspect::Over;
        let Some(state) = state else { return };
        let id = self.what.container_id.as_deref();
        let Some(found) = state.containers.iter().find(|found| Some(found.id.as_str()) == id)
        else {
            return;
        };
        if self.container.is_none() {
            self.container = Some(found.name.clone());
        }
        self.exited_well = found.exit_code == Some(0);
        let ended = self.what.container_lives == Some(false);
        if ended && !found.exited && now + self.ask_again < self.heard_at + EXIT_WAIT {
            (self.inspect, self.ask_at) = (Inspect::Open, now + self.ask_again);
            self.ask_again = (self.ask_again * 2).min(ASK_AGAIN_MAX);
        }
        // A container that exited with another code than that of SIGKILL has ended for itself.
        let by_itself = found.exit_code.is_some_and(|code| code != SIGKILLED);
        let by_others = found.exited && ends;
        if self.what.container_lives.is_none() && !by_itself && !by_others {
            self.what.container_lives = Some(!found.exited);
            self.decided = false;
        }
    }

    /// When to ask the runtime, which can add facts about the kill; `None` if it cannot. Of a
    /// container that lives it can add only the name.
    pub(super) fn asks_at(&self) -> Option<Duration> {
        let lives = self.what.container_lives == Some(true) && self.container.is_some();
        let asks = self.inspect == Inspect::Open && !lives && self.what.container_id.is_some();
        asks.then_some(self.ask_at)
    }

    /// Until when to wait for the response; `None` if there is no need.
    pub(super) fn waits_until(&self) -> Option<Duration> {
        let asks_again = self.inspect == Inspect::Open && self.ask_at > self.heard_at;
        if self.inspect != Inspect::Asked && !asks_again {
            return None;
        }
        let wait = match self.what.container_lives {
            None => FATE_WAIT,
            Some(false) => EXIT_WAIT,
            Some(true) => NAME_WAIT,
        };
        Some(self.heard_at + wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now =
        Now { monotonic: Duration::ZERO, boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };

    fn kill(witness: OomWitness, constraint: OomConstraint, at_ms: u64) -> OomKill {
        OomKill {
            pod: PodUid("uid-a".into()),
            container_id: Some("c1".into()),
            constraint,
            limit: None,
            process: None,
            container_lives: None,
            witness,
            at: Duration::from_millis(at_ms),
        }
    }

    fn heard(words: &[(OomWitness, OomConstraint, Option<u64>)]) -> (OomConstraint, Option<u64>) {
        let mut words = words.iter().map(|(witness, constraint, limit)| OomKill {
            limit: *limit,
            ..kill(*witness, *constraint, 0)
        });
        let first = words.next().expect("must be some");
        let mut heard = Kill::new(first, NOW);
        words.for_each(|word| heard.hear(word));
        (heard.what.constraint, heard.what.limit)
    }

    #[test]
    fn the_kernel_s_log_is_believed_in_either_order() {
        use OomConstraint::{ContainerLimit, Node, PodLimit, Unknown};
        use OomWitness::{KernelLog, MemoryEvents, Runtime};
        let log = (KernelLog, Node, None);
        let events = (MemoryEvents, ContainerLimit, Some(64));
        assert_eq!(heard(&[log, events]), (Node, None));
        assert_eq!(heard(&[events, log]), (Node, None));
        let agreed = (KernelLog, ContainerLimit, None);
        assert_eq!(heard(&[events, agreed]), (ContainerLimit, Some(64)));
        assert_eq!(heard(&[agreed, events]), (ContainerLimit, Some(64)));
        let runtime = (Runtime, Unknown, None);
        assert_eq!(heard(&[runtime, events]), (ContainerLimit, Some(64)));
        assert_eq!(heard(&[events, runtime]), (ContainerLimit, Some(64)));
        let pods = (MemoryEvents, PodLimit, Some(1));
        assert_eq!(heard(&[(KernelLog, Unknown, None), pods]), (PodLimit, Some(1)));
    }

    #[test]
    fn one_end_is_an_end_whoever_saw_it() {
        let table = [
            (None, None, None),
            (None, Some(true), Some(true)),
            (Some(true), None, Some(true)),
            (Some(true), Some(false), Some(false)),
            (Some(false), Some(true), Some(false)),
        ];
        for (first, second, expected) in table {
            let word = |witness, container_lives| OomKill {
                container_lives,
                ..kill(witness, OomConstraint::Node, 0)
            };
            let first_word = word(OomWitness::MemoryEvents, first);
            let mut kill = Kill::new(first_word, NOW);
            kill.hear(word(OomWitness::KernelLog, second));
            assert_eq!(kill.what.container_lives, expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn a_second_report_of_the_same_witness_is_another_kill() {
        use OomWitness::{KernelLog, MemoryEvents};
        let first = kill(KernelLog, OomConstraint::Node, 5_000);
        let mut seen = Kill::new(first, NOW);
        let table = [
            (KernelLog, 5_010, false),
            (MemoryEvents, 5_010, true),
            (MemoryEvents, 4_010, true),
            (MemoryEvents, 6_000, true),
            (MemoryEvents, 6_001, false),
        ];
        for (witness, at, expected) in table {
            let other = kill(witness, OomConstraint::Node, at);
            assert_eq!(seen.is_seen_by(&other), expected, "{witness:?} {at}");
        }
        seen.hear(kill(MemoryEvents, OomConstraint::Node, 5_010));
        assert!(!seen.is_seen_by(&kill(MemoryEvents, OomConstraint::Node, 5_020)));
    }
}
