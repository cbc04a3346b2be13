//! `kubectl epilogue`: the controller's core, for people. One sub command, one file.

mod explain;
mod render;
mod source;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What the Epilogue controller makes of a Job.
///
/// On the PATH as kubectl-epilogue it is `kubectl epilogue`.
#[derive(Debug, Parser)]
#[command(name = "kubectl-epilogue", bin_name = "kubectl epilogue", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What a Job waits for, which pod counts as what, and what happens next
    Explain(explain::Arguments),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Explain(arguments) => explain::run(arguments).await,
    };
    match outcome {
        Ok(text) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
