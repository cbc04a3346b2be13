//! Fails deleted pods that no kubelet terminates, once the runtime proves that nothing of them
//! runs. ([PT7], [PT8])
//!
//! - It never fails a static, a terminal or our own pod, nor a pod within its grace. It never acts
//!   in a shutdown, which terminates pods by itself.
//! - It never deletes: the kubelet or the controller has to remove the object.
//! - Nothing here survives a crash, and nothing has to. All evidence is collected anew, from the
//!   start of each wait. A new agent does not know which writes were reverted, so it may repeat
//!   them. Each repeat is as true as the first write.
//!
//! `termination/hanging.rs` judges the evidence and decides what may be done.
//!
//! DIVERGES(upstream): upstream leaves a pod of a dead kubelet as it is, for ever. ([PT7])

use std::collections::BTreeMap;
use std::time::Duration;

use super::calls::{Answer, Part, Verb};
use super::disruptions::Disruptions;
use super::facts::{Facts, Situation};
use super::notices::{POD_FAILED, POD_STUCK, WOULD_FAIL};
use super::out::Out;
use super::pod_steps::{Goal, Meaning, PROOF_LASTS, Why};
use super::refusals::FORBIDDEN_FOR;
use super::settings::Enforcement;
use super::status::StuckStatus;
use super::status::WouldHave;
use crate::pod::{PodSource, PodUid, PodView};
use crate::protocol::action::{PodRef, Reach};
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{Pace, WAIT_MAX};
use crate::termination::hanging::{
    self, Evidence, Finding, Hang, Judgement, KubeletLiveness, Obstacle,
};
use crate::termination::progress::{PATCH_STATUS, PodTermination, Terminator};
use crate::termination::stop_timeout;

/// The checks.
#[derive(Clone, Debug, Default)]
pub(super) struct Stuck {
    /// When the next round over all pods is due, on CLOCK_MONOTONIC, and the number of rounds.
    next_at: Duration,
    round: u64,
    failed: u64,
}

/// A response of the runtime and its time on CLOCK_MONOTONIC; `None` without an answer.
type Seen = (Duration, Option<RuntimeState>);

/// A pod that hangs, or hung.
#[derive(Clone, Debug)]
pub(super) struct StuckPod {
    calls: PodTermination,
    liveness: KubeletLiveness,
    /// The runtime's last response, until it is judged.
    seen: Option<Seen>,
    /// The first round since which the runtime has had nothing of the pod.
    nothing_since: Option<u64>,
    /// The first round since which all its containers have exited.
    exited_since: Option<u64>,
    finding: Option<Finding>,
    written: u32,
    written_at: Option<Duration>,
    /// The report to send once the API has taken the write that is under way. The watch may show
    /// the pod's end before the response comes.
    writing: Option<String>,
    stops: u32,
    stopped_in: Option<u64>,
    /// Until when the API's refusal of the phase counts, on CLOCK_MONOTONIC.
    refused_until: Option<Duration>,
    event_at: Option<Duration>,
    /// Whether it was counted as one that an agent that enforces would have failed.
    would_fail: bool,
}

impl StuckPod {
    fn new(pod: &PodView, liveness: KubeletLiveness, facts: &Facts) -> Self {
        let at = facts.clock.now().wall;
        Self {
            calls: PodTermination::new(PodRef::of(pod), Terminator::Kubelet, at),
            liveness,
            seen: None,
            nothing_since: None,
            exited_since: None,
            finding: None,
            written: 0,
            written_at: None,
            writing: None,
            stops: 0,
            stopped_in: None,
            refused_until: None,
            event_at: None,
            would_fail: false,
        }
    }

    /// Drops all evidence: it belongs to an earlier state.
    fn forget_evidence(&mut self) {
        self.calls.report.inspect.drop_it();
        self.seen = None;
        self.nothing_since = None;
        self.exited_since = None;
        self.finding = None;
    }

    fn may_report(&self, now: Duration, pause: Duration) -> bool {
        self.event_at.is_none_or(|at| now >= at + pause)
    }
}

