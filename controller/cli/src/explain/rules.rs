//! Explains a Job to people: what each pod counts as and why, what the Job waits for, and what the
//! next sync would do.

pub(crate) mod disruptions;
pub(crate) mod ends;
mod group;
mod limits;
pub(crate) mod remedies;
#[cfg(test)]
mod tests;
mod waits;
pub(crate) mod warnings;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use controller_core::job::{
    Claim, ClaimKind, End, NodeFault, PodDraft, PodOutcomes, PodPlan, PodStage, SkipReason,
    StatusPlan, SyncInput, counts_as_failure, failure_action, has_valid_index, is_rejected_by_node,
    plan_pods, plan_status, status_text,
};
use controller_core::view::{Job, Phase, Pod, Uid};
use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::disruption_reason::{LOST_BY_NODE, REJECTED_BY_KUBELET};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobStatus;
use serde::Serialize;
use serde_json::Value;

use disruptions::{Disruptions, disruptions};
use ends::{Ends, ends, to_end};
use group::with_group;
use limits::{Usage, counted_limits, limits};
use remedies::{Remedy, remedy};
use waits::{notes, unknown_annotations, waits, wake_up};
use warnings::{Warning, warnings};

use crate::kind::title;
use crate::lease::Controller;

/// A line of the next sync names at most this many pods or indexes.
const LISTED_MAX: usize = 10;

/// An explanation of a Job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// `namespace/name`.
    pub(crate) job: String,
    /// What comes before all else: that no controller works on it.
    pub(crate) notes: Vec<Wait>,
    /// Its end or its current activity, in one line.
    pub(crate) state: String,
    /// The code of the state; `None` while it runs.
    pub(crate) code: Option<Code>,
    /// What to do about its failure.
    pub(crate) remedy: Option<Remedy>,
    /// What it waits for, the most important first.
    pub(crate) waits_for: Vec<Wait>,
    /// How its pods ended.
    pub(crate) ends: Ends,
    /// What disrupts or disrupted its pods, and how fast what follows came.
    pub(crate) disruptions: Disruptions,
    /// Annotations of it that have no effect.
    pub(crate) annotations: Vec<Wait>,
    /// The Warning events about it, the latest first; `None` if they could not be read.
    pub(crate) warnings: Option<Vec<Warning>>,
    /// Its limits and how much of each is used up.
    pub(crate) limits: Vec<Usage>,
    /// Its pods, in the order of their names.
    pub(crate) pods: Vec<PodEntry>,
    /// What the next sync would do, were every call to succeed.
    pub(crate) next_sync: Vec<String>,
    /// The status that the next sync would leave; `None` if it would write none.
    pub(crate) next_status: Option<JobStatus>,
    /// Pods from which the next sync would remove the tracking finalizer, because they are counted.
    pub(crate) released_pods: Vec<String>,
    /// In how many milliseconds the next sync comes without any event.
    pub(crate) wakes_up_in_ms: Option<i64>,
    /// When that is.
    pub(crate) wakes_up_at: Option<Timestamp>,
    /// What it comes for, if that is known.
    pub(crate) wakes_up_for: Option<&'static str>,
}

/// What is known besides the input of a sync.
pub(crate) struct Known<'a> {
    /// The Job as the API gives it.
    pub(crate) job: &'a Value,
    /// The pods as the API gives them, by UID.
    pub(crate) pods: HashMap<&'a str, &'a Value>,
    /// Events about the Job and its pods; `None` if they could not be read.
    pub(crate) events: Option<&'a [Value]>,
    /// What its lease says of the controller.
    pub(crate) controller: &'a Controller,
    /// The name of the only pod whose own lines are wanted; all without one.
    pub(crate) only: Option<&'a str>,
}

impl Known<'_> {
    /// Whether lines about this pod are wanted.
    fn wants(&self, pod: &str) -> bool {
        self.only.is_none_or(|only| only == pod)
    }

    fn pod(&self, pod: &Pod) -> &Value {
        self.pods.get(pod.uid.as_str()).copied().unwrap_or(&Value::Null)
    }
}

/// One thing that the Job waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Wait {
    /// The code, which `docs/troubleshooting.md` explains.
    pub(crate) code: Code,
    /// What it waits for.
    pub(crate) text: String,
}

/// One pod of the Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodEntry {
    /// Its name.
    pub(crate) name: String,
    /// Its completion index.
    pub(crate) index: Option<u32>,
    /// Its phase, or `Terminating`.
    pub(crate) phase: &'static str,
    /// Its node.
    pub(crate) node: Option<String>,
    /// What it counts as.
    pub(crate) counts_as: &'static str,
    /// The reason for that.
    pub(crate) because: String,
    /// The code of a reason that needs an explanation.
    pub(crate) code: Option<Code>,
}

