//! Formats the inventory as text for a terminal.

use crate::leave::rules::{Inventory, Left};
use epilogue_common::finding_code::docs_line;

use super::{Answered, Omission};

/// A line names at most this many objects; -o json names all.
const NAMED_MAX: usize = 3;

pub(super) fn text(answer: &Answered) -> String {
    let Answered { changed, inventory, not_read } = answer;
    let Inventory { left, stays, steps, .. } = inventory;
    let mut lines: Vec<String> = changed.iter().map(|name| format!("changed: {name}")).collect();
    section(&mut lines, "Left:", left.iter().map(line));
    section(&mut lines, "Stays, and needs no controller of this project:", stays.iter().map(line));
    let unread = not_read.iter().map(|Omission { code, kind }| format!("{kind}  [{code}]"));
    section(&mut lines, "Not read:", unread);
    let numbered = steps.iter().enumerate().map(|(at, step)| format!("{}. {step}", at + 1));
    section(&mut lines, "Next:", numbered);
    if left.is_empty() && not_read.is_empty() {
        lines.push("nothing is left".to_owned());
    }
    if !left.is_empty() || !stays.is_empty() || !not_read.is_empty() {
        lines.push(docs_line());
    }
    lines.join("\n")
}

fn section(lines: &mut Vec<String>, title: &str, items: impl Iterator<Item = String>) {
    let mut items = items.peekable();
    if items.peek().is_some() {
        lines.push(title.to_owned());
        lines.extend(items.map(|item| format!("  {item}")));
        lines.push(String::new());
    }
}

fn line(left: &Left) -> String {
    let Left { code, what, names } = left;
    let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{:>4} {what}: {named}{more}  [{code}]", names.len())
}
