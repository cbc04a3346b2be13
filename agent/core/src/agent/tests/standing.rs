//! Tests the lock, the delay, and the agent's own stop before any shutdown.

use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind};

use epilogue_common::names::node_condition::AGENT_READY;

use super::driver::*;
use crate::agent::{LockState, Settings};
use crate::finding::Finding;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase};
use crate::protocol::action::Action;
use crate::protocol::event::{ActionResult, Event, LogindState, NodeCondition, NodeView};
use crate::shutdown::Mode;
use crate::shutdown::priority_groups::PriorityGroup;

pub(super) fn seen(change: impl FnOnce(&mut LogindState)) -> Event {
    let mut state = logind(false);
    change(&mut state);
    Event::LogindSeen(state)
}

#[test]
fn the_lock_is_taken_when_logind_is_there_and_calm() {
    let mut world = World::new(settings(), vec![]);
    assert_eq!(world.log, [""; 0]);
    world.event(seen(|_| ()));
    assert_eq!(world.log, ["0 lock"]);
    assert_eq!(world.agent.status().lock, LockState::Held);
    world.pass(ms(60_000));
    world.event(seen(|_| ()));
    assert_eq!(world.log, ["0 lock"]);
}

#[test]
fn a_lock_that_logind_does_not_list_is_taken_again() {
    let mut world = World::standing(settings(), plain(), vec![]);
    // logind was restarted and has opened the lock again. ([LD7])
    world.event(seen(|state| state.owner = ":1.9".into()));
    assert_eq!(world.log, [""; 0]);
    world.event(Event::LogindLost("the connection is closed".into()));
    assert_eq!(world.agent.status().lock, LockState::Held, "a lock is held on");
    // A list that did not come says nothing of the lock.
    world.event(seen(|state| state.lock_listed = None));
    assert_eq!(world.log, [""; 0]);
    world.event(seen(|state| state.lock_listed = Some(false)));
    assert_eq!(world.log, ["0 lock"]);
    // A read that began before the lock was taken.
    world.event(seen(|state| state.lock_listed = Some(false)));
    assert_eq!(world.log, ["0 lock"]);
}

#[test]
fn a_lock_that_is_refused_is_asked_for_again_and_again() {
    let mut world = World::new(settings(), vec![]);
    world.answers.insert("lock *".into(), Answer::Fail(FailureKind::Other, 3));
    world.event(seen(|_| ()));
    world.pass(ms(10_000));
    assert_eq!(world.done(&["lock"]).len(), 4);
    assert_eq!(world.agent.status().lock, LockState::Held);
}

#[test]
fn a_lock_that_arrives_after_the_release_is_released_too() {
    // The bus hangs while a lock is taken anew; the release does not wait for it.
    let mut world = World::standing(settings(), plain(), vec![]);
    world.answers.insert("lock *".into(), Answer::Hold);
    world.pass(ms(3_000));
    world.event(seen(|state| state.lock_listed = Some(false)));
    assert_eq!(world.agent.status().lock, LockState::Taking);
    let (id, _, _) = world.held.remove(0);
    world.shutdown(40);
    assert_eq!(world.done(&["release"]).len(), 1, "{:#?}", world.log);
    assert!(!world.released());
    world.event(Event::Finished { id, result: ActionResult::Locked });
    assert_eq!(world.done(&["release"]).len(), 2);
    assert!(world.released());
    assert_eq!(world.agent.status().lock, LockState::Released);
}

#[test]
fn no_lock_is_to_be_had_in_a_shutdown() {
    // logind refuses a new lock during a shutdown. ([LD5])
    let mut world = World::new(settings(), vec![]);
    world.answers.insert("lock *".into(), Answer::Hold);
    world.event(seen(|_| ()));
    let (id, _, _) = world.held.remove(0);
    let result = ActionResult::LockRefusedInProgress;
    world.event(Event::Finished { id, result });
    assert_eq!(world.agent.status().lock, LockState::Refused);
}

#[test]
fn the_delay_is_raised_to_what_is_wanted() {
    let mut world = World::new(settings(), vec![]);
    world.event(seen(|state| state.delay = Some(ms(5_000))));
    assert_eq!(world.done(&["raise"]), ["0 raise 40"]);
    assert_eq!(world.agent.status().granted, Some(ms(40_000)));
    // The kubelet needs a longer delay.
    let mut facts = armed();
    facts.shutdown_groups = Some(PriorityGroup::of_all(ms(120_000)));
    world.event(Event::KubeletSeen(facts));
    assert_eq!(world.done(&["raise"]), ["0 raise 40", "0 raise 130"]);
    world.event(seen(|state| state.delay = Some(ms(130_000))));
    assert_eq!(world.done(&["raise"]).len(), 2);
}

