//! Says what a Job waits for, with the cause.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use controller_core::job::{PodPlan, SyncInput, WaitsFor, is_ours, plain};
use controller_core::job_pods::Kind;
use controller_core::spelling;
use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::{TRACKING_FINALIZER, job_option};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Known, Wait};
use crate::doctor::rules::not_watched;
use crate::lease::Controller;
use crate::waits::{Obstacle, Refusal, of_pod, other_finalizers, refusal};

/// The most kinds of obstacles of pods, and of annotations, that are listed.
const KINDS_MAX: usize = 10;
/// The most pods that one line names.
const NAMED_MAX: usize = 3;
/// The most characters of an annotation's name.
const NAME_MAX: usize = 100;

/// That no replica works, of a Job that is not finished, unless its manager is another one.
pub(super) fn notes(input: &SyncInput<'_>, controller: &Controller) -> Vec<Wait> {
    let job = input.job;
    let is_ours = is_ours(job, input.settings.manage_all_jobs);
    if job.is_finished() || !(is_ours || job.is_managed_by_upstream()) {
        return Vec::new();
    }
    let idle = controller.idle(input.now);
    let idle = idle.map(|text| Wait { code: Code::ControllerWithoutLeader, text });
    let setup = controller.setup().filter(|setup| is_ours && !setup.watches(&job.key.namespace));
    let unwatched = setup.map(|setup| Wait {
        code: Code::NamespaceNotWatched,
        text: not_watched(setup, &job.key.namespace),
    });
    idle.into_iter().chain(unwatched).collect()
}

/// What the Job waits for: what refuses its pods, what the plan waits for, what keeps its pods.
pub(super) fn waits(input: &SyncInput<'_>, plan: &PodPlan, known: &Known<'_>) -> Vec<Wait> {
    let refused = refusal(input.job, known.events.into_iter().flatten(), input.now);
    let refused = refused.map(|Refusal { obstacle, last, .. }| Wait {
        code: obstacle.code,
        text: format!("{} (last refused at {last})", obstacle.needs),
    });
    let own = plan.waits_for.iter().map(|it| wait(input, it, known));
    let deadline = until_deadline(input).map(|left| Wait {
        code: Code::JobDeadline,
        text: format!("the end of its activeDeadlineSeconds, {}", when(input, left)),
    });
    refused.into_iter().chain(own).chain(stuck(input, known)).chain(deadline).collect()
}

/// One of the plan's waits. Which controller runs a Job without `managedBy` is not always known.
fn wait(input: &SyncInput<'_>, waits_for: &WaitsFor, known: &Known<'_>) -> Wait {
    let mut text = waits_for.to_string();
    match waits_for {
        WaitsFor::Manager(_) if input.job.is_managed_by_upstream() => {
            if let Some(doubt) = known.controller.doubt() {
                let _ = write!(
                    text,
                    ", unless epilogue-controller runs with --manage-all-jobs: {doubt}"
                );
            }
        }
        WaitsFor::Backoff { left, .. } | WaitsFor::IndexBackoff { left, .. } => {
            let _ = write!(text, ", until {}", second(input.now.saturating_add(*left).ok()));
        }
        WaitsFor::Deletion => {
            if let Some(names) = other_finalizers(known.job, TRACKING_FINALIZER) {
                let _ = write!(text, "; its finalizers: {names}");
            }
        }
        _ => {}
    }
    Wait { code: waits_for.code(), text }
}

