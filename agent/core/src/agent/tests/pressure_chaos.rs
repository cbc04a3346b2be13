//! Tests invariants of node pressure under random shortages and events in any order. A seed replays
//! its run.

use std::collections::{BTreeMap, BTreeSet};

use epilogue_common::outcome::FailureKind;

use super::chaos::Dice;
use super::driver::*;
use super::evictions::{job, web};
use super::scarcity::*;
use crate::agent::{Enforcement, Settings};
use crate::pod::tests::pod;
use crate::pod::{ContainerAsks, Phase, PodSource, PodUid, PodView};
use crate::pressure::signal::Signal;
use crate::pressure::usage::is_critical;
use crate::protocol::event::Event;
use crate::protocol::node::{KubeletEviction, KubeletFacts};
use crate::protocol::pressure::{PodFigures, Stalling};
use crate::shutdown::candidates::BarePods;

const HARD: &str = "memory.available<200,pid.available<100";
const SOFT: &str = "memory.available<400,nodefs.available<300";

fn some_pod(dice: &mut Dice, n: u64) -> PodView {
    let name = format!("p{n}");
    let kinds = [job(&name), web(&name), pod(&name), pod(&name).never()];
    let mut one = dice.of(&kinds).grace(dice.of(&[1, 30, 100]));
    one = one.priority(dice.of(&[0, 0, 0, 1_000, 2_000_000_000]));
    if dice.roll(6) == 0 {
        let limited = ContainerAsks {
            name: "main".into(),
            storage_limit: Some(100),
            ..ContainerAsks::default()
        };
        one.asks.containers.push(limited);
    }
    match dice.roll(9) {
        0 => one.with(|pod| pod.source = PodSource::Static),
        1 => one.with(|pod| pod.uid = PodUid("uid-agent".into())),
        2 => one.not_started(),
        3 => one.disrupted("Foreign"),
        _ => one,
    }
}

fn figures(dice: &mut Dice) -> PodFigures {
    let amount = 1 + dice.roll(500);
    let disk = crate::pressure::usage::DiskUsage { rootfs: amount, ..Default::default() };
    PodFigures {
        memory: Some(amount),
        tasks: Some(amount),
        disk: Some(disk),
        ..PodFigures::default()
    }
}

fn happen(world: &mut World, dice: &mut Dice, settings: &Settings) {
    use FailureKind::{Conflict, Forbidden, Invalid, ServerError, TooManyRequests, Unknown};
    let rare = if dice.roll(8) == 0 { Forbidden } else { Conflict };
    let failures = [Unknown, Unknown, Conflict, TooManyRequests, ServerError, Invalid, rare];
    let kinds =
        ["mark *", "delete *", "read *", "fail *", "clear *", "stop *", "inspect *", "measure *"];
    let names: Vec<String> = world.pods.keys().cloned().collect();
    let name = (!names.is_empty()).then(|| dice.of(&names));
    let signals = [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable];
    match (dice.roll(22), name) {
        (0..=3, _) => world.left(dice.of(&signals), dice.of(&[10, 90, 150, 250, 350, 900, 1_000])),
        (4, Some(name)) => {
            let figures = figures(dice);
            world.scarcity.figures.insert(world.pods[&name].uid.clone(), figures);
        }
        (5, _) => world.event(Event::PressureRose(dice.of(&[Stalling::Memory, Stalling::Io]))),
        (6, _) => world.stalls(dice.roll(10), 100, 60),
        (7, Some(name)) => world.ends(&name, dice.of(&[Phase::Failed, Phase::Succeeded])),
        (8, Some(name)) => world.gone(&name),
        (9, Some(name)) if !world.runtime.contains_key(&name) => world.containers(&name, &[None]),
        (9 | 10, Some(name)) => world.containers(&name, &[Some(dice.of(&[0, 1, 143]))]),
        (11, _) => {
            let answer = Answer::Fail(dice.of(&failures), 1 + dice.roll(9) as u32);
            world.answers.insert(dice.of(&kinds).into(), answer);
        }
        (12, _) => drop(world.answers.insert(dice.of(&kinds).into(), Answer::Hold)),
        (13, _) => world.let_go("*"),
        (14, _) => {
            let pressure: [&[&str]; 4] = [&[], &[], &[], &["MemoryPressure"]];
            let pressure = dice.of(&pressure);
            world.kubelet_says(pressure);
        }
        (15, _) => {
            let silent = KubeletFacts { eviction: None, ..late() };
            let unlimited =
                KubeletEviction { local_storage_limits: false, ..KubeletEviction::default() };
            let unlimited = KubeletFacts { eviction: Some(unlimited), ..late() };
            let facts = dice.of(&[late(), late(), late(), unlimited, silent, dead()]);
            world.event(Event::KubeletSeen(facts));
        }
        (16, _) if dice.roll(4) == 0 => world.shutdown(dice.of(&[1, 10])),
        (16, _) => world.cancel(),
        (17, _) if dice.roll(4) == 0 => {
            world.restart(settings.clone());
            world.event(Event::KubeletSeen(late()));
            world.list();
            world.event(Event::LogindSeen(logind(false)));
            world.see_node();
        }
        (18, _) => {
            let n = 100 + dice.roll(1_000_000);
            let new = some_pod(dice, n);
            world.pods.entry(new.name.clone()).or_insert(new);
            world.change(&format!("p{n}"), |_| ());
        }
        (19, _) => world.freeze(ms(dice.roll(3_000))),
        _ => world.pass(ms(dice.roll(6_000))),
    }
}