/// A kubelet with a longer period writes a drop-in, which ours hides. ([SD4])
#[test]
fn a_longer_delay_that_another_drop_in_asks_for_is_taken_over() {
    for allowed in [true, false] {
        let mut world = World::new(Settings { raise_delay: allowed, ..settings() }, vec![]);
        world.event(seen(|state| state.delay = Some(ms(40_000))));
        assert_eq!(world.done(&["raise"]), [""; 0], "it is long enough");
        world.event(Event::LogindConfChanged);
        world.event(seen(|state| state.delay = Some(ms(60_000))));
        let raised: &[&str] = if allowed { &["0 raise 40"] } else { &[] };
        assert_eq!(world.done(&["raise"]), raised, "once for each change");
    }
    let mut world = World::new(settings(), vec![]);
    world.event(seen(|state| (state.delay, state.preparing) = (Some(ms(40_000)), true)));
    world.event(Event::LogindConfChanged);
    assert_eq!(world.done(&["raise"]), [""; 0], "a shutdown is in progress");
}

#[test]
fn a_delay_that_stays_too_short_is_reported_once() {
    for allowed in [true, false] {
        let mut settings = settings();
        settings.raise_delay = allowed;
        let mut world = World::new(settings, vec![]);
        world.answers.insert("raise *".into(), Answer::Hold);
        world.event(seen(|state| state.delay = Some(ms(5_000))));
        if allowed {
            let (id, _, action) = world.held.remove(0);
            assert_eq!(action, Action::RaiseDelay { wanted: ms(40_000) });
            let result = ActionResult::Delay(Ok(ms(30_000)));
            world.event(Event::Finished { id, result });
        }
        let delay = if allowed { ms(30_000) } else { ms(5_000) };
        world.event(seen(|state| state.delay = Some(delay)));
        world.pass(ms(100_000));
        let warnings = world.logged.iter().filter(|line| line.contains("a shutdown needs")).count();
        assert_eq!(warnings, 1, "{allowed} {:#?}", world.logged);
        assert_eq!(world.agent.status().lock, LockState::Held, "the lock is kept all the same");
    }
}

/// The log lines about a schedule this many seconds ahead.
fn scheduled_in(world: &mut World, seconds: i64, change: impl Fn(&mut LogindState)) -> Vec<String> {
    let at = world.clock().wall + jiff::SignedDuration::from_secs(seconds);
    world.logged.clear();
    for _ in 0..3 {
        world.event(seen(|state| {
            state.scheduled = Some(("reboot".into(), at));
            change(state);
        }));
        world.pass(ms(1_000));
    }
    world.logged.iter().filter(|line| line.contains("is scheduled")).cloned().collect()
}

#[test]
fn what_would_not_go_well_is_logged_once_before_a_scheduled_shutdown() {
    let mut settings = settings();
    settings.raise_delay = false;
    let mut world = World::standing(settings, plain(), vec![pod("a")]);
    assert_eq!(scheduled_in(&mut world, 90, |_| ()), [""; 0], "there is time");
    let ready = scheduled_in(&mut world, 50, |_| ());
    assert!(matches!(ready.as_slice(), [one] if one.contains("everything is ready")), "{ready:?}");
    world.answers.insert("lock *".into(), Answer::Fail(FailureKind::Other, u32::MAX));
    let short = |state: &mut LogindState| {
        state.delay = Some(ms(5_000));
        state.lock_listed = Some(false);
    };
    let too_short = Finding::DelayTooShort { granted: ms(5_000), wanted: ms(40_000) };
    let logged = scheduled_in(&mut world, 40, short);
    let [logged] = logged.as_slice() else { panic!("once, not {logged:?}") };
    assert!(
        logged.contains("reboot is scheduled in 40 s, and the node is not ready for it"),
        "{logged}"
    );
    assert!(logged.contains(&too_short.to_string()), "{logged}");
}

