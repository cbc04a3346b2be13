//! Tests the release's agent as a service of the host, with its defaults and `mode=enforce`; the
//! kubelet's graceful shutdown is off. It needs `--all`: the release build takes minutes.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{self, OF_JOBS, are_reported, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    let case = Case::of(scenario, false, Some(Install::ReleasedHost));
    shutdowns::play(module_path!(), case, judge);
}

#[test]
fn reboot_reports_the_pods_of_jobs_and_leaves_no_mark() {
    play(Scenario::Reboot, |outcome| {
        are_reported(outcome, &OF_JOBS);
        no_mark_is_left(outcome);
    });
}

/// It leaves the machine off.
#[test]
fn turned_off_node_has_the_pods_of_jobs_reported() {
    play(Scenario::Poweroff, |outcome| are_reported(outcome, &OF_JOBS));
}
