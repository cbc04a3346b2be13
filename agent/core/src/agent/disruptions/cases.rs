//! Settles one mark in question: asks the runtime where it has to, reads the pod, decides what is
//! true of it, and patches it until the API accepts or refuses.

use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::Timestamp;
use serde_json::Value;

use super::super::calls::{Answer, Part, Verb};
use super::super::facts::Facts;
use super::super::notices::{POD_LOST, RECOVERED};
use super::super::out::Out;
use super::super::pod_steps::{Goal, Meaning, Why as Of};
use super::{Disruptions, MarkedAt, PastMark, PodDisruption};
use crate::pod::{PodRef, PodSource, PodUid, PodView};
use crate::protocol::action::Purpose;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX_HASTE, salt};
use crate::termination::patches::{self, stands};
use crate::termination::progress::{PodTermination, Terminator, regular_exited};

/// A mark in question: its pod and its time, which identifies it as the agent's own, and the calls
/// that settle it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    calls: PodTermination,
    why: Why,
    /// The end of the runtime checks, on CLOCK_MONOTONIC.
    ask_until: Option<Duration>,
}

/// Why the mark is in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The pod lives on.
    Untrue,
    /// The pod lives on, and the mark does not stand: it may be on its way, as may a termination.
    Absent,
    /// A shutdown of this boot that does not go on has set it, and may have stopped the pod: the
    /// runtime is asked from then on, on CLOCK_MONOTONIC.
    Undecided(Duration),
    /// A shutdown before this boot has set it, or was about to.
    Marked,
    /// The same, but the pod runs again after the boot, or for the first time.
    RunsAgain,
    /// The pod ran before this boot, and has no mark: its node went down without notice.
    Lost,
    /// The same, but only by one of two clocks that differ.
    MaybeLost,
}

impl Case {
    /// `ask_until`: until when the runtime is asked, where only a clock says that nothing of the
    /// pod runs. It also decides where only a plan says so.
    pub(super) fn new(pod: PodRef, mark: MarkedAt, why: Why, ask_until: Option<Duration>) -> Self {
        let mut calls = PodTermination::new(pod, Terminator::None, mark.at);
        calls.mark.had_run = mark.had_run;
        // The cached state may be older than the write in question.
        calls.read = Attempt::wanted();
        if ask_until.is_some() || matches!(why, Why::Undecided(_)) {
            calls.report.inspect = Attempt::wanted();
        }
        Self { calls, why, ask_until }
    }

    pub(super) fn is_removal(&self) -> bool {
        matches!(self.why, Why::Untrue | Why::Absent)
    }

    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.why, Why::Undecided(_))
    }

    /// Whether the runtime's first answer about a pod that has not ended is awaited.
    pub(super) fn is_being_decided(&self, facts: &Facts) -> bool {
        self.is_undecided()
            && self.calls.report.inspect.failures() == 0
            && !has_ended(&self.calls.pod, facts)
    }

    pub(super) fn is_recovery(&self) -> bool {
        !self.is_removal() && !self.is_undecided()
    }

    /// The mark's time, if it may stand on a pod that lives on in this boot.
    pub(super) fn stands_since(&self) -> Option<Timestamp> {
        let stands = !self.is_recovery() && self.why != Why::Absent;
        stands.then_some(self.calls.mark.at)
    }

    fn pace(&self) -> Pace {
        let salt = salt(&self.calls.pod.uid.0);
        Pace { wait_max: WAIT_MAX_HASTE * 5, latest: None, salt }
    }
}

/// Returns the patch for a pod; `None` if the pod's state needs no explanation. Times before `boot`
/// are before this boot by all clocks.
pub(super) fn remedy(
    pod: &PodView,
    why: Why,
    (at, had_run): (Timestamp, bool),
    boot: Option<Timestamp>,
    now: Timestamp,
) -> Option<(Purpose, Value)> {
    if pod.is_terminal() || pod.is_terminating() || pod.source == PodSource::Static {
        return None;
    }
    let clear = || Some((Purpose::Clear, patches::clear(pod, now)));
    match why {
        // The pod cannot have survived: the condition must be there before the kubelet reports. A
        // pod that had not run by then may have started in this boot.
        Why::Marked if pod.ends_with_its_sandbox() => {
            let ran_before = |since| boot.is_some_and(|boot| since < boot);
            if had_run || pod.running_since.is_some_and(ran_before) {
                return (!pod.is_disrupted()).then(|| (Purpose::Mark, patches::mark(pod, at)));
            }
            clear().filter(|_| pod.running_since.is_some() && stands(pod, at))
        }
        // The pod lives on, runs again, or will.
        Why::Marked | Why::RunsAgain | Why::Untrue => clear().filter(|_| stands(pod, at)),
        // What is on its way names an older version than this write makes, and meets a conflict.
        // Where the condition of another writer stands, the agent may write nothing.
        Why::Absent => clear().filter(|_| !pod.is_disrupted() && !pod.is_to_end()),
        Why::Lost | Why::MaybeLost => {
            let lost = pod.ends_with_its_sandbox() && !pod.is_disrupted();
            lost.then(|| (Purpose::Mark, patches::lost(pod, at)))
        }
        Why::Undecided(_) => None,
    }
}

