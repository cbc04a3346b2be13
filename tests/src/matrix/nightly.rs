//! The last run of `.ci/nightly`: `tests/nightly.json`, a section of `docs/versions.md`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{read, write};
use crate::error::LabError;
use crate::paths::workspace_root;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nightly {
    /// The day of its end, such as `2026-11-23`.
    pub date: String,
    /// The commit.
    pub commit: String,
    /// The commit at which its upgrades began.
    pub former: String,
    /// Its steps, in their order.
    pub steps: Vec<Step>,
}

/// A command of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its command line.
    pub name: String,
    /// Whether it ended with 0.
    pub passed: bool,
    /// How long it took.
    pub seconds: u64,
}

impl Nightly {
    /// The last run; `None` if none is recorded.
    pub fn read() -> Result<Option<Self>, LabError> {
        read(&path())
    }

    /// Replaces the last run.
    pub fn write(&self) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self).expect("a run must be JSON") + "\n";
        write(&path(), &text)
    }
}

/// The steps in the file of `.ci/steps`: name, seconds and status, separated by tabs. `None` if a
/// line has another form, or if there is no line.
pub fn steps(text: &str) -> Option<Vec<Step>> {
    let step = |line: &str| {
        let mut fields = line.split('\t');
        let (name, seconds, status) = (fields.next()?, fields.next()?, fields.next()?);
        let (seconds, status): (u64, u8) = (seconds.parse().ok()?, status.parse().ok()?);
        let whole = fields.next().is_none() && !name.is_empty();
        whole.then(|| Step { name: name.to_owned(), passed: status == 0, seconds })
    };
    let steps: Option<Vec<Step>> = text.lines().map(step).collect();
    steps.filter(|steps| !steps.is_empty())
}

/// The section of the page.
pub(super) fn section(nightly: Option<&Nightly>) -> String {
    let Some(Nightly { date, commit, former, steps }) = nightly else {
        return "No run is recorded yet.\n".to_owned();
    };
    let failed = steps.iter().filter(|step| !step.passed).count();
    let result = match failed {
        0 => "all steps passed".to_owned(),
        _ => format!("{failed} of {} steps failed", steps.len()),
    };
    let mut text = format!(
        "The last run ended on {date}, at commit `{}`: {result}.\n\
         Its upgrades began at `{}`.\n\n\
         | step | result | minutes |\n| --- | --- | --- |\n",
        short(commit),
        short(former)
    );
    for Step { name, passed, seconds } in steps {
        let result = if *passed { "passed" } else { "failed" };
        let _ = writeln!(text, "| `{name}` | {result} | {} |", seconds.div_ceil(60));
    }
    text
}

fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

fn path() -> PathBuf {
    workspace_root().join("tests/nightly.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: &str = "cargo lab test --all\t7261\t0\ncargo lab matrix\t59\t1\n";

    fn nightly(text: &str) -> Nightly {
        Nightly {
            date: "2026-01-02".to_owned(),
            commit: "0123456789abcdef".to_owned(),
            former: "fedcba9876543210".to_owned(),
            steps: steps(text).expect("steps"),
        }
    }

    #[test]
    fn the_section_has_the_date_the_commit_and_each_step() {
        let expected = "\
The last run ended on 2026-01-02, at commit `0123456789ab`: 1 of 2 steps failed.
Its upgrades began at `fedcba987654`.

| step | result | minutes |
| --- | --- | --- |
| `cargo lab test --all` | passed | 122 |
| `cargo lab matrix` | failed | 1 |
";
        assert_eq!(section(Some(&nightly(STEPS))), expected);
        let passed = section(Some(&nightly("cargo lab matrix\t60\t0\n")));
        assert!(passed.contains(": all steps passed.\n"), "{passed}");
        assert_eq!(section(None), "No run is recorded yet.\n");
    }

    #[test]
    fn a_file_of_another_form_is_no_run() {
        for text in ["", "a\n", "a\t1\n", "a\tx\t0\n", "a\t1\t0\tb\n", "\t1\t0\n"] {
            assert_eq!(steps(text), None, "{text:?}");
        }
    }
}
