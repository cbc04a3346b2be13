//! Tests the node's conditions that do not concern pressure.

use std::collections::BTreeSet;

use epilogue_common::names::node_condition::{
    AGENT_READY, GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS, MAINTENANCE_PLANNED,
};

use super::driver::*;
use super::standing::seen;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, PodView};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::{Event, LogindState, NodeCondition, NodeView};

const SHUTDOWN: &str = GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS;

fn pods() -> Vec<PodView> {
    vec![pod("a").owner(Owner::Job).never()]
}

fn with_notices() -> Settings {
    Settings { notices: BTreeSet::from([Source::Aws]), ..settings() }
}

/// An agent that is ready, on a node that shows it.
fn standing(settings: Settings) -> World {
    let mut world = World::standing(settings, plain(), pods());
    world.see_node();
    world.see_node();
    world.log.clear();
    world
}

fn written(world: &World) -> Vec<&str> {
    world.done(&[SHUTDOWN, MAINTENANCE_PLANNED, AGENT_READY])
}

fn notice(ending: Option<Ending>) -> Event {
    Event::EndingSeen(Source::Aws, ending)
}

#[test]
fn node_that_never_shut_down_shows_only_that_its_agent_is_ready() {
    let mut world = standing(settings());
    assert_eq!(world.scarcity.conditions.iter().collect::<Vec<_>>(), [(&AGENT_READY, &true)]);
    world.pass(ms(120_000));
    assert_eq!(written(&world), [""; 0], "what stands is not written again");
}

#[test]
fn observer_writes_no_condition() {
    let world = standing(Settings { enforce: false, ..settings() });
    assert!(world.scarcity.conditions.is_empty());
}

#[test]
fn shutdown_shows_after_its_marks_and_a_cancel_takes_it_back() {
    let mut world = standing(settings());
    world.shutdown(40);
    assert!(world.scarcity.conditions[SHUTDOWN]);
    let order: Vec<_> = world.done(&["mark", SHUTDOWN]);
    let kinds: Vec<_> = order.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(kinds, ["mark", SHUTDOWN], "{order:?}");
    world.see_node();
    world.cancel();
    world.see_node();
    assert!(!world.scarcity.conditions[SHUTDOWN]);
}

#[test]
fn what_the_last_boot_left_is_taken_back_after_the_boot() {
    let mut world = standing(settings());
    world.shutdown(40);
    world.pass(ms(40_000));
    world.reboot(settings());
    world.started(plain(), false);
    world.see_node();
    assert!(!world.scarcity.conditions[SHUTDOWN], "{:#?}", world.log);
}

#[test]
fn restart_in_a_shutdown_takes_nothing_back() {
    let mut world = standing(settings());
    world.shutdown(40);
    world.restart(settings());
    world.started(plain(), true);
    world.see_node();
    assert!(world.scarcity.conditions[SHUTDOWN], "{:#?}", world.log);
}

#[test]
fn notice_shows_until_it_is_withdrawn() {
    for certain in [true, false] {
        let mut world = standing(with_notices());
        let ending = Ending { within: Some(ms(3_600_000)), kind: None, certain };
        world.event(notice(Some(ending)));
        assert!(world.scarcity.conditions[MAINTENANCE_PLANNED], "{certain}");
        assert!(!world.scarcity.conditions.contains_key(SHUTDOWN));
        world.see_node();
        world.event(notice(None));
        assert!(!world.scarcity.conditions[MAINTENANCE_PLANNED], "{certain}");
    }
}

#[test]
fn readiness_has_the_time_of_a_certain_end_that_is_near_until_it_is_withdrawn() {
    for certain in [true, false] {
        let mut world = standing(with_notices());
        let ending = |time| Some(Ending { within: Some(ms(time)), kind: None, certain });
        let readiness = |world: &World| world.readiness.clone().unwrap_or_default();
        world.event(notice(ending(3_600_000)));
        assert!(readiness(&world).ends_with(";notice=aws"), "{}", readiness(&world));
        world.pass(ms(2_800_000));
        let first = readiness(&world);
        assert!(first.contains(";notice=aws"), "{first}");
        assert_eq!(first.contains(";ends="), certain, "{first}");
        world.pass(ms(600_700));
        world.see_node();
        assert_eq!(readiness(&world), first, "the end is the same");
        world.event(notice(ending(60_000)));
        assert_eq!(readiness(&world) != first, certain, "it has moved");
        world.event(notice(None));
        assert!(!readiness(&world).contains("notice"), "{}", readiness(&world));
    }
}

#[test]
fn condition_of_another_writer_stays_as_it_is() {
    for is_true in [true, false] {
        let mut world = standing(settings());
        let theirs =
            |kind: &str| NodeCondition { is_ours: false, ..NodeCondition::ours(kind, is_true) };
        let conditions = vec![
            theirs(SHUTDOWN),
            theirs(MAINTENANCE_PLANNED),
            NodeCondition::ours(AGENT_READY, true),
        ];
        world.event(Event::NodeObserved(NodeView { conditions, ..NodeView::default() }));
        world.shutdown(40);
        world.pass(ms(1_000));
        world.cancel();
        world.pass(ms(60_000));
        assert_eq!(written(&world), [""; 0], "{is_true}");
    }
}

#[test]
fn fault_shows_once_it_has_lasted_and_goes_at_once() {
    let mut world = standing(settings());
    world.event(Event::LogindLost("gone".into()));
    world.pass(ms(29_000));
    assert!(world.scarcity.conditions[AGENT_READY]);
    world.pass(ms(1_000));
    assert!(!world.scarcity.conditions[AGENT_READY]);
    world.see_node();
    world.event(seen(|_: &mut LogindState| ()));
    assert!(world.scarcity.conditions[AGENT_READY]);
}
