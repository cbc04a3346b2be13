//! Tests the eviction of a victim: the order of the actions, and the result where the API or the
//! runtime refuse.

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use super::scarcity::*;
use crate::agent::{Enforcement, Settings};
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodSource, PodUid, PodView};
use crate::pressure::signal::Signal;
use crate::protocol::event::{Event, RuntimeState};
use crate::shutdown::candidates::BarePods;

const HARD: &str = "memory.available<200";
const MESSAGE: &str =
    "The node was low on resource: memory. Threshold quantity: 200, available: 150. ";
const EVICTED: &str = "Evicted";
const FAILED: &str = "EvictionFailed";
const SLOW: &str = "EvictionSlow";

/// A pod of a Job that cannot run again.
pub(super) fn job(name: &str) -> PodView {
    pod(name).never().owner(Owner::Job)
}

/// A pod with a controller that creates it again.
pub(super) fn web(name: &str) -> PodView {
    pod(name).owner(Owner::Other)
}

/// A node short of memory; the first pod uses the most.
pub(super) fn short_of_memory(settings: Settings, pods: Vec<PodView>) -> World {
    let names: Vec<String> = pods.iter().map(|pod| pod.name.clone()).collect();
    let mut world = World::at_ease(settings, pods);
    for (name, used) in names.iter().zip((100..1_000).rev().step_by(100)) {
        world.uses(name, used);
    }
    world.memory(150);
    world
}

#[test]
fn a_hard_threshold_ends_the_first_in_rank_and_the_object_stays() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a"), job("b")]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"], "{:#?}", world.logged);
    let a = &world.pods["a"];
    let disruption = a.disruption.as_ref().expect("must be marked");
    assert!(disruption.stands, "{disruption:?}");
    assert_eq!(disruption.message, MESSAGE);
    assert_eq!(a.phase, Phase::Failed);
    assert_eq!(world.reported(EVICTED), ["a"]);
    let notice = world.scarcity.reported.iter().find(|notice| notice.reason == EVICTED);
    let notice = notice.expect("must be reported");
    assert_eq!((notice.message.as_str(), notice.warning), (MESSAGE, true));
    assert_eq!(notice.annotations[0], ("starved_resource", "memory".to_owned()));
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
    assert_eq!(world.lies, [""; 0]);
}

#[test]
fn a_victim_is_over_with_its_containers_and_its_sandbox_is_left_to_the_kubelet() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.runtime.insert("a".into(), RuntimeState { sandbox_ready: true, ..runtime(&[Some(1)]) });
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"], "{:#?}", world.logged);
    assert!(world.runtime["a"].sandbox_ready);
}

#[test]
fn a_pod_that_may_restart_is_deleted_with_the_grace_of_its_threshold() {
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
    assert_eq!(world.counted("memory.available"), (0, 0, 0));
    assert_eq!(world.agent.status().pressure.victims.len(), 1);
    world.memory(900);
    world.gone("a");
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
    assert_eq!(world.reported(EVICTED), ["a"]);
}

