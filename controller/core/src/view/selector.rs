//! Reads a label selector straight into the form that matches.
//!
//! A tenant may write a hundred thousand values, requirements or labels. So a selector takes little
//! more space than its text, and a match is a search for what either side has less of.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The terminator of each value of a requirement; no label value contains it.
const END: char = '\0';

/// `metav1.LabelSelector`, ready to match. The default is the absent selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// One for each key: those that need the label, then the others, both by key. Shared: what is
    /// left to do for a Job has its selector.
    requirements: Option<Arc<[Requirement]>>,
    /// Whether it has no place in memory.
    is_unkept: bool,
}

/// All that the selector says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: Box<str>,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// The label is there and has one of these values.
    In(Values),
    /// The label is not there, or has none of these values.
    NotIn(Values),
    /// The label is there and has none of these values.
    Exists(Values),
    /// The label is not there.
    Absent,
    /// The label is there and is not: two requirements contradict each other.
    Never,
}

/// Different values in their order, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Values {
    text: Box<str>,
    /// Where the second value begins, and each one after it.
    starts: Box<[u32]>,
}

/// What a pod must have so that a selector can match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Needed<'a> {
    /// No label.
    Nothing,
    /// This label.
    Key(&'a str),
    /// This label with this value.
    Value(&'a str, &'a str),
}

/// Labels in which a selector searches.
pub(super) trait LabelLookup {
    /// How many there are.
    fn count(&self) -> usize;
    /// The value of one.
    fn value(&self, key: &str) -> Option<&str>;
    /// All of them.
    fn all(&self) -> impl Iterator<Item = (&str, &str)>;
}

/// A requirement as the API has it.
#[derive(Deserialize)]
#[serde(default)]
struct WireRequirement {
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

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    match_labels: Option<WireLabels>,
    match_expressions: Option<Vec<WireRequirement>>,
}

/// Labels that must have one value each.
struct WireLabels(Vec<WireRequirement>);

impl Selector {
    /// Whether the labels match. An absent selector matches nothing; an empty one matches
    /// everything.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_in(labels)
    }

    /// Whether the labels match.
    pub(super) fn matches_in(&self, labels: &impl LabelLookup) -> bool {
        let Some(all) = self.requirements.as_deref() else { return false };
        if all.len() <= labels.count() {
            return all.iter().all(|each| each.rule.holds(labels.value(&each.key)));
        }
        let needed = all.partition_point(|each| each.rule.needs_label());
        let (there, others) = all.split_at(needed);
        let find = |part: &'_ [Requirement], key: &str| {
            part.binary_search_by(|each| each.key.as_ref().cmp(key)).ok()
        };
        let mut found = 0;
        for (key, value) in labels.all() {
            let place = find(there, key);
            found += usize::from(place.is_some());
            let each = match place {
                Some(place) => &there[place],
                None => match find(others, key) {
                    Some(place) => &others[place],
                    None => continue,
                },
            };
            if !each.rule.holds(Some(value)) {
                return false;
            }
        }
        found == needed
    }
}

impl Selector {
    /// One that is not kept. No pod is adopted or disowned by it.
    pub(crate) fn unkept() -> Self {
        Self { requirements: None, is_unkept: true }
    }

    /// Whether it is not kept.
    pub(crate) fn is_unkept(&self) -> bool {
        self.is_unkept
    }

    /// What it takes, in bytes.
    pub(crate) fn size(&self) -> usize {
        let all = self.requirements.iter().flat_map(|all| all.iter());
        all.map(|each| size_of::<Requirement>() + each.key.len() + each.rule.size()).sum()
    }

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
        let labels =
            labels.into_iter().map(|(key, value)| WireRequirement::label(key.into(), &value));
        let expressions = expressions.map(|(key, operator, values)| {
            let operator = Operator::parse(&operator);
            WireRequirement { key: key.into(), operator, values: values.collect() }
        });
        Self::all(labels.chain(expressions).collect())
    }

    /// Labels that a pod must have; `None` if the selector matches no pod.
    pub(crate) fn needed_labels(&self) -> Option<impl Iterator<Item = Needed<'_>>> {
        let all = self.requirements.as_deref()?;
        let needed = || all.iter().take_while(|each| each.rule.needs_label());
        if needed().any(|each| each.rule == Rule::Never) {
            return None;
        }
        Some(needed().map(|each| match &each.rule {
            Rule::In(values) if values.count() == 1 => Needed::Value(&each.key, values.get(0)),
            _ => Needed::Key(&each.key),
        }))
    }

    /// An unknown operator makes a selector that matches nothing: to claim no pod is the mistake
    /// that can be repaired.
    fn all(mut wire: Vec<WireRequirement>) -> Self {
        if wire.iter().any(|each| each.operator == Operator::Unknown) {
            return Self::default();
        }
        wire.sort_by(|left, right| left.key.cmp(&right.key));
        let mut all: Vec<Requirement> = Vec::with_capacity(wire.len());
        let mut wire = wire.into_iter().peekable();
        while let Some(first) = wire.next() {
            let mut said = Said::default();
            let key = first.key;
            said.add(first.operator, first.values);
            while let Some(next) = wire.next_if(|next| next.key == key) {
                said.add(next.operator, next.values);
            }
            all.push(Requirement { key, rule: said.rule() });
        }
        // Stable: within both parts they stay in the order of their keys.
        all.sort_by_key(|each| !each.rule.needs_label());
        Self { requirements: Some(all.into()), is_unkept: false }
    }
}

