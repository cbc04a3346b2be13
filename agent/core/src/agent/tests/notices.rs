//! Tests notices: ends of the machine that are announced ahead of logind.

use std::collections::BTreeSet;

use super::driver::*;
use super::standing::seen;
use crate::agent::{LockState, Settings};
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::{EndSign, Event, NodeView};
use crate::protocol::journal::Record;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;

fn with_notices() -> Settings {
    Settings { notices: BTreeSet::from([Source::Aws, Source::Scheduled]), ..settings() }
}

fn pods() -> Vec<PodView> {
    vec![pod("a").owner(Owner::Job).never(), pod("b").owner(Owner::Other)]
}

fn standing(kubelet: KubeletFacts) -> World {
    let mut world = World::standing(with_notices(), kubelet, pods());
    show_node(&mut world);
    world.log.clear();
    world
}

/// The agent sees the node as its own writes have left it.
fn show_node(world: &mut World) {
    let (announced, tainted) = (world.node_says.clone(), world.tainted);
    world.event(Event::NodeObserved(NodeView { announced, tainted, ..NodeView::default() }));
}

fn notice(seconds: u64) -> Event {
    Event::EndingSeen(Source::Aws, Some(Ending::certain(Some(ms(seconds * 1_000)), None)))
}

fn withdrawn() -> Event {
    Event::EndingSeen(Source::Aws, None)
}

fn uncertain() -> Event {
    let ending = Ending { within: None, kind: None, certain: false };
    Event::EndingSeen(Source::Aws, Some(ending))
}

fn wanted(world: &World) -> u64 {
    world.agent.status().wanted.as_secs()
}

fn reasons(world: &World) -> Vec<&str> {
    let reasons = world.reported.iter().map(|(reason, _)| *reason);
    reasons.filter(|reason| reason.starts_with("NodeEnd")).collect()
}

#[test]
fn shutdown_begins_as_long_before_the_end_as_it_takes_whatever_the_kubelet_does() {
    for kubelet in [plain(), armed()] {
        let mut world = standing(kubelet);
        world.event(notice(120));
        assert_eq!(reasons(&world), ["NodeEndAnnounced"]);
        assert!(world.tainted, "new pods stay away at once");
        assert_eq!(world.disrupted(), [""; 0]);
        let early = 120 - wanted(&world) - 10;
        world.pass(ms(early * 1_000 - 1));
        assert_eq!(world.done(&["mark", "delete"]), [""; 0]);
        world.pass(ms(1));
        assert_eq!(world.agent.status().shutdown.as_ref().map(|it| it.mode), Some(Mode::Replace));
        assert_eq!(world.disrupted(), ["a", "b"]);
        assert_eq!(world.done(&["delete"]).len(), 2, "{:#?}", world.log);
        let granted = world.agent.status().shutdown.as_ref().map(|it| it.granted.as_secs());
        assert_eq!(granted, Some(120 - early));
    }
}

#[test]
fn notice_that_comes_late_begins_at_once_and_in_its_time() {
    for (seconds, disrupted) in [(0, vec!["a"]), (30, vec!["a", "b"])] {
        let mut world = standing(armed());
        world.event(notice(seconds));
        assert_eq!(world.disrupted(), disrupted, "{seconds}");
        let shutdown = world.agent.status().shutdown.clone().expect("must go on");
        assert_eq!(shutdown.granted.as_secs(), seconds);
    }
}

#[test]
fn signal_that_follows_goes_on_with_the_same_shutdown_in_the_less_of_both_times() {
    for (delay, granted) in [(10, 10), (600, 30)] {
        let mut world = standing(plain());
        world.event(notice(30));
        let before = world.log.clone();
        world.event(announced(ms(delay * 1_000), None));
        assert_eq!(world.log, before, "nothing is done again");
        let shutdown = world.agent.status().shutdown.clone().expect("must go on");
        assert_eq!(shutdown.granted.as_secs(), granted);
        world.ends("a", Phase::Failed);
        world.ends("b", Phase::Failed);
        assert!(world.released(), "{:#?}", world.log);
        // A notice that goes while logind shuts down withdraws nothing.
        world.event(withdrawn());
        assert!(!world.agent.status().shutdown.as_ref().is_some_and(|it| it.cancelled));
    }
}

#[test]
fn lock_is_held_until_logind_s_signal_whose_delay_is_time_for_what_is_left() {
    let mut world = standing(plain());
    world.event(notice(30));
    world.ends("a", Phase::Failed);
    world.pass(ms(40_000));
    assert!(!world.released(), "b has not ended: {:#?}", world.log);
    world.event(announced(ms(20_000), None));
    world.pass(ms(5_000));
    assert!(!world.released(), "logind grants more time: {:#?}", world.log);
    world.ends("b", Phase::Failed);
    assert!(world.released(), "{:#?}", world.log);
}

