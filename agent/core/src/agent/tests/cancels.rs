//! Tests shutdowns that are cancelled. ([AP17])

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::LockState;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView, RestartPolicy};
use crate::protocol::event::{Event, LogindState};
use crate::shutdown::candidates::BarePods;

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

fn pods() -> Vec<PodView> {
    vec![job("a"), job("b"), job("critical").priority(2_000_000_000), job("f").disrupted("Foreign")]
}

/// Checks everything that must hold on a node that lives on.
fn assert_restored(world: &World, case: &str) {
    let lies = world.pods.values().filter(|pod| {
        pod.is_disrupted() && !pod.is_terminating() && !pod.is_terminal() && pod.name != "f"
    });
    assert_eq!(lies.count(), 0, "{case}: {:#?}", world.log);
    assert!(world.pods["f"].is_disrupted(), "{case}: a foreign condition stays");
    assert!(!world.tainted, "{case}");
    assert_eq!(world.node_says.as_deref(), Some("idle"), "{case}");
    assert_eq!(world.agent.status().lock, LockState::Held, "{case}");
    assert_eq!(world.journal, [], "{case}");
    assert_eq!(world.agent.status().mark_removals_pending, 0, "{case}");
}

#[test]
fn the_node_is_restored_though_the_right_comes_after_the_cancel() {
    // Simulation seed 9810147: the API refused everything for 0.9 s, and the node kept its taint.
    for (refusals, restored) in [(8, true), (100, false)] {
        let mut world = World::standing(settings(), plain(), vec![job("a")]);
        world.shutdown(40);
        for call in ["announce idle", "taint false"] {
            world.answers.insert(call.into(), Answer::Fail(FailureKind::Forbidden, refusals));
        }
        world.cancel();
        world.pass(ms(60_000));
        let is_idle = world.node_says.as_deref() == Some("idle");
        assert_eq!((is_idle, !world.tainted), (restored, restored), "{:#?}", world.log);
        let gives_up = world.reported.iter().any(|(reason, _)| *reason == "AgentForbidden");
        assert_eq!(gives_up, !restored, "{:#?}", world.reported);
    }
}

#[test]
fn at_every_step_everything_is_taken_back() {
    for after in [0, 1, 100, 151, 2_000, 3_000, 15_000, 25_000, 34_000, 38_500, 39_500] {
        for facts in [plain(), armed(), dead()] {
            let mut world = World::standing(settings(), facts, pods());
            for name in ["a", "b", "critical", "f"] {
                world.containers(name, &[None]);
            }
            world.shutdown(40);
            world.pass(ms(after));
            world.cancel();
            assert_restored(&world, &format!("after {after} ms"));
            let before = world.done(&["delete", "stop", "mark", "fail", "fail"]).len();
            world.pass(ms(100_000));
            let after = world.done(&["delete", "stop", "mark", "fail", "fail"]).len();
            assert_eq!(before, after, "no kill after the cancel");
        }
    }
}

#[test]
fn what_was_deleted_stays_deleted_and_marked() {
    let mut world = World::standing(settings(), plain(), pods());
    world.shutdown(40);
    world.cancel();
    assert_eq!(world.disrupted(), ["a", "b", "f"]);
    assert_eq!(world.done(&["clear"]), ["0 clear critical"]);
}

