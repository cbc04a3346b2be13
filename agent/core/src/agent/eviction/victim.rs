//! Evicts one victim by one protocol: set DisruptionTarget, report, stop, verify, write Failed,
//! await the acknowledgement.

use std::time::Duration;

use super::super::calls::Verb;
use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::notices::{EVICTED, EVICTION_FAILED, EVICTION_SLOW};
use super::super::out::Out;
use super::super::pod_steps::Why;
use super::Evictions;
use super::choice::{LATE_LASTS, REFUSED_LASTS};
use super::effective_mode::{EffectiveMode, effective_mode};
use crate::pod::{Disruption, PodUid, PodView, TERMINATION_BY_KUBELET};
use crate::pressure::message::Description;
use crate::pressure::watch::{Cause, Hold};
use crate::protocol::action::{Notice, PodRef};
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::termination::patches;
use crate::termination::progress::{PATCH_STATUS, PodTermination, Terminator};

/// The grace of a pod that exceeds its own limit. ([EV26])
const OWN_LIMIT_GRACE_SECONDS: u32 = 1;
/// The API's time to take the mark, for a hard threshold: after it, another pod may be faster.
const MARK_HARD: Duration = Duration::from_secs(5);
/// The same for a soft threshold.
const MARK_SOFT: Duration = Duration::from_secs(30);
/// The time beyond its grace to stop or delete a victim. After it, a victim that was not reached
/// lives on and must not bear our mark. A victim that was stopped but still runs is reported.
const END_MARGIN: Duration = Duration::from_secs(30);
/// So many stops without an answer are repeated in haste, which takes half a minute.
const HASTE_MAX: u32 = 10;

/// Why a pod is evicted.
#[derive(Clone, Debug)]
pub(super) struct Reason {
    /// The signal's name in metrics.
    pub(super) signal: &'static str,
    /// The node's shortage; `None` for a limit of the pod's own.
    pub(super) cause: Option<Cause>,
    pub(super) description: Description,
}

/// A pod whose eviction is in progress.
#[derive(Clone, Debug)]
pub(in super::super) struct Victim {
    pub(super) termination: PodTermination,
    pub(super) signal: &'static str,
    pub(super) cause: Option<Cause>,
    /// How long it delays the next victim; `None` for a limit of the pod's own.
    pub(super) hold: Option<Hold>,
    pub(super) description: Description,
    pub(super) chosen_at: Duration,
    /// The API's time to take the mark, and its end.
    pub(super) mark_time: Duration,
    pub(super) mark_until: Duration,
    /// The time limit of the termination; set when it is first requested.
    pub(super) end_until: Option<Duration>,
    /// Whether another component terminated the pod before us.
    by_others: bool,
    /// Whether the pod has volumes in memory.
    memory_volumes: bool,
    /// Whether the agent has read the pod once more because the watch did not show the mark.
    mark_sought: bool,
    /// Whether the API does not answer the read that follows a failed write.
    pub(super) api_is_silent: bool,
    /// Why the eviction failed.
    pub(super) refused: Option<String>,
    /// The API's words for a write that it refuses.
    pub(super) words: String,
    /// Whether a stop may have reached the pod. Then its end is ours, however late, and the mark
    /// stays.
    pub(super) was_stopped: bool,
    /// Whether the agent has reported that the pod runs on after the time limit.
    reported_late: bool,
}

/// The outcome of one round for a victim.
enum Fate {
    /// The eviction continues.
    GoesOn,
    /// The pod is terminal in the API, or gone.
    Over,
    /// The agent cannot terminate it, and excludes it from the choice for this time.
    GivenUp(String, Duration),
    /// The eviction is not needed any more, and nothing was sent.
    Dropped,
}

impl Victim {
    pub(super) fn pace(&self) -> Pace {
        let salt = salt(&self.termination.pod.uid.0);
        let latest = if self.termination.mark.write.is_open() {
            Some(self.mark_until)
        } else {
            self.end_until
        };
        // A pod that resists, or a runtime that is silent, is asked again and again, but at a slow
        // pace.
        let is_slow = self.reported_late || self.termination.end.call.failures() > HASTE_MAX;
        let wait_max = if is_slow { WAIT_MAX } else { WAIT_MAX_HASTE };
        Pace { wait_max, latest, salt }
    }

    fn is_shown_as_ours(&self, pod: &PodView) -> bool {
        let ours = |disruption| patches::is_ours(disruption, self.termination.mark.at);
        pod.disruption.as_ref().is_some_and(ours)
    }
}

