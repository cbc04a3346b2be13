//! Tests what a user installs: the static release build in its image, by the chart with its default
//! values and `mode=enforce`. Agent and controller are pods of the real kubelet, and another
//! replica of the controller runs elsewhere. The kubelet's graceful shutdown is off, as it is by
//! default.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{self, are_reported, no_mark_is_left};

/// The agent's defaults leave bare pods to the machine.
pub(crate) const OF_JOBS: [&str; 6] =
    ["job-obeys", "job-retries", "job-leaves", "job-stubborn", "job-mesh", "job-own"];

pub(crate) fn case(scenario: Scenario) -> Case {
    Case::of(scenario, false, Some(Install::Chart))
}

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), case(scenario), judge);
}

/// Both controllers of the release are on the node that reboots.
#[test]
fn reboot_reports_the_pods_of_jobs_and_leaves_no_mark() {
    play(Scenario::Reboot, |outcome| {
        are_reported(outcome, &OF_JOBS);
        no_mark_is_left(outcome);
    });
}

/// Last in alphabetical order: it leaves the machine off.
#[test]
fn turned_off_node_has_the_pods_of_jobs_reported() {
    play(Scenario::Poweroff, |outcome| are_reported(outcome, &OF_JOBS));
}
