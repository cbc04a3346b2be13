//! `lab prepare`: tools installed, control plane built. The first step of most sub commands.

use lab::paths::LabDir;
use lab::{binary, tools};

pub(crate) async fn run() -> anyhow::Result<()> {
    tools::ensure().await?;
    binary::ensure(&LabDir::of_workspace()).await?;
    Ok(())
}
