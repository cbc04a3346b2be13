//! Runs the agent's program: reads the command line, runs the subcommand, and prints why it failed.

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;

use clap::Parser as _;
use epilogue_agent::args::{Args, Command, RunArgs};
use epilogue_agent::{check, install_status, leave, leave_status, run};
use epilogue_runtime::telemetry;

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run(args) => run_agent(args),
        Command::Check(args) => run_with(args.config(), |config| check::run(args, config)),
        Command::Leave(args) => run_with(args.config(), |config| leave::run(&args, config)),
        Command::LeaveStatus(args) => {
            run_with(Ok::<_, Infallible>(()), |()| leave_status::run(&args))
        }
        Command::InstallStatus(args) => {
            run_with(Ok::<_, Infallible>(()), |()| install_status::run(&args))
        }
    }
}

fn run_agent(args: RunArgs) -> ExitCode {
    let _log = match telemetry::init(args.log_format, &args.log_level) {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("epilogue-agent: {error}");
            return ExitCode::FAILURE;
        }
    };
    run_with(args.config(), |config| {
        run::run(config).map(|()| ExitCode::SUCCESS).or_else(|error| {
            tracing::error!(error = format!("{error:#}"), "ended");
            Ok(ExitCode::FAILURE)
        })
    })
}

/// Runs a subcommand, and prints why the command line is invalid or the subcommand failed.
fn run_with<C>(
    config: Result<C, impl Error>,
    command: impl FnOnce(C) -> anyhow::Result<ExitCode>,
) -> ExitCode {
    match config.map(command) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            eprintln!("epilogue-agent: {error:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("epilogue-agent: {error}");
            ExitCode::from(2)
        }
    }
}
