//! Follows the machine's end, the API and the journal: begins, resumes, extends and cancels the
//! shutdown.

use std::time::Duration;

use super::super::delay_lock::DelayLock;
use super::super::disruptions::Disruptions;
use super::super::endings::{KnownEnding, Stage};
use super::super::facts::{Facts, News, Situation};
use super::super::mode::Detected;
use super::super::node::NodeWrites;
use super::super::notices::CANCELLED;
use super::super::out::Out;
use super::super::status::ShutdownStatus;
use super::journaled::Journaled;
use super::{Release, Shutdown};
use crate::protocol::ending::Source;
use crate::shutdown::Mode;

/// How much earlier than it has to a shutdown begins at a notice: times of others are not exact.
const AHEAD: Duration = Duration::from_secs(10);
/// How long after a restart the source of a notice may take to say whether the end is still to
/// come.
const NOTICE_WITHIN: Duration = Duration::from_mins(1);

/// The shutdown, if one goes on, and what may lead to one.
#[derive(Clone, Debug)]
pub(in super::super) struct Shutdowns {
    pub(in super::super) current: Option<Shutdown>,
    /// The shutdown of this boot in the journal, until logind reports whether it goes on.
    journaled: Option<Journaled>,
    /// Until when the source of a notice in the journal may speak, on CLOCK_MONOTONIC.
    notice_until: Duration,
    /// Whether the marks of a journaled shutdown that does not go on are being decided.
    deciding: bool,
    /// The end of the machine that was last taken up: its source, and when that said so.
    taken_up: Option<(Source, Duration)>,
    /// Whether a shutdown is in progress that the agent only observes, and has reported.
    observed: bool,
}

/// The parts that a shutdown changes when it begins or ends.
pub(in super::super) struct Others<'a> {
    pub(in super::super) node: &'a mut NodeWrites,
    pub(in super::super) lock: &'a mut DelayLock,
    pub(in super::super) disruptions: &'a mut Disruptions,
}

impl Shutdowns {
    pub(in super::super) fn new(journaled: Option<Journaled>, now: Duration) -> Self {
        Self {
            current: None,
            journaled,
            notice_until: now + NOTICE_WITHIN,
            deciding: false,
            taken_up: None,
            observed: false,
        }
    }

    /// What the other parts have to know.
    pub(in super::super) fn situation(
        &self,
        disruptions: &Disruptions,
        now: Duration,
    ) -> Situation {
        let journaled = self.journaled.is_some() || self.deciding;
        let current = self.current.as_ref();
        let situation = current.map(|shutdown| shutdown.situation(disruptions, now));
        let situation = situation.unwrap_or_default();
        Situation { journaled, owns_pods: situation.owns_pods || journaled, ..situation }
    }

    /// Follows what has changed.
    pub(in super::super) fn follow(
        &mut self,
        news: &[News],
        facts: &mut Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) {
        for news in news {
            match news {
                News::FirstList => {
                    if let Some(shutdown) = &mut self.current {
                        shutdown.enlist_all(facts, others.disruptions);
                    }
                }
                News::Restored => {
                    Shutdown::restored(facts, others.disruptions);
                }
                News::Pod(uid) => {
                    if let (Some(shutdown), Some(pod)) = (&mut self.current, facts.pods.get(uid)) {
                        out.journal.append(shutdown.see_pod(pod, facts, others.disruptions));
                    }
                }
                News::PodGone(uid) => {
                    if let Some(shutdown) = &mut self.current {
                        shutdown.pod_gone(uid, others.disruptions);
                    }
                }
            }
        }
        if self.deciding && !others.disruptions.is_deciding(facts) {
            self.deciding = false;
            others.node.restore(facts);
        }
        self.note_due(facts);
        self.settle_journaled(facts, out, others);
        self.follow_endings(facts, out, others);
    }

    /// Notes which ends ask for a shutdown by now, that of the journal among them.
    fn note_due(&self, facts: &mut Facts) {
        facts.endings.note_due(takes(facts), &facts.clock);
        if let Some(journaled) = &self.journaled {
            let now = facts.clock.monotonic();
            facts.endings.resume(journaled.source(), journaled.granted, now);
        }
    }

