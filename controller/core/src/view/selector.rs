//! Reads a label selector straight into the form that matches: one with a hundred thousand values
//! takes no more space than its text.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The terminator of each value of a requirement; no label value contains it.
const END: char = '\0';

/// `metav1.LabelSelector`, ready to match. The default is the absent selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Option<Box<[Requirement]>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Requirement {
    key: Box<str>,
    operator: Operator,
    values: Values,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    #[serde(other)]
    Unknown,
}

/// Values, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Values(Box<str>);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    match_labels: Option<Labels>,
    match_expressions: Option<Vec<Requirement>>,
}

/// Labels that must have one value each.
struct Labels(Vec<Requirement>);

impl Selector {
    /// Whether the labels match. An absent selector matches nothing; an empty one matches
    /// everything.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// Whether the labels that `value` finds match.
    pub fn matches_by<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .as_ref()
            .is_some_and(|all| all.iter().all(|each| each.holds(value(&each.key))))
    }
}

impl Selector {
    /// The parameter `labelSelector` of a request that lists what matches; `None` if it would not
    /// restrict the list.
    pub fn query(&self) -> Option<String> {
        let requirements = self.requirements.as_deref().filter(|all| !all.is_empty())?;
        let texts: Vec<String> = requirements.iter().map(Requirement::query).collect();
        Some(texts.join(","))
    }

    /// The selector of `matchLabels` and of `matchExpressions`, each with key, operator and values.
    pub(super) fn of<V: Iterator<Item = String>>(
        labels: BTreeMap<String, String>,
        expressions: impl Iterator<Item = (String, String, V)>,
    ) -> Self {
        let labels = labels.into_iter().map(|(key, value)| Requirement::label(key.into(), &value));
        let expressions = expressions.map(|(key, operator, values)| {
            let operator = Operator::parse(&operator);
            Requirement { key: key.into(), operator, values: values.collect() }
        });
        Self::all(labels.chain(expressions).collect())
    }

    /// An unknown operator makes a selector that matches nothing: to claim no pod is the mistake
    /// that can be repaired.
    fn all(requirements: Vec<Requirement>) -> Self {
        let known = requirements.iter().all(|each| each.operator != Operator::Unknown);
        Self { requirements: known.then(|| requirements.into_boxed_slice()) }
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { match_labels, match_expressions } = Wire::deserialize(deserializer)?;
        let mut all = match_labels.map(|labels| labels.0).unwrap_or_default();
        all.extend(match_expressions.unwrap_or_default());
        Ok(Self::all(all))
    }
}

impl Default for Requirement {
    fn default() -> Self {
        Self { key: "".into(), operator: Operator::Unknown, values: Values::default() }
    }
}

impl Operator {
    fn parse(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => Self::Unknown,
        }
    }
}

impl Requirement {
    /// The label must have this value.
    fn label(key: Box<str>, value: &str) -> Self {
        let values = std::iter::once(value.to_owned()).collect();
        Self { key, operator: Operator::In, values }
    }

    fn query(&self) -> String {
        let Self { key, operator, values } = self;
        match operator {
            Operator::In => format!("{key} in ({})", values.listed()),
            Operator::NotIn => format!("{key} notin ({})", values.listed()),
            Operator::Exists => key.to_string(),
            // An unknown operator makes no selector.
            Operator::DoesNotExist | Operator::Unknown => format!("!{key}"),
        }
    }

    fn holds(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.has(value)),
            Operator::NotIn => !value.is_some_and(|value| self.values.has(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Unknown => false,
        }
    }
}

impl Values {
    fn has(&self, value: &str) -> bool {
        self.0.split_terminator(END).any(|each| each == value)
    }

    fn listed(&self) -> String {
        self.0.split_terminator(END).collect::<Vec<_>>().join(",")
    }
}

impl FromIterator<String> for Values {
    fn from_iter<I: IntoIterator<Item = String>>(values: I) -> Self {
        let mut text = String::new();
        for value in values {
            text.push_str(&value);
            text.push(END);
        }
        Self(text.into())
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListOfValues)
    }
}

struct ListOfValues;

impl<'de> Visitor<'de> for ListOfValues {
    type Value = Values;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of values")
    }

    fn visit_unit<E>(self) -> Result<Values, E> {
        Ok(Values::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
        let mut text = String::new();
        while list.next_element_seed(Appended(&mut text))?.is_some() {}
        Ok(Values(text.into()))
    }
}

/// Appends a value to the others.
struct Appended<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Appended<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Appended<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.0.push_str(value);
        self.0.push(END);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MapOfLabels)
    }
}

struct MapOfLabels;

impl<'de> Visitor<'de> for MapOfLabels {
    type Value = Labels;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        let mut labels = Vec::new();
        while let Some((key, value)) = map.next_entry::<Box<str>, String>()? {
            labels.push(Requirement::label(key, &value));
        }
        Ok(Labels(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn read(selector: &Value) -> Selector {
        serde_json::from_str(&selector.to_string()).expect("must be readable")
    }

    #[test]
    fn a_query_says_what_the_selector_matches() {
        let all = read(&json!({"matchLabels": {"a": "1"}, "matchExpressions": [
            {"key": "b", "operator": "In", "values": ["x", "y"]},
            {"key": "example.com/c", "operator": "NotIn", "values": ["z"]},
            {"key": "d", "operator": "Exists"},
            {"key": "e", "operator": "DoesNotExist"},
        ]}));
        let query = "a in (1),b in (x,y),example.com/c notin (z),d,!e";
        assert_eq!(all.query().as_deref(), Some(query));
        assert_eq!(read(&json!({})).query(), None);
        assert_eq!(Selector::default().query(), None);
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Selector {
        read(&json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
    }

    #[test]
    fn no_selector_matches_nothing_and_an_empty_one_everything() {
        assert!(!Selector::default().matches(&labels(&[("a", "1")])));
        for empty in [json!({}), json!({"matchLabels": null, "matchExpressions": null})] {
            assert!(read(&empty).matches(&labels(&[])), "{empty}");
        }
    }

    #[test]
    fn labels_and_expressions_hold_together() {
        let selector = read(&json!({
            "matchLabels": {"a": "1", "empty": ""},
            "matchExpressions": [{"key": "b", "operator": "Exists", "values": null}],
        }));
        assert!(selector.matches(&labels(&[("a", "1"), ("b", "x"), ("empty", "")])));
        assert!(!selector.matches(&labels(&[("a", "1"), ("b", "x"), ("empty", "y")])));
        assert!(!selector.matches(&labels(&[("a", "1"), ("empty", "")])));
        assert!(!selector.matches(&labels(&[("a", "12"), ("b", "x"), ("empty", "")])));
        let escaped: Selector = serde_json::from_str(r#"{"matchLabels": {"\u0061": "\u0031"}}"#)
            .expect("must be readable");
        assert!(escaped.matches(&labels(&[("a", "1")])));
    }

    #[test]
    fn what_is_no_selector_is_an_error() {
        for text in ["1", r#"{"matchLabels": []}"#, r#"{"matchExpressions": [{"values": [1]}]}"#] {
            assert!(serde_json::from_str::<Selector>(text).is_err(), "{text}");
        }
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