#[test]
fn agent_that_has_to_stop_waits_for_no_signal() {
    let mut world = standing(plain());
    world.event(notice(30));
    for name in ["a", "b"] {
        world.ends(name, Phase::Failed);
    }
    world.pass(ms(1_000));
    assert!(!world.agent.status().may_exit && !world.released());
    world.event(Event::StopRequested);
    assert!(world.released(), "{:#?}", world.log);
    assert!(world.agent.status().may_exit);
}

#[test]
fn withdrawn_notice_is_a_cancel() {
    let mut world = standing(plain());
    world.containers("a", &[None]);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.event(notice(20));
    assert_eq!((world.disrupted(), world.tainted), (vec!["a", "b"], true));
    world.event(withdrawn());
    world.let_go("*");
    world.pass(ms(5_000));
    assert_eq!(world.agent.status().lock, LockState::Held);
    assert_eq!((world.node_says.as_deref(), world.tainted), (Some("idle"), false));
    assert_eq!(reasons(&world), ["NodeEndAnnounced", "NodeEndWithdrawn"]);
    assert!(world.agent.status().shutdown.as_ref().is_some_and(|it| it.cancelled));
}

#[test]
fn notice_that_is_put_off_is_taken_back_until_it_is_due_again() {
    let mut world = standing(plain());
    world.containers("a", &[None]);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.event(notice(20));
    assert_eq!(world.disrupted(), ["a", "b"]);
    world.event(notice(3_600));
    world.let_go("*");
    assert!(!world.tainted, "it is not near: {:#?}", world.log);
    world.pass(ms(3_600_000 - 900_000));
    assert!(world.tainted, "it is near");
    // One that comes earlier than it was said bounds the shutdown that goes on.
    world.event(notice(40));
    world.pass(ms(5_000));
    world.event(notice(15));
    let shutdown = world.agent.status().shutdown.clone().expect("must go on");
    assert_eq!((shutdown.granted.as_secs(), shutdown.cancelled), (20, false));
}

#[test]
fn end_that_may_not_come_only_keeps_new_pods_away() {
    let mut world = standing(plain());
    world.event(uncertain());
    world.pass(ms(600_000));
    assert!(world.tainted);
    assert_eq!(world.done(&["mark", "delete", "stop", "fail", "announce"]), [""; 0]);
    world.event(withdrawn());
    world.pass(ms(1_000));
    assert!(!world.tainted, "{:#?}", world.log);
}

#[test]
fn scheduled_shutdown_is_a_notice_and_its_warning_is_none() {
    for (kind, begins) in [("reboot", true), ("dry-reboot", false)] {
        let mut world = standing(armed());
        let at = world.clock().wall + jiff::SignedDuration::from_secs(30);
        world.event(seen(|state| state.scheduled = Some((kind.into(), at))));
        assert_eq!(world.disrupted() == ["a", "b"], begins, "{kind}");
        world.event(seen(|state| state.scheduled = None));
        world.pass(ms(5_000));
        assert!(!world.tainted, "{kind}: {:#?}", world.log);
    }
}

/// A pod runs on, and its deletion has no answer.
fn in_a_shutdown_by_notice(kubelet: KubeletFacts) -> World {
    let mut world = standing(kubelet);
    world.answers.insert("delete *".into(), Answer::Hold);
    world.containers("a", &[None]);
    world.event(notice(40));
    world.pass(ms(1_000));
    world
}

/// Kills the agent; the next one finds all but the notice.
fn restart(world: &mut World, settings: Settings, kubelet: KubeletFacts) {
    world.restart(settings);
    world.answers.clear();
    world.started(kubelet, false);
    show_node(world);
}

#[test]
fn restart_goes_on_with_a_notice_that_its_source_still_gives() {
    for gives in [true, false] {
        let mut world = in_a_shutdown_by_notice(plain());
        let of_notice =
            |record: &Record| matches!(record, Record::Begun { source: Source::Aws, .. });
        assert!(world.journal.iter().any(of_notice), "{:?}", world.journal);
        restart(&mut world, with_notices(), plain());
        assert_eq!(world.disrupted(), ["a", "b"], "its source has not spoken: {:#?}", world.log);
        world.event(if gives { notice(38) } else { withdrawn() });
        world.pass(ms(5_000));
        assert_eq!(world.disrupted() == ["a", "b"], gives, "{gives}: {:#?}", world.log);
        assert_eq!(world.tainted, gives, "{gives}: {:#?}", world.log);
        let says = |line: &String| line.contains("aws does not announce it any more");
        assert_eq!(world.logged.iter().any(says), !gives, "{:?}", world.logged);
    }
}

#[test]
fn restart_takes_back_what_was_put_off_meanwhile_or_became_uncertain() {
    for word in [notice(3_600), uncertain()] {
        let mut world = in_a_shutdown_by_notice(plain());
        restart(&mut world, with_notices(), plain());
        world.event(word.clone());
        world.pass(ms(5_000));
        assert_eq!(world.disrupted(), [""; 0], "{word:?}: {:#?}", world.log);
        assert_eq!(world.node_says.as_deref(), Some("idle"), "{word:?}");
    }
}

