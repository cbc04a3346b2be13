//! Writes the condition `epilogue.dev/OOMKilled`, in a race with the kubelet's report of the pod's
//! end. The agent sends it at once, alongside everything else, whatever the API shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::{FailureKind, Outcome};
use jiff::Timestamp;

use super::super::calls::Part;
use super::super::facts::Facts;
use super::super::notices::NOT_PERMITTED;
use super::super::out::Out;
use super::super::pods::Pods;
use super::super::refusals::{FORBIDDEN_FOR, SEVERAL};
use super::Oom;
use crate::pod::{PodSource, PodUid, PodView, RestartPolicy};
use crate::protocol::action::{PodRef, Purpose};
use crate::termination::attempt::{
    Attempt, Follow, Pace, REPEATABLE, WAIT_MAX, WAIT_MAX_HASTE, salt,
};
use crate::termination::patches::{self, OomKilled};

/// How long the race with the kubelet's report may be open.
const HASTE: Duration = Duration::from_mins(1);
/// When a condition that is still unwritten is no longer useful.
const GIVE_UP: Duration = Duration::from_mins(10);
/// The shortest time between two writes for a pod that is killed repeatedly for the same reason.
const SAME_AGAIN: Duration = Duration::from_mins(1);

/// The content of the pod's condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OomCondition {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The message of the accompanying `DisruptionTarget`, if there is one.
    pub(super) disruption: Option<String>,
    /// The killed container; `None` for the whole pod, or if it is not known.
    pub(super) victim: Option<String>,
    /// When the kill happened, by the API's clock.
    pub(super) at: Timestamp,
}

/// One pod's condition.
#[derive(Clone, Debug)]
struct Condition {
    pod: PodRef,
    cause: OomCondition,
    /// When it was first wanted, on CLOCK_MONOTONIC.
    since: Duration,
    attempt: Attempt,
    /// The reason that was sent last.
    sent: Option<&'static str>,
    /// Whether a `DisruptionTarget` was sent with it.
    disrupts: bool,
    /// Whether the race counts: a kill does not terminate a pod that restarts the container.
    counts: bool,
    /// Whether the condition was there before the pod's terminal phase; `None` until it is known.
    won: Option<bool>,
    /// Whether the pod was already terminal when the API acknowledged the condition.
    late: bool,
}

/// All conditions.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    pods: BTreeMap<PodUid, Condition>,
    /// The pods whose conditions were refused since the last accepted one.
    refused: BTreeSet<PodUid>,
    forbidden_until: Option<Duration>,
    pub(super) won: u64,
    pub(super) lost: u64,
}

impl Conditions {
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// Number of conditions that are neither acknowledged nor given up.
    pub(super) fn pending(&self) -> usize {
        self.pods.values().filter(|condition| condition.attempt.is_open()).count()
    }

    /// Requests the condition on the pod, unless the pod has it already.
    pub(super) fn want(&mut self, pod: &PodView, cause: OomCondition, now: Duration) {
        let Some(known) = self.pods.get_mut(&pod.uid) else {
            let attempt =
                if needs(pod, &cause) { Attempt::wanted() } else { Attempt::done_by_others() };
            let condition = Condition {
                pod: PodRef::of(pod),
                counts: !restarts(pod, &cause),
                cause,
                since: now,
                attempt,
                sent: None,
                disrupts: false,
                won: None,
                late: false,
            };
            self.pods.insert(pod.uid.clone(), condition);
            return;
        };
        let again = restarts(pod, &cause) && now >= known.since + SAME_AGAIN;
        let same = known.cause.reason == cause.reason && !again;
        if !same {
            known.since = now;
            known.attempt.want_again();
        }
        // A condition that was sent stands; an unsent one takes the newer text.
        if !same || known.sent.is_none() {
            known.cause = cause;
        }
    }

    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        let Some(condition) = self.pods.remove(uid) else { return };
        if condition.sent.is_some() && condition.counts && condition.won.is_none() {
            let won = condition.attempt.is_done() && !condition.late;
            self.won += u64::from(won);
            self.lost += u64::from(!won);
        }
    }

    /// Measures whether the condition or the terminal phase was in the API first. The first state
    /// of the pod that shows the condition is the one that our write made.
    fn measure(&mut self, pods: &Pods) {
        for (uid, condition) in &mut self.pods {
            let Some(sent) = condition.sent.filter(|_| condition.won.is_none()) else { continue };
            let Some(pod) = pods.get(uid) else { continue };
            if condition.counts && shows(pod, sent) {
                let won = !pod.is_terminal();
                condition.won = Some(won);
                self.won += u64::from(won);
                self.lost += u64::from(!won);
            }
        }
    }
}

/// Whether the API shows the condition with this reason.
fn shows(pod: &PodView, reason: &str) -> bool {
    pod.details.oom_killed.as_ref().is_some_and(|(stands, shown)| *stands && shown == reason)
}

/// Whether a write is needed. On a pod that restarts the container, the condition describes the
/// previous one.
fn needs(pod: &PodView, cause: &OomCondition) -> bool {
    let disrupts = cause.disruption.is_some() && may_disrupt(pod, cause);
    restarts(pod, cause) || !shows(pod, cause.reason) || disrupts
}

