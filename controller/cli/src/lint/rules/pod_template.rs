//! Checks the restart policy, the replacement policy and the deadlines of a Job's pods.

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::Value;

use super::finding::{Finding, Severity};
use super::manifest::Manifest;

/// The API's default of `terminationGracePeriodSeconds`.
const GRACE: i64 = 30;
const RESTART_POLICY: &str = "spec.template.spec.restartPolicy";

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = restart_policy(manifest).into_iter().collect();
    found.extend(on_failure(manifest));
    found.extend(replacement_policy(manifest));
    found.extend(deadlines(manifest));
    found
}

fn restart_policy(manifest: &Manifest<'_>) -> Option<Finding> {
    let problem = match &manifest.pod()["restartPolicy"] {
        Value::String(policy) if policy == "Never" || policy == "OnFailure" => return None,
        Value::Null => "the default is Always, which the API refuses for Jobs".to_owned(),
        other => format!("the API refuses {other} for Jobs"),
    };
    let rule = (Severity::Error, Code::RestartPolicyInvalid);
    Some(manifest.found(rule, RESTART_POLICY, problem, "write Never or OnFailure"))
}

/// Under OnFailure the kubelet starts containers again in their pod, so failures are not pods.
fn on_failure(manifest: &Manifest<'_>) -> Vec<Finding> {
    if manifest.pod()["restartPolicy"] != "OnFailure" {
        return Vec::new();
    }
    let fields = [
        (Severity::Error, "podFailurePolicy", "the API refuses podFailurePolicy with OnFailure"),
        (
            Severity::Warning,
            "backoffLimitPerIndex",
            "with OnFailure the kubelet restarts containers in their pod, and \
             backoffLimitPerIndex does not count these failures",
        ),
    ];
    let set = fields.into_iter().filter(|(_, field, _)| !manifest.spec()[field].is_null());
    set.map(|(severity, field, problem)| {
        let remedy = format!("write Never, or remove {field}");
        manifest.found((severity, Code::OnFailureInvalid), RESTART_POLICY, problem, remedy)
    })
    .collect()
}

fn replacement_policy(manifest: &Manifest<'_>) -> Option<Finding> {
    let spec = manifest.spec();
    let policy = spec["podReplacementPolicy"].as_str()?;
    let problem = if spec["podFailurePolicy"].is_null() {
        let is_known = policy == "Failed" || policy == "TerminatingOrFailed";
        (!is_known).then(|| format!("the API does not know {policy}"))?
    } else {
        let refused = || format!("the API refuses {policy} with podFailurePolicy");
        (policy != "Failed").then(refused)?
    };
    let rule = (Severity::Error, Code::ReplacementPolicyInvalid);
    Some(manifest.found(rule, "spec.podReplacementPolicy", problem, "write Failed, or remove it"))
}

fn deadlines(manifest: &Manifest<'_>) -> Vec<Finding> {
    let pod = manifest.pod();
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap_or(GRACE);
    let deadlines = [
        ("spec.activeDeadlineSeconds", &manifest.spec()["activeDeadlineSeconds"]),
        ("spec.template.spec.activeDeadlineSeconds", &pod["activeDeadlineSeconds"]),
    ];
    let set = deadlines.into_iter().filter_map(|(field, it)| Some((field, it.as_i64()?)));
    set.filter(|(_, seconds)| *seconds < grace)
        .map(|(field, seconds)| {
            let problem = format!(
                "pods get {seconds} s to run, and then {grace} s to terminate \
                 (terminationGracePeriodSeconds)"
            );
            let remedy = "raise the deadline, or lower terminationGracePeriodSeconds";
            manifest.found((Severity::Warning, Code::DeadlineBelowGrace), field, problem, remedy)
        })
        .collect()
}