impl Stuck {
    pub(super) fn status(&self, disruptions: &Disruptions) -> StuckStatus {
        let mut pods: BTreeMap<Hang, usize> = BTreeMap::new();
        for finding in disruptions.stuck().filter_map(|case| case.finding) {
            *pods.entry(finding.hang).or_default() += 1;
        }
        StuckStatus { pods, failed: self.failed }
    }
}

fn stand_still(disruptions: &mut Disruptions) {
    for entry in disruptions.iter_mut() {
        if let Some(case) = &mut entry.stuck {
            case.forget_evidence();
        }
    }
}

/// Whether the pod is deleted and still has to end.
fn is_deleted(pod: &PodView, facts: &Facts) -> bool {
    pod.is_terminating()
        && !pod.is_terminal()
        && pod.source == PodSource::Api
        && !facts.is_own(&pod.uid)
}

/// How long the pod's grace is over; `None` if it is not. The deletion timestamp is the grace's
/// end.
fn over(pod: &PodView, facts: &Facts) -> Option<Duration> {
    let end = pod.details.deleted_at?;
    Duration::try_from(facts.clock.now().wall.duration_since(end)).ok()
}

fn enforces(facts: &Facts) -> bool {
    facts.settings.enforce && facts.settings.features.stuck_pods == Enforcement::Enforce
}

/// The kubelet's liveness for a pod whose time is over.
fn liveness_of(pod: &PodView, facts: &Facts, disruptions: &Disruptions) -> Option<KubeletLiveness> {
    let times = &facts.settings.features.stuck_times;
    let grace = pod.deletion_grace_seconds.filter(|_| is_deleted(pod, facts))?;
    let liveness = facts.kubelet.liveness(facts.clock.monotonic(), times)?;
    let wait =
        if liveness == KubeletLiveness::Lives { times.kubelet_timeout } else { times.margin };
    // Clocks jump, and in a suspend no kubelet terminates anything. So the agent must also have
    // seen the deleted pod for this long. That time alone is enough in the end.
    let mut since = disruptions.get(&pod.uid)?.seen_deleted?;
    // A kubelet that has come back gives each pod its grace again.
    if liveness == KubeletLiveness::Lives {
        let back = facts.kubelet.lives_since.unwrap_or_default();
        since = since.max(back + Duration::from_secs(grace.into()));
    }
    let seen = facts.clock.monotonic().saturating_sub(since);
    let over = over(pod, facts).is_some_and(|over| over > wait);
    let over = over || seen > wait + Duration::from_secs(grace.into());
    (over && seen >= wait).then_some(liveness)
}

/// Selects the pods to check in this round.
fn select(facts: &Facts, disruptions: &mut Disruptions) {
    let now = facts.clock.monotonic();
    for pod in facts.pods.iter().filter(|pod| is_deleted(pod, facts)) {
        disruptions.entry(PodRef::of(pod)).seen_deleted.get_or_insert(now);
    }
    let event_interval = facts.settings.features.stuck_times.event_interval;
    let flag = facts.settings.features.fail_hanging_starts;
    let hanging: BTreeMap<PodUid, (PodView, KubeletLiveness)> = facts
        .pods
        .iter()
        .filter_map(|pod| {
            Some((pod.uid.clone(), (pod.clone(), liveness_of(pod, facts, disruptions)?)))
        })
        .collect();
    for entry in disruptions.iter_mut() {
        let Some(case) = &mut entry.stuck else { continue };
        if hanging.contains_key(&case.calls.pod.uid) {
            continue;
        }
        case.forget_evidence();
        // The record of writes is kept for as long as the pod exists.
        let known = case.written > 0 || case.event_at.is_some() || case.writing.is_some();
        if !known {
            entry.stuck = None;
        }
    }
    let acts = enforces(facts);
    for (pod, liveness) in hanging.into_values() {
        let new = || Box::new(StuckPod::new(&pod, liveness, facts));
        let case = disruptions.entry(PodRef::of(&pod)).stuck.get_or_insert_with(new);
        if case.liveness != liveness {
            case.liveness = liveness;
            case.forget_evidence();
        }
        // Where the agent cannot act, it checks only to report.
        let may_act = acts && (liveness != KubeletLiveness::Lives || flag);
        if may_act || case.may_report(now, event_interval) {
            case.calls.report.inspect.want_again();
        } else {
            case.calls.report.inspect.drop_it();
        }
    }
}

