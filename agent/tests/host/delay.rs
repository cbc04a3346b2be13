//! Tests that the agent raises logind's delay by its drop-in.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use agent_core::protocol::event::Event;
use doubles::systemd1::{State, Systemd1};
use epilogue_agent::host::Host;
use epilogue_agent::sink::logind::LogindSink;
use epilogue_agent::source::logind_conf;
use epilogue_common::outcome::{FailureKind, Outcome};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::{Node, words};

const DIR: &str = "etc/systemd/logind.conf.d";

async fn raise(sink: &LogindSink, seconds: u64) -> Outcome<u64> {
    let delay = sink.raise_delay(Duration::from_secs(seconds)).await;
    delay.map(|delay| delay.as_secs())
}

async fn systemd(node: &Node) -> Systemd1 {
    Systemd1::start(&node.bus.address, State::default(), node.login1.hup()).await
}

fn conf(seconds: u64) -> String {
    format!("[Login]\nInhibitDelayMaxSec={seconds}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn logind_grants_what_our_file_asks_for() {
    let node = Node::start(5).await;
    let systemd = systemd(&node).await;
    assert_eq!(raise(&node.sink(), 40).await, Ok(40));
    let signal = ("systemd-logind.service".to_owned(), "main".to_owned(), 1);
    assert_eq!(systemd.state().signals, [signal]);
    let path = node.root.path().join(DIR).join("zz-epilogue.conf");
    let text = std::fs::read_to_string(&path).expect("our file must be there");
    assert!(text.ends_with(&conf(40)), "{text}");
    let mode =
        |path: &Path| std::fs::metadata(path).expect("must be there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&node.root.path().join(DIR))), (0o644, 0o755));
    // A delay is never lowered, and here nothing has to change.
    assert_eq!(raise(&node.sink(), 10).await, Ok(40));
    assert_eq!(systemd.state().signals.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_delays_of_others_are_merged_and_not_lowered() {
    // The kubelet's file asks for more, and a later one hides it. ([SD23], [AP15])
    let node = Node::start(30).await;
    node.write("etc/systemd/logind.conf.d/99-kubelet.conf", &conf(60));
    node.write("etc/systemd/logind.conf.d/unattended-upgrades.conf", &conf(30));
    let _systemd = systemd(&node).await;
    node.login1.hang_up();
    assert_eq!(node.login1.state().delay_us_max, 30_000_000, "the later name must win");
    assert_eq!(raise(&node.sink(), 40).await, Ok(60));
}

/// A kubelet that starts with a longer period waits 1.5 s for logind to grant it. ([SD4])
#[tokio::test(flavor = "multi_thread")]
async fn a_drop_in_that_a_kubelet_writes_later_is_taken_over_while_it_waits() {
    let node = Node::start(5).await;
    let _systemd = systemd(&node).await;
    let sink = node.sink();
    assert_eq!(raise(&sink, 40).await, Ok(40));
    let (events, mut reported) = mpsc::channel(8);
    let watch = tokio::spawn(logind_conf::run(Host::new(node.root.path().into()), events));
    // The watch may begin after the first write.
    let (written, first) = loop {
        let written = Instant::now();
        node.write("etc/systemd/logind.conf.d/99-kubelet.conf", &conf(60));
        node.login1.hang_up();
        if let Ok(event) = timeout(Duration::from_millis(100), reported.recv()).await {
            break (written, event);
        }
    };
    assert_eq!(first, Some(Event::LogindConfChanged));
    assert_eq!(node.login1.state().delay_us_max, 40_000_000, "ours hides it");
    assert_eq!(raise(&sink, 40).await, Ok(60));
    assert!(written.elapsed() < Duration::from_millis(1_500), "the kubelet has given up");
    // Neither our own file nor another kind of file is reported.
    while timeout(Duration::from_millis(100), reported.recv()).await.is_ok() {}
    node.write("etc/systemd/logind.conf.d/zz-epilogue.conf", &conf(61));
    node.write("etc/systemd/logind.conf.d/99-kubelet.conf.tmp", &conf(62));
    assert!(timeout(Duration::from_millis(300), reported.recv()).await.is_err());
    watch.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_waits_to_be_read_is_read() {
    let node = Node::start(5).await;
    node.write("etc/systemd/logind.conf.d/zz-epilogue.conf", &conf(40));
    let systemd = systemd(&node).await;
    assert_eq!(raise(&node.sink(), 40).await, Ok(40));
    assert_eq!(systemd.state().signals.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_sorts_after_ours_is_named() {
    let node = Node::start(7).await;
    node.write("etc/systemd/logind.conf.d/zzz-site.conf", &conf(7));
    let systemd = systemd(&node).await;
    let failure = raise(&node.sink(), 40).await.expect_err("our file must not help");
    assert_eq!(failure.kind, FailureKind::Invalid);
    assert!(failure.message.contains("zzz-site.conf sets 7s"), "{failure}");
    assert!(failure.message.contains("set 40s there"), "{failure}");
    assert_eq!(systemd.state().signals, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logind_that_does_not_follow_is_reported_as_it_is() {
    let node = Node::start(5).await;
    let _systemd = Systemd1::start(&node.bus.address, State::default(), || {}).await;
    assert_eq!(raise(&node.sink(), 40).await, Ok(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_logind_grants_is_believed_not_what_systemd_says_of_the_signal() {
    let node = Node::start(5).await;
    let systemd = systemd(&node).await;
    systemd.turn(|state| state.stumbles = true);
    assert_eq!(raise(&node.sink(), 40).await, Ok(40));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_may_not_be_written_is_named_with_the_remedy() {
    let node = Node::start(5).await;
    let systemd = systemd(&node).await;
    // sysfs allows no new directories.
    let host = Host::new("/sys".into());
    let sink = LogindSink::new(node.bus.address.clone(), host, words());
    let failure = raise(&sink, 40).await.expect_err("sysfs must refuse");
    assert_eq!(failure.kind, FailureKind::Forbidden, "{failure}");
    assert!(failure.message.contains("/sys/etc/systemd/logind.conf.d/zz-"), "{failure}");
    assert!(failure.message.contains("writable for the agent"), "{failure}");
    assert_eq!(systemd.state().signals, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_systemd_that_refuses_or_is_not_there_is_reported() {
    let node = Node::start(5).await;
    let failure = raise(&node.sink(), 40).await.expect_err("there must be no systemd");
    assert_eq!(failure.kind, FailureKind::NotFound, "{failure}");
    let systemd = systemd(&node).await;
    systemd.turn(|state| state.denies = true);
    let failure = raise(&node.sink(), 40).await.expect_err("systemd must refuse");
    assert_eq!(failure.kind, FailureKind::Forbidden, "{failure}");
    assert!(failure.message.contains("systemctl kill -s HUP"), "{failure}");
}
