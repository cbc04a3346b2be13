//! Deleted pods that no kubelet brings to an end: when the runtime proves that nothing of them
//! runs, they become Failed. ([PT7], [PT8])
//!
//! - Never for a static, a terminal or our own pod, never before the pod's grace is over, and
//!   never in a shutdown, which ends pods by itself.
//! - Never by a deletion: the object is the kubelet's, or the controller's, to remove.
//! - Nothing here survives a crash, and nothing has to: all evidence is made again, from the start
//!   of each wait on. A new agent knows nothing of writes that were taken back, so it may repeat
//!   them; each is as true as the first.
//!
//! What is seen, and what may be done about it, is decided in `termination/hanging.rs`.
//!
//! DIVERGES(upstream): upstream leaves a pod of a dead kubelet as it is, for ever. ([PT7])

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};

use super::disruption_target::{PATCH_STATUS, pod_ref};
use super::notices::{POD_FAILED, POD_STUCK, WOULD_FAIL};
use super::outbox::Task;
use super::refusals::FORBIDDEN_FOR;
use super::{Agent, Enforcement, StuckStatus};
use crate::pod::{PodSource, PodUid, PodView};
use crate::protocol::action::{Action, PodRef, Purpose, Reach};
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{Verdict, verdict};
use crate::termination::hanging::{
    Evidence, Finding, Hang, Judgement, KubeletLiveness, Obstacle, judge,
};
use crate::termination::{patches, stop_timeout};

/// So long a look says what is now.
const CHECK_LASTS: Duration = Duration::from_millis(500);

/// The pods that are looked at.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    cases: BTreeMap<PodUid, Case>,
    /// Since when deleted pods have been seen so, on CLOCK_MONOTONIC.
    seen_since: BTreeMap<PodUid, Duration>,
    /// When all pods are gone through next, on CLOCK_MONOTONIC, and how often they were.
    next_at: Duration,
    round: u64,
    failed: u64,
}

/// A pod that hangs, or hung.
#[derive(Debug)]
struct Case {
    pod: PodRef,
    liveness: KubeletLiveness,
    inspect_due: bool,
    /// What the runtime said last, and when; until it is judged.
    seen: Option<(Duration, Option<RuntimeState>)>,
    /// The round in which the runtime had nothing of it, in all rounds since.
    nothing_since: Option<u64>,
    finding: Option<Finding>,
    written: u32,
    written_at: Option<Duration>,
    /// What is said once the API has taken the write that is under way: the watch may show the
    /// pod's end before the answer comes.
    writing: Option<String>,
    stops: u32,
    stopped_in: Option<u64>,
    /// The API refuses its phase until then, on CLOCK_MONOTONIC.
    refused_until: Option<Duration>,
    event_at: Option<Duration>,
}

impl Case {
    fn new(pod: &PodView, liveness: KubeletLiveness) -> Self {
        Self {
            pod: pod_ref(pod),
            liveness,
            inspect_due: false,
            seen: None,
            nothing_since: None,
            finding: None,
            written: 0,
            written_at: None,
            writing: None,
            stops: 0,
            stopped_in: None,
            refused_until: None,
            event_at: None,
        }
    }

    /// What was seen is of before.
    fn forget_evidence(&mut self) {
        self.inspect_due = false;
        self.seen = None;
        self.nothing_since = None;
        self.finding = None;
    }

    fn may_report(&self, now: Duration, pause: Duration) -> bool {
        self.event_at.is_none_or(|at| now >= at + pause)
    }
}

impl Stuck {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.cases.remove(uid);
        self.seen_since.remove(uid);
    }

    pub(super) fn summary(&self) -> StuckStatus {
        let mut pods: BTreeMap<Hang, usize> = BTreeMap::new();
        for finding in self.cases.values().filter_map(|case| case.finding) {
            *pods.entry(finding.hang).or_default() += 1;
        }
        StuckStatus { pods, failed: self.failed }
    }

    fn stand_still(&mut self) {
        for case in self.cases.values_mut() {
            case.forget_evidence();
        }
    }
}

