//! Why there is no release.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use thiserror::Error;

use crate::krew::KrewError;
use crate::version::VersionError;

/// Why there is no release.
#[derive(Debug, Error)]
pub enum ReleaseError {
    /// A file or a directory.
    #[error("cannot read or write {0}")]
    File(PathBuf, #[source] io::Error),
    /// A program is missing.
    #[error("cannot start {program}: expected it in PATH; {remedy}")]
    Start {
        /// The program.
        program: String,
        /// Where to get it.
        remedy: &'static str,
        /// Why it did not start.
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("{command} ended with {status}: {errors}")]
    Failed {
        /// The program with its arguments.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// What it wrote to stderr.
        errors: String,
    },
    /// The tag and the version differ.
    #[error("invalid tag {tag}: expected v{version}, the version in Cargo.toml of that tag")]
    Tag {
        /// The tag.
        tag: String,
        /// The version of `Cargo.toml`.
        version: String,
    },
    /// The release program may differ from that of the tag.
    #[error("tag {tag} is not the commit that is checked out: run `git checkout {tag}` first")]
    NotCheckedOut {
        /// The tag.
        tag: String,
    },
    /// The tree has changes.
    #[error("the tree differs from its commit, for example in {0}: expected a clean tree")]
    Dirty(String),
    /// Files repeat another version.
    #[error("{0} names another version than Cargo.toml: run `cargo lab docs` before the tag")]
    Version(PathBuf),
    /// The chart has no place for the image's digest.
    #[error("cannot pin the image in {0}: expected an empty `digest`, and the image by its tag")]
    NotPinned(PathBuf),
    /// The changelog lacks the version.
    #[error(
        "CHANGELOG.md lacks the section of {0}: expected the line `## [{0}] - DATE` with text \
         below it and a date such as 2026-01-31"
    )]
    Changelog(String),
    /// The output directory has files.
    #[error("the directory {0} has files: expected an empty or missing one, such as {0}/new")]
    Out(PathBuf),
    /// A platform that the recipe does not know.
    #[error("invalid target {0}: expected {1}")]
    Platform(String, String),
    /// The standard library of the target is missing.
    #[error("target {0} is not installed: it needs {1}")]
    NotInstalled(&'static str, &'static str),
    /// A program needs shared libraries.
    #[error("{0} is not static: expected no program interpreter in its headers")]
    NotStatic(PathBuf),
    /// A program has no list of its dependencies.
    #[error("{0} has no audit data: expected a program of `cargo auditable build`")]
    NoAuditData(PathBuf, #[source] auditable_info::Error),
    /// The SBOM is incomplete.
    #[error("{0} lacks {1}, which the program contains")]
    Bill(PathBuf, String),
    /// A JSON file of another form.
    #[error("invalid {0}: expected {1}")]
    Form(PathBuf, &'static str),
    /// The version cannot be read.
    #[error(transparent)]
    Workspace(#[from] VersionError),
    /// The krew manifest cannot be made.
    #[error(transparent)]
    Krew(#[from] KrewError),
}

impl ReleaseError {
    /// Adds the path to an error of the file system.
    pub(super) fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File(path, source)
    }
}
