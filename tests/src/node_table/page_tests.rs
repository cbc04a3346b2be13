//! Tests the tables of the pages by records of a few pods.

use super::*;
use crate::node_table::Versions;

fn job(condition: &str) -> JobRow {
    JobRow { condition: condition.to_owned(), ..JobRow::default() }
}

fn pod(phase: &str, disrupted: bool, job: Option<JobRow>) -> PodEnd {
    PodEnd {
        phase: phase.to_owned(),
        disruption: disrupted.then(|| ("True".to_owned(), "TerminationByKubelet".to_owned())),
        container: "running".to_owned(),
        restarts: 0,
        deleting: false,
        gone: false,
        job,
    }
}

fn end(node: &str, pods: &[(&str, PodEnd)]) -> End {
    let pods = pods.iter().map(|(role, pod)| ((*role).to_owned(), pod.clone()));
    End { node: node.to_owned(), taints: Vec::new(), pods: pods.collect() }
}

fn record(scenario: Scenario, column: Column, end: End, removed: Option<End>) -> Record {
    let versions = Versions {
        kubernetes: "1.2.3".to_owned(),
        systemd: "252".to_owned(),
        containerd: "1.6".to_owned(),
        linux: "6.1".to_owned(),
    };
    let cell = Cell { scenario, graceful: false, column };
    let mut record = Record::default();
    record.put(Entry { cell, date: "2026-01-02".to_owned(), versions, end, removed });
    record
}

#[test]
fn a_cell_says_what_became_of_pods_and_jobs() {
    let replaced = JobRow {
        replacement: Some("Succeeded elsewhere".to_owned()),
        replaced: vec![Replaced::After(14), Replaced::After(1040)],
        ..job("Complete")
    };
    let counted = JobRow { failed: 1, ..replaced.clone() };
    let pods = [
        ("a", pod("Failed", true, Some(replaced))),
        ("b", pod("Failed", true, Some(counted))),
        ("c", pod("Succeeded", true, Some(job("Complete")))),
        ("d", pod("Failed", true, None)),
        ("e", pod("Failed", false, Some(job("Failed")))),
        ("f", pod("Running", false, Some(JobRow { active: 1, ..JobRow::default() }))),
        ("done", pod("Succeeded", false, None)),
        ("daemon", pod("Running", false, None)),
    ];
    let record = record(Scenario::Reboot, Column::Agent, end("True", &pods), None);
    let text = cell(&record, PLANNED[2].cell(Column::Agent));
    assert_eq!(
        text,
        "Pods: 4 terminal with DT, 1 terminal without DT (e), 1 running (f). \
         Jobs: 1 **failed for good** (e), 1 replaced, no failure counted (a), \
         1 replaced, one failure counted (b), 1 complete by that pod (c), 1 running (f) \
         (0.01 to 1.04 s after the end)."
    );
}

#[test]
fn what_is_wrong_stands_in_the_cell() {
    let wrong = JobRow { wrong: vec!["counts one twice".to_owned()], ..job("Complete") };
    let pods = [("a", pod("Failed", true, Some(wrong)))];
    let record = record(Scenario::Reboot, Column::Agent, end("True", &pods), None);
    let text = cell(&record, PLANNED[2].cell(Column::Agent));
    assert!(text.ends_with("(a), **a: counts one twice**."), "{text}");
}

#[test]
fn pods_of_a_machine_that_is_off_stay_and_their_jobs_wait_until_its_node_is_deleted() {
    let waits = JobRow { active: 1, ..JobRow::default() };
    let pods = [("a", pod("Running", false, Some(waits))), ("b", pod("Running", false, None))];
    let removed = [("a", PodEnd { gone: true, ..pod("Failed", true, Some(job("Failed"))) })];
    let record = record(
        Scenario::Poweroff,
        Column::Today,
        end("Unknown/NodeStatusUnknown", &pods),
        Some(end("removed", &removed)),
    );
    let text = cell(&record, PLANNED[0].cell(Column::Today));
    assert_eq!(
        text,
        "Pods: 2 `Running` for ever (a, b). Jobs: 1 waiting for ever (a). \
         Once the node is deleted: 1 **failed for good** (a)."
    );
    assert!(readme(&record).contains(
        "| 1 | power-off | 2 of 2 pods stay `Running`, 1 of 1 Jobs wait for ever | not run yet |"
    ));
}

#[test]
fn a_run_takes_the_place_of_the_last_one_of_its_cell() {
    let mut runs = record(Scenario::Reboot, Column::Agent, end("True", &[]), None);
    let [entry] = runs.entries() else { panic!("{runs:?}") };
    let later = Entry { date: "2026-02-03".to_owned(), ..entry.clone() };
    let other = Entry { cell: PLANNED[0].cell(Column::Today), ..entry.clone() };
    runs.put(later.clone());
    runs.put(other.clone());
    assert_eq!(runs.entries(), [other, later]);
    assert_eq!(
        played_on(&runs),
        "Played from 2026-01-02 to 2026-02-03: Kubernetes 1.2.3, systemd 252, containerd 1.6, \
         Linux 6.1."
    );
}

#[test]
fn a_row_is_shown_once_each_of_its_cells_is_recorded() {
    let mut runs = record(Scenario::Reboot, Column::Today, end("True", &[]), None);
    let [entry] = runs.entries() else { panic!("{runs:?}") };
    let of = |column| Entry { cell: PLANNED[2].cell(column), ..entry.clone() };
    let (agent, release) = (of(Column::Agent), of(Column::Release));
    runs.put(agent);
    assert_eq!((shown(&runs).len(), table(&runs, &PLANNED).contains("reboot")), (0, false));
    runs.put(release);
    assert_eq!((shown(&runs).len(), table(&runs, &PLANNED).contains("reboot")), (3, true));
}
