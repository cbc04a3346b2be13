//! Begins a shutdown, follows the mode of its node, and advances its steps. ([AP11])

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::announcement::Announcement as NodeSays;

use super::Agent;
use super::journal_replay::JournaledShutdown;
use super::mode::{Detected, detect};
use super::notices::BEGUN;
use super::shutdown::{KUBELET_GONE, Recorded, Release, Shutdown};
use crate::pod::PodUid;
use crate::protocol::event::{Announcement, ShutdownKind};
use crate::protocol::journal::Record;
use crate::shutdown::Mode;
use crate::shutdown::budget::{
    Budget, GRANTED_DEFAULT, Step, Timetable, assist_hold_max, wanted_delay,
};
use crate::shutdown::candidates::Scope;
use crate::termination::attempt::Pace;
use crate::termination::progress::PodTermination;
use crate::time_span::TimeSpan;

/// When an armed kubelet that released its lock and left pods will do nothing more. ([AP16])
const ASSIST_PROVES_ITSELF: Duration = Duration::from_secs(2);
/// A kubelet that lives again for this long terminates pods itself.
const KUBELET_BACK: Duration = Duration::from_secs(3);
/// The time for marks after a late switch to Replace.
const LATE_MARKS: Duration = Duration::from_secs(1);

/// How the agent learnt of a shutdown.
#[derive(Debug)]
pub(super) struct Begin {
    granted: Option<Duration>,
    kind: Option<ShutdownKind>,
    journaled: Option<JournaledShutdown>,
}

impl Begin {
    /// By logind's signal.
    pub(super) fn heard(announcement: Announcement) -> Self {
        Self { granted: announcement.granted, kind: announcement.kind, journaled: None }
    }

    /// By logind's property: there was no signal, or the agent was not there to receive it.
    pub(super) fn found(granted: Option<Duration>) -> Self {
        Self { granted, kind: None, journaled: None }
    }

    /// By the journal.
    fn resumed(journaled: JournaledShutdown) -> Self {
        Self {
            granted: Some(journaled.granted),
            kind: journaled.kind.clone(),
            journaled: Some(journaled),
        }
    }
}

impl Agent {
    /// The pods that the shutdown covers.
    pub(super) fn scope(&self, found: Detected) -> Scope {
        Scope {
            // Where nothing terminates pods, only those are marked that cannot survive.
            mode: if found.marks_only { Mode::Assist } else { found.mode },
            own_pod: self.settings.own_pod.clone(),
            priority_max: self.settings.priority_max,
            bare_pods: self.settings.bare_pods,
        }
    }

    fn detected(&self) -> Detected {
        let now = self.clock.monotonic();
        let armed_ago = self.kubelet.armed_at.map(|at| now.saturating_sub(at));
        detect(self.kubelet.facts.as_ref(), armed_ago, self.allowed())
    }

    /// A pod of the shutdown, and how its failed calls are repeated.
    pub(super) fn termination(&mut self, uid: &PodUid) -> Option<(&mut PodTermination, Pace)> {
        let shutdown = self.shutdown.as_mut()?;
        let pace = shutdown.pace(uid);
        Some((shutdown.terminations.get_mut(uid)?, pace))
    }

    /// Takes up the shutdown of the journal.
    pub(super) fn resume(&mut self, journaled: JournaledShutdown) {
        self.begin(&Begin::resumed(journaled));
    }

