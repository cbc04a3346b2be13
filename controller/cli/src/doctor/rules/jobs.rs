//! Finds Jobs that no controller serves. The API takes any `spec.managedBy` and does not check that
//! a controller of that name exists. ([S3])

use std::collections::HashSet;

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};
use jiff::Timestamp;

use super::finding::{Finding, Rule};
use super::scene::Scene;
use super::times::is_overdue;
use crate::kind::Kind;
use crate::lease::{LeaseName, Setup, runs_no_jobs};
use controller_core::managed_by::{MULTI_KUEUE, is_known, meant};
use controller_core::view::{Job, Uid};

/// At most this many Jobs are named; the others are counted.
const NAMED_MAX: usize = 3;

pub(super) fn findings(scene: &Scene, lease: Option<&LeaseName>, now: Timestamp) -> Vec<Finding> {
    let open = || scene.jobs.values().map(|job| &**job).filter(|job| !job.is_finished());
    let owners = scene.pods.iter().filter_map(|pod| scene.view(pod)?.owner.as_ref());
    let served: HashSet<&Uid> = owners.map(|owner| &owner.uid).collect();
    let unserved = |job: &&Job| !served.contains(&job.uid);
    let setup = scene.setup(lease);
    let mut found: Vec<Finding> =
        open().filter(unserved).filter_map(|job| unserved_job(job, &setup, now)).collect();
    let ours: Vec<&Job> = open().filter(|job| is_for_us(job, &setup)).collect();
    if let Some(lease) = lease.filter(|_| !ours.is_empty() && scene.has_read(Kind::Lease)) {
        found.extend(without_leader(scene, lease, &ours, now));
    }
    found
}

/// Whether a controller that runs so is the one for this Job.
pub(super) fn is_for_us(job: &Job, setup: &Setup) -> bool {
    let runs_all = || setup.runs_unmanaged(&job.key.namespace) == Some(true);
    is_ours(job) || job.is_managed_by_upstream() && runs_all()
}

fn is_ours(job: &Job) -> bool {
    job.spec.managed_by.as_deref() == Some(MANAGED_BY)
}

/// No controller has created a pod or written any status. Each one writes at least the start time
/// or the condition `Suspended`; where there are pods, ours may do so a minute later.
fn unserved_job(job: &Job, setup: &Setup, now: Timestamp) -> Option<Finding> {
    let created = job.created.filter(|created| is_overdue(*created, now))?;
    let touched = job.status.start_time.is_some()
        || job.status.conditions.as_ref().is_some_and(|all| !all.is_empty());
    let is_watched = setup.watches(&job.key.namespace);
    if touched || is_ours(job) && is_watched {
        return None;
    }
    let found = |code: Code, problem: String| {
        let rule = (Rule::UnservedJob, code);
        Finding::new(rule, format!("job/{}", job.key), problem).since(Some(created))
    };
    let anew = "the field is immutable: save the Job, delete it, and create it again";
    let value = match job.spec.managed_by.as_deref() {
        Some(MANAGED_BY) => {
            let problem = not_watched(setup, &job.key.namespace);
            let remedy = "run epilogue-controller without --namespace, or one more for this \
                          namespace with a lease of its own";
            return Some(found(Code::NamespaceNotWatched, problem).remedy(remedy));
        }
        None | Some(RESERVED_MANAGED_BY)
            if setup.runs_unmanaged(&job.key.namespace) == Some(true) =>
        {
            let problem = "epilogue-controller runs all Jobs, as its lease says, and has not \
                           written the status of this one";
            let remedy = "see its log, and that kube-controller-manager runs without its Job \
                          controller";
            return Some(found(Code::JobNotTakenUp, problem.to_owned()).remedy(remedy));
        }
        None | Some(RESERVED_MANAGED_BY) => {
            let problem = "no Job controller has written its status";
            return Some(found(Code::JobNotTakenUp, problem.to_owned()).remedy(
                "see that kube-controller-manager runs with its Job controller, or \
                 epilogue-controller with --manage-all-jobs",
            ));
        }
        // Kueue leaves a Job alone while it queues it.
        Some(MULTI_KUEUE) if job.spec.suspend => return None,
        Some(value) => value,
    };
    if is_known(value) {
        let problem = format!("the controller {value} has not written its status");
        return Some(found(Code::ManagedByNotRunning, problem).remedy("see that it runs"));
    }
    if let Some(meant) = meant(value) {
        let problem = format!("unknown managedBy {value}; did you mean {meant}?");
        let remedy = format!("{anew} with managedBy: {meant}");
        return Some(found(Code::ManagedByMisspelled, problem).remedy(remedy));
    }
    if job.spec.suspend {
        return None;
    }
    let problem = format!("unknown managedBy {value}, and no controller has written its status");
    let remedy = format!("{anew} with managedBy: {MANAGED_BY}, or without the field");
    let found = found(Code::ManagedByUnknown, problem);
    Some(found.remedy(format!("start the controller {value}")).remedy(remedy))
}

/// That the controller does not watch the namespace of its Job.
pub(crate) fn not_watched(setup: &Setup, namespace: &str) -> String {
    let watched = setup.namespaces.join(", ");
    format!("epilogue-controller does not watch the namespace {namespace}; it watches {watched}")
}

/// Our controller runs Jobs only while it holds its lease, and does not only observe.
fn without_leader(
    scene: &Scene,
    name: &LeaseName,
    jobs: &[&Job],
    now: Timestamp,
) -> Option<Finding> {
    let lease = scene.lease(&name.namespace, &name.name);
    let why = runs_no_jobs(name, lease, now)?;
    let renewed = lease.and_then(|lease| lease.renew_time);
    let mut names: Vec<String> = jobs.iter().map(|job| job.key.to_string()).collect();
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let problem = format!("{why}; its unfinished Jobs: {}{more}", names.join(", "));
    Some(
        Finding::new(
            (Rule::UnservedJob, Code::ControllerWithoutLeader),
            format!("lease/{name}"),
            problem,
        )
        .since(renewed)
        .remedy(format!(
            "kubectl --namespace {} get deployment,pod: see that epilogue-controller runs, with \
             --mode=enforce",
            name.namespace
        ))
        .remedy(
            "if the controller runs without --leader-elect, or with another lease, name that by \
                 --controller-lease",
        ),
    )
}