/// What keeps pods from starting, and ended pods from going. Pods that lack the same are one wait.
fn stuck(input: &SyncInput<'_>, known: &Known<'_>) -> Vec<Wait> {
    let mut lacking: BTreeMap<Obstacle, Vec<&str>> = BTreeMap::new();
    for pod in input.pods.iter().filter(|pod| pod.is_owned_by(&input.job.uid)) {
        let events = known.events.into_iter().flatten();
        if let Some(obstacle) = of_pod(pod, known.pod(pod), events, input.now) {
            lacking.entry(obstacle).or_default().push(&pod.name);
        }
    }
    for pod in input.pods.iter().filter(|pod| pod.is_terminal() && pod.deletion.is_some()) {
        let others = other_finalizers(known.pod(pod), TRACKING_FINALIZER);
        if let Some(names) = others.filter(|_| !input.job.is_finished()) {
            let needs = format!("to go; its finalizers: {names}");
            let obstacle = Obstacle { code: Code::PodHeldByFinalizers, needs };
            lacking.entry(obstacle).or_default().push(&pod.name);
        }
    }
    let kinds = lacking.len();
    let more = (kinds > KINDS_MAX).then(|| Wait {
        code: Code::PodCannotStart,
        text: format!("what {} more kinds of pods lack", kinds - KINDS_MAX),
    });
    let line = |(Obstacle { code, needs }, mut names): (Obstacle, Vec<&str>)| {
        names.sort_unstable();
        let first = names[..names.len().min(NAMED_MAX)].join(", ");
        let more = if names.len() > NAMED_MAX { ", …" } else { "" };
        let who = match names.len() {
            1 => format!("pod {first}"),
            count => format!("{count} pods ({first}{more})"),
        };
        Wait { code, text: format!("{who} {needs}") }
    };
    lacking.into_iter().take(KINDS_MAX).map(line).chain(more).collect()
}

/// The annotations of ours that no version knows.
pub(super) fn unknown_annotations(job: &Value) -> Vec<Wait> {
    let all = job["metadata"]["annotations"].as_object().into_iter().flatten();
    let unknown = all
        .map(|(name, _)| name.as_str())
        .filter(|name| name.starts_with("epilogue.dev/") && !job_option::ALL.contains(name));
    unknown
        .take(KINDS_MAX)
        .map(|name| {
            let near = spelling::meant(name, job_option::ALL);
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let text = format!("{} has no effect: it is unknown{near}", plain(name, NAME_MAX));
            Wait { code: Code::AnnotationUnknown, text }
        })
        .collect()
}

/// How long until the Job's deadline, if it runs.
fn until_deadline(input: &SyncInput<'_>) -> Option<SignedDuration> {
    let job = input.job;
    if job.is_finished() || job.deleting || job.spec.suspend {
        return None;
    }
    let limit = SignedDuration::from_secs(job.spec.active_deadline_seconds?);
    let end = job.start_time()?.saturating_add(limit).ok()?;
    Some(end.duration_since(input.now)).filter(SignedDuration::is_positive)
}

/// What the next sync without any event comes for, if that is known.
pub(super) fn wake_up(input: &SyncInput<'_>, plan: &PodPlan) -> Option<&'static str> {
    let wake = plan.requeue_after?;
    let near = |left: SignedDuration| (left - wake).abs() <= SignedDuration::from_secs(1);
    let backoff = plan.waits_for.iter().any(|it| match it {
        WaitsFor::Backoff { left, .. } | WaitsFor::IndexBackoff { left, .. } => near(*left),
        _ => false,
    });
    let pending = || {
        let created = input.pods.of_kind(Kind::Pending).filter_map(|pod| pod.created).min()?;
        let end = created.saturating_add(plan.facts.options.pending_timeout?).ok()?;
        Some(end.duration_since(input.now))
    };
    match () {
        () if backoff => Some("the backoff ends"),
        () if until_deadline(input).is_some_and(near) => Some("its activeDeadlineSeconds end"),
        () if pending().is_some_and(near) => Some("pending-timeout ends for a pod"),
        () => None,
    }
}

/// `in 5m, at 2026-…`.
fn when(input: &SyncInput<'_>, left: SignedDuration) -> String {
    let seconds = SignedDuration::from_secs(left.as_secs());
    format!("in {seconds:#}, at {}", second(input.now.saturating_add(left).ok()))
}

/// A time in whole seconds.
pub(super) fn second(at: Option<Timestamp>) -> String {
    at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}
