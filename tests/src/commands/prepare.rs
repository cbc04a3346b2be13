//! `lab prepare`: installs the tools, builds upstream's programs, unpacks a logind and promtool.
//! Its parts are the first steps of most sub commands.

use lab::binary::{self, GoProgram};
use lab::kubernetes::Version;
use lab::paths::LabDir;
use lab::{debian, tools};

/// Installs the tools, and builds the upstream programs that a command runs.
pub(crate) async fn run(programs: &[GoProgram]) -> anyhow::Result<()> {
    run_of(Version::DEFAULT, programs).await
}

/// The same with programs for a lab of this version.
pub(crate) async fn run_of(version: Version, programs: &[GoProgram]) -> anyhow::Result<()> {
    tools::ensure().await?;
    binary::ensure(&LabDir::of_workspace(), version, programs).await?;
    Ok(())
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only the tools for compiling; upstream's programs are built when they are needed
    #[arg(long)]
    tools: bool,
}

/// Prepares everything except the image of a real node.
pub(crate) async fn all(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.tools {
        return Ok(tools::ensure().await?);
    }
    run(&GoProgram::ALL).await?;
    tools::ensure().await?;
    let labs = LabDir::of_workspace();
    debian::ensure(debian::ELOGIND, &labs.elogind()).await?;
    Ok(debian::ensure(debian::PROMTOOL, &labs.promtool()).await?)
}
