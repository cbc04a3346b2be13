//! Caches artefacts for all checkouts of this machine, by kind and key. An artefact is made once
//! under a lock, and kept while a process uses it. The least recently used ones are removed.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::LabError;
use crate::paths::create_private;

/// Artefacts of one kind that stay: for this checkout and for another version.
const KEPT_MAX: usize = 2;

/// The right to use an artefact, which stays while this lease or a clone of its file lives.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    _lock: File,
}

impl Lease {
    /// The artefact, a file or a directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// By every user of the artefact.
    Shared,
    /// By the process that makes or removes it.
    Exclusive,
}

/// Returns the artefact of this kind and key in `dir`; makes it if it is missing. `make` writes a
/// file or a directory at the given path. Two processes make it once.
pub async fn ensure<E: From<LabError>>(
    dir: &Path,
    kind: &str,
    key: &str,
    make: impl AsyncFn(&Path) -> Result<(), E>,
) -> Result<Lease, E> {
    create_private(dir)?;
    let name = format!("{kind}-{key}");
    let path = dir.join(&name);
    loop {
        let lock = lock(dir, &name, Mode::Shared).await?;
        if path.exists() {
            // This sets the order of removal; if it fails, the artefact is removed earlier.
            let _ = lock.set_modified(SystemTime::now());
            prune(dir, kind);
            return Ok(Lease { path, _lock: lock });
        }
        drop(lock);
        let _lock = self::lock(dir, &name, Mode::Exclusive).await?;
        if !path.exists() {
            let new = dir.join(format!("new-{name}"));
            // Left by a process that was killed while it made one.
            remove(&new)?;
            make(&new).await?;
            std::fs::rename(&new, &path).map_err(LabError::file("write", &path))?;
        }
        // Another process may remove it before this one has the shared lock: then start again.
    }
}

/// Removes all of a kind but those that a process uses and the most recently used ones.
fn prune(dir: &Path, kind: &str) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut locks: Vec<(SystemTime, String)> = entries
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let name = file.strip_suffix(".lock")?;
            let is_of_kind = name.strip_prefix(kind)?.starts_with('-');
            is_of_kind.then_some((entry.metadata().ok()?.modified().ok()?, name.to_owned()))
        })
        .collect();
    locks.sort();
    let excess = locks.len().saturating_sub(KEPT_MAX);
    for (_, name) in locks.drain(..excess) {
        // The next call retries a failed removal.
        let _ = remove_unused(dir, &name);
    }
}

fn remove_unused(dir: &Path, name: &str) -> Result<(), LabError> {
    let path = lock_path(dir, name);
    let lock = open(&path)?;
    match lock.try_lock() {
        Ok(()) if is_lock_at(&lock, &path) => {}
        Ok(()) | Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(source)) => return Err(LabError::file("lock", path)(source)),
    }
    remove(&dir.join(name))?;
    remove(&path)
}

/// Removes a file or a directory if it exists.
fn remove(path: &Path) -> Result<(), LabError> {
    let removed = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    };
    removed.map_err(LabError::file("remove", path))
}

/// Waits for the lock, and makes sure that it is that of the current file.
async fn lock(dir: &Path, name: &str, mode: Mode) -> Result<File, LabError> {
    let path = lock_path(dir, name);
    loop {
        let file = open(&path)?;
        let waiting = tokio::task::spawn_blocking(move || {
            let locked = match mode {
                Mode::Shared => file.lock_shared(),
                Mode::Exclusive => file.lock(),
            };
            locked.map(|()| file)
        });
        let locked = waiting.await.expect("a lock's wait must not panic");
        let file = locked.map_err(LabError::file("lock", &path))?;
        if is_lock_at(&file, &path) {
            return Ok(file);
        }
    }
}

fn lock_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.lock"))
}

fn open(path: &Path) -> Result<File, LabError> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    file.map_err(LabError::file("open", path))
}

/// Whether the file is still the one at `path`: another process may have removed it before the
/// lock.
fn is_lock_at(lock: &File, path: &Path) -> bool {
    let inode = |metadata: std::io::Result<std::fs::Metadata>| Some(metadata.ok()?.ino());
    inode(lock.metadata()).is_some_and(|ours| inode(path.metadata()) == Some(ours))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    async fn made(dir: &Path, key: &str, count: &Cell<u32>) -> Lease {
        let make = async |path: &Path| {
            count.set(count.get() + 1);
            std::fs::write(path, key).map_err(LabError::file("write", path))
        };
        ensure(dir, "disk", key, make).await.expect("must be made")
    }

    /// Recency has the file system's resolution.
    fn age(dir: &Path, key: &str, seconds: u64) {
        let lock = open(&lock_path(dir, &format!("disk-{key}"))).expect("must be there");
        let then = SystemTime::now() - Duration::from_secs(seconds);
        lock.set_modified(then).expect("must be settable");
    }

    #[tokio::test]
    async fn artefact_is_made_once_and_made_anew_for_another_key() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let count = Cell::new(0);
        drop(made(dir.path(), "a", &count).await);
        let again = made(dir.path(), "a", &count).await;
        assert_eq!((count.get(), std::fs::read(again.path()).expect("read")), (1, b"a".into()));
        drop(made(dir.path(), "b", &count).await);
        assert_eq!(count.get(), 2);
    }

    #[tokio::test]
    async fn least_recently_used_ones_go_but_never_one_in_use() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let count = Cell::new(0);
        let in_use = made(dir.path(), "a", &count).await;
        age(dir.path(), "a", 90);
        for (key, seconds) in [("b", 60), ("c", 30)] {
            drop(made(dir.path(), key, &count).await);
            age(dir.path(), key, seconds);
        }
        drop(made(dir.path(), "d", &count).await);
        let left = |key: &str| dir.path().join(format!("disk-{key}")).exists();
        assert!(in_use.path().exists() && left("c") && left("d") && !left("b"));
        drop(in_use);
        drop(made(dir.path(), "d", &count).await);
        assert!(!left("a") && left("c") && left("d"));
    }

    #[tokio::test]
    async fn failed_attempt_leaves_nothing_that_counts() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let fail = async |path: &Path| {
            std::fs::create_dir(path).expect("create");
            Err(LabError::BadName("no".to_owned()))
        };
        ensure(dir.path(), "disk", "a", fail).await.expect_err("it fails");
        let count = Cell::new(0);
        assert!(made(dir.path(), "a", &count).await.path().is_file());
    }
}
