//! `lab fuzz`: runs the targets of the suite `fuzz` for a chosen time.

use std::os::unix::process::CommandExt as _;

use anyhow::Context as _;
use lab::cargo::cargo;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long each target takes, in seconds
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// A target: jobs, pods, nodes, watches, indexes, durations, quantities, announcements; all of
    /// them by default
    target: Option<String>,
}

/// Replaces this process by the test program, so that its exit code and Ctrl-C are its own.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let target = arguments.target.as_deref().unwrap_or_default();
    let mut tests = cargo().into_std();
    tests
        .args(["test", "--quiet", "--workspace", "--test", "suites", "--"])
        .arg(format!("fuzz::{target}"))
        .args(["--nocapture"])
        .env("EPILOGUE_FUZZ_SECONDS", arguments.seconds.to_string());
    Err(tests.exec()).context("start cargo")
}