#[test]
fn for_a_culprit_that_only_the_kubelet_ends_no_other_pod_ends() {
    let asks = |bytes| move |pod: &mut PodView| pod.asks.memory = bytes;
    let mut world = short_of_memory(enforcing(HARD), vec![pod("bare"), web("b"), job("c")]);
    world.pass(ms(60_000));
    assert_eq!(world.actions(), [""; 0], "{:#?}", world.logged);
    assert_eq!(world.reported("EvictionLeftToKubelet"), ["bare"], "said once");

    // The bare pod uses less than its requests. The agent evicts pods above theirs before any
    // kubelet would evict the bare pod.
    let modest = pod("bare").with(asks(950));
    let mut world = short_of_memory(enforcing(HARD), vec![modest, job("b")]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark b", "stop b 1", "fail b"], "{:#?}", world.logged);

    // Where the operator lets the agent terminate it, it is the victim.
    let settings = Settings { bare_pods: BarePods::DeadlineLever, ..enforcing(HARD) };
    let mut world = short_of_memory(settings, vec![pod("bare"), job("b")]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark bare", "deadline bare"], "{:#?}", world.logged);
}

#[test]
fn a_bare_pod_with_few_tasks_is_no_culprit() {
    let mut world = World::at_ease(enforcing("pid.available<200"), vec![pod("bare"), job("b")]);
    world.uses("bare", 10);
    world.uses("b", 800);
    world.left(Signal::PidAvailable, 100);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark b", "stop b 1", "fail b"], "{:#?}", world.logged);
}

#[test]
fn with_the_time_of_a_soft_threshold_the_kubelet_runs_the_hooks() {
    let hooked = || job("a").with(|pod| pod.details.pre_stop = true);
    let mut world = short_of_memory(enforcing(HARD), vec![hooked()]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"], "no time for a hook");
    let soft = || with_config(Enforcement::Enforce, "", HARD);
    let mut world = short_of_memory(soft(), vec![hooked()]);
    world.pass(ms(12_000));
    assert_eq!(world.actions(), ["mark a", "delete a 30"], "{:#?}", world.logged);
    let mut world = short_of_memory(soft(), vec![job("a")]);
    world.pass(ms(12_000));
    assert_eq!(world.actions()[..2], ["mark a", "stop a 30"], "{:#?}", world.logged);
}

#[test]
fn every_pod_has_its_own_way_or_none() {
    // By deadline or deletion; a critical pod not at all. ([API17], [API18], [EV12])
    let with = |bare| Settings { bare_pods: bare, ..enforcing(HARD) };
    let blind = Settings { runtime: false, ..enforcing(HARD) };
    let sidecar = job("a").with(|pod| pod.sidecars.push("s".into()));
    let mirror = web("a").with(|pod| pod.source = PodSource::Static);
    let table: Vec<(Settings, PodView, &[&str])> = vec![
        (enforcing(HARD), job("a"), &["mark a", "stop a 1", "fail a"]),
        (enforcing(HARD), pod("a").never(), &["mark a", "stop a 1", "fail a"]),
        (enforcing(HARD), sidecar, &["mark a", "delete a 1"]),
        (blind.clone(), job("a"), &["mark a", "delete a 1"]),
        (blind, pod("a").never(), &[]),
        (enforcing(HARD), pod("a").owner(Owner::DaemonSet), &["mark a", "delete a 1"]),
        (with(BarePods::Leave), pod("a"), &[]),
        (with(BarePods::Delete), pod("a"), &["mark a", "delete a 1"]),
        (with(BarePods::DeadlineLever), pod("a"), &["mark a", "deadline a"]),
        (enforcing(HARD), web("a").not_started(), &["mark a", "delete a 1"]),
        (enforcing(HARD), mirror, &[]),
        (enforcing(HARD), web("a").priority(2_000_000_000), &[]),
        (enforcing(HARD), web("a").with(|pod| pod.uid = PodUid("uid-agent".into())), &[]),
        (enforcing(HARD), web("a").deleting(30), &[]),
        (enforcing(HARD), job("a").phase(Phase::Succeeded), &[]),
        (enforcing(HARD), pod("a").never().with(|pod| pod.deadline_set = true), &[]),
        // Another writer's reason is more specific than ours.
        (enforcing(HARD), web("a").disrupted("PreemptionByScheduler"), &["delete a 1"]),
    ];
    for (row, (settings, pod, expected)) in table.into_iter().enumerate() {
        let mut world = short_of_memory(settings, vec![pod]);
        world.pass(ms(3_000));
        assert_eq!(world.actions(), expected, "row {row}: {:#?}", world.logged);
        assert_eq!(world.lies, [""; 0], "row {row}");
    }
}

#[test]
fn nothing_is_stopped_before_the_api_has_the_mark() {
    for pod in [job("a"), web("a")] {
        let mut world = short_of_memory(enforcing(HARD), vec![pod]);
        world.answers.insert("mark *".into(), Answer::Hold);
        world.pass(ms(4_000));
        assert_eq!(world.actions(), ["mark a"]);
        assert_eq!(world.reported(EVICTED), [""; 0]);
        world.let_go("mark");
        world.pass(ms(100));
        assert!(world.actions().len() > 1, "{:?}", world.actions());
        assert_eq!(world.reported(EVICTED), ["a"]);
    }
}

#[test]
fn a_mark_that_does_not_get_through_in_time_is_given_up_and_the_next_pod_ends() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a"), job("b")]);
    world.answers.insert("mark a".into(), Answer::Fail(FailureKind::Unknown, 1_000));
    world.pass(ms(8_000));
    let actions = world.actions();
    assert!(actions.iter().filter(|action| **action == "mark a").count() > 3, "{actions:?}");
    assert_eq!(actions[actions.len() - 3..], ["mark b", "stop b 1", "fail b"]);
    let first = world.log.iter().find(|line| line.ends_with("mark b")).expect("must be there");
    let at: u64 = first.split(' ').next().and_then(|at| at.parse().ok()).expect("must be a time");
    assert!((5_000..7_500).contains(&at), "{first}");
    assert_eq!(world.reported(FAILED), ["a"]);
    assert_eq!(world.reported(EVICTED), ["b"]);
    assert_eq!(world.counted("memory.available"), (1, 0, 1));
}

#[test]
fn of_a_soft_threshold_the_api_has_longer_to_take_the_mark() {
    let settings = with_config(Enforcement::Enforce, "", "memory.available<200");
    let mut world = short_of_memory(settings, vec![job("a"), job("b")]);
    world.answers.insert("mark a".into(), Answer::Fail(FailureKind::ServerError, 1_000));
    world.pass(ms(39_000));
    assert!(!world.actions().contains(&"mark b"));
    world.pass(ms(5_000));
    let actions = world.actions();
    assert_eq!(actions[actions.len() - 3..], ["mark b", "stop b 30", "fail b"]);
}

#[test]
fn a_mark_whose_answer_was_lost_is_recognized_and_one_that_comes_late_meets_a_conflict() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.pass(ms(1_500));
    let (id, _, action) = world.held.pop().expect("must be held");
    world.answers.clear();
    world.lose_answer(id, &action);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"], "{:#?}", world.logged);

    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.pass(ms(1_500));
    let (id, _, action) = world.held.pop().expect("must be held");
    world.memory(900);
    world.pass(ms(6_000));
    world.time_out(id, &action);
    world.pass(ms(1_000));
    assert_eq!(world.reported(FAILED), ["a"]);
    assert_eq!(world.actions(), ["mark a", "clear a"]);
    world.arrive(&action);
    world.pass(ms(2_000));
    assert_eq!(world.actions(), ["mark a", "clear a"]);
    assert_eq!(world.disrupted(), [""; 0]);
}

#[test]
fn another_writers_reason_that_came_before_ours_stays() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.pass(ms(1_500));
    let (id, _, action) = world.held.pop().expect("must be held");
    world.answers.clear();
    world.pods.insert("a".into(), job("a").disrupted("Foreign"));
    world.change_unseen("a");
    let result = world.carry_out_unseen(&action);
    world.event(Event::Finished { id, result });
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"], "{:#?}", world.logged);
    let reason = world.pods["a"].disruption.as_ref().map(|it| it.reason.as_str());
    assert_eq!(reason, Some("Foreign"));
}

#[test]
fn what_the_api_says_to_a_mark_decides() {
    use FailureKind::{Conflict, Forbidden, Invalid, NotFound};
    let table: [(FailureKind, &[&str]); 4] = [
        (Conflict, &["mark a", "mark a", "stop a 1", "fail a"]),
        (Invalid, &["mark a", "mark b", "stop b 1", "fail b"]),
        (Forbidden, &["mark a"]),
        (NotFound, &["mark a", "mark b", "stop b 1", "fail b"]),
    ];
    for (kind, expected) in table {
        let mut world = short_of_memory(enforcing(HARD), vec![job("a"), job("b")]);
        world.answers.insert("mark a".into(), Answer::Fail(kind, 1));
        if kind == NotFound {
            // The pod is gone, and the watch will report it.
            world.pods.remove("a");
        }
        world.pass(ms(1_900));
        assert_eq!(world.actions()[..expected.len()], *expected, "{kind:?}: {:#?}", world.logged);
        let refused = matches!(kind, Invalid | Forbidden);
        assert_eq!(world.reported(FAILED).len(), usize::from(refused), "{kind:?}");
        let forbidden = world.reported("AgentForbidden").len();
        assert_eq!(forbidden, usize::from(refused), "{kind:?}");
        let words = world.logged.iter().filter(|line| line.contains("configured to fail")).count();
        assert!(kind != Invalid || words == 1, "{:#?}", world.logged);
    }
}

#[test]
fn a_right_that_is_given_later_is_found_out() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a"), job("b")]);
    world.answers.insert("mark *".into(), Answer::Fail(FailureKind::Forbidden, 2));
    world.pass(ms(9 * 60 * 1_000));
    assert_eq!(world.actions(), ["mark a", "mark b"], "{:#?}", world.logged);
    world.pass(ms(2 * 60 * 1_000));
    let actions = world.actions();
    assert!(["fail a", "fail b"].iter().all(|action| actions.contains(action)), "{actions:?}");
}

#[test]
fn a_refused_victim_leaves_the_next_one_to_be_evicted() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a"), job("b")]);
    world.answers.insert("mark a".into(), Answer::Fail(FailureKind::Forbidden, u32::MAX));
    world.pass(ms(60_000));
    assert!(world.actions().contains(&"fail b"), "{:#?}", world.logged);
}

#[test]
fn a_forbidden_mark_is_not_tried_on_pod_after_pod() {
    let pods = ["a", "b", "c", "d", "e"].map(job).to_vec();
    let mut world = short_of_memory(enforcing(HARD), pods);
    world.answers.insert("mark *".into(), Answer::Fail(FailureKind::Forbidden, u32::MAX));
    world.pass(ms(9 * 60 * 1_000));
    assert_eq!(world.actions(), ["mark a", "mark b", "mark c"], "{:#?}", world.logged);
}

#[test]
fn a_victim_that_does_not_terminate_blocks_no_other_and_keeps_its_mark() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a"), job("b")]);
    world.containers("a", &[None]);
    world.pass(ms(9_000));
    assert!(!world.actions().contains(&"mark b"), "one at a time: {:?}", world.actions());
    world.pass(ms(3_000));
    assert!(world.actions().contains(&"fail b"), "{:#?}", world.log);
    world.memory(900);
    world.pass(ms(30_000));
    assert_eq!(world.disrupted(), ["a", "b"], "{:#?}", world.logged);
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
    assert_eq!(world.reported(SLOW), ["a"]);
    assert_eq!(world.reported(FAILED), [""; 0]);
    // The stop takes effect long after the response was awaited.
    world.pass(ms(10 * 60_000));
    world.containers("a", &[Some(143)]);
    world.pass(ms(60_000));
    assert_eq!(world.actions().last(), Some(&"fail a"));
    assert_eq!(world.counted("memory.available"), (2, 0, 0));
    assert_eq!(world.reported(SLOW), ["a"], "reported once");
    assert_eq!(world.lies, [""; 0]);
}

/// The runtime is so slow that no call gets a response, but it stops the pod nevertheless.
#[test]
fn a_stop_that_is_never_answered_may_have_been_carried_out() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("stop *".into(), Answer::Fail(FailureKind::Unknown, 1_000));
    world.pass(ms(5 * 60_000));
    assert_eq!(world.disrupted(), ["a"], "{:#?}", world.logged);
    assert!(!world.actions().contains(&"clear a"), "{:?}", world.actions());
}

/// Within the grace and half a minute more the agent does not call the pod late.
#[test]
fn a_runtime_that_stays_silent_is_asked_slowly_also_within_a_grace() {
    let soft = with_config(Enforcement::Enforce, "", HARD);
    let mut world = short_of_memory(soft, vec![job("a")]);
    world.answers.insert("stop *".into(), Answer::Fail(FailureKind::Unknown, 1_000));
    let stops = |world: &World| world.actions().iter().filter(|it| **it == "stop a 30").count();
    world.pass(ms(22_000));
    let in_haste = stops(&world);
    assert!(in_haste > 8, "{:?}", world.actions());
    world.pass(ms(28_000));
    assert!(stops(&world) <= in_haste + 4, "{in_haste} and {:?}", world.actions());
    assert_eq!(world.reported(SLOW), [""; 0], "it is not late yet");
}

#[test]
fn a_mark_is_taken_back_at_once_when_the_runtime_refuses_for_good() {
    for kind in [FailureKind::Forbidden, FailureKind::NotFound, FailureKind::Other] {
        let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
        world.answers.insert("stop *".into(), Answer::Fail(kind, 1));
        world.pass(ms(1_500));
        assert_eq!(world.actions(), ["mark a", "stop a 1", "clear a"], "{kind:?}");
        assert_eq!(world.disrupted(), [""; 0]);
        // The pod is not tried again at once.
        world.pass(ms(60_000));
        assert_eq!(world.actions().len(), 3, "{kind:?}: {:?}", world.actions());
    }
}

#[test]
fn a_runtime_that_knows_nothing_of_the_pod_proves_nothing() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.runtime.insert("a".into(), RuntimeState::default());
    world.pass(ms(2_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "clear a"]);
    assert_eq!(world.pods["a"].phase, Phase::Running);
}

