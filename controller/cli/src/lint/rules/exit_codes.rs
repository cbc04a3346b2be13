//! Checks `onExitCodes` of a rule: the container, and the values.

use std::collections::BTreeSet;

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::Value;

use super::facts::items;
use super::finding::{Finding, Severity};
use super::manifest::Manifest;
use controller_core::spelling::nearest;

/// The most values that the API takes.
const VALUES_MAX: usize = 255;

pub(super) fn findings(manifest: &Manifest<'_>, wanted: &Value, rule: &str) -> Vec<Finding> {
    let path = format!("{rule}.onExitCodes");
    if wanted.is_null() {
        return Vec::new();
    }
    let found = [
        container(manifest, wanted, &path),
        sidecar(manifest, wanted, &path),
        operator(manifest, wanted, &path),
        values(manifest, wanted, &path),
    ];
    found.into_iter().flatten().collect()
}

/// The names of containers and init containers, which rules may name.
fn containers<'a>(manifest: &Manifest<'a>) -> Vec<&'a str> {
    let pod = manifest.pod();
    let all = items(&pod["containers"]).chain(items(&pod["initContainers"]));
    all.filter_map(|container| container["name"].as_str()).collect()
}

fn container(manifest: &Manifest<'_>, wanted: &Value, path: &str) -> Option<Finding> {
    let name = wanted["containerName"].as_str()?;
    let known = containers(manifest);
    if known.contains(&name) {
        return None;
    }
    let problem = format!("the pod template has no container {name}; the API refuses the rule");
    // One of few names is meant, so many edits are allowed.
    let near = nearest(name, known.iter().copied());
    let remedy = match near.filter(|(edits, near)| *edits <= near.len() / 2) {
        Some((_, near)) => format!("write {near}"),
        None if known.is_empty() => "name a container of the pod template".to_owned(),
        None => format!("write one of {}", known.join(", ")),
    };
    let field = format!("{path}.containerName");
    Some(manifest.found((Severity::Error, Code::ContainerUnknown), &field, problem, remedy))
}

/// A rule about a sidecar holds only where no other container has failed.
fn sidecar(manifest: &Manifest<'_>, wanted: &Value, path: &str) -> Option<Finding> {
    let name = wanted["containerName"].as_str()?;
    let is_it = |each: &Value| each["name"] == name && each["restartPolicy"] == "Always";
    let pod = manifest.pod();
    if !items(&pod["initContainers"]).any(is_it) {
        return None;
    }
    let problem = format!(
        "{name} is a sidecar, which ends after the others: its exit code matches only where no \
         other container has failed"
    );
    let field = format!("{path}.containerName");
    let rule = (Severity::Warning, Code::SidecarExitCode);
    Some(manifest.found(rule, &field, problem, "name the container whose failure is meant"))
}

fn operator(manifest: &Manifest<'_>, wanted: &Value, path: &str) -> Option<Finding> {
    let operator = &wanted["operator"];
    if operator == "In" || operator == "NotIn" {
        return None;
    }
    let problem = format!("invalid operator {operator}: the API expects In or NotIn");
    let field = format!("{path}.operator");
    let rule = (Severity::Error, Code::ExitCodesInvalid);
    Some(manifest.found(rule, &field, problem, "write In or NotIn"))
}

fn values(manifest: &Manifest<'_>, wanted: &Value, path: &str) -> Option<Finding> {
    let field = format!("{path}.values");
    let refused = |problem: &str, remedy: &str| {
        let rule = (Severity::Error, Code::ExitCodesInvalid);
        Some(manifest.found(rule, &field, problem, remedy))
    };
    let values: Vec<i64> = items(&wanted["values"]).filter_map(Value::as_i64).collect();
    if values.is_empty() {
        return refused("no exit codes; the API refuses an empty list", "list exit codes");
    }
    if values.len() > VALUES_MAX {
        let problem = format!("{} exit codes; the API takes at most {VALUES_MAX}", values.len());
        return refused(&problem, "list fewer, or use the other operator");
    }
    if wanted["operator"] == "In" && values.contains(&0) {
        let problem = "0 is success, and rules apply to failures; the API refuses it with In";
        return refused(problem, "remove 0");
    }
    if !values.windows(2).all(|pair| pair[0] < pair[1]) {
        let problem = "the API refuses exit codes that are not in order, or appear twice";
        return refused(problem, "sort them, each once");
    }
    let all: BTreeSet<i64> = (1..=255).collect();
    let listed: BTreeSet<i64> = values.into_iter().collect();
    if wanted["operator"] == "NotIn" && listed.is_superset(&all) {
        let problem = "the rule matches no pod: NotIn lists every exit code of a failure";
        let rule = (Severity::Error, Code::RuleWithoutMatch);
        return Some(manifest.found(
            rule,
            &field,
            problem,
            "list those codes only that do not match",
        ));
    }
    None
}
