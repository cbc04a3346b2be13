//! Tests the agent as a DaemonSet's pod, from the files of `deploy/`. It needs `--all`, since its
//! image needs a static program, which is a build of its own.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{self, all_but_are_reported, are_reported, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, false, Some(Install::DaemonSet)), judge);
}

/// The kubelet reports after the boot before it starts the agent, and so without a cause: the
/// controller adds it.
#[test]
fn power_cut_costs_no_job_a_failure_though_the_agent_comes_late() {
    play(Scenario::PowerCut, |outcome| {
        are_reported(outcome, &["job-obeys", "job-leaves", "job-stubborn"]);
        no_mark_is_left(outcome);
    });
}

/// Last in alphabetical order: it leaves the machine off.
#[test]
fn poweroff_is_reported_by_a_daemon_sets_agent() {
    play(Scenario::Poweroff, |outcome| {
        // Its priority is above the highest that an agent may delete.
        all_but_are_reported(outcome, &["critical"]);
    });
}
