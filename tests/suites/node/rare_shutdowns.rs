//! Tests rare ways to end, and the agent as a DaemonSet; needs `--all`.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{self, boot_reports_those_that_cannot_run_again, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, false, Some(Install::Host)), judge);
}

#[test]
fn forgotten_shutdown_leaves_no_mark_on_what_lives_on() {
    play(Scenario::Forgotten, |outcome| {
        for row in &outcome.rows {
            let seen = &row.seen;
            assert!(seen.is_terminal() || seen.gone || !seen.is_disrupted(), "{row:?}");
        }
        no_mark_is_left(outcome);
    });
}

/// The agent learns of it by its own SIGTERM, and marks what cannot run again.
#[test]
fn reboot_past_logind_leaves_marks_before_the_boot() {
    play(Scenario::Unannounced, |outcome| {
        boot_reports_those_that_cannot_run_again(outcome);
        let booted = outcome.booted_at.expect("it has booted");
        for role in ["job-obeys", "job-leaves", "job-stubborn", "job-mesh", "never"] {
            let row = outcome.row(role);
            assert!(row.marked_at.is_some_and(|at| at < booted), "booted at {booted}: {row:?}");
        }
    });
}

#[test]
fn power_cut_in_mid_shutdown_is_reported_after_the_boot() {
    play(Scenario::PowerCutDuring, boot_reports_those_that_cannot_run_again);
}