/// What the requirements of one key say together.
#[derive(Default)]
struct Said {
    /// One of these.
    some: Option<Values>,
    /// None of these.
    not: String,
    exists: bool,
    is_absent: bool,
}

impl Said {
    fn add(&mut self, operator: Operator, values: Values) {
        match operator {
            Operator::In => {
                self.some = Some(match self.some.take() {
                    Some(some) => some.only(|value| values.has(value)),
                    None => values,
                });
            }
            Operator::NotIn => self.not.push_str(&values.text),
            Operator::Exists => self.exists = true,
            Operator::DoesNotExist => self.is_absent = true,
            Operator::Unknown => (self.exists, self.is_absent) = (true, true),
        }
    }

    fn rule(self) -> Rule {
        let not = Values::sorted(&self.not);
        match (self.some, self.exists, self.is_absent) {
            (Some(_), _, true) | (None, true, true) => Rule::Never,
            (None, false, true) => Rule::Absent,
            (Some(some), _, false) => Rule::In(some.only(|value| !not.has(value))),
            (None, true, false) => Rule::Exists(not),
            (None, false, false) => Rule::NotIn(not),
        }
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

impl Default for WireRequirement {
    fn default() -> Self {
        Self { key: "".into(), operator: Operator::Unknown, values: Values::default() }
    }
}

impl WireRequirement {
    /// The label must have this value.
    fn label(key: Box<str>, value: &str) -> Self {
        let values = std::iter::once(value.to_owned()).collect();
        Self { key, operator: Operator::In, values }
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
    fn query(&self) -> String {
        let key = &self.key;
        match &self.rule {
            Rule::In(values) => format!("{key} in ({})", values.listed()),
            Rule::NotIn(values) => format!("{key} notin ({})", values.listed()),
            Rule::Exists(values) if values.is_empty() => key.to_string(),
            Rule::Exists(values) => format!("{key},{key} notin ({})", values.listed()),
            Rule::Absent => format!("!{key}"),
            Rule::Never => format!("{key},!{key}"),
        }
    }
}

impl Rule {
    fn size(&self) -> usize {
        match self {
            Self::In(values) | Self::NotIn(values) | Self::Exists(values) => {
                values.text.len() + size_of_val(&*values.starts)
            }
            Self::Absent | Self::Never => 0,
        }
    }

    fn needs_label(&self) -> bool {
        matches!(self, Self::In(_) | Self::Exists(_) | Self::Never)
    }

    fn holds(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::In(values), Some(value)) => values.has(value),
            (Self::NotIn(values) | Self::Exists(values), Some(value)) => !values.has(value),
            (Self::NotIn(_) | Self::Absent, None) => true,
            (Self::In(_) | Self::Exists(_), None) | (Self::Absent, Some(_)) | (Self::Never, _) => {
                false
            }
        }
    }
}

impl Values {
    /// The values of a text in which each has its terminator.
    fn sorted(text: &str) -> Self {
        let mut all: Vec<&str> = text.split_terminator(END).collect();
        all.sort_unstable();
        all.dedup();
        Self::of(all.into_iter(), text.len())
    }

    /// The values are in their order, and all differ.
    fn of<'a>(values: impl Iterator<Item = &'a str>, size: usize) -> Self {
        let (mut text, mut starts) = (String::with_capacity(size), Vec::new());
        for (number, value) in values.enumerate() {
            if number > 0 {
                // An object of the API is smaller.
                starts.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
            }
            text.push_str(value);
            text.push(END);
        }
        Self { text: text.into(), starts: starts.into() }
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn has(&self, value: &str) -> bool {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(value) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return true,
            }
        }
        false
    }

    fn count(&self) -> usize {
        if self.is_empty() { 0 } else { self.starts.len() + 1 }
    }

    fn get(&self, place: usize) -> &str {
        let start = |place: usize| match place.checked_sub(1) {
            None => 0,
            Some(before) => self.starts.get(before).map_or(self.text.len(), |at| *at as usize),
        };
        let range: Range<usize> = start(place)..start(place + 1).saturating_sub(END.len_utf8());
        self.text.get(range).unwrap_or_default()
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.text.split_terminator(END)
    }

    /// Those of the values that this holds for.
    fn only(&self, holds: impl Fn(&str) -> bool) -> Self {
        Self::of(self.iter().filter(|value| holds(value)), self.text.len())
    }

    fn listed(&self) -> String {
        self.iter().collect::<Vec<_>>().join(",")
    }
}

