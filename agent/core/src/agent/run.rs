//! One shutdown: its time, its pods, and which step it is in. (spec/node-agent.md §9.4)

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::announcement::Announcement as NodeSays;
use jiff::Timestamp;

use super::Agent;
use super::mode::{Detected, detect};
use super::notices::BEGUN;
use super::past::Past;
use super::release::Release;
use crate::ending::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::ending::clock::Clock;
use crate::ending::progress::Ending;
use crate::pod::PodUid;
use crate::protocol::action::PodRef;
use crate::protocol::event::{Announcement, ShutdownKind};
use crate::protocol::journal::Record;
use crate::shutdown::Mode;
use crate::shutdown::budget::{
    Budget, GRANTED_DEFAULT, Step, Timetable, assist_hold_max, wanted_delay,
};
use crate::shutdown::candidates::Scope;
use crate::time_span::TimeSpan;

/// An armed kubelet that gave its lock back with pods left does nothing more after this. (§8.3)
const ASSIST_PROVES_ITSELF: Duration = Duration::from_secs(2);
/// A kubelet that is gone for so long in a shutdown does not come back in time.
pub(super) const KUBELET_GONE: Duration = Duration::from_secs(3);
/// A kubelet that lives for so long again ends pods itself.
const KUBELET_BACK: Duration = Duration::from_secs(3);
/// Who switches to Replace late still sends its marks first.
const LATE_MARKS: Duration = Duration::from_secs(1);
/// After logind's time and this, a shutdown that was not carried out will not be. (§9.5)
const LONG_OVER: Duration = Duration::from_secs(30);

/// One shutdown.
#[derive(Debug)]
pub(super) struct Run {
    /// When it was taken up, and how much of its time had passed by then.
    pub(super) taken_up_at: Duration,
    pub(super) head_start: Duration,
    pub(super) since: Timestamp,
    pub(super) kind: Option<ShutdownKind>,
    pub(super) granted: Duration,
    pub(super) found: Detected,
    /// Taken up after a restart: there is no lock, and Assist does not turn into Replace.
    pub(super) resumed: bool,
    pub(super) ends: Timetable,
    pub(super) margin: Duration,
    pub(super) endings: BTreeMap<PodUid, Ending>,
    /// The pods in order of their marks' value.
    pub(super) order: Vec<PodUid>,
    /// Marks of the run before, taken over: the pod, and when it was marked.
    pub(super) carried: BTreeMap<PodUid, (PodRef, Timestamp)>,
    pub(super) intent_mark: u64,
    /// The pods whose marks are in the journal, or on their way to it.
    pub(super) recorded: BTreeMap<PodUid, Recorded>,
    /// Whether all pods that were there at the notice are part of it.
    pub(super) enlisted: bool,
    /// The time since the signal at which the mode was taken on.
    pub(super) mode_since: Duration,
    pub(super) step: Step,
    pub(super) stage: Option<super::kills::StageRun>,
    pub(super) kills_over: bool,
    /// The mode does not follow what is learnt any more: kills were sent, or it was switched.
    pub(super) mode_is_final: bool,
    pub(super) progress: bool,
    pub(super) inspected: bool,
    pub(super) release: Release,
    pub(super) condemned_after: Option<Duration>,
    pub(super) reported_after: Option<Duration>,
    pub(super) released_after: Option<Duration>,
    pub(super) unreported_at_release: Option<usize>,
    pub(super) left_at_release: super::left::Left,
}

/// A mark in the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    /// The time that it carries.
    pub(super) at: Timestamp,
    /// When it was handed in, on CLOCK_MONOTONIC, and what to ask the writer for.
    pub(super) since: Duration,
    pub(super) until: u64,
}

impl Recorded {
    /// One that is on the disk.
    pub(super) fn durable(at: Timestamp) -> Self {
        Self { at, since: Duration::ZERO, until: 0 }
    }
}

/// How a run is learnt of.
#[derive(Debug)]
pub(super) struct Begin {
    granted: Option<Duration>,
    kind: Option<ShutdownKind>,
    past: Option<Past>,
}

impl Begin {
    /// By logind's signal.
    pub(super) fn heard(announcement: Announcement) -> Self {
        Self { granted: announcement.granted, kind: announcement.kind, past: None }
    }

    /// By logind's property: there was no signal, or nobody to hear it.
    pub(super) fn found(granted: Option<Duration>) -> Self {
        Self { granted, kind: None, past: None }
    }

