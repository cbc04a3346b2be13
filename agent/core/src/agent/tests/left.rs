//! Tests that the agent claims no success for pods that a shutdown leaves without a terminal phase.

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::{LeftReason, Settings};
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView, RestartPolicy};
use crate::protocol::event::{Event, RuntimeState};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::candidates::BarePods;

const ALWAYS: u32 = u32::MAX;

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

fn left(world: &World) -> Vec<(LeftReason, usize)> {
    let shutdown = world.agent.status().shutdown.as_ref().expect("must have shut down");
    shutdown.left_at_release.clone().into_iter().collect()
}

fn last_reported(world: &World) -> (&'static str, &str) {
    let (reason, text) = world.reported.last().expect("must have reported");
    (reason, text)
}

/// A run in Replace in which deleted pods end at once.
fn replaced(settings: Settings, pods: Vec<PodView>) -> World {
    let mut world = World::standing(settings, plain(), pods);
    world.shutdown(40);
    let deleted: Vec<_> =
        world.pods.values().filter(|pod| pod.is_terminating()).map(|p| p.name.clone()).collect();
    for name in deleted {
        world.ends(&name, Phase::Failed);
    }
    world.pass(ms(45_000));
    assert!(world.released());
    world
}

#[test]
fn pods_without_a_terminator_are_counted_and_logged_by_the_reason() {
    let settings = || Settings { priority_max: 1_000, ..settings() };
    let daemon = || pod("daemon").owner(Owner::DaemonSet);
    let world = replaced(settings(), vec![job("a"), daemon()]);
    assert_eq!(left(&world), [(LeftReason::DaemonSet, 1)]);
    assert_eq!(last_reported(&world).0, "NodeShutdownComplete");

    let high = job("high").priority(1_001);
    let world = replaced(settings(), vec![job("a"), daemon(), high, pod("bare")]);
    assert_eq!(
        left(&world),
        [
            (LeftReason::DaemonSet, 1),
            (LeftReason::PriorityAboveMax, 1),
            (LeftReason::NoController, 1)
        ]
    );
    let (reason, text) = last_reported(&world);
    assert_eq!(reason, "NodeShutdownIncomplete");
    assert!(text.contains("1 DaemonSet, 1 PriorityAboveMax, 1 NoController"), "{text}");

    let deletes = Settings { bare_pods: BarePods::Delete, ..settings() };
    let world = replaced(deletes, vec![pod("bare")]);
    assert_eq!(last_reported(&world).0, "NodeShutdownComplete");
}

#[test]
fn a_pod_whose_end_was_refused_is_not_called_complete() {
    let mut world = World::standing(settings(), plain(), vec![job("a"), job("b")]);
    world.answers.insert("delete a 20".into(), Answer::Fail(FailureKind::Invalid, ALWAYS));
    world.shutdown(40);
    world.ends("b", Phase::Failed);
    world.pass(ms(45_000));
    assert_eq!(left(&world), [(LeftReason::NotTerminated, 1)]);
    let (reason, text) = last_reported(&world);
    assert_eq!(reason, "NodeShutdownIncomplete");
    assert!(text.contains("left to terminate with the machine: 1 NotTerminated"), "{text}");
}

#[test]
fn a_node_without_a_terminator_is_not_called_complete() {
    let blind = Settings { runtime: false, ..settings() };
    let mut world = World::standing(blind, dead(), vec![job("a"), pod("b")]);
    world.shutdown(40);
    world.pass(ms(45_000));
    assert_eq!(left(&world), [(LeftReason::NoTerminator, 2)]);
    assert_eq!(last_reported(&world).0, "NodeShutdownIncomplete");
}

#[test]
fn a_shutdown_before_the_first_list_is_not_called_complete() {
    let mut world = World::new(settings(), vec![job("a")]);
    world.event(Event::KubeletSeen(plain()));
    world.event(Event::LogindSeen(logind(false)));
    world.pass(ms(1_000));
    world.shutdown(10);
    world.pass(ms(15_000));
    let (reason, text) = last_reported(&world);
    assert_eq!(reason, "NodeShutdownIncomplete", "{text}");
    assert!(text.contains("the API has never shown which pods the node has"), "{text}");
}

