//! Tests deaths of the agent or the machine, and how the next agent uses the journal. ([AP18],
//! [AP19])

use super::driver::*;
use crate::agent::{LockState, Settings};
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::protocol::ending::ShutdownKind;
use crate::protocol::event::{Event, NodeView};
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::shutdown::candidates::BarePods;
use crate::shutdown::priority_groups::PriorityGroupFlags;

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

fn pods() -> Vec<PodView> {
    vec![job("never"), pod("always").owner(Owner::Other), pod("bare").never()]
}

fn node(world: &World) -> Event {
    let announced = world.node_says.clone();
    Event::NodeObserved(NodeView { announced, tainted: world.tainted, ..NodeView::default() })
}

/// A run that dies after this many actions, with the last one carried out or not.
fn dying(facts: &KubeletFacts, actions: usize, carried_out: bool) -> World {
    let mut world = World::standing(settings(), facts.clone(), pods());
    for name in ["never", "always", "bare"] {
        world.containers(name, &[None]);
    }
    world.dies_after = Some((actions, carried_out));
    world.shutdown(40);
    world
}

/// Runs each crash point of a shutdown, in each mode.
fn each_crash(mut check: impl FnMut(&KubeletFacts, World, String)) {
    for facts in [plain(), armed(), dead()] {
        for actions in 1..40 {
            for carried_out in [false, true] {
                let world = dying(&facts, actions, carried_out);
                let case = format!("{facts:?}\n{actions} {carried_out} {:#?}", world.log);
                check(&facts, world, case);
            }
        }
    }
}

#[test]
fn an_agent_restarted_in_a_shutdown_goes_on() {
    each_crash(|facts, mut world, case| {
        world.freeze(ms(1_000));
        world.restart(settings());
        world.started(facts.clone(), true);
        assert!(!world.done(&["lock"]).iter().any(|line| line.contains("lock")), "{case}");
        world.pass(ms(3_000));
        // Whichever component terminates them, the two pods that cannot run again are marked.
        assert!(world.pods["never"].is_disrupted(), "{case} {:#?}", world.log);
        assert!(world.pods["bare"].is_disrupted(), "{case}");
        world.pass(ms(60_000));
        assert!(world.released(), "{case}");
        let journalled = world.journal.len() > 1;
        let shutdown = world.agent.status().shutdown.clone().expect("must be a shutdown");
        assert!(shutdown.released_after.is_some_and(|at| at <= ms(42_000)), "{case} {journalled}");
    });
}

#[test]
fn an_agent_restarted_after_a_cancel_takes_everything_back() {
    each_crash(|facts, mut world, case| {
        world.freeze(ms(1_000));
        world.restart(settings());
        let seen = node(&world);
        world.event(seen);
        world.started(facts.clone(), false);
        for (name, pod) in &world.pods {
            assert!(!pod.is_disrupted() || pod.is_terminating(), "{name}: {case}");
        }
        assert!(!world.tainted, "{case}");
        assert_eq!(world.node_says.as_deref(), Some("idle"), "{case}");
        assert_eq!(world.journal, [], "{case}");
        assert_eq!(world.agent.status().lock, LockState::Held);
    });
}

#[test]
fn after_a_boot_the_condition_is_where_it_is_true_and_nowhere_else() {
    // DisruptionTarget stands on pods that cannot restart, and on no pod that may. ([AP19])
    each_crash(|facts, mut world, case| {
        let known = !world.journal.is_empty();
        world.reboot(settings());
        let seen = node(&world);
        world.event(seen);
        world.started(facts.clone(), false);
        for (name, pod) in &world.pods {
            if pod.is_terminating() || pod.is_terminal() {
                continue;
            }
            let expected = name != "always" && known;
            assert_eq!(pod.is_disrupted(), expected, "{name}: {case}");
        }
        assert!(!world.tainted, "{case}");
        assert_eq!(world.node_says.as_deref(), Some("idle"), "{case}");
        assert_eq!(world.journal, [], "{case}");
    });
}

