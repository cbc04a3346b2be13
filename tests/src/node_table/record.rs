//! Records the last run of each cell of the pages: `tests/node/ends.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::ledger::JobRow;
use super::outcome::{Outcome, Row};
use crate::error::LabError;
use crate::kubernetes::Version;
use crate::paths::workspace_root;
use crate::vm::Kit;

/// The runs by now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Record(Vec<Entry>);

/// The last run of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What was played.
    pub cell: Cell,
    /// The day, such as `2026-11-28`.
    pub date: String,
    /// What it was played on.
    pub versions: Versions,
    /// What the API showed.
    pub end: End,
    /// What it showed once the node was deleted, if its machine stayed off.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub removed: Option<End>,
}

/// The versions of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Versions {
    /// Of Kubernetes: control plane and kubelet.
    pub kubernetes: String,
    /// Debian's of systemd.
    pub systemd: String,
    /// Debian's of containerd.
    pub containerd: String,
    /// Debian's of the kernel.
    pub linux: String,
}

/// The end of a story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// `removed`, or the node's condition Ready.
    pub node: String,
    /// Keys of the node's taints.
    pub taints: Vec<String>,
    /// The pods, by their roles.
    pub pods: BTreeMap<String, PodEnd>,
}

/// What the API showed of a pod at last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodEnd {
    /// `status.phase`.
    pub phase: String,
    /// Status and reason of the condition DisruptionTarget.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disruption: Option<(String, String)>,
    /// The state of its container.
    pub container: String,
    /// How often that was started again.
    #[serde(skip_serializing_if = "is_default", default)]
    pub restarts: i32,
    /// Whether it was being deleted.
    #[serde(skip_serializing_if = "is_default", default)]
    pub deleting: bool,
    /// Whether it was gone from the API.
    #[serde(skip_serializing_if = "is_default", default)]
    pub gone: bool,
    /// Its Job.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub job: Option<JobRow>,
}

/// For fields that are left out where they say nothing.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Record {
    /// The record; empty before the first run.
    pub fn read() -> Result<Self, LabError> {
        let path = path();
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| LabError::file("read", &path)(std::io::Error::other(error))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(LabError::file("read", &path)(error)),
        }
    }

    /// Replaces the file.
    pub fn write(&self) -> Result<(), LabError> {
        let path = path();
        let text = serde_json::to_string_pretty(self).expect("a record must be JSON") + "\n";
        std::fs::write(&path, text).map_err(LabError::file("write", path))
    }

    /// The last run of a cell.
    pub fn of(&self, cell: &Cell) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.cell == *cell)
    }

    /// Records a run. The order is that of [`Cell::all`]; what is no cell any more goes.
    pub fn put(&mut self, entry: Entry) {
        self.0.retain(|old| old.cell != entry.cell);
        self.0.push(entry);
        let cells = Cell::all();
        let place = |entry: &Entry| cells.iter().position(|cell| *cell == entry.cell);
        self.0.retain(|entry| place(entry).is_some());
        self.0.sort_by_key(place);
    }

    /// The runs.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }
}

impl Versions {
    /// Those of the stories of this checkout.
    pub fn current(kit: &Kit) -> Result<Self, LabError> {
        let packages: BTreeMap<String, String> = kit.packages()?.into_iter().collect();
        let of = |name: &str| packages.get(name).cloned().unwrap_or_default();
        Ok(Self {
            kubernetes: Version::NODE.to_string(),
            systemd: of("systemd"),
            containerd: of("containerd"),
            linux: of("linux"),
        })
    }
}

impl End {
    /// What the API showed.
    pub fn of(outcome: &Outcome) -> Self {
        let pods = outcome.rows.iter().map(|row| (row.role.to_owned(), PodEnd::of(row)));
        Self { node: outcome.node.clone(), taints: outcome.taints.clone(), pods: pods.collect() }
    }
}

impl PodEnd {
    fn of(row: &Row) -> Self {
        let seen = &row.seen;
        Self {
            phase: seen.phase.clone(),
            disruption: seen.disruption.clone(),
            container: seen.container.clone(),
            restarts: seen.restarts,
            deleting: seen.deleting,
            gone: seen.gone,
            job: row.job.clone(),
        }
    }
}

fn path() -> PathBuf {
    workspace_root().join("tests/node/ends.json")
}
