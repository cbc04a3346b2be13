//! Pressure: what ends for it, in which order of deeds, and what is only said.

use super::driver::*;
use super::scarcity::*;
use crate::agent::Enforcement;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::pressure::signal::Signal;

const HARD: &str = "memory.available<200";
const MESSAGE: &str =
    "The node was low on resource: memory. Threshold quantity: 200, available: 150. ";

/// A pod of a Job that cannot run again.
fn job(name: &str) -> PodView {
    pod(name).never().owner(Owner::Job { failure_policy: true })
}

/// A pod that somebody creates again.
fn web(name: &str) -> PodView {
    pod(name).owner(Owner::Other)
}

#[test]
fn a_hard_threshold_ends_the_first_in_rank_and_the_object_stays() {
    let mut world = World::at_ease(enforcing(HARD), vec![job("a"), job("b")]);
    world.uses("a", 100);
    world.uses("b", 300);
    world.memory(150);
    world.pass(ms(1_000));
    assert_eq!(world.deeds(), ["mark b", "stop b 1", "lever b"], "{:#?}", world.said);
    let b = &world.pods["b"];
    let disruption = b.disruption.as_ref().expect("must be marked");
    assert!(disruption.stands && disruption.message.starts_with(MESSAGE), "{disruption:?}");
    assert_eq!(b.phase, Phase::Failed);
    assert_eq!(world.told("Evicted"), ["b"]);
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
    assert_eq!(world.lies, [""; 0]);
}

#[test]
fn a_pod_that_may_restart_is_deleted_with_the_grace_of_its_threshold() {
    let mut world = World::at_ease(enforcing(HARD), vec![web("a")]);
    world.uses("a", 100);
    world.memory(150);
    world.pass(ms(1_000));
    assert_eq!(world.deeds(), ["mark a", "delete a 1"]);
    assert_eq!(world.counted("memory.available"), (0, 0, 0));
    world.memory(900);
    world.gone("a");
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
    assert_eq!(world.told("Evicted"), ["a"]);
}