#[test]
fn signal_after_a_restart_goes_on_with_the_shutdown_of_a_notice_in_logind_s_time() {
    let mut world = in_a_shutdown_by_notice(armed());
    restart(&mut world, with_notices(), armed());
    world.log.clear();
    let left = 10;
    world.event(announced(ms(left * 1_000), None));
    let shutdown = world.agent.status().shutdown.clone().expect("must go on");
    let passed = world.now.saturating_sub(shutdown.t0).as_secs();
    assert_eq!((shutdown.mode, shutdown.granted.as_secs()), (Mode::Replace, passed + left));
    assert_eq!(world.done(&["clear", "mark"]), [""; 0], "{:#?}", world.log);
}

/// The kubelet ended pods in logind's shutdown, and does nothing at a notice.
#[test]
fn notice_that_outlives_logind_s_shutdown_is_one_of_its_own() {
    let mut world = standing(armed());
    world.event(announced(ms(60_000), None));
    world.event(notice(30));
    assert_eq!(world.agent.status().mode, Some(Mode::Assist));
    world.cancel();
    world.pass(ms(1_000));
    let shutdown = world.agent.status().shutdown.clone().expect("must go on");
    assert_eq!((shutdown.mode, shutdown.cancelled), (Mode::Replace, false));
    assert_eq!(world.disrupted(), ["a", "b"], "{:#?}", world.log);
    world.event(withdrawn());
    assert!(world.agent.status().shutdown.as_ref().is_some_and(|it| it.cancelled));
}

#[test]
fn schedule_whose_time_has_come_is_not_called_withdrawn() {
    let mut world = standing(plain());
    let at = world.clock().wall + jiff::SignedDuration::from_secs(30);
    world.event(seen(|state| state.scheduled = Some(("reboot".into(), at))));
    world.pass(ms(30_000));
    world.event(announced(ms(5_000), None));
    world.event(seen(|state| state.preparing = true));
    assert_eq!(reasons(&world), ["NodeEndAnnounced"]);
}

#[test]
fn restart_takes_back_a_notice_whose_source_is_silent_for_a_minute_or_not_asked() {
    for (settings, wait) in [(with_notices(), 58_000), (settings(), 0)] {
        let mut world = in_a_shutdown_by_notice(plain());
        restart(&mut world, settings, plain());
        if wait > 0 {
            assert!(world.tainted);
            world.pass(ms(wait));
        }
        world.pass(ms(5_000));
        assert!(!world.tainted && world.disrupted().is_empty(), "{wait}: {:#?}", world.log);
    }
}

#[test]
fn agent_that_only_observes_says_so_and_writes_nothing() {
    let mut world = World::standing(Settings { enforce: false, ..with_notices() }, plain(), pods());
    world.event(notice(20));
    world.event(uncertain());
    world.event(withdrawn());
    assert_eq!(world.log, [""; 0]);
    assert_eq!(reasons(&world).len(), 3);
}

/// What another program says on the Node object.
fn sign(world: &mut World, name: &str, needs_taint: bool) {
    let (announced, tainted) = (world.node_says.clone(), world.tainted);
    let end_sign = (!name.is_empty()).then(|| EndSign { name: name.to_owned(), needs_taint });
    world.event(Event::NodeObserved(NodeView {
        announced,
        tainted,
        end_sign,
        ..NodeView::default()
    }));
}

#[test]
fn what_others_say_on_the_node_ends_no_pod_and_taints_only_where_they_have_not() {
    for (needs_taint, notices) in [(true, true), (false, true), (true, false)] {
        let from = if notices { BTreeSet::from([Source::Node]) } else { BTreeSet::new() };
        let own = Settings { notices: from, ..settings() };
        let mut world = World::standing(own, plain(), pods());
        show_node(&mut world);
        sign(&mut world, "DrainInProgress", needs_taint);
        assert_eq!(world.tainted, needs_taint && notices, "{needs_taint} {notices}");
        assert_eq!(reasons(&world).len(), usize::from(notices));
        sign(&mut world, "DrainInProgress", needs_taint);
        world.pass(ms(3_600_000));
        assert_eq!(world.done(&["mark", "delete"]), [""; 0]);
        sign(&mut world, "", needs_taint);
        assert!(!world.tainted);
        let expected = ["NodeEndAnnounced", "NodeEndWithdrawn"];
        assert_eq!(reasons(&world), expected[..if notices { 2 } else { 0 }]);
    }
}

#[test]
fn notice_of_a_source_is_named_before_what_others_say_on_the_node() {
    let mut settings = with_notices();
    settings.notices.insert(Source::Node);
    let mut world = World::standing(settings, plain(), pods());
    sign(&mut world, "karpenter.sh/disrupted", false);
    world.event(notice(3_600));
    let named = world.agent.facts.endings.notice();
    assert_eq!(named, Some(Source::Aws));
}
