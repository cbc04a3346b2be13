//! Tests the modes without failures. ([AP16])

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use crate::agent::{LockState, Settings, WouldHave};
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodSource, PodView};
use crate::protocol::event::{Event, NodeView, RuntimeState};
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::shutdown::priority_groups::PriorityGroup;

const JOB: Owner = Owner::Job;

fn job(name: &str) -> PodView {
    pod(name).owner(JOB).never()
}

fn deployed(name: &str) -> PodView {
    pod(name).owner(Owner::Other)
}

#[test]
fn a_kubelet_s_periods_count_where_it_holds_no_lock() {
    let group = |priority, period_seconds| PriorityGroup { priority, period_seconds };
    let configured = || KubeletFacts {
        shutdown_groups: Some(vec![group(0, 840), group(2_000_000_000, 60)]),
        ..plain()
    };
    let pods = || vec![deployed("a").grace(600), deployed("b").grace(600).priority(2_000_000_000)];
    let not_given = || Settings { priority_groups_given: false, ..settings() };
    let graces = |settings: Settings, kubelet: &[KubeletFacts]| {
        let mut world = World::standing(settings, kubelet[0].clone(), pods());
        for facts in &kubelet[1..] {
            world.event(Event::KubeletSeen(facts.clone()));
        }
        let wanted = world.agent.status().wanted.as_secs();
        world.shutdown(wanted);
        world.pass(ms(1));
        world.ends("a", Phase::Failed);
        let ends = world.done(&["delete", "stop"]);
        let graces = ends.iter().filter_map(|line| line.rsplit(' ').next());
        (wanted, graces.map(ToOwned::to_owned).collect::<Vec<_>>().join(" "))
    };
    let expected = |wanted, graces: &str| (wanted, graces.to_owned());
    assert_eq!(graces(not_given(), &[configured()]), expected(914, "600 60"));
    // The operator's flags come first; the delay is enough for both.
    assert_eq!(graces(settings(), &[configured()]), expected(910, "20 10"));
    // It is off.
    assert_eq!(graces(not_given(), &[plain()]), expected(40, "20 10"));
    // It had them before it died.
    let gone = KubeletFacts { shutdown_groups: None, ..dead() };
    let found = graces(not_given(), &[configured(), gone]);
    assert!(found.1.starts_with("600"), "{found:?}");
}

#[test]
fn replace_marks_then_ends_group_by_group_and_lets_go_when_all_is_reported() {
    let pods = vec![
        job("a"),
        deployed("b").grace(5),
        deployed("critical").priority(2_000_000_000),
        deployed("daemon").owner(Owner::DaemonSet),
        pod("static").with(|pod| pod.source = PodSource::Static),
        pod("bare"),
    ];
    let mut world = World::standing(settings(), plain(), pods);
    world.containers("bare", &[Some(0)]);
    world.shutdown(40);
    assert_eq!(
        world.log,
        [
            "0 announce shutting-down",
            "0 taint true",
            "0 mark a",
            "0 mark b",
            "0 mark critical",
            "0 delete a 20",
            "0 delete b 5",
        ]
    );
    world.log.clear();
    world.pass(ms(4_000));
    world.ends("b", Phase::Failed);
    assert_eq!(world.log, [""; 0], "the priority group is not over");
    world.pass(ms(1_000));
    world.ends("a", Phase::Failed);
    assert_eq!(world.log, ["5000 delete critical 10"]);
    world.log.clear();
    world.pass(ms(2_000));
    world.gone("critical");
    let expected = ["7000 list", "7000 announce drained", "7000 release"];
    assert_eq!(world.log, expected);
    let status = world.agent.status();
    let shutdown = status.shutdown.as_ref().expect("must be a shutdown");
    assert_eq!((status.lock, shutdown.mode), (LockState::Released, Mode::Replace));
    assert_eq!((shutdown.candidates, shutdown.terminal, shutdown.unreported), (4, 3, 0));
    assert_eq!(shutdown.unreported_at_release, Some(0));
}

#[test]
fn assist_ends_nothing_and_holds_on_until_the_last_report() {
    // Assist neither deletes nor stops pods. ([AP16])
    let pods = vec![job("a"), deployed("b"), deployed("daemon").owner(Owner::DaemonSet)];
    let mut world = World::standing(settings(), armed(), pods);
    world.shutdown(45);
    assert_eq!(world.log, ["0 announce shutting-down", "0 taint true", "0 mark a"]);
    world.pass(ms(10_000));
    world.ends("a", Phase::Failed);
    world.ends("b", Phase::Failed);
    world.pass(ms(5_000));
    assert!(!world.released());
    world.ends("daemon", Phase::Failed);
    assert!(world.released());
    assert_eq!(world.done(&["delete", "stop", "fail"]), [""; 0]);
}

