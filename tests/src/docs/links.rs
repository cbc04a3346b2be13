//! Checks the links of the pages: each leads to a file of the repository, and to a heading of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The links of `text`, a page at `path` (relative to `root`), that lead nowhere.
pub fn broken(root: &Path, path: &str, text: &str) -> Vec<String> {
    let here = Path::new(path).parent().unwrap_or(Path::new(""));
    let targets = targets(text);
    targets
        .into_iter()
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .filter(|target| {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let page =
                if file.is_empty() { root.join(path) } else { normal(&root.join(here).join(file)) };
            let is_there = page.exists() && page.starts_with(root);
            !is_there || !anchor.is_empty() && !has_heading(&page, anchor)
        })
        .map(|target| format!("{path}: the link to {target} leads nowhere"))
        .collect()
}

/// The targets of links and pictures outside of code.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let after = prose.split("](").skip(1);
    let targets = after.filter_map(|after| after.split_once(')'));
    targets.map(|(target, _)| target.split(' ').next().unwrap_or(target).to_owned()).collect()
}

/// The text without fenced and quoted code.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let outside: Vec<&str> = line.split('`').step_by(2).collect();
            prose.extend([&outside.join("`"), "\n"]);
        }
    }
    prose
}

fn has_heading(page: &Path, anchor: &str) -> bool {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    anchors(&text).contains(anchor)
}

/// The anchors of a page's headings, as GitHub and mdbook make them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let headings = text.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
    });
    for title in headings {
        let kept = title.trim().chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
            _ => None,
        });
        let anchor: String = kept.collect();
        let taken = |n: &usize| found.contains(&format!("{anchor}-{n}"));
        let number = (1..=found.len() + 1).find(|n| !taken(n)).unwrap_or(1);
        if !found.insert(anchor.clone()) {
            found.insert(format!("{anchor}-{number}"));
        }
    }
    found
}

/// `a/../b` as `b`, to detect links that leave the repository.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            std::path::Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_made_as_readers_make_them() {
        let anchors = anchors("# A page\n## `code`, and more\n### T5\n### T5\ntext # no\n");
        for anchor in ["a-page", "code-and-more", "t5", "t5-1"] {
            assert!(anchors.contains(anchor), "{anchor}: {anchors:?}");
        }
        assert_eq!(anchors.len(), 4);
    }

    #[test]
    fn links_to_nothing_are_found() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("docs")).expect("a directory");
        std::fs::write(root.path().join("docs/b.md"), "# B\n## Part\n").expect("a file");
        let text = "# A\n[ok](b.md) [ok](b.md#part) [ok](#a) [ok](https://x.y) `[no](z.md)`\n\
                    ```\n[no](z.md)\n```\n[gone](c.md) [gone](b.md#parts) [out](../../etc)\n";
        std::fs::write(root.path().join("docs/a.md"), text).expect("a file");
        let found = broken(root.path(), "docs/a.md", text);
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
