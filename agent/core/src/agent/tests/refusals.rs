//! Tests refusals (403): an admission webhook refuses one pod, or an API server whose RBAC cache is
//! not filled yet refuses everything. It also tests a verb that the agent has no right to. ([AP14])

use epilogue_common::outcome::Failure;
use epilogue_common::outcome::FailureKind::Forbidden;

use super::driver::*;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::protocol::action::Purpose;
use crate::protocol::event::{ActionResult, Event};
use crate::shutdown::budget::Budget;

const ALWAYS: u32 = u32::MAX;

fn jobs(count: usize) -> Vec<PodView> {
    (0..count).map(|n| pod(&format!("p{n:02}")).owner(Owner::Job).never()).collect()
}

fn replace(count: usize) -> World {
    World::standing(settings(), plain(), jobs(count))
}

fn refuse(world: &mut World, call: &str) {
    world.answers.insert(call.into(), Answer::Fail(Forbidden, ALWAYS));
}

fn end_all_but(world: &mut World, name: &str) {
    let deleted = |pod: &&PodView| pod.is_terminating() && pod.name != name;
    let names: Vec<String> =
        world.pods.values().filter(deleted).map(|pod| pod.name.clone()).collect();
    for name in names {
        world.ends(&name, Phase::Failed);
    }
}

fn terminal(world: &World) -> usize {
    world.pods.values().filter(|pod| pod.is_terminal()).count()
}

#[test]
fn a_refused_mark_holds_up_its_own_pod_alone() {
    let mut world = replace(30);
    refuse(&mut world, "mark p00");
    world.shutdown(40);
    assert_eq!(world.disrupted().len(), 29);
    assert_eq!(world.done(&["delete"]).len(), 29, "all others go on at once");
    world.pass(ms(2_000));
    assert_eq!(world.done(&["delete"]).len(), 30, "it goes without a mark in the end");
    let tries = world.done(&["mark"]).iter().filter(|line| line.ends_with("p00")).count();
    assert!(tries <= 3, "once more after another was granted: {tries}");
}

#[test]
fn a_refused_deletion_leaves_all_other_pods_to_be_reported() {
    let mut world = replace(30);
    refuse(&mut world, "delete p07 20");
    world.shutdown(40);
    world.pass(ms(500));
    assert!(!world.released());
    assert_eq!(world.done(&["delete"]).len(), 30);
    end_all_but(&mut world, "p07");
    world.pass(ms(2_000));
    assert_eq!(terminal(&world), 29);
    assert!(world.released(), "nothing of it will come");
    let tries = world.done(&["delete"]).iter().filter(|line| line.contains("p07")).count();
    assert_eq!(tries, 2);
    let reported = world.reported.iter().filter(|(reason, _)| *reason == "AgentForbidden");
    let reported: Vec<&str> = reported.map(|(_, text)| text.as_str()).collect();
    assert_eq!(reported.len(), 1);
    assert!(reported[0].contains("refuses `delete pods` for pod default/p07"), "{reported:?}");
}

#[test]
fn a_pod_whose_deletion_was_refused_is_awaited_once_another_client_deletes_it() {
    // Simulation seed 5002578.
    let mut world = replace(2);
    refuse(&mut world, "delete p00 20");
    world.shutdown(40);
    world.pass(ms(2_000));
    world.change("p00", |pod| pod.deletion_grace_seconds = Some(20));
    world.ends("p01", Phase::Failed);
    world.pass(ms(5_000));
    assert!(!world.released(), "{:?}", world.log);
    world.ends("p00", Phase::Failed);
    world.pass(ms(1_000));
    assert!(world.released(), "{:?}", world.log);
}

#[test]
fn a_refused_deletion_is_given_up_at_the_last_writes() {
    let ends = Budget::of(ms(40_000)).timetable();
    let mut world = replace(2);
    world.answers.insert("delete p00 20".into(), Answer::Hold);
    world.shutdown(40);
    world.ends("p01", Phase::Failed);
    world.pass(ends.last_writes.saturating_sub(ms(100)));
    let (id, ..) = world.held.pop().expect("must be under way");
    let result = ActionResult::Done(Err(Failure::new(Forbidden, "why")));
    world.event(Event::Finished { id, result });
    assert!(!world.released(), "it is tried once more: {:?}", world.log);
    world.pass(ms(150));
    assert!(world.released(), "its report could not arrive in time: {:?}", world.log);
    world.pass(ms(5_000));
    let tries = world.done(&["delete"]).iter().filter(|line| line.contains("p00")).count();
    assert_eq!(tries, 1, "{:?}", world.log);
}

#[test]
fn a_restarting_pod_whose_deletion_is_refused_is_not_failed_between_two_runs() {
    // Simulation seed 9665178: the kubelet restarted the container as Failed was on its way.
    let names = ["a", "b", "c", "d"];
    let owned = names.map(|name| pod(name).owner(Owner::Other));
    let mut world = World::standing(settings(), plain(), owned.to_vec());
    for name in names {
        refuse(&mut world, &format!("delete {name} 1"));
        world.containers(name, &[Some(255)]);
    }
    world.shutdown(1);
    world.pass(ms(1_000));
    assert_eq!(world.done(&["fail"]), [""; 0], "{:?}", world.log);
    assert_eq!(world.disrupted(), names);
}

