//! Tests how pressure is handled before any eviction: sample rate, observation, stalls, the kubelet
//! alongside the agent, shutdowns and restarts.

use std::time::Duration;

use epilogue_common::outcome::FailureKind;

use super::driver::*;
use super::evictions::{job, web};
use super::scarcity::*;
use crate::agent::{Enforcement, Settings};
use crate::pod::tests::pod;
use crate::pod::{ContainerAsks, Disruption, PodUid, PodView, TERMINATION_BY_KUBELET};
use crate::pressure::observe::Observation;
use crate::pressure::signal::Signal;
use crate::pressure::usage::DiskUsage;
use crate::protocol::event::Event;
use crate::protocol::node::{KubeletEviction, KubeletFacts};
use crate::protocol::pressure::{PodFigures, Stalling};

const HARD: &str = "memory.available<200";
const WOULD: &str = "WouldEvict";
const OVERLAP: &str = "EvictionThresholdOverlap";
const MEMORY_STALL: &str = "epilogue.dev/MemoryStall";
const IO_STALL: &str = "epilogue.dev/IOStall";

fn observing(hard: &str) -> Settings {
    with_config(Enforcement::Observe, hard, "")
}

/// The intervals between the samples of the next seconds, in ms.
fn pace(world: &mut World, seconds: u64) -> Vec<u128> {
    world.scarcity.samples.clear();
    world.pass(Duration::from_secs(seconds));
    let samples = &world.scarcity.samples;
    let mut pace: Vec<_> =
        samples.windows(2).map(|two| two[1].saturating_sub(two[0]).as_millis()).collect();
    pace.dedup();
    pace
}

fn victim(settings: Settings) -> World {
    let mut world = World::at_ease(settings, vec![web("a")]);
    world.uses("a", 100);
    world
}

#[test]
fn the_node_is_sampled_as_often_as_it_is_near_to_a_shortage() {
    let mut world = victim(observing("memory.available<200,nodefs.available<200"));
    assert_eq!(pace(&mut world, 5), [1_000]);
    world.memory(399);
    world.pass(ms(1_000));
    assert_eq!(pace(&mut world, 5), [100]);
    world.memory(400);
    world.pass(ms(100));
    assert_eq!(pace(&mut world, 5), [1_000]);
    world.left(Signal::NodefsAvailable, 100);
    world.pass(ms(1_000));
    assert_eq!(pace(&mut world, 5), [1_000], "a disk fills slowly");
}

#[test]
fn a_stall_is_sampled_when_it_begins_and_for_two_seconds() {
    let mut world = victim(observing(HARD));
    world.pass(ms(2_500));
    world.scarcity.samples.clear();
    world.event(Event::PressureRose(Stalling::Memory));
    assert_eq!(world.scarcity.samples.len(), 1);
    world.pass(ms(2_000));
    assert_eq!(world.scarcity.samples.len(), 20);
    assert_eq!(pace(&mut world, 4), [1_000]);
}

#[test]
fn one_sample_at_a_time_and_fewer_when_they_are_slow_or_fail() {
    let mut world = victim(observing(HARD));
    world.answers.insert("measure".into(), Answer::Hold);
    world.pass(ms(2_000));
    world.scarcity.samples.clear();
    world.event(Event::PressureRose(Stalling::Memory));
    world.event(Event::PressureRose(Stalling::Memory));
    world.pass(ms(2_000));
    assert_eq!(world.scarcity.samples.len(), 0);
    world.let_go("measure");
    assert_eq!(world.agent.status().pressure.samples.failed, 1, "too slow");
    world.memory(150);
    world.answers.insert("measure".into(), Answer::Fail(FailureKind::Unknown, 1_000));
    world.pass(ms(30_000));
    world.scarcity.samples.clear();
    world.pass(ms(30_000));
    let samples = world.scarcity.samples.len();
    assert!((6..=12).contains(&samples), "{samples}");
    let logged = world.logged.iter().filter(|text| text.contains("cannot be sampled")).count();
    assert!(logged <= 1, "{:?}", world.logged);
    world.answers.clear();
    world.pass(ms(6_000));
    assert_eq!(world.reported(WOULD), ["a"]);
}

