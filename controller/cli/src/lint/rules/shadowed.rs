//! Finds rules of a podFailurePolicy that earlier rules shadow: the first rule that matches a pod
//! decides, so a rule whose every match is an earlier rule's never decides.

use std::collections::{BTreeMap, BTreeSet};

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::Value;

use super::facts::items;
use super::finding::{Finding, Severity};
use super::manifest::Manifest;

/// The actions that the API knows; a rule with another one decides nothing.
const ACTIONS: [&str; 4] = ["FailJob", "FailIndex", "Ignore", "Count"];

/// One way in which a rule matches. A rule matches if one of its matches does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match<'a> {
    /// A condition with type and status.
    Condition(&'a str, &'a str),
    /// A container, or any, exits with this code.
    Code(Option<&'a str>, i64),
    /// A container, or any, fails with a code that is not listed.
    OtherCode(Option<&'a str>, BTreeSet<i64>),
}

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    // What earlier rules match, with the first rule that does.
    let mut earlier: BTreeMap<Match<'_>, usize> = BTreeMap::new();
    let actions: Vec<&Value> = manifest.rules().map(|rule| &rule["action"]).collect();
    for (index, rule) in manifest.rules().enumerate() {
        if !rule["action"].as_str().is_some_and(|action| ACTIONS.contains(&action)) {
            continue;
        }
        let matches = matches(rule);
        let by: Option<BTreeSet<usize>> =
            matches.iter().map(|each| coverer(each, &earlier)).collect();
        if let Some(by) = by.filter(|by| !by.is_empty()) {
            found.push(shadowed(manifest, &actions, index, &by));
        }
        for each in matches {
            earlier.entry(each).or_insert(index);
        }
    }
    found
}

fn shadowed(
    manifest: &Manifest<'_>,
    actions: &[&Value],
    index: usize,
    by: &BTreeSet<usize>,
) -> Finding {
    // A rule with the same action as those before it is superfluous and does no harm.
    let same = by.iter().all(|earlier| actions[*earlier] == actions[index]);
    let severity = if same { Severity::Warning } else { Severity::Error };
    let names: Vec<String> = by.iter().map(|index| format!("rules[{index}]")).collect();
    let problem = format!(
        "the rule never decides: {} before it {} every pod that it would match",
        names.join(" and "),
        if by.len() == 1 { "matches" } else { "match" }
    );
    let remedy =
        if same { "remove it" } else { "put the narrower rule first, or remove one of them" };
    let field = format!("spec.podFailurePolicy.rules[{index}]");
    manifest.found((severity, Code::RuleShadowed), &field, problem, remedy)
}

/// The ways in which a rule matches. A rule with exit codes ignores conditions, as the API refuses
/// both.
fn matches(rule: &Value) -> Vec<Match<'_>> {
    let wanted = &rule["onExitCodes"];
    if wanted.is_null() {
        let patterns = items(&rule["onPodConditions"]);
        let text = |pattern: &Value| pattern["type"].is_string();
        return patterns
            .filter(|pattern| text(pattern))
            .map(|pattern| {
                let status = pattern["status"].as_str().unwrap_or("True");
                Match::Condition(pattern["type"].as_str().unwrap_or_default(), status)
            })
            .collect();
    }
    let container = wanted["containerName"].as_str();
    // No rule matches the exit code 0.
    let codes = items(&wanted["values"]).filter_map(Value::as_i64).filter(|code| *code != 0);
    match wanted["operator"].as_str() {
        Some("In") => codes.map(|code| Match::Code(container, code)).collect(),
        Some("NotIn") => vec![Match::OtherCode(container, codes.collect())],
        _ => Vec::new(),
    }
}

/// The first earlier rule that covers a match.
fn coverer(wanted: &Match<'_>, earlier: &BTreeMap<Match<'_>, usize>) -> Option<usize> {
    // The same match is the usual case; only exit codes can be covered by a different one.
    let exact = earlier.get(wanted).copied();
    let wider = earlier.iter().filter(|(each, _)| covers(each, wanted)).map(|(_, index)| *index);
    match wanted {
        Match::Condition(..) => exact,
        _ => wider.min(),
    }
}

/// Whether every pod of the second match is one of the first.
fn covers(wide: &Match<'_>, narrow: &Match<'_>) -> bool {
    let container = |wide: Option<&str>, narrow| wide.is_none() || wide == narrow;
    match (wide, narrow) {
        (Match::Condition(..), _) => wide == narrow,
        (Match::Code(of, code), Match::Code(by, wanted)) => container(*of, *by) && code == wanted,
        (Match::OtherCode(of, listed), Match::Code(by, wanted)) => {
            container(*of, *by) && !listed.contains(wanted)
        }
        (Match::OtherCode(of, listed), Match::OtherCode(by, wanted)) => {
            container(*of, *by) && listed.is_subset(wanted)
        }
        _ => false,
    }
}