impl Evictions {
    /// Begins the eviction of a pod.
    pub(super) fn begin_eviction(
        &mut self,
        pod: &PodView,
        terminator: Terminator,
        why: Reason,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let now = facts.clock.now();
        let config = self.watch.config();
        let (grace_seconds, mark_time) = match &why.cause {
            Some(cause) => {
                let grace = cause.grace_seconds(pod.grace_seconds, config.soft_grace_seconds_max);
                (grace, if cause.is_hard() { MARK_HARD } else { MARK_SOFT })
            }
            None => (OWN_LIMIT_GRACE_SECONDS, MARK_HARD),
        };
        let mut termination = PodTermination::new(PodRef::of(pod), terminator, now.wall);
        termination.end.grace_seconds = grace_seconds;
        let mut hold = None;
        if let Some(cause) = &why.cause {
            termination.mark.write = Attempt::wanted();
            hold = Some(self.watch.victim_chosen(cause, grace_seconds, now.monotonic));
            self.forget_causes();
        }
        let cause = why.cause.map_or_else(|| why.signal.to_owned(), |cause| cause.to_string());
        let text = format!("is evicted for {cause}: {}, grace {grace_seconds} s", by(terminator));
        out.calls.log(true, Some(&termination.pod), text);
        let victim = Victim {
            termination,
            signal: why.signal,
            cause: why.cause,
            hold,
            description: why.description,
            chosen_at: now.monotonic,
            mark_time,
            mark_until: now.monotonic + mark_time,
            end_until: None,
            by_others: false,
            memory_volumes: pod.details.memory_volumes,
            mark_sought: false,
            api_is_silent: false,
            refused: None,
            words: String::new(),
            was_stopped: false,
            reported_late: false,
        };
        disruptions.entry(PodRef::of(pod)).eviction = Some(Box::new(victim));
    }

    /// Advances each victim.
    pub(super) fn advance_victims(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let uids: Vec<PodUid> =
            disruptions.victims().map(|victim| victim.termination.pod.uid.clone()).collect();
        for uid in uids {
            let entry = disruptions.get_mut(&uid);
            let Some(mut victim) = entry.and_then(|entry| entry.eviction.take()) else { continue };
            let pod = facts.pods.get(&uid).filter(|pod| !pod.is_terminal());
            let fate = pod.map_or(Fate::Over, |pod| {
                let over = self.outlast_silence(&mut victim, pod, facts);
                over.map_or_else(
                    || victim.advance(pod, facts, out),
                    |why| Fate::GivenUp(why, Duration::ZERO),
                )
            });
            match fate {
                Fate::GoesOn => {
                    let of = victim.termination.pod.clone();
                    disruptions.entry(of).eviction = Some(victim);
                }
                Fate::Over => {
                    self.victim_is_over(&victim, facts, out);
                    // The pod must not be chosen again, although the watch may lag. A kubelet may
                    // also revert the phase for a moment. ([API16])
                    if facts.pods.get(&uid).is_some() {
                        let now = facts.clock.monotonic();
                        self.choices.refuse(uid.clone(), now + REFUSED_LASTS);
                        disruptions.eviction_ended(victim.termination.pod.clone(), now);
                    }
                }
                Fate::GivenUp(why, excluded_for) => {
                    let termination = &victim.termination;
                    if termination.may_reach_api() {
                        disruptions.remove_of_victim(termination.pod.clone(), termination.mark.at);
                    }
                    self.choices.refuse(uid, facts.clock.monotonic() + excluded_for);
                    self.give_victim_up(&victim, &why, facts, out);
                }
                Fate::Dropped => self.drop_victim(&victim, facts, out),
            }
        }
    }

    /// Resumes the victims after a cancelled shutdown: what is known of them is older than it.
    pub(super) fn take_up_victims(&mut self, disruptions: &mut Disruptions) {
        self.forget_causes();
        for entry in disruptions.iter_mut() {
            let Some(victim) = &mut entry.eviction else { continue };
            victim.termination.read.want_again();
            victim.termination.report.proven_at = None;
        }
    }

    /// The victim does not delay the next one any more.
    fn let_go(&mut self, victim: &Victim, now: Duration) {
        if let Some(hold) = victim.hold {
            self.watch.victim_ended(hold, now);
        }
        self.forget_causes();
    }

    fn victim_is_over(&mut self, victim: &Victim, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let PodTermination { pod, end, .. } = &victim.termination;
        self.let_go(victim, now);
        if victim.cause.is_none_or(|cause| cause.signal.node_condition() == "DiskPressure") {
            self.watch.files_are_deleted(now);
        }
        if victim.memory_volumes && victim.termination.end.by == Terminator::Stop {
            self.watch.memory_is_freed(now);
        }
        self.stalls.begin_anew(now);
        if victim.by_others || !end.call.may_have_applied() {
            out.calls.log(
                false,
                Some(pod),
                "the victim terminated by itself, or others terminated it",
            );
            return;
        }
        let took = now.saturating_sub(victim.chosen_at);
        let count = out.status.pressure.evictions.entry(victim.signal).or_default();
        (count.done, count.took) = (count.done + 1, Some(took));
        let text = format!("the victim is terminated, after {} ms", took.as_millis());
        out.calls.log(false, Some(pod), text);
    }

