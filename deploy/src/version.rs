//! The version has one place, `Cargo.toml`. Finds the files that repeat it, and renders them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What stands directly before the version, in any file.
pub const MARKS: [&str; 3] =
    ["registry.epilogue.dev/epilogue:", "target/image/epilogue-", "kubectl-epilogue-v"];

/// The files that repeat the version, and what else stands before it there.
pub const FILES: [(&str, &[&str]); 6] = [
    ("README.md", &["years of production: this is "]),
    ("deploy/chart/Chart.yaml", &["\nversion: ", "\nappVersion: "]),
    ("deploy/image/Containerfile", &[]),
    ("deploy/kustomize/common/agent/daemon-set.yaml", &[]),
    ("deploy/kustomize/common/controller/deployment.yaml", &[]),
    ("docs/operations.md", &[]),
];

/// Why the version cannot be read or set.
#[derive(Debug, Error)]
pub enum VersionError {
    /// A file cannot be read or written.
    #[error("cannot read or write {0}")]
    File(PathBuf, #[source] io::Error),
    /// `Cargo.toml` has none, or one of another form.
    #[error(
        "invalid workspace.package.version {0:?} in Cargo.toml: expected MAJOR.MINOR.PATCH, \
         optionally with -rc.NUMBER, such as 0.2.0 or 0.2.0-rc.1"
    )]
    Form(String),
}

/// The version of the workspace at this root.
pub fn of_workspace(root: &Path) -> Result<String, VersionError> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let (_, section) = manifest.split_once("[workspace.package]").unwrap_or_default();
    let line = section.lines().find_map(|line| line.strip_prefix("version = "));
    let version = line.unwrap_or_default().trim_matches('"');
    if version.is_empty() || length(version) != version.len() {
        return Err(VersionError::Form(version.to_owned()));
    }
    Ok(version.to_owned())
}

/// The files of this root whose version differs from that of `Cargo.toml`, with their right text.
pub fn differing(root: &Path) -> Result<Vec<(PathBuf, String)>, VersionError> {
    let version = of_workspace(root)?;
    let mut found = Vec::new();
    for (file, marks) in FILES {
        let path = root.join(file);
        let text = read(&path)?;
        let right = with_version(&text, &[&MARKS, marks].concat(), &version);
        if right != text {
            found.push((path, right));
        }
    }
    Ok(found)
}

/// The text with this version after each of the marks.
pub fn with_version(text: &str, marks: &[&str], version: &str) -> String {
    let mut text = text.to_owned();
    for mark in marks {
        let mut parts = text.split(mark);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            replaced.push_str(mark);
            let old = length(part);
            replaced.push_str(if old == 0 { "" } else { version });
            replaced.push_str(&part[old..]);
        }
        text = replaced;
    }
    text
}

/// Every version that stands after one of the marks.
pub fn named<'a>(text: &'a str, marks: &[&str]) -> Vec<&'a str> {
    let after = marks.iter().flat_map(|mark| text.split(mark).skip(1));
    after.map(|part| &part[..length(part)]).filter(|version| !version.is_empty()).collect()
}

/// Length of the version that the text begins with, or 0. A `-rc.1` belongs to it.
fn length(text: &str) -> usize {
    let number = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = 0;
    for part in 0..3 {
        let digits = number(&text[end..]);
        let separated = part == 2 || text[end + digits..].starts_with('.');
        if digits == 0 || !separated {
            return 0;
        }
        end += digits + usize::from(part < 2);
    }
    let candidate = text[end..].strip_prefix("-rc.").map_or(0, number);
    if candidate > 0 { end + "-rc.".len() + candidate } else { end }
}

fn read(path: &Path) -> Result<String, VersionError> {
    fs::read_to_string(path).map_err(|source| VersionError::File(path.to_owned(), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_ends_where_the_file_name_goes_on() {
        let table = [
            ("0.1.0", 5),
            ("0.1.0.tar", 5),
            ("0.1.0-linux-amd64", 5),
            ("10.2.30-rc.4.tgz", 12),
            ("0.1.0-rc.", 5),
            ("0.1", 0),
            ("VERSION", 0),
            ("", 0),
        ];
        for (text, expected) in table {
            assert_eq!(length(text), expected, "{text}");
        }
    }

    #[test]
    fn each_version_after_a_mark_is_set_and_others_stay() {
        let text = "a:0.1.0 b-0.1.0-rc.2.tar, a:NAME, c 0.1.0";
        assert_eq!(
            with_version(text, &["a:", "b-"], "0.2.0"),
            "a:0.2.0 b-0.2.0.tar, a:NAME, c 0.1.0"
        );
        assert_eq!(named(text, &["a:", "b-"]), ["0.1.0", "0.1.0-rc.2"]);
    }
}