#[test]
fn a_runtime_that_fails_is_asked_again() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("stop *".into(), Answer::Fail(FailureKind::Unknown, 3));
    world.pass(ms(4_000));
    let stops = world.actions().iter().filter(|action| **action == "stop a 1").count();
    assert_eq!(stops, 4);
    assert_eq!(world.actions().last(), Some(&"fail a"));
}

#[test]
fn a_pod_that_exits_with_0_keeps_its_result() {
    // Exit code 0 within the grace: the pod succeeds. ([EV16])
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.containers("a", &[Some(0)]);
    world.pass(ms(5_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1"]);
    world.ends("a", Phase::Succeeded);
    world.memory(900);
    world.pass(ms(1_000));
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
    assert_eq!(world.pods["a"].phase, Phase::Succeeded);
}

#[test]
fn the_phase_is_written_by_a_fresh_proof_and_left_to_the_kubelet_where_it_is_refused() {
    use FailureKind::{Conflict, Invalid, Unknown};
    for kind in [Conflict, Unknown] {
        let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
        world.containers("a", &[Some(137)]);
        world.answers.insert("fail *".into(), Answer::Fail(kind, 1));
        world.pass(ms(3_000));
        let expected = ["mark a", "stop a 1", "fail a", "inspect a", "fail a"];
        assert_eq!(world.actions(), expected, "{kind:?}: {:#?}", world.log);
    }
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("fail *".into(), Answer::Fail(Invalid, 9));
    world.pass(ms(4_000));
    // It is repeated slowly, each time by a fresh proof.
    let tries = ["inspect a", "fail a"].repeat(2);
    let expected = [&["mark a", "stop a 1", "fail a"][..], &tries].concat();
    assert_eq!(world.actions(), expected);
    assert_eq!(world.disrupted(), ["a"], "nothing of it runs: Failed is true");
    world.ends("a", Phase::Failed);
    assert_eq!(world.counted("memory.available"), (1, 0, 0));
}

#[test]
fn a_phase_that_the_kubelet_takes_back_for_a_moment_makes_no_second_eviction() {
    // The kubelet may revert the phase for a moment. ([API16])
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"]);
    world.change("a", |pod| pod.phase = Phase::Running);
    world.pass(ms(10_000));
    world.ends("a", Phase::Failed);
    world.pass(ms(90_000));
    assert_eq!(world.actions().len(), 3, "{:?}", world.actions());
    assert_eq!(world.reported(EVICTED), ["a"]);
}

#[test]
fn a_victim_that_was_started_again_is_stopped_again_before_it_is_called_failed() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("fail *".into(), Answer::Fail(FailureKind::Unknown, 1));
    world.answers.insert("inspect *".into(), Answer::Hold);
    world.containers("a", &[Some(137)]);
    world.pass(ms(2_000));
    world.containers("a", &[None]);
    world.let_go("inspect");
    world.pass(ms(500));
    assert_eq!(world.actions().last(), Some(&"stop a 1"), "{:#?}", world.log);
    world.containers("a", &[Some(137)]);
    world.pass(ms(3_000));
    assert_eq!(world.actions().last(), Some(&"fail a"));
    assert_eq!(world.lies, [""; 0]);
}

#[test]
fn what_the_api_says_to_a_deletion_decides() {
    use FailureKind::{Forbidden, Invalid, NotFound, TooManyRequests, Unknown};
    let table: [(FailureKind, u32, &[&str], u64); 6] = [
        (Forbidden, 1, &["mark a", "delete a 1", "clear a"], 1),
        (Invalid, 1, &["mark a", "delete a 1", "clear a"], 1),
        (NotFound, 1, &["mark a", "delete a 1"], 0),
        (TooManyRequests, 1, &["mark a", "delete a 1", "delete a 1"], 0),
        (Unknown, 2, &["mark a", "delete a 1", "delete a 1", "delete a 1"], 0),
        (FailureKind::Conflict, 1, &["mark a", "delete a 1", "delete a 1"], 0),
    ];
    for (kind, times, expected, given_up) in table {
        let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
        world.answers.insert("delete *".into(), Answer::Fail(kind, times));
        world.pass(ms(1_200));
        world.memory(900);
        world.pass(ms(1_000));
        assert_eq!(world.actions(), expected, "{kind:?}: {:#?}", world.logged);
        assert_eq!(world.counted("memory.available").2, given_up, "{kind:?}");
    }
    // The attempts end.
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.answers.insert("delete *".into(), Answer::Fail(Unknown, 1_000));
    world.pass(ms(35_000));
    assert_eq!(world.actions().last(), Some(&"clear a"));
    assert_eq!(world.disrupted(), [""; 0]);
}

#[test]
fn a_pod_that_others_terminate_meanwhile_is_not_evicted() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("mark *".into(), Answer::Fail(FailureKind::TooManyRequests, 1));
    world.answers.insert("read *".into(), Answer::Hold);
    world.pass(ms(1_100));
    world.change("a", |pod| pod.deletion_grace_seconds = Some(30));
    world.let_go("read");
    world.pass(ms(1_000));
    // The mark may have arrived, so the agent settles it; then the kubelet terminates the pod.
    assert!(!world.actions().contains(&"stop a 1"), "{:?}", world.actions());
    assert!(!world.actions().contains(&"fail a"));
    world.gone("a");
    assert_eq!(world.agent.status().pressure.victims.len(), 0);
}