fn inspect(facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
    for entry in disruptions.iter_mut() {
        let Some(case) = &mut entry.stuck else { continue };
        if !facts.settings.runtime && case.calls.report.inspect.is_open() {
            case.calls.report.inspect.done();
            case.seen = Some((facts.clock.monotonic(), None));
        } else if !out.calls.is_busy_with(&case.calls.pod.uid) {
            case.calls.ask(Verb::Inspect, Why::Deletion, &facts.clock, out);
        }
    }
}

impl Stuck {
    /// Advances the checks and the writes.
    pub(super) fn advance(&mut self, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        if facts.settings.features.stuck_pods == Enforcement::Off {
            return;
        }
        let Situation { runs, journaled, .. } = facts.situation;
        let busy = runs || journaled || facts.stop_at.is_some();
        if busy || !facts.pods.is_listed() {
            stand_still(disruptions);
            return;
        }
        let any = facts.pods.iter().any(|pod| is_deleted(pod, facts))
            || disruptions.stuck().any(|case| case.finding.is_some());
        if any && facts.clock.reached(self.next_at) {
            self.next_at = facts.clock.monotonic() + facts.settings.features.stuck_times.pace;
            self.round += 1;
            select(facts, disruptions);
            // Wakes the agent for the next round, whatever this one brings.
            facts.clock.reached(self.next_at);
        }
        inspect(facts, out, disruptions);
        let seen = disruptions.stuck().filter(|case| case.seen.is_some());
        let seen: Vec<PodUid> = seen.map(|case| case.calls.pod.uid.clone()).collect();
        for uid in seen {
            self.judge(&uid, facts, out, disruptions);
        }
    }

    /// Takes an answer about a pod. After a failure, the next round checks the pod again.
    pub(super) fn answered(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        answer: Answer<'_>,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let now = facts.clock.monotonic();
        let Some(case) = disruptions.stuck_mut(uid) else { return };
        if let Answer::Runtime(result) = answer {
            case.calls.report.inspect.done();
            case.seen = Some((now, result.as_ref().ok().cloned()));
            return;
        }
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 0 };
        let goal = Goal { why: Why::Deletion, pace };
        let meaning = case.calls.answered(verb, answer, &goal, facts, out);
        case.calls.report.inspect.drop_it();
        match (meaning, case.writing.take()) {
            (Meaning::Done, Some(text)) => {
                case.written += 1;
                case.finding = None;
                self.failed += 1;
                out.warn_of_pod(case.calls.pod.clone(), POD_FAILED, &text);
            }
            (Meaning::Refused, _) => case.refused_until = Some(now + FORBIDDEN_FOR),
            // An attempt without a response is not counted: if the API applied it, the pod shows
            // it.
            _ => {}
        }
    }

    /// Decides about one pod by its latest evidence.
    fn judge(&self, uid: &PodUid, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        let now = facts.clock.monotonic();
        let round = self.round;
        let Some(pod) = facts.pods.get(uid) else { return };
        let liveness = liveness_of(pod, facts, disruptions);
        let Some(case) = disruptions.stuck_mut(uid) else { return };
        let Some(seen) = case.seen.take() else { return };
        let (at, state) = (seen.0, seen.1.as_ref());
        // The kubelet has come or gone since: the evidence is outdated.
        if liveness != Some(case.liveness) {
            case.forget_evidence();
            return;
        }
        if now > at + PROOF_LASTS {
            return;
        }
        let nothing = state.is_some_and(|it| it.containers.is_empty());
        let since = nothing.then(|| case.nothing_since.unwrap_or(round));
        case.nothing_since = since;
        let evidence = Evidence {
            pod,
            liveness: case.liveness,
            runtime: state,
            twice: since.is_some_and(|since| since < round),
            fail_hanging_starts: facts.settings.features.fail_hanging_starts,
            written: case.written,
            stops: case.stops,
        };
        let mut finding = hanging::judge(&evidence);
        let refused = case.refused_until.is_some_and(|until| now < until)
            || out.refusals.forbids(PATCH_STATUS);
        if finding.judgement == Judgement::Fail && refused {
            finding.judgement = Judgement::Leave(Obstacle::Refused);
        }
        // An agent that observes may have no runtime to ask.
        let unasked = !facts.settings.runtime && !facts.settings.enforce;
        if unasked && finding.would_fail_unseen(pod, case.liveness) {
            finding.judgement = Judgement::Fail;
        }
        let exited = finding.hang == Hang::Exited;
        case.exited_since = exited.then(|| case.exited_since.unwrap_or(round));
        // A live kubelet needs some time to clean up and to report what has just exited, however
        // late that is.
        let lives = case.liveness == KubeletLiveness::Lives;
        let acts = matches!(finding.judgement, Judgement::StopSandbox | Judgement::Fail);
        if lives && acts && case.exited_since == Some(round) {
            finding.judgement = Judgement::CheckAgain;
        }
        case.finding = Some(finding);
        case.act_on(pod, finding, (seen, round), facts, out);
    }
}

