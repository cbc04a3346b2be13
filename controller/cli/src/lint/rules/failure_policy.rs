//! Checks each rule of a podFailurePolicy: whether it can match a pod at all.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::pod_condition::{
    CONTAINERS_READY, DISRUPTION_TARGET, ENDED, OOM_KILLED, PENDING_TIMEOUT, READY,
};
use serde_json::Value;

use super::exit_codes;
use super::facts::items;
use super::finding::{Finding, Severity};
use super::manifest::Manifest;
use controller_core::spelling::meant;

/// Condition types that Kubernetes and this project set on pods.
pub(super) const KNOWN_TYPES: [&str; 12] = [
    DISRUPTION_TARGET,
    OOM_KILLED,
    PENDING_TIMEOUT,
    ENDED,
    READY,
    CONTAINERS_READY,
    "Initialized",
    "PodScheduled",
    "PodReadyToStartContainers",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];
/// The prefix of our condition types.
const OURS: &str = "epilogue.dev/";

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, rule) in manifest.rules().enumerate() {
        let path = format!("spec.podFailurePolicy.rules[{index}]");
        found.extend(empty(manifest, rule, &path));
        found.extend(exit_codes::findings(manifest, &rule["onExitCodes"], &path));
        for (index, pattern) in items(&rule["onPodConditions"]).enumerate() {
            let path = format!("{path}.onPodConditions[{index}]");
            found.extend(kind(manifest, pattern, &path));
            found.extend(status(manifest, pattern, &path));
        }
    }
    found
}

fn empty(manifest: &Manifest<'_>, rule: &Value, path: &str) -> Option<Finding> {
    let is_set = |field: &str| !rule[field].is_null() && rule[field] != Value::Array(Vec::new());
    let problem = match (is_set("onExitCodes"), is_set("onPodConditions")) {
        (false, false) => "the rule matches no pod: it has neither exit codes nor conditions",
        (true, true) => "the rule has exit codes and conditions; the API refuses both in one rule",
        _ => return None,
    };
    let remedy = "give each rule either onExitCodes or onPodConditions";
    Some(manifest.found((Severity::Error, Code::RuleWithoutMatch), path, problem, remedy))
}

/// A type that no component sets. Others may set any type, so a finding needs a near known one, or
/// our own prefix.
fn kind(manifest: &Manifest<'_>, pattern: &Value, path: &str) -> Option<Finding> {
    let kind = pattern["type"].as_str()?;
    if KNOWN_TYPES.contains(&kind) {
        return None;
    }
    let (problem, remedy) = match meant_type(kind) {
        Some(known) => {
            (format!("unknown condition type {kind}; did you mean {known}?"), known.to_owned())
        }
        None if kind.starts_with(OURS) => {
            let ours: Vec<&str> =
                KNOWN_TYPES.into_iter().filter(|known| known.starts_with(OURS)).collect();
            let problem = format!("Epilogue sets no condition {kind} on pods");
            (problem, format!("one of {}", ours.join(", ")))
        }
        None => return None,
    };
    let field = format!("{path}.type");
    let remedy = format!("write {remedy}");
    Some(manifest.found((Severity::Error, Code::ConditionTypeUnknown), &field, problem, remedy))
}

/// The known type that was probably meant, also without its prefix.
pub(super) fn meant_type(kind: &str) -> Option<&'static str> {
    let bare = |known: &&str| {
        known.split_once('/').is_some_and(|(_, name)| name.eq_ignore_ascii_case(kind))
    };
    meant(kind, KNOWN_TYPES).or_else(|| KNOWN_TYPES.into_iter().find(bare))
}

fn status(manifest: &Manifest<'_>, pattern: &Value, path: &str) -> Option<Finding> {
    let field = format!("{path}.status");
    let status = match &pattern["status"] {
        // The API's default is True.
        Value::Null => return None,
        Value::String(status) => status.as_str(),
        other => {
            let problem = format!("the status {other} is not a string, and the API refuses it");
            let rule = (Severity::Error, Code::ConditionStatusInvalid);
            return Some(manifest.found(rule, &field, problem, "quote it: \"True\""));
        }
    };
    if !["True", "False", "Unknown"].contains(&status) {
        let problem = format!("invalid status {status:?}: the API expects True, False or Unknown");
        let rule = (Severity::Error, Code::ConditionStatusInvalid);
        return Some(manifest.found(rule, &field, problem, "write \"True\""));
    }
    let is_disruption = pattern["type"] == DISRUPTION_TARGET;
    (is_disruption && status != "True").then(|| {
        let problem = format!(
            "DisruptionTarget={status} is on pods whose disruption was taken back, not on \
             disrupted ones"
        );
        let rule = (Severity::Warning, Code::DisruptionTargetNotTrue);
        manifest.found(rule, &field, problem, "write \"True\"")
    })
}
