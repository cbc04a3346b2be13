//! Reproduces failures that simulation seeds found, in the smallest form. (`cargo lab sim --agent`)

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Disruption, Owner, Phase, PodView, TERMINATION_BY_KUBELET};
use crate::protocol::event::{Event, RuntimeState};
use crate::protocol::journal::{Intent, Record};
use crate::termination::patches::SHUTDOWN_MESSAGE;

const ALWAYS: u32 = u32::MAX;

fn of_a_replica_set(name: &str) -> PodView {
    pod(name).owner(Owner::Other)
}

fn bind(world: &mut World, pod: PodView) {
    world.pods.insert(pod.name.clone(), pod);
    world.list();
}

#[test]
fn failed_is_not_written_on_a_proof_that_a_kubelet_that_came_back_made_old() {
    let mut world = World::standing(settings(), dead(), vec![of_a_replica_set("a").never()]);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.shutdown(10);
    world.pass(ms(7_000));
    world.event(Event::KubeletSeen(plain()));
    world.let_go("stop");
    world.containers("a", &[None]);
    world.pass(ms(3_000));
    assert_eq!(world.lies, [""; 0]);
    assert!(world.released());
}

#[test]
fn a_kubelet_that_came_back_ends_the_pods_itself() {
    let critical = of_a_replica_set("b").priority(2_000_000_000);
    let mut world = World::standing(settings(), dead(), vec![of_a_replica_set("a"), critical]);
    world.containers("a", &[None]);
    world.shutdown(60);
    world.pass(ms(1_000));
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(10_000));
    assert!(world.logged.iter().any(|line| line.starts_with("mode Substitute becomes Replace")));
    world.pass(ms(20_000));
    assert!(world.done(&["stop"]).iter().all(|line| line.contains("stop a")), "{:?}", world.log);
    assert!(!world.done(&["delete"]).is_empty(), "{:?}", world.log);
}