/// What a pod counts as, why, and the code of the reason.
struct Class {
    counts_as: &'static str,
    because: String,
    code: Option<Code>,
}

/// The pods of the census by what they count as; a Job may have a hundred thousand.
struct Lists<'a> {
    active: HashSet<&'a Uid>,
    newly_failed: HashSet<&'a Uid>,
    newly_succeeded: HashSet<&'a Uid>,
}

impl<'a> Lists<'a> {
    fn of(plan: &'a PodPlan) -> Self {
        let census = &plan.facts.census;
        let uids = |pods: &'a [Arc<Pod>]| pods.iter().map(|pod| &pod.uid).collect();
        let active = census.pods.iter().filter(|pod| pod.is_active());
        Self {
            active: active.map(|pod| &pod.uid).collect(),
            newly_failed: uids(&census.newly_failed),
            newly_succeeded: uids(&census.newly_succeeded),
        }
    }
}

/// Explains a Job from what one sync would see.
pub(crate) fn explain(input: &SyncInput<'_>, known: &Known<'_>) -> Explanation {
    let plan = plan_pods(input);
    // A sync that sets DisruptionTarget, or lacks its group, counts nothing.
    let counts = !matches!(plan.pods, PodStage::MarkFaults(_)) && !plan.group.is_last();
    let status =
        (!plan.is_skipped() && counts).then(|| plan_status(&plan, &PodOutcomes::expected(&plan)));
    let settled = status.as_ref().and_then(StatusPlan::expected_settle);
    let released = status.as_ref().map_or(&[][..], |status| &status.release);
    let lists = Lists::of(&plan);
    let mut pods: Vec<PodEntry> =
        shown(input, &plan).into_iter().map(|pod| entry(input.job, &plan, &lists, pod)).collect();
    pods.retain(|pod| known.wants(&pod.name));
    pods.sort_by(|left, right| left.name.cmp(&right.name));
    let all_ends = ends(input, known.events.unwrap_or_default());
    let (state, code) = state(input.job, &plan);
    let (state, remedy) = failure(input.job, known, &all_ends).unwrap_or((state, None));
    Explanation {
        job: title(known.job),
        notes: notes(input, known.controller),
        state,
        code,
        remedy,
        waits_for: waits(input, &plan, known),
        ends: match known.only {
            Some(pod) => all_ends.of(pod),
            None => all_ends,
        },
        disruptions: disruptions(input, known),
        annotations: unknown_annotations(known.job),
        warnings: known.events.map(|events| warnings(events, input.job.uid.as_str())),
        limits: match plan.skip {
            None => limits(input.job, &plan),
            Some(_) => counted_limits(input.job),
        },
        pods,
        next_sync: with_group(&plan, pod_lines(&plan))
            .chain(status.iter().flat_map(|it| status_lines(it, settled.as_deref())))
            .collect(),
        released_pods: released.iter().map(|pod| pod.name.to_string()).collect(),
        next_status: settled.or(status.and_then(|it| it.flush)).map(|status| *status),
        wakes_up_in_ms: plan
            .requeue_after
            .map(|after| i64::try_from(after.as_millis()).unwrap_or(i64::MAX)),
        wakes_up_at: plan.requeue_after.and_then(|it| input.now.saturating_add(it).ok()),
        wakes_up_for: wake_up(input, &plan),
    }
}

/// The pods to show. A plan that does nothing has none; a finished Job still has its own.
fn shown<'a>(input: &SyncInput<'a>, plan: &'a PodPlan) -> Vec<&'a Arc<Pod>> {
    if plan.skip.is_none() || !input.job.is_finished() {
        return plan.facts.census.pods.iter().collect();
    }
    input.pods.iter().collect()
}

/// The state of a failed Job, with its cause, and what to do. Upstream's own message has no cause.
fn failure(job: &Job, known: &Known<'_>, ends: &Ends) -> Option<(String, Option<Remedy>)> {
    let mut conditions = job.status.conditions.iter().flatten();
    let failed = conditions.find(|each| each.status == "True" && each.type_ == "Failed")?;
    let reason = failed.reason.as_deref().unwrap_or_default();
    let message = failed.message.as_deref().unwrap_or_default();
    let mut counted = ends.last.iter().filter(|end| end.is_counted());
    let cause = match counted.next() {
        Some(end) if !message.contains("pod ") => format!("; {}", end.says),
        _ => String::new(),
    };
    Some((format!("Failed: {reason}: {message}{cause}"), remedy(known.job, reason, ends)))
}

