//! Tests a kubelet that is the child of its unit's main process, and whose runtime has a socket of
//! its own; needs `--all`.

use lab::node_table::{Case, Install, Kubelet, Outcome, Scenario};

use crate::shutdowns::{
    self, STOPPED_BY_AGENT, agent_fails_no_success, all_are_reported, are_reported, no_mark_is_left,
};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    let case = Case::of(scenario, true, Some(Install::Host));
    shutdowns::play(module_path!(), Case { kubelet: Kubelet::Wrapped, ..case }, judge);
}

/// The lock that its child holds is the kubelet's: the agent assists it.
#[test]
fn reboot_is_the_kubelet_s_though_its_unit_starts_a_shell() {
    play(Scenario::Reboot, |outcome| {
        all_are_reported(outcome);
        no_mark_is_left(outcome);
        // A pod that the agent deletes has no reason.
        for role in ["job-obeys", "job-stubborn"] {
            let row = outcome.row(role);
            let by_kubelet =
                row.seen.reason == "Terminated" && row.seen.phase_by.contains("kubelet");
            assert!(by_kubelet, "{row:?}");
        }
    });
}

/// The agent asks the runtime that the kubelet names. Last in alphabetical order: it leaves the
/// machine off.
#[test]
fn runtime_of_the_kubelet_stops_the_pods_of_a_stopped_one() {
    play(Scenario::KubeletStopped, |outcome| {
        are_reported(outcome, &STOPPED_BY_AGENT);
        agent_fails_no_success(outcome);
    });
}