#[test]
fn a_pod_is_evicted_once_for_one_shortage_however_the_signal_flaps() {
    let mut world = short_of_memory(enforcing(HARD), vec![web("a"), web("b"), web("c")]);
    for _ in 0..10 {
        world.memory(150);
        world.pass(ms(300));
        world.memory(250);
        world.pass(ms(300));
    }
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
    world.memory(250);
    world.gone("a");
    world.pass(ms(5_000));
    assert_eq!(world.actions().len(), 2, "what it had is free again");
    world.memory(150);
    world.pass(ms(1_100));
    assert_eq!(world.actions()[2..], ["mark b", "delete b 1"]);
}

#[test]
fn a_soft_threshold_waits_and_gives_the_pod_its_own_time_and_never_holds_up_a_hard_one() {
    // A soft threshold gives the pod its own grace. ([EV25], [EV27])
    let settings = with_config(Enforcement::Enforce, "pid.available<100", "memory.available<200");
    let mut world = World::at_ease(settings, vec![web("a").grace(40), web("b")]);
    world.uses("a", 200);
    world.uses("b", 100);
    world.memory(150);
    world.pass(ms(9_000));
    assert_eq!(world.actions(), [""; 0]);
    world.pass(ms(3_000));
    assert_eq!(world.actions(), ["mark a", "delete a 40"]);
    world.pass(ms(5_000));
    assert_eq!(world.actions().len(), 2, "one at a time");
    world.left(Signal::PidAvailable, 50);
    world.pass(ms(1_100));
    assert_eq!(world.actions()[2..], ["mark b", "delete b 1"]);
    let b = world.pods["b"].disruption.clone().expect("must be marked");
    let text = "The node was low on resource: pids. Threshold quantity: 100, available: 50. ";
    assert_eq!(b.message, text);
}

