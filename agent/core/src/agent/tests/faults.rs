//! Tests failures of the API, the disk and the clock.

use std::collections::BTreeMap;

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::protocol::event::{Event, NodeView};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::candidates::BarePods;

const ALWAYS: u32 = u32::MAX;

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

fn replace(pods: Vec<PodView>) -> World {
    World::standing(settings(), plain(), pods)
}

fn failing(kind: FailureKind, times: u32) -> Answer {
    Answer::Fail(kind, times)
}

#[test]
fn a_pod_that_changed_is_read_and_decided_about_again() {
    let mut world = replace(vec![job("a")]);
    world.pods.get_mut("a").expect("must be a pod").resource_version = "99".into();
    world.shutdown(40);
    let expected = ["0 mark a", "0 read a", "0 mark a", "0 delete a 20"];
    assert_eq!(world.done(&["mark", "read", "delete"]), expected);
}

#[test]
fn a_pod_is_ended_at_the_version_that_carries_its_mark_or_read_again_at_once() {
    for (bare_pods, end) in
        [(BarePods::Delete, "0 delete a 20"), (BarePods::DeadlineLever, "0 deadline a")]
    {
        for changes in [false, true] {
            let settings = Settings { bare_pods, ..settings() };
            let mut world = World::standing(settings, plain(), vec![pod("a").never()]);
            world.answers.insert("mark *".into(), Answer::Hold);
            world.shutdown(40);
            let (id, _, action) = world.held.remove(0);
            let result = world.carry_out_unseen(&action);
            if changes {
                world.change_unseen("a");
            }
            world.event(Event::Finished { id, result });
            let read = changes.then_some(["0 read a", end]).into_iter().flatten();
            let expected: Vec<_> = ["0 mark a", end].into_iter().chain(read).collect();
            assert_eq!(world.done(&["mark", "read", "delete", "deadline"]), expected);
            assert!(world.pods["a"].is_to_end());
        }
    }
}

#[test]
fn a_deletion_that_the_api_shows_is_recorded_and_reported_once_by_whoever_it_was() {
    // Whether ours was carried out without an answer, and whether the watch shows it before the
    // next attempt.
    for (ours, seen, expected) in [
        (true, true, "PodStopped"),
        (true, false, "PodStopped"),
        (false, true, "PodDisrupted"),
        (false, false, "PodDisrupted"),
    ] {
        let mut world = replace(vec![job("a")]);
        world.answers.insert("delete *".into(), Answer::Hold);
        world.shutdown(40);
        let (id, _, action) = world.held.remove(0);
        world.answers.clear();
        if ours {
            world.carry_out_unseen(&action);
        } else {
            world.pods.get_mut("a").expect("must be a pod").deletion_grace_seconds = Some(5);
            world.change_unseen("a");
        }
        if seen {
            let pod = world.pods["a"].clone();
            world.event(Event::PodObserved(Box::new(pod)));
        }
        if ours {
            world.time_out(id, &action);
        } else {
            let result = world.carry_out_unseen(&action);
            world.event(Event::Finished { id, result });
        }
        world.pass(ms(500));
        let case = format!("{ours} {seen} {:#?}", world.log);
        let reasons = world.reported.iter().map(|(reason, _)| *reason);
        let of_pod: Vec<_> = reasons.filter(|reason| reason.starts_with("Pod")).collect();
        assert_eq!(of_pod, [expected], "{case}");
        let uid = &world.pods["a"].uid;
        let ended = Record::acknowledged(uid, Intent::End);
        assert_eq!(world.journal.iter().filter(|it| **it == ended).count(), 1, "{case}");
    }
}

#[test]
fn a_pod_whose_mark_was_refused_is_deleted_at_whatever_version_it_has() {
    let mut world = replace(vec![job("a")]);
    world.answers.insert("mark *".into(), failing(FailureKind::Invalid, ALWAYS));
    world.change_unseen("a");
    world.shutdown(40);
    let expected = ["0 mark a", "0 delete a 20", "0 read a", "0 delete a 20"];
    assert_eq!(world.done(&["mark", "read", "delete"]), expected);
    assert!(world.pods["a"].is_terminating());
}

