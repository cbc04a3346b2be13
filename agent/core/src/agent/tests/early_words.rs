//! Tests what pods learn ahead of their end: `epilogue.dev/ends-at`, and the signal of
//! `epilogue.dev/end-signal`.

use std::collections::BTreeSet;

use epilogue_common::outcome::FailureKind;
use jiff::Timestamp;

use super::driver::*;
use crate::agent::{EndSignalTally, Settings};
use crate::pod::tests::pod;
use crate::pod::{Owner, PodView};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::Event;
use crate::protocol::node::KubeletFacts;

const CRITICAL: i32 = 2_000_000_000;

fn with_notices() -> Settings {
    Settings { notices: BTreeSet::from([Source::Aws]), ..settings() }
}

fn of_job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

/// A pod with a running container that asks for this.
fn asking(name: &str, signal: &str) -> PodView {
    of_job(name).with(|pod| {
        pod.running_since = Some(Timestamp::UNIX_EPOCH);
        pod.containers = vec!["main".into(), "other".into()];
        pod.details.container_ids =
            vec![("other".into(), "id-2".into()), ("main".into(), "id-1".into())];
        pod.details.end_signal = Some(signal.into());
    })
}

fn notice(seconds: u64) -> Event {
    Event::EndingSeen(Source::Aws, Some(Ending::certain(Some(ms(seconds * 1_000)), None)))
}

/// How long from now on each pod has, as its annotation says.
fn left(world: &World, since: std::time::Duration) -> Vec<(&str, i64)> {
    let seconds = |at: Timestamp| at.duration_since(wall(since)).as_secs();
    world.ends_at.iter().map(|(name, at)| (name.as_str(), seconds(*at))).collect()
}

fn signals(world: &World) -> Vec<&str> {
    world.done(&["signal"]).iter().filter_map(|line| line.split_once(' ')).map(|it| it.1).collect()
}

#[test]
fn each_pod_learns_by_when_it_ends_with_its_mark() {
    let pods = || vec![of_job("a"), of_job("b").grace(5), of_job("c").priority(CRITICAL)];
    let shutdown = |kubelet: KubeletFacts| {
        let mut world = World::standing(settings(), kubelet, pods());
        let now = world.now;
        world.shutdown(60);
        left(&world, now).into_iter().map(|(name, left)| format!("{name} {left}")).collect()
    };
    let two: Vec<String> = shutdown(plain());
    // 2.15 s for marks, groups of 20 s and 10 s, and the pod's own grace within them.
    assert_eq!(two, ["a 22", "b 7", "c 32"]);
    // The kubelet has one group of 30 s, which begins at the signal.
    let one: Vec<String> = shutdown(armed());
    assert_eq!(one, ["a 30", "b 5", "c 30"]);
}

#[test]
fn time_that_is_short_is_shared_and_announced_so() {
    let mut world =
        World::standing(settings(), plain(), vec![of_job("a"), of_job("c").priority(CRITICAL)]);
    let now = world.now;
    world.shutdown(20);
    let times = left(&world, now);
    assert!(times[0].1 < times[1].1 && times[1].1 < 20, "{times:?}");
}

#[test]
fn pod_that_is_deleted_has_the_time_of_its_deletion() {
    let deleted = of_job("a").deleting(4).with(|pod| {
        pod.details.deleted_at = Some(wall(std::time::Duration::from_secs(1_008)));
    });
    let mut world = World::standing(settings(), plain(), vec![deleted]);
    let now = world.now;
    world.shutdown(60);
    assert_eq!(left(&world, now), [("a", 5)]);
}

#[test]
fn mark_that_is_found_invalid_goes_without_the_announced_end() {
    let mut world = World::standing(settings(), plain(), vec![of_job("a")]);
    world.answers.insert("mark *".into(), Answer::Fail(FailureKind::Invalid, 1));
    world.shutdown(60);
    world.pass(ms(5_000));
    assert_eq!(world.disrupted(), ["a"]);
    assert!(world.ends_at.is_empty());
}

#[test]
fn cancel_takes_the_announced_end_back() {
    // A pod of a later group still stands when the cancel comes.
    let pods = vec![of_job("a"), of_job("c").priority(CRITICAL)];
    let mut world = World::standing(settings(), plain(), pods);
    world.shutdown(60);
    assert!(world.ends_at.contains_key("c"));
    world.cancel();
    world.pass(ms(5_000));
    assert!(!world.ends_at.contains_key("c"), "{:#?}", world.log);
}

