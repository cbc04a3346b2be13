//! Judges when the tracking finalizer of a pod may go, by the decision table ([T17]). It is written
//! independently, so that the controller does not judge itself.

use controller_core::view::{Job, Phase, Pod};

use super::indexes::Indexes;

/// State of Job and pod at the time of the release.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The pod's UID is listed or counted.
    pub(super) accounted: bool,
    /// `SuccessCriteriaMet` is stored.
    pub(super) succeeds: bool,
    /// `FailureTarget` is stored.
    pub(super) fails: bool,
}

/// Why the pod, as `seen` by the sync, may not be released.
pub(super) fn problem(planned: &Job, job: &Job, seen: &Pod, it: Standing) -> Option<&'static str> {
    let placed = !planned.is_indexed()
        || seen.index.is_some_and(|index| index < planned.index_bound().min(job.index_bound()));
    match seen.phase {
        Phase::Succeeded => {
            let done = seen.index.is_some_and(|index| has_ended(job, index));
            let counted = it.accounted || (planned.is_indexed() && done);
            (placed && !counted).then_some("it succeeded and is not counted")
        }
        Phase::Failed => {
            let action = rule(planned, seen);
            if action == Some("FailJob") && !it.fails && !it.succeeds {
                return Some("it fails the Job, which does not know yet");
            }
            let counted = it.accounted || action == Some("Ignore");
            (placed && !counted).then_some("it failed and is not counted")
        }
        // A failed deletion postpones the end; a Job that is being deleted releases all the same.
        _ if it.fails && !planned.deleting => {
            let counted = it.accounted || rule(planned, seen) == Some("Ignore");
            (placed && !counted).then_some("the Job fails and it is not counted")
        }
        _ if seen.deletion.is_some() && !planned.replaces_failed_only() => {
            (placed && !it.accounted).then_some("it was replaced and is not counted")
        }
        _ => (!it.succeeds && !planned.deleting).then_some("it runs, and so does the Job"),
    }
}

/// Whether the index has completed, or failed for good; an index finishes once.
fn has_ended(job: &Job, index: u32) -> bool {
    let status = &job.status;
    [&status.completed_indexes, &status.failed_indexes]
        .into_iter()
        .any(|field| Indexes::of(field.as_deref()).contains(index))
}

/// The action of the first rule of the failure policy that matches.
pub(super) fn rule<'a>(job: &'a Job, pod: &Pod) -> Option<&'a str> {
    let policy = job.spec.pod_failure_policy.as_ref()?;
    let matching = policy.rules.iter().find(|rule| match &rule.on_exit_codes {
        Some(codes) => pod.containers.iter().filter_map(|each| each.terminated).any(|ended| {
            let listed = codes.values.contains(&ended.exit_code);
            ended.exit_code != 0 && listed == (codes.operator == "In")
        }),
        None => {
            rule.on_pod_conditions.iter().flatten().any(|pattern| pod.has_condition(&pattern.type_))
        }
    });
    matching.map(|rule| rule.action.as_str())
}