impl Agent {
    /// Goes on with looking and ending.
    pub(super) fn advance_stuck(&mut self) {
        if self.settings.features.stuck_pods == Enforcement::Off {
            return;
        }
        let busy = self.shutdown.is_some() || self.journaled.is_some() || self.stop_at.is_some();
        if busy || !self.pods.is_listed() {
            self.stuck.stand_still();
            return;
        }
        let any = self.pods.iter().any(|pod| self.is_deleted(pod))
            || self.stuck.cases.values().any(|case| case.finding.is_some());
        if any && self.clock.reached(self.stuck.next_at) {
            self.stuck.next_at = self.clock.monotonic() + self.settings.features.stuck_times.pace;
            self.stuck.round += 1;
            self.go_through_the_deleted();
            // Wakes the agent for the next round, whatever comes of this one.
            self.clock.reached(self.stuck.next_at);
        }
        self.inspect_the_stuck();
        let seen: Vec<PodUid> = self
            .stuck
            .cases
            .iter()
            .filter(|(_, case)| case.seen.is_some())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in seen {
            self.judge_stuck(&uid);
        }
    }

    /// Whether it is a pod that somebody is to end, and did not yet.
    fn is_deleted(&self, pod: &PodView) -> bool {
        pod.is_terminating()
            && !pod.is_terminal()
            && pod.source == PodSource::Api
            && self.settings.own_pod.as_ref() != Some(&pod.uid)
    }

    /// How long its grace is over; none if it is not. The deletion's time is the end of the grace.
    fn over(&self, pod: &PodView) -> Option<Duration> {
        let end = pod.details.deleted_at?;
        Duration::try_from(self.clock.now().wall.duration_since(end)).ok()
    }

    /// The keeper of a pod whose time is over.
    fn liveness_of(&self, pod: &PodView) -> Option<KubeletLiveness> {
        let times = &self.settings.features.stuck_times;
        let grace = pod.deletion_grace_seconds.filter(|_| self.is_deleted(pod))?;
        let liveness = self.kubelet.liveness(self.clock.monotonic(), times)?;
        let wait = if liveness == KubeletLiveness::Lives { times.patience } else { times.margin };
        // Clocks jump, and a machine that was suspended lets no kubelet end anything: so long it
        // must have been seen as well, and by that alone all is over in the end.
        let mut since = *self.stuck.seen_since.get(&pod.uid)?;
        // A kubelet that has come back gives each pod its grace anew.
        if liveness == KubeletLiveness::Lives {
            let back = self.kubelet.lives_since.unwrap_or_default();
            since = since.max(back + Duration::from_secs(grace.into()));
        }
        let seen = self.clock.monotonic().saturating_sub(since);
        let over = self.over(pod).is_some_and(|over| over > wait);
        let over = over || seen > wait + Duration::from_secs(grace.into());
        (over && seen >= wait).then_some(liveness)
    }

    fn enforces_stuck(&self) -> bool {
        self.settings.enforce && self.settings.features.stuck_pods == Enforcement::Enforce
    }

