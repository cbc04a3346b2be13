//! How `lab node start` asks the lab that holds a machine to start it again: by files in the
//! machine's directory. The lab itself has to start it, because the machine ends with the lab.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::LabError;
use crate::eventually::observe_until;

/// Exists from the request to its answer.
const REQUEST: &str = "start-request";
/// The answer: empty if the machine runs, otherwise why it does not.
const ANSWER: &str = "start-answer";

fn paths(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join(REQUEST), dir.join(ANSWER))
}

/// Asks for the machine whose files are in `dir`.
pub fn ask(dir: &Path) -> Result<(), LabError> {
    let (request, answer) = paths(dir);
    match std::fs::remove_file(&answer) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(LabError::file("remove", answer)(error));
        }
        _ => {}
    }
    std::fs::write(&request, "").map_err(LabError::file("write", request))
}

/// Whether a request waits for its answer.
pub fn is_asked(dir: &Path) -> bool {
    dir.join(REQUEST).exists()
}

/// Answers the request: with an error's text if the machine does not run.
pub fn answer(dir: &Path, outcome: Result<(), String>) -> Result<(), LabError> {
    let (request, answer) = paths(dir);
    let text = outcome.err().unwrap_or_default();
    std::fs::write(&answer, text).map_err(LabError::file("write", answer))?;
    std::fs::remove_file(&request).map_err(LabError::file("remove", request))
}

/// Waits for the answer; `None` if none comes in time.
pub async fn answered(dir: &Path, within: Duration) -> Option<Result<(), String>> {
    let (request, answer) = paths(dir);
    let seen = observe_until(within, async || request.exists(), |waits| !waits).await;
    let text = seen.ok().and_then(|_| std::fs::read_to_string(&answer).ok())?;
    Some(if text.is_empty() { Ok(()) } else { Err(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_request_stands_until_its_answer_which_says_what_happened() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        assert!(!is_asked(dir));
        for outcome in [Err("no disk".to_owned()), Ok(())] {
            ask(dir).expect("must be writable");
            assert!(is_asked(dir));
            assert_eq!(answered(dir, Duration::ZERO).await, None, "not that of the last request");
            answer(dir, outcome.clone()).expect("must be writable");
            assert!(!is_asked(dir));
            assert_eq!(answered(dir, SOON).await, Some(outcome));
        }
    }
}
