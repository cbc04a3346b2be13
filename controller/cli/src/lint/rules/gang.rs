//! Checks whether a gang that a Job asks for can be made.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::GROUP_TEMPLATE_NAME;
use serde_json::Value;

use super::finding::{Finding, Severity};
use super::manifest::Manifest;
use crate::gang::{Wish, has_group, wish};

const GANG: &str = "spec.scheduling.schedulingPolicy.gang";
const MIN_COUNT: &str = "spec.scheduling.schedulingPolicy.gang.minCount";

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let without_group = without_effect(manifest).or_else(|| not_made(manifest));
    let too_large = over_parallelism(manifest).or_else(|| over_completions(manifest));
    too_large.into_iter().chain(without_group).collect()
}

fn gang<'a>(manifest: &Manifest<'a>) -> &'a Value {
    &manifest.spec()["scheduling"]["schedulingPolicy"]["gang"]
}

fn parallelism(manifest: &Manifest<'_>) -> Option<i64> {
    match &manifest.spec()["parallelism"] {
        Value::Null => Some(1),
        value => value.as_i64(),
    }
}

/// The API refuses it, also in the template of a CronJob.
fn over_parallelism(manifest: &Manifest<'_>) -> Option<Finding> {
    let count = gang(manifest)["minCount"].as_i64()?;
    let parallelism = parallelism(manifest)?;
    (count > parallelism).then(|| {
        let rule = (Severity::Error, Code::MinCountOverParallelism);
        let problem = format!(
            "{count} is greater than parallelism ({parallelism}); the API \
                               refuses it"
        );
        let remedy = "raise parallelism, or leave minCount out: then it is parallelism";
        manifest.found(rule, MIN_COUNT, problem, remedy)
    })
}

/// A Job never has more pods than completions, but the scheduler binds none before there are
/// `minCount`. Either controller makes such a gang of a Job without a controller.
fn over_completions(manifest: &Manifest<'_>) -> Option<Finding> {
    let is_own = manifest.controller().is_none() && !has_group(manifest.job());
    let gang = Some(gang(manifest)).filter(|gang| is_own && gang.is_object())?;
    let completions = manifest.spec()["completions"].as_i64().filter(|it| *it > 0)?;
    let parallelism = parallelism(manifest)?;
    let given = gang["minCount"].as_i64();
    let count = given.unwrap_or(parallelism);
    (count > completions).then(|| {
        let rule = (Severity::Error, Code::MinCountOverCompletions);
        let (field, what) = match given {
            Some(_) => (MIN_COUNT, count.to_string()),
            None => (GANG, format!("minCount is parallelism ({count}), which")),
        };
        let problem = format!(
            "{what} is greater than completions ({completions}): the Job never has so many pods, \
             and the scheduler binds none before"
        );
        let remedy = format!("set minCount to {completions} or less, or raise completions");
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
    Some(manifest.found(rule, GANG, problem, remedy))
}