    /// Takes up a shutdown: P0.
    pub(super) fn begin(&mut self, begin: &Begin) {
        // These facts may be a minute old. As far as is known, the kubelet was armed until now.
        if self.kubelet.facts.as_ref().is_some_and(|facts| facts.lock_armed == Some(true)) {
            self.kubelet.armed_at = Some(self.clock.monotonic());
        }
        let mut found = self.detected();
        if found.mode == Mode::Observe {
            self.observe_shutdown();
            return;
        }
        if let Some(journaled) = &begin.journaled
            && found.mode != Mode::Substitute
            && journaled.mode != Mode::Observe
        {
            // It keeps its mode; Assist starts no terminations after a restart. ([AP18])
            found.mode = journaled.mode;
            found.marks_only |=
                journaled.mode != Mode::Assist && self.settings.priority_groups.is_none();
        }
        self.boot_recovery.forget();
        let mut shutdown = self.new_shutdown(begin, found);
        self.refusals.begin_shutdown(&shutdown);
        shutdown.carried = self.revoked_marks.hand_over();
        if let Some(journaled) = &begin.journaled {
            journaled.restore(&mut shutdown);
        }
        let released = shutdown.is_released();
        let resumed = shutdown.resumed;
        self.shutdown = Some(shutdown);
        self.enlist_all();
        if !resumed {
            self.write_intent();
        }
        if !released {
            self.announce_shutdown();
        }
        self.report_begun();
    }

    fn new_shutdown(&self, begin: &Begin, found: Detected) -> Shutdown {
        let now = self.clock.now();
        let granted = begin.granted.or(self.logind.granted).unwrap_or(GRANTED_DEFAULT);
        let budget = Budget::of(granted);
        let journaled = begin.journaled.as_ref();
        let shutdown = Shutdown {
            taken_up_at: now.monotonic,
            head_start: journaled.map_or(Duration::ZERO, |it| now.boot.saturating_sub(it.at)),
            since: journaled.map_or(now.wall, |it| it.wall),
            kind: begin.kind.clone(),
            granted,
            found,
            resumed: journaled.is_some(),
            ends: budget.timetable(),
            margin: budget.margin,
            terminations: BTreeMap::new(),
            order: Vec::new(),
            carried: BTreeMap::new(),
            intent_mark: 0,
            recorded: BTreeMap::new(),
            enlisted: false,
            mode_since: Duration::ZERO,
            step: Step::Intent,
            stage: None,
            deletions_over: false,
            mode_is_final: false,
            progress: false,
            inspected: false,
            release: Release::Holding,
            marked_after: None,
            reported_after: None,
            released_after: None,
            unreported_at_release: None,
            left_at_release: BTreeMap::new(),
        };
        self.timed(shutdown)
    }

    /// Sets the time limits, because others wait for the lock. In Assist the agent holds it no
    /// longer than the sum of the kubelet's periods and a margin. In the other modes it holds it no
    /// longer than the priority groups and their reports need. ([AP13])
    fn timed(&self, mut shutdown: Shutdown) -> Shutdown {
        let groups = self.settings.priority_groups.as_ref();
        let groups = groups.filter(|_| shutdown.found.mode != Mode::Assist);
        let wanted = groups.map(|it| shutdown.mode_since + wanted_delay(Some(it), None));
        let budget =
            Budget::of(wanted.map_or(shutdown.granted, |wanted| wanted.min(shutdown.granted)));
        let mut ends = Timetable { pre_mark: shutdown.ends.pre_mark, ..budget.timetable() };
        let period = self.kubelet.facts.as_ref().and_then(|facts| facts.shutdown_period);
        if shutdown.found.mode == Mode::Assist
            && let Some(period) = period.filter(|period| !period.is_zero())
        {
            let granted = TimeSpan::from_secs(shutdown.granted.as_secs().max(1));
            ends.end = ends.end.min(assist_hold_max(period, granted));
            ends.last_writes = ends.end.saturating_sub(budget.last_writes);
            ends.kill = ends.kill.min(ends.last_writes);
        }
        shutdown.ends = ends;
        shutdown
    }