#[test]
fn without_thresholds_and_stalls_the_node_is_not_sampled() {
    let mut world = victim(observing(""));
    assert_eq!(pace(&mut world, 300), [60_000]);
    world.scarcity.psi = true;
    world.pass(Duration::from_mins(1));
    assert_eq!(pace(&mut world, 5), [1_000]);
    let mut off = victim(with_config(Enforcement::Off, HARD, ""));
    off.memory(1);
    off.event(Event::PressureRose(Stalling::Memory));
    off.pass(Duration::from_mins(5));
    assert_eq!(off.scarcity.samples.len(), 0);
    assert_eq!(off.actions(), [""; 0]);
}

#[test]
fn what_is_only_observed_is_logged_once_in_ten_minutes() {
    let mut world = World::at_ease(observing(HARD), vec![web("a"), job("b")]);
    world.uses("a", 100);
    world.uses("b", 300);
    world.memory(150);
    world.pass(Duration::from_secs(599));
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.reported(WOULD), ["b"]);
    assert_eq!(world.counted("memory.available"), (0, 1, 0));
    let measured = world.log.iter().filter(|line| line.contains("measure Memory")).count();
    assert!(measured <= 61, "{measured}");
    world.uses("a", 900);
    world.pass(ms(15_000));
    assert_eq!(world.reported(WOULD), ["b", "a"]);
}

#[test]
fn an_agent_that_may_not_act_only_observes() {
    let mut reported = enforcing(HARD);
    reported.enforce = false;
    let silent = KubeletFacts { eviction: None, ..late() };
    let dead = KubeletFacts { eviction: late().eviction, ..dead() };
    let table = [
        (reported, late(), "the agent is set to observe", 1),
        (enforcing(HARD), dead, "the kubelet is dead", 1),
        // The kubelet does not state its thresholds, and its default is higher.
        (enforcing(HARD), silent, "", 0),
    ];
    for (row, (settings, facts, why, would)) in table.into_iter().enumerate() {
        let mut world = World::at_ease(settings, vec![web("a")]);
        world.uses("a", 100);
        world.event(Event::KubeletSeen(facts));
        world.memory(150);
        world.pass(ms(12_000));
        let status = &world.agent.status().pressure;
        assert_eq!(status.held_by.unwrap_or_default(), why, "row {row}");
        if row < 2 {
            assert_eq!(world.actions(), [""; 0], "row {row}");
            assert_eq!(world.reported(WOULD).len(), would, "row {row}");
        }
    }
}

#[test]
fn while_the_kubelet_acts_itself_nothing_is_done() {
    // A node condition of pressure is True: the kubelet evicts. ([EV29])
    let mut world = victim(enforcing(HARD));
    world.kubelet_says(&["MemoryPressure"]);
    world.memory(150);
    world.pass(ms(5_000));
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.reported(WOULD), [""; 0]);
    world.kubelet_says(&[]);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn a_marked_pod_ends_though_the_kubelet_acts_by_then() {
    let mut world = victim(enforcing(HARD));
    world.answers.insert("mark *".into(), Answer::Hold);
    world.memory(150);
    world.pass(ms(1_100));
    world.kubelet_says(&["MemoryPressure"]);
    world.let_go("mark");
    world.pass(ms(100));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn a_victim_whose_mark_was_not_sent_is_let_go_when_the_kubelet_acts() {
    let mut settings = enforcing(HARD);
    settings.in_flight_max = 1;
    let mut world = World::at_ease(settings, vec![web("a")]);
    world.uses("a", 100);
    world.answers.insert("announce *".into(), Answer::Hold);
    world.node_says = None;
    world.see_node();
    world.memory(150);
    world.pass(ms(3_000));
    assert_eq!(world.actions(), [""; 0], "there is no room: {:?}", world.held);
    world.kubelet_says(&["MemoryPressure"]);
    world.let_go("announce");
    world.pass(ms(3_000));
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.agent.status().pressure.victims, []);
}

