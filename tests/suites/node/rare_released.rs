//! Tests what a user installs: the static release build in its image, by the chart with its default
//! values and `mode=enforce`. Agent and controller are pods of the real kubelet, and another
//! replica of the controller runs elsewhere. The kubelet's graceful shutdown is off, as it is by
//! default. It needs `--all`: the release build takes minutes.

use lab::node_table::{Case, Install, Outcome, Scenario, Table};

use crate::shutdowns::{self, OF_JOBS, are_reported, no_mark_is_left};
use crate::stage;
use crate::world::kit;

fn case(scenario: Scenario) -> Case {
    Case::of(scenario, false, Some(Install::Chart))
}

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), case(scenario), judge);
}

/// Both controllers and the agent are lost with the machine, and come back with it.
#[test]
fn power_cut_costs_no_job_a_failure() {
    play(Scenario::PowerCut, |outcome| {
        are_reported(outcome, &["job-obeys", "job-stubborn", "job-own"]);
        no_mark_is_left(outcome);
    });
}

/// Both controllers of the release are on the node that reboots.
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

/// `helm test` passes before. Last in alphabetical order: nothing is installed afterwards.
#[test]
fn uninstalled_release_has_worked_and_leaves_nothing_behind() {
    let played = stage::play(module_path!(), async move |kept: &mut Option<Table>| {
        let table = match kept.take() {
            Some(table) => Ok(table),
            None => Table::set(&kit().await, case(Scenario::Reboot)).await,
        };
        let mut table = table.unwrap_or_else(|error| panic!("{error:#}"));
        let played = tested_and_uninstalled(&mut table).await;
        let played = played.unwrap_or_else(|error| panic!("{error:#}; {}", table.dir().display()));
        table.strike().await.unwrap_or_else(|error| panic!("{error:#}"));
        played
    });
    let Played { tested, installed, uninstalled, left } = played;
    println!("{tested}{uninstalled}");
    // The last hook is the pod that asks; Helm fails if it does.
    let phases = || tested.lines().filter_map(|line| line.strip_prefix("Phase:"));
    assert!(phases().count() > 1 && phases().all(|it| it.trim() == "Succeeded"), "{tested}");
    assert!(installed.len() > 20, "the release's objects are found: {installed:#?}");
    assert_eq!(left, [""; 0], "left behind; Helm said: {uninstalled}");
}

/// What was seen of a release.
struct Played {
    /// What `helm test` printed.
    tested: String,
    /// Its objects in the API.
    installed: Vec<String>,
    /// What `helm uninstall` printed.
    uninstalled: String,
    /// What was left of it, on the node and in the API.
    left: Vec<String>,
}

async fn tested_and_uninstalled(table: &mut Table) -> anyhow::Result<Played> {
    let tested = table.test_release().await?;
    let installed = table.objects_of_release().await?;
    let uninstalled = table.uninstall().await?;
    let search = "systemd-inhibit --list --no-legend | grep -i epilogue; \
                  find /etc /run /opt /usr/local /var/lib -xdev -iname '*epilogue*' \
                  -not -path '/var/lib/containerd/*' -not -path '/opt/run/*' \
                  -not '(' -type d -empty ')'; \
                  mount | grep -i epilogue; true";
    let on_node = table.run(search).await?;
    let of_node = table.traces().await?;
    let lines = on_node.lines().chain(of_node.lines()).map(str::to_owned);
    let left = lines.chain(table.objects_of_release().await?).collect();
    Ok(Played { tested, installed, uninstalled, left })
}
