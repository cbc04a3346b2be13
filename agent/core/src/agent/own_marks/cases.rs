//! Settles one mark in question: asks the runtime where it has to, reads the pod, decides what is
//! true of it, and patches it until the API accepts or refuses.

use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::super::calls::{Part, Verb};
use super::super::facts::Facts;
use super::super::notices::{POD_LOST, RECOVERED};
use super::super::out::Out;
use super::OwnMarks;
use crate::pod::{PodRef, PodSource, PodUid, PodView};
use crate::protocol::action::Purpose;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::termination::attempt::{Attempt, Follow};
use crate::termination::correction::Correction;
use crate::termination::patches::{self, stands};

/// A mark in question.
#[derive(Clone, Debug)]
pub(super) struct Case {
    correction: Correction,
    why: Why,
    /// The runtime's check whether anything runs, where only a clock or a plan says that nothing
    /// does.
    inspect: Attempt,
    /// The end of the runtime checks, on CLOCK_MONOTONIC.
    ask_until: Duration,
}

/// Why the mark is in question, and its time, which identifies it as the agent's own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why {
    /// The pod lives on.
    Untrue(Timestamp),
    /// A shutdown of this boot that does not go on has set it, and may have stopped the pod: the
    /// runtime is asked from then on, on CLOCK_MONOTONIC.
    Unsorted { at: Timestamp, had_run: bool, from: Duration },
    /// A shutdown before this boot has set it, or was about to; and whether the pod had run by
    /// then.
    Marked(Timestamp, bool),
    /// The same, but the pod runs again after the boot, or for the first time.
    RunsAgain(Timestamp),
    /// The pod ran before this boot, and has no mark: its node went down without notice.
    Lost(Timestamp),
}

impl Case {
    pub(super) fn new(pod: PodRef, why: Why, inspect: Attempt, ask_until: Duration) -> Self {
        Self { correction: Correction::new(pod), why, inspect, ask_until }
    }

    pub(super) fn is_removal(&self) -> bool {
        matches!(self.why, Why::Untrue(_))
    }

    pub(super) fn is_unsorted(&self) -> bool {
        matches!(self.why, Why::Unsorted { .. })
    }

    /// Whether the runtime's first answer about a pod that has not ended is awaited.
    pub(super) fn is_being_sorted(&self, facts: &Facts) -> bool {
        self.is_unsorted()
            && self.inspect.failures() == 0
            && !has_ended(&self.correction.pod, facts)
    }

    pub(super) fn is_recovery(&self) -> bool {
        !self.is_removal() && !self.is_unsorted()
    }

    /// The mark, if it may stand on a pod that lives on in this boot.
    pub(super) fn stands_since(self) -> Option<(PodRef, Timestamp)> {
        match self.why {
            Why::Untrue(at) | Why::Unsorted { at, .. } => Some((self.correction.pod, at)),
            Why::Marked(..) | Why::RunsAgain(_) | Why::Lost(_) => None,
        }
    }
}

/// Returns the patch for a pod; `None` if the pod's state needs no explanation. Times before `boot`
/// are before this boot by all clocks.
pub(super) fn remedy(
    pod: &PodView,
    why: Why,
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
        Why::Marked(at, had_run) if pod.cannot_run_again() => {
            let ran_before = |since| boot.is_some_and(|boot| since < boot);
            if had_run || pod.running_since.is_some_and(ran_before) {
                return (!pod.is_disrupted()).then(|| (Purpose::Mark, patches::mark(pod, at)));
            }
            clear().filter(|_| pod.running_since.is_some() && stands(pod, at))
        }
        // The pod lives on, runs again, or will.
        Why::Marked(at, _) | Why::RunsAgain(at) | Why::Untrue(at) => {
            clear().filter(|_| stands(pod, at))
        }
        Why::Lost(at) => {
            let lost = pod.cannot_run_again() && !pod.is_disrupted();
            lost.then(|| (Purpose::Mark, patches::lost(pod, at)))
        }
        Why::Unsorted { .. } => None,
    }
}

/// Whether the API shows that the pod ends: then its mark needs no explanation.
fn has_ended(pod: &PodRef, facts: &Facts) -> bool {
    facts.pods.get(&pod.uid).is_some_and(|pod| pod.is_terminal() || pod.is_terminating())
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
        let Self { correction, why, inspect, ask_until } = self;
        let what = (Part::OwnMarks, Verb::Inspect);
        // A write of an earlier shutdown may still be under way. It must finish first, or a read
        // misses it.
        if correction.is_in_flight() || out.calls.is_busy_with(&correction.pod.uid) {
            return Step::Waits;
        }
        // The agent asks the runtime and the API at the same time, because the kubelet is about to
        // report.
        if matches!(why, Why::Lost(_)) && inspect.is_open() && facts.clock.reached(*ask_until) {
            out.calls.log(true, Some(&correction.pod), "nothing proves that it does not run");
            return Step::Settled;
        }
        if let Why::Unsorted { from, .. } = why {
            if has_ended(&correction.pod, facts) {
                return Step::Settled;
            }
            if facts.clock.reached(*from) {
                out.calls.inspect(what, &correction.pod, inspect, &facts.clock);
            }
            return Step::Waits;
        }
        out.calls.inspect(what, &correction.pod, inspect, &facts.clock);
        if !out.calls.has_room() {
            return Step::NoRoom;
        }
        if correction.read.is_open() {
            let Correction { pod, read, .. } = correction;
            out.calls.read(Part::OwnMarks, pod, read, &facts.clock);
            return Step::Waits;
        }
        let wall = facts.clock.now().wall;
        let pod = facts.pods.get(&correction.pod.uid);
        let Some((purpose, body)) = pod.and_then(|pod| remedy(pod, *why, boot, wall)) else {
            return Step::Settled;
        };
        // A container that runs at the time of the next attempt started in this boot.
        if let (Purpose::Clear, Why::Marked(at, _)) = (purpose, *why) {
            *why = Why::RunsAgain(at);
        }
        if inspect.is_open() || !correction.patch.is_due(&facts.clock) {
            return Step::Waits;
        }
        if matches!(why, Why::Untrue(_)) && !correction.patch.was_sent() {
            out.journal.append([Record::intent(&correction.pod, Intent::Clear, wall)]);
        }
        correction.patch.sent();
        out.calls.patch(Part::OwnMarks, purpose, &correction.pod, body);
        Step::Waits
    }
}

