//! Follows logind, the API and the journal: begins, resumes, extends and cancels the shutdown.

use std::time::Duration;

use super::super::delay_lock::{CHECK_LASTS, DelayLock};
use super::super::disruptions::Disruptions;
use super::super::facts::{Facts, News, Situation};
use super::super::mode::Detected;
use super::super::node::NodeWrites;
use super::super::notices::CANCELLED;
use super::super::out::Out;
use super::super::status::ShutdownStatus;
use super::journaled::Journaled;
use super::run::Begin;
use super::{Origin, Release, Shutdown};
use crate::shutdown::Mode;

/// The shutdown, if one goes on, and what may lead to one.
#[derive(Clone, Debug)]
pub(in super::super) struct Shutdowns {
    pub(in super::super) current: Option<Shutdown>,
    /// The shutdown of this boot in the journal, until logind reports whether it goes on.
    journaled: Option<Journaled>,
    /// Whether the marks of a journaled shutdown that does not go on are being decided.
    deciding: bool,
    /// Whether a shutdown is in progress that the agent only observes, and has reported.
    observed: bool,
    /// When a shutdown was last cancelled.
    cancelled_at: Option<Duration>,
}

/// The parts that a shutdown changes when it begins or ends.
pub(in super::super) struct Others<'a> {
    pub(in super::super) node: &'a mut NodeWrites,
    pub(in super::super) lock: &'a mut DelayLock,
    pub(in super::super) disruptions: &'a mut Disruptions,
}

impl Shutdowns {
    pub(in super::super) fn new(journaled: Option<Journaled>) -> Self {
        Self { current: None, journaled, deciding: false, observed: false, cancelled_at: None }
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
                News::Announced(announcement) => {
                    let begin = Begin::heard(announcement);
                    self.announced(&begin, facts, out, others);
                }
                News::Cancelled => {
                    self.observed = false;
                    if self.current.is_some() {
                        self.cancel("logind says so", facts, out, others);
                    } else {
                        self.cancelled_at = Some(facts.clock.monotonic());
                        others.lock.take_again();
                    }
                }
                News::SystemStops => self.system_stops(facts, out, others),
                News::LogindRead { restarted } => {
                    self.logind_read(*restarted, facts, out, others);
                }
            }
        }
        self.settle_journaled(facts, out, others);
    }

    fn announced(
        &mut self,
        begin: &Begin,
        facts: &mut Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) {
        if let Some(shutdown) = &self.current {
            if !shutdown.window.is_long_over(facts.clock.monotonic()) {
                out.calls.log(false, None, "a second signal of the same shutdown is ignored");
                return;
            }
            out.calls.log(true, None, "a new shutdown, though the last one is not over");
            self.leave(facts, out, others.disruptions);
        }
        // A new signal proves that the shutdown of the journal was cancelled. Its marks still
        // stand.
        if let Some(journaled) = self.journaled.take() {
            journaled.marked().for_each(|(pod, at)| others.disruptions.remove(pod, at));
        }
        self.begin(begin, facts, out, others);
    }

    /// Takes up a stop of the system that logind has not announced.
    ///
    /// DIVERGES(upstream): the kubelet follows logind alone. In such a stop its pods get neither a
    /// condition nor time.
    fn system_stops(&mut self, facts: &mut Facts, out: &mut Out, others: &mut Others<'_>) {
        let now = facts.clock.monotonic();
        let goes_on =
            self.current.as_ref().is_some_and(|shutdown| !shutdown.window.is_long_over(now));
        if !goes_on && self.journaled.is_none() {
            self.announced(&Begin::unannounced(), facts, out, others);
        }
    }

    fn logind_read(
        &mut self,
        restarted: bool,
        facts: &mut Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) {
        let now = facts.clock.monotonic();
        let preparing = facts.logind.is_preparing();
        self.observed &= preparing;
        let Some(shutdown) = &self.current else {
            let echo = self.cancelled_at.is_some_and(|at| now < at + CHECK_LASTS);
            if preparing && !echo && self.journaled.is_none() && !self.deciding && !self.observed {
                out.calls.log(true, None, "logind is shutting down, and no signal arrived");
                let read = facts.logind.state.as_ref().and_then(|state| state.delay);
                self.begin(&Begin::found(read), facts, out, others);
            } else if preparing && echo {
                facts.logind.prepares(false);
            }
            return;
        };
        if preparing || shutdown.origin == Origin::Unannounced {
            return;
        }
        // DIVERGES(upstream): a shutdown that vanished counts as cancelled. Upstream receives no
        // signal of it, and its node stays not ready. ([LD7], [W13])
        if restarted {
            self.cancel("logind was restarted, and its shutdown is gone", facts, out, others);
        } else if shutdown.window.elapsed(now) >= CHECK_LASTS {
            self.cancel("logind is not shutting down any more", facts, out, others);
        } else {
            facts.logind.prepares(true);
        }
    }

    /// Takes up a shutdown: P0.
    fn begin(&mut self, begin: &Begin, facts: &mut Facts, out: &mut Out, others: &mut Others<'_>) {
        // These facts may be a minute old. As far as is known, the kubelet was armed until now.
        if facts.kubelet.facts.as_ref().is_some_and(|facts| facts.lock_armed == Some(true)) {
            facts.kubelet.armed_at = Some(facts.clock.monotonic());
        }
        let found = facts.detected();
        if found.mode == Mode::Observe {
            if !std::mem::replace(&mut self.observed, true) {
                super::observed::report(facts, out);
            }
            return;
        }
        self.deciding = false;
        let mut shutdown = Shutdown::new(begin, found, facts, others.disruptions);
        shutdown.start(facts, out, others);
        self.current = Some(shutdown);
    }

    /// Cancels the shutdown and reverts everything untrue on a node that lives on, whatever is
    /// under way: conditions first.
    ///
    /// DIVERGES(upstream): the agent reverts at once, while pods terminate. Upstream notices a
    /// cancel only after all pods have terminated. ([SD10])
    fn cancel(&mut self, why: &str, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        self.cancelled_at = Some(facts.clock.monotonic());
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
        let asks = shutdown.origin == Origin::Resumed && facts.settings.runtime;
        disruptions.leave_shutdown(asks, facts, &out.calls);
    }

    /// Decides about the shutdown of this boot in the journal, once logind has reported whether it
    /// goes on.
    ///
    /// DIVERGES(upstream): a shutdown survives a restart of the process that handles it. Upstream
    /// forgets it in a restart, and admits pods again. ([W6])
    fn settle_journaled(&mut self, facts: &mut Facts, out: &mut Out, others: &mut Others<'_>) {
        if self.deciding && !others.disruptions.is_deciding(facts) {
            self.deciding = false;
            others.node.restore(facts);
        }
        if facts.logind.state.is_none() {
            return;
        }
        let Some(journaled) = self.journaled.take() else { return };
        if facts.logind.is_preparing() {
            self.begin(&Begin::resumed(journaled), facts, out, others);
            return;
        }
        if journaled.decide(facts, out, others.disruptions) {
            report_cancelled("logind cancelled it while the agent was down", out);
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

/// Reports that a shutdown was cancelled.
fn report_cancelled(why: &str, out: &mut Out) {
    let text = format!("the shutdown is cancelled: {why}; pods that were deleted stay deleted");
    out.calls.log(true, None, text.clone());
    out.emit_event(false, CANCELLED, text);
}