#[test]
fn assist_holds_no_longer_than_the_kubelet_needs() {
    // The kubelet's periods are 30 s; 10 s come on top. ([AP13])
    let mut world = World::standing(settings(), armed(), vec![job("a")]);
    world.shutdown(300);
    world.pass(ms(39_900));
    assert!(!world.released());
    world.pass(ms(200));
    assert!(world.released());
    let shutdown = world.agent.status().shutdown.clone().expect("must be a shutdown");
    assert_eq!(shutdown.unreported_at_release, Some(1));
}

/// A kubelet that reports Failed, 5 s after the signal, for a pod whose container still runs.
fn half_reported() -> World {
    let runs = |pod: &mut PodView| pod.running_since = "2026-11-21T14:10:00Z".parse().ok();
    let mut world = World::standing(settings(), armed(), vec![job("a").with(runs)]);
    world.shutdown(60);
    world.pass(ms(5_000));
    world.change("a", |pod| pod.phase = Phase::Failed);
    world.pass(ms(9_000));
    assert!(!world.released(), "{:?}", world.log);
    world
}

#[test]
fn a_phase_whose_containers_still_run_is_not_the_kubelets_final_status() {
    // A real kubelet was seen to write Failed while a container ran. ([SD17])
    let mut world = half_reported();
    world.ends("a", Phase::Succeeded);
    assert!(world.released());
    let shutdown = world.agent.status().shutdown.clone().expect("must be a shutdown");
    assert_eq!((shutdown.terminal, shutdown.unreported_at_release), (1, Some(0)));
}

#[test]
fn a_final_status_that_does_not_come_is_awaited_no_longer_than_the_kubelet_needs() {
    let mut world = half_reported();
    world.containers("a", &[Some(143)]);
    world.pass(ms(27_000));
    assert!(world.released());
    assert_eq!(world.done(&["fail", "fail", "delete", "stop"]), [""; 0]);
}

#[test]
fn a_phase_that_met_the_kubelets_is_not_the_kubelets_final_status() {
    // Simulation seed 2031226: both wrote Failed at the end of the time, the kubelet first.
    let runs = |pod: &mut PodView| pod.running_since = "2026-11-21T14:10:00Z".parse().ok();
    let mut world = World::standing(settings(), armed(), vec![job("a").with(runs)]);
    world.containers("a", &[Some(143)]);
    world.answers.insert("fail a".into(), Answer::Hold);
    world.shutdown(60);
    world.pass(ms(39_200));
    assert_eq!(world.held.len(), 1, "{:?}", world.log);
    world.change("a", |pod| pod.phase = Phase::Failed);
    world.let_go("fail");
    world.pass(ms(100));
    assert!(!world.released(), "{:?}", world.log);
    world.ends("a", Phase::Succeeded);
    world.pass(ms(100));
    assert!(world.released(), "{:?}", world.log);
}

#[test]
fn a_kubelet_that_died_reports_no_final_status() {
    let mut world = half_reported();
    world.event(Event::KubeletSeen(dead()));
    world.pass(ms(4_000));
    assert!(world.released(), "{:?}", world.log);
    assert_eq!(world.done(&["fail", "fail", "delete", "stop"]), [""; 0]);
}

#[test]
fn assist_becomes_replace_when_the_kubelet_has_given_up() {
    // The kubelet has no lock, no node condition and no progress 2 s after the signal. ([AP16])
    let mut world = World::standing(settings(), armed(), vec![job("a"), deployed("b")]);
    world.shutdown(40);
    world.pass(ms(500));
    world.event(Event::KubeletSeen(plain()));
    world.pass(ms(1_400));
    assert_eq!(world.done(&["delete", "mark"]), ["0 mark a"]);
    world.pass(ms(200));
    assert_eq!(world.done(&["taint"]), ["0 taint true"]);
    let expected = ["2000 mark b", "2000 delete b 20", "2000 delete a 20"];
    assert_eq!(world.done(&["delete", "mark"])[1..], expected);
}