#[test]
fn a_lock_that_is_not_held_before_a_scheduled_shutdown_is_said() {
    let mut world = World::new(settings(), vec![]);
    world.answers.insert("lock *".into(), Answer::Fail(FailureKind::Other, u32::MAX));
    let logged = scheduled_in(&mut world, 30, |_| ());
    let [logged] = logged.as_slice() else { panic!("once, not {logged:?}") };
    assert!(logged.contains(&Finding::LockNotHeld.to_string()), "{logged}");
    assert!(logged.contains(&Finding::PodsNotListed.to_string()), "{logged}");
}

#[test]
fn on_sigterm_the_agent_releases_the_lock_and_exits() {
    let mut world = World::standing(settings(), plain(), vec![]);
    world.event(Event::StopRequested);
    assert_eq!(world.log, ["0 release"]);
    assert!(world.agent.status().may_exit);
    world.pass(ms(60_000));
    assert_eq!(world.log, ["0 release"], "no lock is taken any more");
}

#[test]
fn on_sigterm_in_a_shutdown_the_agent_finishes_the_shutdown() {
    let job = pod("a").owner(Owner::Job).never();
    let mut world = World::standing(settings(), armed(), vec![job]);
    world.shutdown(40);
    world.event(Event::StopRequested);
    world.pass(ms(10_000));
    assert!(!world.agent.status().may_exit);
    assert!(!world.released());
    world.ends("a", Phase::Failed);
    assert!(world.released());
    assert!(world.agent.status().may_exit);
}

