//! Tests how the agent learns what stops with it: a double of systemd, and PID 1.

use std::time::{Duration, Instant};

use doubles::systemd1::{State, Systemd1};
use epilogue_agent::bus::BusAddress;
use epilogue_agent::source::stop::{Stopping, requested, what_stops};
use tokio_util::sync::CancellationToken;

use crate::Node;

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_the_system_tells_an_update_from_a_stop_of_the_system() {
    let node = Node::start(5).await;
    let systemd = Systemd1::start(&node.bus.address, State::default(), || ()).await;
    let bus = BusAddress::from(node.bus.address.clone());
    let table = [
        ("running", Stopping::Agent),
        ("degraded", Stopping::Agent),
        ("starting", Stopping::Agent),
        ("maintenance", Stopping::Agent),
        ("stopping", Stopping::System),
    ];
    for (state, expected) in table {
        systemd.turn(|systemd| state.clone_into(&mut systemd.system));
        assert_eq!(what_stops(&bus, &node.host()).await, expected, "{state}");
    }
    // Nothing is asked before the request.
    let stop = CancellationToken::new();
    let asked = tokio::spawn(requested(stop.clone(), bus, node.host()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!asked.is_finished());
    stop.cancel();
    assert_eq!(asked.await.expect("must not panic"), Stopping::System);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_of_systemd_the_agent_alone_stops() {
    // There is no systemd on this bus.
    let node = Node::start(5).await;
    let bus = BusAddress::from(node.bus.address.clone());
    assert_eq!(what_stops(&bus, &node.host()).await, Stopping::Agent);
    // No process answers there.
    let socket = node.host().path("/silent");
    let _silent = tokio::net::UnixListener::bind(&socket).expect("must be bindable");
    let silent = BusAddress::from(format!("unix:path={}", socket.display()));
    let begun = Instant::now();
    assert_eq!(what_stops(&silent, &node.host()).await, Stopping::Agent);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_program_of_pid_1_stops_the_system() {
    // `systemctl --force reboot` replaces systemd, which answers no more.
    let node = Node::start(5).await;
    let bus = BusAddress::from(node.bus.address.clone());
    for (name, expected) in [("systemd", Stopping::Agent), ("systemd-shutdow", Stopping::System)] {
        node.write("/proc/1/comm", &format!("{name}\n"));
        assert_eq!(what_stops(&bus, &node.host()).await, expected, "{name}");
    }
}
