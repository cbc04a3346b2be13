//! Tests the agent as a DaemonSet's pod, from the files of `deploy/`. It needs `--all`, since its
//! image needs a static program, which is a build of its own.

use lab::node_table::{Install, Scenario};

use crate::shutdowns::{self, all_but_are_reported};

#[test]
fn poweroff_is_reported_by_a_daemon_sets_agent() {
    shutdowns::play(module_path!(), false, Install::DaemonSet, Scenario::Poweroff, |outcome| {
        // Its priority is above the highest that an agent may delete.
        all_but_are_reported(outcome, &["critical"]);
    });
}
