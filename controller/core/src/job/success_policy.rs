//! Applies `spec.successPolicy`: whether the succeeded indexes suffice. ([C11])

use k8s_openapi::api::batch::v1::{SuccessPolicy, SuccessPolicyRule};

use super::IndexSet;

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