#[test]
fn what_a_victim_has_in_volumes_of_memory_is_waited_for() {
    let volumes = job("a").with(|pod| pod.details.memory_volumes = true);
    let mut world = short_of_memory(enforcing(HARD), vec![volumes, job("b")]);
    world.pass(ms(3_000));
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"]);
    world.memory(900);
    world.pass(ms(5_000));
    assert_eq!(world.actions().len(), 3);
}

#[test]
fn disks_are_checked_by_what_lies_on_them() {
    let mut world = World::at_ease(enforcing("nodefs.available<200"), vec![web("a"), web("b")]);
    world.uses("b", 900);
    world.uses("a", 100);
    world.left(Signal::NodefsAvailable, 199);
    world.pass(ms(1_100));
    assert!(world.log.iter().any(|line| line.contains("measure Disk of 2")), "{:#?}", world.log);
    assert_eq!(world.actions(), ["mark b", "delete b 1"]);
}

#[test]
fn no_pod_is_evicted_that_frees_next_to_nothing_of_a_disk() {
    let mut world = World::at_ease(enforcing("nodefs.available<100000"), vec![web("a"), web("b")]);
    world.uses("a", 300);
    world.uses("b", 200);
    world.left(Signal::NodefsAvailable, 50_000);
    world.pass(ms(60_000));
    assert_eq!(world.actions(), [""; 0]);
    let said = |world: &World, part: &str| {
        world.logged.iter().filter(|line| line.contains(part)).cloned().collect::<Vec<_>>()
    };
    let lines = said(&world, "no pod is evicted for");
    assert_eq!(lines.len(), 1, "{:#?}", world.logged);
    assert!(lines[0].contains("50000 are missing"), "{lines:?}");
    assert!(lines[0].contains("the 2 pods that may be evicted use 500 together"), "{lines:?}");
    // One of them grows to more than a hundredth of what is missing.
    world.uses("b", 600);
    world.left(Signal::NodefsAvailable, 49_990);
    world.pass(ms(15_000));
    assert_eq!(world.actions(), ["mark b", "delete b 1"]);
}

