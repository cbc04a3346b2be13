//! Citations: each id in brackets in a comment, a manifest or a page names a rule of `docs/rules`,
//! and each rule there is cited and names tests that exist. What an entry names as seen on the real
//! thing is a test of a suite that runs there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lab::docs::rules::{is_assumed, seen};

use super::sources::Source;

/// Words that point to documents outside of the repository.
const OUTSIDE: [&str; 4] = ["§", "spec/node-agent", "spec/job-controller", "users.md"];

/// One entry of `docs/rules`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The files of its tests.
    pub(crate) files: BTreeSet<String>,
    /// The functions of its tests.
    pub(crate) tests: BTreeSet<String>,
}

/// The rules of a page by their ids.
pub(crate) fn rules(page: &str) -> BTreeMap<String, Rule> {
    let entries = page.split("\n### ").skip(1);
    entries
        .filter_map(|entry| {
            let (id, body) = entry.split_once('\n')?;
            Some((id.trim().to_owned(), rule(body)))
        })
        .collect()
}

fn rule(body: &str) -> Rule {
    let mut rule = Rule::default();
    let items = body.split("\n## ").next().unwrap_or_default().split("\n- ");
    let shown = items.filter_map(|item| {
        item.strip_prefix("Test: ")
            .map(|it| (it, true))
            .or(item.strip_prefix("Seen: ").map(|it| (it, false)))
    });
    for (item, is_test) in shown {
        for quoted in item.split('`').skip(1).step_by(2) {
            if Path::new(quoted).extension() == Some("rs".as_ref()) {
                rule.files.insert(quoted.to_owned());
            } else if is_test || quoted.contains("::") {
                let name = quoted.rsplit("::").next().unwrap_or(quoted);
                rule.tests.insert(name.trim_end_matches('…').to_owned());
            }
        }
    }
    rule
}

/// Suites on the real thing: a real API server, kubelet, logind or kernel.
const REAL: [(&str, &str); 11] = [
    ("agent", "tests/suites/agent"),
    ("disruptors", "tests/suites/disruptors"),
    ("elogind", "agent/tests/elogind"),
    ("kubelet", "tests/suites/kubelet"),
    ("features", "tests/suites/features"),
    ("jobs", "tests/suites/jobs"),
    ("node", "tests/suites/node"),
    ("outages", "tests/suites/outages"),
    ("permissions", "tests/suites/permissions"),
    ("podgc", "tests/suites/podgc"),
    ("reference", "tests/suites/reference"),
];

/// What is wrong with the items `Seen` of a page: one names no test, or one that is not there.
pub(crate) fn not_seen(page: &str, sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in page.split("\n### ").skip(1) {
        let (id, item) = (entry.split('\n').next().unwrap_or_default(), seen(entry));
        let quoted = item.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::"));
        let named: Vec<&str> = quoted.collect();
        if named.is_empty() && !is_assumed(&item) && !item.contains("by hand") {
            found.push(format!("[{id}] is not seen: name a test, or write: assumed"));
        }
        for name in named.into_iter().filter(|name| !is_test_on_the_real_thing(name, sources)) {
            found.push(format!("[{id}] is seen by {name}, not a test on the real thing"));
        }
    }
    found
}

/// Whether `suite::module::function` is a test of a suite in [`REAL`].
fn is_test_on_the_real_thing(name: &str, sources: &[Source]) -> bool {
    let suite = name.split("::").next().unwrap_or_default();
    let function = format!("fn {}()", name.rsplit("::").next().unwrap_or_default());
    let Some((_, place)) = REAL.iter().find(|(real, _)| *real == suite) else { return false };
    sources.iter().any(|source| {
        let rest = source.path.strip_prefix(place);
        let is_of_suite = rest.is_some_and(|rest| rest.starts_with('/') || rest == ".rs");
        is_of_suite && has_test(&source.text, &function)
    })
}

/// Whether a file has this function as a test.
fn has_test(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().filter(|(_, line)| line.contains(function)).any(|(at, _)| {
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with('#'));
        attributes.into_iter().any(|line| line.contains("test"))
    })
}

