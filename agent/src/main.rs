//! The agent's program: reads the command line, does what it says, and says why it could not.

mod args;
mod check;
mod host;
mod source;
mod table;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let Command::Check(args) = Args::parse().command;
    let bands = match args.bands() {
        Ok(bands) => bands,
        Err(error) => {
            eprintln!("epilogue-agent: {error}");
            return ExitCode::from(2);
        }
    };
    check::run(args, bands).unwrap_or_else(|error| {
        eprintln!("epilogue-agent: {error:#}");
        ExitCode::FAILURE
    })
}
