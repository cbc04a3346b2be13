//! Releases: their parts from programs of a debug build, and a whole one. `deploy/release` makes
//! them.

mod nightly;
mod parts;
mod registry;
mod tag;
mod whole;

use std::path::Path;
use std::process::Command;

use epilogue_deploy::release::source::Source;
use lab::paths::workspace_root;

/// The version of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// This checkout as the sources of a release; archives are made in the other directory.
pub(crate) fn source(target: &Path) -> Source {
    Source {
        directory: workspace_root(),
        target: target.to_owned(),
        version: VERSION.to_owned(),
        notes: "- A change.\n".to_owned(),
        commit: "a".repeat(40),
        epoch: "1700000000".to_owned(),
    }
}

/// Runs a program; returns whether it succeeded, and all that it printed.
fn tried(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &errors)
}

/// The same; panics if it failed.
fn done(command: &mut Command) -> String {
    let (succeeded, printed) = tried(command);
    assert!(succeeded, "{command:?}: {printed}");
    printed
}

/// Whether all files of a release have the checksums of its list.
fn checksums_hold(out: &Path) -> bool {
    let mut check = Command::new("sha256sum");
    tried(check.args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(out)).0
}

/// Changes one byte in the middle of a file.
fn change_a_byte(path: &Path) {
    let mut bytes = std::fs::read(path).expect("must be readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).expect("must be writable");
}

/// Extracts an archive into a new directory.
fn extracted(archive: &Path) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    done(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(directory.path()));
    directory
}
