//! Describes a machine for other processes: the content of `machine.json` in its directory.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::VmError;
use crate::error::LabError;
use crate::paths::LabDir;
use crate::process::ProcessRecord;
use crate::run_dir;

/// The directory of a lab's nodes, within the lab's own.
pub const NODES: &str = "nodes";

/// The data needed to reach a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its process.
    pub qemu: ProcessRecord,
    /// The arguments of `ssh`, without a command.
    pub ssh_arguments: Vec<String>,
}

impl Record {
    pub(super) fn write(&self, dir: &Path) -> Result<(), LabError> {
        let path = dir.join("machine.json");
        let text = serde_json::to_string_pretty(self).expect("a record must be JSON");
        std::fs::write(&path, text).map_err(LabError::file("write", path))
    }

    fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join("machine.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The node `name` of any lab of this checkout, running or ended, and its directory. If several
    /// labs have one of that name: `LAB/NAME`.
    pub fn find(labs: &LabDir, name: &str) -> Result<(Self, PathBuf), VmError> {
        let (lab, node) = match name.split_once('/') {
            Some((lab, node)) => (Some(lab), node),
            None => (None, name),
        };
        let of_lab = |dir: &PathBuf| lab.is_none_or(|lab| dir.ends_with(lab));
        let mut found: Vec<(Self, PathBuf)> = run_dir::list(labs)
            .into_iter()
            .filter(of_lab)
            .map(|dir| dir.join(NODES).join(node))
            .filter_map(|dir| Some((Self::read(&dir)?, dir)))
            .collect();
        found.sort_by_key(|(record, _)| record.qemu.is_alive());
        found.pop().ok_or_else(|| VmError::NoSuchNode(name.to_owned()))
    }
}
