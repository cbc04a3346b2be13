//! Signs by a key of cosign. Nothing is uploaded to a public log, so that a release needs no
//! service of others.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::checksums;
use super::command::show;
use super::error::ReleaseError;
use super::tools::Tools;

/// The public key, in the directory of the release.
pub const PUBLIC_KEY: &str = "cosign.pub";
/// The signature of the checksums.
pub const BUNDLE: &str = "SHA256SUMS.sigstore.json";

/// The services that cosign asks: none.
const NO_SERVICES: &str =
    r#"{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}"#;

/// Writes the public key.
pub(super) fn public_key(tools: &Tools, key: &Path, out: &Path) -> Result<(), ReleaseError> {
    let mut cosign = cosign(tools)?;
    cosign.args(["public-key", "--key"]).arg(key).arg("--outfile").arg(out.join(PUBLIC_KEY));
    show(&mut cosign, BUILT)
}

/// Signs an index of images, and each of its images, in their registry.
pub(super) fn image(tools: &Tools, key: &Path, digest: &str) -> Result<(), ReleaseError> {
    let (_directory, config) = no_services()?;
    let mut cosign = cosign(tools)?;
    cosign.args(["sign", "--yes", "--recursive", "--key"]).arg(key);
    cosign.arg("--signing-config").arg(&config).arg(digest);
    show(&mut cosign, BUILT)
}

/// Signs the checksums, and so all files of the release.
pub(super) fn checksums(tools: &Tools, key: &Path, out: &Path) -> Result<(), ReleaseError> {
    let (_directory, config) = no_services()?;
    let mut cosign = cosign(tools)?;
    cosign.args(["sign-blob", "--yes", "--key"]).arg(key).arg("--signing-config").arg(&config);
    cosign.arg("--bundle").arg(out.join(BUNDLE)).arg(out.join(checksums::FILE));
    show(&mut cosign, BUILT)
}

const BUILT: &str = "it was built from deploy/tools/cosign";

fn cosign(tools: &Tools) -> Result<Command, ReleaseError> {
    Ok(Command::new(tools.cosign()?))
}

/// A file with the services, in a directory that lives as long as the first value.
fn no_services() -> Result<(tempfile::TempDir, PathBuf), ReleaseError> {
    let failed = || ReleaseError::file("the temporary directory");
    let directory = tempfile::tempdir().map_err(failed())?;
    let path = directory.path().join("signing-config.json");
    std::fs::write(&path, NO_SERVICES).map_err(failed())?;
    Ok((directory, path))
}
