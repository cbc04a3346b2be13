//! Builds programs of the workspace with cargo, which shows its own progress.

use anyhow::{Context as _, ensure};
use lab::paths::workspace_root;
use tokio::process::Command;

/// The debug build of a package's programs, in `target/debug`.
pub(crate) async fn debug(package: &str) -> anyhow::Result<()> {
    build(&["--package", package]).await
}

/// The release build of a package's programs, in `target/release`.
pub(crate) async fn release(package: &str) -> anyhow::Result<()> {
    build(&["--release", "--package", package]).await
}

async fn build(arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .arg("build")
        .args(arguments)
        .current_dir(workspace_root())
        .status()
        .await
        .context("start cargo")?;
    ensure!(status.success(), "cargo build {} failed; its errors are above", arguments.join(" "));
    Ok(())
}
