//! A label selector, parsed once.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// `metav1.LabelSelector`, ready to match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Option<Vec<Requirement>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Reads the API's form. An operator that we do not know makes a selector that matches
    /// nothing: claiming no pod is the mistake that can be mended.
    pub fn read(selector: Option<&LabelSelector>) -> Self {
        Self { requirements: selector.and_then(requirements) }
    }

    /// Whether the labels match. No selector matches nothing; an empty one matches everything.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// Whether labels that are looked up by `value` match.
    pub fn matches_by<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .as_ref()
            .is_some_and(|all| all.iter().all(|each| each.holds(value(&each.key))))
    }
}

fn requirements(selector: &LabelSelector) -> Option<Vec<Requirement>> {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| {
        Some(Requirement { key: key.clone(), operator: Operator::In(vec![value.clone()]) })
    });
    let expressions = selector.match_expressions.iter().flatten().map(|each| {
        let values = each.values.clone().unwrap_or_default();
        let operator = match each.operator.as_str() {
            "In" => Operator::In(values),
            "NotIn" => Operator::NotIn(values),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return None,
        };
        Some(Requirement { key: each.key.clone(), operator })
    });
    equal.chain(expressions).collect()
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        match &self.operator {
            Operator::In(values) => value.is_some_and(|it| values.iter().any(|each| each == it)),
            Operator::NotIn(values) => {
                !value.is_some_and(|it| values.iter().any(|each| each == it))
            }
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Selector {
        Selector::read(Some(&LabelSelector {
            match_labels: None,
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.iter().map(|each| (*each).into()).collect()),
            }]),
        }))
    }

    #[test]
    fn no_selector_matches_nothing_and_an_empty_one_everything() {
        assert!(!Selector::read(None).matches(&labels(&[("a", "1")])));
        assert!(Selector::read(Some(&LabelSelector::default())).matches(&labels(&[])));
    }

    #[test]
    fn operators_hold_as_the_api_defines_them() {
        let here = labels(&[("a", "1")]);
        let gone = labels(&[]);
        for (operator, values, on_here, on_gone) in [
            ("In", vec!["1", "2"], true, false),
            ("In", vec!["2"], false, false),
            ("NotIn", vec!["2"], true, true),
            ("NotIn", vec!["1"], false, true),
            ("Exists", vec![], true, false),
            ("DoesNotExist", vec![], false, true),
            ("Gt", vec!["0"], false, false),
        ] {
            let selector = expression("a", operator, &values);
            assert_eq!(selector.matches(&here), on_here, "{operator} {values:?} on a=1");
            assert_eq!(selector.matches(&gone), on_gone, "{operator} {values:?} on nothing");
        }
    }
}
