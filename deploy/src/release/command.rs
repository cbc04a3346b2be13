//! Runs the programs that a release needs.

use std::process::{Command, Stdio};

use super::error::ReleaseError;

/// Runs a program, and returns what it prints. `remedy` says where a missing one comes from.
pub(super) fn output(command: &mut Command, remedy: &'static str) -> Result<String, ReleaseError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| start(command, remedy, source))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ended(command, output.status, errors.trim())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program whose progress is shown.
pub(super) fn show(command: &mut Command, remedy: &'static str) -> Result<(), ReleaseError> {
    let status = command.status().map_err(|source| start(command, remedy, source))?;
    ended(command, status, "its errors are above")
}

fn start(command: &Command, remedy: &'static str, source: std::io::Error) -> ReleaseError {
    let program = command.get_program().to_string_lossy().into_owned();
    ReleaseError::Start { program, remedy, source }
}

fn ended(
    command: &Command,
    status: std::process::ExitStatus,
    errors: &str,
) -> Result<(), ReleaseError> {
    if status.success() {
        return Ok(());
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    Err(ReleaseError::Failed { command: words.join(" "), status, errors: errors.to_owned() })
}
