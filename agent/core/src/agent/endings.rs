//! Folds what the sources say of the machine's end into what is known of it now.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::facts::Facts;
use super::notices::{END_ANNOUNCED, END_WITHDRAWN};
use super::out::Out;
use crate::protocol::ending::{Ending, ShutdownKind, Source};
use crate::shutdown::budget::GRANTED_DEFAULT;
use crate::termination::clock::Clock;

/// Why an end of logind went, where logind does not say so: a read shows none any more, or it has
/// restarted and knows of none.
const VANISHED: &str = "logind is not shutting down any more";
const FORGOTTEN: &str = "logind was restarted, and its shutdown is gone";

/// A read of logind may have begun before a signal that arrived before the read's answer.
pub(super) const CHECK_LASTS: Duration = Duration::from_secs(2);
/// The time for a stop of the system that logind has not announced: nothing delays it.
const UNANNOUNCED_LASTS: Duration = Duration::from_secs(2);
/// The time of a notice that does not say it: the shortest that a cloud gives.
const NOTICE_DEFAULT: Duration = Duration::from_secs(30);
/// An end that is this near, or that may come at any time, keeps new pods away.
const NEAR: Duration = Duration::from_mins(15);
/// A notice whose time differs by more than this has moved: clocks of others are read.
const MOVED: Duration = Duration::from_secs(2);

/// The ends of the machine that the sources know of.
#[derive(Clone, Debug, Default)]
pub(super) struct Endings {
    /// What each source that has spoken knows of.
    known: BTreeMap<Source, Option<KnownEnding>>,
    /// The delay that logind grants.
    pub(super) granted: Option<Duration>,
    /// When logind last gave a signal.
    signal_at: Option<Duration>,
    /// Why the last end went.
    why_gone: String,
}

/// An end of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownEnding {
    pub(super) source: Source,
    /// When its source first said so. With the source, this tells one end from the next.
    pub(super) since: Duration,
    /// When it comes, on CLOCK_MONOTONIC.
    pub(super) at: Duration,
    pub(super) kind: Option<ShutdownKind>,
    pub(super) stage: Stage,
}

/// What an end asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It may not come: new pods stay away.
    Uncertain,
    /// It comes later than a shutdown takes.
    Planned,
    /// It asks for a shutdown, which a read or a notice has shown.
    Due,
    /// The same, and logind or systemd has just said so: it is no shutdown of the journal.
    Announced,
}

impl KnownEnding {
    /// Whether it asks for a shutdown.
    fn is_due(&self) -> bool {
        matches!(self.stage, Stage::Due | Stage::Announced)
    }
}

/// Something new about an end of which notice was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Given(KnownEnding),
    Moved(KnownEnding),
    Withdrawn(Source),
}

impl Endings {
    /// Takes what a source says by itself; returns what is new about a notice.
    pub(super) fn say(
        &mut self,
        source: Source,
        ending: Option<Ending>,
        now: Duration,
    ) -> Option<Notice> {
        if source == Source::Logind {
            self.signal_at = Some(now);
            let within = ending.as_ref().and_then(|ending| ending.within);
            self.granted = within.or(self.granted);
        }
        let gives_notice = source.gives_notice();
        let Some(ending) = ending else {
            let was_known = self.remove(source, format!("{source} says so"));
            return (gives_notice && was_known).then_some(Notice::Withdrawn(source));
        };
        if !gives_notice {
            self.insert(source, ending, Stage::Announced, now);
            return None;
        }
        let before = self.of(source).cloned();
        let stage = if ending.certain { Stage::Planned } else { Stage::Uncertain };
        let (says_time, is_now) = (ending.within.is_some(), ending.within == Some(Duration::ZERO));
        let known = self.insert(source, ending, stage, now);
        let Some(before) = before else { return Some(Notice::Given(known.clone())) };
        // It is the same end; one that is put off is due later. One whose time has come, or is not
        // said, stays where it was.
        known.since = before.since;
        let stays = !says_time || is_now && before.at <= now;
        let is_put_off = !stays && known.at > before.at.saturating_add(MOVED);
        let has_moved = is_put_off || !stays && before.at > known.at.saturating_add(MOVED);
        if !has_moved {
            known.at = before.at;
        }
        if known.stage == Stage::Planned && before.stage == Stage::Due && !is_put_off {
            known.stage = Stage::Due;
        }
        let was_uncertain = before.stage == Stage::Uncertain;
        let is_other = was_uncertain != (known.stage == Stage::Uncertain);
        (has_moved || is_other).then(|| Notice::Moved(known.clone()))
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
        if is_older || preparing == self.of(Source::Logind).is_some() {
            return;
        }
        if preparing {
            self.insert(Source::Logind, Ending::certain(delay, None), Stage::Due, now);
        } else {
            let why = if restarted { FORGOTTEN } else { VANISHED };
            self.remove(Source::Logind, why.to_owned());
        }
    }