#[test]
fn the_mark_of_a_pod_that_comes_in_the_shutdown_is_in_the_journal() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    bind(&mut world, of_a_replica_set("b"));
    let marks = world.journal.iter().filter_map(|record| match record {
        Record::Intent { name, intent: Intent::Mark, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(marks.collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_pod_that_has_no_terminator_any_more_is_not_marked() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    world.pass(ms(38_500));
    bind(&mut world, of_a_replica_set("b"));
    bind(&mut world, of_a_replica_set("c").never());
    world.pass(ms(1_000));
    assert_eq!(world.disrupted(), ["a", "c"]);
    assert!(world.done(&["delete"]).iter().all(|line| line.contains("delete a")));
}

#[test]
fn a_deletion_whose_mark_had_no_time_is_not_sent_at_the_end() {
    let one = Settings { in_flight_max: 1, ..settings() };
    let pods = vec![of_a_replica_set("a"), of_a_replica_set("b")];
    let mut world = World::standing(one, plain(), pods);
    world.answers.insert("mark a".into(), Answer::Hold);
    world.shutdown(10);
    world.pass(ms(9_300));
    world.let_go("mark");
    world.pass(ms(100));
    assert_eq!(world.disrupted(), ["a"]);
    assert!(!world.done(&["delete"]).iter().any(|line| line.contains("delete b")));
}

#[test]
fn a_disk_that_refuses_does_not_hold_the_lock() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.answers.insert("journal *".into(), Answer::Fail(FailureKind::Other, ALWAYS));
    world.shutdown(40);
    world.pass(ms(1_000));
    world.gone("a");
    world.pass(ms(1_000));
    assert!(world.released(), "{:?}", world.log);
}

#[test]
fn a_drained_record_that_does_not_arrive_is_proven_anew() {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    world.pass(ms(500));
    let says = |world: &World, word: &str| {
        world.done(&["announce"]).iter().filter(|line| line.contains(word)).count()
    };
    world.answers.insert("announce *".into(), Answer::Fail(FailureKind::Unknown, ALWAYS));
    world.containers("a", &[Some(143)]);
    world.gone("a");
    assert_eq!(says(&world, "drained"), 1, "{:?}", world.log);
    bind(&mut world, of_a_replica_set("b"));
    world.containers("b", &[None]);
    world.pass(ms(1_500));
    let before = says(&world, "drained");
    world.pass(ms(10_000));
    assert_eq!(says(&world, "drained"), before, "{:?}", world.log);
}

/// The marks of pods that came late, with this response to journal writes.
fn late_marks(answer: Option<Answer>, wait: u64) -> Vec<String> {
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.shutdown(40);
    world.pass(ms(1_000));
    if let Some(answer) = answer {
        world.answers.insert("journal *".into(), answer);
    }
    bind(&mut world, of_a_replica_set("b"));
    bind(&mut world, of_a_replica_set("c"));
    world.pass(ms(wait));
    let marks: Vec<_> = world.done(&["mark"]).into_iter().map(str::to_owned).collect();
    world.let_go("journal");
    world.pass(ms(10));
    assert_eq!(world.disrupted(), ["a", "b", "c"]);
    marks
}

#[test]
fn a_late_mark_waits_for_its_record_as_long_as_the_disk_works() {
    // Simulation seed 73567: power was lost between the two, and the pod kept its mark.
    assert_eq!(late_marks(None, 0), ["0 mark a", "1000 mark b", "1000 mark c"]);
    assert_eq!(late_marks(Some(Answer::Hold), 140), ["0 mark a"]);
    let late = ["0 mark a", "1150 mark b", "1150 mark c"];
    assert_eq!(late_marks(Some(Answer::Hold), 200), late);
    let refuses = Answer::Fail(FailureKind::Other, ALWAYS);
    assert_eq!(late_marks(Some(refuses), 0), ["0 mark a", "1000 mark b", "1000 mark c"]);
}

#[test]
fn all_marks_of_a_signal_wait_for_one_write_and_no_other() {
    let pods = (0..110).map(|index| of_a_replica_set(&format!("p{index:03}"))).collect();
    let mut world = World::standing(settings(), plain(), pods);
    world.answers.insert("journal *".into(), Answer::Hold);
    world.shutdown(40);
    world.pass(ms(20));
    assert_eq!(world.done(&["mark"]), [""; 0]);
    world.let_go("journal");
    let marks = world.done(&["mark"]);
    assert!(marks.len() == 110 && marks.iter().all(|mark| mark.starts_with("20 ")), "{marks:?}");
    let marked_after = |shutdown: &crate::agent::ShutdownStatus| shutdown.marked_after;
    assert_eq!(world.agent.status().shutdown.as_ref().and_then(marked_after), Some(ms(20)));
}

#[test]
fn a_mark_of_which_the_journal_knows_nothing_is_taken_back_when_its_pod_runs_again() {
    // The pod may run long after the first list. ([ST7])
    let mut world = World::new(settings(), vec![of_a_replica_set("a")]);
    world.now = ms(3_600_000);
    world.change("a", |pod| {
        pod.disruption = Some(Disruption {
            stands: true,
            reason: TERMINATION_BY_KUBELET.into(),
            message: SHUTDOWN_MESSAGE.into(),
            since: "2026-11-21T13:59:00Z".parse().ok(),
        });
    });
    world.started(plain(), false);
    assert_eq!(world.disrupted(), ["a"], "it may still be one that cannot have survived");
    world.change("a", |pod| pod.running_since = "2026-11-21T14:30:00Z".parse().ok());
    world.pass(ms(1_000));
    assert_eq!(world.disrupted(), [""; 0], "{:#?}", world.log);
    assert_eq!(world.done(&["clear"]).len(), 1);
}

#[test]
fn a_pod_that_first_runs_after_the_boot_loses_an_earlier_mark() {
    let fresh = of_a_replica_set("a").never().not_started();
    let mut world = World::standing(settings(), plain(), vec![fresh]);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.shutdown(40);
    world.pass(ms(2_000));
    assert_eq!(world.disrupted(), ["a"]);
    world.reboot(settings());
    world.answers.insert("clear a".into(), Answer::Fail(FailureKind::TooManyRequests, ALWAYS));
    world.started(plain(), false);
    let a = world.pods.get_mut("a").expect("must be a pod");
    (a.phase, a.has_run) = (Phase::Running, true);
    world.answers.clear();
    world.list();
    world.pass(ms(5_000));
    assert_eq!(world.disrupted(), [""; 0], "{:#?}", world.log);
}

/// A pod that was bound at the signal, marked for deletion, and runs after the boot.
fn first_run_after_boot(since: Option<&str>) -> World {
    let fresh = of_a_replica_set("a").never().not_started();
    let mut world = World::standing(settings(), plain(), vec![fresh]);
    world.answers.insert("mark *".into(), Answer::Fail(FailureKind::Unknown, ALWAYS));
    world.shutdown(40);
    world.pass(ms(2_000));
    world.answers.clear();
    world.now = ms(600_000);
    world.restart(Settings { boot_id: "boot-2".into(), ..settings() });
    let a = world.pods.get_mut("a").expect("must be a pod");
    (a.phase, a.has_run) = (Phase::Running, true);
    a.running_since = since.and_then(|text| text.parse().ok());
    world.started(plain(), false);
    world.pass(ms(5_000));
    world
}

#[test]
fn after_the_boot_a_pod_is_marked_only_if_it_had_run_before() {
    // The boot is at 14:00:00.
    let world = first_run_after_boot(Some("2026-11-21T14:05:00Z"));
    assert_eq!(world.disrupted(), [""; 0], "it lives: {:#?}", world.log);
    let world = first_run_after_boot(None);
    assert_eq!(world.disrupted(), [""; 0], "no evidence when it ran: {:#?}", world.log);
    let world = first_run_after_boot(Some("2026-11-21T13:59:00Z"));
    assert_eq!(world.disrupted(), ["a"], "started during the shutdown: {:#?}", world.log);
}

#[test]
fn a_pod_that_started_after_its_mark_keeps_it_through_the_boot() {
    // Simulation seed 5017266: it started so late in the shutdown that no clock can tell the boots
    // apart. The boot is at 14:00:00.
    let fresh = of_a_replica_set("a").never().not_started();
    let mut world = World::standing(settings(), plain(), vec![fresh]);
    world.answers.insert("delete *".into(), Answer::Fail(FailureKind::Forbidden, ALWAYS));
    world.shutdown(40);
    world.pass(ms(2_000));
    let since = "2026-11-21T13:59:58Z".parse().ok();
    world.change("a", |a| {
        (a.phase, a.has_run, a.running_since) = (Phase::Running, true, since);
    });
    world.pass(ms(100));
    world.now = ms(600_000);
    world.restart(Settings { boot_id: "boot-2".into(), ..settings() });
    world.started(plain(), false);
    world.pass(ms(5_000));
    assert_eq!(world.disrupted(), ["a"], "{:#?}", world.log);
}

#[test]
fn a_runtime_that_forgets_at_a_boot_proves_a_loss_where_the_boots_clock_was_noted() {
    for (noted, expected) in [(true, vec!["a"]), (false, vec![])] {
        let booted_at = noted.then(|| wall(ms(0)));
        let settings = Settings { booted_at, boot_id: "boot-2".into(), ..settings() };
        let a = of_a_replica_set("a").never();
        let a = a.with(|pod| pod.running_since = "2026-11-21T13:50:00Z".parse().ok());
        let mut world = World::new(settings, vec![a]);
        world.runtime.insert("a".into(), RuntimeState::default());
        world.started(plain(), false);
        world.pass(ms(70_000));
        assert_eq!(world.disrupted(), expected, "{:#?} {:#?}", world.log, world.logged);
    }
}

/// A shutdown in which the kubelet dies before any pod is terminated, and no runtime may be used.
fn abandoned() -> World {
    let blind = Settings { runtime: false, ..settings() };
    let mut world = World::standing(blind, plain(), vec![of_a_replica_set("a").never()]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(120);
    world.pass(ms(50));
    world.event(Event::KubeletSeen(dead()));
    world.answers.clear();
    world.let_go("mark");
    world
}

#[test]
fn the_lock_is_held_for_a_kubelet_that_restarts_and_its_pods_are_ended() {
    // Simulation seed 501130: the kubelet died as the signal came, and was back within 150 ms.
    let mut world = abandoned();
    world.pass(ms(2_500));
    assert!(!world.released(), "{:?}", world.log);
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(5_000));
    assert!(!world.released(), "{:?}", world.log);
    assert_eq!(world.done(&["delete"]).len(), 1, "{:?}", world.log);
    world.gone("a");
    world.pass(ms(1_000));
    assert!(world.released(), "{:?}", world.log);
    // The agent does not wait for a kubelet that stays away.
    let mut world = abandoned();
    world.pass(ms(3_500));
    assert!(world.released(), "{:?}", world.log);
    assert_eq!(world.disrupted(), ["a"]);
}

#[test]
fn a_kubelet_that_is_back_while_the_summary_is_written_finds_the_lock_held() {
    let mut world = abandoned();
    world.pass(ms(2_900));
    world.answers.insert("journal *".into(), Answer::Hold);
    world.pass(ms(200));
    world.event(Event::KubeletSeen(plain()));
    world.let_go("journal");
    world.pass(ms(5_000));
    assert!(!world.released(), "{:?}", world.log);
    assert_eq!(world.done(&["delete"]).len(), 1, "{:?}", world.log);
}

#[test]
fn a_drained_record_that_was_not_written_in_time_is_not_written_later() {
    // Simulation seed 9250: the right was missing, and a pod came after the release.
    for failure in [FailureKind::Forbidden, FailureKind::Unknown, FailureKind::Invalid] {
        let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
        world.shutdown(40);
        world.pass(ms(500));
        world.answers.insert("announce *".into(), Answer::Fail(failure, ALWAYS));
        world.containers("a", &[Some(143)]);
        world.gone("a");
        world.pass(ms(39_500));
        assert!(world.released(), "{:?}", world.log);
        world.answers.clear();
        world.log.clear();
        bind(&mut world, of_a_replica_set("b"));
        world.containers("b", &[None]);
        world.event(Event::NodeObserved(crate::protocol::event::NodeView::default()));
        world.pass(ms(60_000));
        let drained_records = world.log.iter().filter(|line| line.contains("drained")).count();
        assert_eq!(drained_records, 0, "{failure:?} {:?}", world.log);
    }
}

#[test]
fn a_mark_that_a_recovery_takes_back_at_the_signal_is_set_anew() {
    // Simulation seed 1037700: the removal was under way, and the pod was deleted without a mark.
    let mut world = World::standing(settings(), plain(), vec![of_a_replica_set("a")]);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.shutdown(40);
    world.pass(ms(2_000));
    assert_eq!(world.disrupted(), ["a"]);
    world.reboot(settings());
    world.answers.insert("clear a".into(), Answer::Hold);
    world.started(plain(), false);
    assert_eq!(world.held.len(), 1, "{:?}", world.log);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.shutdown(40);
    world.let_go("clear");
    world.pass(ms(2_000));
    assert_eq!(world.disrupted(), ["a"], "{:#?}", world.log);
}

#[test]
fn a_kubelet_seen_at_the_moment_of_the_signal_counts() {
    // Simulation seed 4001891: the agent was frozen, and heard of both at once.
    let blind = Settings { runtime: false, ..settings() };
    let mut world = World::standing(blind, dead(), vec![of_a_replica_set("a").never()]);
    world.agent.handle(announced(ms(60_000), None), world.clock());
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(3_000));
    assert!(!world.released(), "{:#?}", world.log);
    assert_eq!(world.done(&["delete"]).len(), 1, "{:#?}", world.log);
}
