//! Tests the standing session: what it reports of logind, and what it ignores.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_core::protocol::ending::{Ending, ShutdownKind, Source};
use agent_core::protocol::event::Event;
use doubles::bus::PrivateBus;
use doubles::login1::NAME;
use doubles::login1::{Candour, Login1, forge};
use epilogue_agent::host::Host;
use jiff::Timestamp;
use tracing_subscriber::fmt::MakeWriter;

use crate::{Node, Session, WITHIN};

fn announced(event: &Event) -> Option<Ending> {
    match event {
        Event::EndingSeen(Source::Logind, ending) => ending.clone(),
        _ => None,
    }
}

fn cancelled(event: &Event) -> Option<()> {
    matches!(event, Event::EndingSeen(Source::Logind, None)).then_some(())
}

fn lost(event: &Event) -> Option<String> {
    match event {
        Event::LogindLost(words) => Some(words.clone()),
        _ => None,
    }
}

/// Waits until the session says whether logind goes down.
async fn goes_down(session: &mut Session, goes_down: bool) {
    let said = session.changes.wait_for(|changes| changes.going_down == goes_down);
    let said = tokio::time::timeout(WITHIN, said).await;
    said.expect("it must be said").expect("the session must live");
}

/// `true`; `false`; `false` then `true`: what a queue holds of the two values.
fn of_shutdown(events: &[Event]) -> Vec<bool> {
    let word =
        |event: &Event| announced(event).map(|_| true).or_else(|| cancelled(event).map(|()| false));
    events.iter().filter_map(word).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_is_reported_and_reported_anew_without_a_signal() {
    let node = Node::start(5).await;
    let at = Timestamp::from_second(1_900_000_000).expect("must be a time");
    let mut session = node.session();
    let first = session.state("a state", |_| true).await;
    assert_eq!(first.owner, node.login1.owner());
    assert_eq!(first.delay, Some(Duration::from_secs(5)));
    assert_eq!((first.preparing, first.lock_listed, first.scheduled), (false, Some(false), None));
    // The property is declared constant, and changes without a signal. ([LD12])
    node.login1.turn(|state| {
        state.delay_us_max = 60_000_000;
        state.scheduled = ("reboot".into(), 1_900_000_000_000_000);
    });
    let minute = Some(Duration::from_mins(1));
    let now = session.state("a longer delay", |state| state.delay == minute).await;
    assert_eq!(now.scheduled, Some(("reboot".into(), at)));
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_announced_with_its_kind_and_the_delay_of_the_moment() {
    // The session reads the delay for each announcement. ([LD12])
    for seconds in [0, 1, 5, 60] {
        let node = Node::start(30).await;
        let mut session = node.session();
        session.state("a state", |_| true).await;
        node.login1.turn(|state| state.delay_us_max = seconds * 1_000_000);
        node.login1.shut_down("reboot").await;
        let announcement = session.next("announcement", announced).await;
        let granted = Some(Duration::from_secs(seconds));
        let kind = Some(ShutdownKind::Reboot);
        assert_eq!(announcement, Ending::certain(granted, kind));
        session.state("going down", |state| state.preparing).await;
        session.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_systemd_names_no_kind() {
    let node = Node::start(5).await;
    node.login1.turn(|state| state.metadata = false);
    let mut session = node.session();
    session.state("a state", |_| true).await;
    node.login1.shut_down("reboot").await;
    assert_eq!(session.next("announcement", announced).await.kind, None);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_signal_is_reported_in_its_order() {
    let node = Node::start(60).await;
    let mut session = node.session();
    session.state("a state", |_| true).await;
    for kind in ["poweroff", "kexec"] {
        node.login1.shut_down(kind).await;
        session.next("announcement", announced).await;
        node.login1.turn(|state| state.down = None);
        node.login1.cancel().await;
        session.next("cancellation", cancelled).await;
    }
    let reported = session.changes.wait_for(|changes| changes.count >= 5);
    tokio::time::timeout(WITHIN, reported)
        .await
        .expect("changes must be reported")
        .expect("must live");
    goes_down(&mut session, false).await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_under_way_is_seen_at_the_start() {
    let node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    node.login1.shut_down("poweroff").await;
    let mut session = node.session();
    let first = session.state("a state", |_| true).await;
    assert_eq!((first.preparing, first.lock_listed), (true, Some(true)));
    // No signal came, and yet the sources of facts have to hurry.
    goes_down(&mut session, true).await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_loses_no_cancellation() {
    // The queue of events holds one, and 400 signals arrive.
    let node = Node::start(60).await;
    let mut session = Session::start(&node.bus.address, 1);
    session.state("a state", |_| true).await;
    // The test takes no events now, and more signals arrive than the queue holds.
    node.login1.shut_down("reboot").await;
    node.login1.turn(|state| state.down = None);
    for _ in 0..200 {
        node.login1.say(false).await;
        node.login1.say(true).await;
    }
    node.login1.cancel().await;
    session.next("cancellation", cancelled).await;
    let after = session.words().await;
    assert!(!of_shutdown(&after).last().copied().unwrap_or(false), "{after:?}");
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_announced_anew_in_a_full_queue_is_reported_after_the_cancellation() {
    let node = Node::start(60).await;
    let mut session = Session::start(&node.bus.address, 1);
    session.state("a state", |_| true).await;
    let sink = node.sink();
    sink.take_lock().await;
    node.login1.shut_down("reboot").await;
    node.login1.cancel().await;
    node.login1.shut_down("halt").await;
    let last = session
        .next("halt", |event| announced(event).filter(|it| it.kind == Some(ShutdownKind::Halt)));
    last.await;
    assert_eq!(of_shutdown(&session.words().await), [false; 0]);
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_logind_is_seen_with_the_lock_that_outlives_it() {
    // logind forgets the shutdown and emits no `false`. ([LD7])
    let mut node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    let mut session = node.session();
    session.state("our lock", |state| state.lock_listed == Some(true)).await;
    node.login1.shut_down("reboot").await;
    session.next("announcement", announced).await;
    goes_down(&mut session, true).await;
    let before = node.login1.owner();
    node.login1.go().await;
    let words = session.next("loss", lost).await;
    assert_eq!(words, format!("{NAME} has no owner on the bus"));
    node.login1.come().await;
    let state = session.state("a new owner", |state| state.owner != before).await;
    assert_eq!((state.preparing, state.lock_listed), (false, Some(true)));
    goes_down(&mut session, false).await;
    node.login1.shut_down("reboot").await;
    session.next("announcement by the new owner", announced).await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_comes_back_is_found_again() {
    let root = tempfile::tempdir().expect("must be creatable");
    let bus = PrivateBus::start(root.path());
    let login1 = Login1::start(&bus.address, root.path(), 5).await;
    // Not the address that the bus has printed: that address names this one bus only.
    let address = Host::new(root.path().to_owned()).own_bus_address();
    let mut session = Session::start(&address, 64);
    session.state("a state", |_| true).await;
    drop((login1, bus));
    session.next("loss", lost).await;
    session.next("a try that fails", lost).await;
    let bus = PrivateBus::start(root.path());
    let login1 = Login1::start(&bus.address, root.path(), 9).await;
    let nine = Some(Duration::from_secs(9));
    session.state("the new logind", |state| state.delay == nine).await;
    login1.shut_down("reboot").await;
    session.next("announcement", announced).await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logind_may_come_after_the_agent() {
    let mut node = Node::start(5).await;
    node.login1.go().await;
    let mut session = node.session();
    session.next("loss", lost).await;
    node.login1.come().await;
    session.state("a state", |_| true).await;
    session.end().await;
}

/// The log's text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer must panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    fn count(&self, words: &str) -> usize {
        let bytes = self.0.lock().expect("no writer must panic");
        String::from_utf8_lossy(&bytes).matches(words).count()
    }
}

#[tokio::test]
async fn a_signal_from_another_sender_is_ignored_and_logged_once() {
    // Any process on the bus can send the signal. ([W9])
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let node = Node::start(60).await;
    let mut session = node.session();
    session.state("a state", |_| true).await;
    for _ in 0..3 {
        let forger = forge(&node.bus.address, None).await;
        assert_eq!(of_shutdown(&session.words().await), [false; 0]);
        drop(forger);
    }
    assert_eq!(log.count("ignored PrepareForShutdown"), 1);
    node.login1.shut_down("reboot").await;
    session.next("the real one", announced).await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_the_property_denies_is_not_believed() {
    let node = Node::start(60).await;
    let mut session = node.session();
    session.state("a state", |_| true).await;
    node.login1.turn(|state| state.candour = Candour::Denying);
    node.login1.say(true).await;
    assert_eq!(of_shutdown(&session.words().await), [false; 0]);
    node.login1.say(false).await;
    session.next("cancellation", cancelled).await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_counts_where_the_property_does_not_answer() {
    let node = Node::start(60).await;
    let mut session = node.session();
    session.state("a state", |_| true).await;
    node.login1.turn(|state| state.candour = Candour::Mute);
    node.login1.say(true).await;
    let announcement = session.next("announcement", announced).await;
    assert_eq!(announcement.within, Some(Duration::from_mins(1)));
    session.end().await;
}