/// Checks the log for what must never happen outside of a shutdown.
fn check(world: &World, untouchable: &BTreeSet<String>, seed: u64) {
    assert_eq!(world.lies, [""; 0], "seed {seed}: {:#?}", world.log);
    let mut marked_at = BTreeMap::new();
    for line in &world.log {
        let words: Vec<_> = line.split(' ').collect();
        let (kind, name) = (words[1], words.get(2).copied().unwrap_or_default());
        let actions = ["mark", "fail", "fail", "delete", "stop", "deadline"];
        let touched = actions.contains(&kind) && untouchable.contains(name);
        assert!(!touched, "seed {seed}: {line}");
        if kind == "mark" {
            marked_at.insert(name, line);
        }
        // A pod is marked before it is stopped, unless it exceeds its own limit.
        let disrupted = world.pods.get(name).is_none_or(PodView::is_disrupted);
        let limited = world.scarcity.beyond_limits.contains(name);
        let unmarked = kind == "stop" && !limited && !disrupted && !marked_at.contains_key(name);
        assert!(!unmarked, "seed {seed}: {line} {:#?}", world.log);
    }
}

#[test]
fn under_any_fault_no_pod_is_evicted_unmarked_or_twice_and_no_mark_stays_on_a_running_pod() {
    let mut evicted = 0;
    for seed in (1..120_u64).chain([1_698]) {
        let mut dice = Dice::of_seed(seed);
        let mut settings = with_config(Enforcement::Enforce, HARD, SOFT);
        settings.bare_pods = dice.of(&[BarePods::Leave, BarePods::Delete, BarePods::DeadlineLever]);
        settings.in_flight_max = dice.of(&[1, 4, 32]);
        let many = 1 + dice.roll(7);
        let pods: Vec<_> = (0..many).map(|n| some_pod(&mut dice, n)).collect();
        let mut world = World::at_ease(settings.clone(), pods);
        world.scarcity.psi = dice.roll(2) == 0;
        let mut untouchable = BTreeSet::new();
        for _ in 0..50 {
            happen(&mut world, &mut dice, &settings);
            for pod in world.pods.values() {
                if is_critical(pod) || pod.uid.0 == "uid-agent" {
                    untouchable.insert(pod.name.clone());
                }
                if !pod.asks.containers.is_empty() {
                    world.scarcity.beyond_limits.insert(pod.name.clone());
                }
            }
            // A shutdown has rules of its own.
            if world.agent.status().shutdown.is_none() {
                check(&world, &untouchable, seed);
            }
            let hard = world.agent.status().pressure.victims.iter().filter(|victim| {
                let young = world.now < victim.since + ms(10_000);
                young && victim.signal == "pid.available"
            });
            assert!(hard.count() <= 1, "seed {seed}: {:#?}", world.agent.status().pressure);
        }
        evicted += settle(&mut world, seed);
    }
    assert!(evicted > 20, "{evicted}");
}

/// Ends all faults and shortages, and lets the open work finish.
fn settle(world: &mut World, seed: u64) -> usize {
    let status = world.agent.status().pressure.clone();
    let evicted = status.evictions.values().map(|count| count.done).sum::<u64>() as usize;
    world.answers.clear();
    world.let_go("*");
    for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
        world.left(signal, CAPACITY);
    }
    world.scarcity.figures.clear();
    world.cancel();
    world.event(Event::KubeletSeen(late()));
    world.pass(ms(5_000));
    world.event(Event::LogindSeen(logind(false)));
    world.kubelet_says(&[]);
    world.list();
    world.pass(ms(200_000));
    let refused = world.logged.iter().any(|line| line.contains("cannot be taken back"));
    let ours = crate::pod::TERMINATION_BY_KUBELET;
    let stale = world.pods.values().filter(|pod| {
        let marked = pod.disruption.as_ref().is_some_and(|d| d.stands && d.reason == ours);
        let waits = status_of(world, &pod.uid);
        marked && !pod.is_terminal() && !pod.is_to_end() && !waits
    });
    let stale: Vec<_> = stale.map(|pod| &pod.name).collect();
    let report = (&world.log, &world.logged);
    assert!(refused || stale.is_empty(), "seed {seed}: {stale:?} {report:#?}");
    evicted
}

/// Whether a victim of which nothing runs still waits for a kubelet's report, which never comes
/// here.
fn status_of(world: &World, uid: &PodUid) -> bool {
    world.agent.status().pressure.victims.iter().any(|victim| victim.uid == *uid)
}
