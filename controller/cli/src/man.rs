//! Writes man pages: one for the program, and one for each subcommand.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory for the pages, such as ~/.local/share/man/man1; it is created if it is missing
    #[arg(short, long, value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the pages, and returns what to print.
pub(crate) fn write(arguments: &Arguments, command: Command) -> anyhow::Result<String> {
    let directory = &arguments.directory;
    let failed = || format!("cannot write pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(command, directory).with_context(failed)?;
    Ok(format!("wrote kubectl-epilogue*.1 to {}", directory.display()))
}
