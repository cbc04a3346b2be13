//! Renders the table of the chart's values for its README, from the comments of `values.yaml`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The README with the table, below the crate's directory.
pub const README: &str = "chart/README.md";
/// The line before the table.
const BEGIN: &str = "<!-- generated: values -->\n";
/// The line after the table.
const END: &str = "<!-- end: values -->\n";

/// The directory of the chart.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("chart")
}

/// A value that has a comment: its path, such as `agent.leave`, and the comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The keys, joined by dots.
    pub path: String,
    /// The comment as one line.
    pub comment: String,
}

/// The rows of `values.yaml`: each key after a comment that begins with `# -- `.
pub fn rows(values: &str) -> Vec<Row> {
    let (mut rows, mut keys, mut comment) = (Vec::new(), Vec::<(usize, &str)>::new(), None);
    for line in values.lines() {
        let text = line.trim_start();
        if let Some(begin) = text.strip_prefix("# -- ") {
            comment = Some(begin.to_owned());
        } else if let (Some(said), Some(more)) = (&mut comment, text.strip_prefix("# ")) {
            *said = format!("{said} {more}");
        } else if let Some((key, _)) =
            text.split_once(':').filter(|_| !text.starts_with(['#', '-']))
        {
            let indent = line.len() - text.len();
            keys.retain(|(outer, _)| *outer < indent);
            keys.push((indent, key));
            if let Some(comment) = comment.take() {
                let path: Vec<&str> = keys.iter().map(|(_, key)| *key).collect();
                rows.push(Row { path: path.join("."), comment });
            }
        }
    }
    rows
}

/// The README with its table up to date; `None` without the two marks or with invalid YAML.
pub fn rendered(readme: &str, values: &str) -> Option<String> {
    let parsed: Value = serde_yaml_ng::from_str(values).ok()?;
    let mut table = "| value | default | what |\n|---|---|---|\n".to_owned();
    for Row { path, comment } in rows(values) {
        let default = path.split('.').fold(&parsed, |value, key| &value[key]);
        let comment = comment.replace('|', "\\|");
        writeln!(table, "| `{path}` | `{default}` | {comment} |").ok()?;
    }
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}