    /// Writes the intended marks and terminations to the journal before they are sent.
    fn write_intent(&mut self) {
        let boot = self.clock.now().boot;
        let since = self.clock.monotonic();
        let Some(shutdown) = &mut self.shutdown else { return };
        let begun = Record::Begun {
            boot_id: self.settings.boot_id.clone(),
            at: boot,
            wall: shutdown.since,
            granted: shutdown.granted,
            mode: shutdown.found.mode,
            kind: shutdown.kind.clone(),
        };
        let mut records = vec![begun];
        for uid in &shutdown.order {
            let termination = shutdown.terminations.get(uid).filter(|it| it.mark.is_open());
            let Some(termination) = termination else {
                continue;
            };
            let at = termination.marked_at;
            shutdown.recorded.insert(uid.clone(), Recorded { at, since, until: 0 });
            records.push(termination.mark_intent());
        }
        shutdown.intent_mark = self.writer.append(records);
        for recorded in shutdown.recorded.values_mut() {
            recorded.until = shutdown.intent_mark;
        }
    }

    /// Announces the shutdown on the Node object.
    pub(super) fn announce_shutdown(&mut self) {
        let Some(shutdown) = &self.shutdown else { return };
        let boot_id = self.settings.boot_id.clone();
        self.node.announce(&NodeSays::ShuttingDown { boot_id, since: shutdown.since });
        if shutdown.found.mode == Mode::Replace && !shutdown.found.marks_only {
            self.node.taint(true);
        }
    }