/// Whether the API shows that the pod ends: then its mark needs no explanation.
fn has_ended(pod: &PodRef, facts: &Facts) -> bool {
    facts.pods.get(&pod.uid).is_some_and(|pod| pod.is_terminal() || pod.is_terminating())
}

/// Whether the pod is over, though its sandbox is still there: the process that stopped its
/// containers may have died. Sidecars may run, because only the regular containers count. A kubelet
/// that is back starts some containers again.
fn is_over(uid: &PodUid, state: &RuntimeState, facts: &Facts) -> bool {
    let Some(pod) = facts.pods.get(uid) else { return state.containers_ended() };
    let ended = state.containers_ended() || regular_exited(pod, state);
    pod.ends_with_its_containers() && ended
}

/// What follows a step of a case.
enum Step {
    Waits,
    /// No other call may begin.
    NoRoom,
    Settled,
}

impl Case {
    fn advance(&mut self, boot: Option<Timestamp>, facts: &Facts, out: &mut Out) -> Step {
        let Self { calls, why, ask_until } = self;
        // A write of an earlier shutdown may still be under way. It must finish first, or a read
        // misses it.
        let in_flight = calls.read.is_in_flight() || calls.mark.write.is_in_flight();
        if in_flight || out.calls.is_busy_with(&calls.pod.uid) {
            return Step::Waits;
        }
        // The agent asks the runtime and the API at the same time, because the kubelet is about to
        // report.
        let is_lost = matches!(why, Why::Lost | Why::MaybeLost);
        let over = |at: Duration| facts.clock.reached(at);
        if is_lost && calls.report.inspect.is_open() && ask_until.is_some_and(over) {
            out.calls.log(true, Some(&calls.pod), "nothing proves that it does not run");
            return Step::Settled;
        }
        if let Why::Undecided(from) = *why {
            if has_ended(&calls.pod, facts) {
                return Step::Settled;
            }
            if facts.clock.reached(from) {
                calls.ask(Verb::Inspect, Of::OwnMark, &facts.clock, out);
            }
            return Step::Waits;
        }
        calls.ask(Verb::Inspect, Of::OwnMark, &facts.clock, out);
        if !out.calls.has_room() {
            return Step::NoRoom;
        }
        if calls.read.is_open() {
            calls.ask(Verb::Read, Of::OwnMark, &facts.clock, out);
            return Step::Waits;
        }
        let wall = facts.clock.now().wall;
        let mark = (calls.mark.at, calls.mark.had_run);
        let pod = facts.pods.get(&calls.pod.uid);
        if matches!(why, Why::Untrue | Why::Absent) {
            let stands = pod.is_some_and(|pod| stands(pod, calls.mark.at));
            *why = if stands { Why::Untrue } else { Why::Absent };
        }
        // One attempt is enough: the answer may be lost, too.
        if *why == Why::Absent && calls.mark.write.failures() > 0 {
            return Step::Settled;
        }
        let Some((purpose, body)) = pod.and_then(|pod| remedy(pod, *why, mark, boot, wall)) else {
            return Step::Settled;
        };
        // A container that runs at the time of the next attempt started in this boot.
        if purpose == Purpose::Clear && *why == Why::Marked {
            *why = Why::RunsAgain;
        }
        if calls.report.inspect.is_open() || !calls.mark.write.is_due(&facts.clock) {
            return Step::Waits;
        }
        if matches!(why, Why::Untrue | Why::Absent) && calls.mark.write.failures() == 0 {
            out.journal.append([Record::intent(&calls.pod, Intent::Clear, wall)]);
        }
        calls.mark.write.sent();
        out.calls.patch(Part::OwnMarks, purpose, &calls.pod, body);
        Step::Waits
    }
}

impl PodDisruption {
    /// Ends the case, and returns it.
    fn settle(&mut self) -> Option<Case> {
        let case = self.case()?.clone();
        let removed = case.is_removal().then_some(PastMark::Removed(case.calls.mark.at));
        self.past_mark = removed.unwrap_or_default();
        Some(case)
    }
}

