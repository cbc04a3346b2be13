//! Builds programs of the workspace with cargo, which shows its own progress.

use anyhow::{Context as _, ensure};
use lab::cargo::cargo;
use lab::paths::HOST;

/// The debug build of these programs, in `target/debug`. With the features of the whole workspace,
/// as the laboratory itself and the tests are built: no dependency is compiled twice. Their cores
/// are not optimised as they are for tests, which saves a cold machine a minute.
pub(crate) async fn debug(programs: &[&str]) -> anyhow::Result<()> {
    let cores = ["agent-core", "controller-core", "epilogue-common"];
    let settings = cores.map(|core| format!("profile.dev.package.{core}.opt-level=0"));
    let settings = settings.iter().flat_map(|setting| ["--config", setting]);
    let programs = programs.iter().flat_map(|program| ["--bin", program]);
    build(&settings.chain(["--workspace"]).chain(programs).collect::<Vec<_>>()).await
}

/// The release build of a package's programs, in `target/release`.
pub(crate) async fn release(package: &str) -> anyhow::Result<()> {
    build(&["--release", "--package", package]).await
}

/// A package's programs as they ship for every node: small, and static, so that no page of a shared
/// library counts as theirs.
pub(crate) async fn small(package: &str) -> anyhow::Result<()> {
    let arguments = ["--profile", "small", "--target", HOST, "--package", package];
    let status = cargo()
        .arg("build")
        .args(arguments)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status()
        .await
        .context("start cargo")?;
    ensure!(status.success(), "cargo build {} failed; its errors are above", arguments.join(" "));
    Ok(())
}

async fn build(arguments: &[&str]) -> anyhow::Result<()> {
    let status = cargo().arg("build").args(arguments).status().await.context("start cargo")?;
    ensure!(status.success(), "cargo build {} failed; its errors are above", arguments.join(" "));
    Ok(())
}
