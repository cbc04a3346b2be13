//! Starts a shutdown, follows the mode of its node, and advances its steps. ([AP11])

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::announcement::Announcement as NodeSays;
use jiff::Timestamp;

use super::super::delay_lock::DelayLock;
use super::super::facts::Facts;
use super::super::mode::Detected;
use super::super::node::NodeWrites;
use super::super::notices::BEGUN;
use super::super::out::Out;
use super::super::refusals::RETRIES_FOR;
use super::journaled::Journaled;
use super::{KUBELET_GONE, Recorded, Release, Shutdown};
use crate::pod::{PodRef, PodUid};
use crate::protocol::event::{Announcement, ShutdownKind};
use crate::protocol::journal::Record;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::shutdown::budget::{
    Budget, GRANTED_DEFAULT, Step, Timetable, assist_hold_max, wanted_delay,
};
use crate::shutdown::candidates::Scope;
use crate::termination::progress::PodTermination;
use crate::time_span::TimeSpan;

/// When an armed kubelet that released its lock and left pods will do nothing more. ([AP16])
const ASSIST_PROVES_ITSELF: Duration = Duration::from_secs(2);
/// A kubelet that lives again for this long terminates pods itself.
const KUBELET_BACK: Duration = Duration::from_secs(3);
/// The time for marks after a late switch to Replace.
const LATE_MARKS: Duration = Duration::from_secs(1);
/// The time for a stop of the system that logind has not announced: nothing delays it.
const UNANNOUNCED_LASTS: Duration = Duration::from_secs(2);

/// How the agent learnt of a shutdown.
#[derive(Clone, Debug)]
pub(super) struct Begin {
    granted: Option<Duration>,
    kind: Option<ShutdownKind>,
    journaled: Option<Journaled>,
    unannounced: bool,
}

impl Begin {
    /// By logind's signal.
    pub(super) fn heard(announcement: &Announcement) -> Self {
        let Announcement { granted, kind } = announcement.clone();
        Self { granted, kind, journaled: None, unannounced: false }
    }

    /// By logind's property: there was no signal, or the agent was not there to receive it.
    pub(super) fn found(granted: Option<Duration>) -> Self {
        Self { granted, kind: None, journaled: None, unannounced: false }
    }

    /// By systemd's state at our SIGTERM. logind announced nothing.
    pub(super) fn unannounced() -> Self {
        let granted = Some(UNANNOUNCED_LASTS);
        Self { granted, kind: None, journaled: None, unannounced: true }
    }

