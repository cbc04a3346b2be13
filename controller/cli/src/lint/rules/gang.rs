//! Checks whether a gang that a Job asks for can be made.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::GROUP_TEMPLATE_NAME;

use super::finding::{Finding, Severity};
use super::manifest::Manifest;
use crate::gang::{Wish, has_group, wish};

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let without_group = without_effect(manifest).or_else(|| not_made(manifest));
    min_count(manifest).into_iter().chain(without_group).collect()
}

/// The API refuses it, also in the template of a CronJob.
fn min_count(manifest: &Manifest<'_>) -> Option<Finding> {
    let spec = manifest.spec();
    let count = spec["scheduling"]["schedulingPolicy"]["gang"]["minCount"].as_i64()?;
    let parallelism = match &spec["parallelism"] {
        value if value.is_null() => 1,
        value => value.as_i64()?,
    };
    (count > parallelism).then(|| {
        let rule = (Severity::Error, Code::MinCountOverParallelism);
        let field = "spec.scheduling.schedulingPolicy.gang.minCount";
        let problem = format!(
            "{count} is greater than parallelism ({parallelism}); the API \
                               refuses it"
        );
        let remedy = "raise parallelism, or leave minCount out: then it is parallelism";
        manifest.found(rule, field, problem, remedy)
    })
}

/// A group that the template names wins, whatever else the Job says.
fn without_effect(manifest: &Manifest<'_>) -> Option<Finding> {
    let says = manifest.spec()["scheduling"].is_object();
    (says && has_group(manifest.job())).then(|| {
        let rule = (Severity::Warning, Code::SchedulingWithoutEffect);
        let problem = "it has no effect: spec.template.spec.schedulingGroup names the PodGroup of \
                       the pods";
        let remedy = "remove one of them: without schedulingGroup, the Job controller makes the \
                      PodGroup";
        manifest.found(rule, "spec.scheduling", problem, remedy)
    })
}

/// The Workload is the controller's of a Job that has one; a CronJob makes none.
fn not_made(manifest: &Manifest<'_>) -> Option<Finding> {
    let (kind, name) =
        manifest.controller().filter(|_| wish(manifest.job()) == Some(Wish::Policy))?;
    let rule = (Severity::Warning, Code::GangNotMade);
    let field = "spec.scheduling.schedulingPolicy.gang";
    let ends = "so the Job gets no PodGroup, and the scheduler binds each pod alone";
    let (problem, remedy) = if kind == "CronJob" {
        let problem = format!("a CronJob makes no Workload for its Jobs, {ends}");
        let remedy = format!(
            "create a Workload whose spec.controllerRef names the CronJob, and name its template \
             by the annotation {GROUP_TEMPLATE_NAME} of the jobTemplate"
        );
        (problem, remedy)
    } else {
        let problem =
            format!("{kind} {name} controls the Job and names no template for it, {ends}");
        let remedy = format!(
            "let {kind} {name} make a Workload and set the annotation {GROUP_TEMPLATE_NAME}, or \
             set spec.template.spec.schedulingGroup"
        );
        (problem, remedy)
    };
    Some(manifest.found(rule, field, problem, remedy))
}