impl OwnMarks {
    /// Advances all cases. What a boot left is not urgent in a shutdown.
    pub(super) fn advance_cases(&mut self, facts: &Facts, out: &mut Out) {
        let boot = facts.surely_before_boot();
        let mut settled = Vec::new();
        for (uid, case) in &mut self.cases {
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
        let Some(case) = self.cases.remove(uid) else { return };
        if let Why::Untrue(at) = case.why {
            self.removed.insert(uid.clone(), (case.correction.pod, at));
        } else if case.is_recovery() && self.recoveries() == 0 {
            let written = std::mem::take(&mut self.recovered);
            let text = format!("boot recovery: all pods checked, {written} corrected");
            out.calls.log(false, None, text.clone());
            if written > 0 {
                out.emit_event(false, RECOVERED, text);
            }
        }
    }

    pub(super) fn was_read(
        &mut self,
        uid: &PodUid,
        result: &Outcome<Option<Box<PodView>>>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Some(case) = self.cases.get_mut(uid) else { return };
        // The answer may be that of an earlier case.
        if !case.correction.read.is_in_flight()
            || case.correction.was_read(result, facts.clock.monotonic()) != Follow::Gone
        {
            return;
        }
        self.gone(uid, out);
    }

    fn gone(&mut self, uid: &PodUid, out: &mut Out) {
        if self.removes(uid) {
            self.pod_gone(uid);
        } else {
            self.settle(uid, out);
        }
    }

    pub(super) fn was_patched(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Some(case) = self.cases.get_mut(uid) else { return };
        // The answer may be that of an earlier case.
        if !case.correction.patch.is_in_flight() {
            return;
        }
        let removal = case.is_removal();
        match case.correction.was_patched(result, facts.clock.monotonic()) {
            Follow::Done => {
                if removal && verb == Verb::Patch(Purpose::Clear) {
                    out.journal.append([Record::acknowledged(uid, Intent::Clear)]);
                }
                if matches!(case.why, Why::Lost(_)) {
                    let pod = case.correction.pod.clone();
                    out.emit_pod_event(pod, POD_LOST, "DisruptionTarget set: its node went down.");
                }
                self.recovered += usize::from(!removal);
                self.settle(uid, out);
            }
            Follow::Gone => self.gone(uid, out),
            Follow::Reread | Follow::Retry => {}
            Follow::Refused => {
                let text = if removal {
                    "its condition cannot be taken back"
                } else {
                    "boot recovery cannot write this pod's status"
                };
                out.calls.log_refusal(&case.correction.pod, text, result);
                self.settle(uid, out);
            }
        }
    }

    /// Takes the runtime's answer about a pod that a clock calls lost, or that a shutdown may have
    /// stopped.
    ///
    /// A runtime that does not know a pod that has run may be the wrong runtime, so this alone
    /// proves nothing. But CRI-O forgets all containers at a boot. If the node's clock was recorded
    /// at the boot, two clocks place the start of the containers before the boot. An empty runtime
    /// does not contradict them.
    pub(super) fn was_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let noted = facts.settings.booted_at.is_some();
        let Some(case) = self.cases.get_mut(uid) else { return };
        if !case.inspect.is_in_flight() {
            return;
        }
        if let Why::Unsorted { at, had_run, .. } = case.why {
            let pod = case.correction.pod.clone();
            match result {
                // The sandbox may outlive the containers: the process that stopped them died.
                Ok(state) if state.containers_ended() || state.nothing_runs() => {
                    self.confirm(pod, at, had_run);
                }
                Ok(_) => self.remove(pod, at),
                // Only the runtime can tell: a stop without an answer may be carried out, or not.
                Err(failure) => case.inspect.failed(now, case.correction.pace(), Some(failure)),
            }
            return;
        }
        match result {
            Ok(state) if state.proves_end(true) => case.inspect.done(),
            Ok(state) if state.knows_nothing() && noted => case.inspect.done(),
            Ok(_) => {
                let text = "the runtime does not prove that it is terminated: it is not reported \
                            as lost";
                out.calls.log(false, Some(&case.correction.pod), text);
                self.settle(uid, out);
            }
            Err(failure) => {
                case.inspect.failed(now, case.correction.pace(), Some(failure));
            }
        }
    }
}
