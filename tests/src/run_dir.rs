//! The state directory of one lab: claimed by a lock that the kernel releases with its owner,
//! described by `state.json`.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::paths::LabDir;
use crate::process::ProcessRecord;

/// Directories of ended labs that are kept for their logs; older ones are removed.
const ENDED_KEPT_MAX: usize = 6;

/// Phase of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Its processes are being started.
    Starting,
    /// The API answers.
    Ready,
    /// It stopped in order.
    Stopped,
}

/// The state of a lab for other processes: the content of `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The lab's name.
    pub name: String,
    /// Its phase.
    pub phase: Phase,
    /// The process that holds the lab; on SIGTERM it stops the lab.
    pub supervisor: ProcessRecord,
    /// The API's URL.
    pub server: String,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Its children, in the order of their start.
    pub processes: Vec<ProcessRecord>,
}

impl State {
    /// The state of the lab in `dir`, or `None` if none was written yet.
    pub fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join("state.json")).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// A state directory that this process owns.
#[derive(Debug)]
pub struct RunDir {
    name: String,
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Claims the directory of lab `name`, empty; fails if a lab of that name runs.
    pub fn claim(labs: &LabDir, name: &str) -> Result<Self, LabError> {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(valid) {
            return Err(LabError::BadName(name.to_owned()));
        }
        let path = labs.runs().join(name);
        loop {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(LabError::file("create", &path))?;
            let Some(lock) = try_lock(&path, true)? else {
                return Err(LabError::NameTaken(name.to_owned()));
            };
            // Another lab may have pruned the directory between its creation and the lock.
            if is_lock_of(&lock, &path) {
                clear(&path)?;
                return Ok(Self { name: name.to_owned(), path, _lock: lock });
            }
        }
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory inside, created if missing.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, LabError> {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path).map_err(LabError::file("create", &path))?;
        Ok(path)
    }

    /// Writes `state.json` atomically: readers see the old or the new one.
    pub fn write_state(&self, state: &State) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(state).expect("a state must be JSON");
        let (new, path) = (self.path.join("state.json.new"), self.path.join("state.json"));
        std::fs::write(&new, text).map_err(LabError::file("write", &new))?;
        std::fs::rename(&new, &path).map_err(LabError::file("write", &path))
    }
}

/// Whether a lab holds the directory now.
pub fn is_held(dir: &Path) -> bool {
    // A directory that cannot be opened is not held: it is gone.
    matches!(try_lock(dir, false), Ok(None))
}

/// The directories of all labs, running or ended.
pub fn list(labs: &LabDir) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(labs.runs()) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_lab(path)).collect();
    paths.sort();
    paths
}

/// Whether a directory is a lab's; other programs put theirs there too, which are not ours to
/// remove.
fn is_lab(path: &Path) -> bool {
    path.join("lock").is_file()
}

/// Removes the directories of ended labs but the most recent ones.
pub fn prune(labs: &LabDir) {
    let mut ended: Vec<_> = list(labs)
        .into_iter()
        .filter(|path| !is_held(path))
        .filter_map(|path| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    ended.sort();
    let excess = ended.len().saturating_sub(ENDED_KEPT_MAX);
    for (_, path) in ended.drain(..excess) {
        if let Ok(Some(_lock)) = try_lock(&path, false) {
            // The next lab retries a failed removal.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// The lock of `dir`, or `None` if another process holds it.
fn try_lock(dir: &Path, create: bool) -> Result<Option<File>, LabError> {
    let path = dir.join("lock");
    let file = File::options()
        .create(create)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(LabError::file("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(LabError::file("lock", path)(source)),
    }
}

fn is_lock_of(lock: &File, dir: &Path) -> bool {
    let inode = |metadata: std::io::Result<std::fs::Metadata>| Some(metadata.ok()?.ino());
    inode(lock.metadata()).is_some_and(|ours| inode(dir.join("lock").metadata()) == Some(ours))
}

fn clear(dir: &Path) -> Result<(), LabError> {
    for entry in std::fs::read_dir(dir).map_err(LabError::file("read", dir))? {
        let path = entry.map_err(LabError::file("read", dir))?.path();
        if path.file_name().is_some_and(|name| name == "lock") {
            continue;
        }
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.map_err(LabError::file("remove", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_while_its_lab_lives_and_free_after() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let labs = LabDir::at(dir.path());
        let first = RunDir::claim(&labs, "a").expect("the first claim");
        std::fs::write(first.path().join("rest"), "").expect("write");
        assert!(matches!(RunDir::claim(&labs, "a"), Err(LabError::NameTaken(_))));
        assert!(is_held(first.path()));
        drop(first);
        let second = RunDir::claim(&labs, "a").expect("the second claim");
        assert!(!second.path().join("rest").exists());
    }

    #[test]
    fn a_name_that_leaves_the_directory_is_refused() {
        let labs = LabDir::at("/nonexistent");
        assert!(matches!(RunDir::claim(&labs, "../a"), Err(LabError::BadName(_))));
    }

    #[test]
    fn only_ended_labs_are_pruned() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let labs = LabDir::at(dir.path());
        let held = RunDir::claim(&labs, "held").expect("claim");
        for index in 0..ENDED_KEPT_MAX + 3 {
            drop(RunDir::claim(&labs, &format!("ended-{index}")).expect("claim"));
        }
        let other = labs.runs().join("of-a-test");
        std::fs::create_dir(&other).expect("must be creatable");
        prune(&labs);
        assert_eq!(list(&labs).len(), ENDED_KEPT_MAX + 1);
        assert!(held.path().exists() && other.exists());
    }
}
