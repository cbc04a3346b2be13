//! Parses the command line, runs the controller, and sets the exit code.

mod args;
mod args_error;
mod dispatch;
mod election;
mod events;
mod execute;
mod informers;
mod metrics;
mod orphan_finalizers;
mod pod_pages;
mod podgc;
mod readiness;
mod run;
mod sync;
mod traces;
mod unreadable;
mod wake_ups;
mod workqueue;

use std::process::ExitCode;

use clap::Parser as _;
use epilogue_runtime::telemetry;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = telemetry::init(args.log_format, &args.log_level) {
        eprintln!("epilogue-controller: {error}");
        return ExitCode::FAILURE;
    }
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("epilogue-controller: {error}");
            return ExitCode::from(2);
        }
    };
    match run::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "ended");
            ExitCode::FAILURE
        }
    }
}
