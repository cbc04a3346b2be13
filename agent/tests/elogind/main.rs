//! Tests the agent's shells for logind against a real one: elogind, which needs no systemd, in its
//! own namespaces. Checks what the crate `doubles` claims about logind.

mod machine;
#[path = "../host/standing.rs"]
mod standing;

use std::time::{Duration, Instant};

use agent_core::protocol::event::{ActionResult, Announcement, Event};
use doubles::systemd1::{State, Systemd1};
use jiff::Timestamp;
use machine::Machine;
use standing::{Session, WITHIN, words};
use tokio::time::timeout;

/// Longer than any test waits.
const LONG: u64 = 600;

/// Announces a shutdown while the agent's lock is held; returns the session that has seen it.
async fn going_down(machine: &Machine, delay: u64) -> Session {
    let mut session = Session::start(machine.address(), 64);
    session.state("the lock in the list", |state| state.lock_listed).await;
    machine.call("PowerOff", &(false,)).await;
    let said = session.next("an announcement", announced).await;
    assert_eq!(said, Announcement { granted: Some(Duration::from_secs(delay)), kind: None });
    session
}

fn announced(event: &Event) -> Option<Announcement> {
    match event {
        Event::ShutdownAnnounced(announcement) => Some(announcement.clone()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_listed_with_our_words_and_our_process() {
    let machine = Machine::start(5).await;
    let sink = machine.sink();
    assert_eq!(sink.take_lock().await, ActionResult::Locked);
    let list = machine.inhibitors().await;
    let [lock] = list.as_slice() else { panic!("one lock must be held: {list:?}") };
    assert_eq!((lock.what.as_str(), lock.mode.as_str()), ("shutdown", "delay"));
    assert_eq!((lock.why.as_str(), lock.pid), (words().why(), std::process::id()));
    let mut session = Session::start(machine.address(), 64);
    let state = session.state("the lock in the list", |state| state.lock_listed).await;
    assert_eq!((state.delay, state.preparing), (Some(Duration::from_secs(5)), false));
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_announced_and_waits_for_the_release() {
    let machine = Machine::start(LONG).await;
    let sink = machine.sink();
    sink.take_lock().await;
    let mut session = going_down(&machine, LONG).await;
    let reported = session.changes.wait_for(|changes| changes.going_down);
    timeout(WITHIN, reported)
        .await
        .expect("other subscribers must be notified")
        .expect("the session must live");
    session.state("a machine that goes down", |state| state.preparing).await;
    // No new lock during a shutdown. ([LD5])
    let second = machine.sink().take_lock().await;
    assert_eq!(second, ActionResult::LockRefusedInProgress);
    assert_eq!(machine.actions(), "");
    sink.release_lock().await;
    machine.until_action().await;
    assert!(machine.actions().contains("poweroff"), "{}", machine.actions());
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_too_long_stops_nothing() {
    // The timer ends the delay. ([LD2], [LD3])
    let machine = Machine::start(3).await;
    let sink = machine.sink();
    sink.take_lock().await;
    let begun = Instant::now();
    let session = going_down(&machine, 3).await;
    machine.until_action().await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(machine.inhibitors().await.len(), 1, "the lock must still be held");
    sink.release_lock().await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_forgets_the_action_and_keeps_the_lock() {
    // The lock survives a restart, the delayed shutdown does not. ([LD7])
    let mut machine = Machine::start(LONG).await;
    let sink = machine.sink();
    sink.take_lock().await;
    let mut session = going_down(&machine, LONG).await;
    let before = session.state("a machine that goes down", |state| state.preparing).await;
    machine.order("kill").await;
    machine.order("start").await;
    let after = session.state("another logind", |state| state.owner != before.owner).await;
    assert_eq!((after.preparing, after.lock_listed), (false, true));
    sink.release_lock().await;
    session.state("a list without the lock", |state| !state.lock_listed).await;
    assert_eq!(machine.actions(), "", "nothing must be done any more");
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_delay_is_raised_by_our_file() {
    // With the real parser and the real order of names. ([LD8])
    let machine = Machine::start(5).await;
    let systemd = {
        let orders = machine.orders();
        let hup = move || orders.send("hup");
        Systemd1::start(machine.address(), State::default(), hup).await
    };
    // An error after the signal was sent changes nothing.
    systemd.turn(|state| state.stumbles = true);
    let wanted = Duration::from_secs(40);
    let raised = machine.sink().raise_delay(wanted).await;
    assert_eq!(raised, Ok(wanted));
    assert_eq!(systemd.state().signals.len(), 1);
    let mut session = Session::start(machine.address(), 64);
    assert_eq!(session.state("a state", |_| true).await.delay, Some(wanted));
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_shutdown_is_seen_until_it_is_cancelled() {
    let machine = Machine::start(5).await;
    let at = Timestamp::from_second(4_000_000_000).expect("must be a time");
    machine.call("ScheduleShutdown", &("poweroff", 4_000_000_000_000_000_u64)).await;
    let mut session = Session::start(machine.address(), 64);
    let wanted = Some(("poweroff".to_owned(), at));
    session.state("the schedule", |state| state.scheduled == wanted).await;
    machine.call("CancelScheduledShutdown", &()).await;
    session.state("no schedule", |state| state.scheduled.is_none()).await;
    let words = session.words().await;
    assert!(words.is_empty(), "nothing was announced: {words:?}");
    session.end().await;
}
