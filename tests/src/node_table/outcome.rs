//! Reads the final state of each role's pod from the API, and renders the table. Pure but for
//! reading the API.

use std::fmt::{self, Write as _};

use jiff::Timestamp;

use super::ledger::{JobRow, Replaced};
use super::pods::ROLES;
use super::stage::Stage;
use crate::stopwatch::Stopwatch;
use crate::vm::Seen;

/// The end of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The role's name.
    pub role: &'static str,
    /// The last state of its pod.
    pub seen: Seen,
    /// When the API first showed DisruptionTarget.
    pub marked_at: Option<Timestamp>,
    /// When the API first showed a terminal phase and DisruptionTarget.
    pub reported_at: Option<Timestamp>,
    /// How many pods the role has had on the node.
    pub pods: usize,
    /// What its Job did, if it has one.
    pub job: Option<JobRow>,
}

/// The ends of all roles.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order of [`ROLES`].
    pub rows: Vec<Row>,
    /// Status, reason and message of the node's Ready condition, or `removed`.
    pub node: String,
    /// Keys of the node's taints.
    pub taints: Vec<String>,
    /// When the machine was off, if it stays off.
    pub off_at: Option<Timestamp>,
    /// When the machine began its last boot, by its own clock, if that was a part of the story.
    pub booted_at: Option<Timestamp>,
    /// How long each part took.
    pub took: Stopwatch,
}

impl Outcome {
    pub(super) async fn of(stage: &Stage) -> anyhow::Result<Self> {
        let mut rows = Vec::new();
        for (role, _) in ROLES {
            let Some(seen) = stage.last(role) else { continue };
            let history = stage.scene.watcher.history(&seen.pod);
            let reported = history.iter().find(|seen| seen.is_terminal() && seen.is_disrupted());
            let reported_at = reported.map(|seen| seen.at);
            let marked_at = history.iter().find(|seen| seen.is_disrupted()).map(|seen| seen.at);
            let pods = stage.pods_of(role);
            rows.push(Row { role, seen, marked_at, reported_at, pods, job: stage.job(role) });
        }
        let node = stage.node_object().await?;
        let taints = node.iter().filter_map(|node| node.spec.as_ref()?.taints.as_ref()).flatten();
        let taints = taints.map(|taint| taint.key.clone()).collect();
        let ready = node.as_ref().map(crate::vm::node::ready_condition);
        Ok(Self {
            rows,
            node: ready.unwrap_or_else(|| "removed".to_owned()),
            taints,
            off_at: stage.off_at,
            booted_at: stage.booted_at,
            took: stage.scene.took.clone(),
        })
    }

    /// The row of a role.
    ///
    /// # Panics|If the role has no row: all roles have one.
    pub fn row(&self, role: &str) -> &Row {
        self.rows.iter().find(|row| row.role == role).expect("every role must have a row")
    }
}

impl Row {
    /// The pod's end in the API, in one cell.
    pub fn pod_cell(&self) -> String {
        let seen = &self.seen;
        let mut cell = seen.phase.clone();
        if !seen.reason.is_empty() {
            let _ = write!(cell, "/{}", seen.reason);
        }
        match &seen.disruption {
            Some((status, reason)) if status == "True" => {
                let _ = write!(cell, " DT={reason}");
            }
            Some((status, _)) => {
                let _ = write!(cell, " DT {status}");
            }
            None => {}
        }
        let container = seen.container.replace("terminated ", "exit ");
        let _ = write!(cell, " ({container}");
        if seen.restarts > 0 {
            let _ = write!(cell, ", restarts {}", seen.restarts);
        }
        cell.push(')');
        if seen.gone {
            cell.push_str(" then removed");
        } else if seen.deleting {
            cell.push_str(" deleting");
        }
        cell
    }

    /// The result of the Job, in one cell.
    pub fn job_cell(&self) -> String {
        self.job.as_ref().map(JobRow::to_string).unwrap_or_default()
    }
}

impl fmt::Display for JobRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "failed {}, succeeded {}", self.failed, self.succeeded)?;
        if self.ignored > 0 {
            write!(formatter, ", ignored {}", self.ignored)?;
        }
        if self.active > 0 {
            write!(formatter, ", active {}", self.active)?;
        }
        if !self.condition.is_empty() {
            write!(formatter, ", {}", self.condition)?;
        }
        if let Some(replacement) = &self.replacement {
            write!(formatter, ", replacement {replacement}")?;
        }
        for replaced in &self.replaced {
            match replaced {
                Replaced::Before => write!(formatter, ", before the end")?,
                Replaced::After(ms) => write!(formatter, ", {ms} ms after the end")?,
            }
        }
        for problem in self.early.iter().chain(&self.wrong) {
            write!(formatter, "; **{problem}**")?;
        }
        Ok(())
    }
}

/// One case, as a table for human readers and for Markdown.
pub fn render(title: &str, outcome: &Outcome) -> String {
    let mut text = format!("### {title}\n\n| pod | in the API | its Job |\n|---|---|---|\n");
    for row in &outcome.rows {
        let _ = writeln!(text, "| {} | {} | {} |", row.role, row.pod_cell(), row.job_cell());
    }
    let _ = writeln!(text, "\nnode Ready: {}; taints: {:?}", outcome.node, outcome.taints);
    let _ = writeln!(text, "took {}", outcome.took);
    text
}