#[test]
fn boot_recovery_repeats_the_time_of_the_first_attempt() {
    let mut world = World::standing(settings(), armed(), vec![job("a")]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    let (_, _, first) = world.held.remove(0);
    let since = first_condition(&first);
    world.reboot(settings());
    world.answers.clear();
    world.started(armed(), false);
    let again = world.pods["a"].disruption.clone().and_then(|disruption| disruption.since);
    assert_eq!(again.map(|at| at.to_string()), Some(since));
}

fn first_condition(action: &crate::protocol::action::Action) -> String {
    let crate::protocol::action::Action::PatchStatus { body, .. } = action else {
        panic!("must be a patch: {action:?}");
    };
    body["status"]["conditions"][0]["lastTransitionTime"].as_str().expect("a time").to_owned()
}

#[test]
fn after_a_boot_ended_and_deleted_pods_are_left() {
    for change in [
        (|pod: &mut PodView| pod.phase = Phase::Succeeded) as fn(&mut PodView),
        |pod| pod.phase = Phase::Failed,
        |pod| pod.deletion_grace_seconds = Some(30),
    ] {
        let mut world = World::standing(settings(), armed(), vec![job("a")]);
        world.answers.insert("mark *".into(), Answer::Hold);
        world.shutdown(40);
        world.reboot(settings());
        world.answers.clear();
        change(world.pods.get_mut("a").expect("must be a pod"));
        world.started(armed(), false);
        assert!(!world.pods["a"].is_disrupted());
        assert_eq!(world.journal, []);
    }
}

#[test]
fn assist_begins_no_kills_after_a_restart_and_replace_goes_on_with_its_own() {
    // Assist starts no terminations after a restart. ([AP18])
    for (facts, expected) in [(armed(), 0), (plain(), 2)] {
        let mut world = World::standing(settings(), facts, pods());
        world.answers.insert("mark *".into(), Answer::Hold);
        world.shutdown(40);
        world.restart(settings());
        world.answers.clear();
        // The kubelet has released its lock in the meantime.
        world.started(plain(), true);
        world.pass(ms(30_000));
        assert_eq!(world.done(&["delete"]).len(), expected, "{:#?}", world.log);
    }
}

#[test]
fn the_time_of_a_shutdown_is_counted_on_by_the_boot_clock() {
    let mut world = World::standing(settings(), armed(), vec![job("a")]);
    world.shutdown(40);
    world.freeze(ms(15_000));
    world.restart(settings());
    world.started(armed(), true);
    world.pass(ms(23_000));
    assert!(!world.released());
    world.pass(ms(1_500));
    assert!(world.released());
}

#[test]
fn a_released_shutdown_is_not_taken_up_again_but_its_reports_are() {
    let mut world = World::standing(settings(), armed(), vec![job("a")]);
    let kind = epilogue_common::outcome::FailureKind::Unknown;
    world.answers.insert("mark *".into(), Answer::Fail(kind, u32::MAX));
    world.shutdown(20);
    world.pass(ms(30_000));
    assert!(world.released());
    world.restart(settings());
    world.answers.clear();
    world.started(armed(), true);
    assert_eq!(world.disrupted(), ["a"]);
    assert_eq!(world.done(&["announce", "release", "delete"]), [""; 0]);
}

fn soft(settings: Settings) -> World {
    let mut world = World::standing(settings, armed(), pods());
    for name in ["never", "always", "bare"] {
        world.containers(name, &[None]);
    }
    world.event(announced(ms(10_000), Some(ShutdownKind::SoftReboot)));
    world
}

#[test]
fn the_containers_distinguish_a_soft_reboot_from_a_cancel() {
    for stopped in [true, false] {
        let mut world = soft(settings());
        world.pass(ms(11_000));
        assert!(world.released());
        if stopped {
            world.containers("never", &[Some(137)]);
            world.containers("bare", &[Some(137)]);
        }
        world.restart(settings());
        world.started(armed(), false);
        let expected: &[&str] = if stopped { &["bare", "never"] } else { &[] };
        assert_eq!(world.disrupted(), expected);
        assert_eq!(world.journal, []);
    }
    // Without a runtime, the release of the lock is the only witness.
    let mut blind = settings();
    blind.runtime = false;
    for (pass, expected) in [(11_000, 2), (1_000, 0)] {
        let mut world = soft(blind.clone());
        world.pass(ms(pass));
        world.restart(blind.clone());
        world.started(armed(), false);
        assert_eq!(world.disrupted().len(), expected, "{pass}");
    }
}

#[test]
fn a_pod_whose_deadline_was_set_keeps_its_mark() {
    // The kubelet terminates the pod by that deadline after the boot, or after the cancel.
    let mut settings = settings();
    settings.bare_pods = BarePods::DeadlineLever;
    let shutdown = |settings: &Settings| {
        let mut world = World::standing(settings.clone(), plain(), vec![pod("bare")]);
        world.shutdown(40);
        assert_eq!(world.done(&["deadline"]).len(), 1, "{:#?}", world.log);
        world
    };
    let mut booted = shutdown(&settings);
    booted.reboot(settings.clone());
    booted.started(plain(), false);
    let mut cancelled = shutdown(&settings);
    cancelled.restart(settings.clone());
    cancelled.started(plain(), false);
    for world in [booted, cancelled] {
        assert_eq!(world.disrupted(), ["bare"], "{:#?}", world.log);
        assert_eq!(world.journal, []);
    }
}

#[test]
fn what_an_earlier_boot_left_on_the_node_is_removed() {
    let stale = NodeView {
        announced: Some("shutting-down;boot=boot-0;since=2026-11-21T13:00:00Z".into()),
        tainted: true,
        ..NodeView::default()
    };
    // The boot id differs, so the agent acts even before logind reports anything.
    let mut world = World::new(settings(), vec![]);
    world.event(Event::NodeObserved(stale));
    assert_eq!(world.log, ["0 announce idle", "0 taint false"]);
    // For this boot, the agent waits until logind reports no shutdown.
    let own = NodeView {
        announced: Some("shutting-down;boot=boot-1;since=2026-11-21T13:00:00Z".into()),
        ..NodeView::default()
    };
    let mut world = World::new(settings(), vec![]);
    world.event(Event::NodeObserved(own));
    assert_eq!(world.log, [""; 0]);
    world.event(Event::LogindSeen(logind(false)));
    assert_eq!(world.done(&["announce"]), ["0 announce idle"]);
}

#[test]
fn a_node_that_went_down_without_notice_explains_its_dead() {
    // A power cut or a kernel panic. ([W5])
    let ran = |seconds: &str| seconds.parse().ok();
    let before = ran("2026-11-21T13:50:00Z");
    let mut world = World::new(
        settings(),
        vec![
            job("lost").with(|pod| pod.running_since = before),
            job("new").with(|pod| pod.running_since = ran("2026-11-21T14:16:30Z")),
            pod("restarts").with(|pod| pod.running_since = before),
            job("ended").phase(Phase::Failed).with(|pod| pod.running_since = before),
            job("deleted").deleting(30).with(|pod| pod.running_since = before),
        ],
    );
    world.containers("lost", &[Some(255)]);
    world.started(plain(), false);
    assert_eq!(world.disrupted(), ["lost"]);
    let message = world.pods["lost"].disruption.clone().map(|disruption| disruption.message);
    assert_eq!(message.as_deref(), Some(crate::termination::patches::LOST_MESSAGE));
}

/// A pod that has run since 15 minutes before the boot, by the API's clock.
fn by_the_clock_lost(settings: Settings) -> World {
    let before = "2026-11-21T13:45:00Z".parse().ok();
    World::new(settings, vec![job("a").with(|pod| pod.running_since = before)])
}

#[test]
fn a_pod_that_the_runtime_shows_to_run_is_not_lost_whatever_the_clock_says() {
    // Simulation seeds 3386 and 6098: the clock jumped ahead by an hour, and the agent was
    // restarted.
    let mut world = by_the_clock_lost(settings());
    world.containers("a", &[None]);
    world.started(plain(), false);
    world.pass(ms(120_000));
    assert_eq!(world.disrupted(), [""; 0], "{:?}", world.log);
    // A runtime that does not know the pod, or does not respond, proves nothing either.
    let mut world = by_the_clock_lost(settings());
    world.runtime.insert("a".into(), crate::protocol::event::RuntimeState::default());
    world.started(plain(), false);
    world.pass(ms(120_000));
    assert_eq!(world.disrupted(), [""; 0], "{:?}", world.log);
    let mut world = by_the_clock_lost(settings());
    let silent = Answer::Fail(epilogue_common::outcome::FailureKind::Unknown, u32::MAX);
    world.answers.insert("inspect *".into(), silent);
    world.started(plain(), false);
    world.pass(ms(120_000));
    assert_eq!(world.disrupted(), [""; 0], "{:?}", world.log);
    assert_eq!(world.agent.status().boot_recovery_pending, 0);
}

#[test]
fn a_runtime_that_starts_late_is_waited_for() {
    let mut world = by_the_clock_lost(settings());
    world.containers("a", &[Some(255)]);
    let silent = Answer::Fail(epilogue_common::outcome::FailureKind::Unknown, 5);
    world.answers.insert("inspect *".into(), silent);
    world.started(dead(), false);
    world.pass(ms(10_000));
    assert_eq!(world.disrupted(), ["a"], "{:?}", world.log);
}

#[test]
fn without_a_runtime_a_pod_is_lost_only_by_a_clock_that_was_noted_at_the_boot() {
    let at = |time: &str| time.parse::<jiff::Timestamp>().ok();
    let blind = Settings { runtime: false, ..settings() };
    let cases = [
        (None, 0),
        // The clock jumped ahead since: the pod began after the boot.
        (at("2026-11-21T13:40:00Z"), 0),
        (at("2026-11-21T13:45:05Z"), 0),
        (at("2026-11-21T13:45:15Z"), 1),
        // The clock was set back since.
        (at("2026-11-21T15:00:00Z"), 1),
    ];
    for (booted_at, lost) in cases {
        let mut world = by_the_clock_lost(Settings { booted_at, ..blind.clone() });
        world.started(dead(), false);
        assert_eq!(world.disrupted().len(), lost, "{booted_at:?} {:?}", world.log);
    }
}

/// A machine without a clock that lasts over a loss of power: at its boot, its clock was two hours
/// behind.
#[test]
fn a_pod_that_is_younger_than_the_error_of_the_clock_is_lost_if_the_runtime_saw_no_end_of_it() {
    let at = |time: &str| time.parse::<jiff::Timestamp>().ok();
    for (code, reason, lost) in [
        (Some(255), "Unknown", true),
        (Some(1), "Error", false),
        (Some(0), "Completed", false),
        (None, "", false),
    ] {
        let settings = Settings { booted_at: at("2026-11-21T12:00:00Z"), ..settings() };
        let young = job("a").with(|pod| pod.running_since = at("2026-11-21T13:55:00Z"));
        let mut world = World::new(settings, vec![young]);
        world.containers("a", &[code]);
        let state = world.runtime.get_mut("a").expect("was just set");
        state.containers[0].reason = reason.into();
        world.started(plain(), false);
        world.pass(ms(10_000));
        assert_eq!(!world.disrupted().is_empty(), lost, "{code:?}: {:?}", world.log);
    }
}

#[test]
fn a_mark_on_a_pod_that_lives_on_is_taken_back_by_proof_of_its_life() {
    use crate::pod::{Disruption, TERMINATION_BY_KUBELET};
    use crate::termination::patches::{LOST_MESSAGE, SHUTDOWN_MESSAGE};
    let marked = |settings: Settings, message: &str| {
        let mut world = by_the_clock_lost(settings);
        world.change("a", |pod| {
            pod.disruption = Some(Disruption {
                stands: true,
                reason: TERMINATION_BY_KUBELET.into(),
                message: message.into(),
                since: "2026-11-21T13:59:00Z".parse().ok(),
            });
        });
        world
    };
    let blind = Settings { runtime: false, ..settings() };
    let low = "The node was low on resource: memory. ";
    for message in [LOST_MESSAGE, SHUTDOWN_MESSAGE, low] {
        // The agent removes the mark of a pod that runs by the runtime; the kubelet has to report
        // the others.
        for (code, left) in [(None, 0), (Some(255), 1)] {
            let mut world = marked(settings(), message);
            world.containers("a", &[code]);
            world.started(plain(), false);
            world.pass(ms(50_000));
            assert_eq!(world.disrupted(), ["a"], "{message} {code:?} {:?}", world.log);
            world.pass(ms(400_000));
            assert_eq!(world.disrupted().len(), left, "{message} {code:?} {:?}", world.log);
        }
        // Under a dead kubelet nothing is known.
        let mut world = marked(settings(), message);
        world.containers("a", &[None]);
        world.started(dead(), false);
        world.pass(ms(400_000));
        assert_eq!(world.disrupted(), ["a"], "{message} {:?}", world.log);
        let mut world = marked(blind.clone(), message);
        world.started(plain(), false);
        world.pass(ms(400_000));
        assert_eq!(world.disrupted(), [""; 0], "{message} {:?}", world.log);
        // The agent removes the mark once: it does not fight another writer.
        assert_eq!(world.done(&["clear"]).len(), 1);
    }
}

#[test]
fn a_shutdown_that_was_never_heard_of_is_taken_up() {
    // PreparingForShutdown is true at the start. ([AP23])
    let mut world = World::new(settings(), pods());
    world.started(plain(), true);
    let shutdown = world.agent.status().shutdown.clone().expect("must be a shutdown");
    assert_eq!(shutdown.mode, Mode::Replace);
    assert_eq!(world.done(&["mark"]).len(), 3);
    assert_eq!(world.done(&["delete"]).len(), 2);
    assert_eq!(world.done(&["lock"]), [""; 0]);
}

#[test]
fn a_journal_of_another_boot_and_a_new_shutdown_do_not_get_in_each_other_s_way() {
    let mut world = World::standing(settings(), armed(), pods());
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    world.reboot(settings());
    world.answers.insert("read *".into(), Answer::Hold);
    world.started(armed(), false);
    world.answers.clear();
    world.shutdown(40);
    world.let_go("*");
    assert_eq!(world.disrupted(), ["bare", "never"]);
    assert!(world.journal.len() > 4, "both runs");
}

#[test]
fn a_mark_that_a_second_shutdown_took_over_is_known_after_a_restart() {
    use crate::protocol::journal::{Intent, Record};
    let mut world = World::standing(settings(), plain(), vec![job("a")]);
    world.containers("a", &[None]);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.shutdown(40);
    assert!(world.pods["a"].is_disrupted());
    // The shutdown is cancelled and announced again; the mark is known, so it is not set again.
    let is_of_the_second = |record: &&Record| {
        matches!(record, Record::Begun { .. } | Record::Intent { intent: Intent::End, .. })
    };
    let second: Vec<_> = world.journal.iter().filter(is_of_the_second).cloned().collect();
    assert_eq!(second.len(), 2, "{:?}", world.journal);
    world.journal.extend(second);
    world.restart(settings());
    world.started(plain(), false);
    assert!(!world.pods["a"].is_disrupted(), "{:#?}", world.pods["a"]);
}

#[test]
fn priority_groups_turned_off_still_mark_what_cannot_survive() {
    let mut settings = settings();
    let flags = PriorityGroupFlags {
        total: Some(crate::time_span::TimeSpan::from_secs(0)),
        ..PriorityGroupFlags::default()
    };
    settings.priority_groups = flags.priority_groups().expect("must be priority groups");
    let mut world = World::standing(settings, plain(), pods());
    world.shutdown(5);
    assert_eq!(world.done(&["mark", "delete", "taint"]).len(), 2);
    assert!(world.released());
}
