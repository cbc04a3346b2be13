//! Checks the types of values that are often written with quotes, or without them. The API refuses
//! the other type.

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::{Number, Value};

use super::facts::items;
use super::finding::{Finding, Severity};
use super::manifest::Manifest;

/// How the names of Epilogue's annotations begin.
const OURS: &str = "epilogue.dev/";
/// Numbers of a Job.
const NUMBERS: [&str; 7] = [
    "parallelism",
    "completions",
    "backoffLimit",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
];
/// Numbers of its pods.
const POD_NUMBERS: [&str; 2] = ["activeDeadlineSeconds", "terminationGracePeriodSeconds"];
/// Of these, the numbers that have 64 bits.
const LONG: [&str; 2] = POD_NUMBERS;
/// Truth values of a Job.
const SWITCHES: [&str; 2] = ["suspend", "manualSelector"];
/// What completionMode may be.
const MODES: [&str; 2] = ["NonIndexed", "Indexed"];
/// Of one list or map, so many values are found.
const FOUND_MAX: usize = 3;

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let (spec, pod) = (manifest.spec(), manifest.pod());
    let of_job = NUMBERS.iter().map(|name| (format!("spec.{name}"), &spec[name]));
    let of_pod = POD_NUMBERS.iter().map(|it| (format!("spec.template.spec.{it}"), &pod[it]));
    let mut wrong: Vec<(String, String, String)> =
        of_job.chain(of_pod).filter_map(number).collect();
    wrong.extend(SWITCHES.iter().filter_map(|name| switch(name, &spec[name])));
    wrong.extend(mode(&spec["completionMode"]));
    for (path, object) in [("", manifest.job()), ("spec.template.", &spec["template"])] {
        for map in ["labels", "annotations"] {
            wrong.extend(texts(&format!("{path}metadata.{map}"), &object["metadata"][map]));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(&pod[list]).enumerate() {
            let path = format!("spec.template.spec.{list}[{index}]");
            wrong.extend(words(&path, container));
        }
    }
    let rule = (Severity::Error, Code::ValueInvalid);
    let found = wrong.into_iter().map(|(field, problem, remedy)| {
        manifest.found(rule, &field, format!("{problem}, and the API refuses it"), remedy)
    });
    found.collect()
}

/// A text where a number belongs. What YAML 1.1 or a tool such as envsubst makes a number of is
/// left alone.
fn number((field, value): (String, &Value)) -> Option<(String, String, String)> {
    let name = field.rsplit('.').next().unwrap_or_default().to_owned();
    match value {
        Value::String(text) if text.parse::<i64>().is_ok() && !text.starts_with(['0', '+']) => {
            let remedy = format!("write {name}: {text}");
            Some((field, format!("{text:?} is a text and not a number"), remedy))
        }
        Value::Number(number) if !is_whole(number, LONG.contains(&name.as_str())) => Some((
            field,
            format!("{value} is not a whole number, or too large"),
            "give a whole number below 2^31".to_owned(),
        )),
        Value::Bool(_) => {
            Some((field, format!("{value} is not a number"), format!("give {name} a number")))
        }
        _ => None,
    }
}

/// Whether the API can hold a number, in 64 bits or in 32.
fn is_whole(number: &Number, is_long: bool) -> bool {
    match (number.as_i64(), number.as_f64()) {
        (Some(number), _) => is_long || i32::try_from(number).is_ok(),
        (None, Some(number)) => number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX),
        (None, None) => false,
    }
}

/// A text where true or false belongs.
fn switch(name: &str, value: &Value) -> Option<(String, String, String)> {
    let text = value.as_str().filter(|text| matches!(*text, "true" | "false"))?;
    let problem = format!("{text:?} is a text and not true or false");
    Some((format!("spec.{name}"), problem, format!("write {name}: {text}")))
}

/// A mode in other letters than the API's.
fn mode(value: &Value) -> Option<(String, String, String)> {
    let text = value.as_str().filter(|text| !MODES.contains(text))?;
    let meant = MODES.into_iter().find(|it| it.eq_ignore_ascii_case(text))?;
    let problem = format!("{text:?} is not one of {} and {}", MODES[0], MODES[1]);
    Some(("spec.completionMode".to_owned(), problem, format!("write completionMode: {meant}")))
}

/// Numbers and truth values among the texts of labels or annotations. Epilogue's annotations have a
/// check of their own.
fn texts(path: &str, map: &Value) -> Vec<(String, String, String)> {
    let entries = map.as_object().into_iter().flatten();
    let entries = entries.filter(|(name, _)| !name.starts_with(OURS));
    let found = entries.filter_map(|(name, value)| unquoted(format!("{path}[{name}]"), value));
    found.take(FOUND_MAX).collect()
}

/// The same among arguments and environment of a container.
fn words(path: &str, container: &Value) -> Vec<(String, String, String)> {
    let mut wrong = Vec::new();
    for list in ["command", "args"] {
        let values = items(&container[list]).enumerate();
        let found =
            values.filter_map(|(index, value)| unquoted(format!("{path}.{list}[{index}]"), value));
        wrong.extend(found.take(FOUND_MAX));
    }
    let values = items(&container["env"]).enumerate();
    let found = values
        .filter_map(|(index, each)| unquoted(format!("{path}.env[{index}].value"), &each["value"]));
    wrong.extend(found.take(FOUND_MAX));
    wrong
}

fn unquoted(field: String, value: &Value) -> Option<(String, String, String)> {
    let is_text = !value.is_number() && !value.is_boolean();
    (!is_text).then(|| (field, format!("{value} is not a text"), format!("quote it: \"{value}\"")))
}
