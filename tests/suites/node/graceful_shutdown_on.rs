//! Tests how a node ends with our agent and the kubelet's graceful shutdown both at work. The API
//! shows how each pod ended, and the Jobs of our controller complete elsewhere.

use lab::node_table::{Case, Install, Scenario};

use crate::shutdowns::{self, all_are_reported};

/// Without the agent, the kubelet gives up on the stubborn pod and releases its lock. ([SD15],
/// [W4])
#[test]
fn turned_off_node_has_every_pod_reported() {
    let case = Case::of(Scenario::Poweroff, true, Some(Install::Host));
    shutdowns::play(module_path!(), case, all_are_reported);
}
