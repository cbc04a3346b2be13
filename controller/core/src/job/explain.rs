//! Explains a Job to people: what each pod counts as and why, what the Job waits for, and what the
//! next sync would do.

use std::sync::Arc;

use serde::Serialize;

use super::census;
use super::fake_api::FakeApi;
use super::plan::{Plan, SkipReason, plan};
use super::report;
use super::steps::{ClaimKind, Step};
use super::sync_input::SyncInput;
use super::verdict::End;
use crate::view::{Job, Phase, Pod};

/// An explanation of a Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub job: String,
    /// Its end or its current activity, in one line.
    pub state: String,
    /// What it waits for, the most important first.
    pub waits_for: Vec<String>,
    /// Its limits and how much of each is used up.
    pub limits: Vec<Limit>,
    /// Its pods, in the order of their names.
    pub pods: Vec<PodEntry>,
    /// What the next sync would do, were every call to succeed.
    pub next_sync: Vec<String>,
    /// In how many milliseconds the next sync comes without any event.
    pub wakes_up_in_ms: Option<i64>,
}

/// A limit of the Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// The field of the spec.
    pub field: &'static str,
    /// How much is used up, in the unit of the limit.
    pub used: i64,
    /// The limit.
    pub limit: i64,
}

/// One pod of the Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEntry {
    /// Its name.
    pub name: String,
    /// Its completion index.
    pub index: Option<u32>,
    /// Its phase, or `Terminating`.
    pub phase: &'static str,
    /// Its node.
    pub node: Option<String>,
    /// What it counts as.
    pub counts_as: &'static str,
    /// The reason for that.
    pub because: String,
}

/// Explains a Job from what one sync would see.
pub fn explain(input: &SyncInput<'_>) -> Explanation {
    let plan = plan(input);
    let mut api = FakeApi::of(input);
    let trace = api.sync();
    let mut pods: Vec<PodEntry> =
        plan.census.pods.iter().map(|pod| entry(input.job, &plan, pod)).collect();
    pods.sort_by(|left, right| left.name.cmp(&right.name));
    let own = plan.waits_for.iter().map(ToString::to_string);
    Explanation {
        job: input.job.key.to_string(),
        state: state(input.job, &plan),
        waits_for: own.chain(stuck(&plan.census.active)).collect(),
        limits: if plan.skip.is_some() { Vec::new() } else { limits(input.job, &plan) },
        pods,
        next_sync: trace.steps.iter().map(describe).collect(),
        wakes_up_in_ms: plan
            .requeue_after
            .map(|after| i64::try_from(after.as_millis()).unwrap_or(i64::MAX)),
    }
}

fn state(job: &Job, plan: &Plan) -> String {
    let finished =
        job.status.conditions.iter().flatten().find(|each| {
            each.status == "True" && (each.type_ == "Complete" || each.type_ == "Failed")
        });
    if let Some(condition) = finished {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let (reason, message) = (text(&condition.reason), text(&condition.message));
        return format!("{}: {reason}: {message}", condition.type_);
    }
    match (&plan.skip, &plan.verdict) {
        (Some(SkipReason::ManagedElsewhere), _) => "not run by this controller".to_owned(),
        (Some(SkipReason::UnknownCompletionMode), _) => {
            "left alone: unknown completionMode".to_owned()
        }
        (Some(_), _) => "about to be read again".to_owned(),
        (None, Some(verdict)) => {
            let what = if verdict.end == End::Success { "succeeding" } else { "failing" };
            format!("{what}: {}: {}", verdict.reason, verdict.message)
        }
        (None, None) if job.deleting => "being deleted".to_owned(),
        (None, None) if job.spec.suspend => "suspended".to_owned(),
        (None, None) => "running".to_owned(),
    }
}

fn limits(job: &Job, plan: &Plan) -> Vec<Limit> {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let mut limits = Vec::new();
    if let Some(completions) = job.spec.completions {
        let (used, limit) = (number(plan.succeeded), i64::from(completions));
        limits.push(Limit { field: "completions", used, limit });
    }
    let (used, limit) = (number(plan.census.failed(job)), i64::from(job.spec.backoff_limit));
    if limit < i64::from(i32::MAX) {
        limits.push(Limit { field: "backoffLimit", used, limit });
    }
    let per_index = plan.indexes.as_ref().and_then(|indexes| indexes.per_index.as_ref());
    if let (Some(per_index), Some(limit)) = (per_index, job.spec.max_failed_indexes) {
        let (used, limit) = (i64::from(per_index.failed.len()), i64::from(limit));
        limits.push(Limit { field: "maxFailedIndexes", used, limit });
    }
    if let (Some(start), Some(limit)) = (job.start_time(), job.spec.active_deadline_seconds) {
        let used = plan.now.duration_since(start).as_secs();
        limits.push(Limit { field: "activeDeadlineSeconds", used, limit });
    }
    limits
}