#[test]
fn a_threshold_that_is_not_before_the_kubelets_is_only_observed_and_reported_once() {
    // The kubelet's own threshold is crossed first. ([EV29])
    let hard = "memory.available<50,pid.available<100";
    let mut world = World::at_ease(enforcing(hard), vec![web("a")]);
    world.uses("a", 100);
    world.memory(40);
    world.pass(Duration::from_mins(2));
    assert_eq!(world.reported(OVERLAP), ["node"]);
    assert_eq!(world.reported(WOULD), ["a"]);
    assert_eq!(world.actions(), [""; 0]);
    let status = &world.agent.status().pressure.signals;
    assert!(status[&Signal::MemoryAvailable].overlaps);
    assert!(!status[&Signal::PidAvailable].overlaps);
    world.memory(900);
    world.left(Signal::PidAvailable, 80);
    world.pass(ms(1_100));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn a_shortage_that_is_only_observed_keeps_no_other_waiting() {
    let hard = "memory.available<50,pid.available<100";
    let mut world = World::at_ease(enforcing(hard), vec![web("a")]);
    world.uses("a", 100);
    world.memory(40);
    world.left(Signal::PidAvailable, 80);
    world.pass(ms(3_000));
    assert_eq!(world.reported(WOULD), ["a"], "for memory");
    assert_eq!(world.actions(), ["mark a", "delete a 1"], "for tasks");
}

#[test]
fn no_pod_is_evicted_before_the_nodes_conditions_are_known() {
    let mut world = World::new(enforcing(HARD), vec![web("a")]);
    world.memory(150);
    world.uses("a", 100);
    world.started(late(), false);
    world.pass(ms(3_000));
    assert_eq!(world.actions(), [""; 0]);
    world.see_node();
    world.pass(ms(12_000));
    assert_eq!(world.actions(), ["mark a", "delete a 1"]);
}

#[test]
fn the_status_shows_what_was_measured() {
    let mut world = victim(with_config(Enforcement::Observe, HARD, "memory.available<30%"));
    world.scarcity.swap = Some(Observation { available: 1, capacity: 2 });
    world.memory(250);
    world.pass(ms(1_100));
    let pressure = &world.agent.status().pressure;
    let memory = pressure.signals[&Signal::MemoryAvailable];
    assert_eq!((memory.hard, memory.soft), (Some(200), Some(300)));
    assert_eq!((memory.hard_crossed, memory.soft_crossed), (false, true));
    assert_eq!(memory.found.map(|found| found.available), Some(250));
    assert_eq!(pressure.swap, Some(Observation { available: 1, capacity: 2 }));
    assert!(pressure.sampled_at.is_some_and(|at| world.now <= at + ms(100)));
}

/// Pods wait for memory more than half of the time, with little of it left.
fn stalling(settings: Settings, left: u64) -> World {
    let mut world = World::at_ease(settings, vec![job("a"), web("b")]);
    world.uses("a", 300);
    world.uses("b", 100);
    world.scarcity.psi = true;
    world.memory(left);
    world.event(Event::PressureRose(Stalling::Memory));
    world.pass(ms(4_000));
    world
}

#[test]
fn a_stall_of_the_node_that_is_seen_twice_ends_a_pod_before_any_threshold() {
    let mut world = stalling(enforcing("memory.available<60"), 90);
    world.event(Event::PressureRose(Stalling::Memory));
    world.stalls(1, 100, 60);
    assert_eq!(world.actions(), [""; 0], "once is not enough");
    world.stalls(2, 100, 60);
    assert_eq!(world.actions(), ["mark a", "stop a 1", "fail a"], "{:#?}", world.logged);
    let message = &world.pods["a"].disruption.as_ref().expect("must be marked").message;
    let start = "The node was low on resource: memory. Threshold quantity: 60, available: 90. ";
    assert!(message.starts_with(start), "{message}");
    assert_eq!(world.reported("Evicted"), ["a"]);
}

#[test]
fn without_a_threshold_the_message_names_the_resource_alone() {
    let mut world = stalling(enforcing(""), 90);
    world.stalls(30, 100, 60);
    let message = &world.pods["a"].disruption.as_ref().expect("must be marked").message;
    assert_eq!(message, "The node was low on resource: memory. ");
}

#[test]
fn a_short_stall_or_one_with_memory_or_swap_left_evicts_no_pod() {
    let mut enough = stalling(enforcing(""), 100);
    enough.stalls(30, 100, 60);
    assert_eq!(enough.actions(), [""; 0]);
    let mut swapping = stalling(enforcing(""), 50);
    swapping.scarcity.swap = Some(Observation { available: 900, capacity: 1_000 });
    swapping.stalls(30, 100, 60);
    assert_eq!(swapping.actions(), [""; 0]);
    swapping.scarcity.swap = Some(Observation { available: 10, capacity: 1_000 });
    swapping.stalls(10, 100, 60);
    assert_eq!(swapping.actions().len(), 3);
    let mut moment = stalling(enforcing(""), 50);
    for _ in 0..10 {
        moment.stalls(1, 1_000, 200);
        moment.stalls(1, 1_000, 0);
    }
    assert_eq!(moment.actions(), [""; 0]);
    // A trigger that fires every few ms does not lengthen a sample.
    let mut hasty = stalling(enforcing(""), 50);
    hasty.pass(ms(950));
    for _ in 0..4 {
        hasty.scarcity.stalled_ms += 10;
        hasty.event(Event::PressureRose(Stalling::Memory));
        hasty.pass(ms(10));
    }
    assert_eq!(hasty.actions(), [""; 0], "not judged by less than 100 ms");
}

#[test]
fn a_pod_that_stalls_at_its_own_limit_is_reported_once_and_never_ends_for_it() {
    let mut world = stalling(enforcing(""), 50);
    world.scarcity.pods.insert("a".into(), (0, Some(99)));
    for _ in 0..50 {
        let (waited, _) = world.scarcity.pods["a"];
        world.scarcity.pods.insert("a".into(), (waited + 60, Some(99)));
        world.stalls(1, 100, 60);
    }
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.reported("MemoryLimitStall"), ["a"]);
}