/// The ids that a line of prose cites: `[T5]`, `[T5, I10]`.
pub(crate) fn cited(text: &str) -> Vec<String> {
    let brackets = text.split('[').skip(1).filter_map(|after| after.split_once(']'));
    brackets
        .filter(|(_, after)| !after.starts_with('('))
        .flat_map(|(inside, _)| {
            let ids: Vec<&str> = inside.split(", ").collect();
            let all = ids.iter().all(|id| is_id(id));
            ids.into_iter().filter(move |_| all).map(str::to_owned)
        })
        .collect()
}

/// One to three capitals and a number.
fn is_id(text: &str) -> bool {
    let digits = text.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
    let letters = text.len() - digits.len();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (1..=3).contains(&letters) && is_number && digits.len() <= 2
}

/// The comments of a Rust file, line by line.
pub(crate) fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    lines.filter_map(|(number, line)| {
        let from =
            if line.trim_start().starts_with("//") { line.find("//") } else { line.find(" // ") };
        Some((number + 1, &line[from?..]))
    })
}

/// The names of all functions of a file, and of what a macro names like one.
pub(crate) fn functions(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("fn ").skip(1);
    after.map(|after| {
        let end = after.find(|letter: char| letter != '_' && !letter.is_alphanumeric());
        &after[..end.unwrap_or(after.len())]
    })
}

/// Citations of rules that do not exist, and references to documents that are not here.
pub(crate) fn broken(source: &Source, known: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, comment) in comments(&source.text) {
        for id in cited(comment).into_iter().filter(|id| !known.contains(id)) {
            found.push(format!("line {number} cites [{id}], which docs/rules does not have"));
        }
        for word in OUTSIDE.iter().filter(|word| comment.contains(**word)) {
            found.push(format!("line {number} says {word:?}: name a rule of docs/rules"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_its_files_and_tests() {
        let page = "# T\n\n### T5\n\nText `a/b.rs`.\n\n- Upstream: `pkg/x.go` (f)\n\
                    - Seen: `jobs::one`\n- Test: `core/t.rs`\n  `two`\n\n## Next\n\n### T6\n\nX.\n";
        let rules = rules(page);
        assert_eq!(rules.keys().collect::<Vec<_>>(), ["T5", "T6"]);
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(rules["T5"].files, names(&["core/t.rs"]));
        assert_eq!(rules["T5"].tests, names(&["one", "two"]));
        assert!(rules["T6"].tests.is_empty());
    }

    #[test]
    fn what_is_seen_names_a_test_that_is_there_or_says_that_there_is_none() {
        let entry =
            |seen: &str| format!("# R\n\n### A1\n\nX.\n\n- Seen: {seen}\n- Test: `t.rs` `t`\n");
        let file = |path: &str| Source {
            path: path.into(),
            text: "#[tokio::test(flavor = \"x\")]\nasync fn one() {}\n\nfn two() {}\n".into(),
        };
        let sources = [file("tests/suites/jobs/blind.rs"), file("tests/suites/worlds.rs")];
        let found = |seen: &str| not_seen(&entry(seen), &sources).len();
        for seen in ["`jobs::one`", "`jobs::blind::one` (a part)", "assumed", "by hand: `ls`"] {
            assert_eq!(found(seen), 0, "{seen}");
        }
        for seen in ["", "yes", "`jobs::two`", "`jobs::three`", "`worlds::one`; assumed"] {
            assert_eq!(found(seen), 1, "{seen}");
        }
    }

    #[test]
    fn ids_in_brackets_are_citations_and_nothing_else_is() {
        assert_eq!(cited("/// A rule. ([T5], [GC7, I10])"), ["T5", "GC7", "I10"]);
        assert!(cited("/// [`T5`] [x] [T] [5] [A1](b.md) [ABCD1] [T5 x] [T123]").is_empty());
        let text = "let a = [T5]; // [Q1]\n    /// [Q2]\nlet b = \"// x\";\n";
        let found: Vec<_> = comments(text).flat_map(|(_, comment)| cited(comment)).collect();
        assert_eq!(found, ["Q1", "Q2"]);
    }

    #[test]
    fn what_is_not_in_the_repository_is_found() {
        let text = "//! A. (spec/node-agent.md §1)\n// [Z9]\n";
        let source = Source { path: "a.rs".into(), text: text.into() };
        assert_eq!(broken(&source, &BTreeSet::new()).len(), 3);
    }
}
