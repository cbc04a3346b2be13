//! The sources of a release: a copy of the tag, once tag, version and changelog agree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::{output, show};
use super::error::ReleaseError;
use crate::{changelog, version};

const GIT: &str = "Debian's package git";

/// The sources of one tag.
#[derive(Clone, Debug)]
pub struct Source {
    /// The directory with the copy.
    pub directory: PathBuf,
    /// Where cargo builds.
    pub target: PathBuf,
    /// The version, without the `v` of the tag.
    pub version: String,
    /// The section of the changelog.
    pub notes: String,
    /// The commit, which the programs name.
    pub commit: String,
    /// When the commit was made, in seconds: the time in all files of the release.
    pub epoch: String,
}

impl Source {
    /// Checks the tag, and copies its files into `target/release-source`.
    pub fn of_tag(root: &Path, tag: &str) -> Result<Self, ReleaseError> {
        let git = |arguments: &[&str]| output(git(root).args(arguments), GIT);
        // Not a branch of the same name.
        let commit = git(&["rev-parse", "--verify", &format!("refs/tags/{tag}^{{commit}}")])?;
        if commit != git(&["rev-parse", "HEAD"])? {
            return Err(ReleaseError::NotCheckedOut { tag: tag.to_owned() });
        }
        let changes = git(&["status", "--porcelain"])?;
        if let Some(change) = changes.lines().next() {
            return Err(ReleaseError::Dirty(change.trim().to_owned()));
        }
        let commit = commit.trim();
        let directory = root.join("target/release-source");
        copy(root, commit, &directory)?;
        let epoch = git(&["log", "-1", "--format=%ct", commit])?.trim().to_owned();
        Self::of_directory(directory, root, tag, (commit.to_owned(), epoch))
    }

    /// The same for files that are a copy of a commit, with its time, already.
    pub fn of_directory(
        directory: PathBuf,
        root: &Path,
        tag: &str,
        (commit, epoch): (String, String),
    ) -> Result<Self, ReleaseError> {
        let version = version::of_workspace(&directory)?;
        if tag.strip_prefix('v') != Some(&version) {
            return Err(ReleaseError::Tag { tag: tag.to_owned(), version });
        }
        if let Some((path, _)) = version::differing(&directory)?.into_iter().next() {
            return Err(ReleaseError::Version(path));
        }
        let path = directory.join("CHANGELOG.md");
        let changes = fs::read_to_string(&path).map_err(ReleaseError::file(&path))?;
        let notes = changelog::section(&changes, &version)
            .ok_or_else(|| ReleaseError::Changelog(version.clone()))?;
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = root.join(target.unwrap_or_else(|| "target/release-build".into()));
        Ok(Self { directory, target, version, notes: notes + "\n", commit, epoch })
    }
}

fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root);
    command
}

/// Extracts a commit. Files that it lacks go.
fn copy(root: &Path, commit: &str, directory: &Path) -> Result<(), ReleaseError> {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(ReleaseError::file(directory))?;
    }
    fs::create_dir_all(directory).map_err(ReleaseError::file(directory))?;
    let archive = directory.with_extension("tar");
    output(git(root).args(["archive", "--output"]).arg(&archive).arg(commit), GIT)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(directory);
    show(&mut tar, "Debian's package tar")
}