#[test]
fn stalls_become_conditions_of_the_node_and_go_after_the_transition() {
    let mut world = stalling(observing(""), 50);
    world.stalls(20, 100, 60);
    assert_eq!(world.done(&[MEMORY_STALL]).len(), 1, "{:#?}", world.log);
    assert!(world.scarcity.conditions[MEMORY_STALL]);
    world.see_node();
    world.pass(Duration::from_secs(290));
    assert!(world.scarcity.conditions[MEMORY_STALL]);
    world.pass(Duration::from_secs(15));
    assert!(!world.scarcity.conditions[MEMORY_STALL]);
    world.see_node();
    world.scarcity.io_percent = 60.0;
    world.pass(ms(1_500));
    assert!(world.scarcity.conditions[IO_STALL]);
    world.pass(Duration::from_mins(1));
    world.see_node();
    assert_eq!(world.done(&[MEMORY_STALL, IO_STALL]).len(), 9, "{:#?}", world.log);
}

#[test]
fn a_condition_is_written_until_it_stands_and_a_stale_one_goes() {
    let mut world = stalling(observing(""), 50);
    let name = format!("{MEMORY_STALL} *");
    world.answers.insert(name, Answer::Fail(FailureKind::Unknown, 2));
    world.stalls(40, 100, 60);
    assert!(world.scarcity.conditions[MEMORY_STALL]);
    let mut off = World::at_ease(with_config(Enforcement::Off, "", ""), vec![]);
    off.scarcity.conditions.insert(IO_STALL, true);
    off.scarcity.conditions.insert(MEMORY_STALL, false);
    off.see_node();
    assert_eq!(off.done(&[MEMORY_STALL, IO_STALL]).len(), 1);
    assert!(!off.scarcity.conditions[IO_STALL]);
    off.see_node();
    off.pass(Duration::from_mins(1));
    assert_eq!(off.done(&[MEMORY_STALL, IO_STALL]).len(), 1);
}

fn marked(name: &str, now: Duration, ago_seconds: u64) -> PodView {
    let since = wall(now.saturating_sub(Duration::from_secs(ago_seconds)));
    let message = "The node was low on resource: memory. ".to_owned();
    let reason = TERMINATION_BY_KUBELET.to_owned();
    let disruption = Disruption { stands: true, reason, message, since: Some(since) };
    job(name).with(|pod| pod.disruption = Some(disruption))
}

#[test]
fn after_a_restart_a_mark_of_a_living_pod_is_taken_back_when_it_is_a_minute_old() {
    let at = Duration::from_secs(1_003);
    let old = marked("old", at, 61);
    let young = marked("young", at, 30);
    let deleted = marked("deleted", at, 90).deleting(30);
    let foreign = job("foreign").disrupted("DeletionByTaintManager");
    let mut world = World::at_ease(enforcing(HARD), vec![old, young, deleted, foreign]);
    world.pass(ms(1_000));
    assert_eq!(world.disrupted(), ["deleted", "foreign", "young"]);
    world.pass(Duration::from_secs(40));
    assert_eq!(world.disrupted(), ["deleted", "foreign"]);
    let mut off = World::at_ease(settings(), vec![marked("old", at, 61)]);
    off.pass(ms(1_000));
    assert_eq!(off.disrupted(), [""; 0], "whatever is configured now");
}

