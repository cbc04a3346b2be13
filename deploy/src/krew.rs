//! Makes the manifest by which krew installs the plugin, from the archives of a release.

use std::fs;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use serde_json::Value;
use thiserror::Error;

use crate::ManifestError;

/// The version of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The directory of releases; an archive is at `vVERSION/NAME` below it.
pub const RELEASES: &str = "https://epilogue.dev/releases";

/// Why there is no manifest.
#[derive(Debug, Error)]
pub enum KrewError {
    /// The template cannot be read.
    #[error(transparent)]
    Template(#[from] ManifestError),
    /// An archive cannot be read.
    #[error("cannot read the archive {0}")]
    Archive(PathBuf, #[source] std::io::Error),
    /// The template has another form.
    #[error("invalid template {0}: expected {1}")]
    Form(PathBuf, &'static str),
    /// The manifest cannot be written as YAML.
    #[error("cannot write the manifest as YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
}

/// The template, which lacks version, addresses and checksums.
pub fn template() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("krew/epilogue.yaml")
}

/// The name of a platform's archive, such as `kubectl-epilogue-vVERSION-linux-amd64.tar.gz`.
pub fn archive(os: &str, arch: &str) -> String {
    format!("kubectl-epilogue-v{VERSION}-{os}-{arch}.tar.gz")
}

/// The manifest with the checksums of the archives in this directory. Every platform of the
/// template needs its archive.
pub fn manifest(archives: &Path) -> Result<Value, KrewError> {
    manifest_from(&template(), archives, None)
}

/// The same from a template, for these architectures of Linux only, if there are any.
pub fn manifest_from(
    template: &Path,
    archives: &Path,
    architectures: Option<&[&str]>,
) -> Result<Value, KrewError> {
    let form = |expected| KrewError::Form(template.to_owned(), expected);
    let mut documents = crate::documents(template)?;
    let mut manifest = documents.pop().ok_or_else(|| form("one document"))?;
    manifest["spec"]["version"] = format!("v{VERSION}").into();
    let platforms = manifest["spec"]["platforms"].as_array_mut();
    let platforms = platforms.ok_or_else(|| form("a list in spec.platforms"))?;
    platforms.retain(|platform| {
        let labels = &platform["selector"]["matchLabels"];
        let is_listed = |list: &[&str]| list.iter().any(|arch| labels["arch"] == *arch);
        architectures.is_none_or(|list| labels["os"] == "linux" && is_listed(list))
    });
    for platform in platforms {
        let labels = &platform["selector"]["matchLabels"];
        let (Some(os), Some(arch)) = (labels["os"].as_str(), labels["arch"].as_str()) else {
            return Err(form("os and arch in matchLabels of each platform"));
        };
        let name = archive(os, arch);
        let path = archives.join(&name);
        let bytes = fs::read(&path).map_err(|error| KrewError::Archive(path, error))?;
        platform["uri"] = format!("{RELEASES}/v{VERSION}/{name}").into();
        platform["sha256"] = sha256(&bytes).into();
    }
    Ok(manifest)
}

/// The manifest as YAML.
pub fn yaml(archives: &Path) -> Result<String, KrewError> {
    Ok(serde_yaml_ng::to_string(&manifest(archives)?)?)
}

/// The checksum in lower-case hexadecimal, as `sha256sum` prints it.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
