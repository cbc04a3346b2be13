//! The compatibility matrix: the suites on each version of Kubernetes, recorded in
//! `tests/versions.json`, and the page `docs/versions.md` that is made from the record and from
//! those of nodes and of the last nightly run.

mod gates;
pub mod nightly;
pub mod nodes;
pub mod page;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::kubernetes::Version;
use crate::paths::workspace_root;

pub use gates::of_server;
pub use nightly::Nightly;
pub use nodes::Nodes;

/// The suites that run on each version.
pub const SUITES: [&str; 4] = ["features", "reference", "permissions", "jobs"];

/// How the tests of a suite ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed, took too long or lost their process.
    pub failed: usize,
    /// Tests that did not run, each for a reason.
    pub not_run: usize,
}

/// One run of the suites on one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its day, such as `2026-11-23`.
    pub date: String,
    /// The results by suite; a suite without an entry did not run.
    pub suites: BTreeMap<String, Counts>,
    /// The failed tests.
    pub failed: Vec<String>,
    /// The tests that did not run, with the reason.
    pub not_run: Vec<String>,
    /// What the API server said of its feature gates: `on (BETA)`, by name.
    pub gates: BTreeMap<String, String>,
}

/// The last run of each version, by its full name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record(pub BTreeMap<String, Run>);

impl Record {
    /// The record of this checkout; empty if none exists.
    pub fn read() -> Result<Self, LabError> {
        Ok(read(&record_path())?.unwrap_or_default())
    }

    /// Replaces the run of a version.
    pub fn add(&mut self, version: Version, run: Run) {
        self.0.insert(version.to_string(), run);
    }

    /// Writes the record and the page.
    pub fn write(&self) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self).expect("a record must be JSON") + "\n";
        write(&record_path(), &text)?;
        write_page(self)
    }
}

/// Writes the page.
pub fn write_page(record: &Record) -> Result<(), LabError> {
    let (nodes, nightly) = (Nodes::read()?, Nightly::read()?);
    write(&page_path(), &page::render(record, &nodes, nightly.as_ref()))
}

/// The page.
pub fn page_path() -> PathBuf {
    workspace_root().join("docs/versions.md")
}

fn record_path() -> PathBuf {
    workspace_root().join("tests/versions.json")
}

/// A record; `None` if none exists.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LabError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(LabError::file("read", path))?;
    serde_json::from_str(&text).map(Some).map_err(|error| LabError::Document {
        what: path.display().to_string(),
        source: error.into(),
    })
}

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text).map_err(LabError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_made_from_the_record() {
        let (record, nightly) = (Record::read().expect("a record"), Nightly::read());
        let nightly = nightly.expect("a record");
        let nodes = Nodes::read().expect("a record");
        let page = std::fs::read_to_string(page_path()).expect("the page");
        assert_eq!(page, page::render(&record, &nodes, nightly.as_ref()), "run `cargo lab docs`");
    }

    #[test]
    fn every_recorded_version_is_one_of_the_laboratory() {
        for name in Record::read().expect("the record").0.keys() {
            let version: Version = name.parse().expect("a version");
            assert_eq!(version.to_string(), *name);
        }
    }
}
