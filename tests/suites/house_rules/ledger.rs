//! The ledger: each intended difference from upstream, marked in the code, has a row in
//! `docs/divergences.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The page.
pub(crate) const PAGE: &str = "docs/divergences.md";
const SECTION: &str = "## The ledger";
const MARK: &str = "DIVERGES(upstream):";

/// Number of marks in each file; files without a mark are left out.
pub(crate) fn counts<'a>(
    sources: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<&'a str, usize> {
    let is_mark = |line: &&str| {
        let comment = line.trim_start().strip_prefix("//");
        comment.is_some_and(|comment| comment.trim_start_matches(['/', '!', ' ']).starts_with(MARK))
    };
    sources
        .map(|(path, text)| (path, text.lines().filter(is_mark).count()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// A row of the ledger names its file in backticks, as `controller/core/src/job/backoff.rs`; a
/// file has as many rows as marks.
pub(crate) fn differences(page: &str, counts: &BTreeMap<&str, usize>) -> Vec<String> {
    let Some((_, after)) = page.split_once(SECTION) else {
        return vec![format!("{PAGE} has no section {SECTION:?}")];
    };
    let section = after.split("\n## ").next().unwrap_or_default();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for line in section.lines() {
        let quoted = line.split('`').skip(1).step_by(2);
        for path in quoted.filter(|name| Path::new(name).extension() == Some("rs".as_ref())) {
            *rows.entry(path).or_default() += 1;
        }
    }
    let paths = counts.keys().chain(rows.keys()).collect::<BTreeSet<_>>();
    paths
        .into_iter()
        .map(|path| (path, counts.get(path).unwrap_or(&0), rows.get(path).unwrap_or(&0)))
        .filter(|(_, marked, rows)| marked != rows)
        .map(|(path, marked, rows)| {
            format!("`{path}`: {marked} marks in the code, {rows} rows in the ledger")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_in_comments_count() {
        let text = "/// DIVERGES(upstream): a\n    // DIVERGES(upstream): b\n\
                    let mark = \"DIVERGES(upstream): c\";\n";
        let counts = counts([("a.rs", text), ("b.rs", "")].into_iter());
        assert_eq!(counts, BTreeMap::from([("a.rs", 2)]));
    }

    #[test]
    fn a_mark_without_a_line_and_a_line_without_a_mark_are_found() {
        let counts = BTreeMap::from([("a.rs", 2), ("b.rs", 1)]);
        assert_eq!(differences("# Epilogue\n", &counts).len(), 1);
        let page =
            format!("# E\n{SECTION}\n- x (`a.rs`)\n- y (`a.rs`)\n- z (`c.rs`)\n\n## Next `b.rs`\n");
        let found = differences(&page, &counts);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`b.rs`: 1 marks") && found[1].contains("`c.rs`: 0 marks"));
    }
}