#[test]
fn signal_goes_so_long_before_the_pod_ends_to_its_main_container() {
    let mut world = World::standing(with_notices(), armed(), vec![asking("a", "USR1@90s")]);
    world.log.clear();
    world.event(notice(150));
    // The shutdown begins 50 s before the end, and the pod has 22 s in it.
    world.pass(ms(30_000));
    assert_eq!(signals(&world), [""; 0]);
    world.pass(ms(3_000));
    assert_eq!(signals(&world), ["signal a id-1 USR1@90s"]);
    assert_eq!(world.done(&["mark", "delete"]), [""; 0], "long before");
    world.pass(ms(200_000));
    assert_eq!(signals(&world).len(), 1, "once");
    let reasons: Vec<_> = world.reported.iter().map(|(reason, _)| *reason).collect();
    assert!(reasons.contains(&"EndSignalSent"), "{reasons:?}");
    assert_eq!(world.agent.status().end_signals, EndSignalTally { sent: 1, failed: 0 });
}

#[test]
fn signal_whose_time_has_passed_goes_at_once_and_before_the_end() {
    let mut world = World::standing(settings(), plain(), vec![asking("a", "HUP@90s")]);
    world.log.clear();
    world.shutdown(60);
    let order: Vec<_> = world.done(&["signal", "delete"]);
    let kinds: Vec<_> = order.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(kinds, ["signal", "delete"], "{order:?}");
}

#[test]
fn default_container_is_the_main_one() {
    let named = asking("a", "USR1@15m").with(|pod| {
        pod.details.default_container = Some("other".into());
    });
    let unknown = asking("b", "USR1@15m").with(|pod| {
        pod.details.default_container = Some("sidecar".into());
    });
    let mut world = World::standing(with_notices(), plain(), vec![named, unknown]);
    world.event(notice(600));
    assert_eq!(signals(&world), ["signal a id-2 USR1@900s", "signal b id-1 USR1@900s"]);
}

#[test]
fn nothing_is_sent_for_an_end_that_may_not_come_or_to_pods_that_cannot_take_it() {
    let uncertain = Event::EndingSeen(
        Source::Aws,
        Some(Ending { certain: false, ..Ending::certain(Some(ms(60_000)), None) }),
    );
    let mut world = World::standing(with_notices(), plain(), vec![asking("a", "USR1@15m")]);
    world.event(uncertain);
    assert_eq!(signals(&world), [""; 0]);
    let pods = vec![
        asking("a", "USR1@15m").with(|pod| pod.phase = crate::pod::Phase::Succeeded),
        asking("b", "USR1@15m").deleting(30),
        asking("c", "USR1@15m").with(|pod| pod.running_since = None),
        asking("d", "USR1@15m").with(|pod| pod.details.container_ids.clear()),
        of_job("e"),
    ];
    let mut world = World::standing(with_notices(), plain(), pods);
    world.event(notice(600));
    assert_eq!(signals(&world), [""; 0]);
    let observes = Settings { enforce: false, ..with_notices() };
    let mut world = World::standing(observes, plain(), vec![asking("a", "USR1@15m")]);
    world.event(notice(600));
    assert_eq!(signals(&world), [""; 0]);
}

#[test]
fn what_cannot_be_read_or_sent_is_said_once() {
    let no_runtime = Settings { runtime: false, ..with_notices() };
    for (settings, signal) in [(with_notices(), "TERM@90s"), (no_runtime, "USR1@15m")] {
        let mut world = World::standing(settings, plain(), vec![asking("a", signal)]);
        world.event(notice(600));
        world.pass(ms(60_000));
        assert_eq!(signals(&world), [""; 0]);
        let failed: Vec<_> =
            world.reported.iter().filter(|(reason, _)| *reason == "EndSignalFailed").collect();
        assert_eq!(failed.len(), 1, "{:?}", world.reported);
        assert_eq!(world.agent.status().end_signals, EndSignalTally { sent: 0, failed: 1 });
    }
}

#[test]
fn runtime_that_fails_is_asked_again_and_one_that_cannot_is_not() {
    let tries = |kind, times| {
        let mut world = World::standing(with_notices(), plain(), vec![asking("a", "USR1@15m")]);
        world.answers.insert("signal *".into(), Answer::Fail(kind, times));
        world.log.clear();
        world.event(notice(600));
        world.pass(ms(60_000));
        (signals(&world).len(), world.agent.status().end_signals)
    };
    let tally = |sent, failed| EndSignalTally { sent, failed };
    assert_eq!(tries(FailureKind::Unknown, 2), (3, tally(1, 0)));
    assert_eq!(tries(FailureKind::Unknown, 99), (5, tally(0, 1)));
    assert_eq!(tries(FailureKind::Other, 99), (1, tally(0, 1)));
    assert_eq!(tries(FailureKind::NotFound, 99), (1, tally(0, 0)));
}

#[test]
fn next_end_is_signalled_again_and_a_container_that_came_since_too() {
    let mut world = World::standing(with_notices(), plain(), vec![asking("a", "USR1@15m")]);
    world.event(notice(600));
    world.change("a", |pod| pod.details.container_ids = vec![("main".into(), "id-3".into())]);
    assert_eq!(signals(&world).len(), 2, "{:#?}", world.log);
    world.event(Event::EndingSeen(Source::Aws, None));
    world.event(notice(600));
    assert_eq!(signals(&world).len(), 3);
}
