//! Parses the command line of `kubectl epilogue`, runs one subcommand and sets the exit code.

mod doctor;
mod explain;
mod lint;
mod list;
mod render;
mod source;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit code of `doctor` and `lint` if they could not judge; 1 means that they have findings.
const CANNOT_JUDGE: u8 = 2;

/// Explains what the Epilogue controller does with a Job, finds what is stuck in a cluster, and
/// checks manifests of Jobs.
///
/// Installed on the PATH as kubectl-epilogue, it runs as `kubectl epilogue`.
#[derive(Debug, Parser)]
#[command(name = "kubectl-epilogue", bin_name = "kubectl epilogue", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explain what a Job waits for, what each pod counts as, and what the next sync does
    Explain(explain::Arguments),
    /// Find stuck pods, leftover finalizers and Jobs without a controller, or check one node; says
    /// why and what to do. Exits with 1 if it has findings, and with 2 if it could not judge
    Doctor(doctor::Arguments),
    /// Find mistakes in Jobs and CronJobs, in files or in a cluster: rules that never match, limits
    /// that are missing, annotations without effect. Exits with 1 if it has findings, and with 2 if
    /// it could not read
    Lint(lint::Arguments),
}

/// The text to print, and the exit code.
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
        Command::Lint(arguments) => (lint::run(arguments).await, CANNOT_JUDGE),
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
