//! Tests how a shutdown goes with a kubelet that stops, hangs, restarts or is dead.

use super::driver::*;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::protocol::event::{Event, NodeView, RuntimeState};
use crate::protocol::node::{Healthz, KubeletFacts, MainPort, Unit};
use crate::shutdown::Mode;

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

/// A process that SIGSTOP holds: ports, lock and lease stay.
fn stopped(before: &KubeletFacts) -> KubeletFacts {
    let (healthy, main_port) = (Some(Healthz::Silent), Some(MainPort::Silent));
    KubeletFacts { healthy, main_port, ..before.clone() }
}

/// A sync loop that hangs next to a ping that is answered.
fn stuck(before: &KubeletFacts) -> KubeletFacts {
    KubeletFacts { main_port: Some(MainPort::Stuck), ..before.clone() }
}

/// Killed, and systemd starts it again.
fn restarting() -> KubeletFacts {
    KubeletFacts { unit: Some(Unit::Changing), ..dead() }
}

fn mode(world: &World) -> Option<Mode> {
    world.agent.status().mode
}

fn running_job(facts: KubeletFacts) -> World {
    let mut world = World::standing(settings(), facts, vec![job("a")]);
    world.containers("a", &[Some(143)]);
    world
}

#[test]
fn a_kubelet_that_is_stopped_is_found_within_seconds_of_a_shutdown() {
    for before in [plain(), armed()] {
        let mut world = running_job(before.clone());
        world.shutdown(40);
        // Two questions of 2 s each remain without an answer.
        world.pass(ms(2_000));
        world.event(Event::KubeletSeen(stopped(&before)));
        world.pass(ms(2_200));
        world.event(Event::KubeletSeen(stopped(&before)));
        world.pass(ms(1_000));
        assert_eq!(mode(&world), Some(Mode::Substitute), "{:#?}", world.logged);
        assert_eq!(world.done(&["stop"]).len(), 1, "{:#?}", world.log);
    }
}

#[test]
fn a_kubelet_that_is_only_slow_is_left_at_work() {
    let mut world = running_job(plain());
    world.shutdown(40);
    for _ in 0..6 {
        world.pass(ms(2_200));
        world.event(Event::KubeletSeen(stopped(&plain())));
        world.pass(ms(1_500));
        world.event(Event::KubeletSeen(plain()));
    }
    assert_eq!(mode(&world), Some(Mode::Replace));
    assert_eq!(world.done(&["stop"]), [""; 0]);
}

#[test]
fn silence_outside_of_a_shutdown_proves_nothing_before_the_lease_is_over() {
    let mut world = running_job(plain());
    for _ in 0..5 {
        world.event(Event::KubeletSeen(stopped(&plain())));
        world.pass(ms(60_000));
    }
    assert_eq!(mode(&world), Some(Mode::Replace));
    // In a shutdown the next sight decides.
    world.shutdown(40);
    world.pass(ms(2_000));
    world.event(Event::KubeletSeen(stopped(&plain())));
    assert_eq!(mode(&world), Some(Mode::Substitute));
}

#[test]
fn a_sync_loop_that_hangs_next_to_a_fresh_lease_is_found_at_once() {
    for before in [plain(), armed()] {
        let mut world = running_job(stuck(&before));
        world.shutdown(40);
        assert_eq!(mode(&world), Some(Mode::Substitute));
        assert_eq!(world.done(&["stop", "delete"]), ["0 stop a 20"], "{:#?}", world.log);
    }
}

#[test]
fn nothing_is_stopped_while_systemd_starts_the_kubelet_again() {
    for before in [plain(), armed()] {
        let mut world = running_job(before);
        world.shutdown(40);
        world.pass(ms(300));
        for _ in 0..5 {
            world.event(Event::KubeletSeen(restarting()));
            world.pass(ms(2_200));
        }
        assert_eq!(world.done(&["stop"]), [""; 0], "{:#?}", world.logged);
        world.event(Event::KubeletSeen(plain()));
        world.pass(ms(10_000));
        assert_eq!(mode(&world), Some(Mode::Replace));
        assert_eq!(world.done(&["stop"]), [""; 0], "{:#?}", world.logged);
        assert_eq!(world.done(&["delete"]).len(), 1, "{:#?}", world.log);
    }
}

#[test]
fn a_kubelet_that_does_not_come_back_is_replaced_after_a_third_of_the_time() {
    let mut world = running_job(plain());
    world.shutdown(30);
    for _ in 0..6 {
        world.event(Event::KubeletSeen(restarting()));
        world.pass(ms(2_200));
    }
    assert_eq!(mode(&world), Some(Mode::Substitute));
    assert_eq!(world.done(&["stop"]).len(), 1, "{:#?}", world.log);
}

