//! Tests what the simulated nodes do with the pods that the API shows.

use super::super::pod::{ContainerSpec, RestartPolicy, Role};
use super::super::processes::Signal;
use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_000_000 + ms).unwrap()
}

fn world(nodes: &[&str]) -> World {
    World::new(Settings {
        nodes: nodes.iter().map(|name| (*name).to_owned()).collect(),
        bind: Bind::RoundRobin,
        pace: Pace {
            skip_running: true,
            restart_backoff: Duration::from_millis(100),
            remembers: false,
        },
        shutdown_grace: Duration::from_secs(30),
        script: Script::default(),
        observer: None,
    })
}

fn pod(name: &str, node: Option<&str>, script: &str) -> PodView {
    let container =
        ContainerSpec { name: "main".to_owned(), image: "i".to_owned(), role: Role::Main };
    PodView {
        uid: name.into(),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        created: at(0),
        generation: 1,
        node: node.map(str::to_owned),
        owner: Some("job".into()),
        index: None,
        script: Some(script.to_owned()),
        containers: vec![container],
        restart_policy: RestartPolicy::Never,
        grace_seconds: 30,
        deletion_grace_seconds: None,
        ended: None,
        scheduled_condition: true,
        gated: false,
    }
}

fn name(write: &Write) -> String {
    match &write.kind {
        WriteKind::Bind { node, .. } => format!("{} bind {node}", write.name),
        WriteKind::Pod(Need::Status(patch)) => {
            format!("{} {}", write.name, patch["status"]["phase"].as_str().unwrap())
        }
        WriteKind::Pod(need) => format!("{} {need:?}", write.name),
    }
}

/// Every write that is possible at this moment, each accepted by the API.
fn run(world: &mut World, ms: i64) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(write) = world.poll(at(ms)) {
        lines.push(name(&write));
        world.finished(&write, WriteResult::Done, at(ms));
    }
    lines
}

#[test]
fn unscheduled_pods_are_bound_round_robin_and_then_run() {
    let mut world = world(&["n0", "n1"]);
    for name in ["a", "b", "c"] {
        world.observe(pod(name, None, "succeed"), at(0));
    }
    let expected =
        ["a bind n0", "b bind n1", "c bind n0", "a Succeeded", "b Succeeded", "c Succeeded"];
    assert_eq!(run(&mut world, 0), expected);
}

#[test]
fn gated_deleted_and_foreign_pods_are_left_alone() {
    let mut world = world(&["n0"]);
    world.observe(PodView { gated: true, ..pod("gated", None, "") }, at(0));
    world.observe(PodView { deletion_grace_seconds: Some(0), ..pod("gone", None, "") }, at(0));
    world.observe(pod("foreign", Some("elsewhere"), ""), at(0));
    assert_eq!(run(&mut world, 0), [""; 0]);
}

#[test]
fn attempts_count_per_owner_and_index() {
    let mut world = world(&["n0"]);
    let indexed = |name, index| PodView {
        index: Some(index),
        ..pod(name, Some("n0"), "fail times=1; succeed")
    };
    world.observe(indexed("a0", 0), at(0));
    world.observe(indexed("a1", 1), at(0));
    assert_eq!(run(&mut world, 0), ["a0 Failed", "a1 Failed"]);
    world.observe(indexed("b0", 0), at(0));
    assert_eq!(run(&mut world, 0), ["b0 Succeeded"]);
}

#[test]
fn a_relist_forgets_what_it_lacks_and_orders_attempts_by_creation() {
    let mut world = world(&["n0"]);
    world.observe(pod("old", Some("n0"), "hang"), at(0));
    let late = PodView { created: at(9), ..pod("a-late", Some("n0"), "fail times=2; succeed") };
    let early = pod("z-early", Some("n0"), "fail times=2; succeed");
    world.replace(vec![late, early], at(10));
    assert_eq!(run(&mut world, 10), ["z-early Failed", "a-late Succeeded"]);
    assert_eq!(world.pods.len(), 2);
}