#[test]
fn a_pod_that_ended_by_itself_meanwhile_keeps_its_own_result() {
    for phase in [Phase::Succeeded, Phase::Failed] {
        let mut world = replace(vec![job("a")]);
        let pod = world.pods.get_mut("a").expect("must be a pod");
        pod.resource_version = "99".into();
        pod.phase = phase;
        world.shutdown(40);
        assert_eq!(world.done(&["mark", "read", "delete"]), ["0 mark a", "0 read a"]);
        assert_eq!(world.disrupted(), [""; 0]);
        assert!(world.released());
    }
}

#[test]
fn a_pod_that_is_gone_is_done() {
    let mut world = replace(vec![job("a"), job("b")]);
    world.pods.remove("a");
    world.shutdown(40);
    assert_eq!(world.done(&["mark", "delete"]), ["0 mark a", "0 mark b", "0 delete b 20"]);
    world.pods.remove("b");
    world.answers.insert("inspect *".into(), Answer::Hold);
    world.list();
    assert!(
        world.agent.status().shutdown.as_ref().is_some_and(|shutdown| shutdown.unreported == 0)
    );
}

#[test]
fn a_refused_mark_does_not_hold_up_the_end() {
    let mut world = replace(vec![job("a"), job("b")]);
    world.answers.insert("mark a".into(), failing(FailureKind::Invalid, ALWAYS));
    world.shutdown(40);
    let expected = ["0 mark a", "0 mark b", "0 delete a 20", "0 delete b 20"];
    assert_eq!(world.done(&["mark", "delete"]), expected);
}

#[test]
fn what_passes_is_tried_again() {
    for kind in [FailureKind::TooManyRequests, FailureKind::ServerError, FailureKind::Unknown] {
        let mut world = replace(vec![job("a")]);
        world.answers.insert("mark a".into(), failing(kind, 2));
        world.shutdown(40);
        world.pass(ms(1_000));
        assert_eq!(world.done(&["mark"]).len(), 3, "{kind:?}");
        assert_eq!(world.disrupted(), ["a"]);
        assert_eq!(world.done(&["delete"]).len(), 1);
    }
}

#[test]
fn a_mark_whose_answer_was_lost_is_found_to_stand() {
    let mut world = replace(vec![job("a")]);
    world.answers.insert("mark a".into(), Answer::Hold);
    world.shutdown(40);
    let (id, _, action) = world.held.remove(0);
    world.lose_answer(id, &action);
    world.answers.clear();
    world.pass(ms(1_000));
    assert_eq!(world.done(&["mark", "read"]), ["0 mark a"], "the watch has shown it");
    assert_eq!(world.done(&["delete"]).len(), 1);
}

#[test]
fn an_end_through_the_api_waits_for_its_mark_unless_that_is_refused_for_good() {
    // The agent never terminates a pod before its cause is in the API, however slow the API is.
    let mut world = replace(vec![job("a")]);
    world.answers.insert("mark a".into(), failing(FailureKind::TooManyRequests, ALWAYS));
    world.shutdown(40);
    world.pass(ms(9_000));
    assert_eq!(world.done(&["delete"]), [""; 0]);
    world.answers.clear();
    world.pass(ms(1_000));
    assert_eq!(world.done(&["delete"]).len(), 1);
    // A DisruptionTarget that is refused for good does not block the termination. ([AP14])
    let mut world = replace(vec![job("a")]);
    world.answers.insert("mark a".into(), failing(FailureKind::Invalid, ALWAYS));
    world.shutdown(40);
    assert_eq!(world.done(&["delete"]), ["0 delete a 20"]);
}

#[test]
fn without_an_api_the_lock_is_held_to_the_end_and_the_journal_knows_all() {
    // The API is unreachable from each step on. ([AP21])
    for from in [0, 100, 2_000, 3_000, 20_000, 33_500, 38_500] {
        for facts in [plain(), armed(), dead()] {
            let mut world = World::standing(settings(), facts.clone(), vec![job("a"), job("b")]);
            world.containers("a", &[None]);
            if from == 0 {
                world.answers.insert("*".into(), failing(FailureKind::Unknown, ALWAYS));
            }
            world.shutdown(40);
            world.pass(ms(from));
            world.answers.insert("*".into(), failing(FailureKind::Unknown, ALWAYS));
            world.pass(ms(38_999 - from));
            assert!(!world.released(), "{from} {facts:?}");
            world.pass(ms(600));
            assert!(world.released(), "{from} {facts:?}");
            assert_eq!(
                world.done(&["fail", "fail"]).iter().filter(|l| l.contains(" a")).count(),
                0
            );
            assert!(format!("{:?}", world.journal).contains("Released { unreported: [PodUid"));
            // The API comes back after the release.
            world.answers.clear();
            world.pass(ms(40_000));
            assert_eq!(world.disrupted(), ["a", "b"], "{from} {facts:?}");
        }
    }
}