fn state(job: &Job, plan: &PodPlan) -> (String, Option<Code>) {
    let finished =
        job.status.conditions.iter().flatten().find(|each| {
            each.status == "True" && (each.type_ == "Complete" || each.type_ == "Failed")
        });
    if let Some(condition) = finished {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let (reason, message) = (text(&condition.reason), text(&condition.message));
        let state = format!("{}: {reason}: {message}", condition.type_);
        return (state, Some(Code::JobFinished));
    }
    let (state, code) = match (&plan.skip, &plan.verdict) {
        (Some(SkipReason::ManagedElsewhere), _) => {
            ("not managed by this controller", Code::ManagedElsewhere)
        }
        (Some(SkipReason::UnknownCompletionMode), _) => {
            ("left alone: unknown completionMode", Code::CompletionModeUnknown)
        }
        (Some(_), _) => ("about to be read again", Code::WatchBehind),
        (None, Some(verdict)) => {
            let (what, code) = match verdict.end {
                End::Success => ("succeeding", Code::JobSucceeding),
                End::Failure => ("failing", Code::JobFailing),
            };
            return (format!("{what}: {}: {}", verdict.reason, verdict.message), Some(code));
        }
        (None, None) if job.deleting => ("being deleted", Code::JobBeingDeleted),
        (None, None) if job.spec.suspend => ("suspended", Code::JobSuspended),
        (None, None) if is_unstarted(job, plan) => return ("not started yet".to_owned(), None),
        (None, None) => return ("running".to_owned(), None),
    };
    (state.to_owned(), Some(code))
}

/// The start is stored up to a minute after the first pods.
fn is_unstarted(job: &Job, plan: &PodPlan) -> bool {
    job.start_time().is_none() && plan.facts.census.pods.is_empty()
}

fn entry(job: &Job, plan: &PodPlan, lists: &Lists<'_>, pod: &Arc<Pod>) -> PodEntry {
    let Class { counts_as, because, code } = class(job, plan, lists, pod);
    PodEntry {
        name: pod.name.to_string(),
        index: pod.index.filter(|_| job.is_indexed()),
        phase: match pod.phase {
            _ if pod.is_terminating() => "Terminating",
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
            Phase::Unknown => "Unknown",
        },
        node: pod.node.as_ref().map(ToString::to_string),
        counts_as,
        because,
        code,
    }
}

fn class(job: &Job, plan: &PodPlan, lists: &Lists<'_>, pod: &Arc<Pod>) -> Class {
    let class =
        |counts_as, because: &str, code| Class { counts_as, because: because.to_owned(), code };
    if job.is_finished() {
        return finished_class(pod);
    }
    if !has_valid_index(job, pod) {
        let because = "its completion index is missing or out of range";
        return class("nothing", because, Some(Code::PodIndexInvalid));
    }
    if plan.facts.per_index().is_some_and(|per_index| per_index.delays(pod)) {
        let because = "kept until its index has a new pod (backoffLimitPerIndex)";
        return class("failed, not counted yet", because, Some(Code::PodKeptForIndex));
    }
    if lists.active.contains(&pod.uid) {
        let ready = if pod.is_ready() { "active and ready" } else { "active" };
        let untracked = if pod.tracked { "" } else { "; no tracking finalizer" };
        let because = format!("not terminal{}{untracked}", to_end(pod));
        return class(ready, &because, (!pod.tracked).then_some(Code::PodUntracked));
    }
    if lists.newly_failed.contains(&pod.uid) {
        return failed_class(job, pod);
    }
    if lists.newly_succeeded.contains(&pod.uid) {
        return class("succeeded", "its phase is Succeeded", None);
    }
    if pod.is_terminating() {
        return if job.replaces_failed_only() {
            let because = "being deleted; replaced once terminal (podReplacementPolicy: Failed)";
            class("terminating", because, Some(Code::ReplacementWaits))
        } else {
            class("terminating", "being deleted; counted already, or does not count", None)
        };
    }
    match pod.phase {
        Phase::Succeeded => class("succeeded", "counted already", None),
        _ => class("failed", &format!("counted already{}", rule(job, pod)), unmatched(job, pod)),
    }
}

/// The class of a pod of a finished Job.
fn finished_class(pod: &Pod) -> Class {
    let (counts_as, because) = match pod.phase {
        Phase::Succeeded => ("succeeded", "counted already"),
        Phase::Failed => ("failed", "counted already, or ignored"),
        _ => ("nothing", "the Job finished without it"),
    };
    Class { counts_as, because: because.to_owned(), code: None }
}

fn failed_class(job: &Job, pod: &Pod) -> Class {
    let state = match pod.phase {
        Phase::Failed if is_rejected_by_node(pod) => "its kubelet rejected it",
        Phase::Failed if is_lost(pod) => "its node lost it",
        Phase::Failed => "its phase is Failed",
        _ => "being deleted (podReplacementPolicy: TerminatingOrFailed)",
    };
    let (counts_as, code) = if counts_as_failure(job, pod) {
        ("failed", unmatched(job, pod))
    } else {
        ("failed, but ignored", Some(Code::FailureIgnored))
    };
    Class { counts_as, because: format!("{state}{}", rule(job, pod)), code }
}