    /// Finds out whom to look at in this round.
    fn go_through_the_deleted(&mut self) {
        let now = self.clock.monotonic();
        let deleted = self.pods.iter().filter(|pod| self.is_deleted(pod));
        let deleted: Vec<PodUid> = deleted.map(|pod| pod.uid.clone()).collect();
        for uid in deleted {
            self.stuck.seen_since.entry(uid).or_insert(now);
        }
        let event_interval = self.settings.features.stuck_times.event_interval;
        let flag = self.settings.features.fail_hanging_starts;
        let hanging: BTreeMap<PodUid, (PodView, KubeletLiveness)> = self
            .pods
            .iter()
            .filter_map(|pod| Some((pod.uid.clone(), (pod.clone(), self.liveness_of(pod)?))))
            .collect();
        for (uid, case) in &mut self.stuck.cases {
            if !hanging.contains_key(uid) {
                case.forget_evidence();
            }
        }
        // What was written counts for as long as the pod is there.
        self.stuck.cases.retain(|uid, case| {
            let known = case.written > 0 || case.event_at.is_some() || case.writing.is_some();
            known || hanging.contains_key(uid)
        });
        let acts = self.enforces_stuck();
        for (uid, (pod, liveness)) in hanging {
            let new = || Case::new(&pod, liveness);
            let case = self.stuck.cases.entry(uid).or_insert_with(new);
            if case.liveness != liveness {
                case.liveness = liveness;
                case.forget_evidence();
            }
            // Where nothing can be done, looking is only for saying so.
            let may_act = acts && (liveness != KubeletLiveness::Lives || flag);
            case.inspect_due = may_act || case.may_report(now, event_interval);
        }
    }

    fn inspect_the_stuck(&mut self) {
        let now = self.clock.monotonic();
        for (uid, case) in &mut self.stuck.cases {
            if !case.inspect_due {
                continue;
            }
            if !self.settings.runtime {
                case.inspect_due = false;
                case.seen = Some((now, None));
                continue;
            }
            if self.outbox.is_busy_with(uid) {
                continue;
            }
            if !self.outbox.has_room_to_inspect() {
                return;
            }
            case.inspect_due = false;
            let action = Action::InspectPod(case.pod.clone());
            self.outbox.send(Task::StuckInspect(uid.clone()), action);
        }
    }

    /// The runtime has said what it has of the pod, or has not.
    pub(super) fn stuck_seen(&mut self, uid: &PodUid, result: &Result<RuntimeState, Failure>) {
        let now = self.clock.monotonic();
        let Some(case) = self.stuck.cases.get_mut(uid) else { return };
        case.seen = Some((now, result.as_ref().ok().cloned()));
    }

    /// Decides about one pod by what was just seen of it.
    fn judge_stuck(&mut self, uid: &PodUid) {
        let now = self.clock.monotonic();
        let round = self.stuck.round;
        let Some(pod) = self.pods.get(uid).cloned() else { return };
        let liveness = self.liveness_of(&pod);
        let Some(case) = self.stuck.cases.get_mut(uid) else { return };
        let Some((at, state)) = case.seen.take() else { return };
        // Its kubelet has come or gone since: what was seen is of another time.
        if liveness != Some(case.liveness) {
            case.forget_evidence();
            return;
        }
        if now > at + CHECK_LASTS {
            return;
        }
        let nothing = state.as_ref().is_some_and(|it| it.containers.is_empty());
        let since = nothing.then(|| case.nothing_since.unwrap_or(round));
        case.nothing_since = since;
        let evidence = Evidence {
            pod: &pod,
            liveness: case.liveness,
            runtime: state.as_ref(),
            twice: since.is_some_and(|since| since < round),
            fail_hanging_starts: self.settings.features.fail_hanging_starts,
            written: case.written,
            stops: case.stops,
        };
        let mut finding = judge(&evidence);
        let refused = case.refused_until.is_some_and(|until| now < until)
            || self.refusals.forbids(PATCH_STATUS);
        if finding.judgement == Judgement::Fail && refused {
            finding.judgement = Judgement::Leave(Obstacle::Refused);
        }
        case.finding = Some(finding);
        self.act_on(&pod, finding, state);
    }

