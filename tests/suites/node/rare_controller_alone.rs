//! Tests what our controller makes of a node that ends without an agent; needs `--all`.

use lab::node_table::{Case, Outcome, Scenario};

use crate::shutdowns::{self, are_reported, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, false, None), judge);
}

/// The kubelet calls the Jobs' pods Failed without a cause. The controller adds it before it
/// counts. It leaves bare pods alone.
#[test]
fn power_cut_costs_no_job_a_failure() {
    play(Scenario::PowerCut, |outcome| {
        are_reported(outcome, &["job-obeys", "job-leaves", "job-stubborn"]);
        no_mark_is_left(outcome);
        let never = outcome.row("never");
        assert!(never.seen.phase == "Failed" && never.seen.disruption.is_none(), "{never:?}");
    });
}