    fn drop_victim(&mut self, victim: &Victim, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let pod = &victim.termination.pod;
        self.let_go(victim, now);
        let text = "it is not evicted: the agent may not act on its cause any more";
        out.calls.log(false, Some(pod), text);
    }

    /// Gives up a victim. The agent at once removes a mark that may have arrived, because the pod
    /// lives on. ([ST7])
    ///
    /// DIVERGES(upstream): upstream never removes a mark. It marks with the phase, so a marked pod
    /// cannot live on.
    fn give_victim_up(&mut self, victim: &Victim, why: &str, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let pod = &victim.termination.pod;
        self.let_go(victim, now);
        out.status.pressure.evictions.entry(victim.signal).or_default().given_up += 1;
        let text = format!("its eviction is given up: {why}");
        out.calls.log(true, Some(pod), text);
        if !self.choices.may_report(&pod.uid, EVICTION_FAILED, now) {
            return;
        }
        let text = format!(
            "It was chosen for eviction, and is not evicted: {why}. {}",
            victim.description.message
        );
        out.emit_pod_event(pod.clone(), EVICTION_FAILED, text.trim_end());
    }
}

impl Victim {
    /// Takes the next step, if one is due.
    fn advance(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Fate {
        if out.calls.is_busy_with(&pod.uid) {
            return Fate::GoesOn;
        }
        if let Some(why) = self.refused.take() {
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        if self.termination.mark.write.is_open() && self.is_shown_as_ours(pod) {
            // The watch is faster than the read.
            self.termination.read.drop_it();
        }
        if self.termination.read.is_open() {
            let why = Why::Eviction(&self.description.message);
            self.termination.ask(Verb::Read, why, &facts.clock, out);
            return Fate::GoesOn;
        }
        if let Some(fate) = self.mark(pod, facts, out) {
            return fate;
        }
        let is_ours = self.termination.end.by != Terminator::Stop
            || self.termination.end.call.may_have_applied();
        if !is_ours && pod.is_to_end() {
            // The kubelet terminates the pod for another client, with our mark.
            self.termination.end.call = Attempt::done_by_others();
            self.termination.event_sent = true;
            self.by_others = true;
        }
        if !std::mem::replace(&mut self.termination.event_sent, true) {
            self.report_evicted(out);
        }
        match self.termination.end.by {
            Terminator::Stop => self.stop(pod, facts, out),
            _ => self.delete(pod, facts, out),
        }
    }

    /// Sends the mark; returns `None` when it stands. The agent stops nothing of the pod before the
    /// API has the mark.
    fn mark(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Option<Fate> {
        let ours = self.is_shown_as_ours(pod);
        let termination = &mut self.termination;
        if !termination.mark.write.is_wanted() || termination.mark.write.is_done() {
            return None;
        }
        let sent = termination.mark.write.may_have_applied();
        if sent && ours {
            termination.mark.write = Attempt::done_before();
            return None;
        }
        if pod.is_to_end() && !sent {
            // A deletion by another client has its own reason, and its own end.
            termination.mark.write.drop_it();
            termination.end.call = Attempt::done_by_others();
            termination.event_sent = true;
            self.by_others = true;
            return None;
        }
        if !sent && effective_mode(facts) != EffectiveMode::Enforce {
            return Some(Fate::Dropped);
        }
        let foreign = |disruption: &Disruption| {
            disruption.stands && disruption.reason != TERMINATION_BY_KUBELET
        };
        if pod.disruption.as_ref().is_some_and(foreign) && !sent {
            // Another writer's reason is more specific than ours.
            termination.mark.write = Attempt::done_by_others();
            return None;
        }
        if out.refusals.forbids(PATCH_STATUS) {
            let why = "the API forbids its DisruptionTarget".to_owned();
            return Some(Fate::GivenUp(why, REFUSED_LASTS));
        }
        if termination.mark.write.is_given_up() {
            let why = format!("the API refuses its DisruptionTarget: {}", self.words);
            return Some(Fate::GivenUp(why, REFUSED_LASTS));
        }
        if facts.clock.reached(self.mark_until) {
            let why = "the API does not accept its DisruptionTarget in time".to_owned();
            return Some(Fate::GivenUp(why, LATE_LASTS));
        }
        if termination.mark.write.is_due(&facts.clock) && out.calls.has_room() {
            termination.send_mark(pod, Why::Eviction(&self.description.message), None, out);
        }
        Some(Fate::GoesOn)
    }

    /// Reports a victim that still runs. The mark stays: the pod's end will come from our stop, and
    /// must not count as its own failure. If another victim was needed, it has already been chosen.
    fn report_stubborn(&self, out: &mut Out) {
        let pod = &self.termination.pod;
        let seconds = end_time(self.termination.end.grace_seconds).as_secs();
        let text = format!(
            "it was stopped and still runs, after {seconds} s; it is stopped again and again"
        );
        out.calls.log(true, Some(pod), text);
        let text = format!(
            "It was stopped, and still runs after {seconds} s: see the container runtime's log. \
             {}",
            self.description.message
        );
        out.emit_pod_event(pod.clone(), EVICTION_SLOW, text.trim_end());
    }

    fn report_evicted(&self, out: &mut Out) {
        let Description { message, annotations } = self.description.clone();
        let pod = Some(self.termination.pod.clone());
        out.emit_notice(Notice { pod, warning: true, reason: EVICTED, message, annotations });
    }

    /// Stops the pod through the runtime, and then writes the phase. The object stays, as after a
    /// kubelet's eviction. ([AP3])
    fn stop(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Fate {
        let now = facts.clock.monotonic();
        let termination = &mut self.termination;
        if termination.end.call.is_done() {
            if termination.report.write.is_open() || termination.report.inspect.is_open() {
                self.fail(pod, facts, out);
            }
            return Fate::GoesOn;
        }
        let late = self.end_until.is_some_and(|at| facts.clock.reached(at));
        if termination.end.call.is_given_up() || late && !self.was_stopped {
            let why = "the container runtime does not stop it".to_owned();
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        if late && !std::mem::replace(&mut self.reported_late, true) {
            self.report_stubborn(out);
        }
        let termination = &mut self.termination;
        termination.end.call.want();
        if termination.end.call.is_due(&facts.clock) {
            self.end_until.get_or_insert(now + end_time(termination.end.grace_seconds));
            termination.send_end(pod, Why::Eviction(&self.description.message), out);
        }
        Fate::GoesOn
    }

    /// Writes the phase of a pod of which nothing runs, by a fresh proof.
    fn fail(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) {
        let why = Why::Eviction(&self.description.message);
        let termination = &mut self.termination;
        let proven = termination.may_fail(&facts.clock);
        if termination.report.inspect.is_open() {
            return termination.ask(Verb::Inspect, why, &facts.clock, out);
        }
        // If another client has deleted the pod meanwhile, the kubelet tears it down and reports.
        if out.refusals.forbids(PATCH_STATUS) || pod.is_to_end() {
            return termination.report.write.give_up();
        }
        // A phase without its reason would count as the pod's own failure.
        let marked = self.cause.is_none() || pod.is_disrupted();
        if !marked && !std::mem::replace(&mut self.mark_sought, true) {
            termination.read.want_again();
            termination.ask(Verb::Read, why, &facts.clock, out);
        } else if !marked {
            let text = "others removed its DisruptionTarget; the kubelet reports its phase";
            out.calls.log(true, Some(&termination.pod), text);
            termination.report.write.give_up();
        } else if proven && out.calls.has_room() {
            termination.send_fail(pod, why, &facts.clock, out);
        }
    }

    /// Terminates the pod through the API: the kubelet stops it and reports. ([API17], [API18])
    fn delete(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Fate {
        let now = facts.clock.monotonic();
        let termination = &mut self.termination;
        let lever = termination.end.by == Terminator::Deadline;
        let deleted =
            pod.deletion_grace_seconds.is_some_and(|it| it <= termination.end.grace_seconds);
        if deleted || lever && pod.is_to_end() {
            if !termination.end.call.is_done() {
                self.by_others = !termination.end.call.may_have_applied();
                termination.end.call.done();
            }
            return Fate::GoesOn;
        }
        if termination.end.call.is_done() {
            return Fate::GoesOn;
        }
        let right = termination.end.by.right().filter(|right| out.refusals.forbids(right));
        if let Some(right) = right {
            return Fate::GivenUp(format!("the API forbids `{right}`"), REFUSED_LASTS);
        }
        if termination.end.call.is_given_up() {
            let why = format!("the API refuses its termination: {}", self.words);
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        if self.end_until.is_some_and(|at| facts.clock.reached(at)) {
            let why = "the API does not accept its termination in time".to_owned();
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        termination.end.call.want();
        if termination.end.call.is_due(&facts.clock) && out.calls.has_room() {
            self.end_until.get_or_insert(now + END_MARGIN);
            termination.send_end(pod, Why::Eviction(&self.description.message), out);
        }
        Fate::GoesOn
    }
}

/// The time limit for the proof of a stop through the runtime.
fn end_time(grace_seconds: u32) -> Duration {
    Duration::from_secs(u64::from(grace_seconds)) + END_MARGIN
}

fn by(terminator: Terminator) -> &'static str {
    match terminator {
        Terminator::Stop => "through the runtime",
        Terminator::Deadline => "by its deadline",
        _ => "by deletion",
    }
}
