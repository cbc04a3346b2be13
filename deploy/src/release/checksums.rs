//! Writes `SHA256SUMS`, as `sha256sum --check` reads it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::error::ReleaseError;
use crate::krew::sha256;

/// The file with the checksums.
pub const FILE: &str = "SHA256SUMS";

/// Writes the checksums of all files of a directory.
pub fn write(directory: &Path) -> Result<(), ReleaseError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(ReleaseError::file(directory))? {
        let name = entry.map_err(ReleaseError::file(directory))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    let mut text = String::new();
    for name in names.iter().filter(|name| *name != FILE) {
        let path = directory.join(name);
        let bytes = fs::read(&path).map_err(ReleaseError::file(&path))?;
        let _ = writeln!(text, "{}  {name}", sha256(&bytes));
    }
    let path = directory.join(FILE);
    fs::write(&path, text).map_err(ReleaseError::file(&path))
}