/// The runtime shows containers that exited this long ago.
fn exited(world: &mut World, name: &str, code: i32, seconds_ago: u64) {
    let mut state: RuntimeState = runtime(&[Some(code)]);
    // Without a kubelet its sandbox remained.
    state.sandbox_ready = true;
    state.containers[0].finished_at = Some(wall(world.now.saturating_sub(ms(seconds_ago * 1_000))));
    world.runtime.insert(name.into(), state);
}

fn under_a_dead_kubelet(name: &str, seconds_ago: u64) -> World {
    let mut world = World::standing(settings(), dead(), vec![job(name), job("lives")]);
    exited(&mut world, name, 1, seconds_ago);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.shutdown(40);
    world
}

#[test]
fn a_pod_that_failed_before_the_shutdown_is_not_called_disrupted() {
    let mut world = under_a_dead_kubelet("failed", 600);
    assert_eq!(world.disrupted(), ["lives"], "{:#?}", world.log);
    assert_eq!(world.done(&["stop"]), ["0 stop lives 20"], "{:#?}", world.log);
    world.containers("lives", &[Some(143)]);
    world.let_go("stop");
    world.pass(ms(45_000));
    assert_eq!(world.done(&["mark", "fail"]).len(), 2, "{:#?}", world.log);
    assert_eq!(left(&world), [(LeftReason::ExitedBefore, 1)]);
}

#[test]
fn of_a_pod_that_failed_before_only_what_may_start_again_counts_as_running() {
    let own =
        || job("failed").sidecar().with(|pod| pod.restarts_in_place = RestartPolicy::OnFailure);
    for (pod, code, disrupted) in [
        (job("failed").sidecar(), 1, vec![]),
        (job("failed").sidecar(), 0, vec![]),
        (own(), 0, vec![]),
        (own(), 1, vec!["failed"]),
    ] {
        let mut world = World::standing(settings(), dead(), vec![pod]);
        exited(&mut world, "failed", code, 600);
        let state = world.runtime.get_mut("failed").expect("must be there");
        let mut sidecar = runtime(&[None]).containers.remove(0);
        sidecar.name = "sidecar".into();
        state.containers.push(sidecar);
        world.answers.insert("stop *".into(), Answer::Hold);
        world.shutdown(40);
        assert_eq!(world.disrupted(), disrupted, "{code}: {:#?}", world.log);
    }
}

#[test]
fn a_pod_that_had_exited_is_awaited_once_its_kubelet_is_back() {
    // Simulation seed 9667855: the lock went 25 ms before the kubelet's report.
    let mut world = under_a_dead_kubelet("failed", 600);
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(4_000));
    world.ends("lives", Phase::Failed);
    world.let_go("stop");
    world.pass(ms(5_000));
    assert!(!world.released(), "{:#?}", world.log);
    world.ends("failed", Phase::Failed);
    world.pass(ms(1_000));
    assert!(world.released(), "{:#?}", world.log);
    assert_eq!(world.disrupted(), ["lives"]);
}

#[test]
fn a_pod_that_had_exited_keeps_its_own_result_if_its_kubelet_says_nothing() {
    let mut world = under_a_dead_kubelet("failed", 600);
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(4_000));
    world.ends("lives", Phase::Failed);
    world.let_go("stop");
    world.pass(ms(45_000));
    assert!(world.released());
    assert_eq!(world.done(&["fail"]), [""; 0], "{:#?}", world.log);
    let shutdown = world.agent.status().shutdown.as_ref().expect("must have shut down");
    assert_eq!(shutdown.unreported_at_release, Some(1));
}

#[test]
fn a_pod_that_failed_before_the_shutdown_is_not_called_disrupted_after_the_boot() {
    let mut world = under_a_dead_kubelet("failed", 600);
    world.pods.get_mut("failed").expect("must be a pod").running_since =
        "2026-11-21T13:50:00Z".parse().ok();
    world.pass(ms(45_000));
    let noted = |record: &Record| matches!(record, Record::Intent { intent: Intent::LeaveExited, name, .. } if name == "failed");
    assert!(world.journal.iter().any(noted), "{:#?}", world.journal);
    world.answers.clear();
    world.now += ms(3_600_000);
    world.restart(Settings { boot_id: "boot-2".into(), ..settings() });
    world.started(plain(), false);
    world.pass(ms(10_000));
    assert_eq!(world.disrupted(), ["lives"], "{:#?}", world.log);
}

