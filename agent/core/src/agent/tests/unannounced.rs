//! Tests a stop of the system that logind does not announce.

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use super::standing::seen;
use crate::agent::{LockState, Settings};
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodSource, PodView};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::Event;

/// A pod of each kind that matters here.
fn pods() -> Vec<PodView> {
    vec![
        pod("a").owner(Owner::Job).never(),
        pod("b").owner(Owner::Other),
        pod("c").owner(Owner::Job).never().with(|pod| pod.deletion_grace_seconds = Some(30)),
        pod("static").never().with(|pod| pod.source = PodSource::Static),
    ]
}

fn system_stops(world: &mut World) {
    world.event(Event::EndingSeen(Source::Systemd, Some(Ending::certain(None, None))));
    world.event(Event::StopRequested);
}

#[test]
fn marks_are_set_at_once_and_nothing_else_is_done_to_pods() {
    for kubelet in [plain(), armed(), dead()] {
        let mut world = World::standing(settings(), kubelet, pods());
        // The kubelet was dead before, so the agent would take its place in a shutdown.
        world.pass(ms(20_000));
        let begun = world.now;
        system_stops(&mut world);
        assert_eq!(world.disrupted(), ["a", "c"]);
        assert_eq!(world.now, begun, "at once");
        assert!(world.agent.status().may_exit, "{:#?}", world.log);
        assert_eq!(world.agent.status().lock, LockState::Released);
        // Containers end with the machine, and logind knows of nothing.
        world.containers("a", &[Some(143)]);
        world.event(seen(|_| ()));
        world.pass(ms(10_000));
        world.event(seen(|_| ()));
        world.pass(ms(10_000));
        assert_eq!(world.disrupted(), ["a", "c"], "logind cancels nothing");
        let else_done = ["delete", "deadline", "stop", "fail", "clear", "taint", "list"];
        assert_eq!(world.done(&else_done), [""; 0]);
        assert_eq!(world.lies, [""; 0]);
    }
}

#[test]
fn an_api_that_does_not_answer_is_tried_for_five_seconds() {
    let mut world = World::standing(settings(), plain(), pods());
    world.answers.insert("*".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    system_stops(&mut world);
    world.pass(ms(4_000));
    assert!(world.released(), "the lock delays nothing any more");
    assert!(!world.agent.status().may_exit);
    world.answers.clear();
    world.pass(ms(900));
    assert_eq!(world.disrupted(), ["a", "c"]);
    assert!(world.agent.status().may_exit);

    let mut world = World::standing(settings(), plain(), pods());
    world.answers.insert("*".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    system_stops(&mut world);
    world.pass(ms(5_000));
    assert!(world.agent.status().may_exit);
}

#[test]
fn a_shutdown_that_logind_announced_goes_on_as_before() {
    let mut world = World::standing(settings(), plain(), pods());
    world.shutdown(40);
    let log = world.log.clone();
    system_stops(&mut world);
    assert_eq!(world.log, log);
    assert!(!world.agent.status().may_exit);
    world.ends("a", Phase::Failed);
    world.pass(ms(45_000));
    assert!(world.agent.status().may_exit);
}

#[test]
fn an_agent_that_only_observes_writes_nothing() {
    let settings = Settings { enforce: false, ..settings() };
    let mut world = World::standing(settings, plain(), pods());
    system_stops(&mut world);
    assert_eq!(world.disrupted(), [""; 0]);
    assert_eq!(world.log, [""; 0]);
    assert!(world.agent.status().may_exit);
}

#[test]
fn a_stop_that_did_not_happen_is_taken_back_by_the_next_process() {
    let mut world = World::standing(settings(), plain(), pods());
    system_stops(&mut world);
    assert_eq!(world.disrupted(), ["a", "c"]);
    world.restart(settings());
    world.started(plain(), false);
    world.pass(ms(2_000));
    assert_eq!(world.disrupted(), ["c"], "c ends anyway: {:#?}", world.log);
}
