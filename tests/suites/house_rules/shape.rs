//! Rules about a file as text: its header and its name.

/// Names that say nothing about the content.
const VAGUE: [&str; 6] = ["utils", "util", "helpers", "helper", "manager", "misc"];

pub(crate) fn missing_header(text: &str) -> Vec<String> {
    let first = text.lines().next().unwrap_or_default();
    let says = first.strip_prefix("//! ").is_some_and(|job| !job.trim().is_empty());
    if says { Vec::new() } else { vec!["no `//!` in its first line".into()] }
}

pub(crate) fn vague_name(path: &str) -> Vec<String> {
    path.trim_end_matches(".rs")
        .split('/')
        .filter(|name| VAGUE.contains(name))
        .map(|name| format!("`{name}` says nothing"))
        .collect()
}

#[test]
fn each_rule_finds_its_violation() {
    assert_eq!(missing_header("use std::fmt;\n").len(), 1);
    assert_eq!(missing_header("//!\n").len(), 1);
    assert!(missing_header("//! Says it.\n").is_empty());
    assert_eq!(vague_name("agent/src/utils/pods.rs").len(), 1);
    assert_eq!(vague_name("agent/src/manager.rs").len(), 1);
    assert!(vague_name("agent/src/utilisation.rs").is_empty());
}
