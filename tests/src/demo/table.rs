//! Draws the table of the demo: redrawn in place on a terminal, otherwise printed on each change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::api::batch::v1::JobStatus;

use super::jobs::End;

/// One Job and its pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    name: &'static str,
    active: i32,
    ready: i32,
    terminating: i32,
    succeeded: i32,
    failed: i32,
    condition: String,
    phases: BTreeMap<String, usize>,
}

impl Row {
    pub(super) fn new(
        name: &'static str,
        status: JobStatus,
        phases: BTreeMap<String, usize>,
    ) -> Self {
        let mut conditions = status.conditions.into_iter().flatten();
        let last = conditions.rfind(|each| each.status == "True");
        Self {
            name,
            active: status.active.unwrap_or(0),
            ready: status.ready.unwrap_or(0),
            terminating: status.terminating.unwrap_or(0),
            succeeded: status.succeeded.unwrap_or(0),
            failed: status.failed.unwrap_or(0),
            condition: last.map(|each| each.type_).unwrap_or_default(),
            phases,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.condition == "Complete" || self.condition == "Failed"
    }

    pub(super) fn ends_as(&self, end: &End) -> bool {
        self.condition == end.condition
            && self.succeeded == end.succeeded
            && self.failed == end.failed
    }
}

/// The output of the table.
pub(super) struct Screen {
    redraws: bool,
    /// Lines of the current table, to be drawn over.
    lines: usize,
    shown: Vec<Row>,
}

impl Screen {
    pub(super) fn new(redraws: bool) -> Self {
        Self { redraws, lines: 0, shown: Vec::new() }
    }

    /// Shows the table if it has changed.
    pub(super) fn show(&mut self, elapsed: Duration, rows: &[Row]) {
        if !self.redraws && self.shown == rows {
            return;
        }
        let text = render(elapsed, rows);
        if self.redraws && self.lines > 0 {
            // Moves up to the first line of the table, and clears from there.
            print!("\x1b[{}A\x1b[J", self.lines);
        }
        println!("{text}");
        self.lines = text.lines().count() + 1;
        self.shown = rows.to_vec();
    }

    /// Prints an event above the table.
    pub(super) fn say(&mut self, what: &str) {
        if self.redraws && self.lines > 0 {
            print!("\x1b[{}A\x1b[J", self.lines);
            self.lines = 0;
        }
        println!("→ {what}");
    }
}

fn render(elapsed: Duration, rows: &[Row]) -> String {
    let mut text = format!(
        "{:>5.1} s      ACTIVE READY TERMINATING SUCCEEDED FAILED  {:<20} PODS\n",
        elapsed.as_secs_f64(),
        "CONDITION",
    );
    for row in rows {
        let phases: Vec<String> =
            row.phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        let written = writeln!(
            text,
            "{:<12} {:>7} {:>5} {:>11} {:>9} {:>6}  {:<20} {}",
            row.name,
            row.active,
            row.ready,
            row.terminating,
            row.succeeded,
            row.failed,
            row.condition,
            phases.join(", "),
        );
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_every_counter_the_last_condition_and_the_phases() {
        let status: JobStatus = serde_json::from_value(serde_json::json!({
            "active": 1, "ready": 2, "terminating": 3, "succeeded": 4, "failed": 5,
            "conditions": [{"type": "FailureTarget", "status": "True"},
                           {"type": "Suspended", "status": "False"}],
        }))
        .expect("a status");
        let phases = BTreeMap::from([("Running".to_owned(), 6), ("Failed".to_owned(), 7)]);
        let text = render(Duration::from_millis(1500), &[Row::new("a", status, phases)]);
        let words: Vec<&str> = text.lines().nth(1).expect("a row").split_whitespace().collect();
        let expected =
            ["a", "1", "2", "3", "4", "5", "FailureTarget", "7", "Failed,", "6", "Running"];
        assert_eq!(words, expected);
    }
}
