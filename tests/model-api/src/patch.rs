//! Applies patches as the API does: JSON patches (RFC 6902), merge patches (RFC 7386) and strategic
//! merge patches.

use serde_json::{Map, Value};

use crate::refusal::Refusal;

const DIRECTIVE: &str = "$patch";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";
const RETAIN: &str = "$retainKeys";

/// How the lists of a field are merged.
enum Merge {
    /// The patch's list replaces the other.
    Replace,
    /// Items with the same value are one.
    Set,
    /// Items with the same value of this field are one.
    ByKey(&'static str),
}

/// Applies the operations of RFC 6902, all or none. Of those, the model knows four.
pub(crate) fn json(target: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let Value::Array(operations) = patch else {
        return Err(Refusal::bad_request("the patch is not a list"));
    };
    let fails = |problem: &str| {
        let message = "the server rejected our request due to an error in our request";
        Err(Refusal::new(422, "Invalid", format!("{message}: {problem}")))
    };
    for operation in operations {
        let path = operation["path"].as_str().unwrap_or_default();
        let value = operation.get("value").cloned().unwrap_or_default();
        let is_done = match operation["op"].as_str().unwrap_or_default() {
            "test" => target.pointer(path).unwrap_or(&Value::Null) == &value,
            "replace" => target.pointer_mut(path).map(|it| *it = value).is_some(),
            "add" => add(target, path, value).is_some(),
            "remove" => remove(target, path).is_some(),
            other => {
                return Err(Refusal::bad_request(format!(
                    "the model knows no operation {other:?}"
                )));
            }
        };
        if !is_done {
            return fails(&operation.to_string());
        }
    }
    Ok(())
}

fn add(target: &mut Value, path: &str, value: Value) -> Option<()> {
    let (parent, last) = path.rsplit_once('/')?;
    match target.pointer_mut(parent)? {
        Value::Object(fields) => drop(fields.insert(unescaped(last), value)),
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let place = last.parse().ok().filter(|place| *place <= list.len())?;
            list.insert(place, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(target: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = path.rsplit_once('/')?;
    match target.pointer_mut(parent)? {
        Value::Object(fields) => fields.remove(&unescaped(last)),
        Value::Array(list) => {
            let place = last.parse().ok().filter(|place| *place < list.len())?;
            Some(list.remove(place))
        }
        _ => None,
    }
}

/// A field's name as a path writes it.
fn unescaped(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

/// Merges by RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (field, value) in patch {
        if value.is_null() {
            target.remove(field);
        } else {
            merge(target.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Merges strategically.
pub(crate) fn strategic(target: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let Value::Object(patch) = patch else {
        return Err(Refusal::bad_request("the patch is not an object"));
    };
    match directive(patch)? {
        Some("replace") => *target = without_directives(patch),
        Some("delete") => *target = Value::Object(Map::new()),
        _ => merge_fields(target, patch)?,
    }
    Ok(())
}

fn directive(patch: &Map<String, Value>) -> Result<Option<&str>, Refusal> {
    match patch.get(DIRECTIVE) {
        None => Ok(None),
        Some(Value::String(word)) if matches!(word.as_str(), "delete" | "merge" | "replace") => {
            Ok(Some(word))
        }
        Some(other) => Err(Refusal::new(500, "", format!("unknown patch type: {other}"))),
    }
}

fn merge_fields(target: &mut Value, patch: &Map<String, Value>) -> Result<(), Refusal> {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return Ok(()) };
    if let Some(Value::Array(retained)) = patch.get(RETAIN) {
        target.retain(|field, _| retained.iter().any(|it| it == field));
    }
    for (field, value) in patch {
        if let Some(field) = field.strip_prefix(DELETE_FROM) {
            delete_from(target, field, value);
        }
    }
    for (field, value) in patch {
        if field.starts_with('$') {
            continue;
        }
        if value.is_null() {
            target.remove(field);
            continue;
        }
        match (target.get_mut(field), value) {
            (Some(known @ Value::Object(_)), Value::Object(_)) => strategic(known, value)?,
            (Some(Value::Array(known)), Value::Array(fresh)) => {
                *known = merge_lists(known, fresh, &merge_of(field))?;
            }
            (None, Value::Array(fresh)) => {
                let list = merge_lists(&[], fresh, &merge_of(field))?;
                target.insert(field.clone(), Value::Array(list));
            }
            // The API drops what has a directive where there is nothing to apply it to.
            (None, Value::Object(fresh)) if fresh.contains_key(DIRECTIVE) => {}
            (None, Value::Object(fresh)) => {
                let mut inserted = Value::Object(Map::new());
                strategic(&mut inserted, &Value::Object(fresh.clone()))?;
                target.insert(field.clone(), inserted);
            }
            _ => {
                target.insert(field.clone(), value.clone());
            }
        }
    }
    Ok(())
}

fn delete_from(target: &mut Map<String, Value>, field: &str, values: &Value) {
    let Some(Value::Array(list)) = target.get_mut(field) else { return };
    list.retain(|item| !values.as_array().is_some_and(|values| values.contains(item)));
    if list.is_empty() {
        target.remove(field);
    }
}

/// How lists of this name are merged. Names say it for the kinds that the model has.
fn merge_of(field: &str) -> Merge {
    match field {
        "finalizers" => Merge::Set,
        "ownerReferences" => Merge::ByKey("uid"),
        "conditions" | "addresses" => Merge::ByKey("type"),
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => {
            Merge::ByKey("name")
        }
        "podIPs" | "hostIPs" | "hostAliases" => Merge::ByKey("ip"),
        _ => Merge::Replace,
    }
}

fn merge_lists(known: &[Value], fresh: &[Value], how: &Merge) -> Result<Vec<Value>, Refusal> {
    let key = match how {
        Merge::Replace => return Ok(fresh.to_vec()),
        Merge::Set => "",
        Merge::ByKey(key) => *key,
    };
    let id = |item: &Value| if key.is_empty() { item.clone() } else { item[key].clone() };
    let mut merged = known.to_vec();
    let (mut named, mut replaces) = (Vec::new(), false);
    for item in fresh {
        let directive = item.as_object().map_or(Ok(None), directive)?;
        if directive == Some("replace") {
            replaces = true;
            continue;
        }
        if !key.is_empty() && item.get(key).is_none() {
            return Err(Refusal::bad_request(format!("an item of the patch has no {key}")));
        }
        if directive == Some("delete") {
            merged.retain(|it| id(it) != id(item));
            continue;
        }
        named.push(id(item));
        match merged.iter_mut().find(|it| id(it) == id(item)) {
            Some(known) if item.is_object() => strategic(known, item)?,
            Some(_) => {}
            None if item.is_object() => {
                let mut inserted = Value::Object(Map::new());
                strategic(&mut inserted, item)?;
                merged.push(inserted);
            }
            None => merged.push(item.clone()),
        }
    }
    if replaces {
        merged.retain(|it| named.contains(&id(it)));
    }
    Ok(ordered(merged, &named, known, id))
}

/// The order of a merged list: the items of the patch in the patch's order, the others in theirs.
/// Where both orders know nothing of each other, the patch's items come first.
fn ordered(
    merged: Vec<Value>,
    named: &[Value],
    known: &[Value],
    id: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let place = |item: &Value| known.iter().position(|it| id(it) == id(item));
    let (mut ours, mut others): (Vec<_>, Vec<_>) =
        merged.into_iter().partition(|item| named.contains(&id(item)));
    ours.sort_by_key(|item| named.iter().position(|it| *it == id(item)));
    others.sort_by_key(place);
    let (mut ours, mut others) = (ours.into_iter().peekable(), others.into_iter().peekable());
    let mut all = Vec::new();
    loop {
        let first = match (others.peek(), ours.peek()) {
            (None, None) => return all,
            (Some(other), Some(our)) => {
                let known = place(other).zip(place(our));
                known.is_some_and(|(other, our)| other < our)
            }
            (other, _) => other.is_some(),
        };
        all.extend(if first { others.next() } else { ours.next() });
    }
}

fn without_directives(patch: &Map<String, Value>) -> Value {
    let kept = patch.iter().filter(|(field, _)| {
        !(*field == DIRECTIVE
            || field.starts_with(DELETE_FROM)
            || field.starts_with(SET_ORDER)
            || *field == RETAIN)
    });
    kept.map(|(field, value)| (field.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(mut target: Value, patch: &Value) -> Value {
        strategic(&mut target, patch).expect("must be a patch");
        target
    }

    #[test]
    fn conditions_merge_by_type_and_new_ones_come_first() {
        let pod = json!({"status": {"phase": "Running", "conditions": [
            {"type": "A", "status": "True", "reason": "R"}, {"type": "B", "status": "True"}]}});
        let patch = json!({"status": {"conditions": [
            {"type": "C", "status": "True", "reason": null},
            {"type": "B", "status": "False"}, {"$patch": "delete", "type": "A"}]}});
        let expected = json!({"status": {"phase": "Running", "conditions": [
            {"type": "C", "status": "True"}, {"type": "B", "status": "False"}]}});
        assert_eq!(patched(pod, &patch), expected);
    }

    #[test]
    fn finalizers_are_added_and_removed_one_by_one() {
        let pod = json!({"metadata": {"finalizers": ["a/x"]}});
        let both = patched(pod, &json!({"metadata": {"finalizers": ["b/y", "a/x"]}}));
        assert_eq!(both["metadata"]["finalizers"], json!(["b/y", "a/x"]));
        let one = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}});
        assert_eq!(patched(both.clone(), &one)["metadata"]["finalizers"], json!(["b/y"]));
        let none = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x", "b/y"]}});
        assert_eq!(patched(both, &none), json!({"metadata": {}}));
    }

    #[test]
    fn maps_and_lists_can_be_replaced_as_a_whole() {
        let pod = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"taints": [{"key": "k"}]}});
        let patch = json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}},
                           "spec": {"taints": []}});
        let expected = json!({"metadata": {"labels": {"b": "2"}}, "spec": {"taints": []}});
        assert_eq!(patched(pod, &patch), expected);
        let refusal = strategic(&mut json!({}), &json!({"$patch": "x"})).expect_err("is refused");
        assert_eq!(refusal.code, 500);
    }

    #[test]
    fn a_json_patch_whose_test_fails_changes_nothing() {
        let group = json!({"metadata": {"uid": "u"}, "spec": {"sizes": [1, 2]}});
        let operation =
            |op: &str, path: &str, value: Value| json!({"op": op, "path": path, "value": value});
        let patched = |operations: &[Value]| {
            let mut group = group.clone();
            json(&mut group, &operations.into()).map(|()| group).map_err(|it| it.code)
        };
        let is_it = operation("test", "/metadata/uid", "u".into());
        let grows = operation("replace", "/spec/sizes/0", 3.into());
        let expected = json!({"metadata": {"uid": "u"}, "spec": {"sizes": [3, 2]}});
        assert_eq!(patched(&[is_it.clone(), grows.clone()]), Ok(expected));
        let rows = [
            operation("test", "/metadata/uid", "other".into()),
            operation("test", "/spec/size", 1.into()),
            operation("replace", "/spec/size", 1.into()),
            operation("remove", "/spec/sizes/2", Value::Null),
            operation("add", "/spec/sizes/3", 1.into()),
        ];
        for row in rows {
            assert_eq!(patched(&[grows.clone(), row.clone()]), Err(422), "{row}");
        }
        assert_eq!(patched(&[operation("copy", "/spec", Value::Null)]), Err(400));
        let more = [
            operation("add", "/metadata/labels", json!({})),
            operation("add", "/metadata/labels/a~1b", "c".into()),
            operation("add", "/spec/sizes/-", 4.into()),
            operation("remove", "/spec/sizes/0", Value::Null),
        ];
        let expected = json!({"metadata": {"uid": "u", "labels": {"a/b": "c"}},
                              "spec": {"sizes": [2, 4]}});
        assert_eq!(patched(&more), Ok(expected));
    }

    #[test]
    fn a_merge_patch_replaces_lists_and_null_removes() {
        let mut node = json!({"spec": {"taints": [1], "x": {"y": 1}}});
        merge(&mut node, &json!({"spec": {"taints": [2], "x": {"y": null, "z": {"w": null}}}}));
        assert_eq!(node, json!({"spec": {"taints": [2], "x": {"z": {}}}}));
    }
}
