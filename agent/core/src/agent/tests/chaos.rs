//! Tests invariants of shutdowns under random events in any order. A seed replays its run.

use std::collections::BTreeSet;

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodSource, PodView};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::{Event, LogindState, NodeView, RuntimeState};
use crate::shutdown::candidates::BarePods;

/// The xorshift64* generator.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn of_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    pub(super) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len() as u64) as usize].clone()
    }
}

fn pods(dice: &mut Dice) -> Vec<PodView> {
    let owners = [Owner::Job, Owner::Job, Owner::Other, Owner::None, Owner::DaemonSet];
    let one = |dice: &mut Dice, n: u64| {
        let mut pod = pod(&format!("p{n}")).owner(dice.of(&owners));
        pod = pod.priority(dice.of(&[0, 5, 2_000_000_000])).grace(dice.of(&[1, 30, 600]));
        if dice.roll(2) == 0 {
            pod = pod.never();
        }
        pod.running_since = "2026-11-21T14:10:00Z".parse().ok();
        match dice.roll(10) {
            0 => pod.not_started(),
            1 => pod.deleting(30),
            2 => pod.disrupted("Foreign"),
            3 => pod.with(|pod| pod.source = PodSource::Static),
            _ => pod,
        }
    };
    let many = dice.roll(8);
    (0..many).map(|n| one(dice, n)).collect()
}

/// Runs one random event.
fn happen(world: &mut World, dice: &mut Dice) {
    let names: Vec<String> = world.pods.keys().cloned().collect();
    let name = (!names.is_empty()).then(|| dice.of(&names));
    let failures = [
        FailureKind::Unknown,
        FailureKind::Conflict,
        FailureKind::TooManyRequests,
        FailureKind::Forbidden,
        FailureKind::Invalid,
    ];
    let kinds = ["mark *", "delete *", "read *", "fail *", "clear *", "stop *", "journal *", "*"];
    match (dice.roll(18), name) {
        (0 | 1, _) => world.shutdown(dice.of(&[0, 1, 5, 40])),
        (2, _) => world.cancel(),
        (3, _) => {
            let facts = dice.of(&[plain(), armed(), dead()]);
            world.event(Event::KubeletSeen(facts));
        }
        (4, _) => {
            let owner = dice.of(&[":1.7", ":1.9"]).to_owned();
            let (preparing, listed) = (dice.roll(2) == 0, dice.roll(4));
            let lock_listed = (listed < 3).then_some(listed > 0);
            let state = LogindState { owner, lock_listed, ..logind(preparing) };
            world.event(Event::LogindSeen(state));
        }
        (5, Some(name)) => world.ends(&name, dice.of(&[Phase::Failed, Phase::Succeeded])),
        (6, Some(name)) => world.gone(&name),
        // An exited container stays exited: no kubelet of this world starts anything.
        (7, Some(name)) if !world.runtime.contains_key(&name) => {
            world.containers(&name, &[None]);
        }
        (7, Some(name)) => world.containers(&name, &[Some(dice.of(&[0, 1]))]),
        (8, _) => {
            let answer = Answer::Fail(dice.of(&failures), 1 + dice.roll(4) as u32);
            world.answers.insert(dice.of(&kinds).into(), answer);
        }
        (9, _) => {
            world.answers.insert(dice.of(&kinds).into(), Answer::Hold);
        }
        (10, _) => world.let_go("*"),
        (11, _) => world.freeze(ms(dice.roll(20_000))),
        (12, _) => world.list(),
        (13, _) => {
            let announced = world.node_says.clone();
            let tainted = world.tainted;
            let view = NodeView { announced, tainted, ..NodeView::default() };
            world.event(Event::NodeObserved(view));
        }
        (14, _) if dice.roll(4) == 0 => {
            world.restart(Settings { notices: BTreeSet::from([Source::Aws]), ..settings() });
            world.event(Event::KubeletSeen(plain()));
            world.list();
        }
        (15, _) => {
            let n = 100 + dice.roll(100);
            world.pods.entry(format!("p{n}")).or_insert_with(|| {
                pod(&format!("p{n}"))
                    .never()
                    .with(|pod| pod.running_since = "2026-11-21T14:10:00Z".parse().ok())
            });
            world.change(&format!("p{n}"), |_| ());
        }
        (16, _) => world.event(notice(dice)),
        _ => world.pass(ms(dice.roll(5_000))),
    }
}

