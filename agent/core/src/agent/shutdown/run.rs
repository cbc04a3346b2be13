//! Starts a shutdown, follows the mode of its node, and advances its steps. ([AP11])

use std::time::Duration;

use epilogue_common::announcement::Announcement as NodeSays;

use super::super::disruptions::Disruptions;
use super::super::endings::KnownEnding;
use super::super::facts::Facts;
use super::super::mode::Detected;
use super::super::node::NodeWrites;
use super::super::notices::BEGUN;
use super::super::out::Out;
use super::super::refusals::RETRIES_FOR;
use super::super::writer::Recorded;
use super::exit_check::send_exit_checks;
use super::follow::Others;
use super::journaled::Journaled;
use super::marks::send_reads;
use super::reports::send_inspects;
use super::window::Window;
use super::{KUBELET_GONE, ModeTaken, Origin, Release, Shutdown, Summary, Work, is_marking};
use crate::protocol::ending::Source;
use crate::protocol::journal::Record;
use crate::shutdown::Mode;
use crate::shutdown::budget::Step;
use crate::shutdown::candidates::Scope;
use crate::termination::progress::PodTermination;

/// When an armed kubelet that released its lock and left pods will do nothing more. ([AP16])
const ASSIST_PROVES_ITSELF: Duration = Duration::from_secs(2);
/// A kubelet that lives again for this long terminates pods itself.
const KUBELET_BACK: Duration = Duration::from_secs(3);
/// The time for marks after a late switch to Replace.
const LATE_MARKS: Duration = Duration::from_secs(1);

/// The pods that a shutdown in this mode covers.
pub(super) fn scope(found: Detected, facts: &Facts) -> Scope {
    Scope {
        // Where nothing terminates pods, only those are marked that cannot survive.
        mode: if found.marks_only { Mode::Assist } else { found.mode },
        own_pod: facts.settings.own_pod.clone(),
        priority_max: facts.settings.priority_max,
        bare_pods: facts.settings.bare_pods,
    }
}

impl Shutdown {
    /// A shutdown of this mode, which takes over the marks of a cancelled one. One of the journal
    /// keeps its kind, and the time that it was given.
    pub(super) fn new(
        ending: &KnownEnding,
        journaled: Option<&Journaled>,
        mut found: Detected,
        facts: &Facts,
        disruptions: &mut Disruptions,
    ) -> Self {
        let now = facts.clock.now();
        let origin = match journaled {
            Some(_) => Origin::Resumed(ending.source),
            None => Origin::Announced(ending.source),
        };
        if let Some(journaled) = journaled
            && found.mode != Mode::Substitute
            && journaled.mode != Mode::Observe
        {
            // It keeps its mode; Assist starts no terminations after a restart. ([AP18])
            found.mode = journaled.mode;
            found.marks_only |=
                journaled.mode != Mode::Assist && facts.settings.priority_groups.is_none();
        }
        if ending.source == Source::Systemd {
            // systemd stops the kubelet and the containers too. There is no time for more.
            let why = "systemd stops the system, and logind did not announce it";
            found = Detected { mode: Mode::Assist, marks_only: true, why };
        }
        let head_start = journaled.map_or(Duration::ZERO, |it| now.boot.saturating_sub(it.at));
        let mode = ModeTaken { found, since: Duration::ZERO, is_final: false };
        let left = ending.at.saturating_sub(now.monotonic);
        let granted = head_start.saturating_add(left);
        let granted = journaled.map_or(granted, |it| it.granted.min(granted));
        let mut window = Window::new(now.monotonic, head_start, granted);
        window.set_ends(&mode, facts);
        let mut shutdown = Self {
            since: journaled.map_or(now.wall, |it| it.wall),
            kind: journaled.map_or(&ending.kind, |it| &it.kind).clone(),
            origin,
            window,
            mode,
            order: Vec::new(),
            present: None,
            intent_mark: 0,
            work: Work {
                step: Step::Intent,
                stage: None,
                deletions_over: false,
                progress: false,
                inspected: false,
            },
            release: Release::Holding,
            summary: Summary::default(),
        };
        disruptions.begin_shutdown();
        if let Some(journaled) = journaled {
            journaled.restore(&mut shutdown, disruptions);
        }
        shutdown
    }

    /// Keeps to the end that counts now: a notice that has moved, or logind's delay that follows.
    pub(super) fn bound(&mut self, ending: &KnownEnding, facts: &Facts) {
        if !self.origin.source().gives_notice() {
            return;
        }
        // logind puts off no end, but gives time once that of the notice is over.
        let now = facts.clock.monotonic();
        let is_over = self.window.is_over(now);
        if self.window.moves_to(ending.at, ending.source.gives_notice() || is_over) {
            if is_over {
                // What is left gets the time that it needs anew.
                self.mode.since = self.window.elapsed(now);
            }
            self.window.set_ends(&self.mode, facts);
        }
    }