#[test]
fn a_disk_that_does_not_write_costs_only_the_first_step_s_time() {
    let mut world = replace(vec![job("a")]);
    world.answers.insert("journal *".into(), failing(FailureKind::Other, ALWAYS));
    world.shutdown(40);
    world.pass(ms(149));
    assert_eq!(world.done(&["mark"]), [""; 0]);
    world.pass(ms(1));
    assert_eq!(world.done(&["mark"]), ["150 mark a"]);
    world.ends("a", Phase::Failed);
    world.pass(ms(40_000));
    assert!(world.released());
    assert_eq!(world.logged.iter().filter(|line| line.contains("cannot be written")).count(), 1);
}

#[test]
fn after_a_freeze_it_goes_on_where_the_clock_is() {
    // Deadlines are compared again after a freeze. ([AP10])
    let mut world = replace(vec![job("a"), job("critical").priority(2_000_000_000)]);
    world.shutdown(20);
    assert_eq!(world.done(&["delete"]), ["0 delete a 10"]);
    world.freeze(ms(10_000));
    world.pass(ms(4_000));
    // Its share is cut to the remaining time.
    assert_eq!(world.done(&["delete"])[1..], ["10666 delete critical 5"]);
    world.freeze(ms(30_000));
    assert!(world.released());
    let mut world = replace(vec![job("a")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(20);
    world.freeze(ms(30_000));
    assert!(world.released());
    assert_eq!(world.done(&["delete"]), [""; 0], "no kill that the agent could not wait for");
}

#[test]
fn calls_at_once_are_limited() {
    let mut settings = settings();
    settings.in_flight_max = 4;
    let pods = (0..20).map(|n| job(&format!("p{n:02}"))).collect();
    let mut world = World::standing(settings, plain(), pods);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    assert_eq!(world.held.len(), 4);
    world.let_go("mark");
    assert_eq!(world.disrupted().len(), 20);
}

#[test]
fn a_phase_is_written_again_only_after_a_check() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    world.answers.insert("fail a".into(), failing(FailureKind::Unknown, 2));
    world.shutdown(40);
    world.pass(ms(2_000));
    let checks = ["read a", "inspect a", "fail a"];
    let expected = [&["inspect a", "fail a"][..], &checks, &checks].concat();
    let done = world.done(&["fail", "read", "inspect"]);
    let done: Vec<_> = done.iter().filter_map(|line| line.split_once(' ')).map(|l| l.1).collect();
    assert_eq!(done, expected);
}

#[test]
fn a_kubelet_that_wakes_keeps_its_phases() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.shutdown(40);
    world.event(Event::KubeletSeen(plain()));
    world.let_go("stop");
    world.pass(ms(10_000));
    assert_eq!(world.done(&["fail", "fail"]), [""; 0]);
    world.ends("a", Phase::Failed);
    assert!(world.released());
}

#[test]
fn a_kubelet_that_goes_away_in_a_shutdown_is_stood_in_for() {
    let mut world = World::standing(settings(), armed(), vec![job("a"), job("b")]);
    world.shutdown(40);
    world.pass(ms(5_000));
    world.event(Event::KubeletSeen(dead()));
    world.pass(ms(2_999));
    assert_eq!(world.done(&["stop"]), [""; 0]);
    world.pass(ms(1));
    assert_eq!(world.done(&["stop", "fail"]).len(), 4);
    assert_eq!(world.pods["a"].phase, Phase::Failed);
}