#[test]
fn without_figures_for_layers_no_pod_is_evicted() {
    // Seen on a real node that responded too slowly: an innocent pod was evicted first. ([EV7])
    let mut world = World::at_ease(enforcing("nodefs.available<200"), vec![web("a"), web("b")]);
    for pod in ["a", "b"] {
        world.uses(pod, 100);
        let figures = world.scarcity.figures.values_mut();
        figures.for_each(|of| (of.disk, of.inodes) = (None, None));
    }
    world.left(Signal::NodefsAvailable, 199);
    world.pass(ms(5_000));
    assert_eq!(world.actions(), [""; 0]);
    // Figures exist for one pod alone: the other may be newer than the runtime's last figures.
    world.uses("b", 900);
    world.pass(ms(5_000));
    assert_eq!(world.actions(), ["mark b", "delete b 1"]);
}

#[test]
fn a_pod_without_figures_is_evicted_first_and_its_message_has_no_figures() {
    // A pod without figures goes first, and its message stops early. ([EV11], [EV14])
    let mut world = World::at_ease(enforcing(HARD), vec![web("a"), web("b")]);
    world.uses("a", 900);
    world.memory(150);
    world.pass(ms(1_100));
    assert_eq!(world.actions(), ["mark b", "delete b 1"]);
    let notice = world.scarcity.reported.iter().find(|notice| notice.reason == EVICTED);
    let notice = notice.expect("must be reported");
    assert_eq!(notice.annotations, []);
    assert_eq!(notice.message, MESSAGE);
}