impl FromIterator<String> for Values {
    fn from_iter<I: IntoIterator<Item = String>>(values: I) -> Self {
        let mut text = String::new();
        for value in values {
            text.push_str(&value);
            text.push(END);
        }
        Self::sorted(&text)
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
        Ok(Values::sorted(&text))
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

impl<'de> Deserialize<'de> for WireLabels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MapOfLabels)
    }
}

struct MapOfLabels;

impl<'de> Visitor<'de> for MapOfLabels {
    type Value = WireLabels;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WireLabels, A::Error> {
        let mut labels = Vec::new();
        while let Some((key, value)) = map.next_entry::<Box<str>, String>()? {
            labels.push(WireRequirement::label(key, &value));
        }
        Ok(WireLabels(labels))
    }
}

impl LabelLookup for BTreeMap<String, String> {
    fn count(&self) -> usize {
        self.len()
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }

    fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().map(|(key, value)| (key.as_str(), value.as_str()))
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
        let query = "a in (1),b in (x,y),d,!e,example.com/c notin (z)";
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

    /// The API joins all requirements by "and", also those of one key.
    #[test]
    fn requirements_of_one_key_hold_together() {
        let both = |one: (&str, &[&str]), other: (&str, &[&str])| {
            let all: Vec<Value> = [one, other]
                .iter()
                .map(|it| json!({"key": "a", "operator": it.0, "values": it.1}))
                .collect();
            read(&json!({"matchExpressions": all}))
        };
        let kinds: [(&str, &[&str]); 6] = [
            ("In", &["2", "1", "1"]),
            ("In", &["3", "2"]),
            ("NotIn", &["2"]),
            ("NotIn", &["9", "3", "9"]),
            ("Exists", &[]),
            ("DoesNotExist", &[]),
        ];
        let states =
            [labels(&[]), labels(&[("a", "1")]), labels(&[("a", "2")]), labels(&[("a", "3")])];
        for (one, other) in kinds.iter().flat_map(|one| kinds.map(|other| (*one, other))) {
            let selector = both(one, other);
            for state in &states {
                let expected = [one, other]
                    .iter()
                    .all(|(operator, values)| expression("a", operator, values).matches(state));
                assert_eq!(selector.matches(state), expected, "{one:?} {other:?} on {state:?}");
            }
        }
        assert_eq!(both(kinds[4], kinds[5]).query().as_deref(), Some("a,!a"));
        assert_eq!(both(kinds[4], kinds[2]).query().as_deref(), Some("a,a notin (2)"));
        assert_eq!(both(kinds[0], kinds[1]).query().as_deref(), Some("a in (2)"));
        assert_eq!(both(kinds[2], kinds[3]).query().as_deref(), Some("a notin (2,3,9)"));
    }

    /// A pod may have fewer labels than the selector has requirements, or more.
    #[test]
    fn either_side_may_have_more() {
        let wide = read(&json!({"matchLabels": {"m": "1"}, "matchExpressions": [
            {"key": "b", "operator": "DoesNotExist"},
            {"key": "x", "operator": "NotIn", "values": ["1"]},
            {"key": "c", "operator": "DoesNotExist"},
        ]}));
        for (pairs, expected) in [
            (vec![("m", "1")], true),
            (vec![("m", "2")], false),
            (vec![("x", "2")], false),
            (vec![("m", "1"), ("x", "2")], true),
            (vec![("m", "1"), ("x", "1")], false),
            (vec![("m", "1"), ("b", "")], false),
            (vec![("m", "1"), ("n", ""), ("o", ""), ("p", ""), ("q", "")], true),
            (vec![("m", "1"), ("n", ""), ("o", ""), ("c", ""), ("q", "")], false),
        ] {
            assert_eq!(wide.matches(&labels(&pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn values_are_found_wherever_they_stand() {
        for count in 0..6 {
            let values: Vec<String> = (0..count).rev().map(|number| format!("v{number}")).collect();
            let found: Values = values.iter().cloned().collect();
            assert!(values.iter().all(|value| found.has(value)), "{values:?}");
            assert!(!found.has("v") && !found.has("") && !found.has("v9"), "{values:?}");
        }
        let empty: Values = [String::new()].into_iter().collect();
        assert!(empty.has("") && !empty.has("v") && !Values::default().has(""));
        let some: Values = ["b".to_owned(), String::new()].into_iter().collect();
        assert!(some.has("") && some.has("b") && !some.has("a"));
    }
}