#[test]
fn kubelets_that_start_again_report_what_the_api_lost() {
    let mut world = world(&["n0", "n1"]);
    world.settings.pace.remembers = true;
    let fails = |name, node| pod(name, node, "fail exit=3 times=1; succeed");
    for name in ["a", "gone", "unbound"] {
        world.observe(PodView { owner: None, ..fails(name, None) }, at(0));
    }
    run(&mut world, 0);
    let ended =
        PodView { ended: Some(super::super::pod::TerminalPhase::Failed), ..fails("a", Some("n0")) };
    world.observe(ended, at(1));
    assert_eq!(run(&mut world, 1), [""; 0]);
    // The API has gone back: one pod runs, one was never created, one was not bound.
    world.restart(vec![fails("a", Some("n0")), fails("unbound", None)], at(2));
    let write = world.poll(at(2)).expect("a report");
    let WriteKind::Pod(Need::Status(patch)) = &write.kind else { panic!("{write:?}") };
    assert_eq!(patch["status"]["phase"], "Failed");
    assert_eq!(patch["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    world.finished(&write, WriteResult::Done, at(2));
    assert_eq!(run(&mut world, 2)[0][.."unbound bind".len()], *"unbound bind");
    assert_eq!(world.pods.len(), 2);
}

#[test]
fn a_retry_waits_longer_each_time_and_the_write_is_made_anew() {
    let mut world = world(&["n0"]);
    world.observe(pod("a", Some("n0"), "succeed"), at(0));
    let write = world.poll(at(0)).unwrap();
    world.finished(&write, WriteResult::Retry, at(0));
    assert!(world.poll(at(0)).is_none());
    assert_eq!(world.deadline(), Some(at(50)));
    let write = world.poll(at(50)).unwrap();
    world.finished(&write, WriteResult::Refused("no".to_owned()), at(50));
    assert!(world.poll(at(50)).is_none());
    assert_eq!(world.deadline(), Some(at(150)));
    assert_eq!(run(&mut world, 150), ["a Succeeded"]);
    assert_eq!((world.stats.retries, world.stats.refused), (1, 1));
}

#[test]
fn a_pod_has_one_write_under_way_at_a_time() {
    let mut world = world(&["n0"]);
    world.observe(pod("a", Some("n0"), "on-term=1"), at(0));
    let write = world.poll(at(0)).unwrap();
    let deleted = PodView { deletion_grace_seconds: Some(30), ..pod("a", Some("n0"), "on-term=1") };
    world.observe(deleted, at(1));
    assert!(world.poll(at(1)).is_none());
    world.finished(&write, WriteResult::Done, at(2));
    assert_eq!(run(&mut world, 2), ["a Failed", "a Delete"]);
}

#[test]
fn a_silent_node_writes_nothing_until_it_is_revived() {
    let mut world = world(&["n0", "n1"]);
    world.observe(pod("a", Some("n0"), "succeed after=1s"), at(0));
    assert_eq!(run(&mut world, 0), [""; 0]);
    world.silence(0);
    world.observe(pod("b", Some("n0"), "succeed"), at(500));
    world.observe(pod("c", None, "succeed"), at(500));
    assert_eq!(run(&mut world, 2000), ["c bind n1", "c Succeeded"]);
    world.revive(0, at(3000));
    let mut late = run(&mut world, 3000);
    late.sort();
    assert_eq!(late, ["a Succeeded", "b Succeeded"]);
}

#[test]
fn without_a_kubelet_processes_end_and_the_next_kubelet_reports_it() {
    let changes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut world = world(&["n0"]);
    let seen = Arc::clone(&changes);
    world.settings.observer = Some(Observer::new(move |change| {
        seen.lock().unwrap().push((change.uid.to_owned(), change.now));
    }));
    let now = |uid: &str| {
        let changes = changes.lock().unwrap();
        changes.iter().rev().find(|(of, _)| of == uid).and_then(|(_, now)| *now)
    };
    for (name, script) in [("a", "fail exit=3 after=1s"), ("b", "on-term=7 after=1s")] {
        world.observe(pod(name, Some("n0"), script), at(0));
    }
    run(&mut world, 0);
    world.behead(0);
    world.signal("b", Signal::Term, at(500));
    assert_eq!(now("b"), Some(Processes::End));
    assert_eq!(run(&mut world, 5_000), [""; 0]);
    assert_eq!(now("a"), Some(Processes::Exited(3)));
    assert_eq!(now("b"), Some(Processes::Exited(7)));
    world.revive(0, at(6_000));
    let mut late = run(&mut world, 6_000);
    late.sort();
    assert_eq!(late, ["a Failed", "b Failed"]);
}

#[test]
fn a_node_is_drained_when_every_end_is_in_the_api_and_refuses_new_pods() {
    let mut world = world(&["n0"]);
    world.observe(pod("a", Some("n0"), "on-term=143 after=1s"), at(0));
    world.observe(pod("b", Some("n0"), "pending"), at(0));
    run(&mut world, 0);
    world.shut_down(0, at(0));
    assert_eq!(run(&mut world, 0), ["b Failed"]);
    assert!(!world.is_drained(0));
    world.observe(pod("c", Some("n0"), "succeed"), at(500));
    assert_eq!(run(&mut world, 1000), ["c Failed", "a Failed"]);
    assert!(world.is_drained(0));
}

#[test]
fn the_result_for_a_pod_that_left_meanwhile_is_harmless() {
    let mut world = world(&["n0"]);
    world.observe(pod("a", Some("n0"), "succeed"), at(0));
    let write = world.poll(at(0)).unwrap();
    world.forget(&write.uid);
    assert!(!world.is_quiet(0));
    world.finished(&write, WriteResult::Gone, at(1));
    assert!(world.is_quiet(0));
}