/// Whether the kubelet starts the killed container again: by the container's own policy, as that of
/// a sidecar, or by the pod's.
fn restarts(pod: &PodView, cause: &OomCondition) -> bool {
    let is_sidecar = |victim: &String| pod.sidecars.contains(victim);
    pod.restarts_in_place != RestartPolicy::Never
        || pod.restarts_all
        || cause.victim.as_ref().is_some_and(is_sidecar)
}

/// Whether a `DisruptionTarget` is true: the pod will end, and no other writer has stated the
/// cause.
///
/// A killed process proves that the pod has run, even before the API shows it. If there are other
/// containers, they run on, perhaps for hours, and may end for another cause.
fn may_disrupt(pod: &PodView, cause: &OomCondition) -> bool {
    let ends = !restarts(pod, cause) && pod.containers.len() < 2;
    ends && !pod.is_terminal() && !pod.is_disrupted()
}

impl Oom {
    /// Requests the condition on a pod. The agent writes nothing on a static pod, nor while it only
    /// observes.
    pub(super) fn want_condition(&mut self, pod: &PodView, cause: OomCondition, facts: &Facts) {
        if facts.settings.enforce && pod.source == PodSource::Api {
            self.conditions.want(pod, cause, facts.clock.monotonic());
        }
    }

    /// Sends the conditions that are due.
    pub(super) fn send_conditions(&mut self, facts: &Facts, out: &mut Out) {
        let conditions = &mut self.conditions;
        conditions.measure(&facts.pods);
        let forbidden = conditions.forbidden_until.is_some_and(|until| !facts.clock.reached(until));
        for (uid, condition) in &mut conditions.pods {
            let attempt = &mut condition.attempt;
            if !attempt.is_open() || attempt.is_in_flight() {
                continue;
            }
            if facts.clock.reached(condition.since + GIVE_UP) {
                attempt.give_up();
                continue;
            }
            if forbidden || !attempt.is_due(&facts.clock) {
                continue;
            }
            let Some(pod) = facts.pods.get(uid) else { continue };
            if !out.calls.has_room() {
                return;
            }
            let cause = &condition.cause;
            let disruption = cause.disruption.as_deref().filter(|_| may_disrupt(pod, cause));
            let stands = pod.details.oom_killed.as_ref().is_some_and(|(stands, _)| *stands);
            let body = patches::oom_killed(
                pod,
                &OomKilled {
                    reason: cause.reason,
                    message: &cause.message,
                    // The transition time does not change where the status is True already.
                    since: (!stands).then_some(cause.at),
                    disruption: disruption.map(|message| (message, cause.at)),
                },
            );
            attempt.sent();
            condition.sent = Some(cause.reason);
            condition.disrupts = disruption.is_some();
            out.calls.patch(Part::Oom, Purpose::Cause, &condition.pod, body);
        }
    }

    pub(super) fn was_written(
        &mut self,
        uid: &PodUid,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let ended = facts.pods.get(uid).is_some_and(PodView::is_terminal);
        let conditions = &mut self.conditions;
        let Some(condition) = conditions.pods.get_mut(uid) else { return };
        let haste = now < condition.since + HASTE;
        let wait_max = if haste { WAIT_MAX_HASTE } else { WAIT_MAX };
        let pace = Pace { wait_max, latest: None, salt: salt(&uid.0) };
        // Without a resourceVersion, a conflict is a concurrent write, or a new pod of the same
        // name. In that case the watch will report that the pod is gone.
        match condition.attempt.settle(result, now, pace, REPEATABLE.slowly()) {
            Follow::Done => {
                condition.late = ended;
                conditions.refused.clear();
                if condition.sent != Some(condition.cause.reason) {
                    condition.attempt.want_again();
                }
            }
            // A pod that has ended meanwhile cannot get a disruption any more, but it can get the
            // cause.
            Follow::Refused | Follow::Slowly if condition.disrupts => {
                condition.cause.disruption = None;
                condition.attempt = Attempt::wanted();
            }
            Follow::Gone | Follow::Reread | Follow::Retry => {}
            // The first of these answers has said so.
            Follow::Refused | Follow::Slowly if condition.attempt.times_invalid() > 1 => {}
            Follow::Refused | Follow::Slowly => {
                let text = "the API does not accept the cause of its OOM kill";
                out.calls.log_refusal(&condition.pod, text, result);
                self.note_refused_cause(uid, result, facts, out);
            }
        }
    }

    /// A policy may forbid this condition alone: other patches continue.
    fn note_refused_cause(
        &mut self,
        uid: &PodUid,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let conditions = &mut self.conditions;
        let Err(failure) = result else { return };
        if failure.kind == FailureKind::Forbidden {
            conditions.refused.insert(uid.clone());
        }
        if conditions.refused.len() >= SEVERAL {
            conditions.refused.clear();
            conditions.forbidden_until = Some(now + FORBIDDEN_FOR);
            let text = format!("the API forbids conditions with the cause of OOM kills: {failure}");
            out.emit_event(true, NOT_PERMITTED, text);
        }
    }
}