#[test]
fn without_figures_no_pod_is_evicted() {
    // Without figures nothing is evicted. ([EV7])
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.answers.insert("measure Memory of 1".into(), Answer::Fail(FailureKind::Unknown, 3));
    world.pass(ms(1_050));
    assert_eq!(world.actions(), [""; 0]);
    world.pass(ms(3_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn a_pod_that_came_while_the_others_were_measured_is_not_taken_for_one_without_figures() {
    // Only a pod that was measured in vain goes first. ([EV11])
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.answers.insert("measure Memory of 1".into(), Answer::Hold);
    world.pass(ms(1_100));
    world.pods.insert("b".into(), web("b"));
    world.list();
    world.pass(ms(1_000));
    world.let_go("measure");
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn a_shortage_that_is_over_before_the_figures_arrive_evicts_no_pod() {
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.answers.insert("measure Memory of 1".into(), Answer::Hold);
    world.pass(ms(1_100));
    world.memory(900);
    world.pass(ms(1_000));
    world.let_go("measure");
    world.pass(ms(1_000));
    assert_eq!(world.actions(), [""; 0]);
}

#[test]
fn a_marked_pod_ends_though_the_shortage_is_over() {
    let mut world = short_of_memory(enforcing(HARD), vec![job("a")]);
    world.answers.insert("stop *".into(), Answer::Fail(FailureKind::Unknown, 2));
    world.pass(ms(1_000));
    world.memory(1_000);
    world.pass(ms(2_000));
    assert_eq!(world.actions().last(), Some(&"fail a"));
}

#[test]
fn a_pod_that_never_ran_is_not_ended_before_the_one_that_uses_the_memory() {
    // Found by the simulation: without figures the pod came first ([EV11]), and the agent waited
    // for its end.
    let mut world = short_of_memory(enforcing(HARD), vec![web("a")]);
    world.pods.insert("b".into(), web("b").not_started());
    world.list();
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn a_pod_whose_image_is_pulled_is_not_ended_before_the_one_that_uses_the_resource() {
    // Found by the simulation: its sandbox has figures, and its lower priority made it the first.
    // Its end took as long as the pull, and freed nothing. ([EV10], [EV11])
    for signal in [Signal::MemoryAvailable, Signal::PidAvailable] {
        let hard = "memory.available<200,pid.available<200";
        let mut world = World::at_ease(enforcing(hard), vec![web("a")]);
        let pulled = web("b").not_started().with(|pod| pod.priority = -5);
        world.pods.insert("b".into(), pulled);
        world.list();
        world.uses("a", 900);
        world.uses("b", 1);
        world.left(signal, 100);
        world.pass(ms(1_100));
        assert_eq!(world.actions(), ["mark a", "delete a 1"], "{signal}");
    }
}

#[test]
fn a_pod_that_has_begun_before_the_api_shows_it_is_evicted_like_any_other() {
    let mut world = World::at_ease(enforcing("pid.available<200"), vec![web("a")]);
    world.pods.insert("b".into(), web("b").not_started().with(|pod| pod.priority = -5));
    world.list();
    world.uses("a", 100);
    world.uses("b", 800);
    world.left(Signal::PidAvailable, 100);
    world.pass(ms(1_100));
    assert_eq!(world.actions(), ["mark b", "delete b 1"], "{:#?}", world.logged);
}