#[test]
fn an_agent_that_was_restarted_leaves_a_pod_that_had_exited() {
    // With the lock held, and after its release, when no runtime is asked any more.
    for released in [false, true] {
        let mut world = under_a_dead_kubelet("failed", 600);
        if released {
            world.let_go("stop");
            world.pass(ms(45_000));
            assert!(world.released());
        }
        world.restart(settings());
        world.started(dead(), true);
        world.pass(ms(45_000));
        assert_eq!(world.disrupted(), ["lives"], "{released} {:#?}", world.log);
        let touched =
            |line: &String| line.ends_with("mark failed") || line.ends_with("fail failed");
        assert!(!world.log.iter().any(touched), "{released} {:#?}", world.log);
    }
}

#[test]
fn a_pod_that_exited_about_the_time_of_the_notice_is_disrupted() {
    let world = under_a_dead_kubelet("exits", 5);
    assert_eq!(world.disrupted(), ["exits", "lives"], "{:#?}", world.log);
}

#[test]
fn a_runtime_that_does_not_answer_holds_up_marks_for_half_of_their_time() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    world.answers.insert("inspect *".into(), Answer::Hold);
    world.shutdown(40);
    assert_eq!(world.disrupted(), [""; 0]);
    world.pass(ms(1_100));
    assert_eq!(world.disrupted(), ["a"], "{:#?}", world.log);
}

/// A pod of a ReplicaSet that comes after the signal.
fn latecomer(tolerates: bool) -> World {
    let mut world = World::standing(settings(), plain(), vec![job("a")]);
    world.shutdown(40);
    let late = pod("late").owner(Owner::Other).not_started();
    let late = late.with(|pod| pod.details.tolerates_shutdown = tolerates);
    world.pods.insert("late".into(), late);
    world.change("late", |_| {});
    world.ends("a", Phase::Failed);
    world
}

#[test]
fn a_pod_that_would_come_again_is_not_deleted() {
    let world = latecomer(false);
    assert_eq!(world.done(&["delete"]).len(), 2);
    let mut world = latecomer(true);
    assert_eq!(world.done(&["delete"]).len(), 1, "{:#?}", world.log);
    world.pass(ms(45_000));
    assert_eq!(left(&world), [(LeftReason::ToleratesShutdown, 1)]);
    assert_eq!(world.disrupted(), ["a"]);
}

#[test]
fn a_long_delay_is_used_up_by_no_hung_container() {
    for facts in [plain(), dead()] {
        let mut world = World::standing(settings(), facts, vec![job("hangs")]);
        world.containers("hangs", &[None]);
        world.shutdown(600);
        world.pass(ms(38_000));
        assert!(!world.released(), "its priority group and the reports have their time");
        world.pass(ms(2_000));
        assert!(world.released(), "{:#?}", world.log);
        assert_eq!(last_reported(&world).0, "NodeShutdownIncomplete");
    }
}

/// A pod with a persistent volume, deleted in a shutdown, is terminal in the API.
fn ended_with_volume() -> World {
    let pod = job("a").with(|pod| pod.details.persistent_volumes = true);
    let mut world = World::standing(settings(), plain(), vec![pod, job("b")]);
    world.shutdown(40);
    for name in ["a", "b"] {
        world.ends(name, Phase::Failed);
    }
    world.pass(ms(5_000));
    world
}

#[test]
fn the_lock_is_held_while_the_kubelet_unmounts_persistent_volumes() {
    let mut world = ended_with_volume();
    assert!(!world.released(), "another node could not attach it for minutes");
    world.gone("a");
    assert!(world.released());
    assert_eq!(last_reported(&world).0, "NodeShutdownComplete");

    // A finalizer keeps the object; the kubelet's last deletion shows the unmount as well.
    let mut world = ended_with_volume();
    world.change("a", |pod| pod.deletion_grace_seconds = Some(0));
    assert!(world.released());

    // A kubelet that died unmounts nothing.
    let mut world = ended_with_volume();
    world.event(Event::KubeletSeen(dead()));
    world.pass(ms(5_000));
    assert!(world.released());

    let mut world = ended_with_volume();
    world.pass(ms(40_000));
    assert!(world.released());
    let (_, text) = last_reported(&world);
    assert!(text.contains("volumes are still mounted, of pods: 1"), "{text}");
}