#[test]
fn assist_stays_where_the_kubelet_is_at_work() {
    for (progress, says_so) in [(true, false), (false, true)] {
        let mut world = World::standing(settings(), armed(), vec![job("a"), job("b")]);
        world.shutdown(40);
        world.pass(ms(500));
        world.event(Event::KubeletSeen(plain()));
        if progress {
            world.ends("b", Phase::Failed);
        }
        let view = NodeView { kubelet_says_shutdown: says_so, ..Default::default() };
        world.event(Event::NodeObserved(view));
        world.pass(ms(10_000));
        assert_eq!(world.done(&["delete"]), [""; 0], "{progress} {says_so}");
    }
}

#[test]
fn what_a_kubelet_has_stopped_in_its_own_shutdown_is_reported_though_it_could_restart() {
    // The static pod that carried the kubelet's way to the API went first.
    for kubelet_says_shutdown in [true, false] {
        let mut world = World::standing(settings(), armed(), vec![deployed("a"), deployed("b")]);
        world.shutdown(40);
        let view = NodeView { kubelet_says_shutdown, ..NodeView::default() };
        world.event(Event::NodeObserved(view));
        world.containers("a", &[Some(143)]);
        world.pass(ms(45_000));
        let failed: Vec<_> = world.done(&["fail"]);
        let failed: Vec<_> = failed.iter().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(failed, ["a"], "{:#?}", world.log);
        assert_eq!(world.lies, [""; 0]);
    }
}

#[test]
fn the_mode_follows_what_is_learnt_just_after_the_signal() {
    use Event::{KubeletSeen, LogindSeen};
    // Nothing was known: the agent had just started.
    for (facts, deletes) in [(plain(), 1), (armed(), 0)] {
        let mut world = World::new(settings(), vec![deployed("a")]);
        world.list();
        world.event(LogindSeen(logind(false)));
        world.shutdown(40);
        assert_eq!(world.done(&["delete"]), [""; 0]);
        world.pass(ms(50));
        world.event(KubeletSeen(facts));
        assert_eq!(world.done(&["delete"]).len(), deletes);
    }
    // Its lock was seen long ago; a kubelet without pods to terminate released it at once. ([SD25])
    let mut world = World::standing(settings(), armed(), vec![deployed("a")]);
    world.pass(ms(70_000));
    world.shutdown(40);
    world.event(KubeletSeen(plain()));
    assert_eq!(world.done(&["delete"]), [""; 0]);
    assert!(!world.logged.iter().any(|line| line.contains("becomes")));
}

#[test]
fn substitute_stops_verifies_and_fails_in_this_order() {
    let pods = vec![job("a"), deployed("b").grace(3), deployed("c").priority(2_000_000_000)];
    let mut world = World::standing(settings(), dead(), pods);
    world.shutdown(40);
    assert_eq!(
        world.done(&["mark", "stop", "fail", "delete", "release"]),
        [
            "0 mark a",
            "0 stop a 20",
            "0 stop b 3",
            // The intent to stop the next group is on its way to the disk.
            "0 fail a",
            "0 fail b",
            "0 stop c 10",
            "0 fail c",
            "0 release"
        ]
    );
    assert_eq!(world.disrupted(), ["a", "b", "c"]);
}

#[test]
fn substitute_never_fails_what_runs_on_and_leaves_what_succeeded() {
    // Failed needs proof, and the kubelet has to report exit code 0. ([AP2], [AP4])
    let mut world = World::standing(settings(), dead(), vec![job("a"), job("b"), pod("c")]);
    world.containers("a", &[None]);
    world.containers("b", &[Some(0)]);
    world.containers("c", &[Some(0)]);
    world.shutdown(20);
    world.pass(ms(30_000));
    // An Always pod that exits 0 would not succeed; the kubelet would start it again.
    assert_eq!(world.done(&["fail", "fail"]), ["0 fail c"]);
    assert_eq!(world.pods["a"].phase, Phase::Running);
    assert_eq!(world.pods["b"].phase, Phase::Running);
    assert!(world.released());
}

#[test]
fn a_runtime_that_knows_nothing_of_a_pod_that_ran_proves_nothing() {
    let unstarted = job("unstarted").not_started();
    let mut world = World::standing(settings(), dead(), vec![job("a"), job("b"), unstarted]);
    world.runtime.insert("a".into(), RuntimeState::default());
    world.runtime.insert("unstarted".into(), RuntimeState::default());
    world.shutdown(20);
    assert_eq!(world.done(&["fail", "release"]), ["0 fail b", "0 fail unstarted", "0 release"]);
    assert_ne!(world.node_says.as_deref(), Some("idle"));
    assert!(!world.log.iter().any(|line| line.contains("drained")), "{:?}", world.log);
}

