//! Writes, after a boot, the conditions of pods that the previous boot left unexplained. ([AP19],
//! [W5])

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::Agent;
use super::calls::{Part, Verb};
use super::notices::{POD_LOST, RECOVERED};
use crate::pod::{PodSource, PodUid, PodView};
use crate::protocol::action::{PodRef, Purpose};
use crate::protocol::event::{Now, RuntimeState};
use crate::termination::attempt::{Attempt, Follow};
use crate::termination::correction::Correction;
use crate::termination::patches::{self, stands};

/// A runtime that is silent for this long proves nothing. The kubelet waits for it, too.
const WITNESS_LASTS: Duration = Duration::from_mins(1);

/// A pod to check.
#[derive(Debug)]
struct RecoveredPod {
    correction: Correction,
    why: Why,
    /// The runtime's check whether anything runs, where only a clock says that nothing does.
    inspect: Attempt,
    /// The end of the runtime checks, on CLOCK_MONOTONIC.
    ask_until: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// A shutdown marked the pod, or was about to, with this time; and whether the pod had run by
    /// then.
    Marked(Timestamp, bool),
    /// The same, but the pod runs again after the boot, or for the first time.
    RunsAgain(Timestamp),
    /// The pod ran before this boot: its node went down without notice.
    Lost(Timestamp),
}

/// All pods to check.
#[derive(Debug, Default)]
pub(super) struct BootRecovery {
    pods: BTreeMap<PodUid, RecoveredPod>,
    marked: usize,
    /// Pods that the journal explains.
    known: BTreeSet<PodUid>,
}

impl BootRecovery {
    pub(super) fn add_marked(&mut self, pod: PodRef, at: Timestamp, had_run: bool) {
        self.add(pod, Why::Marked(at, had_run), Attempt::default(), Duration::ZERO);
    }

    /// Records that the journal explains the pod: it ended before the shutdown, whatever the clock
    /// says.
    pub(super) fn explain(&mut self, uid: PodUid) {
        self.known.insert(uid);
    }

    /// Adds a pod as lost, unless nothing needs to be written; returns whether it did. If the
    /// runtime can be asked, the runtime decides.
    pub(super) fn add_lost(&mut self, pod: &PodView, now: Now, ask: bool) -> bool {
        let why = Why::Lost(now.wall);
        if self.known.contains(&pod.uid) || remedy(pod, why, None).is_none() {
            return false;
        }
        let inspect = if ask { Attempt::wanted() } else { Attempt::default() };
        self.add(PodRef::of(pod), why, inspect, now.monotonic + WITNESS_LASTS);
        true
    }

    /// Whether the agent checks the pod.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// Whether a journal of an earlier boot covers the pod.
    pub(super) fn knows(&self, uid: &PodUid) -> bool {
        self.known.contains(uid)
    }

    fn add(&mut self, pod: PodRef, why: Why, inspect: Attempt, ask_until: Duration) {
        self.known.insert(pod.uid.clone());
        let uid = pod.uid.clone();
        let correction = Correction::new(pod);
        self.pods.insert(uid, RecoveredPod { correction, why, inspect, ask_until });
    }

    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Drops all checks: a new shutdown is more urgent, and the journal keeps what is open.
    pub(super) fn forget(&mut self) {
        self.pods.clear();
    }
}

/// Returns the patch for a pod; `None` if the pod's state needs no explanation. Times before `boot`
/// are before this boot by all clocks.
fn remedy(pod: &PodView, why: Why, boot: Option<Timestamp>) -> Option<(Purpose, Value)> {
    if pod.is_terminal() || pod.is_terminating() || pod.source == PodSource::Static {
        return None;
    }
    match why {
        // The pod cannot have survived: the condition must be there before the kubelet reports. A
        // pod that had not run by then may have started in this boot.
        Why::Marked(at, had_run) if pod.cannot_run_again() => {
            let ran_before = |since| boot.is_some_and(|boot| since < boot);
            if had_run || pod.running_since.is_some_and(ran_before) {
                (!pod.is_disrupted()).then(|| (Purpose::Mark, patches::mark(pod, at)))
            } else {
                let lives = pod.running_since.is_some() && stands(pod, at);
                lives.then(|| (Purpose::Clear, patches::clear(pod, at)))
            }
        }
        // The pod runs again, or will.
        Why::Marked(at, _) | Why::RunsAgain(at) => {
            stands(pod, at).then(|| (Purpose::Clear, patches::clear(pod, at)))
        }
        Why::Lost(at) => {
            let lost = pod.cannot_run_again() && !pod.is_disrupted();
            lost.then(|| (Purpose::Mark, patches::lost(pod, at)))
        }
    }
}

