//! Reads which metrics and labels an expression of PromQL names. It knows as much of the language
//! as our expressions use.

use std::collections::{BTreeMap, BTreeSet};

/// Words before a list of labels in brackets.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other words of the language that no bracket follows.
const WORDS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

/// The metrics of an expression, with the labels of their matchers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) metrics: BTreeMap<String, BTreeSet<String>>,
    /// The labels that vectors are aggregated and matched by.
    pub(crate) grouped: BTreeSet<String>,
}

/// Reads an expression.
pub(crate) fn names(expression: &str) -> Names {
    let tokens = tokens(expression);
    let mut names = Names::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        let next = tokens.get(at).map(String::as_str);
        if token == "[" {
            at += tokens[at..].iter().take_while(|it| *it != "]").count();
        } else if BEFORE_LABELS.contains(&token.as_str()) {
            let list = tokens[at..].iter().take_while(|it| *it != ")");
            names.grouped.extend(list.filter(|it| is_name(it)).cloned());
            at += tokens[at..].iter().take_while(|it| *it != ")").count();
        } else if is_name(token) && !is_called(next) && !WORDS.contains(&token.as_str()) {
            let labels = names.metrics.entry(token.clone()).or_default();
            if next == Some("{") {
                let inside: Vec<_> = tokens[at..].iter().take_while(|it| *it != "}").collect();
                labels.extend(inside.iter().copied().filter(|it| is_name(it)).cloned());
                at += inside.len();
            }
        }
    }
    names
}

/// Whether a name before this token is that of a function or an aggregation.
fn is_called(next: Option<&str>) -> bool {
    next.is_some_and(|next| ["(", "by", "without"].contains(&next))
}

/// Names, texts and single signs.
fn tokens(expression: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' | '\'' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
            _ if is_part(first) => rest.find(|it| !is_part(it)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ['_', ':', '.', '$'].contains(&letter)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_ascii_alphabetic())
}

#[test]
fn metrics_matchers_and_groups_are_read() {
    let expression = r#"max by (a, b) (rate(x_total{c="d{", e=~'f'}[5m])) / on (g) group_left ()
        y > bool 3e9 unless histogram_quantile(0.9, z) or vector(0)"#;
    let names = names(expression);
    let set = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names.grouped, set(&["a", "b", "g"]));
    let metrics = [("x_total", &["c", "e"][..]), ("y", &[]), ("z", &[])];
    let expected = metrics.map(|(metric, labels)| (metric.to_owned(), set(labels)));
    assert_eq!(names.metrics, expected.into());
}