    fn report_begun(&mut self) {
        let Some(shutdown) = &self.shutdown else { return };
        let kind = shutdown
            .kind
            .as_ref()
            .map_or("shutdown".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        let taken_up = if shutdown.resumed { " (taken up after a restart)" } else { "" };
        let marks_only = if shutdown.found.marks_only { ", marks only" } else { "" };
        let text = format!(
            "{kind}{taken_up}: mode {:?}{marks_only}, because {}; {} s granted, {} candidates, \
             {} to mark",
            shutdown.found.mode,
            shutdown.found.why,
            shutdown.granted.as_secs_f64(),
            shutdown.terminations.len(),
            shutdown.terminations.values().filter(|termination| termination.mark.is_open()).count(),
        );
        self.calls.log(false, None, text.clone());
        self.emit_event(false, BEGUN, text);
    }

    /// Advances the shutdown.
    pub(super) fn advance_shutdown(&mut self) {
        let Some(shutdown) = &self.shutdown else { return };
        if shutdown.is_released() {
            self.send_reads();
            self.send_marks();
            self.send_inspects();
            self.send_fails();
            self.note_reported();
            return;
        }
        if self.shutdown.as_ref().is_some_and(|shutdown| shutdown.may_end(&self.clock)) {
            self.reconsider_mode();
        }
        let Some(shutdown) = &mut self.shutdown else { return };
        let step = shutdown.step_now(&self.clock, self.writer.is_durable(shutdown.intent_mark));
        shutdown.step = shutdown.step.max(step);
        let step = shutdown.step;
        self.send_reads();
        self.send_exit_checks();
        if step > Step::Intent {
            self.send_marks();
            self.note_marked();
        }
        if step >= Step::Kill {
            self.advance_group_deletion();
        }
        if step >= Step::LastWrites {
            self.inspect_the_rest();
        }
        self.send_inspects();
        self.send_fails();
        self.note_reported();
        self.advance_release();
    }

    fn note_marked(&mut self) {
        let now = self.clock.monotonic();
        let Some(shutdown) = &mut self.shutdown else { return };
        if shutdown.marked_after.is_none() && !shutdown.is_marking() {
            shutdown.marked_after = Some(shutdown.elapsed(now));
        }
    }

    fn note_reported(&mut self) {
        let now = self.clock.monotonic();
        let Some(shutdown) = &mut self.shutdown else { return };
        let mut terminations = shutdown.terminations.values();
        let open = terminations.any(|it| it.is_awaited() || it.is_unacknowledged());
        if shutdown.reported_after.is_none() && !open && shutdown.step > Step::Intent {
            shutdown.reported_after = Some(shutdown.elapsed(now));
        }
    }

    /// Follows new facts about the kubelet until the first termination. After it, the mode changes
    /// only towards more work by the agent. ([AP16])
    fn reconsider_mode(&mut self) {
        let found = self.detected();
        let Some(shutdown) = &self.shutdown else { return };
        let now = self.clock.monotonic();
        let fresh = self.kubelet.seen_at > shutdown.taken_up_at;
        let gone = self.kubelet.gone_since.is_some_and(|at| {
            found.mode == Mode::Substitute && self.clock.reached(at + KUBELET_GONE)
        });
        let early = shutdown.elapsed(now) < ASSIST_PROVES_ITSELF;
        // Without a terminator no pod was terminated: the pods are the kubelet's when it is back.
        let idle = shutdown.found.marks_only && shutdown.found.mode == Mode::Assist;
        let learnt = fresh && (early || idle) && !shutdown.mode_is_final && !shutdown.resumed;
        let stand_in = gone && shutdown.found.mode != Mode::Substitute;
        let differs =
            (found.mode, found.marks_only) != (shutdown.found.mode, shutdown.found.marks_only);
        let other = learnt && differs && found.mode != Mode::Observe;
        let back = shutdown.found.mode == Mode::Substitute
            && shutdown.elapsed(now) < shutdown.ends.last_writes
            && self.kubelet.lives_since.is_some_and(|at| self.clock.reached(at + KUBELET_BACK));
        let next = if stand_in || other {
            Some(found)
        } else if back {
            // The kubelet would restart what the runtime stops, and has no lock. ([W6])
            let marks_only = self.settings.priority_groups.is_none();
            Some(Detected { mode: Mode::Replace, marks_only, why: "the kubelet is back" })
        } else if self.kubelet_is_done(now) {
            let why = "the kubelet gave its lock back and left pods running";
            let ends_pods = self.settings.priority_groups.is_some();
            Some(Detected { mode: Mode::Replace, marks_only: !ends_pods, why })
        } else {
            None
        };
        if let Some(found) = next {
            self.change_mode(found, !other);
        }
    }

    fn kubelet_is_done(&self, now: Duration) -> bool {
        let Some(shutdown) = &self.shutdown else { return false };
        let may =
            shutdown.found.mode == Mode::Assist && !shutdown.found.marks_only && !shutdown.resumed;
        if !may || !self.clock.reached(shutdown.at(ASSIST_PROVES_ITSELF)) {
            return false;
        }
        let says_so = self.node.view.as_ref().is_some_and(|view| view.kubelet_says_shutdown);
        let disarmed = self.kubelet.facts.as_ref().is_some_and(|f| f.lock_armed == Some(false));
        let fresh = self.kubelet.seen_at > shutdown.taken_up_at;
        let left = shutdown.terminations.values().any(PodTermination::is_awaited);
        let time = shutdown.elapsed(now) < shutdown.ends.last_writes;
        let lives = self.kubelet.lives();
        lives && disarmed && fresh && !says_so && !shutdown.progress && left && time
    }

    fn change_mode(&mut self, found: Detected, for_good: bool) {
        let now = self.clock.monotonic();
        let Some(mut shutdown) = self.shutdown.take() else { return };
        let text =
            format!("mode {:?} becomes {:?}: {}", shutdown.found.mode, found.mode, found.why);
        shutdown.found = found;
        shutdown.mode_since = shutdown.elapsed(now);
        shutdown.mode_is_final |= for_good;
        shutdown.deletions_over = false;
        shutdown.stage = None;
        let mut shutdown = self.timed(shutdown);
        // Marks that are needed only now get their time too.
        if shutdown.step > Step::PreMark {
            shutdown.ends.pre_mark = shutdown.ends.pre_mark.max(shutdown.elapsed(now) + LATE_MARKS);
            shutdown.step = Step::PreMark;
        }
        self.shutdown = Some(shutdown);
        self.calls.log(true, None, text);
        self.enlist_all();
        self.announce_shutdown();
    }
}
