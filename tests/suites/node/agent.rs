//! Our agent on a real node, installed from the files of `deploy/`: however the node ends, the API
//! says of each pod how it ended, and a Job does not count it. The same without the agent is in
//! tests/node/README.md; both are printed by `cargo lab node table`.

use lab::node_table::{self, Case, Install, Outcome, ROLES, Row, Scenario};

use crate::world::{kit, turn};

/// What nobody ends: a DaemonSet's pod would come back at once.
const LEFT: &str = "daemon";
/// What had ended by itself.
const DONE: &str = "done";

async fn play(graceful: bool, agent: Install, scenarios: &[Scenario]) -> Vec<Outcome> {
    let _turn = turn().await;
    let mut outcomes = Vec::new();
    let seen = |outcome: Outcome| {
        let scenario = scenarios[outcomes.len()];
        let case = Case { scenario, graceful, agent: Some(agent) };
        println!("{}", node_table::render(&case.to_string(), &outcome));
        outcomes.push(outcome);
    };
    let kit = kit().await;
    let played = node_table::play_in_turn(&kit, graceful, Some(agent), scenarios, seen).await;
    played.unwrap_or_else(|error| panic!("{error:#}"));
    outcomes
}

/// Terminal, and a disruption did it.
fn is_told(row: &Row) -> bool {
    row.seen.is_terminal() && row.seen.is_disrupted()
}

/// Every pod that the disruption ended says so, and no Job whose policy ignores disruptions counts
/// one; what had ended before keeps its own end.
fn all_are_told(outcome: &Outcome) {
    for (role, _) in ROLES.iter().filter(|(role, _)| ![LEFT, DONE].contains(role)) {
        let row = outcome.row(role);
        assert!(is_told(row), "{row:?}");
    }
    let done = outcome.row(DONE);
    assert!(done.seen.phase == "Succeeded" && done.seen.disruption.is_none(), "{done:?}");
    for role in ["job-obeys", "job-stubborn"] {
        let row = outcome.row(role);
        assert!(row.seen.phase == "Failed", "{row:?}");
        no_job_counts_it(row);
    }
    // It was told to go and went in peace: that is a success, as the reference has it.
    let leaves = outcome.row("job-leaves");
    let job = leaves.job.as_ref().expect("a Job's row");
    assert!(leaves.seen.phase == "Succeeded" && job.failed == 0, "{leaves:?}");
}

/// The Job does not count the pod as a failure, and has another one in its place unless the pod
/// succeeded.
fn no_job_counts_it(row: &Row) {
    let job = row.job.as_ref().expect("a Job's row");
    assert!(job.failed == 0 && job.condition != "Failed", "{row:?}");
    assert!(job.replacement.is_some() || row.seen.phase == "Succeeded", "{row:?}");
}

/// The pods that cannot run again are told after the boot, and no Job counts one.
fn boot_tells_of_those_that_cannot_run_again(outcome: &Outcome) {
    for role in ["job-obeys", "job-leaves", "job-stubborn", "never"] {
        let row = outcome.row(role);
        assert!(is_told(row), "{row:?}");
    }
    for role in ["job-obeys", "job-leaves", "job-stubborn"] {
        no_job_counts_it(outcome.row(role));
    }
    nothing_stays_of_it(outcome);
}

/// The Job whose pod went in peace is done.
fn leaver_is_complete(outcome: &Outcome) {
    let leaves = outcome.row("job-leaves");
    let job = leaves.job.as_ref().expect("a Job's row");
    assert!(job.condition == "Complete", "{leaves:?}");
}

/// The kubelet's own status was seen to say Failed for a second before it said Succeeded, so the
/// leaver's Job may have made a replacement meanwhile. (spec/node-agent.md SD17, W3)
#[tokio::test]
async fn poweroff_is_told_of_every_pod_beside_the_graceful_shutdown() {
    let outcomes = play(true, Install::Host, &[Scenario::Poweroff]).await;
    all_are_told(&outcomes[0]);
}

#[tokio::test]
async fn poweroff_is_told_of_every_pod_by_a_daemon_sets_agent() {
    let outcomes = play(false, Install::DaemonSet, &[Scenario::Poweroff]).await;
    all_are_told(&outcomes[0]);
    leaver_is_complete(&outcomes[0]);
}

/// On one machine: its start takes longer than most of them.
#[tokio::test]
async fn shutdowns_that_are_disturbed_are_told_by_the_agent() {
    use Scenario::{AgentKilled, Forgotten, KubeletStopped, PowerCutDuring};
    let scenarios = [Forgotten, AgentKilled, PowerCutDuring, KubeletStopped];
    let outcomes = play(false, Install::Host, &scenarios).await;
    let [forgotten, killed, cut, stopped] = &outcomes[..] else { panic!("{outcomes:?}") };
    shutdown_that_logind_forgets_leaves_no_mark_on_what_lives_on(forgotten);
    agent_killed_in_the_middle_of_a_reboot_tells_the_rest_after_it(killed);
    power_cut_in_the_middle_of_a_shutdown_is_told_after_the_boot(cut);
    poweroff_is_told_though_the_kubelet_stops_in_the_middle(stopped);
}

fn shutdown_that_logind_forgets_leaves_no_mark_on_what_lives_on(outcome: &Outcome) {
    for row in &outcome.rows {
        assert!(row.seen.is_terminal() || row.seen.gone || !row.seen.is_disrupted(), "{row:?}");
    }
    nothing_stays_of_it(outcome);
}

fn agent_killed_in_the_middle_of_a_reboot_tells_the_rest_after_it(outcome: &Outcome) {
    boot_tells_of_those_that_cannot_run_again(outcome);
}

fn power_cut_in_the_middle_of_a_shutdown_is_told_after_the_boot(outcome: &Outcome) {
    boot_tells_of_those_that_cannot_run_again(outcome);
}

fn poweroff_is_told_though_the_kubelet_stops_in_the_middle(outcome: &Outcome) {
    for role in ["job-obeys", "job-retries", "job-stubborn", "never", "always"] {
        let row = outcome.row(role);
        assert!(is_told(row), "{row:?}");
    }
}

/// The node takes pods again, and no pod that lives is marked.
fn nothing_stays_of_it(outcome: &Outcome) {
    assert!(outcome.node == "True" && outcome.taints.is_empty(), "{outcome:?}");
    for row in outcome.rows.iter().filter(|row| !row.seen.is_terminal() && !row.seen.gone) {
        assert!(!row.seen.is_disrupted(), "{row:?}");
    }
}
