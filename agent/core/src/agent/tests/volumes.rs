//! Tests that the lock is held until the kubelet reports that no ended pod's volume is in use.

use super::driver::*;
use crate::agent::tests::driver::World;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::{Event, NodeView, VolumesInUse};
use crate::protocol::node::KubeletFacts;

const ONE: &str = "kubernetes.io/csi/driver^one";
const TWO: &str = "kubernetes.io/csi/driver^two";

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

fn with_volume(pod: PodView) -> PodView {
    pod.with(|pod| pod.details.attachable_volumes = 1)
}

/// The kubelet reports these volumes as in use.
fn in_use(world: &mut World, names: &[&str]) {
    let volumes_in_use = VolumesInUse::of(names.iter().map(|&name| name.to_owned()));
    let (announced, tainted) = (world.node_says.clone(), world.tainted);
    let view = NodeView { announced, tainted, volumes_in_use, ..NodeView::default() };
    world.event(Event::NodeObserved(view));
}

/// A shutdown whose pods have ended, with volumes that are in use.
fn ended(facts: KubeletFacts, pods: Vec<PodView>, names: &[&str]) -> World {
    let mut world = World::standing(settings(), facts, pods);
    in_use(&mut world, names);
    world.pass(ms(60_000));
    world.shutdown(40);
    world.pass(ms(3_000));
    let going_on = world.pods.values().filter(|pod| pod.owner == Owner::Job && !pod.is_terminal());
    let going_on: Vec<_> = going_on.map(|pod| pod.name.clone()).collect();
    for name in going_on {
        world.ends(&name, Phase::Failed);
    }
    world.pass(ms(2_000));
    world
}

fn last(world: &World) -> (&'static str, &str) {
    let (reason, text) = world.reported.last().expect("must have reported");
    (reason, text)
}

#[test]
fn the_lock_is_held_until_no_volume_is_in_use() {
    for facts in [plain(), armed()] {
        let mut world = ended(facts, vec![with_volume(job("a"))], &[ONE]);
        assert!(!world.released(), "{:#?}", world.logged);
        let said = |world: &World, what: &str| world.logged.iter().any(|it| it.contains(what));
        assert!(said(
            &world,
            "waits until volumes are not in use: 1 (kubernetes.io/csi/driver^one"
        ));
        world.pass(ms(8_000));
        assert!(!world.released());
        in_use(&mut world, &[]);
        world.pass(ms(1_000));
        assert!(world.released(), "{:#?}", world.logged);
        assert_eq!(last(&world).0, "NodeShutdownComplete");
    }
}

#[test]
fn a_pod_that_was_gone_before_the_shutdown_may_leave_a_volume_in_use() {
    let mut world = ended(plain(), vec![job("a")], &[ONE]);
    assert!(!world.released());
    in_use(&mut world, &[]);
    assert!(world.released());
}

#[test]
fn a_volume_that_stays_in_use_is_named_when_the_time_is_over() {
    for facts in [plain(), armed()] {
        let mut world = ended(facts, vec![job("a")], &[ONE, TWO]);
        world.pass(ms(45_000));
        assert!(world.released());
        let (reason, text) = last(&world);
        assert_eq!(reason, "NodeShutdownIncomplete");
        let named = "volumes are in use: 2 (kubernetes.io/csi/driver^one, \
                     kubernetes.io/csi/driver^two)";
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn the_drained_record_does_not_wait_for_a_volume_that_hangs() {
    let mut world = ended(plain(), vec![job("a")], &[ONE]);
    world.pass(ms(45_000));
    let said = world.node_says.as_deref().unwrap_or_default();
    assert!(said.starts_with("drained"), "{said}");
}

#[test]
fn a_kubelet_that_is_dead_reports_no_volume() {
    let mut world = ended(plain(), vec![job("a")], &[ONE]);
    world.event(Event::KubeletSeen(dead()));
    world.pass(ms(5_000));
    assert!(world.released(), "{:#?}", world.logged);
    let (reason, text) = last(&world);
    assert_eq!(reason, "NodeShutdownIncomplete");
    assert!(text.contains("volumes are in use: 1"), "{text}");
}

#[test]
fn volumes_of_pods_that_go_on_hold_the_lock_no_longer_than_a_kubelet_takes_to_report() {
    let daemon = || with_volume(pod("daemon").owner(Owner::DaemonSet));
    // All was quiet for a minute: the volume is the DaemonSet's.
    let world = ended(plain(), vec![job("a"), daemon()], &[ONE]);
    assert!(world.released(), "{:#?}", world.logged);
    assert_eq!(last(&world).0, "NodeShutdownComplete");
    // Either may be the one that stays.
    let mut world = ended(plain(), vec![with_volume(job("a")), daemon()], &[ONE, TWO]);
    assert!(!world.released());
    in_use(&mut world, &[TWO]);
    world.pass(ms(11_000));
    assert!(!world.released());
    world.pass(ms(2_000));
    assert!(world.released(), "{:#?}", world.logged);
    assert_eq!(last(&world).0, "NodeShutdownComplete");
    // More than the pod that goes on has.
    let mut world = ended(plain(), vec![job("a"), daemon()], &[ONE, TWO]);
    world.pass(ms(20_000));
    assert!(!world.released());
    world.pass(ms(20_000));
    let (_, text) = last(&world);
    assert!(text.contains("; pods that go on may use 1 of them)"), "{text}");
}

#[test]
fn a_stop_that_logind_does_not_announce_waits_for_no_volume() {
    let mut world = World::standing(settings(), plain(), vec![job("a")]);
    in_use(&mut world, &[ONE]);
    world.event(Event::EndingSeen(Source::Systemd, Some(Ending::certain(None, None))));
    world.event(Event::StopRequested);
    world.ends("a", Phase::Failed);
    assert!(world.released(), "{:#?}", world.logged);
}