#[test]
fn a_pod_that_only_the_runtime_knows_keeps_the_node_from_being_announced_as_drained() {
    let drained = |of_the_unseen: &[Option<i32>]| {
        let mut world = World::standing(settings(), dead(), vec![job("a")]);
        world.runtime.insert("unseen".into(), runtime(of_the_unseen));
        world.shutdown(20);
        assert!(world.released(), "it has nothing to wait for: {:?}", world.log);
        world.log.iter().any(|line| line.contains("drained"))
    };
    assert!(!drained(&[None]));
    assert!(drained(&[Some(0)]));
}

#[test]
fn a_runtime_that_does_not_list_its_pods_proves_nothing_and_the_log_says_why() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    world.answers.insert("list".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    world.shutdown(20);
    assert!(world.released() && !world.log.iter().any(|line| line.contains("drained")));
    let says = |line: &String| line.contains("the runtime does not list its pods");
    assert!(world.logged.iter().any(says), "{:?}", world.logged);
}

#[test]
fn what_replace_leaves_alone_is_marked_where_it_cannot_run_again() {
    let high = job("high").priority(1_000_000_001);
    let mut settings = settings();
    settings.priority_max = 1_000_000_000;
    let always = deployed("always").priority(1_000_000_001);
    let mut world = World::standing(settings, plain(), vec![high, always]);
    world.shutdown(40);
    assert_eq!(world.done(&["mark", "delete"]), ["0 mark high"]);
    assert!(world.released(), "no component terminates it before the power-off");
}

#[test]
fn a_dead_kubelet_without_a_runtime_leaves_marks_and_no_waiting() {
    let mut settings = settings();
    settings.runtime = false;
    let mut world = World::standing(settings, dead(), vec![job("a"), deployed("b")]);
    world.shutdown(40);
    assert_eq!(world.log, ["0 announce shutting-down", "0 mark a", "0 release"]);
    assert!(world.agent.status().marks_only);
}

/// The events of an agent that only observes, about pods.
fn would(world: &World) -> Vec<&str> {
    let all = world.reported.iter().filter(|(reason, _)| *reason == "PodWouldBeDisrupted");
    all.map(|(_, text)| text.as_str()).collect()
}

#[test]
fn observe_writes_nothing_and_reports_what_the_agent_would_do() {
    let settings = || Settings { enforce: false, ..settings() };
    let pods = || vec![job("a"), pod("bare"), pod("daemon").owner(Owner::DaemonSet)];
    let mut world = World::standing(settings(), plain(), pods());
    world.shutdown(40);
    // logind is polled meanwhile.
    world.event(super::standing::seen(|state| state.preparing = true));
    world.pass(ms(60_000));
    assert_eq!(world.log, [""; 0]);
    assert_eq!(world.agent.status().mode, Some(Mode::Observe));
    let text = "The node shuts down. Set to enforce, the agent would set DisruptionTarget at once, \
                and terminate it through the API.";
    assert_eq!(would(&world), [text], "bare pods and those of DaemonSets are left alone");
    let begun = world.reported.iter().find(|(reason, _)| *reason == "NodeShutdownStarted");
    let begun = begun.map(|(_, text)| text.as_str()).unwrap_or_default();
    assert!(begun.contains("would handle 1 pods (mode replace: "), "{begun:?}");
    let counts = |world: &World| {
        let status = world.agent.status();
        WouldHave::ALL.map(|what| status.would_have.get(&what).copied().unwrap_or_default())
    };
    assert_eq!(counts(&world), [1, 1, 0, 0, 0]);
    // After a cancel, the next shutdown counts anew.
    world.cancel();
    world.shutdown(40);
    assert_eq!(counts(&world), [2, 2, 0, 0, 0]);

    let mut armed = World::standing(settings(), armed(), pods());
    armed.shutdown(40);
    assert_eq!(would(&armed).len(), 3, "the kubelet stops them all");
    assert!(would(&armed).iter().all(|text| text.contains("hold the shutdown until the API")));
    let mut dead = World::standing(settings(), dead(), pods());
    dead.shutdown(40);
    assert!(
        would(&dead)[0].contains("stop its containers through the runtime"),
        "{:?}",
        would(&dead)
    );
}

