//! Tests rare stories of an installed release, and its end; needs `--all`.

use lab::node_table::{Scenario, Table};

use crate::released::case;
use crate::shutdowns::{self, are_reported, no_mark_is_left};
use crate::stage;
use crate::world::kit;

/// Both controllers and the agent are lost with the machine, and come back with it.
#[test]
fn power_cut_costs_no_job_a_failure() {
    shutdowns::play(module_path!(), case(Scenario::PowerCut), |outcome| {
        are_reported(outcome, &["job-obeys", "job-stubborn", "job-own"]);
        no_mark_is_left(outcome);
    });
}

/// Last in alphabetical order: nothing is installed afterwards.
#[test]
fn uninstalled_release_leaves_nothing_behind() {
    let (left, said) = stage::play(module_path!(), async move |kept: &mut Option<Table>| {
        let table = match kept.take() {
            Some(table) => Ok(table),
            None => Table::set(&kit().await, case(Scenario::Reboot)).await,
        };
        let mut table = table.unwrap_or_else(|error| panic!("{error:#}"));
        let said = table.uninstall().await.unwrap_or_else(|error| panic!("{error:#}"));
        let search = "systemd-inhibit --list --no-legend | grep -i epilogue; \
                      find /etc /run /opt /usr/local /var/lib -xdev -iname '*epilogue*' \
                      -not -path '/var/lib/containerd/*' -not -path '/opt/run/*'; \
                      mount | grep -i epilogue; true";
        let on_node = table.run(search).await.unwrap_or_else(|error| panic!("{error:#}"));
        let in_api = table.traces().await.unwrap_or_else(|error| panic!("{error:#}"));
        table.strike().await.unwrap_or_else(|error| panic!("{error:#}"));
        (format!("{on_node}{in_api}"), said)
    });
    println!("{said}");
    assert_eq!(left, "", "left behind; Helm said: {said}");
}
