//! What upstream's kubelet does with static pods in a shutdown: in what order it ends them, and that
//! nothing stops it.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use agent_core::protocol::node::KubeletFacts;
use doubles::kubelet::{Kubelet, pod_runtime, write_pod};
use doubles::pod_runtime::{PodContainer, PodRuntime};
use epilogue_agent::args::KubeletPlace;
use epilogue_agent::host::Host;
use epilogue_agent::source::kubelet::{Access, KubeletSettings, KubeletSource, PERIOD};
use epilogue_agent::source::lease::LeaseAge;
use serde_json::json;
use tokio::time::sleep;

use crate::machine::{Machine, POLL, write};

const LONG: Duration = Duration::from_mins(10);
const WITHIN: Duration = Duration::from_mins(1);
const PROCESSED: &str = "Shutdown manager completed processing shutdown event";

async fn until(
    runtime: &PodRuntime,
    kubelet: &Kubelet,
    what: &str,
    holds: impl Fn(&[PodContainer]) -> bool,
) -> Vec<PodContainer> {
    let end = Instant::now() + WITHIN;
    loop {
        let found = runtime.containers();
        if holds(&found) {
            return found;
        }
        assert!(Instant::now() < end, "{what}: {found:?}; {}", kubelet.log());
        sleep(POLL).await;
    }
}

fn all_started(count: usize) -> impl Fn(&[PodContainer]) -> bool {
    move |found| found.iter().filter(|it| it.started.is_some()).count() == count
}

fn stopped(it: &PodContainer) -> (Instant, i64) {
    it.stop.unwrap_or_else(|| panic!("{} must be stopped", it.pod))
}

fn ended(it: &PodContainer) -> (Instant, i32) {
    it.end.unwrap_or_else(|| panic!("{} must have ended", it.pod))
}

/// A port of this machine that is free now.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
    listener.local_addr().expect("it must have an address")
}

