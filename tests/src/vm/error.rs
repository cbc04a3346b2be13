//! What can fail around a virtual machine, one variant per operation.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::error::LabError;

/// An operation on a virtual machine that failed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// One of the laboratory's own operations.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The image needs files of root's and mounts.
    #[error("the node's image and machine need root: run this as root")]
    NotRoot,
    /// A command inside the machine failed.
    #[error("`{command}` in the virtual machine ended with {status}: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// Something did not come in time.
    #[error("{what}: not within {within:?}; last seen: {last}; its files: {}", dir.display())]
    Late {
        /// What was awaited.
        what: String,
        /// How long.
        within: Duration,
        /// The last state seen.
        last: String,
        /// Where its console, journal and logs are.
        dir: PathBuf,
    },
    /// The machine's monitor refused or could not be talked to.
    #[error("ask the machine's monitor for {command}: {answer}")]
    Monitor {
        /// The command.
        command: String,
        /// Its answer, or why there is none.
        answer: String,
    },
    /// No machine of that name runs in this checkout.
    #[error("no machine {0} runs; start one: cargo lab up --node vm")]
    NoSuchNode(String),
}
