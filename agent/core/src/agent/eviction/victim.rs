//! Follows victims from the choice to their end, whatever that is. An eviction has one protocol:
//! set DisruptionTarget, report, stop, verify, write Failed, await the acknowledgement
//! (`steps.rs`).

use std::time::Duration;

use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::notices::EVICTION_FAILED;
use super::super::out::Out;
use super::Evictions;
use super::choice::REFUSED_LASTS;
use super::steps::Fate;
use crate::pod::{PodUid, PodView};
use crate::pressure::message::Description;
use crate::pressure::watch::{Cause, Hold};
use crate::protocol::action::PodRef;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::termination::patches;
use crate::termination::progress::{PodTermination, Terminator};

/// The grace of a pod that exceeds its own limit. ([EV26])
const OWN_LIMIT_GRACE_SECONDS: u32 = 1;
/// The API's time to take the mark, for a hard threshold: after it, another pod may be faster.
const MARK_HARD: Duration = Duration::from_secs(5);
/// The same for a soft threshold.
const MARK_SOFT: Duration = Duration::from_secs(30);
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
    pub(super) by_others: bool,
    /// Whether the pod has volumes in memory.
    pub(super) memory_volumes: bool,
    /// Whether the agent has read the pod once more because the watch did not show the mark.
    pub(super) mark_sought: bool,
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
    pub(super) reported_late: bool,
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

    pub(super) fn is_shown_as_ours(&self, pod: &PodView) -> bool {
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

fn by(terminator: Terminator) -> &'static str {
    match terminator {
        Terminator::Stop => "through the runtime",
        Terminator::Deadline => "by its deadline",
        _ => "by deletion",
    }
}
