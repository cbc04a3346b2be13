//! Runs the agent's program: reads the command line, runs the subcommand, and prints why it failed.

use std::process::ExitCode;

use clap::Parser as _;
use epilogue_agent::args::{Args, CheckArgs, Command, LeaveArgs, LeaveStatusArgs, RunArgs};
use epilogue_agent::{check, leave, leave_status, run};
use epilogue_runtime::telemetry;

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run(args) => run_agent(args),
        Command::Check(args) => run_check(args),
        Command::Leave(args) => run_leave(&args),
        Command::LeaveStatus(args) => run_leave_status(&args),
    }
}

fn run_agent(args: RunArgs) -> ExitCode {
    if let Err(error) = telemetry::init(args.log_format, &args.log_level) {
        eprintln!("epilogue-agent: {error}");
        return ExitCode::FAILURE;
    }
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return wrong(&error),
    };
    match run::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "ended");
            ExitCode::FAILURE
        }
    }
}

fn run_check(args: CheckArgs) -> ExitCode {
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return wrong(&error),
    };
    check::run(args, config).unwrap_or_else(|error| {
        eprintln!("epilogue-agent: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_leave(args: &LeaveArgs) -> ExitCode {
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => return wrong(&error),
    };
    leave::run(args, config).unwrap_or_else(|error| {
        eprintln!("epilogue-agent: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_leave_status(args: &LeaveStatusArgs) -> ExitCode {
    leave_status::run(args).unwrap_or_else(|error| {
        eprintln!("epilogue-agent: {error:#}");
        ExitCode::FAILURE
    })
}

/// Prints why the command line is invalid.
fn wrong(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("epilogue-agent: {error}");
    ExitCode::from(2)
}