    /// Enlists the pods, and announces the shutdown in the journal, on the node and to people.
    pub(super) fn start(&mut self, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        let Others { node, disruptions, .. } = others;
        out.refusals.begin_shutdown(self.retries_until());
        self.enlist_all(facts, disruptions);
        if !self.origin.is_resumed() {
            self.write_intent(facts, out, disruptions);
        }
        if !self.is_released() {
            self.announce(facts, node);
        }
        self.report_begun(out, disruptions);
    }

    /// Until when a refusal may pass. A deletion waits for its pod's mark, so the mark is given up
    /// while there is time to delete. The runtime's stop waits for nothing: its mark and phase are
    /// worth an attempt until the end.
    fn retries_until(&self) -> Duration {
        let stops = self.mode.found.mode == Mode::Substitute;
        let until = if stops { self.window.ends.end } else { self.window.ends.kill };
        self.window.at(until.min(RETRIES_FOR))
    }

    /// Writes the intended marks and terminations to the journal before they are sent.
    fn write_intent(&mut self, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        let since = facts.clock.monotonic();
        let mut records = vec![Record::Begun {
            boot_id: facts.settings.boot_id.clone(),
            at: facts.clock.now().boot,
            wall: self.since,
            granted: self.window.granted,
            mode: self.mode.found.mode,
            kind: self.kind.clone(),
            source: self.origin.source(),
        }];
        let mut recorded = Vec::new();
        for uid in &self.order {
            let termination = disruptions.covering(uid).filter(|it| it.mark.write.is_open());
            let Some(termination) = termination else { continue };
            recorded.push((uid, termination.mark.at));
            records.push(termination.mark_intent());
        }
        self.intent_mark = out.journal.append(records);
        for (uid, at) in recorded {
            if let Some(entry) = disruptions.get_mut(uid) {
                entry.recorded = Some(Recorded { at, since, until: self.intent_mark });
            }
        }
    }

    /// Announces the shutdown on the Node object.
    pub(super) fn announce(&self, facts: &Facts, node: &mut NodeWrites) {
        let boot_id = facts.settings.boot_id.clone();
        node.announce(&NodeSays::ShuttingDown { boot_id, since: self.since });
        // Controllers replace at once what ends here, and a kubelet that goes down refuses it.
        if !self.mode.found.marks_only {
            node.taint(true);
        }
    }