    /// By the journal.
    pub(super) fn resumed(journaled: Journaled) -> Self {
        let kind = journaled.kind.clone();
        let granted = Some(journaled.granted);
        Self { granted, kind, journaled: Some(journaled), unannounced: false }
    }
}

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
    /// A shutdown of this mode, which takes over the marks of a cancelled one.
    pub(super) fn new(
        begin: &Begin,
        mut found: Detected,
        carried: BTreeMap<PodUid, (PodRef, Timestamp)>,
        facts: &Facts,
    ) -> Self {
        let now = facts.clock.now();
        let granted = begin.granted.or(facts.logind.granted).unwrap_or(GRANTED_DEFAULT);
        let budget = Budget::of(granted);
        let journaled = begin.journaled.as_ref();
        if let Some(journaled) = journaled
            && found.mode != Mode::Substitute
            && journaled.mode != Mode::Observe
        {
            // It keeps its mode; Assist starts no terminations after a restart. ([AP18])
            found.mode = journaled.mode;
            found.marks_only |=
                journaled.mode != Mode::Assist && facts.settings.priority_groups.is_none();
        }
        if begin.unannounced {
            // systemd stops the kubelet and the containers too. There is no time for more.
            let why = "systemd stops the system, and logind did not announce it";
            found = Detected { mode: Mode::Assist, marks_only: true, why };
        }
        let mut shutdown = Self {
            taken_up_at: now.monotonic,
            head_start: journaled.map_or(Duration::ZERO, |it| now.boot.saturating_sub(it.at)),
            since: journaled.map_or(now.wall, |it| it.wall),
            kind: begin.kind.clone(),
            granted,
            found,
            resumed: journaled.is_some(),
            unannounced: begin.unannounced,
            ends: budget.timetable(),
            margin: budget.margin,
            terminations: BTreeMap::new(),
            order: Vec::new(),
            carried,
            intent_mark: 0,
            recorded: BTreeMap::new(),
            exited: BTreeSet::new(),
            present: None,
            mode_since: Duration::ZERO,
            silence: Duration::ZERO,
            silent_since: None,
            step: Step::Intent,
            stage: None,
            deletions_over: false,
            mode_is_final: false,
            progress: false,
            inspected: false,
            drained: false,
            release: Release::Holding,
            marked_after: None,
            reported_after: None,
            released_after: None,
            unreported_at_release: None,
            left_at_release: BTreeMap::new(),
            volumes_at_release: None,
            volumes_awaited: false,
        };
        shutdown.set_times(facts);
        if let Some(journaled) = journaled {
            journaled.restore(&mut shutdown);
        }
        shutdown
    }

    /// Sets the time limits, because others wait for the lock. In Assist the agent holds it no
    /// longer than the sum of the kubelet's periods and a margin. In the other modes it holds it no
    /// longer than the priority groups and their reports need. Time in which the API gave no answer
    /// does not count. ([AP13])
    fn set_times(&mut self, facts: &Facts) {
        let silence = self.silence_until(facts.clock.monotonic());
        let groups = facts.priority_groups();
        let groups = groups.filter(|_| self.found.mode != Mode::Assist);
        let wanted = groups.map(|it| self.mode_since + silence + wanted_delay(Some(it), None));
        let budget = Budget::of(wanted.map_or(self.granted, |wanted| wanted.min(self.granted)));
        let mut ends = Timetable { pre_mark: self.ends.pre_mark, ..budget.timetable() };
        let period = facts.kubelet.facts.as_ref().and_then(KubeletFacts::shutdown_period);
        if self.found.mode == Mode::Assist
            && let Some(period) = period.filter(|period| !period.is_zero())
        {
            let granted = TimeSpan::from_secs(self.granted.as_secs().max(1));
            ends.end = ends.end.min(assist_hold_max(period.saturating_add(silence), granted));
            ends.last_writes = ends.end.saturating_sub(budget.last_writes);
            ends.kill = ends.kill.min(ends.last_writes);
        }
        self.ends = ends;
    }

    fn silence_until(&self, now: Duration) -> Duration {
        self.silence + self.silent_since.map_or(Duration::ZERO, |at| now.saturating_sub(at))
    }

    /// Counts the time in which the API gives no answer, by which the shutdown may take longer.
    fn note_silence(&mut self, facts: &Facts, out: &Out) {
        let now = facts.clock.monotonic();
        if out.status.api_reachable && self.silent_since.is_none() {
            return;
        }
        self.silence = self.silence_until(now);
        self.silent_since = (!out.status.api_reachable).then_some(now);
        self.set_times(facts);
    }

    /// Enlists the pods, and announces the shutdown in the journal, on the node and to people.
    pub(super) fn start(&mut self, facts: &Facts, out: &mut Out, node: &mut NodeWrites) {
        out.refusals.begin_shutdown(self.retries_until());
        self.enlist_all(facts);
        if !self.resumed {
            self.write_intent(facts, out);
        }
        if !self.is_released() {
            self.announce(facts, node);
        }
        self.report_begun(out);
    }

    /// Until when a refusal may pass. A deletion waits for its pod's mark, so the mark is given up
    /// while there is time to delete. The runtime's stop waits for nothing: its mark and phase are
    /// worth an attempt until the end.
    fn retries_until(&self) -> Duration {
        let stops = self.found.mode == Mode::Substitute;
        let until = if stops { self.ends.end } else { self.ends.kill };
        self.at(until.min(RETRIES_FOR))
    }

    /// Writes the intended marks and terminations to the journal before they are sent.
    fn write_intent(&mut self, facts: &Facts, out: &mut Out) {
        let since = facts.clock.monotonic();
        let mut records = vec![Record::Begun {
            boot_id: facts.settings.boot_id.clone(),
            at: facts.clock.now().boot,
            wall: self.since,
            granted: self.granted,
            mode: self.found.mode,
            kind: self.kind.clone(),
        }];
        for uid in &self.order {
            let termination = self.terminations.get(uid).filter(|it| it.mark.is_open());
            let Some(termination) = termination else { continue };
            let at = termination.marked_at;
            self.recorded.insert(uid.clone(), Recorded { at, since, until: 0 });
            records.push(termination.mark_intent());
        }
        self.intent_mark = out.journal.append(records);
        for recorded in self.recorded.values_mut() {
            recorded.until = self.intent_mark;
        }
    }

    /// Announces the shutdown on the Node object.
    pub(super) fn announce(&self, facts: &Facts, node: &mut NodeWrites) {
        let boot_id = facts.settings.boot_id.clone();
        node.announce(&NodeSays::ShuttingDown { boot_id, since: self.since });
        // Controllers replace at once what ends here, and a kubelet that goes down refuses it.
        if !self.found.marks_only {
            node.taint(true);
        }
    }

    fn report_begun(&self, out: &mut Out) {
        let kind = self.kind.as_ref();
        let kind = kind.map_or("shutdown".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        let taken_up = if self.resumed { " (taken up after a restart)" } else { "" };
        let marks_only = if self.found.marks_only { ", marks only" } else { "" };
        let text = format!(
            "{kind}{taken_up}: mode {:?}{marks_only}, because {}; {} s granted, {} candidates, \
             {} to mark",
            self.found.mode,
            self.found.why,
            self.granted.as_secs_f64(),
            self.terminations.len(),
            self.terminations.values().filter(|termination| termination.mark.is_open()).count(),
        );
        out.announce(false, BEGUN, text);
    }

    /// Advances the shutdown.
    pub(in super::super) fn advance(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        node: &mut NodeWrites,
        lock: &mut DelayLock,
    ) {
        if self.is_released() {
            self.send_reads(facts, out);
            self.send_marks(facts, out);
            self.send_inspects(facts, out);
            self.send_fails(facts, out);
            self.note_reported(facts);
            return;
        }
        self.note_silence(facts, out);
        if self.may_end(&facts.clock) {
            self.reconsider_mode(facts, out, node);
        }
        loop {
            self.advance_steps(facts, out);
            self.note_reported(facts);
            if !self.advance_release(facts, out, node, lock) {
                return;
            }
        }
    }

    /// Advances the steps as far as they get now.
    fn advance_steps(&mut self, facts: &Facts, out: &mut Out) {
        let durable = out.journal.is_durable(self.intent_mark);
        loop {
            self.step = self.step.max(self.step_now(&facts.clock, durable));
            self.advance_step(self.step, facts, out);
            if self.step_now(&facts.clock, durable) <= self.step {
                return;
            }
        }
    }

    fn advance_step(&mut self, step: Step, facts: &Facts, out: &mut Out) {
        self.send_reads(facts, out);
        self.send_exit_checks(facts, out);
        if step > Step::Intent {
            self.send_marks(facts, out);
            self.note_marked(facts);
        }
        if step >= Step::Kill {
            self.advance_groups(facts, out);
        }
        if step >= Step::LastWrites {
            self.inspect_the_rest(facts);
        }
        self.send_inspects(facts, out);
        self.send_fails(facts, out);
    }

    fn note_marked(&mut self, facts: &Facts) {
        if self.marked_after.is_none() && !self.is_marking() {
            self.marked_after = Some(self.elapsed(facts.clock.monotonic()));
        }
    }

    fn note_reported(&mut self, facts: &Facts) {
        let mut terminations = self.terminations.values();
        let open = terminations.any(|it| it.is_awaited() || it.is_unacknowledged());
        if self.reported_after.is_none() && !open && self.step > Step::Intent {
            self.reported_after = Some(self.elapsed(facts.clock.monotonic()));
        }
    }

    /// Follows new facts about the kubelet until the first termination. After it, the mode changes
    /// only towards more work by the agent. ([AP16])
    fn reconsider_mode(&mut self, facts: &Facts, out: &mut Out, node: &mut NodeWrites) {
        while let Some((next, for_good)) = self.other_mode(facts) {
            self.change_mode(next, for_good, facts, out);
            self.announce(facts, node);
        }
    }

    /// The mode to change to, and whether it stays.
    fn other_mode(&self, facts: &Facts) -> Option<(Detected, bool)> {
        if self.unannounced {
            return None;
        }
        let found = facts.detected();
        let now = facts.clock.monotonic();
        let fresh = facts.kubelet.seen_at >= self.taken_up_at;
        let gone = facts.kubelet.gone_since.is_some_and(|at| {
            found.mode == Mode::Substitute && facts.clock.reached(at + KUBELET_GONE)
        });
        let early = self.elapsed(now) < ASSIST_PROVES_ITSELF;
        // Without a terminator no pod was terminated: the pods are the kubelet's when it is back.
        let idle = self.found.marks_only && self.found.mode == Mode::Assist;
        let learnt = fresh && (early || idle) && !self.mode_is_final && !self.resumed;
        let stand_in = gone && self.found.mode != Mode::Substitute;
        let differs = (found.mode, found.marks_only) != (self.found.mode, self.found.marks_only);
        let other = learnt && differs && found.mode != Mode::Observe;
        if stand_in || other {
            return Some((found, !other));
        }
        let back = self.found.mode == Mode::Substitute
            && self.elapsed(now) < self.ends.last_writes
            && facts.kubelet.lives_since.is_some_and(|at| facts.clock.reached(at + KUBELET_BACK));
        let marks_only = facts.settings.priority_groups.is_none();
        let why = if back {
            // The kubelet would restart what the runtime stops, and has no lock. ([W6])
            "the kubelet is back"
        } else if self.kubelet_is_done(facts) {
            "the kubelet gave its lock back and left pods running"
        } else {
            return None;
        };
        Some((Detected { mode: Mode::Replace, marks_only, why }, true))
    }

    fn kubelet_is_done(&self, facts: &Facts) -> bool {
        let now = facts.clock.monotonic();
        let may = self.found.mode == Mode::Assist && !self.found.marks_only && !self.resumed;
        if !may || !facts.clock.reached(self.at(ASSIST_PROVES_ITSELF)) {
            return false;
        }
        let says_so = facts.node.as_ref().is_some_and(|view| view.kubelet_says_shutdown);
        let disarmed = facts.kubelet.facts.as_ref().is_some_and(|f| f.lock_armed == Some(false));
        let fresh = facts.kubelet.seen_at >= self.taken_up_at;
        let left = self.terminations.values().any(PodTermination::is_awaited);
        let time = self.elapsed(now) < self.ends.last_writes;
        facts.kubelet.lives() && disarmed && fresh && !says_so && !self.progress && left && time
    }

    fn change_mode(&mut self, found: Detected, for_good: bool, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let text = format!("mode {:?} becomes {:?}: {}", self.found.mode, found.mode, found.why);
        out.calls.log(true, None, text);
        self.found = found;
        self.mode_since = self.elapsed(now);
        self.mode_is_final |= for_good;
        self.deletions_over = false;
        self.stage = None;
        self.set_times(facts);
        out.refusals.retry_until(self.retries_until());
        // Marks that are needed only now get their time too.
        if self.step > Step::PreMark {
            self.ends.pre_mark = self.ends.pre_mark.max(self.elapsed(now) + LATE_MARKS);
            self.step = Step::PreMark;
        }
        self.enlist_all(facts);
    }
}
