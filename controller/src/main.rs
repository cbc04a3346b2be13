//! Parses the command line, runs the controller, and sets the exit code.

use std::process::ExitCode;

use clap::Parser as _;
use epilogue_controller::args::Args;
use epilogue_controller::run;
use epilogue_runtime::telemetry;

fn main() -> ExitCode {
    let args = Args::parse();
    let _log = match telemetry::init(args.log_format(), args.log_level()) {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("epilogue-controller: {error}");
            return ExitCode::FAILURE;
        }
    };
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