    /// Compares the shutdown that goes on with what the sources say of the machine's end.
    ///
    /// DIVERGES(upstream): a shutdown that vanished counts as cancelled. Upstream receives no
    /// signal of it, and its node stays not ready. ([LD7], [W13])
    fn follow_endings(&mut self, facts: &mut Facts, out: &mut Out, others: &mut Others<'_>) {
        self.leave_loginds(facts, out, others);
        let (endings, now) = (&facts.endings, facts.clock.monotonic());
        // Whether its shutdown of the journal goes on, logind says. The end of which notice was
        // given may come while its source is silent.
        let recorded = self.journaled.as_ref().map(Journaled::source);
        let ending = match recorded.filter(|source| !source.gives_notice()) {
            Some(source) => endings.due_of(source),
            None => endings.earliest_due(now),
        };
        let Some(ending) = ending.cloned() else {
            (self.observed, self.taken_up) = (false, None);
            if self.current.is_some() {
                self.cancel(endings.why_gone(), facts, out, others);
            }
            return;
        };
        let identity = Some((ending.source, ending.since));
        let announced = ending.stage == Stage::Announced;
        // What was only read may be the shutdown whose marks are being decided.
        if self.taken_up != identity && (announced || !self.deciding) {
            let before = std::mem::replace(&mut self.taken_up, identity);
            self.take_up(&ending, before.map(|(source, _)| source), facts, out, others);
        } else if let Some(shutdown) = &mut self.current {
            shutdown.bound(&ending, facts);
        }
    }

    /// Cancels a shutdown that logind has announced and takes back, though a notice goes on: the
    /// kubelet, which ended pods in it, does nothing any more.
    fn leave_loginds(&mut self, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        let is_loginds =
            self.current.as_ref().is_some_and(|it| it.origin.source() == Source::Logind);
        let (endings, now) = (&facts.endings, facts.clock.monotonic());
        let goes_on = endings.earliest_due(now).is_some_and(|it| it.source.gives_notice());
        if is_loginds && goes_on && endings.of(Source::Logind).is_none() {
            self.taken_up = None;
            self.cancel(endings.why_gone(), facts, out, others);
        }
    }

    /// Takes up an end that is new to the agent, or that follows another one's notice.
    fn take_up(
        &mut self,
        ending: &KnownEnding,
        before: Option<Source>,
        facts: &mut Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) {
        if let Some(shutdown) = &mut self.current {
            if !shutdown.window.is_long_over(facts.clock.monotonic()) {
                if before == Some(ending.source) {
                    out.calls.log(false, None, "a second signal of the same shutdown is ignored");
                } else {
                    shutdown.bound(ending, facts);
                }
                return;
            }
            out.calls.log(true, None, "a new shutdown, though the last one is not over");
            self.leave(facts, out, others.disruptions);
        }
        let mut journaled = self.journaled.take();
        if ending.stage == Stage::Announced {
            // This proves that logind's shutdown of the journal was cancelled. Its marks still
            // stand. One that began at a notice goes on.
            let cancelled = journaled.take_if(|it| !it.source().gives_notice());
            for (pod, at) in cancelled.iter().flat_map(Journaled::marked) {
                others.disruptions.remove(pod, at);
            }
        } else if journaled.is_none() && ending.source == Source::Logind {
            out.calls.log(true, None, "logind is shutting down, and no signal arrived");
        }
        self.begin(ending, journaled.as_ref(), facts, out, others);
    }

