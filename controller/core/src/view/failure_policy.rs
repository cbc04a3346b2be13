//! Views `spec.podFailurePolicy`, with the names of its rules, which the API crate lacks so far.

use k8s_openapi::api::batch::v1::{
    PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
};
use serde::{Deserialize, Deserializer};

/// `spec.podFailurePolicy`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct FailurePolicy {
    /// `rules`, in which the first match decides.
    #[serde(default, deserialize_with = "or_default")]
    pub rules: Vec<FailureRule>,
}

/// A rule of `spec.podFailurePolicy`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureRule {
    /// `name`, where the API server has the field. (KEP-4443)
    pub name: Option<String>,
    /// `action`.
    #[serde(default, deserialize_with = "or_default")]
    pub action: String,
    /// `onExitCodes`.
    pub on_exit_codes: Option<PodFailurePolicyOnExitCodesRequirement>,
    /// `onPodConditions`.
    pub on_pod_conditions: Option<Vec<PodFailurePolicyOnPodConditionsPattern>>,
}

/// The API writes an empty list of rules as `null`.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_absent_or_null_hide_no_job() {
        let read = |text: &str| serde_json::from_str::<FailurePolicy>(text).expect("must be read");
        assert_eq!(read("{}"), FailurePolicy::default());
        assert_eq!(read(r#"{"rules":null}"#), FailurePolicy::default());
        let nulls = r#"{"name":null,"action":null,"onExitCodes":null,"onPodConditions":null}"#;
        let empty = FailurePolicy { rules: vec![FailureRule::default(); 2] };
        assert_eq!(read(&format!(r#"{{"rules":[{{}},{nulls}]}}"#)), empty);
        let named = read(r#"{"rules":[{"name":"A","later":1}]}"#);
        assert_eq!(named.rules[0].name.as_deref(), Some("A"));
    }
}
