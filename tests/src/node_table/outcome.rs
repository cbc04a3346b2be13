//! Reads the final state of each role's pod from the API, and renders the table. Pure but for
//! reading the API.

use std::fmt::Write as _;

use anyhow::Context as _;

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
    /// Counts and replacement of its Job, if it has one.
    pub job: Option<JobRow>,
}

/// The result of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRow {
    /// `status.failed`.
    pub failed: i32,
    /// `status.succeeded`.
    pub succeeded: i32,
    /// `Complete` or `Failed`, once it is True.
    pub condition: String,
    /// Phase and node of the replacement.
    pub replacement: Option<String>,
}

/// The ends of all roles.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order of [`ROLES`].
    pub rows: Vec<Row>,
    /// Status, reason and message of the node's Ready condition.
    pub node: String,
    /// Keys of the node's taints.
    pub taints: Vec<String>,
    /// How long each part took.
    pub took: Stopwatch,
}

impl Outcome {
    pub(super) async fn of(stage: &Stage) -> anyhow::Result<Self> {
        let mut rows = Vec::new();
        for (role, _) in ROLES {
            let Some(seen) = stage.last(role) else { continue };
            let job = if role.starts_with("job-") {
                Some(job_row(stage, role, &seen.pod).await?)
            } else {
                None
            };
            rows.push(Row { role, seen, job });
        }
        let node = stage.node_object().await?;
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let taints = taints.map(|taint| taint.key.clone()).collect();
        Ok(Self {
            rows,
            node: crate::vm::node::ready_condition(&node),
            taints,
            took: stage.took.clone(),
        })
    }

    /// The row of a role.
    ///
    /// # Panics|If the role has no row: all roles have one.
    pub fn row(&self, role: &str) -> &Row {
        self.rows.iter().find(|row| row.role == role).expect("every role must have a row")
    }
}

async fn job_row(stage: &Stage, job: &str, original: &str) -> anyhow::Result<JobRow> {
    let status = stage.jobs().get(job).await.context("read a Job")?.status.unwrap_or_default();
    let finished = |condition: &&k8s_openapi::api::batch::v1::JobCondition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    };
    let condition = status.conditions.iter().flatten().find(finished);
    let pods = stage.pods_of(job).await?;
    let replacement = pods.iter().find(|pod| pod.metadata.name.as_deref() != Some(original));
    Ok(JobRow {
        failed: status.failed.unwrap_or(0),
        succeeded: status.succeeded.unwrap_or(0),
        condition: condition.map(|condition| condition.type_.clone()).unwrap_or_default(),
        replacement: replacement.map(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            let place = if bound { "on the node" } else { "for another node" };
            format!("{} {place}", phase.unwrap_or_default())
        }),
    })
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
        let Some(job) = &self.job else { return String::new() };
        let mut cell = format!("failed {}, succeeded {}", job.failed, job.succeeded);
        if !job.condition.is_empty() {
            let _ = write!(cell, ", {}", job.condition);
        }
        if let Some(replacement) = &job.replacement {
            let _ = write!(cell, ", replacement {replacement}");
        }
        cell
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
