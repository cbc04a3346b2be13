//! Defines the errors around a virtual machine, one variant per operation.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::error::LabError;

/// A failed operation on a virtual machine.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// An operation of the laboratory itself.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The image needs files owned by root, and mounts.
    #[error("the node's image and machine need root: run this as root")]
    NotRoot,
    /// A command inside the machine failed.
    #[error("`{command}` in the virtual machine ended with {status}: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its stderr.
        stderr: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {within:?}; last seen: {last}; its files: {}", dir.display())]
    Late {
        /// What the caller waited for.
        what: String,
        /// How long.
        within: Duration,
        /// The last state seen.
        last: String,
        /// Where its console, journal and logs are.
        dir: PathBuf,
    },
    /// The machine's monitor refused or could not be reached.
    #[error("ask the machine's monitor for {command}: {answer}")]
    Monitor {
        /// The command.
        command: String,
        /// Its answer, or why it gave no answer.
        answer: String,
    },
    /// The machine cannot be started again while it runs.
    #[error("the machine runs; its files: {}", .0.display())]
    Runs(PathBuf),
    /// No machine of that name runs in this checkout.
    #[error("no machine {0} runs; start one: cargo lab up --node vm")]
    NoSuchNode(String),
}