#[test]
fn a_pod_that_the_runtime_has_stopped_stays_marked() {
    let always = pod("always").owner(Owner::Other);
    let pods = || vec![job("stopped"), job("stopping"), job("waits").priority(2_000_000_000)];
    let mut world = World::standing(settings(), dead(), [pods(), vec![always]].concat());
    world.answers.insert("stop stopping 20".into(), Answer::Hold);
    for name in ["stopped", "always"] {
        world.containers(name, &[Some(143)]);
    }
    for name in ["stopping", "waits"] {
        world.containers(name, &[None]);
    }
    world.answers.insert("fail *".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    world.shutdown(40);
    world.pass(ms(300));
    world.cancel();
    assert_eq!(world.disrupted(), ["stopped", "stopping"], "{:#?}", world.log);
    // The API shows it running since this boot, because its kubelet is dead: the mark still stands.
    let since = wall(world.now.saturating_sub(ms(500_000)));
    world.now += ms(100_000);
    world.change("stopped", |pod| pod.running_since = Some(since));
    world.pass(ms(100_000));
    assert_eq!(world.disrupted(), ["stopped", "stopping"], "{:#?}", world.log);
    world.containers("stopping", &[Some(143)]);
    world.restart(settings());
    world.started(dead(), false);
    world.pass(ms(100_000));
    assert_eq!(world.disrupted(), ["stopped", "stopping"], "{:#?}", world.log);
}

/// A shutdown whose second write of the journal, that of the terminations, does not come back.
fn stops_without_record() -> World {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    world.containers("a", &[Some(143)]);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    world.answers.insert("journal *".into(), Answer::Hold);
    world.let_go("mark");
    world
}

#[test]
fn a_stop_waits_for_its_record_as_long_as_the_disk_works() {
    let mut world = stops_without_record();
    world.pass(ms(140));
    assert_eq!(world.done(&["stop"]), [""; 0]);
    world.let_go("journal");
    assert_eq!(world.done(&["stop"]), ["140 stop a 20"]);
    let mut world = stops_without_record();
    world.pass(ms(1_000));
    assert_eq!(world.done(&["stop"]), ["150 stop a 20"]);
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    let refuses = Answer::Fail(FailureKind::Other, u32::MAX);
    world.answers.insert("journal *".into(), refuses);
    world.shutdown(40);
    world.pass(ms(1_000));
    assert_eq!(world.done(&["stop"]), ["150 stop a 20"], "no longer than for its mark");
}

/// The agent dies between the two, and the shutdown is cancelled before its successor starts.
#[test]
fn an_agent_that_dies_at_a_stop_leaves_the_mark_of_what_it_stopped() {
    for recorded in [false, true] {
        let mut world = stops_without_record();
        if recorded {
            world.let_go("journal");
        }
        let is_stopped = !world.done(&["stop"]).is_empty();
        world.containers("a", &[is_stopped.then_some(143)]);
        world.answers.clear();
        world.restart(settings());
        world.started(dead(), false);
        world.pass(ms(100_000));
        let marked = world.disrupted() == ["a"];
        assert_eq!(marked, is_stopped, "{recorded}: {:#?}", world.log);
    }
}

/// A cancel while the runtime stops a pod whose kubelet is dead.
fn cancelled_under_a_stop() -> World {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    let since = wall(world.now);
    world.change("a", |pod| pod.running_since = Some(since));
    world.containers("a", &[None]);
    world.answers.insert("stop a 20".into(), Answer::Hold);
    world.shutdown(40);
    world.pass(ms(300));
    world.cancel();
    world
}

#[test]
fn a_stop_that_fails_after_the_cancel_leaves_no_mark_though_the_kubelet_is_dead() {
    // The container survives the stop, or the runtime does not answer in time.
    for (answers, codes, kept) in [
        (true, None, false),
        (false, None, false),
        (true, Some(143), true),
        (false, Some(143), true),
    ] {
        let mut world = cancelled_under_a_stop();
        assert_eq!(world.disrupted(), ["a"], "its stop is under way: {:#?}", world.log);
        world.containers("a", &[codes]);
        if answers {
            world.let_go("stop");
        } else {
            let (id, _, action) = world.held.pop().expect("the stop must be held");
            world.time_out(id, &action);
        }
        world.pass(ms(30_000));
        assert_eq!(!world.disrupted().is_empty(), kept, "{answers} {codes:?} {:#?}", world.log);
    }
}

#[test]
fn what_a_silent_runtime_did_with_a_stop_is_asked_until_it_answers() {
    // Simulation seeds 2002494 and 2030548: the agent is restarted meanwhile.
    for (codes, kept) in [(Some(143), vec!["a"]), (None, vec![])] {
        for late in [false, true] {
            let mut world = cancelled_under_a_stop();
            world.containers("a", &[codes]);
            let silent = Answer::Fail(FailureKind::Unknown, u32::MAX);
            world.answers.insert("inspect *".into(), silent);
            if late {
                let (id, _, action) = world.held.pop().expect("the stop must be held");
                world.time_out(id, &action);
                world.pass(ms(20_000));
            }
            world.restart(settings());
            world.started(dead(), false);
            world.pass(ms(60_000));
            assert_eq!(world.disrupted(), ["a"], "nothing is known: {:#?}", world.log);
            assert_eq!(world.node_says.as_deref(), Some("idle"), "the node waits for nothing");
            world.answers.clear();
            world.pass(ms(10_000));
            assert_eq!(world.disrupted(), kept, "{codes:?} {late} {:#?}", world.log);
            assert_eq!(world.journal, [], "{codes:?} {late} {:#?}", world.log);
        }
    }
}

#[test]
fn a_cancel_while_the_agent_is_down_keeps_the_marks_of_what_was_stopped() {
    for (codes, kept) in [(Some(143), vec!["a"]), (None, vec![])] {
        let mut world = World::standing(settings(), dead(), vec![job("a"), job("b")]);
        for name in ["a", "b"] {
            world.containers(name, &[None]);
        }
        world.answers.insert("stop *".into(), Answer::Hold);
        world.shutdown(40);
        world.pass(ms(300));
        world.containers("a", &[codes]);
        world.answers.clear();
        world.restart(settings());
        world.started(dead(), false);
        assert_eq!(world.disrupted(), kept, "{:#?}", world.log);
        assert_eq!(world.journal, [], "{:#?}", world.log);
    }
}

#[test]
fn a_pod_whose_sandbox_outlives_the_agent_that_stopped_it_stays_marked() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    world.containers("a", &[None]);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.shutdown(40);
    world.pass(ms(300));
    // The containers have exited, and the agent dies before it stops the sandbox.
    world.containers("a", &[Some(143)]);
    world.runtime.get_mut("a").expect("must be there").sandbox_ready = true;
    world.restart(settings());
    world.started(dead(), false);
    assert_eq!(world.disrupted(), ["a"], "{:#?}", world.log);
}

