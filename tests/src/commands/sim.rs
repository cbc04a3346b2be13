//! `lab sim`: runs seeds of the simulation, a separate program. Only that program waits for its
//! optimised cores.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::Context as _;
use lab::cargo::cargo;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// The options that `cargo lab sim --help` lists
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Replaces this process by the program, so that its exit code and Ctrl-C are its own.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut simulate = cargo().into_std();
    // Not by package, to get the features of the whole workspace, as `cargo lab` itself.
    simulate.args(["run", "--quiet", "--bin", "simulate", "--"]).args(&arguments.options);
    Err(simulate.exec()).context("start cargo")
}
