//! Reads the objects of a file as kubectl does: YAML documents, or JSON objects one after the
//! other. Says of a file that is neither what it is. Pure.

mod value;

use std::fmt;

use serde::Deserialize as _;
use serde_json::Value;

use value::Plain;

/// Maximum length of a quotation from the file.
const QUOTED_CHARS_MAX: usize = 60;
/// What begins an action of Go's templates, apart from blanks and a dash.
const ACTIONS: [&str; 11] =
    [".", "$", "/*", "include ", "template ", "if ", "else", "end", "range ", "with ", "define "];
/// What only Helm's templates have in their actions.
const OF_HELM: [&str; 8] =
    [".Values", ".Release", ".Chart", ".Capabilities", ".Files", ".Template", "include ", "toYaml"];

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    line: usize,
    pub(crate) why: Why,
}

/// What the file is instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A template of Helm, with its first action.
    Helm(String),
    /// Another template.
    Template(String),
    /// A conflict that Git has left.
    Conflict,
    /// A tab in the indentation.
    Tab,
    /// Bytes that are not UTF-8.
    NotUtf8,
    /// A text or a number in place of an object.
    NoObject(String),
    /// The parser's words.
    Other(String),
}

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.line)?;
        match &self.why {
            Why::Helm(action) => write!(
                out,
                "`{action}` is of a Helm template; check what it renders: helm template CHART | \
                 kubectl epilogue lint -f -"
            ),
            Why::Template(action) => {
                write!(out, "`{action}` is of a template; check what it renders")
            }
            Why::Conflict => out.write_str("a merge conflict begins here; resolve it first"),
            Why::Tab => out.write_str("a tab indents this line; YAML takes only blanks for that"),
            Why::NotUtf8 => out.write_str("this is not UTF-8 text; save the file as UTF-8"),
            Why::NoObject(found) => write!(out, "expected objects, but found {found}"),
            Why::Other(words) => out.write_str(words),
        }
    }
}

impl std::error::Error for Malformed {}

/// The text of a file in UTF-8, or in UTF-16 as `>` of Windows PowerShell writes it.
pub(crate) fn text(bytes: Vec<u8>) -> Result<String, Malformed> {
    let pairs = |unit: fn([u8; 2]) -> u16| {
        let units = bytes.chunks_exact(2).skip(1).map(|pair| unit([pair[0], pair[1]]));
        char::decode_utf16(units).collect::<Result<String, _>>()
    };
    let wide = match bytes.as_slice() {
        [0xff, 0xfe, ..] => Some(pairs(u16::from_le_bytes)),
        [0xfe, 0xff, ..] => Some(pairs(u16::from_be_bytes)),
        _ => None,
    };
    match wide {
        Some(text) => text.map_err(|_| Malformed { line: 1, why: Why::NotUtf8 }),
        None => String::from_utf8(bytes).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = valid.split(|byte| *byte == b'\n').count();
            Malformed { line, why: Why::NotUtf8 }
        }),
    }
}

/// The objects, each with the line on which its document begins. Lists are taken apart; an empty
/// one stays, because it says that its kind was read.
pub(crate) fn objects(text: &str) -> Result<Vec<(Option<usize>, Value)>, Malformed> {
    let text = text.trim_start_matches('\u{feff}');
    let documents = match of_json(text) {
        Some(documents) => documents,
        None => of_yaml(text)?,
    };
    let mut objects = Vec::new();
    for (line, document) in documents {
        let scalar = match &document {
            Value::String(text) => Some(format!("the text {:?}", quoted(text))),
            Value::Number(_) | Value::Bool(_) => Some(format!("the value {document}")),
            _ => None,
        };
        if let Some(found) = scalar {
            return Err(Malformed { line: line.unwrap_or(1), why: Why::NoObject(found) });
        }
        let mut found = Vec::new();
        flatten(document, &mut found);
        objects.extend(found.into_iter().map(|object| (line, object)));
    }
    Ok(objects)
}

/// JSON objects one after the other, which YAML does not know; `None` for another text.
fn of_json(text: &str) -> Option<Vec<(Option<usize>, Value)>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut line, mut from) = (1, 0);
    while let Some(document) = stream.next() {
        let begin = text.get(from..).map_or(from, |rest| text.len() - rest.trim_start().len());
        line += text.get(from..begin).map_or(0, newlines);
        documents.push((Some(line), document.ok()?));
        from = stream.byte_offset();
        line += text.get(begin..from).map_or(0, newlines);
    }
    Some(documents)
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

fn of_yaml(text: &str) -> Result<Vec<(Option<usize>, Value)>, Malformed> {
    let mut documents = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let Plain(document) =
            Plain::deserialize(document).map_err(|error| explained(text, &error))?;
        documents.push((None, merged(document)));
    }
    let begins = begins(text);
    if begins.len() == documents.len() {
        documents.iter_mut().zip(begins).for_each(|((line, _), begin)| *line = Some(begin));
    }
    Ok(documents)
}

