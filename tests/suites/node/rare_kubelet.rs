//! Tests a kubelet that is not there when its node ends: it hangs, has gone before, or is killed as
//! the end begins; needs `--all`.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{
    self, STOPPED_BY_AGENT, agent_fails_no_success, all_are_reported, are_reported_before_the_boot,
    no_mark_is_left,
};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, false, Some(Install::Host)), judge);
}

#[test]
fn frozen_kubelet_is_found_and_replaced() {
    play(Scenario::KubeletFrozen, |outcome| {
        are_reported_before_the_boot(outcome, &STOPPED_BY_AGENT);
        agent_fails_no_success(outcome);
        no_mark_is_left(outcome);
    });
}

/// The API calls the node Ready until it has missed enough heartbeats. What comes meanwhile would
/// fail without a run, again and again.
#[test]
fn gone_kubelet_on_a_ready_node_is_replaced_and_no_newcomer_fails() {
    play(Scenario::KubeletGone, |outcome| {
        are_reported_before_the_boot(outcome, &STOPPED_BY_AGENT);
        agent_fails_no_success(outcome);
        no_mark_is_left(outcome);
        for row in &outcome.rows {
            assert_eq!(row.pods, 1, "{row:?}");
        }
    });
}

/// systemd starts it again after two seconds: nothing is stopped in its place.
#[test]
fn killed_kubelet_is_waited_for() {
    play(Scenario::KubeletKilled, |outcome| {
        all_are_reported(outcome);
        no_mark_is_left(outcome);
        // It lost its container with the machine, and not before.
        let daemon = outcome.row("daemon");
        assert!(daemon.seen.restarts == 1 && daemon.pods == 1, "{daemon:?}");
    });
}
