//! `lab prepare`: tools installed, control plane built, a logind unpacked. Its parts are the first
//! steps of most sub commands.

use lab::paths::LabDir;
use lab::{binary, elogind, tools};

/// What every sub command needs that runs a control plane.
pub(crate) async fn run() -> anyhow::Result<()> {
    tools::ensure().await?;
    binary::ensure(&LabDir::of_workspace()).await?;
    Ok(())
}

/// What the agent's tests against a real logind need.
pub(crate) async fn logind() -> anyhow::Result<()> {
    tools::ensure().await?;
    elogind::ensure(&LabDir::of_workspace()).await?;
    Ok(())
}

/// Everything, but for a real node.
pub(crate) async fn all() -> anyhow::Result<()> {
    run().await?;
    logind().await
}