/// The mark of a pod after a cancel, and the death of the agent that stopped its container alone.
fn marked_in_a_sandbox_that_is_left(pod: PodView, sidecar: Option<i32>) -> bool {
    let mut world = World::standing(settings(), dead(), vec![pod]);
    world.containers("a", &[None, None]);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.shutdown(40);
    world.pass(ms(300));
    world.containers("a", &[Some(143), sidecar]);
    let state = world.runtime.get_mut("a").expect("must be there");
    state.containers[1].name = "sidecar".into();
    state.sandbox_ready = true;
    world.restart(settings());
    world.started(dead(), false);
    !world.disrupted().is_empty()
}

/// What starts again in the sandbox that is left is not over, and a sidecar does not count.
#[test]
fn of_a_pod_whose_sandbox_is_left_the_regular_containers_say_whether_it_is_over() {
    let own = |policy| job("a").with(|pod| pod.restarts_in_place = policy);
    let table = [
        (job("a").sidecar(), None, true),
        (job("a").sidecar(), Some(143), true),
        (own(RestartPolicy::OnFailure), Some(143), false),
        (own(RestartPolicy::Always), Some(143), false),
        // As while all its containers restart, which removes them one by one.
        (job("a").with(|pod| pod.restarts_all = true), Some(143), false),
    ];
    for (row, (pod, sidecar, kept)) in table.into_iter().enumerate() {
        assert_eq!(marked_in_a_sandbox_that_is_left(pod, sidecar), kept, "row {row}");
    }
}

#[test]
fn an_answer_to_a_check_says_nothing_of_a_stop_that_goes_on_after_the_cancel() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    let since = wall(world.now);
    world.change("a", |pod| pod.running_since = Some(since));
    world.containers("a", &[None]);
    for call in ["inspect a", "stop a 20"] {
        world.answers.insert(call.into(), Answer::Hold);
    }
    world.shutdown(40);
    world.pass(ms(1_500));
    let held: Vec<&str> = world.held.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(held, ["inspect a", "stop a 20"]);
    world.cancel();
    world.let_go("inspect");
    world.pass(ms(1_000));
    world.containers("a", &[Some(143)]);
    world.let_go("stop");
    world.pass(ms(30_000));
    assert_eq!(world.disrupted(), ["a"], "{:#?}", world.log);
}

