//! Says whether the controller makes Workloads and PodGroups, and finds the Jobs that ask for a
//! gang where it makes none.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::gang_scheduling::{GangScheduling, OffReason};
use serde::Serialize;

use super::finding::{Finding, Rule};
use super::jobs::is_for_us;
use super::scene::Scene;
use crate::gang::Wish;
use crate::lease::{LeaseName, Setup};
use controller_core::view::Job;

/// At most this many Jobs are named; the others are counted.
const NAMED_MAX: usize = 3;

/// Whether gangs are scheduled, for the end of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct GangState {
    /// `on`, or `off: ` with the reason.
    pub(crate) state: String,
    /// What switches it on.
    pub(crate) remedy: Option<&'static str>,
}

/// What the controller's lease says. Left out is what needs no action: in most clusters the API
/// server has no gang scheduling, and a controller that observes runs no Job.
pub(crate) fn gang_state(scene: &Scene, lease: Option<&LeaseName>) -> Option<GangState> {
    let setup = scene.setup(lease);
    let state = setup.gang_scheduling.filter(|_| setup.runs_jobs != Some(false))?;
    let remedy = match &state {
        GangScheduling::On => None,
        GangScheduling::Off(OffReason::NotServed | OffReason::NoField) => return None,
        GangScheduling::Off(reason) => Some(remedy(reason)),
    };
    Some(GangState { state: state.to_string(), remedy })
}

pub(super) fn findings(scene: &Scene, lease: Option<&LeaseName>) -> Option<Finding> {
    let setup = scene.setup(lease);
    let Some(GangScheduling::Off(reason)) = &setup.gang_scheduling else { return None };
    let waits = |job: &&Job| !job.is_finished() && is_run(job, &setup);
    let jobs = scene.jobs.values().map(|job| &**job).filter(waits);
    let mut jobs: Vec<(&Job, Wish)> =
        jobs.filter_map(|job| Some((job, *scene.gangs.get(&job.uid)?))).collect();
    jobs.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
    let (first, wish) = jobs.first()?;
    let field = wish.field();
    let (subject, problem) = match jobs.len() {
        1 => (format!("job/{}", first.key), format!("it asks for a gang by {field}")),
        count => {
            let named = jobs.iter().take(NAMED_MAX).map(|(job, _)| job.key.to_string());
            let named: Vec<String> = named.collect();
            let more = count - named.len();
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let problem = format!("{}{more} ask for gangs", named.join(", "));
            (format!("{count} jobs"), problem)
        }
    };
    let problem = format!(
        "{problem}, and epilogue-controller makes no PodGroup, because {reason}: the scheduler \
         binds each pod alone"
    );
    let rule = (Rule::GangSchedulingOff, Code::GangSchedulingOff);
    Some(Finding::new(rule, subject, problem).remedy(remedy(reason)))
}

/// Whether the controller that runs so runs this Job.
fn is_run(job: &Job, setup: &Setup) -> bool {
    setup.watches(&job.key.namespace) && is_for_us(job, setup)
}

/// What switches it on.
fn remedy(reason: &OffReason) -> &'static str {
    match reason {
        OffReason::NoRight => {
            "give the controller the rights: the component gang-scheduling of deploy/kustomize, or \
             the chart's value gangScheduling.enabled=true"
        }
        OffReason::NotServed | OffReason::NoField => {
            "Kubernetes 1.37 or later: start kube-apiserver with \
             --feature-gates=GenericWorkload=true,WorkloadWithJob=true and \
             --runtime-config=scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true, and \
             kube-scheduler with GenericWorkload=true"
        }
        OffReason::Other(_) => {
            "see what it needs: https://epilogue.dev/docs/operations.html#gang-scheduling"
        }
    }
}
