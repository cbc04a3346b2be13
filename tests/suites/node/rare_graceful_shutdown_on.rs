//! Tests a reboot with our agent and the kubelet's graceful shutdown both at work; needs `--all`.

use lab::node_table::{Case, Install, Scenario};

use crate::shutdowns::{self, all_are_reported, no_mark_is_left};

/// The kubelet's own status was seen to say Failed for a second before it said Succeeded. The
/// leaver's Job does not replace the pod meanwhile. ([SD17])
#[test]
fn reboot_reports_every_pod_and_leaves_no_mark() {
    let case = Case::of(Scenario::Reboot, true, Some(Install::Host));
    shutdowns::play(module_path!(), case, |outcome| {
        all_are_reported(outcome);
        no_mark_is_left(outcome);
    });
}