#[test]
fn a_cancel_after_a_restart_keeps_the_marks_of_what_was_stopped_before_it() {
    // The new agent does not get to its own stop: it reads the pod, or marks another one.
    for hold in ["read *", "mark b"] {
        let mut world = World::standing(settings(), dead(), vec![job("a")]);
        world.answers.insert("stop *".into(), Answer::Hold);
        world.shutdown(40);
        world.pass(ms(300));
        world.containers("a", &[Some(143)]);
        world.answers.clear();
        world.restart(settings());
        world.answers.insert(hold.into(), Answer::Hold);
        world.pods.insert("b".into(), job("b"));
        world.containers("b", &[None]);
        world.started(dead(), true);
        assert_eq!(world.done(&["stop"]), [""; 0], "{hold}: {:#?}", world.log);
        world.cancel();
        world.let_go("*");
        world.pass(ms(1_000));
        assert_eq!(world.disrupted(), ["a"], "{hold}: {:#?}", world.log);
    }
}

#[test]
fn a_new_lock_comes_before_all_else() {
    let mut world = World::standing(settings(), armed(), pods());
    world.shutdown(40);
    world.log.clear();
    world.cancel();
    assert_eq!(world.log[0], "0 lock");
}

#[test]
fn marks_on_their_way_are_taken_back_when_they_have_arrived() {
    let mut world = World::standing(settings(), armed(), vec![job("a"), job("f").disrupted("X")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    world.cancel();
    assert_eq!(world.done(&["read", "clear"]), [""; 0]);
    world.let_go("mark");
    assert_eq!(world.done(&["read", "clear"]), ["0 read a", "0 clear a"]);
    assert_restored(&world, "late mark");
}

#[test]
fn a_mark_that_arrives_after_a_cancel_meets_a_conflict() {
    let mut world = World::standing(settings(), armed(), vec![job("a"), job("f").disrupted("X")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    let (id, _, action) = world.held.remove(0);
    world.time_out(id, &action);
    world.cancel();
    let written = ["0 read a", "0 clear a"];
    assert_eq!(world.done(&["read", "clear"]), written);
    assert_restored(&world, "before it arrives");
    world.arrive(&action);
    world.pass(ms(1_000));
    assert_restored(&world, "after it arrived");
    assert_eq!(world.done(&["read", "clear"]), written, "it has met a conflict");
}

#[test]
fn an_end_that_arrives_after_a_cancel_ends_no_pod_that_stays() {
    let bare_pods = [BarePods::Delete, BarePods::DeadlineLever];
    for (bare_pods, refused) in bare_pods.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let settings = Settings { bare_pods, ..settings() };
        let bare = pod("a").never();
        let mut world =
            World::standing(settings, plain(), vec![bare, job("f").disrupted("Foreign")]);
        if refused {
            world.answers.insert("mark *".into(), Answer::Fail(FailureKind::Invalid, u32::MAX));
        }
        for end in ["delete *", "deadline *"] {
            world.answers.insert(end.into(), Answer::Hold);
        }
        world.shutdown(40);
        let of_a = |(_, name, _): &(_, String, _)| name.contains(" a");
        let position = world.held.iter().position(of_a).expect("its end must be on its way");
        let (id, _, action) = world.held.remove(position);
        world.time_out(id, &action);
        world.cancel();
        assert_eq!(world.done(&["clear"]), ["0 clear a"]);
        world.let_go("delete");
        assert_restored(&world, "before it arrives");
        world.arrive(&action);
        world.pass(ms(1_000));
        assert!(!world.pods["a"].is_to_end(), "{bare_pods:?} {refused}");
        assert_restored(&world, "after it arrived");
    }
}

#[test]
fn revocation_is_tried_until_the_api_shows_it() {
    let mut world = World::standing(settings(), armed(), vec![job("a"), job("f").disrupted("X")]);
    world.shutdown(40);
    world.answers.insert("*".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    world.cancel();
    world.pass(ms(20_000));
    assert_eq!(world.agent.status().mark_removals_pending, 1);
    assert!(!world.journal.is_empty(), "a crash now must not forget it");
    world.answers.clear();
    world.pass(ms(40_000));
    assert_restored(&world, "the API is back");
}

#[test]
fn a_node_gets_pods_again_soon_after_the_api_is_back() {
    // Simulation seed 2035895: each further failure doubled the wait, up to 30 s.
    for silent in [60_000, 80_000, 100_000] {
        let mut world = World::standing(settings(), plain(), vec![job("a")]);
        world.shutdown(40);
        world.answers.insert("*".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
        world.cancel();
        world.pass(ms(silent));
        assert!(world.tainted && world.node_says.as_deref() != Some("idle"));
        world.answers.clear();
        world.pass(ms(10_000));
        assert!(!world.tainted && world.node_says.as_deref() == Some("idle"), "{silent}");
    }
}

#[test]
fn a_shutdown_that_vanished_is_cancelled_like_any_other() {
    // logind was restarted in the delay window: no `false` follows. ([LD7])
    let mut world = World::standing(settings(), armed(), pods());
    world.shutdown(40);
    world.pass(ms(500));
    world.event(Event::LogindSeen(LogindState { owner: ":1.9".into(), ..logind(false) }));
    assert_restored(&world, "owner change");
    // A lost `false`; only the property shows the cancel.
    let mut world = World::standing(settings(), armed(), pods());
    world.shutdown(40);
    world.pass(ms(1_000));
    world.event(Event::LogindSeen(logind(false)));
    assert!(world.agent.status().preparing, "a check that began before the signal");
    world.pass(ms(80_000));
    world.event(Event::LogindSeen(logind(false)));
    assert_restored(&world, "long over");
}

#[test]
fn a_second_signal_changes_nothing_and_one_after_a_cancel_is_a_new_shutdown() {
    let mut world = World::standing(settings(), armed(), vec![job("a"), job("b")]);
    world.shutdown(40);
    let before = world.log.clone();
    world.pass(ms(1_000));
    world.shutdown(400);
    assert_eq!(world.log, before);
    world.cancel();
    world.log.clear();
    world.shutdown(40);
    assert_eq!(world.done(&["mark", "announce"]).len(), 3);
    assert_eq!(world.disrupted(), ["a", "b"]);
    world.ends("a", Phase::Failed);
    world.ends("b", Phase::Failed);
    assert!(world.released());
}

#[test]
fn a_new_shutdown_in_the_middle_of_a_revocation_ends_marked_and_its_cancel_clears() {
    for hold in ["read *", "clear *"] {
        let mut world =
            World::standing(settings(), armed(), vec![job("a"), job("f").disrupted("X")]);
        world.shutdown(40);
        world.answers.insert(hold.into(), Answer::Hold);
        world.cancel();
        world.shutdown(40);
        world.let_go("*");
        world.answers.clear();
        world.pass(ms(1_000));
        assert_eq!(world.disrupted(), ["a", "f"], "{hold}");
        world.cancel();
        world.pass(ms(3_000));
        assert_restored(&world, hold);
    }
}

#[test]
fn events_that_come_together_count_one_by_one() {
    let others = || job("a").disrupted("Foreign");
    let mut world = World::standing(settings(), armed(), vec![others()]);
    world.agent.handle(announced(ms(30_000), None), world.clock());
    // The kubelet calls it Failed while a container of it runs: its last report is to come.
    let early = others().phase(Phase::Failed).with(|pod| {
        pod.resource_version = "90000".into();
        pod.running_since = Some(wall(ms(0)));
    });
    world.event(Event::PodObserved(Box::new(early)));
    let shutdown = world.agent.status().shutdown.clone().expect("must go on");
    assert_eq!((shutdown.candidates, shutdown.unreported), (1, 1));
    world.pass(ms(1_000));
    assert!(!world.released());

    let mut world = World::standing(settings(), plain(), pods());
    world.agent.handle(announced(ms(30_000), None), world.clock());
    world.cancel();
    assert_restored(&world, "at once");
    assert!(world.agent.status().shutdown.as_ref().is_some_and(|shutdown| shutdown.cancelled));
}
