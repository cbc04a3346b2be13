//! Handles the pages in `docs/`: the generated sections, links, and what rules assume.

pub mod links;
mod metrics;
pub mod reference;
pub mod rules;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::paths::workspace_root;

/// Every page of the repository, relative to its root, with its text.
pub fn pages() -> std::io::Result<Vec<(String, String)>> {
    let root = workspace_root();
    let mut found = Vec::new();
    collect(&root, &mut found)?;
    found.sort();
    let relative = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
        Ok((name, std::fs::read_to_string(&path)?))
    };
    found.into_iter().map(relative).collect()
}

/// The page at `path` with the section between its marks `generated: NAME` and `end: NAME`
/// replaced.
pub fn replaced(path: &str, page: &str, name: &str, body: &str) -> anyhow::Result<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end: {name} -->\n"));
    let lacks = || format!("{path} lacks the line {}", begin.trim_end());
    let (before, rest) = page.split_once(&begin).with_context(lacks)?;
    let (_, after) =
        rest.split_once(&end).with_context(|| format!("{path} lacks {}", end.trim_end()))?;
    Ok(format!("{before}{begin}\n{body}\n{end}{after}"))
}

/// All broken links of all pages.
pub fn broken_links() -> std::io::Result<Vec<String>> {
    let root = workspace_root();
    let pages = pages()?;
    Ok(pages.iter().flat_map(|(path, text)| links::broken(&root, path, text)).collect())
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}