/// A notice that is given, moved or withdrawn.
fn notice(dice: &mut Dice) -> Event {
    let within = dice.of(&[Some(0), Some(20_000), Some(60_000), Some(600_000), None]).map(ms);
    let ending = Ending { within, kind: None, certain: dice.roll(4) > 0 };
    Event::EndingSeen(Source::Aws, (dice.roll(3) > 0).then_some(ending))
}

#[test]
fn whatever_happens_nothing_static_is_touched_and_nothing_running_is_called_failed() {
    for seed in 1..400_u64 {
        let mut dice = Dice::of_seed(seed);
        let pods = pods(&mut dice);
        let untouchable: BTreeSet<String> = pods
            .iter()
            .filter(|pod| pod.source == PodSource::Static)
            .map(|pod| pod.name.clone())
            .collect();
        let mut settings = settings();
        settings.bare_pods = dice.of(&[BarePods::Leave, BarePods::Delete, BarePods::DeadlineLever]);
        settings.in_flight_max = dice.of(&[1, 4, 32]);
        let facts = dice.of(&[plain(), armed(), dead()]);
        let mut world = World::standing(settings, facts, pods);
        for _ in 0..60 {
            happen(&mut world, &mut dice);
            for line in &world.log {
                let words: Vec<_> = line.split(' ').collect();
                let touched = words.len() > 2 && untouchable.contains(words[2]);
                let kinds = ["mark", "fail", "fail", "clear", "delete", "stop", "deadline"];
                assert!(!(touched && kinds.contains(&words[1])), "seed {seed}: {line}");
            }
            assert_eq!(world.lies, [""; 0], "seed {seed}: {:#?}", world.log);
        }
        quiet_down(&mut world, seed);
    }
}

/// The API responds again, and logind reports no shutdown: everything returns to normal.
fn quiet_down(world: &mut World, seed: u64) {
    world.answers.clear();
    world.let_go("*");
    world.cancel();
    world.event(Event::EndingSeen(Source::Aws, None));
    world.pass(ms(5_000));
    world.event(Event::LogindSeen(logind(false)));
    world.pass(ms(5_000));
    world.event(Event::LogindSeen(logind(false)));
    let announced = world.node_says.clone();
    let tainted = world.tainted;
    world.event(Event::NodeObserved(NodeView { announced, tainted, ..NodeView::default() }));
    world.pass(ms(120_000));
    let status = world.agent.status();
    assert_eq!(status.lock, crate::agent::LockState::Held, "seed {seed}");
    assert_eq!(status.mark_removals_pending, 0, "seed {seed}: {:#?}", world.log);
    assert_eq!(world.journal, [], "seed {seed}");
    assert!(!world.tainted, "seed {seed}: {:#?} {:#?}", world.log, world.logged);
    let refused = world.logged.iter().any(|line| line.contains("cannot be taken back"));
    let ours = crate::pod::TERMINATION_BY_KUBELET;
    let lies = world.pods.values().filter(|pod| {
        let marked = pod.disruption.as_ref().is_some_and(|d| d.stands && d.reason == ours);
        let state = world.runtime.get(&pod.name);
        let stopped = pod.ends_with_its_sandbox() && state.is_some_and(RuntimeState::nothing_runs);
        marked && !stopped && !pod.is_terminal() && !pod.is_to_end()
    });
    let lies: Vec<_> = lies.map(|pod| &pod.name).collect();
    assert!(
        refused || lies.is_empty(),
        "seed {seed}: {lies:?} {:#?} {:#?}",
        world.log,
        world.logged
    );
}