impl Disruptions {
    /// Advances all cases. What a boot left is not urgent in a shutdown.
    pub(super) fn advance_cases(&mut self, facts: &Facts, out: &mut Out) {
        let boot = facts.surely_before_boot();
        let mut settled = Vec::new();
        for (uid, entry) in &mut self.pods {
            let PastMark::InQuestion(case) = &mut entry.past_mark else { continue };
            if facts.situation.runs && !case.is_removal() {
                continue;
            }
            match case.advance(boot, facts, out) {
                Step::Waits => {}
                Step::NoRoom => break,
                Step::Settled => settled.push(uid.clone()),
            }
        }
        for uid in settled {
            self.settle(&uid, out);
        }
    }

    /// Ends a case.
    fn settle(&mut self, uid: &PodUid, out: &mut Out) {
        let Some(case) = self.pods.get_mut(uid).and_then(PodDisruption::settle) else { return };
        if case.is_recovery() && self.recoveries() == 0 {
            let written = std::mem::take(&mut self.recovered);
            let text = format!("boot recovery: all pods checked, {written} corrected");
            out.calls.log(false, None, text.clone());
            if written > 0 {
                out.emit_event(false, RECOVERED, text);
            }
        }
    }

    /// Takes an answer about a pod; it may be that of an earlier case.
    pub(in super::super) fn answered(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        answer: Answer<'_>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Some(case) = self.case_mut(uid) else { return };
        let result = match answer {
            Answer::Runtime(state) => return self.was_inspected(uid, state, facts, out),
            Answer::Read(_) if !case.calls.read.is_in_flight() => return,
            Answer::Written(..) if !case.calls.mark.write.is_in_flight() => return,
            Answer::Read(_) => None,
            Answer::Written(result, _) => Some(result),
        };
        let goal = Goal { why: Of::OwnMark, pace: case.pace() };
        let removal = case.is_removal();
        match (case.calls.answered(verb, answer, &goal, facts, out), result) {
            (Meaning::Gone, _) => self.gone(uid, out),
            (Meaning::Done, Some(_)) => {
                if removal && verb == Verb::Patch(Purpose::Clear) {
                    out.journal.append([Record::acknowledged(uid, Intent::Clear)]);
                }
                if matches!(case.why, Why::Lost | Why::MaybeLost) {
                    let pod = case.calls.pod.clone();
                    out.emit_pod_event(pod, POD_LOST, "DisruptionTarget set: its node went down.");
                }
                self.recovered += usize::from(!removal);
                self.settle(uid, out);
            }
            (Meaning::Refused, Some(result)) => {
                let text = if removal {
                    "its condition cannot be taken back"
                } else {
                    "boot recovery cannot write this pod's status"
                };
                out.calls.log_refusal(&case.calls.pod, text, result);
                self.settle(uid, out);
            }
            (Meaning::Again, Some(_)) => case.calls.read.want_again(),
            // Without a read, the watch cache is the best available state.
            (Meaning::Done | Meaning::Refused, None) => case.calls.mark.write.want(),
            _ => {}
        }
    }

    fn gone(&mut self, uid: &PodUid, out: &mut Out) {
        if self.removes(uid) {
            self.pod_gone(uid);
        } else {
            self.settle(uid, out);
        }
    }

    /// Takes the runtime's answer about a pod that a clock calls lost, or that a shutdown may have
    /// stopped.
    ///
    /// A runtime that does not know a pod that has run may be the wrong runtime, so this alone
    /// proves nothing. But CRI-O forgets all containers at a boot. If the node's clock was recorded
    /// at the boot, two clocks place the start of the containers before the boot. An empty runtime
    /// does not contradict them. If only one clock does, a pod that ended by itself looks the same,
    /// unless the runtime did not see the end.
    fn was_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let noted = facts.settings.booted_at.is_some();
        let Some(case) = self.case_mut(uid) else { return };
        if !case.calls.report.inspect.is_in_flight() {
            return;
        }
        let pace = case.pace();
        if case.is_undecided() {
            let (at, had_run) = (case.calls.mark.at, case.calls.mark.had_run);
            let pod = case.calls.pod.clone();
            match result {
                Ok(state) if state.nothing_runs() || is_over(uid, state, facts) => {
                    self.confirm(pod, at, had_run);
                }
                Ok(_) => self.remove(pod, at),
                // Only the runtime can tell: a stop without an answer may be carried out, or not.
                Err(failure) => case.calls.report.inspect.failed(now, pace, Some(failure)),
            }
            return;
        }
        let is_sure = case.why == Why::Lost;
        match result {
            Ok(state) if state.proves_end(true) && (is_sure || state.was_cut()) => {
                case.calls.report.inspect.done();
            }
            Ok(state) if state.knows_nothing() && noted && is_sure => {
                case.calls.report.inspect.done();
            }
            Ok(_) => {
                let text = "the runtime does not prove that it is terminated: it is not reported \
                            as lost";
                out.calls.log(false, Some(&case.calls.pod), text);
                self.settle(uid, out);
            }
            Err(failure) => case.calls.report.inspect.failed(now, pace, Some(failure)),
        }
    }
}