    /// Takes up a shutdown.
    ///
    /// DIVERGES(upstream): a shutdown survives a restart of the process that handles it. Upstream
    /// forgets it in a restart, and admits pods again. ([W6])
    ///
    /// DIVERGES(upstream): a stop of the system that logind has not announced is one. The kubelet
    /// follows logind alone, and in such a stop its pods get neither a condition nor time.
    ///
    /// DIVERGES(upstream): so is an end of which notice is given. At logind's signal, pods get what
    /// is left of logind's delay; before it they get their grace.
    fn begin(
        &mut self,
        ending: &KnownEnding,
        journaled: Option<&Journaled>,
        facts: &mut Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) {
        // These facts may be a minute old. As far as is known, the kubelet was armed until now.
        if facts.kubelet.facts.as_ref().is_some_and(|facts| facts.lock_armed == Some(true)) {
            facts.kubelet.armed_at = Some(facts.clock.monotonic());
        }
        let found = facts.detected_for(ending.source);
        if found.mode == Mode::Observe {
            if !std::mem::replace(&mut self.observed, true) {
                super::observed::report(facts, out);
            }
            return;
        }
        self.deciding = false;
        let mut shutdown = Shutdown::new(ending, journaled, found, facts, others.disruptions);
        shutdown.start(facts, out, others);
        self.current = Some(shutdown);
    }

    /// Cancels the shutdown and reverts everything untrue on a node that lives on, whatever is
    /// under way: conditions first.
    ///
    /// DIVERGES(upstream): the agent reverts at once, while pods terminate. Upstream notices a
    /// cancel only after all pods have terminated. ([SD10])
    fn cancel(&mut self, why: &str, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        others.lock.take_again();
        report_cancelled(why, out);
        let last = self.status(others.disruptions, facts.clock.monotonic());
        out.status.shutdown = last.map(|last| ShutdownStatus { cancelled: true, ..last });
        self.leave(facts, out, others.disruptions);
        others.node.restore(facts);
    }

    /// Ends the cancelled shutdown: its marks are in question.
    fn leave(&mut self, facts: &Facts, out: &Out, disruptions: &mut Disruptions) {
        let Some(shutdown) = self.current.take() else { return };
        // An earlier process may have stopped pods that this one knows only by their marks.
        let asks = shutdown.origin.is_resumed() && facts.settings.runtime;
        disruptions.leave_shutdown(asks, facts, &out.calls);
    }

    /// Decides about the shutdown of this boot in the journal, once its source has reported that it
    /// does not go on.
    fn settle_journaled(&mut self, facts: &mut Facts, out: &mut Out, others: &mut Others<'_>) {
        let is_denied = |journaled: &mut Journaled| match journaled.source() {
            Source::Logind => facts.is_calm(),
            source if !facts.settings.notices.contains(&source) => true,
            // A source that does not answer any more keeps nothing waiting.
            source => facts.endings.denies(source) || facts.clock.reached(self.notice_until),
        };
        let journaled = self.journaled.take_if(is_denied);
        let Some(journaled) = journaled else { return };
        let source = journaled.source();
        if journaled.decide(facts, out, others.disruptions) {
            let why = match source {
                Source::Logind => "logind cancelled it while the agent was down".to_owned(),
                source => format!("{source} does not announce it any more"),
            };
            report_cancelled(&why, out);
        }
        self.deciding = others.disruptions.is_deciding(facts);
        if !self.deciding {
            others.node.restore(facts);
        }
    }

    /// Whether the node is announced as drained, or is to be.
    pub(in super::super) fn is_drained(&self) -> bool {
        let release = self.current.as_ref().map(|shutdown| &shutdown.release);
        matches!(release, Some(Release::Drained(_)))
    }

    /// The mode of the shutdown that goes on.
    pub(in super::super) fn mode(&self) -> Option<Detected> {
        self.current.as_ref().map(|shutdown| shutdown.mode.found)
    }

    /// The report about the shutdown that goes on.
    pub(in super::super) fn status(
        &self,
        disruptions: &Disruptions,
        now: Duration,
    ) -> Option<ShutdownStatus> {
        self.current.as_ref().map(|shutdown| shutdown.status(disruptions, now))
    }
}

/// How long before an end of which notice is given a shutdown begins.
pub(super) fn takes(facts: &Facts) -> Duration {
    facts.wanted_delay().saturating_add(AHEAD)
}

/// Reports that a shutdown was cancelled.
fn report_cancelled(why: &str, out: &mut Out) {
    let text = format!("the shutdown is cancelled: {why}; pods that were deleted stay deleted");
    out.calls.log(true, None, text.clone());
    out.emit_event(false, CANCELLED, text);
}
