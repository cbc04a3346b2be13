//! Tests how a node ends with our agent and the kubelet's graceful shutdown both at work. The API
//! shows how each pod ended, and the Jobs of our controller complete elsewhere.

use lab::node_table::{Case, Install, Outcome, Scenario};

use crate::shutdowns::{self, all_are_reported, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, true, Some(Install::Host)), judge);
}

/// The kubelet's own status was seen to say Failed for a second before it said Succeeded. The
/// leaver's Job does not replace the pod meanwhile. ([SD17])
#[test]
fn reboot_reports_every_pod_and_leaves_no_mark() {
    play(Scenario::Reboot, |outcome| {
        all_are_reported(outcome);
        no_mark_is_left(outcome);
    });
}

/// Without the agent, the kubelet gives up on the stubborn pod and releases its lock. ([SD15],
/// [W4])
///
/// Last in alphabetical order: it leaves the machine off.
#[test]
fn turned_off_node_has_every_pod_reported() {
    play(Scenario::Poweroff, all_are_reported);
}