#[test]
fn a_node_is_not_drained_while_a_refused_pod_may_still_start() {
    // Simulation seed 5017266: the pod started as the runtime listed its pods.
    let pending = |pod: &mut PodView| (pod.phase, pod.has_run) = (Phase::Pending, false);
    for starts in [true, false] {
        let waits = pod("waits").owner(Owner::Job).never();
        let waits = if starts { waits.with(pending) } else { waits };
        let mut world = World::standing(settings(), plain(), vec![waits]);
        refuse(&mut world, "delete waits 20");
        world.containers("waits", &[]);
        world.shutdown(40);
        world.pass(ms(40_000));
        assert!(world.released(), "{:?}", world.log);
        let drained = world.log.iter().any(|line| line.contains("announce drained"));
        assert_eq!(drained, !starts, "{:?}", world.log);
    }
}

#[test]
fn a_late_rbac_cache_costs_time_and_no_pod() {
    for (count, seconds) in [(30, 40), (2, 40), (1, 40), (30, 10), (2, 5)] {
        let mut world = replace(count);
        refuse(&mut world, "*");
        world.shutdown(seconds);
        world.pass(ms(3_000));
        assert!(!world.released(), "{count} pods, {seconds} s");
        assert_eq!(world.done(&["delete"]), [""; 0], "marks come first");
        world.answers.clear();
        world.pass(ms(1_100));
        assert_eq!(world.disrupted().len(), count, "{count} pods, {seconds} s");
        assert_eq!(world.done(&["delete"]).len(), count, "{count} pods, {seconds} s");
        end_all_but(&mut world, "");
        assert!(world.released(), "{count} pods, {seconds} s: {:?}", world.agent.status().shutdown);
        assert_eq!(terminal(&world), count);
        let reported = world.reported.iter().any(|(reason, _)| *reason == "AgentForbidden");
        assert!(!reported, "a transient refusal is not reported");
        assert!(world.tainted && world.node_says.is_some());
    }
}

#[test]
fn a_right_that_comes_after_the_time_to_stop_still_serves_the_reports() {
    // Simulation seed 2023646: 5 s are granted, and the reports have the last of them.
    let mut world = World::standing(settings(), dead(), jobs(5));
    refuse(&mut world, "*");
    world.shutdown(5);
    world.pass(ms(3_900));
    assert_eq!(world.done(&["stop"]).len(), 5, "{:?}", world.log);
    world.answers.clear();
    world.pass(ms(800));
    assert_eq!(terminal(&world), 5, "{:#?} {:#?}", world.log, world.logged);
    assert!(world.released());
}

#[test]
fn a_verb_that_is_forbidden_is_tested_by_single_calls() {
    let mut world = replace(30);
    refuse(&mut world, "mark *");
    world.shutdown(40);
    let at_once = world.done(&["mark"]).len();
    world.pass(ms(20_000));
    let tests = world.done(&["mark"]).len() - at_once;
    assert!(at_once <= 32 && tests <= 10, "{at_once} at once, {tests} tests");
    assert_eq!(world.done(&["delete"]).len(), 30, "a refusal does not block the kill");
    assert_eq!(world.logged.iter().filter(|line| line.contains("forbids")).count(), 1);

    let mut world = replace(30);
    refuse(&mut world, "delete *");
    world.shutdown(40);
    world.pass(ms(10_000));
    assert!(world.released(), "no report will come: there is nothing to wait for");
    assert!(world.agent.status().patches[&Purpose::Mark].done == 30);
}

#[test]
fn one_granted_call_shows_that_refusals_are_the_pods() {
    let mut world = replace(10);
    for name in ["p01", "p02", "p03", "p04", "p05"] {
        refuse(&mut world, &format!("delete {name} 20"));
    }
    world.shutdown(40);
    world.pass(ms(3_000));
    let deleted = world.pods.values().filter(|pod| pod.is_terminating()).count();
    assert_eq!(deleted, 5);
    assert!(!world.logged.iter().any(|line| line.contains("forbids")));
}

#[test]
fn a_refusal_before_the_shutdown_says_nothing_of_it() {
    let mut world = replace(3);
    refuse(&mut world, "announce *");
    world.shutdown(40);
    world.pass(ms(10_000));
    world.cancel();
    world.answers.clear();
    world.pass(ms(10_000));
    world.shutdown(40);
    assert!(world.node_says.as_deref().is_some_and(|text| text.starts_with("shutting-down")));
}

#[test]
fn a_pod_that_stays_refused_does_not_speak_for_the_others() {
    for (count, in_flight_max) in [(30, 32), (30, 1), (4, 32)] {
        let settings = Settings { in_flight_max, ..settings() };
        let mut world = World::standing(settings, plain(), jobs(count));
        refuse(&mut world, "*");
        world.shutdown(40);
        world.pass(ms(3_000));
        world.answers.clear();
        refuse(&mut world, "mark p00");
        world.pass(ms(6_000));
        assert_eq!(world.disrupted().len(), count - 1, "{count} pods, {in_flight_max} at once");
        assert!(!world.logged.iter().any(|line| line.contains("forbids")));
    }
}

#[test]
fn each_pod_is_asked_about_before_a_right_counts_as_missing() {
    let mut pods = jobs(14);
    for pod in &mut pods[12..] {
        pod.priority = 2_000_000_000;
    }
    let mut one_by_one = settings();
    one_by_one.in_flight_max = 1;
    let mut world = World::standing(one_by_one, plain(), pods);
    for n in 0..12 {
        refuse(&mut world, &format!("delete p{n:02} 20"));
    }
    world.shutdown(40);
    world.pass(ms(12_000));
    let granted = world.pods.values().filter(|pod| pod.is_terminating()).count();
    assert_eq!(granted, 2, "{:?}", world.log);
}