/// The line of the first content of each document.
fn begins(text: &str) -> Vec<usize> {
    let mut begins = Vec::new();
    let (mut is_open, mut has_content) = (false, false);
    for (line, content) in (1..).zip(text.lines()) {
        let marks = |mark: &str| {
            let rest = content.strip_prefix(mark);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        };
        let is_blank = content.trim().is_empty() || content.trim_start().starts_with('#');
        if marks("---") {
            begins.push(line);
            is_open = true;
            let rest = content.get(3..).unwrap_or_default().trim();
            has_content = !rest.is_empty() && !rest.starts_with('#');
        } else if marks("...") {
            is_open = false;
        } else if is_blank || !is_open && content.starts_with('%') {
        } else if !is_open {
            begins.push(line);
            (is_open, has_content) = (true, true);
        } else if !has_content {
            begins.pop();
            begins.push(line);
            has_content = true;
        }
    }
    begins
}

/// Says of a text that the parser refuses what it is.
fn explained(text: &str, error: &serde_yaml_ng::Error) -> Malformed {
    let line = error.location().map_or(1, |at| at.line());
    let at = |line: usize| text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let mut lines = (1..).zip(text.lines());
    let is_conflict = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    if let Some((line, _)) = lines.clone().find(|(_, content)| is_conflict(content)) {
        return Malformed { line, why: Why::Conflict };
    }
    let mut actions = text.lines().filter_map(action);
    let is_helm = actions.any(|it| OF_HELM.iter().any(|word| it.contains(word)));
    let first = lines.find_map(|(line, content)| Some((line, go_action(content)?)));
    if let Some((line, action)) = first {
        let why = if is_helm { Why::Helm(action) } else { Why::Template(action) };
        return Malformed { line, why };
    }
    // A parser sees some mistakes on the next line only.
    for line in [line, line.saturating_sub(1)] {
        if let Some(action) = action(at(line)).or_else(|| block(at(line))) {
            return Malformed { line, why: Why::Template(action) };
        }
    }
    let indent = |line: &str| line.chars().take_while(|each| each.is_whitespace()).any(is_tab);
    if let Some(line) = [line, line + 1].into_iter().find(|line| indent(at(*line))) {
        return Malformed { line, why: Why::Tab };
    }
    Malformed { line, why: Why::Other(error.to_string()) }
}

fn is_tab(each: char) -> bool {
    each == '\t'
}

/// The first action of a template on a line, such as `{{ .Values.x }}`.
fn action(line: &str) -> Option<String> {
    between(line, "{{", "}}")
}

/// A block of another template, such as `{% if x %}`.
fn block(line: &str) -> Option<String> {
    between(line, "{%", "%}")
}

fn between(line: &str, open: &str, close: &str) -> Option<String> {
    let line = line.split_once(open).filter(|_| !line.trim_start().starts_with('#'))?.1;
    let inner = line.split_once(close).map_or(line, |(inner, _)| inner);
    Some(quoted(&format!("{open}{inner}{close}")))
}

/// The first action on a line, if it is one of Go's templates.
fn go_action(line: &str) -> Option<String> {
    let action = action(line)?;
    let inner = action.trim_start_matches('{').trim_start_matches('-').trim_start();
    ACTIONS.iter().any(|begin| inner.starts_with(begin)).then_some(action)
}

/// At most so much of a text as a message may quote.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Carries out `<<`, which takes over the fields of other maps that are not there yet.
fn merged(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(merged).collect()),
        Value::Object(fields) => {
            let mut fields: serde_json::Map<_, _> =
                fields.into_iter().map(|(name, field)| (name, merged(field))).collect();
            let others = match fields.get("<<") {
                Some(Value::Object(_)) => fields.remove("<<").into_iter().collect(),
                Some(Value::Array(all)) if all.iter().all(Value::is_object) => {
                    let all = fields.remove("<<");
                    all.and_then(|mut all| all.as_array_mut().map(std::mem::take))
                        .unwrap_or_default()
                }
                _ => Vec::new(),
            };
            for other in others {
                let Value::Object(other) = other else { continue };
                for (name, field) in other {
                    fields.entry(name).or_insert(field);
                }
            }
            Value::Object(fields)
        }
        other => other,
    }
}

fn flatten(object: Value, objects: &mut Vec<Value>) {
    match object {
        Value::Array(items) => items.into_iter().for_each(|item| flatten(item, objects)),
        Value::Object(mut fields) if fields.contains_key("items") => {
            if let Some(Value::Array(items)) = fields.remove("items") {
                if items.is_empty() {
                    objects.push(Value::Object(fields));
                }
                for item in items {
                    flatten(item, objects);
                }
            }
        }
        Value::Null => {}
        other => objects.push(other),
    }
}

#[cfg(test)]
mod tests;
