//! `lab sim`: seeds of the simulation, which is a program of its own: its cores are optimised, and
//! nothing else here waits for them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::Context as _;
use lab::cargo::cargo;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// What `cargo lab sim --help` says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Becomes the program, so that its exit code and Ctrl-C are its own.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut simulate = cargo().into_std();
    // By no package, for the features of the whole workspace, as `cargo lab` itself.
    simulate.args(["run", "--quiet", "--bin", "simulate", "--"]).args(&arguments.options);
    Err(simulate.exec()).context("start cargo")
}