#[test]
fn under_a_dead_kubelet_a_mark_stays_because_a_stopped_pod_seems_to_run() {
    let pods = vec![marked("old", Duration::from_secs(1_003), 61)];
    let mut world = World::new(enforcing(HARD), pods);
    world.started(dead(), false);
    world.pass(Duration::from_mins(3));
    assert_eq!(world.disrupted(), ["old"]);
    world.event(Event::KubeletSeen(late()));
    world.pass(ms(1_000));
    assert_eq!(world.disrupted(), [""; 0]);
}

#[test]
fn a_stale_mark_of_ours_is_renewed_when_its_pod_is_chosen() {
    let young = marked("young", Duration::from_secs(1_003), 20);
    let mut world = World::at_ease(enforcing(HARD), vec![young]);
    world.uses("young", 300);
    world.memory(150);
    world.pass(ms(1_100));
    assert_eq!(world.actions(), ["mark young", "stop young 1", "fail young"]);
    let message = &world.pods["young"].disruption.as_ref().expect("must be marked").message;
    assert!(message.contains("available: 150"), "{message}");
}

#[test]
fn a_crash_after_any_step_leaves_no_mark_on_a_living_pod() {
    let mut taken_back = 0;
    for pod in [job("a"), web("a")] {
        for step in 1..14 {
            for carried_out in [false, true] {
                let mut world = World::at_ease(enforcing(HARD), vec![pod.clone()]);
                world.uses("a", 100);
                world.memory(150);
                world.dies_after = Some((step, carried_out));
                for _ in 0..300 {
                    world.freeze(ms(10));
                }
                world.memory(900);
                world.restart(enforcing(HARD));
                world.started(late(), false);
                world.see_node();
                world.pass(Duration::from_secs(90));
                let a = &world.pods["a"];
                let ended = a.is_terminal() || a.is_to_end();
                assert!(ended || !a.is_disrupted(), "{step} {carried_out}: {:#?}", world.log);
                assert_eq!(world.lies, [""; 0]);
                taken_back += world.done(&["clear"]).len();
            }
        }
    }
    assert!(taken_back > 1, "no crash was between mark and end");
}

#[test]
fn in_a_shutdown_pressure_stands_still_and_a_cancel_takes_it_up_again() {
    let mut world = World::at_ease(enforcing(HARD), vec![job("a"), web("b")]);
    world.uses("a", 300);
    world.uses("b", 100);
    world.answers.insert("stop *".into(), Answer::Hold);
    world.memory(150);
    world.pass(ms(1_100));
    assert_eq!(world.actions(), ["mark a", "stop a 1"]);
    world.shutdown(40);
    world.answers.clear();
    world.scarcity.samples.clear();
    world.pass(ms(2_000));
    assert_eq!(world.scarcity.samples.len(), 0);
    assert_eq!(world.agent.status().pressure.held_by, Some("a shutdown goes on"));
    world.memory(900);
    world.cancel();
    world.let_go("*");
    world.pass(Duration::from_mins(3));
    let a = &world.pods["a"];
    assert!(a.is_terminal() || a.is_to_end(), "{:#?} {:#?}", world.log, world.logged);
    assert_eq!(world.lies, [""; 0]);
}

#[test]
fn a_mark_that_was_sent_before_a_shutdown_is_settled_after_its_cancel() {
    for seconds in [1, 20] {
        let mut world = World::at_ease(enforcing(HARD), vec![job("a")]);
        world.uses("a", 300);
        world.answers.insert("mark *".into(), Answer::Hold);
        world.memory(150);
        world.pass(ms(1_100));
        world.shutdown(40);
        world.pass(Duration::from_secs(seconds));
        world.memory(900);
        world.cancel();
        world.let_go("*");
        world.pass(Duration::from_mins(3));
        let a = &world.pods["a"];
        let ended = a.is_terminal() || a.is_to_end();
        assert!(ended || !a.is_disrupted(), "{:#?} {:#?}", world.log, world.logged);
    }
}