    /// By the journal.
    pub(super) fn resumed(past: Past) -> Self {
        Self { granted: Some(past.granted), kind: past.kind.clone(), past: Some(past) }
    }
}

impl Run {
    /// The time since the signal.
    pub(super) fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.taken_up_at) + self.head_start
    }

    /// The moment at which a time since the signal is reached; one in the past may be cut off.
    pub(super) fn at(&self, elapsed: Duration) -> Duration {
        (self.taken_up_at + elapsed).saturating_sub(self.head_start)
    }

    /// logind's time and a margin are over, and the machine still runs.
    pub(super) fn is_long_over(&self, now: Duration) -> bool {
        self.elapsed(now) > self.granted + LONG_OVER
    }

    pub(super) fn is_released(&self) -> bool {
        matches!(self.release, Release::Released)
    }

    /// Whether pods may still be ended: a kill begins only if its report can be waited for.
    pub(super) fn may_end(&self, clock: &Clock) -> bool {
        !matches!(self.release, Release::Unlocking | Release::Released)
            && !clock.reached(self.at(self.ends.last_writes))
    }

    /// Whether marks are still to be sent.
    pub(super) fn is_marking(&self) -> bool {
        self.endings.values().any(|ending| !ending.reported && ending.mark.is_open())
    }

    /// Whether the next step waits for marks: a refused one holds up its own pod alone.
    fn waits_for_marks(&self) -> bool {
        let waits = |mark: &Attempt| mark.is_open() && !mark.is_held_back();
        self.endings.values().any(|ending| !ending.reported && waits(&ending.mark))
    }

    /// How failed calls are repeated.
    pub(super) fn pace(&self, uid: &PodUid) -> Pace {
        let released = self.is_released();
        let wait_max = if released { WAIT_MAX } else { WAIT_MAX_HASTE };
        let latest = (!released).then(|| self.at(self.ends.end));
        Pace { wait_max, latest, salt: salt(&uid.0) }
    }

    /// The step: as far as the work is, and at least as far as the clock. (§9.8)
    fn step_now(&self, clock: &Clock, durable: bool) -> Step {
        let over = |end: Duration| clock.reached(self.at(end));
        if !durable && !over(self.ends.intent) {
            return Step::Intent;
        }
        if self.waits_for_marks() && !over(self.ends.pre_mark) {
            return Step::PreMark;
        }
        if !over(self.ends.kill) && !self.kills_over {
            return Step::Kill;
        }
        if !over(self.ends.last_writes) {
            return Step::Flush;
        }
        if over(self.ends.end) { Step::Release } else { Step::LastWrites }
    }
}

