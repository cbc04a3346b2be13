//! Says what a Job waits for, with the cause.

use std::fmt::Write as _;

use controller_core::job::{SyncInput, WaitsFor, is_ours};
use controller_core::job_pods::{JobPods, Kind};
use epilogue_common::finding_code::FindingCode as Code;

use super::Wait;
use crate::doctor::rules::not_watched;
use crate::lease::Controller;

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

/// One of the plan's waits. Which controller runs a Job without `managedBy` is not always known.
pub(super) fn wait(input: &SyncInput<'_>, waits_for: &WaitsFor, controller: &Controller) -> Wait {
    let mut text = waits_for.to_string();
    let doubt = controller.doubt().filter(|_| {
        matches!(waits_for, WaitsFor::Manager(_)) && input.job.is_managed_by_upstream()
    });
    if let Some(doubt) = doubt {
        let _ = write!(text, ", unless epilogue-controller runs with --manage-all-jobs: {doubt}");
    }
    Wait { code: waits_for.code(), text }
}

/// The reasons that active pods give for not starting.
pub(super) fn stuck(pods: &JobPods) -> Vec<Wait> {
    let mut waits: Vec<Wait> = pods
        .of_kind(Kind::Pending)
        .filter_map(|pod| {
            let waiting = pod.containers.iter().find_map(|each| each.waiting.as_deref());
            match (waiting, &pod.node) {
                (Some("ContainerCreating" | "PodInitializing"), _) | (None, Some(_)) => None,
                (Some(reason), _) => {
                    let text = format!("pod {} to start; it reports {reason}", pod.name);
                    Some(Wait { code: Code::PodCannotStart, text })
                }
                (None, None) => {
                    let text = format!("pod {} to be scheduled", pod.name);
                    Some(Wait { code: Code::PodUnscheduled, text })
                }
            }
        })
        .collect();
    waits.sort_by(|left, right| left.text.cmp(&right.text));
    waits
}
