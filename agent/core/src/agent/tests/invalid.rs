//! Tests writes that validation or admission of others finds invalid (422). They are repeated
//! slowly, and nothing waits for them but the report of a pod's end, which the lock is held for.

use epilogue_common::outcome::FailureKind::Invalid;

use super::driver::*;
use crate::agent::Settings;
use crate::pod::tests::pod;
use crate::pod::{Owner, Phase, PodView};

const ALWAYS: u32 = u32::MAX;

fn job(name: &str) -> PodView {
    pod(name).owner(Owner::Job).never()
}

fn refuse(world: &mut World, call: &str, times: u32) {
    world.answers.insert(call.into(), Answer::Fail(Invalid, times));
}

/// How often the log has the server's words.
fn words(world: &World) -> usize {
    world.logged.iter().filter(|line| line.contains("configured to fail")).count()
}

fn released_after(world: &World) -> u128 {
    let shutdown = world.agent.status().shutdown.as_ref().expect("a shutdown");
    shutdown.released_after.expect("must be released").as_millis()
}

#[test]
fn a_mark_is_tried_on_while_the_termination_goes_its_way() {
    let mut world = World::standing(settings(), plain(), vec![job("a")]);
    refuse(&mut world, "mark a", 3);
    world.shutdown(40);
    assert_eq!(world.done(&["mark", "delete"]), ["0 mark a", "0 delete a 20"]);
    assert_eq!((words(&world), world.disrupted().len()), (1, 0));
    let events = world.reported.iter().filter(|(reason, _)| *reason == "AgentForbidden");
    let events: Vec<_> = events.map(|(_, text)| text.as_str()).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("configured to fail"), "{events:?}");
    // At most 1 + 2 + 4 s later the API accepts it, still before the pod's end.
    world.pass(ms(7_000));
    assert_eq!(world.disrupted(), ["a"]);
    assert_eq!((world.done(&["mark"]).len(), words(&world)), (4, 1), "{:#?}", world.logged);
    world.ends("a", Phase::Failed);
    assert!(world.released());
}

#[test]
fn a_mark_that_no_kubelet_carries_out_holds_neither_stop_nor_phase() {
    let mut world = World::standing(settings(), dead(), vec![job("a")]);
    refuse(&mut world, "mark *", ALWAYS);
    world.shutdown(40);
    assert_eq!(world.done(&["stop"]), ["0 stop a 20"]);
    world.pass(ms(2_000));
    assert_eq!(world.pods["a"].phase, Phase::Failed, "{:#?}", world.log);
    assert!(world.pods["a"].is_disrupted(), "the phase carries it");
    assert!(world.released());
}

#[test]
fn the_lock_waits_for_no_mark_and_no_deletion_that_are_refused() {
    for call in ["mark *", "delete a 20"] {
        let mut world = World::standing(settings(), plain(), vec![job("a"), job("b")]);
        refuse(&mut world, call, ALWAYS);
        world.shutdown(40);
        world.pass(ms(5_000));
        world.ends("b", Phase::Failed);
        if call == "mark *" {
            world.ends("a", Phase::Failed);
        }
        world.pass(ms(500));
        assert!(released_after(&world) < 6_000, "{call}: {:#?}", world.log);
    }
}

#[test]
fn a_deletion_that_is_accepted_late_is_waited_for() {
    let mut world = World::standing(settings(), plain(), vec![job("a"), job("b")]);
    refuse(&mut world, "delete a 20", 2);
    world.shutdown(40);
    assert_eq!(words(&world), 1, "{:#?}", world.logged);
    world.pass(ms(4_000));
    assert!(world.pods["a"].is_terminating(), "{:#?}", world.log);
    world.ends("b", Phase::Failed);
    world.pass(ms(1_000));
    assert!(!world.released());
    world.ends("a", Phase::Failed);
    assert!(world.released());
}

#[test]
fn the_lock_waits_for_a_phase_while_time_is_left_and_no_longer() {
    for (times, reported) in [(3, true), (ALWAYS, false)] {
        let mut world = World::standing(settings(), dead(), vec![job("a")]);
        refuse(&mut world, "fail *", times);
        world.shutdown(40);
        world.pass(ms(500));
        assert!(!world.released(), "{:#?}", world.log);
        world.pass(ms(39_500));
        assert_eq!(world.pods["a"].is_terminal(), reported, "{:#?}", world.log);
        assert_eq!(words(&world), 1, "{:#?}", world.logged);
        let after = released_after(&world);
        assert!(if reported { after < 8_000 } else { after < 40_000 }, "{after}");
        let tries = world.done(&["fail"]).len();
        assert!((4..=8).contains(&tries), "it is not in haste: {tries}");
        assert_eq!(world.lies, [""; 0]);
    }
}

#[test]
fn a_correction_after_a_boot_is_tried_for_a_minute() {
    for (times, corrected) in [(4, true), (ALWAYS, false)] {
        let mut world = World::standing(settings(), armed(), vec![job("a")]);
        world.answers.insert("mark *".into(), Answer::Hold);
        world.shutdown(40);
        world.reboot(settings());
        world.answers.clear();
        refuse(&mut world, "mark *", times);
        world.started(armed(), false);
        world.pass(ms(30_000));
        assert_eq!(world.pods["a"].is_disrupted(), corrected, "{:#?}", world.log);
        world.pass(ms(90_000));
        assert_eq!(world.agent.status().boot_recovery_pending, 0);
        // What was logged at the start is cleared there.
        assert_eq!(words(&world), usize::from(!corrected), "{:#?}", world.logged);
    }
}

#[test]
fn a_node_that_cannot_be_written_holds_nothing_and_is_tried_on() {
    let mut world = World::standing(Settings { runtime: false, ..settings() }, plain(), vec![]);
    refuse(&mut world, "announce *", ALWAYS);
    refuse(&mut world, "taint *", ALWAYS);
    world.shutdown(40);
    world.pass(ms(200));
    assert!(released_after(&world) < 500, "{:#?}", world.log);
    assert_eq!(words(&world), 1, "{:#?}", world.logged);
    world.log.clear();
    world.pass(ms(600_000));
    let tries = world.done(&["announce"]).len();
    assert!((5..=90).contains(&tries), "{tries}");
    world.answers.clear();
    world.pass(ms(100_000));
    assert_eq!(world.node_says.as_deref().map(|said| &said[..8]), Some("shutting"));
}
