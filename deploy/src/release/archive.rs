//! Writes archives that equal files make equal: sorted names, one time, no users.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use super::command::output;
use super::error::ReleaseError;

const TAR: &str = "Debian's packages tar and gzip";

/// Archives all entries of a directory as `FILE.tar.gz`, or by another name of this form. The time
/// is in seconds since 1970.
pub fn tar_gz(directory: &Path, file: &Path, epoch: &str) -> Result<(), ReleaseError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(ReleaseError::file(directory))? {
        names.push(entry.map_err(ReleaseError::file(directory))?.file_name());
    }
    names.sort();
    let tar_file = file.with_extension("unpacked");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&tar_file).arg("--directory").arg(directory);
    tar.args(["--format", "ustar", "--sort", "name", "--owner", "0", "--group", "0"]);
    tar.args(["--numeric-owner", "--mode", "u=rwX,go=rX", "--mtime"]).arg(format!("@{epoch}"));
    output(tar.args(names), TAR)?;
    let mut gzip = Command::new("gzip");
    output(gzip.args(["--no-name", "--force"]).arg(&tar_file), TAR)?;
    let zipped = file.with_extension("unpacked.gz");
    fs::rename(&zipped, file).map_err(ReleaseError::file(file))
}

/// Copies a file, or a directory with all below it. Links become what they lead to.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), ReleaseError> {
    if !from.is_dir() {
        let directory = to.parent().unwrap_or(to);
        fs::create_dir_all(directory).map_err(ReleaseError::file(directory))?;
        return fs::copy(from, to).map(drop).map_err(ReleaseError::file(from));
    }
    for entry in fs::read_dir(from).map_err(ReleaseError::file(from))? {
        let name = entry.map_err(ReleaseError::file(from))?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Removes a file or a directory that may be missing.
pub(super) fn remove(path: &Path) -> Result<(), ReleaseError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(ReleaseError::file(path)(error)),
        _ => Ok(()),
    }
}
