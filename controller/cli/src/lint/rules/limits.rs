//! Checks the limits of a Job: what bounds its retries, and which limits need which mode.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::job_option::DISRUPTION_LIMIT;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use serde_json::Value;

use super::facts::items;
use super::failure_policy::meant_type;
use super::finding::{Finding, Severity};
use super::manifest::Manifest;

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let mut found = endless(manifest);
    found.extend(no_try_for_disruptions(manifest));
    found.extend(indexed_only(manifest));
    found.extend(max_failed_indexes(manifest));
    found.extend(fail_index(manifest));
    found
}

/// An Ignore rule for failures that the program itself can repeat, in a Job without any limit. Only
/// our controller knows a limit for ignored failures, so Jobs of others are left out.
fn endless(manifest: &Manifest<'_>) -> Vec<Finding> {
    let has_limit = !manifest.annotations()[DISRUPTION_LIMIT].is_null()
        || !manifest.spec()["activeDeadlineSeconds"].is_null();
    if !manifest.is_ours || has_limit {
        return Vec::new();
    }
    // Disruptions come from outside, and the controller delays a slot that has too many of them.
    let repeats = |rule: &Value| {
        !rule["onExitCodes"].is_null() || !items(&rule["onPodConditions"]).all(is_about_disruptions)
    };
    let rules = manifest.rules().enumerate();
    rules
        .filter(|(_, rule)| rule["action"] == "Ignore" && repeats(rule))
        .map(|(index, _)| {
            let field = format!("spec.podFailurePolicy.rules[{index}].action");
            let problem = "a program that always fails like this is retried for ever: backoffLimit \
                           does not count ignored failures";
            let remedy = format!(
                "set the annotation {DISRUPTION_LIMIT}, such as \"10\", or activeDeadlineSeconds"
            );
            manifest.found((Severity::Warning, Code::IgnoreUnlimited), &field, problem, remedy)
        })
        .collect()
}

/// Whether a condition is DisruptionTarget, also misspelled, which is a finding of its own.
fn is_about_disruptions(pattern: &Value) -> bool {
    let kind = pattern["type"].as_str().unwrap_or_default();
    kind == DISRUPTION_TARGET || meant_type(kind) == Some(DISRUPTION_TARGET)
}

/// A Job without retries that a drain or a shutdown fails. Any rule on DisruptionTarget shows that
/// the author decided.
fn no_try_for_disruptions(manifest: &Manifest<'_>) -> Option<Finding> {
    let spec = manifest.spec();
    let per_index = &spec["backoffLimitPerIndex"];
    let (field, fails) = if per_index.is_null() {
        ("spec.backoffLimit", &spec["backoffLimit"])
    } else {
        ("spec.backoffLimitPerIndex", per_index)
    };
    let mut patterns = manifest.rules().flat_map(|rule| items(&rule["onPodConditions"]));
    let has_rule = patterns.any(is_about_disruptions);
    let is_never = manifest.pod()["restartPolicy"] == "Never";
    if fails.as_i64() != Some(0) || has_rule || !is_never {
        return None;
    }
    let what = if per_index.is_null() { "the Job" } else { "the index" };
    let problem = format!(
        "one disruption fails {what}, such as a drain or a shutdown of a node: no rule matches \
         DisruptionTarget"
    );
    let remedy = "add a rule on DisruptionTarget: Ignore to run the pod again, or FailJob if its \
                  work must not run twice";
    Some(manifest.found((Severity::Warning, Code::DisruptionFailsJob), field, problem, remedy))
}

fn indexed_only(manifest: &Manifest<'_>) -> Vec<Finding> {
    let spec = manifest.spec();
    if spec["completionMode"] == "Indexed" {
        return Vec::new();
    }
    let fields = ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"];
    let set = fields.into_iter().filter(|field| !spec[field].is_null());
    set.map(|field| {
        let problem = "the API refuses it: it needs completionMode Indexed";
        let remedy = format!("set completionMode: Indexed and completions, or remove {field}");
        let field = format!("spec.{field}");
        manifest.found((Severity::Error, Code::NeedsIndexed), &field, problem, remedy)
    })
    .collect()
}

fn max_failed_indexes(manifest: &Manifest<'_>) -> Option<Finding> {
    let spec = manifest.spec();
    (!spec["maxFailedIndexes"].is_null() && spec["backoffLimitPerIndex"].is_null())
        .then(|| needs_limit_per_index(manifest, "spec.maxFailedIndexes"))
}

fn fail_index(manifest: &Manifest<'_>) -> Vec<Finding> {
    if !manifest.spec()["backoffLimitPerIndex"].is_null() {
        return Vec::new();
    }
    let rules = manifest.rules().enumerate().filter(|(_, rule)| rule["action"] == "FailIndex");
    rules
        .map(|(index, _)| {
            let field = format!("spec.podFailurePolicy.rules[{index}].action");
            needs_limit_per_index(manifest, &field)
        })
        .collect()
}

fn needs_limit_per_index(manifest: &Manifest<'_>, field: &str) -> Finding {
    let problem = "the API refuses it: it needs backoffLimitPerIndex";
    let remedy = "set backoffLimitPerIndex";
    manifest.found((Severity::Error, Code::NeedsBackoffLimitPerIndex), field, problem, remedy)
}
