//! Shared parts of the stories of node ends: `lab::node_table` plays them on the machine of their
//! module, and they are judged before the next one may use it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lab::node_table::{self, Case, Install, Outcome, ROLES, Row, Scenario, Table};

use crate::stage::{self, message};
use crate::world::kit;

/// The agent leaves a DaemonSet's pod alone: it would come back at once.
const LEFT: &str = "daemon";
/// It had ended by itself.
const DONE: &str = "done";

/// Plays the scenario on the module's machine and judges its outcome.
pub(crate) fn play(
    module: &'static str,
    graceful: bool,
    install: Install,
    scenario: Scenario,
    judge: fn(&Outcome),
) {
    let (text, verdict) = stage::play(module, async move |stage: &mut Option<Table>| {
        let table = match stage.take() {
            Some(table) => Ok(table),
            None => Table::set(&kit().await, graceful, Some(install)).await,
        };
        let mut table = table.unwrap_or_else(|error| panic!("{error:#}"));
        let dir = table.dir().display().to_string();
        let played = table.play(scenario).await;
        let outcome = played.unwrap_or_else(|error| panic!("{error:#}; files: {dir}"));
        let case = Case { scenario, graceful, agent: Some(install) };
        let text = format!("{}\nfiles: {dir}", node_table::render(&case.to_string(), &outcome));
        let verdict = catch_unwind(AssertUnwindSafe(|| judge(&outcome)));
        if verdict.is_ok() && !table.is_off() {
            *stage = Some(table);
        } else {
            table.strike().await.unwrap_or_else(|error| panic!("{error:#}"));
        }
        (text, verdict.map_err(|panic| message(&*panic)))
    });
    println!("{text}");
    verdict.unwrap_or_else(|message| panic!("{message}"));
}

/// Terminal, because of a disruption.
fn is_reported(row: &Row) -> bool {
    row.seen.is_terminal() && row.seen.is_disrupted()
}

/// Every one of these pods is terminal because of a disruption.
pub(crate) fn are_reported(outcome: &Outcome, roles: &[&str]) {
    for role in roles {
        let row = outcome.row(role);
        assert!(is_reported(row), "{row:?}");
    }
}

/// Every pod that the disruption terminated shows it, and no Job whose policy ignores disruptions
/// counts one. A pod that had ended before keeps its own end.
pub(crate) fn all_are_reported(outcome: &Outcome) {
    all_but_are_reported(outcome, &[]);
}

/// The same, except for these roles, which the agent leaves to the machine.
pub(crate) fn all_but_are_reported(outcome: &Outcome, left: &[&str]) {
    let ended = ROLES.iter().map(|(role, _)| *role).filter(|role| ![LEFT, DONE].contains(role));
    are_reported(outcome, &ended.filter(|role| !left.contains(role)).collect::<Vec<_>>());
    let done = outcome.row(DONE);
    assert!(done.seen.phase == "Succeeded" && done.seen.disruption.is_none(), "{done:?}");
    for role in ["job-obeys", "job-stubborn"] {
        let row = outcome.row(role);
        assert!(row.seen.phase == "Failed", "{row:?}");
        no_job_counts_it(row);
    }
    // It exited with 0 on SIGTERM, which is a success, as upstream has it.
    let leaves = outcome.row("job-leaves");
    let job = leaves.job.as_ref().expect("a Job's row");
    assert!(leaves.seen.phase == "Succeeded" && job.failed == 0, "{leaves:?}");
}

/// The Job does not count the pod as a failure, and replaces it unless the pod succeeded.
fn no_job_counts_it(row: &Row) {
    let job = row.job.as_ref().expect("a Job's row");
    assert!(job.failed == 0 && job.condition != "Failed", "{row:?}");
    assert!(job.replacement.is_some() || row.seen.phase == "Succeeded", "{row:?}");
}

/// After the boot the agent reports the pods that cannot run again, and no Job counts one.
pub(crate) fn boot_reports_those_that_cannot_run_again(outcome: &Outcome) {
    are_reported(outcome, &["job-obeys", "job-leaves", "job-stubborn", "never"]);
    for role in ["job-obeys", "job-leaves", "job-stubborn"] {
        no_job_counts_it(outcome.row(role));
    }
    no_mark_is_left(outcome);
}

/// The Job whose pod exited with 0 is complete.
pub(crate) fn leaver_is_complete(outcome: &Outcome) {
    let leaves = outcome.row("job-leaves");
    let job = leaves.job.as_ref().expect("a Job's row");
    assert!(job.condition == "Complete", "{leaves:?}");
}

/// Those of the node lifecycle controller.
const UPSTREAM_TAINTS: [&str; 2] =
    ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"];

/// The node admits pods again, and no live pod is marked.
pub(crate) fn no_mark_is_left(outcome: &Outcome) {
    // After a slow boot, upstream removes its own taints a few seconds after the node is ready.
    let lasts = |taint: &&String| !UPSTREAM_TAINTS.contains(&taint.as_str());
    let left = outcome.taints.iter().find(lasts);
    assert!(outcome.node == "True" && left.is_none(), "{outcome:?}");
    for row in outcome.rows.iter().filter(|row| !row.seen.is_terminal() && !row.seen.gone) {
        assert!(!row.seen.is_disrupted(), "{row:?}");
    }
}
