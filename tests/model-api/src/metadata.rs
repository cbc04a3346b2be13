//! The API's rules about `metadata`: what the server fills in, and what an update may not change.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use crate::call::Call;
use crate::kind::Kind;
use crate::refusal::Refusal;

/// Letters of generated names.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters that a generated name adds.
const GENERATED: usize = 5;
/// Maximum length of the given part of a generated name.
const GIVEN_MAX: usize = 58;

/// Formats a time as the API does.
pub(crate) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time in the form of the API.
pub(crate) fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Numbers and switches that the API leaves out where they are zero or false.
const ZERO_IS_NONE: [&str; 5] = ["active", "count", "failed", "succeeded", "unschedulable"];

/// Removes what the API does not keep: nulls, empty lists, empty maps of metadata, some zeros.
pub(crate) fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                // These maps are of the user: an empty value in them is one.
                if !matches!(name.as_str(), "labels" | "annotations") {
                    prune(field);
                }
            }
            fields.retain(|name, field| match field {
                Value::Null => false,
                Value::Array(list) => !list.is_empty(),
                Value::Bool(false) => !ZERO_IS_NONE.contains(&name.as_str()),
                Value::Number(number) if number.as_i64() == Some(0) => {
                    !ZERO_IS_NONE.contains(&name.as_str())
                }
                Value::Object(map) => {
                    !(map.is_empty() && matches!(name.as_str(), "labels" | "annotations"))
                }
                _ => true,
            });
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

/// The object's metadata, created if it is missing.
pub(crate) fn of(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("it was made an object")
}

/// Checks that a body is for the path that it was sent to.
pub(crate) fn fits_path(call: &Call, object: &mut Value) -> Result<(), Refusal> {
    let facts = call.kind.facts();
    let kind = object["kind"].as_str().unwrap_or(facts.name);
    let version = call.kind.api_version();
    if kind != facts.name || object["apiVersion"].as_str().is_some_and(|it| it != version) {
        return Err(Refusal::bad_request(format!("the body is not a {}", facts.name)));
    }
    let metadata = of(object);
    if facts.namespaced {
        let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
        if !namespace.is_empty() && namespace != call.namespace {
            let message = "the namespace of the provided object does not match the namespace \
                           sent on the request";
            return Err(Refusal::bad_request(message));
        }
        metadata.insert("namespace".into(), call.namespace.as_str().into());
    }
    object["kind"] = facts.name.into();
    object["apiVersion"] = version.into();
    Ok(())
}

/// Checks that the name in the body is the one in the path.
pub(crate) fn fits_name(call: &Call, object: &Value) -> Result<(), Refusal> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name == call.name {
        return Ok(());
    }
    let message = format!(
        "the name of the object ({name}) does not match the name on the URL ({})",
        call.name
    );
    Err(Refusal::bad_request(message))
}

/// Fills in what the server gives a new object. The number makes its UID and its name.
pub(crate) fn fill(kind: Kind, object: &mut Value, number: u64, now: Timestamp) {
    let metadata = of(object);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
        metadata.remove(field);
    }
    metadata.insert("uid".into(), uid(number).into());
    metadata.insert("creationTimestamp".into(), seconds(now).into());
    metadata.remove("generation");
    if kind.facts().has_generation {
        metadata.insert("generation".into(), 1.into());
    }
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if let Some(given) = metadata.get("generateName").and_then(Value::as_str)
        && name.is_empty()
        && !given.is_empty()
    {
        let given = &given[..given.floor_char_boundary(GIVEN_MAX)];
        metadata.insert("name".into(), format!("{given}{}", suffix(number)).into());
    }
}

/// A UID in the usual form.
fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

/// The end of a generated name. Neighbours differ in each letter, as they do in a cluster.
fn suffix(number: u64) -> String {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    let mut letters = String::new();
    for _ in 0..GENERATED {
        let count = LETTERS.len() as u64;
        letters.push(char::from(LETTERS[(mixed % count) as usize]));
        mixed /= count;
    }
    letters
}

/// Checks the metadata of a new object.
pub(crate) fn check_new(object: &Value) -> Result<(), Refusal> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        let problem = "name or generateName is required";
        return Err(Refusal::invalid("metadata.name", "FieldValueRequired", problem));
    }
    if !is_subdomain(name) {
        return Err(Refusal::invalid("metadata.name", "FieldValueInvalid", "not a DNS name"));
    }
    check_parts(metadata)
}

fn is_subdomain(name: &str) -> bool {
    let is_label = |label: &str| {
        let inside = label.bytes().all(|it| it == b'-' || it.is_ascii_alphanumeric());
        let lower = !label.bytes().any(|it| it.is_ascii_uppercase());
        inside && lower && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Checks labels, finalizers and owners.
fn check_parts(metadata: &Value) -> Result<(), Refusal> {
    let labels = metadata["labels"].as_object().into_iter().flatten();
    for (name, value) in labels {
        let value = value.as_str().unwrap_or_default();
        if name.is_empty() || name.contains(' ') || value.contains(' ') || value.len() > 63 {
            return Err(Refusal::invalid("metadata.labels", "FieldValueInvalid", "not a label"));
        }
    }
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    if owners.filter(|owner| owner["controller"] == true).count() > 1 {
        let problem = "only one reference can have Controller set to true";
        return Err(Refusal::invalid("metadata.ownerReferences", "FieldValueInvalid", problem));
    }
    Ok(())
}

/// Keeps what an update cannot set, and checks what it may not change.
pub(crate) fn check_update(new: &mut Value, old: &Value) -> Result<(), Refusal> {
    let before = &old["metadata"];
    let metadata = of(new);
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let is_kept = field == "deletionTimestamp" || !metadata.contains_key(field);
        if let Some(value) = before.get(field)
            && is_kept
        {
            metadata.insert(field.into(), value.clone());
        }
    }
    metadata.insert("creationTimestamp".into(), before["creationTimestamp"].clone());
    metadata.remove("managedFields");
    metadata.remove("selfLink");
    for field in ["uid", "name", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata.get(field) != before.get(field) {
            return Err(Refusal::immutable(&format!("metadata.{field}")));
        }
    }
    if before.get("deletionTimestamp").is_some() {
        let known = before["finalizers"].as_array();
        let is_new = |it: &&Value| known.is_none_or(|known| !known.contains(it));
        if metadata
            .get("finalizers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .any(|it| is_new(&it))
        {
            let problem = "no new finalizers can be added if the object is being deleted";
            return Err(Refusal::invalid("metadata.finalizers", "FieldValueForbidden", problem));
        }
    }
    check_parts(&new["metadata"])
}

/// Marks an object as being deleted, with this grace.
pub(crate) fn mark_deleted(object: &mut Value, now: Timestamp, grace: i64) {
    let generation = object["metadata"]["generation"].as_i64();
    let metadata = of(object);
    if let Some(generation) = generation.filter(|it| *it > 0) {
        metadata.insert("generation".into(), (generation + 1).into());
    }
    let at = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
    metadata.insert("deletionTimestamp".into(), seconds(at).into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
}

/// Whether the object goes when its last finalizer does.
pub(crate) fn is_ending(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let grace = metadata["deletionGracePeriodSeconds"].as_i64();
    metadata.get("deletionTimestamp").is_some() && grace.unwrap_or(0) == 0
}

/// Whether any finalizer holds the object.
pub(crate) fn is_held(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}
