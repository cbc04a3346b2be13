//! The agent's program: reads the command line, does what it says, and says why it could not.

use std::process::ExitCode;

use clap::Parser as _;
use epilogue_agent::args::{Args, Command};
use epilogue_agent::check;

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