impl Agent {
    /// Which pods the run is about.
    pub(super) fn scope(&self, found: Detected) -> Scope {
        Scope {
            // Where nobody ends pods, only those are marked that cannot survive.
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

    /// Takes up a shutdown: P0.
    pub(super) fn begin(&mut self, begin: &Begin) {
        // The last look may be a minute old; the kubelet was armed until now, as far as is known.
        if self.kubelet.facts.as_ref().is_some_and(|facts| facts.lock_armed == Some(true)) {
            self.kubelet.armed_at = Some(self.clock.monotonic());
        }
        let mut found = self.detected();
        if found.mode == Mode::Observe {
            self.outbox.say(false, None, "the node shuts down; the agent observes");
            return;
        }
        if let Some(past) = &begin.past
            && found.mode != Mode::Substitute
            && past.mode != Mode::Observe
        {
            // What was begun is gone on with; Assist starts no kills after a restart. (§9.6)
            found.mode = past.mode;
            found.marks_only |= past.mode != Mode::Assist && self.settings.bands.is_none();
        }
        self.replays.forget();
        let mut run = self.new_run(begin, found);
        self.refusals.begin_run(&run);
        run.carried = self.clears.hand_over();
        if let Some(past) = &begin.past {
            past.restore(&mut run);
        }
        let released = run.is_released();
        let resumed = run.resumed;
        self.run = Some(run);
        self.enlist_all();
        if !resumed {
            self.write_intent();
        }
        if !released {
            self.announce_run();
        }
        self.say_begun();
    }

    fn new_run(&self, begin: &Begin, found: Detected) -> Run {
        let now = self.clock.now();
        let granted = begin.granted.or(self.logind.granted).unwrap_or(GRANTED_DEFAULT);
        let budget = Budget::of(granted);
        let past = begin.past.as_ref();
        let run = Run {
            taken_up_at: now.monotonic,
            head_start: past.map_or(Duration::ZERO, |past| now.boot.saturating_sub(past.at)),
            since: past.map_or(now.wall, |past| past.wall),
            kind: begin.kind.clone(),
            granted,
            found,
            resumed: past.is_some(),
            ends: budget.timetable(),
            margin: budget.margin,
            endings: BTreeMap::new(),
            order: Vec::new(),
            carried: BTreeMap::new(),
            intent_mark: 0,
            recorded: BTreeMap::new(),
            enlisted: false,
            mode_since: Duration::ZERO,
            step: Step::Intent,
            stage: None,
            kills_over: false,
            mode_is_final: false,
            progress: false,
            inspected: false,
            release: Release::Holding,
            condemned_after: None,
            reported_after: None,
            released_after: None,
            unreported_at_release: None,
            left_at_release: BTreeMap::new(),
        };
        self.timed(run)
    }

    /// In Assist the lock is held no longer than the kubelet's sum and a margin, in the other modes
    /// no longer than the bands and their reports want: others wait for it. (§9.4)
    fn timed(&self, mut run: Run) -> Run {
        let bands = self.settings.bands.as_ref().filter(|_| run.found.mode != Mode::Assist);
        let wanted = bands.map(|bands| run.mode_since + wanted_delay(Some(bands), None));
        let budget = Budget::of(wanted.map_or(run.granted, |wanted| wanted.min(run.granted)));
        let mut ends = Timetable { pre_mark: run.ends.pre_mark, ..budget.timetable() };
        let period = self.kubelet.facts.as_ref().and_then(|facts| facts.shutdown_period);
        if run.found.mode == Mode::Assist
            && let Some(period) = period.filter(|period| !period.is_zero())
        {
            let granted = TimeSpan::from_secs(run.granted.as_secs().max(1));
            ends.end = ends.end.min(assist_hold_max(period, granted));
            ends.last_writes = ends.end.saturating_sub(budget.last_writes);
            ends.kill = ends.kill.min(ends.last_writes);
        }
        run.ends = ends;
        run
    }

    /// Writes down what is going to be done, before it is.
    fn write_intent(&mut self) {
        let boot = self.clock.now().boot;
        let since = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let begun = Record::Begun {
            boot_id: self.settings.boot_id.clone(),
            at: boot,
            wall: run.since,
            granted: run.granted,
            mode: run.found.mode,
            kind: run.kind.clone(),
        };
        let mut records = vec![begun];
        for uid in &run.order {
            let Some(ending) = run.endings.get(uid).filter(|ending| ending.mark.is_open()) else {
                continue;
            };
            let at = ending.marked_at;
            run.recorded.insert(uid.clone(), Recorded { at, since, until: 0 });
            records.push(super::marks::intent(ending));
        }
        run.intent_mark = self.writer.append(records);
        for recorded in run.recorded.values_mut() {
            recorded.until = run.intent_mark;
        }
    }

    /// Says on the node's object what goes on.
    pub(super) fn announce_run(&mut self) {
        let Some(run) = &self.run else { return };
        let boot_id = self.settings.boot_id.clone();
        self.node.announce(&NodeSays::ShuttingDown { boot_id, since: run.since });
        if run.found.mode == Mode::Replace && !run.found.marks_only {
            self.node.taint(true);
        }
    }

    fn say_begun(&mut self) {
        let Some(run) = &self.run else { return };
        let kind = run
            .kind
            .as_ref()
            .map_or("shutdown".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        let taken_up = if run.resumed { " (taken up after a restart)" } else { "" };
        let marks_only = if run.found.marks_only { ", marks only" } else { "" };
        let text = format!(
            "{kind}{taken_up}: mode {:?}{marks_only}, because {}; {} s granted, {} candidates, \
             {} to mark",
            run.found.mode,
            run.found.why,
            run.granted.as_secs_f64(),
            run.endings.len(),
            run.endings.values().filter(|ending| ending.mark.is_open()).count(),
        );
        self.outbox.say(false, None, text.clone());
        self.tell(false, BEGUN, text);
    }

    /// Goes on with the shutdown.
    pub(super) fn run_on(&mut self) {
        let Some(run) = &self.run else { return };
        if run.is_released() {
            self.send_reads();
            self.send_marks();
            self.send_inspects();
            self.send_fails();
            self.note_reported();
            return;
        }
        if self.run.as_ref().is_some_and(|run| run.may_end(&self.clock)) {
            self.reconsider_mode();
        }
        let Some(run) = &mut self.run else { return };
        let step = run.step_now(&self.clock, self.writer.is_durable(run.intent_mark));
        run.step = run.step.max(step);
        let step = run.step;
        self.send_reads();
        self.send_exit_checks();
        if step > Step::Intent {
            self.send_marks();
            self.note_condemned();
        }
        if step >= Step::Kill {
            self.kill_on();
        }
        if step >= Step::LastWrites {
            self.look_at_the_rest();
        }
        self.send_inspects();
        self.send_fails();
        self.note_reported();
        self.release_on();
    }

    fn note_condemned(&mut self) {
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        if run.condemned_after.is_none() && !run.is_marking() {
            run.condemned_after = Some(run.elapsed(now));
        }
    }

    fn note_reported(&mut self) {
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let open = run.endings.values().any(|end| end.is_awaited() || end.is_unacknowledged());
        if run.reported_after.is_none() && !open && run.step > Step::Intent {
            run.reported_after = Some(run.elapsed(now));
        }
    }

    /// The mode follows what is learnt of the kubelet until the first kill; after it, only ever
    /// towards more of our own work. (§8.3)
    fn reconsider_mode(&mut self) {
        let found = self.detected();
        let Some(run) = &self.run else { return };
        let now = self.clock.monotonic();
        let fresh = self.kubelet.seen_at > run.taken_up_at;
        let gone = self.kubelet.gone_since.is_some_and(|at| {
            found.mode == Mode::Substitute && self.clock.reached(at + KUBELET_GONE)
        });
        let early = run.elapsed(now) < ASSIST_PROVES_ITSELF;
        // Where nobody was there to end pods, nobody has: they are the kubelet's when it is back.
        let idle = run.found.marks_only && run.found.mode == Mode::Assist;
        let learnt = fresh && (early || idle) && !run.mode_is_final && !run.resumed;
        let stand_in = gone && run.found.mode != Mode::Substitute;
        let differs = (found.mode, found.marks_only) != (run.found.mode, run.found.marks_only);
        let other = learnt && differs && found.mode != Mode::Observe;
        let back = run.found.mode == Mode::Substitute
            && run.elapsed(now) < run.ends.last_writes
            && self.kubelet.lives_since.is_some_and(|at| self.clock.reached(at + KUBELET_BACK));
        let next = if stand_in || other {
            Some(found)
        } else if back {
            // It would start again what the runtime stops, and no lock of its own is left. (W6)
            let marks_only = self.settings.bands.is_none();
            Some(Detected { mode: Mode::Replace, marks_only, why: "the kubelet is back" })
        } else if self.kubelet_is_done(now) {
            let why = "the kubelet gave its lock back and left pods running";
            let ends_pods = self.settings.bands.is_some();
            Some(Detected { mode: Mode::Replace, marks_only: !ends_pods, why })
        } else {
            None
        };
        if let Some(found) = next {
            self.change_mode(found, !other);
        }
    }

    fn kubelet_is_done(&self, now: Duration) -> bool {
        let Some(run) = &self.run else { return false };
        let may = run.found.mode == Mode::Assist && !run.found.marks_only && !run.resumed;
        if !may || !self.clock.reached(run.at(ASSIST_PROVES_ITSELF)) {
            return false;
        }
        let says_so = self.node.view.as_ref().is_some_and(|view| view.kubelet_says_shutdown);
        let disarmed = self.kubelet.facts.as_ref().is_some_and(|f| f.lock_armed == Some(false));
        let fresh = self.kubelet.seen_at > run.taken_up_at;
        let left = run.endings.values().any(Ending::is_awaited);
        let time = run.elapsed(now) < run.ends.last_writes;
        let lives = self.kubelet.lives();
        lives && disarmed && fresh && !says_so && !run.progress && left && time
    }

    fn change_mode(&mut self, found: Detected, for_good: bool) {
        let now = self.clock.monotonic();
        let Some(mut run) = self.run.take() else { return };
        let text = format!("mode {:?} becomes {:?}: {}", run.found.mode, found.mode, found.why);
        run.found = found;
        run.mode_since = run.elapsed(now);
        run.mode_is_final |= for_good;
        run.kills_over = false;
        run.stage = None;
        let mut run = self.timed(run);
        // Marks that are wanted only now get their time too.
        if run.step > Step::PreMark {
            run.ends.pre_mark = run.ends.pre_mark.max(run.elapsed(now) + LATE_MARKS);
            run.step = Step::PreMark;
        }
        self.run = Some(run);
        self.outbox.say(true, None, text);
        self.enlist_all();
        self.announce_run();
    }
}