/// What the agent finds of a kubelet whose port this is.
async fn facts(machine: &Machine, port: SocketAddr) -> KubeletFacts {
    write(machine.dir(), "token", "anybody's");
    let place = KubeletPlace {
        units: Vec::new(),
        dir: machine.dir().join("kubelet").display().to_string(),
        healthz: None,
        configz: Some(port),
    };
    let token = machine.dir().join("token").display().to_string();
    let access = Some(Access { token, node: "test".to_owned(), authorities: Vec::new() });
    let settings = KubeletSettings { place, access, period: PERIOD };
    let address = machine.address().to_owned();
    KubeletSource::new(settings, address, Host::new("/".into()), LeaseAge::default()).ask().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_end_by_groups_and_a_cancelled_shutdown_spares_none() {
    // ([SD10], [SD12], [SD13])
    let machine = Machine::start(60).await;
    let runtime = pod_runtime(machine.dir());
    let pods = [
        ("below", Some(-5)),
        ("none", None),
        ("stubborn", Some(99)),
        ("same", Some(100)),
        ("above", Some(4_999)),
        ("last", Some(2_000_000_000)),
    ];
    for (name, priority) in pods {
        write_pod(machine.dir(), name, priority);
    }
    runtime.set_end("stubborn-test", LONG, 143);
    runtime.set_end("same-test", Duration::from_secs(1), 143);
    let groups = json!({"shutdownGracePeriodByPodPriority": [
        {"priority": 0, "shutdownGracePeriodSeconds": 4},
        {"priority": 100, "shutdownGracePeriodSeconds": 10},
        {"priority": 5_000, "shutdownGracePeriodSeconds": 30},
        {"priority": 1_000_000, "shutdownGracePeriodSeconds": 5}]});
    let kubelet = Kubelet::with_pods(machine.dir(), machine.address(), "test", &groups, &runtime);
    until(&runtime, &kubelet, "six containers run", all_started(pods.len())).await;
    machine.until_locks("the kubelet's lock", |locks| locks.len() == 1).await;

    let begun = Instant::now();
    machine.forge(true).await;
    let one = |found: &[PodContainer]| found.iter().any(|it| it.stop.is_some());
    until(&runtime, &kubelet, "the first stop", one).await;
    machine.forge(false).await;
    kubelet.says(PROCESSED, 1).await;
    kubelet.says("event=\"cancelled\"", 1).await;
    let found = runtime.containers();
    let pod = |name: &str| {
        let found = found.iter().find(|it| it.pod == format!("{name}-test"));
        found.unwrap_or_else(|| panic!("no {name} in {found:?}"))
    };
    let lowest = ["below", "none", "stubborn"].map(pod);
    assert_eq!(lowest.map(|it| stopped(it).1), [4; 3], "the period of their group");
    let [first, .., last] = {
        let mut asked = lowest.map(|it| stopped(it).0);
        asked.sort();
        asked
    };
    assert!(last - first < Duration::from_secs(2), "a group ends together");
    assert_eq!(lowest.map(|it| ended(it).1), [143, 143, 137]);
    let after = |earlier: &PodContainer, later: &PodContainer| {
        let (end, next) = (ended(earlier).0, stopped(later).0);
        assert!(end <= next, "{} begins before {} has ended", later.pod, earlier.pod);
        next - end
    };
    for second in ["same", "above"].map(pod) {
        let waited = stopped(second).0 - begun;
        assert!(waited >= Duration::from_secs(4), "the first group's period: {waited:?}");
        assert_eq!(stopped(second).1, 10);
    }
    let waited = after(pod("same"), pod("last"));
    assert!(waited < Duration::from_secs(5), "an empty group takes no time: {waited:?}");
    assert_eq!(stopped(pod("last")).1, 5);
    kubelet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_in_a_shutdown_has_no_lock_and_starts_containers_again() {
    // ([W6])
    let machine = Machine::start(LONG.as_secs()).await;
    let lock = machine.inhibit("shutdown").await.expect("the lock is given");
    let runtime = pod_runtime(machine.dir());
    write_pod(machine.dir(), "one", None);
    let fields = json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "10s"});
    let kubelet = Kubelet::with_pods(machine.dir(), machine.address(), "test", &fields, &runtime);
    machine.until_locks("the kubelet's lock", |locks| locks.len() == 2).await;
    until(&runtime, &kubelet, "a container runs", all_started(1)).await;
    machine.call("PowerOff", &(false,)).await;
    kubelet.says(PROCESSED, 1).await;
    let found = runtime.containers();
    let [one] = found.as_slice() else { panic!("one container: {found:?}") };
    assert_eq!(ended(one).1, 143);
    kubelet.stop().await;

    let kubelet = Kubelet::with_pods(machine.dir(), machine.address(), "test", &fields, &runtime);
    let runs =
        |found: &[PodContainer]| found.iter().any(|it| it.started.is_some() && it.end.is_none());
    until(&runtime, &kubelet, "a container runs again", runs).await;
    assert_eq!(machine.inhibitors().await.len(), 1, "ours alone: {}", kubelet.log());
    assert_eq!(machine.actions(), "", "the machine still goes down");
    kubelet.stop().await;
    drop(lock);
    machine.until_action().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configz_shows_a_graceful_shutdown_that_never_started() {
    // ([W1])
    let machine = Machine::start(60).await;
    let port = free_port();
    let fields = json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "10s",
                        "enableServer": true, "address": "127.0.0.1", "port": port.port()});
    // It finds no bus.
    let kubelet = Kubelet::start(machine.dir(), "unix:path=/none", &fields);
    kubelet.says("Failed to start node shutdown manager", 1).await;
    let found = facts(&machine, port).await;
    assert_eq!(found.shutdown_period(), Some(Duration::from_secs(20)), "{}", kubelet.log());
    assert_eq!(found.lock_armed, Some(false));
    kubelet.stop().await;
}
