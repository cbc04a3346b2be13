//! Builds programs of the workspace with cargo, which shows its own progress.

use anyhow::{Context as _, ensure};
use lab::cargo::cargo;

/// The debug build of these programs, in `target/debug`. With the features of the whole workspace,
/// as the laboratory itself and the tests are built: nothing is compiled twice.
pub(crate) async fn debug(programs: &[&str]) -> anyhow::Result<()> {
    let programs = programs.iter().flat_map(|program| ["--bin", program]);
    build(&["--workspace"].into_iter().chain(programs).collect::<Vec<_>>()).await
}

/// The release build of a package's programs, in `target/release`.
pub(crate) async fn release(package: &str) -> anyhow::Result<()> {
    build(&["--release", "--package", package]).await
}

async fn build(arguments: &[&str]) -> anyhow::Result<()> {
    let status = cargo().arg("build").args(arguments).status().await.context("start cargo")?;
    ensure!(status.success(), "cargo build {} failed; its errors are above", arguments.join(" "));
    Ok(())
}
