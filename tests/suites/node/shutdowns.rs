//! Shared parts of the stories of node ends: `lab::node_table` plays them on the machine of their
//! module, and they are judged before the next one may use it. Our controller runs the Jobs of all
//! of them, so each story shows both halves: what the agent reports, and what the Jobs make of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lab::node_table::{self, Case, JobRow, Outcome, ROLES, Table};

use crate::stage::{self, message};
use crate::world::kit;

/// The agent leaves a DaemonSet's pod alone: it would come back at once.
const LEFT: &str = "daemon";
/// It had ended by itself.
const DONE: &str = "done";
/// The Job that replaces a pod, and counts it, as soon as the pod terminates. The others wait for
/// the end, and ignore disruptions.
const HASTY: &str = "job-retries";

/// What the agent reports with its defaults, which leave bare pods to the machine.
pub(crate) const OF_JOBS: [&str; 6] =
    ["job-obeys", "job-retries", "job-leaves", "job-stubborn", "job-mesh", "job-own"];

/// What the agent stops and reports in place of a kubelet.
pub(crate) const STOPPED_BY_AGENT: [&str; 6] =
    ["job-obeys", "job-retries", "job-stubborn", "job-own", "never", "always"];

/// How far the watch may be behind the API.
const WATCH_LAG: Duration = Duration::from_secs(2);

/// Plays the case on the module's machine and judges its outcome. All cases of a module differ in
/// their scenarios only.
pub(crate) fn play(module: &'static str, case: Case, judge: fn(&Outcome)) {
    let (text, verdict) = stage::play(module, async move |stage: &mut Option<Table>| {
        let table = match stage.take() {
            Some(table) => Ok(table),
            None => Table::set(&kit().await, case).await,
        };
        let mut table = table.unwrap_or_else(|error| panic!("{error:#}"));
        let dir = table.dir().display().to_string();
        let played = table.play(case.scenario).await;
        let outcome = played.unwrap_or_else(|error| panic!("{error:#}; files: {dir}"));
        let mut text = node_table::render(&case.to_string(), &outcome);
        let mut verdict = catch_unwind(AssertUnwindSafe(|| {
            judge(&outcome);
            jobs_are_right(&outcome);
        }));
        if verdict.is_ok() && table.is_off() {
            let removed = table.remove_node().await.unwrap_or_else(|error| panic!("{error:#}"));
            text += &node_table::render(&format!("{case}, and its node is removed"), &removed);
            verdict = catch_unwind(AssertUnwindSafe(|| every_job_is_complete(&removed)));
        }
        text += "\nfiles: ";
        text += &dir;
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

/// Every one of these pods is terminal because of a disruption, and was so before the machine was
/// off.
pub(crate) fn are_reported(outcome: &Outcome, roles: &[&str]) {
    for role in roles {
        let row = outcome.row(role);
        assert!(row.seen.is_terminal() && row.seen.is_disrupted(), "{row:?}");
        let reported = row.reported_at.expect("a state with both must have been seen");
        let in_time = outcome.off_at.is_none_or(|off| reported < off + WATCH_LAG);
        assert!(in_time, "the machine was off at {:?}: {row:?}", outcome.off_at);
    }
}

/// Every Job agrees with its pods: each one that ended counts once, or is ignored, none keeps its
/// finalizer, and no replacement came early. A Job whose pod ended is Complete, because the
/// replacement succeeded elsewhere.
fn jobs_are_right(outcome: &Outcome) {
    for row in &outcome.rows {
        let Some(job) = &row.job else { continue };
        let is_hasty = row.role == HASTY;
        let replaced = JobRow {
            succeeded: 1,
            failed: i32::from(is_hasty),
            ignored: usize::from(!is_hasty),
            replacement: Some("Succeeded elsewhere".to_owned()),
            replaced: job.replaced.iter().take(1).copied().collect(),
            ..complete()
        };
        let expected = match row.seen.phase.as_str() {
            "Succeeded" => JobRow { succeeded: 1, ..complete() },
            "Failed" => replaced,
            _ if row.seen.deleting && is_hasty => replaced,
            // It terminates, but its end is not in the API: the Job waits.
            _ if row.seen.deleting => JobRow::default(),
            // It runs again.
            _ => JobRow { active: 1, ..JobRow::default() },
        };
        assert_eq!(*job, expected, "{row:?}");
    }
}

/// The node is gone, and so its last pods failed, by pod GC: no Job waits any more.
fn every_job_is_complete(outcome: &Outcome) {
    jobs_are_right(outcome);
    let jobs: Vec<_> = outcome.rows.iter().filter_map(|row| row.job.as_ref()).collect();
    assert!(jobs.len() > 3 && jobs.iter().all(|job| job.condition == "Complete"), "{outcome:?}");
}

fn complete() -> JobRow {
    JobRow { condition: "Complete".to_owned(), ..JobRow::default() }
}

/// Every pod that the disruption terminated shows it. A pod that had ended before keeps its own
/// end.
pub(crate) fn all_are_reported(outcome: &Outcome) {
    all_but_are_reported(outcome, &[]);
}

/// The same, except for these roles, which the agent leaves to the machine.
pub(crate) fn all_but_are_reported(outcome: &Outcome, left: &[&str]) {
    let ended = ROLES.iter().map(|(role, _)| *role).filter(|role| ![LEFT, DONE].contains(role));
    are_reported(outcome, &ended.filter(|role| !left.contains(role)).collect::<Vec<_>>());
    let done = outcome.row(DONE);
    assert!(done.seen.phase == "Succeeded" && done.seen.disruption.is_none(), "{done:?}");
    for role in ["job-obeys", "job-stubborn", "job-own"] {
        let row = outcome.row(role);
        assert!(row.seen.phase == "Failed", "{row:?}");
    }
    // They exited with 0 on SIGTERM, which is a success, as upstream has it.
    for role in ["job-leaves", "job-mesh"] {
        let leaves = outcome.row(role);
        assert!(leaves.seen.phase == "Succeeded", "{leaves:?}");
    }
}

/// The agent calls no pod Failed whose regular containers exited with 0. If no kubelet is left to
/// call it Succeeded, pod GC ends it by the drained record.
pub(crate) fn agent_fails_no_success(outcome: &Outcome) {
    for role in ["job-leaves", "job-mesh"] {
        let row = outcome.row(role);
        let failed_by_agent = row.seen.phase == "Failed" && row.seen.phase_by.contains("agent");
        assert!(row.seen.is_disrupted() && !failed_by_agent, "{row:?}");
    }
}

/// The API had the end of these pods before the machine began to boot, so not from its kubelet.
pub(crate) fn are_reported_before_the_boot(outcome: &Outcome, roles: &[&str]) {
    are_reported(outcome, roles);
    let booted = outcome.booted_at.expect("it has booted");
    for role in roles {
        let row = outcome.row(role);
        assert!(row.reported_at.is_some_and(|at| at < booted), "booted at {booted}: {row:?}");
    }
}

/// After the boot the agent reports the pods that cannot run again.
pub(crate) fn boot_reports_those_that_cannot_run_again(outcome: &Outcome) {
    let roles = ["job-obeys", "job-leaves", "job-stubborn", "job-mesh", "job-own", "never"];
    are_reported(outcome, &roles);
    no_mark_is_left(outcome);
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
