//! Selects objects by their labels and fields.

use serde_json::Value;

use crate::kind::Kind;
use crate::refusal::Refusal;

/// Selects by all of its requirements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<LabelRule>,
    fields: Vec<FieldRule>,
}

#[derive(Clone, Debug)]
struct LabelRule {
    key: String,
    /// `None` asks whether the label is there at all.
    values: Option<Vec<String>>,
    negated: bool,
}

#[derive(Clone, Debug)]
struct FieldRule {
    path: String,
    value: String,
    negated: bool,
}

impl Selector {
    /// Parses the parameters `labelSelector` and `fieldSelector`.
    pub(crate) fn parse(kind: Kind, labels: &str, fields: &str) -> Result<Self, Refusal> {
        let labels = split(labels).into_iter().map(label_rule).collect::<Result<_, _>>()?;
        let fields = split(fields).into_iter().map(|rule| field_rule(kind, rule));
        Ok(Self { labels, fields: fields.collect::<Result<_, _>>()? })
    }

    /// Selects the object of this name alone, in addition.
    pub(crate) fn named(mut self, name: &str) -> Self {
        let (path, value) = ("metadata.name".to_owned(), name.to_owned());
        self.fields.push(FieldRule { path, value, negated: false });
        self
    }

    /// Whether it selects every object.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|rule| rule.matches(object))
            && self.fields.iter().all(|rule| rule.matches(object))
    }
}

impl LabelRule {
    fn matches(&self, object: &Value) -> bool {
        let value = object["metadata"]["labels"][&self.key].as_str();
        let holds = match &self.values {
            None => value.is_some(),
            Some(values) => value.is_some_and(|value| values.iter().any(|it| it == value)),
        };
        holds != self.negated
    }
}

impl FieldRule {
    fn matches(&self, object: &Value) -> bool {
        let pointer = format!("/{}", self.path.replace('.', "/"));
        let text = match object.pointer(&pointer) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        (text == self.value) != self.negated
    }
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_u32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn label_rule(text: &str) -> Result<LabelRule, Refusal> {
    let rule = |key: &str, values: Option<Vec<String>>, negated| LabelRule {
        key: key.trim().to_owned(),
        values,
        negated,
    };
    let one = |value: &str| Some(vec![value.trim().to_owned()]);
    let found = if let Some((key, value)) = text.split_once("!=") {
        rule(key, one(value), true)
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        rule(key, one(value), false)
    } else if let Some((before, list)) = text.strip_suffix(')').and_then(|it| it.split_once('(')) {
        let words: Vec<&str> = before.split_whitespace().collect();
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        match words[..] {
            [key, "in"] => rule(key, Some(values), false),
            [key, "notin"] => rule(key, Some(values), true),
            _ => return Err(unreadable(text)),
        }
    } else if let Some(key) = text.strip_prefix('!') {
        rule(key, None, true)
    } else {
        rule(text, None, false)
    };
    let is_name = !found.key.is_empty() && !found.key.contains(char::is_whitespace);
    if is_name { Ok(found) } else { Err(unreadable(text)) }
}

fn unreadable(text: &str) -> Refusal {
    Refusal::bad_request(format!("unable to parse requirement: {text:?}"))
}

fn field_rule(kind: Kind, text: &str) -> Result<FieldRule, Refusal> {
    let (path, value, negated) = if let Some((path, value)) = text.split_once("!=") {
        (path, value, true)
    } else if let Some((path, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (path, value, false)
    } else {
        return Err(Refusal::bad_request(format!("invalid selector: {text:?}")));
    };
    if !supports(kind, path) {
        return Err(Refusal::bad_request(format!("field label not supported: {path}")));
    }
    Ok(FieldRule { path: path.to_owned(), value: value.to_owned(), negated })
}

fn supports(kind: Kind, path: &str) -> bool {
    let own: &[&str] = match kind {
        Kind::Pod => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Kind::Node => &["spec.unschedulable"],
        Kind::Namespace => &["status.phase"],
        Kind::Event => &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        Kind::Job | Kind::Lease | Kind::PodGroup | Kind::PriorityClass | Kind::Workload => &[],
    };
    path == "metadata.name"
        || path == "metadata.namespace" && kind.facts().namespaced
        || own.contains(&path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_fields_select_as_in_the_api() {
        let pod = json!({"metadata": {"name": "p", "labels": {"a": "1", "b": ""}},
                         "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        let table = [
            ("a=1", "", true),
            ("a==1,b", "", true),
            ("a!=1", "", false),
            ("c!=1", "", true),
            ("a in (0, 1),b notin (x)", "", true),
            ("a notin (1)", "", false),
            ("!c", "", true),
            ("!b", "", false),
            ("", "spec.nodeName=n,status.phase!=Failed", true),
            ("", "spec.nodeName=", false),
            ("", "metadata.name==q", false),
        ];
        for (labels, fields, expected) in table {
            let selector = Selector::parse(Kind::Pod, labels, fields).expect("must be valid");
            assert_eq!(selector.matches(&pod), expected, "{labels:?} {fields:?}");
        }
        for (labels, fields) in [("a in 1)", ""), ("a b", ""), ("", "spec.unknown=1"), ("", "x")] {
            let refusal = Selector::parse(Kind::Pod, labels, fields).expect_err("is refused");
            assert_eq!(refusal.code, 400, "{labels:?} {fields:?}");
        }
    }
}