#[test]
fn on_sigterm_after_the_release_late_reports_have_a_moment() {
    let job = pod("a").owner(Owner::Job).never();
    let mut world = World::standing(settings(), armed(), vec![job]);
    world.answers.insert("*".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    world.shutdown(10);
    world.pass(ms(12_000));
    assert!(world.released());
    world.event(Event::StopRequested);
    assert!(!world.agent.status().may_exit);
    world.pass(ms(5_000));
    assert!(world.agent.status().may_exit);
}

#[test]
fn a_result_that_is_not_awaited_changes_nothing() {
    let mut world = World::standing(settings(), plain(), vec![pod("a")]);
    let failure = Failure::new(FailureKind::Forbidden, "no");
    for id in [0, 1, 77, u64::MAX] {
        let id = crate::protocol::action::ActionId(id);
        world.event(Event::Finished { id, result: ActionResult::Done(Err(failure.clone())) });
    }
    assert_eq!(world.log, [""; 0]);
    assert_eq!(world.agent.status().mode, Some(Mode::Replace));
}

#[test]
fn a_suspend_is_no_time_that_logind_counts() {
    // logind's timer stands still in a suspend. ([LD2], [AP22])
    let job = pod("a").owner(Owner::Job).never();
    let mut world = World::standing(settings(), armed(), vec![job]);
    world.shutdown(40);
    world.pass(ms(5_000));
    world.suspended = ms(3_600_000);
    world.pass(ms(30_000));
    assert!(!world.released());
    assert!(world.logged.iter().any(|line| line.contains("suspended")));
}

#[test]
fn a_node_without_logind_is_kept_in_order_and_asks_for_no_lock() {
    let mut world = World::new(Settings { logind: false, ..settings() }, vec![]);
    world.event(Event::KubeletSeen(plain()));
    world.list();
    let announced = Some("shutting-down;boot=old;since=2026-11-21T14:05:06Z".to_owned());
    let conditions = vec![NodeCondition::ours(AGENT_READY, true)];
    let view = NodeView { announced, tainted: true, conditions, ..NodeView::default() };
    world.event(Event::NodeObserved(view));
    world.pass(ms(60_000));
    assert_eq!(world.log, ["0 announce idle", "0 taint false"]);
    assert_eq!(world.readiness.as_deref(), Some("mode=replace;lock=off;granted=?;wanted=40"));
}

/// Shows the node as the API has it.
fn show_node(world: &mut World) {
    let view = NodeView { readiness: world.readiness.clone(), ..NodeView::default() };
    world.event(Event::NodeObserved(view));
}

#[test]
fn how_a_shutdown_would_go_stands_on_the_node() {
    let mut world = World::standing(settings(), plain(), vec![]);
    assert_eq!(world.readiness, None, "nothing is known of the node");
    show_node(&mut world);
    let held = "mode=replace;lock=held;granted=40;wanted=40";
    assert_eq!(world.readiness.as_deref(), Some(held));
    world.event(seen(|state| state.delay = Some(Duration::from_secs(5))));
    world.event(seen(|state| state.delay = Some(Duration::from_secs(5))));
    assert_eq!(world.readiness.as_deref(), Some("mode=replace;lock=held;granted=40;wanted=40"));
    world.event(Event::KubeletSeen(armed()));
    assert_eq!(world.readiness.as_deref(), Some("mode=assist;lock=held;granted=40;wanted=40"));
    // The agent corrects another writer's value.
    world.readiness = Some("mode=observe".into());
    show_node(&mut world);
    assert_eq!(world.readiness.as_deref(), Some("mode=assist;lock=held;granted=40;wanted=40"));
}

#[test]
fn without_its_policies_an_agent_acts_no_more_and_says_so_until_they_are_there() {
    let mut world = World::standing(settings(), plain(), vec![pod("a").never()]);
    let policy = || Event::PoliciesTried(Some("epilogue-agent-node".into()));
    world.event(policy());
    world.event(policy());
    let status = world.agent.status();
    assert_eq!(status.unbounded.as_deref(), Some("epilogue-agent-node"));
    assert_eq!((status.mode, status.lock), (Some(Mode::Observe), LockState::Released));
    let reported: Vec<_> =
        world.reported.iter().filter(|(why, _)| *why == "AgentUnbounded").collect();
    assert!(reported.len() == 1 && reported[0].1.contains("deploy/policy"), "{reported:?}");
    world.log.clear();
    world.shutdown(40);
    world.pass(ms(1_000));
    assert_eq!(world.log, [""; 0]);
    world.cancel();
    world.event(Event::PoliciesTried(None));
    world.pass(ms(3_000));
    let status = world.agent.status();
    assert_eq!((status.mode, status.lock), (Some(Mode::Replace), LockState::Held));
}

/// The calls to the API so far.
fn calls(world: &World) -> Vec<&str> {
    world.done(&["announce", "publish", "taint", "mark", "clear", "delete", "read", "fail"])
}

#[test]
fn nothing_is_written_before_the_policies_were_tried() {
    let tries = || Settings { tries_policies: true, ..settings() };
    let announced = Some("shutting-down;boot=old;since=2026-11-21T14:05:06Z".to_owned());
    let stale = || NodeView { announced: announced.clone(), tainted: true, ..NodeView::default() };
    let start = |pods| {
        let mut world = World::new(tries(), pods);
        world.event(Event::KubeletSeen(plain()));
        world.list();
        world.event(seen(|_| ()));
        world.event(Event::NodeObserved(stale()));
        world
    };
    // They hold.
    let mut world = start(vec![]);
    world.pass(ms(4_900));
    assert_eq!((calls(&world), world.agent.status().lock), (vec![], LockState::Held));
    world.event(Event::PoliciesTried(None));
    assert_eq!(calls(&world), ["4900 announce idle", "4900 taint false"]);
    // One is missing.
    let mut world = start(vec![]);
    world.event(Event::PoliciesTried(Some("epilogue-agent-node".into())));
    world.pass(ms(10_000));
    assert_eq!(calls(&world), [""; 0]);
    // The API does not say.
    let mut world = start(vec![]);
    world.pass(ms(10_000));
    assert_eq!(calls(&world), ["5000 announce idle", "5000 taint false"]);
    // A shutdown has no time.
    let job = || pod("a").owner(Owner::Job).never();
    let mut world = start(vec![job()]);
    world.shutdown(40);
    world.pass(ms(900));
    assert_eq!(calls(&world), [""; 0]);
    world.pass(ms(200));
    assert_eq!(world.disrupted(), ["a"]);
    assert_eq!(world.done(&["delete"]).len(), 1);
}

#[test]
fn a_shutdown_that_goes_on_is_finished_without_policies() {
    let mut world = World::standing(settings(), plain(), vec![pod("a").owner(Owner::Job).never()]);
    world.answers.insert("mark *".into(), Answer::Hold);
    world.shutdown(40);
    world.event(Event::PoliciesTried(Some("epilogue-agent-node".into())));
    world.let_go("mark");
    assert_eq!(world.done(&["delete"]).len(), 1);
}

#[test]
fn a_lock_that_comes_after_the_policies_went_is_given_back() {
    let mut world = World::new(settings(), vec![]);
    world.answers.insert("lock *".into(), Answer::Hold);
    world.event(seen(|_| ()));
    let (id, _, _) = world.held.remove(0);
    world.event(Event::PoliciesTried(Some("epilogue-agent-node".into())));
    world.event(Event::Finished { id, result: ActionResult::Locked });
    assert_eq!(world.agent.status().lock, LockState::Released);
    assert_eq!(world.done(&["release"]).len(), 1);
}
