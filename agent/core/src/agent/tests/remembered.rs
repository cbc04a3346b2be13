//! Tests that the agent remembers nothing of a pod whose object is gone: its memory must not grow
//! with the number of pods that have ever been on the node.

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use super::evictions::{job, short_of_memory, web};
use super::scarcity::*;
use crate::agent::Enforcement;

const HARD: &str = "memory.available<200";

/// The fields that still name the pod `a`.
fn remembered(world: &World) -> Vec<String> {
    let state = format!("{:#?}", world.agent);
    let mut fields: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for line in state.lines() {
        let depth = (line.len() - line.trim_start().len()) / 4;
        fields.truncate(depth);
        fields.push(line.trim());
        if line.contains("\"uid-a\"") {
            let names = fields.iter().filter_map(|field| field.split_once(':').map(|it| it.0));
            found.push(names.collect::<Vec<_>>().join("."));
        }
    }
    found
}

/// A node whose pod `a` was a candidate, and that is not short any more.
fn scenarios() -> Vec<(&'static str, World)> {
    let evicted = |of: fn(&str) -> _| {
        let mut world = short_of_memory(enforcing(HARD), vec![of("a")]);
        world.pass(ms(1_000));
        world.memory(900);
        world
    };
    let refused = |kind| {
        let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
        world.answers.insert("mark *".into(), Answer::Fail(kind, 1));
        world.pass(ms(1_000));
        world.memory(900);
        world.pass(ms(1_000));
        world
    };
    let observes = with_config(Enforcement::Observe, HARD, "");
    let mut observed = short_of_memory(observes, vec![web("a")]);
    observed.pass(ms(1_000));
    observed.memory(900);
    let mut cancelled = World::standing(settings(), plain(), vec![job("a")]);
    cancelled.shutdown(40);
    cancelled.pass(ms(100));
    cancelled.cancel();
    cancelled.pass(ms(10_000));
    vec![
        ("evicted by deletion", evicted(web)),
        ("evicted by a stop", evicted(job)),
        ("refused", refused(FailureKind::Invalid)),
        ("observed", observed),
        ("in a cancelled shutdown", cancelled),
    ]
}

#[test]
fn a_pod_that_is_gone_is_forgotten() {
    for (what, mut world) in scenarios() {
        world.gone("a");
        world.pass(ms(5_000));
        assert_eq!(remembered(&world), [""; 0], "{what}");
    }
}

#[test]
fn a_pod_that_is_gone_is_forgotten_though_no_watch_shows_its_end() {
    for (what, mut world) in scenarios() {
        world.pods.remove("a");
        world.list();
        world.pass(ms(5_000));
        assert_eq!(remembered(&world), [""; 0], "{what}");
    }
}

#[test]
fn a_pod_that_a_call_finds_gone_is_forgotten_though_no_watch_shows_its_end() {
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.answers.insert("mark a".into(), Answer::Fail(FailureKind::ServerError, u32::MAX));
    world.pass(ms(36_500));
    assert_eq!(world.reported("EvictionFailed"), ["a"]);
    world.answers.insert("read *".into(), Answer::Hold);
    world.pass(ms(1_500));
    world.pods.remove("a");
    world.memory(900);
    world.let_go("read");
    world.list();
    world.pass(ms(5_000));
    assert_eq!(remembered(&world), [""; 0], "{:#?}", world.log);
}
