//! Tests evictions while the API answers nothing, and while it answers everything but a write.

use std::time::Duration;

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use super::evictions::{job, short_of_memory, web};
use super::scarcity::*;
use crate::agent::Enforcement;
use crate::pod::PodView;

const HARD: &str = "memory.available<200";

fn pods(of: fn(&str) -> PodView) -> Vec<PodView> {
    ["a", "b", "c", "d"].map(of).to_vec()
}

/// From now on the API answers no call.
fn goes_silent(world: &mut World, kind: FailureKind) {
    world.answers.insert("*".into(), Answer::Fail(kind, u32::MAX));
}

/// Whether an action on another pod than `a` was given.
fn touches_others(world: &World) -> bool {
    world.actions().iter().any(|action| action.split(' ').nth(1) != Some("a"))
}

/// The first action that terminates a pod.
fn first_end(world: &World) -> Option<&str> {
    world.actions().into_iter().find(|it| it.starts_with("stop") || it.starts_with("delete"))
}

/// When an action was first given that begins so, in ms.
fn given_at(world: &World, action: &str) -> Option<u64> {
    let times = world.log.iter().filter_map(|line| line.split_once(' '));
    let mut times = times.filter(|(_, it)| it.starts_with(action));
    times.next().and_then(|(at, _)| at.parse().ok())
}

#[test]
fn after_an_outage_of_the_api_the_first_in_rank_is_evicted_at_once() {
    use FailureKind::{ServerError, TooManyRequests, Unknown};
    let rows = [(20, Unknown), (40, ServerError), (60, TooManyRequests), (600, Unknown)];
    for (seconds, kind) in rows {
        for (of, end) in [(job as fn(&str) -> PodView, "stop a 1"), (web, "delete a 1")] {
            let mut world = short_of_memory(enforcing(HARD), pods(of));
            goes_silent(&mut world, kind);
            world.pass(Duration::from_secs(seconds));
            assert!(!world.actions().contains(&end), "{seconds} s, {:?}", world.actions());
            assert!(!touches_others(&world), "{seconds} s, {kind:?}: {:?}", world.actions());
            world.answers.clear();
            world.pass(ms(1_500));
            let found = first_end(&world);
            assert_eq!(found, Some(end), "{seconds} s, {kind:?}: {:#?}", world.logged);
        }
    }
}

#[test]
fn a_deletion_outlasts_an_outage_of_the_api() {
    let mut world = short_of_memory(enforcing(HARD), pods(web));
    world.answers.insert("delete *".into(), Answer::Fail(FailureKind::Unknown, 1));
    world.answers.insert("read *".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    world.pass(ms(60_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
    world.answers.clear();
    world.pass(ms(1_500));
    assert_eq!(world.actions(), ["mark a", "delete a 1", "delete a 1"], "{:#?}", world.logged);
}

#[test]
fn a_shortage_that_ends_in_an_outage_of_the_api_evicts_no_pod_and_leaves_no_mark() {
    let mut world = short_of_memory(enforcing(HARD), pods(job));
    world.answers.insert("mark *".into(), Answer::Hold);
    world.pass(ms(1_500));
    let (id, _, action) = world.held.pop().expect("must be held");
    world.answers.clear();
    goes_silent(&mut world, FailureKind::Unknown);
    world.carry_out_unseen(&action);
    world.time_out(id, &action);
    world.pass(ms(20_000));
    world.memory(900);
    world.pass(ms(20_000));
    world.answers.clear();
    world.pass(ms(5_000));
    assert_eq!(world.actions(), ["mark a", "clear a"], "{:#?}", world.logged);
    assert_eq!(world.disrupted(), [""; 0]);
    // The pod is not excluded for that.
    world.memory(150);
    world.pass(ms(2_000));
    assert!(world.actions().contains(&"stop a 1"), "{:#?}", world.logged);
}

#[test]
fn a_watch_that_shows_the_mark_ends_the_wait_for_a_read() {
    for (of, end) in [(job as fn(&str) -> PodView, "stop a 1"), (web, "delete a 1")] {
        let mut world = short_of_memory(enforcing(HARD), pods(of));
        world.answers.insert("mark *".into(), Answer::Hold);
        world.pass(ms(1_500));
        let (id, _, action) = world.held.pop().expect("must be held");
        world.answers.insert("read *".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
        world.lose_answer(id, &action);
        world.pass(ms(100));
        assert_eq!(first_end(&world), Some(end), "{:#?}", world.logged);
    }
}

#[test]
fn a_pod_whose_mark_alone_is_not_accepted_in_time_is_excluded_for_a_short_while() {
    let mut world = short_of_memory(enforcing(HARD), pods(job));
    world.answers.insert("mark *".into(), Answer::Fail(FailureKind::ServerError, u32::MAX));
    world.pass(ms(60_000));
    for (pod, from) in [("mark b", 5_000), ("mark c", 10_000), ("mark d", 15_000)] {
        let at = given_at(&world, pod).unwrap_or_default();
        assert!((from..from + 4_000).contains(&at), "{pod}: {:#?}", world.log);
    }
    world.answers.clear();
    world.pass(ms(1_000));
    world.pass(ms(30_000));
    let at = given_at(&world, "stop a 1").unwrap_or_default();
    assert!((60_000..91_000).contains(&at), "{:#?}", world.log);
    assert_eq!(world.reported("EvictionFailed"), ["a", "b", "c", "d"], "each is said once");
}

#[test]
fn a_victim_of_a_soft_threshold_becomes_urgent_in_an_outage_of_the_api() {
    let both = with_config(Enforcement::Enforce, "memory.available<100", "memory.available<200");
    let mut world = short_of_memory(both, pods(job));
    goes_silent(&mut world, FailureKind::Unknown);
    world.pass(ms(20_000));
    world.memory(50);
    world.pass(ms(20_000));
    assert!(!touches_others(&world), "{:?}", world.actions());
    world.answers.clear();
    world.pass(ms(1_500));
    assert_eq!(first_end(&world), Some("stop a 1"), "{:#?}", world.logged);
}