    fn act_on(&mut self, pod: &PodView, finding: Finding, state: Option<RuntimeState>) {
        let now = self.clock.monotonic();
        let pace = self.settings.features.stuck_times.pace;
        let acts = self.enforces_stuck();
        let round = self.stuck.round;
        let room = self.outbox.has_room();
        let over = self.over(pod).unwrap_or_default();
        let Some(case) = self.stuck.cases.get_mut(&pod.uid) else { return };
        match finding.judgement {
            Judgement::LookAgain => {}
            Judgement::Leave(_) => self.report_stuck(pod, finding),
            _ if !acts => self.report_stuck(pod, finding),
            Judgement::StopSandbox => {
                if case.stopped_in.replace(round) == Some(round) {
                    return;
                }
                case.stops += 1;
                let action = Action::StopPod {
                    pod: case.pod.clone(),
                    // Should a container have come up since, it gets what its kubelet gives it.
                    grace_seconds: pod.deletion_grace_seconds.unwrap_or_default(),
                    sidecars: pod.sidecars.clone(),
                    reach: Reach::Pod,
                    stop_timeout: stop_timeout::at_ease(case.stops.saturating_sub(1)),
                };
                let text = "nothing runs in its sandbox any more, which is stopped";
                self.outbox.log(false, Some(&case.pod), text);
                self.outbox.send(Task::StuckStop(pod.uid.clone()), action);
            }
            Judgement::Fail => {
                if case.written_at.is_some_and(|at| now < at + pace) {
                    return;
                }
                if !room {
                    case.seen = Some((now, state));
                    return;
                }
                case.written_at = Some(now);
                let words = finding.failed(case.liveness, over);
                case.writing = Some(format!("Failed by the agent: {words}."));
                self.send_stuck_fail(pod);
            }
        }
    }

    fn send_stuck_fail(&mut self, pod: &PodView) {
        let wall = self.clock.now().wall;
        let body = patches::failed_for_deleter(pod, wall);
        let action = Action::PatchStatus { pod: pod_ref(pod), purpose: Purpose::Fail, body };
        self.outbox.send(Task::StuckFail(pod.uid.clone()), action);
    }

    /// The API has taken the phase, or says why not. What failed is seen anew in the next round.
    pub(super) fn stuck_failed(&mut self, uid: &PodUid, result: &Outcome<()>) {
        self.count_patch(Purpose::Fail, result);
        self.hear_of_right(PATCH_STATUS, uid, result);
        let now = self.clock.monotonic();
        let Some(case) = self.stuck.cases.get_mut(uid) else { return };
        let pod = case.pod.clone();
        let Some(text) = case.writing.take() else { return };
        match result {
            Ok(()) => {
                case.written += 1;
                case.finding = None;
                self.stuck.failed += 1;
                self.outbox.log(true, Some(&pod), text.clone());
                self.emit_pod_event(pod, POD_FAILED, &text);
            }
            Err(failure) if matches!(verdict(failure), Verdict::Skip | Verdict::Refused) => {
                case.refused_until = Some(now + FORBIDDEN_FOR);
                let text = format!("the API refuses its phase: {failure}");
                self.outbox.log(true, Some(&pod), text);
            }
            // One without an answer is not counted: if it was carried out, the pod shows it.
            Err(_) => {}
        }
    }

    /// Says that the pod hangs, or what would be done about it, but not all the time.
    fn report_stuck(&mut self, pod: &PodView, finding: Finding) {
        let now = self.clock.monotonic();
        let features = &self.settings.features;
        let only_observes = !self.enforces_stuck();
        let pause = features.stuck_times.event_interval;
        let over = self.over(pod).unwrap_or_default();
        let Some(case) = self.stuck.cases.get_mut(&pod.uid) else { return };
        if !case.may_report(now, pause) {
            return;
        }
        let (reason, text) = match finding.judgement {
            Judgement::Leave(_) if only_observes => return,
            Judgement::Leave(obstacle) => (POD_STUCK, finding.left(case.liveness, over, obstacle)),
            _ => {
                let words = finding.failed(case.liveness, over);
                (WOULD_FAIL, format!("Would be failed, were the agent to act: {words}."))
            }
        };
        case.event_at = Some(now);
        let pod_ref = case.pod.clone();
        self.outbox.log(true, Some(&pod_ref), text.clone());
        self.emit_pod_event(pod_ref, reason, &text);
    }
}