fn is_lost(pod: &Pod) -> bool {
    pod.gc.target().is_some_and(|target| target.stands && &*target.reason == LOST_BY_NODE)
}

/// The code of a failure that no rule of the Job's policy matches.
fn unmatched(job: &Job, pod: &Pod) -> Option<Code> {
    let has_policy = job.spec.pod_failure_policy.is_some();
    let is_unmatched = has_policy && failure_action(job, pod).is_none();
    is_unmatched.then_some(Code::FailureMatchesNoRule)
}

fn rule(job: &Job, pod: &Pod) -> String {
    match (failure_action(job, pod), &job.spec.pod_failure_policy) {
        (Some(action), _) => format!("; podFailurePolicy: {}", action.as_str()),
        (None, Some(_)) => "; no rule of podFailurePolicy matches".to_owned(),
        (None, None) => String::new(),
    }
}

/// What a sync does to pods, a line for each kind of call.
fn pod_lines(plan: &PodPlan) -> Vec<String> {
    let mut lines = Vec::new();
    let claims = |kind| plan.claims.iter().filter(move |claim| claim.kind == kind);
    if claims(ClaimKind::Adopt).next().is_some() {
        lines.push("read the Job itself before adopting pods".to_owned());
    }
    for (kind, what) in [
        (ClaimKind::Adopt, "adopt"),
        (ClaimKind::Disown, "disown"),
        (ClaimKind::Track, "put the tracking finalizer back on"),
    ] {
        let pods: Vec<&Arc<Pod>> = claims(kind).map(|Claim { pod, .. }| pod).collect();
        lines.extend((!pods.is_empty()).then(|| format!("{what} {}", named(pods))));
    }
    if !plan.awaits_boots.is_empty() {
        let pods = named(&plan.awaits_boots);
        lines.push(format!("wait whether the nodes of {pods} show a boot"));
    }
    match &plan.pods {
        PodStage::None => {}
        PodStage::Create(drafts) => lines.push(creation(drafts)),
        PodStage::Delete { victims, .. } => lines.push(format!("delete {}", named(victims))),
        PodStage::FailPending(pods) => {
            lines.push(format!("fail {}, which did not start", named(pods)));
        }
        PodStage::MarkFaults(faults) => lines.extend(fault_lines(faults)),
        PodStage::Refuse(problem) => lines.push(format!("create no pod: {problem}")),
    }
    lines
}

fn fault_lines(faults: &[NodeFault]) -> impl Iterator<Item = String> {
    let kinds =
        [(REJECTED_BY_KUBELET, "rejected by the kubelet"), (LOST_BY_NODE, "lost by its node")];
    kinds.into_iter().filter_map(|(reason, how)| {
        let of_kind = faults.iter().filter(|fault| fault.kind.reason() == reason);
        let pods: Vec<&Arc<Pod>> = of_kind.map(|fault| &fault.pod).collect();
        (!pods.is_empty()).then(|| format!("set DisruptionTarget on {}, {how}", named(pods)))
    })
}

fn creation(drafts: &[PodDraft]) -> String {
    let what = count(drafts.len());
    let indexes = drafts.iter().filter_map(|draft| draft.index).take(LISTED_MAX);
    let indexes: Vec<String> = indexes.map(|index| index.to_string()).collect();
    match indexes.len() {
        0 => format!("create {what}"),
        1 => format!("create {what}, index {}", indexes[0]),
        _ => format!("create {what}, indexes {}", indexes.join(", ")),
    }
}

/// What a sync writes to the status and from which pods it removes the finalizer.
fn status_lines(plan: &StatusPlan, settled: Option<&JobStatus>) -> Vec<String> {
    let write = |status| format!("write the status: {}", status_text(status));
    let release = (!plan.release.is_empty())
        .then(|| format!("remove the tracking finalizer from {}", named(&plan.release)));
    plan.flush.as_deref().map(write).into_iter().chain(release).chain(settled.map(write)).collect()
}

/// `2 pods: a, b`, with the first names only.
fn named<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> String {
    let names: Vec<&str> = pods.into_iter().map(|pod| &*pod.name).collect();
    let more = if names.len() > LISTED_MAX { ", …" } else { "" };
    let first = &names[..names.len().min(LISTED_MAX)];
    format!("{}: {}{more}", count(names.len()), first.join(", "))
}

/// `1 pod` or `2 pods`.
fn count(pods: usize) -> String {
    format!("{pods} pod{}", if pods == 1 { "" } else { "s" })
}