    fn insert(
        &mut self,
        source: Source,
        ending: Ending,
        stage: Stage,
        now: Duration,
    ) -> &mut KnownEnding {
        let Ending { within, kind, certain: _ } = ending;
        let within = within.unwrap_or(match source {
            Source::Logind => self.granted.unwrap_or(GRANTED_DEFAULT),
            Source::Systemd => UNANNOUNCED_LASTS,
            _ => NOTICE_DEFAULT,
        });
        let at = now.saturating_add(within);
        let known = KnownEnding { source, since: now, at, kind, stage };
        self.known.entry(source).or_default().insert(known)
    }

    fn remove(&mut self, source: Source, why: String) -> bool {
        let was_known = self.known.insert(source, None).flatten().is_some();
        if was_known {
            self.why_gone = why;
        }
        was_known
    }

    /// The end of which this source knows.
    pub(super) fn of(&self, source: Source) -> Option<&KnownEnding> {
        self.known.get(&source)?.as_ref()
    }

    /// The end of which this source knows, if it asks for a shutdown.
    pub(super) fn due_of(&self, source: Source) -> Option<&KnownEnding> {
        self.of(source).filter(|ending| ending.is_due())
    }

    /// Whether the source has spoken, and asks for no shutdown.
    pub(super) fn denies(&self, source: Source) -> bool {
        self.known.contains_key(&source) && self.due_of(source).is_none()
    }

    /// Notes which ends ask for a shutdown by now, as one takes so long.
    pub(super) fn note_due(&mut self, takes: Duration, clock: &Clock) {
        for known in self.known.values_mut().flatten() {
            if known.stage == Stage::Planned && clock.reached(known.at.saturating_sub(takes)) {
                known.stage = Stage::Due;
            }
        }
    }

    /// Takes an end for the one whose shutdown had this time when it began: it is due, unless it
    /// was put off since.
    pub(super) fn resume(&mut self, source: Source, granted: Duration, now: Duration) {
        let known = self.known.get_mut(&source).and_then(Option::as_mut);
        if let Some(known) = known
            && known.stage == Stage::Planned
            && known.at <= now.saturating_add(granted)
        {
            known.stage = Stage::Due;
        }
    }

    /// The end that counts: the earliest that asks for a shutdown. One whose time is over, with the
    /// machine still there, bounds nothing any more.
    pub(super) fn earliest_due(&self, now: Duration) -> Option<&KnownEnding> {
        let due = self.known.values().flatten().filter(|ending| ending.is_due());
        due.min_by_key(|ending| (ending.at <= now, ending.at))
    }

    /// The earliest end that is certain, and for which no shutdown has begun.
    pub(super) fn earliest_planned(&self) -> Option<&KnownEnding> {
        let planned = self.known.values().flatten().filter(|it| it.stage == Stage::Planned);
        planned.min_by_key(|ending| ending.at)
    }

    /// Who has given notice of an end that is to come: of several, the earliest certain one's.
    pub(super) fn notice(&self) -> Option<Source> {
        let notices = self.known.values().flatten().filter(|it| it.source.gives_notice());
        let first = |it: &&KnownEnding| (it.stage == Stage::Uncertain, it.at);
        notices.min_by_key(first).map(|ending| ending.source)
    }

