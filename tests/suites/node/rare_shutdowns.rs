//! Tests rare ways to end, and the agent as a DaemonSet; needs `--all`.

use lab::node_table::{Install, Outcome, Scenario};

use crate::shutdowns::{self, boot_reports_those_that_cannot_run_again, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), false, Install::Host, scenario, judge);
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

#[test]
fn power_cut_in_mid_shutdown_is_reported_after_the_boot() {
    play(Scenario::PowerCutDuring, boot_reports_those_that_cannot_run_again);
}
