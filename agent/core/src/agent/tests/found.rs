//! What seeds of the simulation found, in the smallest form. (`cargo lab sim --agent`)

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, PodView};
use crate::protocol::event::Event;
use crate::protocol::journal::{Intent, Record};

const ALWAYS: u32 = u32::MAX;

fn of_a_replica_set(name: &str) -> PodView {
    pod(name).owner(Owner::Other)
}

fn bind(world: &mut World, pod: PodView) {
    world.pods.insert(pod.name.clone(), pod);
    world.list();
}

#[test]
fn failed_is_not_written_on_a_proof_that_a_kubelet_that_came_back_made_old() {
    let mut world = World::standing(settings(), dead(), vec![of_a_replica_set("a").never()]);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.shutdown(10);
    world.pass(ms(7_000));
    world.event(Event::KubeletSeen(plain()));
    world.let_go("stop");
    world.containers("a", &[None]);
    world.pass(ms(3_000));
    assert_eq!(world.lies, [""; 0]);
    assert!(world.released());
}

#[test]
fn a_kubelet_that_came_back_ends_the_pods_itself() {
    let critical = of_a_replica_set("b").priority(2_000_000_000);
    let mut world = World::standing(settings(), dead(), vec![of_a_replica_set("a"), critical]);
    world.containers("a", &[None]);
    world.shutdown(60);
    world.pass(ms(1_000));
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(10_000));
    assert!(world.said.iter().any(|line| line.starts_with("mode Substitute becomes Replace")));
    world.pass(ms(20_000));
    assert!(world.done(&["stop"]).iter().all(|line| line.contains("stop a")), "{:?}", world.log);
    assert!(!world.done(&["delete"]).is_empty(), "{:?}", world.log);
}

#[test]
fn the_mark_of_a_pod_that_comes_in_the_run_is_in_the_journal() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    bind(&mut world, of_a_replica_set("b"));
    let marks = world.journal.iter().filter_map(|record| match record {
        Record::Intent { name, intent: Intent::Mark, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(marks.collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_pod_that_nobody_will_end_any_more_is_not_marked() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    world.pass(ms(38_500));
    bind(&mut world, of_a_replica_set("b"));
    bind(&mut world, of_a_replica_set("c").never());
    world.pass(ms(1_000));
    assert_eq!(world.disrupted(), ["a", "c"]);
    assert!(world.done(&["delete"]).iter().all(|line| line.contains("delete a")));
}

#[test]
fn a_deletion_whose_mark_had_no_time_is_not_sent_at_the_end() {
    let one = Settings { in_flight_max: 1, ..settings() };
    let pods = vec![of_a_replica_set("a"), of_a_replica_set("b")];
    let mut world = World::standing(one, plain(), pods);
    world.answers.insert("mark a".into(), Answer::Hold);
    world.shutdown(10);
    world.pass(ms(9_300));
    world.let_go("mark");
    world.pass(ms(100));
    assert_eq!(world.disrupted(), ["a"]);
    assert!(!world.done(&["delete"]).iter().any(|line| line.contains("delete b")));
}

#[test]
fn a_disk_that_refuses_does_not_hold_the_lock() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.answers.insert("journal *".into(), Answer::Fail(FailureKind::Other, ALWAYS));
    world.shutdown(40);
    world.pass(ms(1_000));
    world.gone("a");
    world.pass(ms(1_000));
    assert!(world.released(), "{:?}", world.log);
}

#[test]
fn a_farewell_that_does_not_arrive_is_proven_anew() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    world.pass(ms(500));
    let says = |world: &World, word: &str| {
        world.done(&["announce"]).iter().filter(|line| line.contains(word)).count()
    };
    world.answers.insert("announce *".into(), Answer::Fail(FailureKind::Unknown, ALWAYS));
    world.containers("a", &[Some(143)]);
    world.gone("a");
    assert_eq!(says(&world, "farewell"), 1, "{:?}", world.log);
    bind(&mut world, of_a_replica_set("b"));
    world.containers("b", &[None]);
    world.pass(ms(1_500));
    let before = says(&world, "farewell");
    world.pass(ms(10_000));
    assert_eq!(says(&world, "farewell"), before, "{:?}", world.log);
}
