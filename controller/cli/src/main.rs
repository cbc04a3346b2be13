//! `kubectl epilogue`: the controller's core, for people. One sub command, one file.

mod doctor;
mod explain;
mod render;
mod source;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Of `doctor`, where it could not judge: 1 says that it found something.
const CANNOT_JUDGE: u8 = 2;

/// What the Epilogue controller makes of a Job, and what stands still in a cluster.
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
    /// What stands still, why, and what to do: pods that do not end, finalizers of dead
    /// controllers, Jobs that nobody serves; or how it is with a node. Exits with 1 if it found
    /// something, and with 2 if it could not look
    Doctor(doctor::Arguments),
}

/// What is printed, and the exit code.
#[derive(Debug)]
struct Answer {
    text: String,
    code: u8,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let (outcome, code_of_errors) = match Arguments::parse().command {
        Command::Explain(arguments) => {
            (explain::run(arguments).await.map(|text| Answer { text, code: 0 }), 1)
        }
        Command::Doctor(arguments) => (doctor::run(arguments).await, CANNOT_JUDGE),
    };
    match outcome {
        Ok(Answer { text, code }) => {
            println!("{}", text.trim_end());
            ExitCode::from(code)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(code_of_errors)
        }
    }
}
