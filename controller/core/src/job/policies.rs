//! Applies `spec.podFailurePolicy`, which finds the rule that a failed pod matches (KEP-3329), and
//! `spec.successPolicy`, which says whether the succeeded indexes suffice ([C11]).

use k8s_openapi::api::batch::v1::{SuccessPolicy, SuccessPolicyRule};

use super::IndexSet;
use crate::view::{Container, ContainerKind, FailurePolicy, FailureRule, Pod, Terminated};

/// The action of the first rule that matches a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// The Job fails at once, with this message.
    FailJob(String),
    /// The pod's index fails at once.
    FailIndex,
    /// The failure does not count.
    Ignore,
    /// The failure counts, as without a policy.
    Count,
}

impl FailureAction {
    /// The API's name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::FailJob(_) => "FailJob",
            Self::FailIndex => "FailIndex",
            Self::Ignore => "Ignore",
            Self::Count => "Count",
        }
    }

    /// Whether the failure counts against limits. ([F5])
    pub fn counts(&self) -> bool {
        *self != Self::Ignore
    }
}

/// The first rule that matches a failed pod, by its place, and its action; `None` when none
/// does, so that the failure counts.
///
/// Rules with an unknown action or operator are skipped. ([F2])
pub(super) fn rule_for(policy: &FailurePolicy, pod: &Pod) -> Option<(usize, FailureAction)> {
    policy.rules.iter().enumerate().find_map(|(position, rule)| {
        let matched = match &rule.on_exit_codes {
            Some(_) => exit_code_match(rule, pod).map(|(container, ended)| {
                format!(
                    "Container {} for pod {}/{} failed with exit code {} matching",
                    container.name, pod.namespace, pod.name, ended.exit_code
                )
            }),
            None => condition_match(rule, pod).map(|kind| {
                format!("Pod {}/{} has condition {kind} matching", pod.namespace, pod.name)
            }),
        };
        let matched = matched?;
        let action = match rule.action.as_str() {
            "FailJob" => {
                FailureAction::FailJob(format!("{matched} FailJob rule at index {position}"))
            }
            "FailIndex" => FailureAction::FailIndex,
            "Ignore" => FailureAction::Ignore,
            "Count" => FailureAction::Count,
            _ => return None,
        };
        Some((position, action))
    })
}

/// Regular containers first, then init containers; exit code 0 never matches. ([F3])
///
/// DIVERGES(upstream): where another container has failed, no rule sees a sidecar's exit code. The
/// kubelet ends sidecars after the others, often with 143 or 137, so the code says nothing of the
/// failure. Upstream lets it match a rule like that of any init container. ([F3])
fn exit_code_match<'a>(rule: &FailureRule, pod: &'a Pod) -> Option<(&'a Container, Terminated)> {
    let wanted = rule.on_exit_codes.as_ref()?;
    let holds = |code: i32| match wanted.operator.as_str() {
        "In" => wanted.values.contains(&code),
        "NotIn" => !wanted.values.contains(&code),
        _ => false,
    };
    let of = |kind: ContainerKind| pod.containers.iter().filter(move |each| each.kind == kind);
    let others = || of(ContainerKind::Regular).chain(of(ContainerKind::Init));
    let has_failed = |each: &Container| each.terminated.is_some_and(|ended| ended.exit_code != 0);
    let sidecars = of(ContainerKind::Sidecar).filter(|_| !others().any(has_failed));
    others().chain(sidecars).find_map(|container| {
        let ended = container.terminated?;
        let named = wanted.container_name.as_deref().is_none_or(|name| name == &*container.name);
        (named && ended.exit_code != 0 && holds(ended.exit_code)).then_some((container, ended))
    })
}

/// The first condition of the pod that equals some pattern in type and status. ([F4])
fn condition_match<'a>(rule: &FailureRule, pod: &'a Pod) -> Option<&'a str> {
    let patterns = rule.on_pod_conditions.as_ref()?;
    let condition = pod.conditions.iter().find(|condition| {
        patterns.iter().any(|pattern| {
            pattern.type_ == *condition.kind
                && pattern.status.as_deref().unwrap_or("True") == &*condition.status
        })
    })?;
    Some(&condition.kind)
}

// Applies `spec.successPolicy`: whether the succeeded indexes suffice. ([C11])

/// The message of the first rule that the succeeded indexes meet.
pub(super) fn met(policy: &SuccessPolicy, succeeded: &IndexSet, bound: u32) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let rule = policy.rules.iter().position(|rule| is_met(rule, succeeded, bound))?;
    Some(format!("Matched rules at index {rule}"))
}

fn is_met(rule: &SuccessPolicyRule, succeeded: &IndexSet, bound: u32) -> bool {
    let enough = |size: u32| {
        rule.succeeded_count.is_some_and(|count| size >= u32::try_from(count).unwrap_or(0))
    };
    match &rule.succeeded_indexes {
        None => enough(succeeded.len()),
        Some(text) => {
            let required = IndexSet::parse(text, bound);
            let there = required.intersection_size(succeeded);
            !required.is_empty() && (there == required.len() || enough(there))
        }
    }
}