#[test]
fn the_answer_to_an_event_says_whether_the_api_answers() {
    let after_a_shutdown = |unanswered: &[&str]| {
        let mut world = World::standing(settings(), plain(), vec![]);
        assert!(world.agent.status().api_reachable);
        for call in unanswered {
            world.answers.insert((*call).into(), failing(FailureKind::Unknown, ALWAYS));
        }
        world.shutdown(30);
        assert_eq!(world.reported.last().map(|(reason, _)| *reason), Some("NodeShutdownStarted"));
        world.agent.status().api_reachable
    };
    assert!(!after_a_shutdown(&["*"]));
    assert!(after_a_shutdown(&["announce *", "taint *"]));
}

#[test]
fn time_in_which_the_api_is_silent_does_not_count() {
    // 40 s are enough for the groups and their reports; 90 s are granted. ([AP13])
    let mut world = replace(vec![job("a")]);
    world.answers.insert("*".into(), failing(FailureKind::Unknown, ALWAYS));
    world.shutdown(90);
    world.pass(ms(42_000));
    assert!(!world.released(), "{:?}", world.logged);
    world.answers.clear();
    world.pass(ms(3_000));
    assert_eq!(world.done(&["delete"]).len(), 1, "{:?}", world.log);
    world.ends("a", Phase::Failed);
    assert!(world.released());
    assert_eq!(world.disrupted(), ["a"]);
}

#[test]
fn a_silent_api_holds_the_lock_no_longer_than_granted() {
    for facts in [plain(), armed()] {
        let mut world = World::standing(settings(), facts, vec![job("a")]);
        world.answers.insert("*".into(), failing(FailureKind::Unknown, ALWAYS));
        world.shutdown(60);
        world.pass(ms(45_000));
        assert!(!world.released(), "{:?}", world.logged);
        world.pass(ms(15_000));
        assert!(world.released(), "{:?}", world.logged);
    }
}

#[test]
fn what_a_watch_shows_ends_the_silence_of_the_api() {
    // 40 s are enough for the groups and their reports; 90 s are granted. From 6 s on, calls stay
    // without any answer.
    type Shows = fn(&mut World);
    let shows: [Shows; 3] = [
        |world| world.change("b", |pod| pod.has_run = true),
        |world| world.gone("b"),
        |world| world.event(Event::NodeObserved(NodeView::default())),
    ];
    for (row, shows) in shows.into_iter().enumerate() {
        let mut world = replace(vec![job("a"), job("b")]);
        world.answers.insert("*".into(), failing(FailureKind::Unknown, ALWAYS));
        world.shutdown(90);
        world.pass(ms(5_000));
        world.answers.insert("*".into(), Answer::Hold);
        world.pass(ms(1_000));
        shows(&mut world);
        world.pass(ms(38_000));
        assert!(!world.released(), "row {row}: {:?}", world.logged);
        world.pass(ms(2_000));
        assert!(world.released(), "row {row}: {:?}", world.logged);
    }
}

/// The API has these pods again, as a backup of etcd does.
fn restore(world: &mut World, backup: &BTreeMap<String, PodView>) {
    world.log.clear();
    world.pods.clone_from(backup);
    world.event(Event::PodsRestored(backup.values().cloned().collect()));
}

#[test]
fn what_a_restore_of_etcd_undid_is_marked_and_reported_again() {
    // World with restores, seed 17: the watch had not shown the phase yet.
    let mut world = World::standing(settings(), dead(), vec![job("a"), job("runs")]);
    world.containers("runs", &[None]);
    let backup = world.pods.clone();
    world.shutdown(40);
    assert_eq!(world.done(&["fail"]), ["0 fail a"]);
    restore(&mut world, &backup);
    assert_eq!(world.done(&["mark", "fail"]), ["0 mark a", "0 mark runs", "0 fail a"]);
    assert!(!world.released());
}

#[test]
fn a_pod_that_a_restore_of_etcd_brings_back_is_deleted_again() {
    // World with restores, seed 42.
    let mut world = World::standing(settings(), plain(), vec![job("a"), job("b")]);
    let backup = world.pods.clone();
    world.shutdown(40);
    world.ends("a", Phase::Succeeded);
    world.gone("a");
    restore(&mut world, &backup);
    let expected = ["0 mark a", "0 mark b", "0 delete a 20", "0 delete b 20"];
    assert_eq!(world.done(&["mark", "delete"]), expected);
}
