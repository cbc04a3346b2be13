//! Tests how a node ends with our agent as a service of the host and the kubelet's graceful
//! shutdown off, its default. The API shows how each pod ended, and the Jobs of our controller
//! complete elsewhere.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{
    self, STOPPED_BY_AGENT, agent_fails_no_success, are_reported,
    boot_reports_those_that_cannot_run_again,
};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, false, Some(Install::Host)), judge);
}

#[test]
fn agent_killed_in_mid_reboot_reports_the_rest_after_it() {
    play(Scenario::AgentKilled, boot_reports_those_that_cannot_run_again);
}

#[test]
fn power_cut_is_reported_after_the_boot() {
    play(Scenario::PowerCut, boot_reports_those_that_cannot_run_again);
}

/// Last in alphabetical order: it leaves the machine off.
#[test]
fn stopped_kubelet_keeps_no_report_from_a_poweroff() {
    play(Scenario::KubeletStopped, |outcome| {
        are_reported(outcome, &STOPPED_BY_AGENT);
        agent_fails_no_success(outcome);
    });
}