impl Agent {
    pub(super) fn advance_boot_recovery(&mut self) {
        if self.shutdown.is_some() {
            return;
        }
        let wall = self.clock.now().wall;
        let boot = self.surely_before_boot();
        let mut settled = Vec::new();
        for (uid, recovery) in &mut self.boot_recovery.pods {
            let correction = &mut recovery.correction;
            if correction.is_in_flight() || self.calls.is_busy_with(uid) {
                continue;
            }
            // The agent asks the runtime and the API at the same time, because the kubelet is about
            // to report.
            if recovery.inspect.is_open() && self.clock.reached(recovery.ask_until) {
                self.calls.log(true, Some(&correction.pod), "nothing proves that it does not run");
                settled.push(uid.clone());
                continue;
            }
            let (what, inspect) = ((Part::BootRecovery, Verb::Inspect), &mut recovery.inspect);
            self.calls.inspect(what, &correction.pod, inspect, &self.clock);
            if !self.calls.has_room() {
                break;
            }
            if correction.read.is_open() {
                let Correction { pod, read, .. } = correction;
                self.calls.read(Part::BootRecovery, pod, read, &self.clock);
                continue;
            }
            let found = self.pods.get(uid).and_then(|pod| remedy(pod, recovery.why, boot));
            let Some((purpose, body)) = found else {
                settled.push(uid.clone());
                continue;
            };
            // A container that runs at the time of the next attempt started in this boot.
            if let (Purpose::Clear, Why::Marked(at, _)) = (purpose, recovery.why) {
                recovery.why = Why::RunsAgain(at);
            }
            if recovery.inspect.is_open() || !correction.patch.is_due(&self.clock) {
                continue;
            }
            correction.patch.sent();
            let body = match self.pods.get(uid) {
                Some(pod) if purpose == Purpose::Clear => patches::clear(pod, wall),
                _ => body,
            };
            self.calls.patch(Part::BootRecovery, purpose, &correction.pod, body);
        }
        for uid in settled {
            self.recovered(&uid);
        }
    }

    pub(super) fn recovery_read(&mut self, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        let now = self.clock.monotonic();
        let Some(recovery) = self.boot_recovery.pods.get_mut(uid) else { return };
        if recovery.correction.was_read(result, now) == Follow::Gone {
            self.recovered(uid);
        }
    }

    /// Takes the runtime's answer about a pod that a clock calls lost. A runtime that does not know
    /// a pod that has run may be the wrong runtime, so this alone proves nothing. But CRI-O forgets
    /// all containers at a boot. If the node's clock was recorded at the boot, two clocks place the
    /// start of the containers before the boot. An empty runtime does not contradict them.
    pub(super) fn recovery_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) {
        let now = self.clock.monotonic();
        let noted = self.settings.booted_at.is_some();
        let Some(recovery) = self.boot_recovery.pods.get_mut(uid) else { return };
        match result {
            Ok(state) if state.proves_end(true) => recovery.inspect.done(),
            Ok(state) if state.knows_nothing() && noted => recovery.inspect.done(),
            Ok(_) => {
                let text = "the runtime does not prove that it is terminated: it is not reported \
                            as lost";
                self.calls.log(false, Some(&recovery.correction.pod), text);
                self.recovered(uid);
            }
            Err(failure) => recovery.inspect.failed(now, recovery.correction.pace(), Some(failure)),
        }
    }

    pub(super) fn recovery_patched(&mut self, uid: &PodUid, result: &Outcome<()>) {
        let now = self.clock.monotonic();
        let Some(recovery) = self.boot_recovery.pods.get_mut(uid) else { return };
        match recovery.correction.was_patched(result, now) {
            Follow::Done => {
                self.boot_recovery.marked += 1;
                if matches!(recovery.why, Why::Lost(_)) {
                    let pod = recovery.correction.pod.clone();
                    self.emit_pod_event(pod, POD_LOST, "DisruptionTarget set: its node went down.");
                }
                self.recovered(uid);
            }
            Follow::Gone => self.recovered(uid),
            Follow::Reread | Follow::Retry => {}
            Follow::Refused => {
                let text = "boot recovery cannot write this pod's status";
                self.calls.log_refusal(&recovery.correction.pod, text, result);
                self.recovered(uid);
            }
        }
    }

    fn recovered(&mut self, uid: &PodUid) {
        if self.boot_recovery.pods.remove(uid).is_some() && self.boot_recovery.is_empty() {
            let written = std::mem::take(&mut self.boot_recovery.marked);
            let text = format!("boot recovery: all pods checked, {written} corrected");
            self.calls.log(false, None, text.clone());
            if written > 0 {
                self.emit_event(false, RECOVERED, text);
            }
        }
    }
}
