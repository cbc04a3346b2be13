//! Writes the SBOM of each program by cargo-cyclonedx.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::output;
use super::error::ReleaseError;
use super::platform::Platform;
use super::source::Source;
use super::tools::{Tools, path_with};

/// The programs, and the directory of each one's package.
const PACKAGES: [(&str, &str); 3] = [
    ("epilogue-agent", "agent"),
    ("epilogue-controller", "controller"),
    ("kubectl-epilogue", "controller/cli"),
];

/// Writes an SBOM for each program, and returns the programs with their files.
pub(super) fn write(
    source: &Source,
    tools: &Tools,
    platform: &Platform,
    out: &Path,
) -> Result<Vec<(&'static str, PathBuf)>, ReleaseError> {
    // One call writes a file next to each manifest of the workspace.
    let mut cargo = Command::new("cargo");
    cargo
        .args(["cyclonedx", "-q", "--format", "json", "--spec-version", "1.5"])
        .args(["--override-filename", "sbom", "--target", platform.target])
        .current_dir(&source.directory)
        .env("PATH", path_with(tools.cargo_cyclonedx()?))
        .env("SOURCE_DATE_EPOCH", &source.epoch);
    output(&mut cargo, "see https://rustup.rs")?;
    let mut bills = Vec::new();
    for (program, directory) in PACKAGES {
        let path = source.directory.join(directory).join("sbom.json");
        let text = fs::read_to_string(&path).map_err(ReleaseError::file(&path))?;
        // Not the paths of this machine.
        let text =
            text.replace(&format!("file://{}", source.directory.display()), "file:///epilogue");
        let version = &source.version;
        let bill = out.join(format!("{program}-v{version}-linux-{}.cdx.json", platform.arch));
        fs::write(&bill, text).map_err(ReleaseError::file(&bill))?;
        bills.push((program, bill));
    }
    Ok(bills)
}