impl StuckPod {
    fn act_on(
        &mut self,
        pod: &PodView,
        finding: Finding,
        (seen, round): (Seen, u64),
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let pace = facts.settings.features.stuck_times.pace;
        let acts = enforces(facts);
        let room = out.calls.has_room();
        let over = over(pod, facts).unwrap_or_default();
        match finding.judgement {
            Judgement::CheckAgain => {}
            Judgement::Leave(_) => self.report(pod, finding, facts, out),
            _ if !acts => self.report(pod, finding, facts, out),
            Judgement::StopSandbox => {
                if self.stopped_in.replace(round) == Some(round) {
                    return;
                }
                self.stops += 1;
                // If a container has started since, it gets the grace that its kubelet would give
                // it.
                let grace = pod.deletion_grace_seconds.unwrap_or_default();
                let wait = stop_timeout::after(self.stops.saturating_sub(1), false);
                let text = "nothing runs in its sandbox any more, which is stopped";
                out.calls.log(false, Some(&self.calls.pod), text);
                out.calls.stop(Part::Stuck, pod, grace, Reach::Pod, wait);
            }
            Judgement::Fail => {
                if self.written_at.is_some_and(|at| now < at + pace) {
                    return;
                }
                if !room {
                    self.seen = Some(seen);
                    return;
                }
                self.written_at = Some(now);
                let words = finding.failed(self.liveness, over);
                self.writing = Some(format!("Failed by the agent: {words}."));
                self.calls.send_fail(pod, Why::Deletion, &facts.clock, out);
            }
        }
    }

    /// Reports that the pod hangs, or what would be done about it, at limited intervals.
    fn report(&mut self, pod: &PodView, finding: Finding, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let features = &facts.settings.features;
        let only_observes = !enforces(facts);
        let pause = features.stuck_times.event_interval;
        let over = over(pod, facts).unwrap_or_default();
        if !self.may_report(now, pause) {
            return;
        }
        let (reason, text) = match finding.judgement {
            Judgement::Leave(_) if only_observes => return,
            Judgement::Leave(obstacle) => (POD_STUCK, finding.left(self.liveness, over, obstacle)),
            _ => {
                // Later events of the same pod repeat the first.
                let count = u64::from(!std::mem::replace(&mut self.would_fail, true));
                *out.status.would_have.entry(WouldHave::FailStuck).or_default() += count;
                let words = finding.failed(self.liveness, over);
                let proof = match finding.hang {
                    Hang::NoWitness => ", and the runtime proved that nothing of it runs",
                    _ => "",
                };
                let text = "Would be failed if the agent were set to enforce";
                (WOULD_FAIL, format!("{text}{proof}: {words}."))
            }
        };
        self.event_at = Some(now);
        out.warn_of_pod(self.calls.pod.clone(), reason, &text);
    }
}