    /// When the earliest certain end comes of which notice was given, once it is near.
    pub(super) fn notice_ends_at(&self, clock: &Clock) -> Option<Timestamp> {
        let certain = |it: &&KnownEnding| it.source.gives_notice() && it.stage != Stage::Uncertain;
        let first = self.known.values().flatten().filter(certain).map(|it| it.at).min()?;
        clock.reached(first.saturating_sub(NEAR)).then(|| clock.wall_at(first))
    }

    /// Whether the agent keeps new pods away from the node, as notice was given of an end that is
    /// near. What another program says on the Node object is for its writer to carry out.
    pub(super) fn keeps_pods_away(&self, clock: &Clock) -> bool {
        let is_near = |it: &KnownEnding| {
            it.stage == Stage::Uncertain || clock.reached(it.at.saturating_sub(NEAR))
        };
        let asked = |it: &&KnownEnding| it.source.gives_notice() && it.source != Source::Node;
        let notices = self.known.values().flatten().filter(asked);
        notices.map(is_near).fold(false, |any, near| any | near)
    }

    /// Why the last end went.
    pub(super) fn why_gone(&self) -> &str {
        &self.why_gone
    }
}

/// Tells people of a notice.
pub(super) fn report(news: &Notice, facts: &Facts, out: &mut Out) {
    let (verb, ending) = match news {
        Notice::Given(ending) => ("announces", ending),
        Notice::Moved(ending) => ("announces by now", ending),
        // The time has come, and logind announces the end itself.
        Notice::Withdrawn(_) if facts.is_preparing() => return,
        Notice::Withdrawn(source) => {
            let text = format!("{source} announces no end of the machine any more.");
            return out.announce(false, END_WITHDRAWN, text);
        }
    };
    let kind = ending.kind.as_ref().map_or(String::new(), |kind| format!(" ({})", kind.name()));
    let left = ending.at.saturating_sub(facts.clock.monotonic()).as_secs();
    let source = ending.source;
    let text = match ending.stage {
        _ if source == Source::Node => format!(
            "The Node object says{kind} that the machine may end: whoever wrote that ends the \
             pods, unless other notice or logind's signal comes."
        ),
        Stage::Uncertain => format!(
            "{source} {verb} that the machine may end{kind}: the node gets no new pods meanwhile."
        ),
        _ => format!(
            "{source} {verb} that the machine ends{kind} in {left} s; a shutdown takes {} s.",
            facts.wanted_delay().as_secs()
        ),
    };
    out.announce(false, END_ANNOUNCED, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::event::Now;

    const NOW: Duration = Duration::from_secs(100);
    const LATER: Duration = Duration::from_secs(103);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn within(time: u64) -> Ending {
        Ending::certain(Some(seconds(time)), None)
    }

    fn clock(now: Duration) -> Clock {
        Clock::new(Now { monotonic: now, boot: now, wall: Timestamp::UNIX_EPOCH })
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
            (endings.of(Source::Logind).is_some(), endings.why_gone().to_owned())
        };
        let just_now = NOW + seconds(1);
        let gone = |why: &str| (false, why.to_owned());
        assert_eq!(read(announced(), false, false, just_now), (true, String::new()));
        assert_eq!(read(announced(), false, false, LATER), gone(VANISHED));
        assert_eq!(read(announced(), false, true, just_now), gone(FORGOTTEN));
        let mut withdrawn = announced();
        withdrawn.say(Source::Logind, None, NOW);
        assert_eq!(read(withdrawn.clone(), true, false, just_now), gone("logind says so"));
        assert!(read(withdrawn, true, false, LATER).0);
    }

    #[test]
    fn read_says_nothing_new_of_an_end_that_is_known() {
        let mut endings = announced();
        let before = endings.earliest_due(NOW).cloned();
        endings.read_logind(true, Some(seconds(5)), false, LATER);
        assert_eq!(endings.earliest_due(NOW), before.as_ref());
        assert_eq!(endings.granted, Some(seconds(5)));
        // A second signal is an end of its own: whether it counts is the shutdown's to say.
        endings.say(Source::Logind, Some(within(7)), LATER);
        assert_eq!(endings.earliest_due(LATER).map(|ending| ending.since), Some(LATER));
    }

    #[test]
    fn earliest_end_that_is_due_counts() {
        let mut endings = announced();
        endings.say(Source::Systemd, Some(Ending::certain(None, None)), NOW);
        endings.say(Source::File, Some(Ending { certain: false, ..within(1) }), NOW);
        let earliest = |endings: &Endings| endings.earliest_due(NOW).map(|ending| ending.source);
        assert_eq!(earliest(&endings), Some(Source::Systemd));
        endings.say(Source::Systemd, None, NOW);
        assert_eq!(earliest(&endings), Some(Source::Logind));
        endings.say(Source::Aws, Some(within(10)), NOW);
        endings.note_due(seconds(60), &clock(NOW));
        assert_eq!(earliest(&endings), Some(Source::Aws));
        let later = endings.earliest_due(NOW + seconds(10)).map(|ending| ending.source);
        assert_eq!(later, Some(Source::Logind), "the time of the notice is over");
        endings.say(Source::Aws, None, NOW);
        endings.say(Source::Logind, None, NOW);
        assert_eq!(earliest(&endings), None);
    }

    #[test]
    fn notice_is_due_as_early_as_a_shutdown_takes_and_stays_so_unless_it_is_put_off() {
        let mut endings = Endings::default();
        let given = endings.say(Source::Aws, Some(within(120)), NOW);
        assert!(matches!(given, Some(Notice::Given(_))), "{given:?}");
        let mut due = |now: u64, takes, left: Option<u64>| {
            let now = seconds(now);
            let news = left.and_then(|left| endings.say(Source::Aws, Some(within(left)), now));
            endings.note_due(seconds(takes), &clock(now));
            let moved = matches!(news, Some(Notice::Moved(_)));
            (endings.earliest_due(now).map(|it| it.at.as_secs()), moved)
        };
        assert_eq!(due(149, 70, None), (None, false));
        assert_eq!(due(150, 70, None), (Some(220), false));
        // The time that a shutdown takes may shrink, and clocks of others are not exact.
        assert_eq!(due(150, 10, Some(71)), (Some(220), false));
        assert_eq!(due(151, 10, Some(30)), (Some(181), true));
        assert_eq!(due(152, 10, Some(600)), (None, true));
        // What is past, or without a time, does not move on with each word.
        assert_eq!(due(160, 10, Some(0)), (Some(160), true));
        assert_eq!(due(170, 10, Some(0)), (Some(160), false));
        assert_eq!(endings.say(Source::Aws, Some(Ending::certain(None, None)), LATER), None);
        assert_eq!(endings.earliest_due(NOW).map(|it| it.at), Some(seconds(160)));
        assert_eq!(endings.say(Source::Aws, None, NOW), Some(Notice::Withdrawn(Source::Aws)));
        assert_eq!(endings.say(Source::Aws, None, NOW), None);
        assert!(endings.denies(Source::Aws) && !endings.denies(Source::Gce));
    }

    #[test]
    fn end_that_is_near_or_may_come_keeps_pods_away() {
        let away = |source, ending| {
            let mut endings = Endings::default();
            endings.say(source, Some(ending), NOW);
            endings.keeps_pods_away(&clock(NOW))
        };
        assert!(!away(Source::Azure, within(3_600)));
        assert!(away(Source::Azure, within(600)));
        assert!(away(Source::Aws, Ending { within: None, kind: None, certain: false }));
        // In a shutdown the taint is the shutdown's.
        assert!(!away(Source::Logind, within(30)));
    }

    #[test]
    fn time_that_a_source_does_not_say_is_the_delay_that_logind_grants() {
        let mut endings = Endings::default();
        let time =
            |endings: &Endings| endings.earliest_due(NOW).map(|it| it.at.saturating_sub(NOW));
        endings.read_logind(true, None, false, NOW);
        assert_eq!(time(&endings), Some(GRANTED_DEFAULT));
        endings.read_logind(false, Some(seconds(9)), false, NOW);
        endings.say(Source::Logind, Some(Ending::certain(None, None)), NOW);
        assert_eq!(time(&endings), Some(seconds(9)));
    }
}
