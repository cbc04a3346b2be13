//! Makes objects of both sides comparable: without times, UIDs, empty values, and fields that the
//! model does not know.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::Value;

use super::known::UNKNOWN;

/// Times from this on are those of a server; requests name earlier ones.
pub(crate) const TIMES_OF_SERVERS: &str = "2026-01-01T00:00:00Z";

/// The symbols of the UIDs and generated names of one side.
pub(crate) type Symbols = HashMap<String, String>;

/// The object without what may differ. Its versions are pushed to `versions`, in order.
pub(crate) fn normal(object: &Value, symbols: &Symbols, versions: &mut Vec<u64>) -> Value {
    let mut object = object.clone();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        let kind = kind.trim_end_matches("List");
        for item in items {
            leave_out(item, kind);
        }
    } else {
        leave_out(&mut object, &kind);
    }
    replace(&mut object, symbols, versions);
    object
}

fn leave_out(object: &mut Value, kind: &str) {
    for (of, path) in UNKNOWN {
        if of.is_empty() || of == kind {
            let path: Vec<&str> = path.split('/').collect();
            remove(object, &path);
        }
    }
}

fn remove(value: &mut Value, path: &[&str]) {
    match (path, value) {
        ([last], Value::Object(fields)) => drop(fields.remove(*last)),
        (["*", rest @ ..], Value::Array(items)) => {
            for item in items {
                remove(item, rest);
            }
        }
        ([first, rest @ ..], Value::Object(fields)) => {
            if let Some(field) = fields.get_mut(*first) {
                remove(field, rest);
            }
        }
        _ => {}
    }
}

fn replace(value: &mut Value, symbols: &Symbols, versions: &mut Vec<u64>) {
    match value {
        Value::String(text) => {
            if let Some(symbol) = symbols.get(text) {
                *text = symbol.clone();
            } else if is_of_a_server(text) {
                "time".clone_into(text);
            }
        }
        Value::Array(items) => {
            for item in items {
                replace(item, symbols, versions);
            }
        }
        Value::Object(fields) => {
            // Of another kind's changes, too.
            if fields.contains_key("remainingItemCount") || fields.contains_key("continue") {
                fields.insert("continue".into(), "token".into());
            }
            if let Some(version) = fields.get_mut("resourceVersion") {
                versions.push(version.as_str().and_then(|it| it.parse().ok()).unwrap_or(0));
                *version = "version".into();
            }
            for field in fields.values_mut() {
                replace(field, symbols, versions);
            }
            fields.retain(|_, field| match field {
                Value::Null => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                Value::Bool(_) | Value::Number(_) => true,
            });
        }
        _ => {}
    }
}

fn is_of_a_server(text: &str) -> bool {
    let since: Timestamp = TIMES_OF_SERVERS.parse().expect("must be a time");
    text.len() >= 20 && text.parse::<Timestamp>().is_ok_and(|time| time >= since)
}

/// The path to the first place where two values differ, and what is there.
pub(crate) fn difference(model: &Value, api: &Value, path: &str) -> Option<String> {
    match (model, api) {
        (Value::Object(left), Value::Object(right)) => {
            let mut names: Vec<_> = left.keys().chain(right.keys()).collect();
            names.sort();
            names.into_iter().find_map(|name| {
                let missing = Value::Null;
                let (left, right) = (left.get(name), right.get(name));
                let (left, right) = (left.unwrap_or(&missing), right.unwrap_or(&missing));
                difference(left, right, &format!("{path}/{name}"))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let pairs = left.iter().zip(right).enumerate();
            pairs.into_iter().find_map(|(index, (left, right))| {
                difference(left, right, &format!("{path}/{index}"))
            })
        }
        _ if model == api => None,
        _ => Some(format!("{path}: the model has {model}, the API {api}")),
    }
}