/// A pod that exceeds its limit of local storage.
fn beyond(name: &str) -> (PodView, PodFigures) {
    let container = |limit| ContainerAsks {
        name: "main".into(),
        storage_limit: Some(limit),
        ..ContainerAsks::default()
    };
    let pod = web(name).with(|pod| pod.asks.containers = vec![container(100)]);
    let disk = DiskUsage { rootfs: 101, ..DiskUsage::default() };
    (pod, PodFigures { disk: Some(disk), ..PodFigures::default() })
}

fn limits(settings: Settings, kubelet_holds_them: bool) -> World {
    let (a, figures) = beyond("a");
    let (b, _) = beyond("b");
    let mut world = World::at_ease(settings, vec![a, b.never(), pod("c")]);
    world.scarcity.figures.insert(PodUid("uid-a".into()), figures.clone());
    world.scarcity.figures.insert(PodUid("uid-b".into()), figures);
    world.scarcity.beyond_limits.extend(["a".into(), "b".into()]);
    let eviction = late()
        .eviction
        .map(|eviction| KubeletEviction { local_storage_limits: kubelet_holds_them, ..eviction });
    world.event(Event::KubeletSeen(KubeletFacts { eviction, ..late() }));
    world
}

#[test]
fn pods_beyond_their_own_limits_end_without_a_mark_where_the_kubelet_does_not_see_to_it() {
    // A limit of the user is no disruption. ([EV26])
    let mut world = limits(enforcing(HARD), false);
    world.pass(ms(1_000));
    assert_eq!(world.actions(), ["delete a 1", "stop b 1", "fail b"], "{:#?}", world.logged);
    assert_eq!(world.disrupted(), [""; 0]);
    assert_eq!(world.reported("Evicted"), ["a", "b"]);
    let notice = world.scarcity.reported.iter().find(|notice| notice.reason == "Evicted");
    let notice = notice.expect("must be reported");
    let text = "Pod ephemeral local storage usage exceeds the total limit of containers 100. ";
    assert_eq!((notice.message.as_str(), notice.annotations.len()), (text, 0));
    assert_eq!(world.counted("ephemeralpodfs.limit"), (1, 0, 0));
    let asked = world.log.iter().filter(|line| line.contains("measure Disk of 2")).count();
    world.pass(ms(9_000));
    assert_eq!(asked, 1, "{:#?}", world.log);
    let mut observed = limits(observing(HARD), false);
    observed.pass(ms(1_000));
    assert_eq!(observed.actions(), [""; 0]);
    assert_eq!(observed.reported(WOULD), ["a", "b"]);
    let mut kubelets = limits(enforcing(HARD), true);
    kubelets.pass(Duration::from_mins(1));
    assert_eq!(kubelets.actions(), [""; 0]);
    assert!(!kubelets.log.iter().any(|line| line.contains("measure Disk")));
}

#[test]
fn a_pods_own_limit_goes_before_the_nodes_disk() {
    let mut world = limits(enforcing("nodefs.available<200"), false);
    world.pods.insert("d".into(), web("d"));
    world.change("d", |_| ());
    world.uses("d", 90);
    world.left(Signal::NodefsAvailable, 100);
    world.pass(ms(5_000));
    assert!(!world.actions().contains(&"mark d"), "{:?}", world.actions());
    world.pass(ms(40_000));
    assert!(world.actions().contains(&"mark d"), "but not for ever: {:?}", world.actions());
}

#[test]
fn on_sigterm_the_agent_chooses_no_victim_and_finishes_the_one_it_has() {
    let mut world = victim(enforcing(HARD));
    world.answers.insert("mark *".into(), Answer::Hold);
    world.memory(150);
    world.pass(ms(1_100));
    world.event(Event::StopRequested);
    world.pass(ms(500));
    assert!(!world.agent.status().may_exit);
    world.let_go("mark");
    world.gone("a");
    world.pass(ms(500));
    assert!(world.agent.status().may_exit);
}

#[test]
fn a_mark_of_a_pod_that_ended_with_the_machine_stays() {
    // Found by the simulation: its end is reported only after the boot, and must state the cause.
    let before_boot = wall(Duration::ZERO) - jiff::SignedDuration::from_mins(1);
    let cut = marked("cut", Duration::from_secs(1_003), 300);
    let cut = cut.with(|pod| pod.running_since = Some(before_boot));
    let mut world = World::at_ease(enforcing(HARD), vec![cut]);
    world.containers("cut", &[Some(255)]);
    world.pass(Duration::from_mins(2));
    assert_eq!(world.disrupted(), ["cut"]);
}