/// The reasons that active pods give for not starting.
fn stuck(active: &[Arc<Pod>]) -> Vec<String> {
    let mut said: Vec<String> = active
        .iter()
        .filter(|pod| pod.phase == Phase::Pending)
        .filter_map(|pod| {
            let waiting = pod.containers.iter().find_map(|each| each.waiting.as_deref());
            match (waiting, &pod.node) {
                (Some("ContainerCreating" | "PodInitializing"), _) | (None, Some(_)) => None,
                (Some(reason), _) => {
                    Some(format!("pod {}, which cannot start: {reason}", pod.name))
                }
                (None, None) => Some(format!("pod {} to be scheduled", pod.name)),
            }
        })
        .collect();
    said.sort();
    said
}

fn entry(job: &Job, plan: &Plan, pod: &Arc<Pod>) -> PodEntry {
    let (counts_as, because) = class(job, plan, pod);
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
    }
}

fn class(job: &Job, plan: &Plan, pod: &Arc<Pod>) -> (&'static str, String) {
    let is_in = |list: &[Arc<Pod>]| list.iter().any(|each| each.uid == pod.uid);
    if !census::has_valid_index(job, pod) {
        return ("nothing", "its completion index is missing or out of range".to_owned());
    }
    if plan.per_index().is_some_and(|per_index| per_index.delays(pod)) {
        let because = "kept until its index has a new pod (backoffLimitPerIndex)";
        return ("failed, not counted yet", because.to_owned());
    }
    if is_in(&plan.census.active) {
        let ready = if pod.is_ready() { "active and ready" } else { "active" };
        let tracked = if pod.tracked { "it runs" } else { "it runs, without our finalizer" };
        return (ready, tracked.to_owned());
    }
    if is_in(&plan.census.newly_failed) {
        return failed_class(job, pod);
    }
    if is_in(&plan.census.newly_succeeded) {
        return ("succeeded", "it ended with phase Succeeded".to_owned());
    }
    if pod.is_terminating() {
        let because = if job.replaces_failed_only() {
            "it is being deleted; replaced once it has ended (podReplacementPolicy: Failed)"
        } else {
            "it is being deleted, and was counted or taken out of the count already"
        };
        return ("terminating", because.to_owned());
    }
    match pod.phase {
        Phase::Succeeded => ("succeeded", "counted already".to_owned()),
        _ => ("failed", format!("counted already{}", rule(job, pod))),
    }
}

fn failed_class(job: &Job, pod: &Pod) -> (&'static str, String) {
    let ended = match pod.phase {
        Phase::Failed => "it ended with phase Failed",
        _ => "it is being deleted (podReplacementPolicy: TerminatingOrFailed)",
    };
    let counts_as =
        if census::counts_as_failure(job, pod) { "failed" } else { "failed, but ignored" };
    (counts_as, format!("{ended}{}", rule(job, pod)))
}

fn rule(job: &Job, pod: &Pod) -> String {
    match (census::action(job, pod), &job.spec.pod_failure_policy) {
        (Some(action), _) => format!("; podFailurePolicy says {}", action.as_str()),
        (None, Some(_)) => "; no rule of podFailurePolicy matches".to_owned(),
        (None, None) => String::new(),
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::ConfirmJob => "read the Job itself before adopting pods".to_owned(),
        Step::Claim(claims) => {
            let of = |kind| claims.iter().filter(|claim| claim.kind == kind).count();
            let (adopt, disown) = (of(ClaimKind::Adopt), of(ClaimKind::Disown));
            let track = of(ClaimKind::Track);
            format!("adopt {adopt} pods, disown {disown}, put the finalizer back on {track}")
        }
        Step::Create(drafts) => {
            let indexes: Vec<String> = drafts
                .iter()
                .filter_map(|draft| draft.index)
                .take(10)
                .map(|index| index.to_string())
                .collect();
            if indexes.is_empty() {
                format!("create {}", report::pods(drafts.len()))
            } else {
                format!("create {}, indexes {}", report::pods(drafts.len()), indexes.join(", "))
            }
        }
        Step::Delete(deletions) => {
            let names: Vec<&str> =
                deletions.iter().take(10).map(|deletion| &*deletion.pod.name).collect();
            format!("delete {}: {}", report::pods(deletions.len()), names.join(", "))
        }
        Step::WriteStatus(status) => {
            let conditions: Vec<&str> = status
                .conditions
                .iter()
                .flatten()
                .filter(|each| each.status == "True")
                .map(|each| each.type_.as_str())
                .collect();
            format!(
                "write the status: active {}, ready {}, terminating {}, succeeded {}, failed {}, \
                 conditions [{}]",
                status.active.unwrap_or(0),
                status.ready.unwrap_or(0),
                status.terminating.unwrap_or(0),
                status.succeeded.unwrap_or(0),
                status.failed.unwrap_or(0),
                conditions.join(", "),
            )
        }
        Step::FailPending(pods) => {
            let names: Vec<&str> = pods.iter().take(10).map(|pod| &*pod.name).collect();
            format!("fail {} that did not start: {}", report::pods(pods.len()), names.join(", "))
        }
        Step::RemoveFinalizer(pods) => {
            format!("remove the tracking finalizer from {}", report::pods(pods.len()))
        }
    }
}