    fn report_begun(&self, out: &mut Out, disruptions: &Disruptions) {
        let kind = self.kind.as_ref();
        let kind = kind.map_or("shutdown".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        let taken_up = if self.origin.is_resumed() { " (taken up after a restart)" } else { "" };
        let source = self.origin.source();
        let notice =
            if source.gives_notice() { format!(", as {source} says") } else { String::new() };
        let marks_only = if self.mode.found.marks_only { ", marks only" } else { "" };
        let text = format!(
            "{kind}{notice}{taken_up}: mode {:?}{marks_only}, because {}; {} s granted, \
             {} candidates, {} to mark",
            self.mode.found.mode,
            self.mode.found.why,
            self.window.granted.as_secs_f64(),
            disruptions.covered().count(),
            disruptions.covered().filter(|termination| termination.mark.write.is_open()).count(),
        );
        out.announce(false, BEGUN, text);
    }

    /// Advances the shutdown.
    pub(in super::super) fn advance(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) {
        if self.is_released() {
            let disruptions = &mut *others.disruptions;
            send_reads(facts, out, disruptions);
            self.send_marks(facts, out, disruptions);
            send_inspects(facts, out, disruptions);
            self.send_fails(facts, out, disruptions);
            self.note_reported(facts, disruptions);
            return;
        }
        self.window.note_silence(&self.mode, out.status.api_reachable, facts);
        if self.may_end(&facts.clock) {
            self.reconsider_mode(facts, out, others);
        }
        loop {
            self.advance_steps(facts, out, others.disruptions);
            self.note_reported(facts, others.disruptions);
            if !self.advance_release(facts, out, others) {
                return;
            }
        }
    }

    /// Advances the steps as far as they get now.
    fn advance_steps(&mut self, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        let durable = out.journal.is_durable(self.intent_mark);
        loop {
            let step = self.step_now(disruptions, &facts.clock, durable);
            self.work.step = self.work.step.max(step);
            self.advance_step(facts, out, disruptions);
            if self.step_now(disruptions, &facts.clock, durable) <= self.work.step {
                return;
            }
        }
    }

    fn advance_step(&mut self, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        let step = self.work.step;
        send_reads(facts, out, disruptions);
        send_exit_checks(facts, out, disruptions);
        if step > Step::Intent {
            self.send_marks(facts, out, disruptions);
            self.note_marked(facts, disruptions);
        }
        if step >= Step::Kill {
            self.advance_groups(facts, out, disruptions);
        }
        if step >= Step::LastWrites {
            self.inspect_the_rest(facts, disruptions);
        }
        send_inspects(facts, out, disruptions);
        self.send_fails(facts, out, disruptions);
    }

    fn note_marked(&mut self, facts: &Facts, disruptions: &Disruptions) {
        if self.summary.marked_after.is_none() && !is_marking(disruptions) {
            self.summary.marked_after = Some(self.window.elapsed(facts.clock.monotonic()));
        }
    }

    fn note_reported(&mut self, facts: &Facts, disruptions: &Disruptions) {
        let mut terminations = disruptions.covered();
        let open = terminations.any(|it| it.is_awaited() || it.is_unacknowledged());
        if self.summary.reported_after.is_none() && !open && self.work.step > Step::Intent {
            self.summary.reported_after = Some(self.window.elapsed(facts.clock.monotonic()));
        }
    }

    /// Follows new facts about the kubelet until the first termination. After it, the mode changes
    /// only towards more work by the agent. ([AP16])
    fn reconsider_mode(&mut self, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        while let Some((next, for_good)) = self.other_mode(facts, others.disruptions) {
            self.change_mode(next, for_good, facts, out);
            self.enlist_all(facts, others.disruptions);
            self.announce(facts, others.node);
        }
    }

    /// The mode to change to, and whether it stays.
    fn other_mode(&self, facts: &Facts, disruptions: &Disruptions) -> Option<(Detected, bool)> {
        if self.origin.source() == Source::Systemd {
            return None;
        }
        let found = facts.detected_for(self.origin.source());
        let now = facts.clock.monotonic();
        let fresh = facts.kubelet.seen_at >= self.window.taken_up_at;
        let gone = facts.kubelet.gone_since.is_some_and(|at| {
            found.mode == Mode::Substitute && facts.clock.reached(at + KUBELET_GONE)
        });
        let early = self.window.elapsed(now) < ASSIST_PROVES_ITSELF;
        // Without a terminator no pod was terminated: the pods are the kubelet's when it is back.
        let idle = self.mode.found.marks_only && self.mode.found.mode == Mode::Assist;
        let learnt = fresh && (early || idle) && !self.mode.is_final && !self.origin.is_resumed();
        let stand_in = gone && self.mode.found.mode != Mode::Substitute;
        let differs =
            (found.mode, found.marks_only) != (self.mode.found.mode, self.mode.found.marks_only);
        let other = learnt && differs && found.mode != Mode::Observe;
        if stand_in || other {
            return Some((found, !other));
        }
        let back = self.mode.found.mode == Mode::Substitute
            && self.window.elapsed(now) < self.window.ends.last_writes
            && facts.kubelet.lives_since.is_some_and(|at| facts.clock.reached(at + KUBELET_BACK));
        let marks_only = facts.settings.priority_groups.is_none();
        let why = if back {
            // The kubelet would restart what the runtime stops, and has no lock. ([W6])
            "the kubelet is back"
        } else if self.kubelet_is_done(facts, disruptions) {
            "the kubelet gave its lock back and left pods running"
        } else {
            return None;
        };
        Some((Detected { mode: Mode::Replace, marks_only, why }, true))
    }

    fn kubelet_is_done(&self, facts: &Facts, disruptions: &Disruptions) -> bool {
        let now = facts.clock.monotonic();
        let may = self.mode.found.mode == Mode::Assist
            && !self.mode.found.marks_only
            && !self.origin.is_resumed();
        if !may || !facts.clock.reached(self.window.at(ASSIST_PROVES_ITSELF)) {
            return false;
        }
        let says_so = facts.node.as_ref().is_some_and(|view| view.kubelet_says_shutdown);
        let disarmed = facts.kubelet.facts.as_ref().is_some_and(|f| f.lock_armed == Some(false));
        let fresh = facts.kubelet.seen_at >= self.window.taken_up_at;
        let left = disruptions.covered().any(PodTermination::is_awaited);
        let time = self.window.elapsed(now) < self.window.ends.last_writes;
        facts.kubelet.lives()
            && disarmed
            && fresh
            && !says_so
            && !self.work.progress
            && left
            && time
    }

    fn change_mode(&mut self, found: Detected, for_good: bool, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let text =
            format!("mode {:?} becomes {:?}: {}", self.mode.found.mode, found.mode, found.why);
        out.calls.log(true, None, text);
        self.mode.found = found;
        self.mode.since = self.window.elapsed(now);
        self.mode.is_final |= for_good;
        self.work.deletions_over = false;
        self.work.stage = None;
        self.window.set_ends(&self.mode, facts);
        out.refusals.retry_until(self.retries_until());
        // Marks that are needed only now get their time too.
        if self.work.step > Step::PreMark {
            self.window.ends.pre_mark =
                self.window.ends.pre_mark.max(self.window.elapsed(now) + LATE_MARKS);
            self.work.step = Step::PreMark;
        }
    }
}
