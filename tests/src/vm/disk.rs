//! Makes the disks of a machine with programs of the host.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::error::VmError;
use crate::error::LabError;
use crate::process::{Process, Program};

/// Runs a program to its end; on failure, the error has the end of its log.
pub(super) async fn run<A: Into<OsString>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
    log: &Path,
) -> Result<(), VmError> {
    run_program(&Program::new(program, Path::new(program), args, log)).await
}

pub(super) async fn run_program(program: &Program) -> Result<(), VmError> {
    match Process::spawn_program(program)?.ended().await {
        LabError::Ended { status, .. } if status.success() => Ok(()),
        error => Err(error.into()),
    }
}

/// A read-only disk with the files of `dir`, labelled, of exactly `bytes`.
pub(super) async fn of_directory(
    disk: &Path,
    label: &str,
    dir: &Path,
    bytes: u64,
    log: &Path,
) -> Result<(), VmError> {
    let file = File::create(disk).map_err(LabError::file("create", disk))?;
    file.set_len(bytes).map_err(LabError::file("size", disk))?;
    let options = ["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-L", label, "-d"];
    let paths = [dir.as_os_str(), disk.as_os_str()];
    run("mke2fs", options.iter().map(OsString::from).chain(paths.map(OsString::from)), log).await
}

/// The total size of all files below `dir`.
pub(super) fn bytes_below(dir: &Path) -> Result<u64, LabError> {
    let mut bytes = 0;
    for path in files_below(dir)? {
        bytes += std::fs::metadata(&path).map_err(LabError::file("read", &path))?.len();
    }
    Ok(bytes)
}

/// A hash over names, modes and content of all files below `dir`, and over `more`.
pub(super) fn hash_of(dir: &Path, more: &str) -> Result<String, LabError> {
    let mut hasher = DefaultHasher::new();
    more.hash(&mut hasher);
    for path in files_below(dir)? {
        let metadata = path.symlink_metadata().map_err(LabError::file("read", &path))?;
        path.strip_prefix(dir).unwrap_or(&path).hash(&mut hasher);
        (metadata.permissions().mode() & 0o111).hash(&mut hasher);
        if metadata.is_symlink() {
            std::fs::read_link(&path).map_err(LabError::file("read", &path))?.hash(&mut hasher);
        } else {
            std::fs::read(&path).map_err(LabError::file("read", &path))?.hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Files and links below `dir`, sorted.
pub(super) fn files_below(dir: &Path) -> Result<Vec<PathBuf>, LabError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(LabError::file("read", dir))? {
        let entry = entry.map_err(LabError::file("read", dir))?;
        let kind = entry.file_type().map_err(LabError::file("read", entry.path()))?;
        if kind.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_content_names_and_modes() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let file = dir.path().join("a");
        std::fs::write(&file, "1").expect("write");
        let hash = || hash_of(dir.path(), "").expect("hash");
        let first = hash();
        assert_eq!(hash(), first);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let second = hash();
        std::fs::rename(&file, dir.path().join("b")).expect("rename");
        let third = hash();
        assert!(first != second && second != third, "{first} {second} {third}");
        assert_ne!(hash_of(dir.path(), "x").expect("hash"), third);
    }
}
