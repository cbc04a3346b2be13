//! Folds what the sources say of the machine's end into what is known of it now.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::ending::{Ending, ShutdownKind, Source};
use crate::shutdown::budget::GRANTED_DEFAULT;

/// A read of logind may have begun before a signal that arrived before the read's answer.
pub(super) const CHECK_LASTS: Duration = Duration::from_secs(2);
/// The time for a stop of the system that logind has not announced: nothing delays it.
const UNANNOUNCED_LASTS: Duration = Duration::from_secs(2);

/// Why an end went: its source withdrew it, a read shows none any more, or its source has restarted
/// and knows of none.
const WITHDRAWN: &str = "logind says so";
const VANISHED: &str = "logind is not shutting down any more";
const FORGOTTEN: &str = "logind was restarted, and its shutdown is gone";

/// The ends of the machine that the sources know of.
#[derive(Clone, Debug, Default)]
pub(super) struct Endings {
    known: BTreeMap<Source, KnownEnding>,
    /// The delay that logind grants.
    pub(super) granted: Option<Duration>,
    /// When logind last gave a signal.
    signal_at: Option<Duration>,
    /// Why the last end went.
    why_gone: &'static str,
}

/// An end of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownEnding {
    pub(super) source: Source,
    /// When its source said so. With the source, this tells one end from the next.
    pub(super) since: Duration,
    /// The time that was left then.
    pub(super) within: Duration,
    pub(super) kind: Option<ShutdownKind>,
    pub(super) certain: bool,
    /// Whether the source said so by itself. Otherwise it was read, and may be older.
    pub(super) announced: bool,
}

impl KnownEnding {
    /// The moment of the end, on CLOCK_MONOTONIC.
    fn at(&self) -> Duration {
        self.since.saturating_add(self.within)
    }
}

impl Endings {
    /// Takes what a source says by itself.
    pub(super) fn say(&mut self, source: Source, ending: Option<Ending>, now: Duration) {
        if source == Source::Logind {
            self.signal_at = Some(now);
            let within = ending.as_ref().and_then(|ending| ending.within);
            self.granted = within.or(self.granted);
        }
        match ending {
            Some(ending) => self.insert(source, ending, true, now),
            None => self.remove(source, WITHDRAWN),
        }
    }

    /// Takes what was read of logind: whether it prepares an end, and the delay that it grants. A
    /// read that contradicts a signal may be older than the signal, unless another logind answers.
    pub(super) fn read_logind(
        &mut self,
        preparing: bool,
        delay: Option<Duration>,
        restarted: bool,
        now: Duration,
    ) {
        self.granted = delay.or(self.granted);
        let is_older = self.signal_at.is_some_and(|at| now < at + CHECK_LASTS) && !restarted;
        if is_older || preparing == self.of_logind().is_some() {
            return;
        }
        if preparing {
            self.insert(Source::Logind, Ending::certain(delay, None), false, now);
        } else {
            self.remove(Source::Logind, if restarted { FORGOTTEN } else { VANISHED });
        }
    }

    fn insert(&mut self, source: Source, ending: Ending, announced: bool, now: Duration) {
        let Ending { within, kind, certain } = ending;
        let within = within.unwrap_or(match source {
            Source::Logind => self.granted.unwrap_or(GRANTED_DEFAULT),
            Source::Systemd => UNANNOUNCED_LASTS,
        });
        let known = KnownEnding { source, since: now, within, kind, certain, announced };
        self.known.insert(source, known);
    }

    fn remove(&mut self, source: Source, why: &'static str) {
        if self.known.remove(&source).is_some() {
            self.why_gone = why;
        }
    }

    /// The end that logind has announced.
    pub(super) fn of_logind(&self) -> Option<&KnownEnding> {
        self.known.get(&Source::Logind)
    }

    /// The end that counts: the earliest that is certain.
    pub(super) fn earliest(&self) -> Option<&KnownEnding> {
        let certain = self.known.values().filter(|ending| ending.certain);
        certain.min_by_key(|ending| ending.at())
    }

    /// Why the last end went.
    pub(super) fn why_gone(&self) -> &'static str {
        self.why_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const LATER: Duration = Duration::from_secs(103);

    fn within(seconds: u64) -> Ending {
        Ending::certain(Some(Duration::from_secs(seconds)), None)
    }

    fn announced() -> Endings {
        let mut endings = Endings::default();
        endings.say(Source::Logind, Some(within(30)), NOW);
        endings
    }

    #[test]
    fn read_that_may_be_older_than_a_signal_changes_nothing() {
        let read = |mut endings: Endings, preparing, restarted, now| {
            endings.read_logind(preparing, None, restarted, now);
            (endings.of_logind().is_some(), endings.why_gone())
        };
        let just_now = NOW + Duration::from_secs(1);
        assert_eq!(read(announced(), false, false, just_now), (true, ""));
        assert_eq!(read(announced(), false, false, LATER), (false, VANISHED));
        assert_eq!(read(announced(), false, true, just_now), (false, FORGOTTEN));
        let mut withdrawn = announced();
        withdrawn.say(Source::Logind, None, NOW);
        assert_eq!(read(withdrawn.clone(), true, false, just_now), (false, WITHDRAWN));
        assert_eq!(read(withdrawn, true, false, LATER), (true, WITHDRAWN));
    }

    #[test]
    fn read_says_nothing_new_of_an_end_that_is_known() {
        let mut endings = announced();
        let before = endings.earliest().cloned();
        endings.read_logind(true, Some(Duration::from_secs(5)), false, LATER);
        assert_eq!(endings.earliest(), before.as_ref());
        assert_eq!(endings.granted, Some(Duration::from_secs(5)));
        // A second signal is an end of its own: whether it counts is the shutdown's to say.
        endings.say(Source::Logind, Some(within(7)), LATER);
        assert_eq!(endings.earliest().map(|ending| ending.since), Some(LATER));
    }

    #[test]
    fn earliest_certain_end_counts() {
        let mut endings = announced();
        endings.say(Source::Systemd, Some(Ending::certain(None, None)), NOW);
        let earliest = |endings: &Endings| endings.earliest().map(|ending| ending.source);
        assert_eq!(earliest(&endings), Some(Source::Systemd));
        endings.say(Source::Systemd, Some(Ending { certain: false, ..within(1) }), NOW);
        assert_eq!(earliest(&endings), Some(Source::Logind));
        endings.say(Source::Logind, None, NOW);
        assert_eq!(earliest(&endings), None);
    }

    #[test]
    fn time_that_a_source_does_not_say_is_the_delay_that_logind_grants() {
        let mut endings = Endings::default();
        let time = |endings: &Endings| endings.earliest().map(|ending| ending.within);
        endings.read_logind(true, None, false, NOW);
        assert_eq!(time(&endings), Some(GRANTED_DEFAULT));
        endings.read_logind(false, Some(Duration::from_secs(9)), false, NOW);
        endings.say(Source::Logind, Some(Ending::certain(None, None)), NOW);
        assert_eq!(time(&endings), Some(Duration::from_secs(9)));
    }
}