#[test]
fn a_kubelet_that_crashes_again_and_again_is_not_waited_for_anew() {
    let mut world = running_job(plain());
    let starts = KubeletFacts { unit: Some(Unit::Active), ..dead() };
    for _ in 0..4 {
        world.event(Event::KubeletSeen(restarting()));
        world.pass(ms(10_000));
        world.event(Event::KubeletSeen(starts.clone()));
        world.pass(ms(1_000));
    }
    world.event(Event::KubeletSeen(restarting()));
    world.shutdown(40);
    assert_eq!(mode(&world), Some(Mode::Substitute));
}

/// A node whose kubelet was dead before the signal, with pods that the runtime still runs.
fn dead_before() -> World {
    let pods = vec![job("a"), pod("daemon").owner(Owner::DaemonSet)];
    let mut world = World::standing(settings(), dead(), pods);
    world.containers("a", &[Some(143)]);
    world.containers("daemon", &[None]);
    world
}

#[test]
fn in_place_of_a_dead_kubelet_the_node_is_tainted_and_daemon_sets_pods_are_left() {
    let mut world = dead_before();
    world.shutdown(40);
    assert_eq!(world.done(&["taint"]), ["0 taint true"]);
    assert_eq!(world.done(&["stop"]), ["0 stop a 20"], "{:#?}", world.log);
    assert_eq!(world.done(&["fail"]), ["0 fail a"]);
}

#[test]
fn what_comes_in_place_of_what_ended_is_not_failed_again_and_again() {
    let mut world = dead_before();
    // The lock is held on.
    world.runtime.insert("a".into(), RuntimeState::default());
    world.shutdown(40);
    for number in 0..5 {
        for owner in [Owner::Job, Owner::Other, Owner::DaemonSet] {
            let name = format!("{owner:?}-{number}").to_lowercase();
            let late = pod(&name).owner(owner).not_started();
            world.pods.insert(name.clone(), late);
            world.change(&name, |_| {});
            world.pass(ms(200));
        }
    }
    world.pass(ms(60_000));
    let failed: Vec<_> = world.pods.values().filter(|pod| pod.phase == Phase::Failed).collect();
    assert!(failed.iter().all(|pod| pod.name == "a"), "{failed:#?}");
    assert!(world.released());
    let last = world.reported.iter().rfind(|(reason, _)| reason.starts_with("NodeShutdown"));
    let (reason, text) = last.expect("the end must be reported");
    assert_eq!(*reason, "NodeShutdownIncomplete", "{text}");
}

#[test]
fn a_node_is_tainted_where_its_own_kubelet_shuts_down() {
    let mut world = World::standing(settings(), armed(), vec![job("a")]);
    world.shutdown(45);
    assert_eq!(world.done(&["taint"]), ["0 taint true"]);
    world.cancel();
    assert!(!world.tainted, "{:#?}", world.log);
}

#[test]
fn nothing_is_called_complete_without_the_proof_that_nothing_runs() {
    let end = |of_the_unseen: &[Option<i32>]| {
        let mut world = World::standing(settings(), dead(), vec![job("a")]);
        world.runtime.insert("unseen".into(), runtime(of_the_unseen));
        world.shutdown(20);
        assert!(world.released(), "it has nothing to wait for: {:?}", world.log);
        world.reported.last().cloned().expect("the end must be reported")
    };
    let (reason, text) = end(&[None]);
    assert_eq!(reason, "NodeShutdownIncomplete");
    assert!(text.contains("not proven that nothing runs"), "{text}");
    let (reason, text) = end(&[Some(0)]);
    assert_eq!(reason, "NodeShutdownComplete", "{text}");
}

#[test]
fn the_numbers_of_the_release_add_up() {
    let pods = vec![job("a"), pod("bare"), pod("daemon").owner(Owner::DaemonSet)];
    let mut world = World::standing(settings(), plain(), pods);
    world.containers("bare", &[None]);
    world.shutdown(40);
    world.ends("a", Phase::Failed);
    world.pass(ms(45_000));
    let last = world.reported.iter().rfind(|(reason, _)| reason.starts_with("NodeShutdown"));
    let (_, text) = last.expect("the end must be reported");
    let numbers = "of 3 pods, 1 are terminal in the API, 0 are not yet, 2 are left to terminate \
                   with the machine: 1 DaemonSet, 1 NoController";
    assert!(text.contains(numbers), "{text}");
}

#[test]
fn a_kubelet_that_starts_after_the_agent_changes_nothing_in_the_readiness() {
    let mut world = World::new(settings(), vec![]);
    world.node_says = Some("idle".into());
    world.event(Event::NodeObserved(NodeView::default()));
    world.started(dead(), false);
    world.event(Event::NodeObserved(NodeView::default()));
    world.pass(ms(5_000));
    let readiness = world.readiness.clone().unwrap_or_default();
    assert!(!readiness.contains("substitute"), "{readiness}");
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(1_000));
    let readiness = world.readiness.clone().unwrap_or_default();
    assert!(readiness.contains("mode=replace"), "{readiness}");
    world.event(Event::KubeletSeen(dead()));
    world.pass(ms(31_000));
    let readiness = world.readiness.clone().unwrap_or_default();
    assert!(readiness.contains("mode=substitute"), "{readiness}");
}