#[test]
fn the_lever_is_pulled_only_at_the_end_and_only_with_proof() {
    // Under a live kubelet Failed needs P4 and proof. ([AP3])
    let pods = vec![job("exited"), job("runs"), job("succeeded"), job("unknown")];
    let mut world = World::standing(settings(), plain(), pods);
    world.containers("exited", &[Some(143)]);
    world.containers("runs", &[None]);
    world.containers("succeeded", &[Some(0)]);
    world.containers("unknown", &[]);
    world.shutdown(20);
    world.pass(ms(30_000));
    let expected = ["18400 fail exited", "19000 release"];
    assert_eq!(world.done(&["fail", "fail", "release"]), expected);
    assert_eq!(world.done(&["announce"]), ["0 announce shutting-down"], "not drained");
}

#[test]
fn bare_pods_end_as_the_operator_says() {
    use crate::shutdown::candidates::BarePods::{DeadlineLever, Delete, Leave};
    for (bare_pods, expected) in [
        (Leave, vec!["0 mark never"]),
        (Delete, vec!["0 mark bare", "0 mark never", "0 delete bare 20", "0 delete never 20"]),
        (DeadlineLever, vec!["0 mark bare", "0 mark never", "0 deadline bare", "0 deadline never"]),
    ] {
        let mut settings = settings();
        settings.bare_pods = bare_pods;
        let pods = vec![pod("bare"), pod("never").never()];
        let mut world = World::standing(settings, plain(), pods);
        world.shutdown(40);
        let mut done = world.done(&["mark", "delete", "deadline"]);
        done.sort_by_key(|line| (!line.contains("mark"), line.to_string()));
        assert_eq!(done, expected, "{bare_pods:?}");
    }
}

#[test]
fn pods_that_appear_in_a_shutdown_are_part_of_it() {
    let mut world = World::standing(settings(), plain(), vec![job("a")]);
    world.shutdown(40);
    world.pods.insert("late".into(), job("late"));
    world.log.clear();
    world.change("late", |_| ());
    assert_eq!(world.log, ["0 mark late"]);
    world.pass(ms(1_000));
    world.ends("a", Phase::Failed);
    assert_eq!(world.done(&["delete"]), ["1000 delete late 20"]);
    world.ends("late", Phase::Failed);
    assert!(world.released());
}

#[test]
fn a_pod_being_deleted_is_shortened_and_never_prolonged() {
    // A grace can shrink, never grow. ([SD14])
    let pods = vec![
        deployed("short").deleting(5),
        deployed("long").grace(600).deleting(600),
        deployed("waits").grace(1_000),
        deployed("two").grace(2),
    ];
    let mut world = World::standing(settings(), plain(), pods);
    world.shutdown(40);
    let expected = ["0 delete long 20", "0 delete two 2", "0 delete waits 20"];
    let mut done = world.done(&["delete"]);
    done.sort_unstable();
    assert_eq!(done, expected);
}

#[test]
fn five_seconds_are_enough_for_marks_and_reports() {
    // logind grants 5 s for 110 pods. ([AP11])
    let pods = (0..110).map(|n| job(&format!("p{n:03}"))).collect();
    let mut world = World::standing(settings(), plain(), pods);
    world.shutdown(5);
    assert_eq!(world.disrupted().len(), 110);
    world.pass(ms(4_749));
    assert!(!world.released());
    world.pass(ms(1));
    assert!(world.released());
}

#[test]
fn nothing_is_granted_and_the_marks_still_go_out() {
    // logind grants no delay. ([AP11])
    let mut world = World::standing(settings(), plain(), vec![job("a")]);
    world.shutdown(0);
    assert_eq!(world.disrupted(), ["a"]);
    assert!(world.released());
}

#[test]
fn a_kubelet_that_is_back_without_a_lock_leaves_the_pods_to_the_agent() {
    // Two changes of the mode at one moment: the driver asks whether anything is left to give.
    let blind = Settings { runtime: false, ..settings() };
    let mut world = World::standing(blind, armed(), vec![job("a")]);
    world.event(Event::KubeletSeen(dead()));
    world.shutdown(60);
    world.pass(ms(2_100));
    assert_eq!(world.done(&["delete", "stop"]), [""; 0]);
    world.event(Event::KubeletSeen(KubeletFacts { lock_armed: Some(false), ..armed() }));
    world.pass(ms(2_000));
    assert_eq!(world.done(&["delete"]).len(), 1, "{:?}", world.logged);
}
