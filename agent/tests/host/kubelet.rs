//! Tests how the agent observes the kubelet, against doubles of everything that it asks.

use std::net::SocketAddr;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::node::{Healthz, KubeletEviction, KubeletFacts, MainPort, Unit};
use agent_core::shutdown::priority_groups::{CRITICAL_PRIORITY, PriorityGroup};
use doubles::http::answer;
use doubles::login1::Lock;
use doubles::systemd1::{State, Systemd1};
use epilogue_agent::args::KubeletPlace;
use epilogue_agent::bus::Bus;
use epilogue_agent::source::kubelet::{Access, KubeletSettings, KubeletSource, PERIOD};
use epilogue_agent::source::lease::LeaseAge;
use epilogue_agent::source::systemd::Systemd;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::configz::Port;
use crate::{Node, WITHIN};

const UNIT: &str = "kubelet.service";
const PID: u32 = 4242;

fn its_lock(pid: u32) -> Lock {
    let why = "Kubelet needs time to handle node shutdown".into();
    ("shutdown".into(), "kubelet".into(), why, "delay".into(), 0, pid)
}

fn config(seconds: u64) -> String {
    let config = format!(
        r#"{{"kubeletconfig":{{"shutdownGracePeriod":"{seconds}s",
            "shutdownGracePeriodCriticalPods":"10s",
            "evictionHard":{{"memory.available":"100Mi"}}}}}}"#
    );
    answer("200 OK", &config)
}

async fn systemd(node: &Node) -> Systemd1 {
    let state =
        State { unit: UNIT.into(), active: "active".into(), main_pid: PID, ..State::default() };
    Systemd1::start(&node.bus.address, state, || {}).await
}

/// Writes the port's certificate into the kubelet's directory.
fn know(node: &Node, port: &Port) {
    node.write("var/lib/kubelet/pki/kubelet.crt", &port.certificate);
}

/// Makes a source. In the host's own table, the port of the configuration is this user's.
fn source(
    node: &Node,
    healthz: Option<SocketAddr>,
    configz: Option<SocketAddr>,
    uid: u32,
) -> KubeletSource {
    source_with(node, (healthz, configz), uid, Vec::new())
}

/// The same with certificate authorities of the cluster.
fn source_with(
    node: &Node,
    (healthz, configz): (Option<SocketAddr>, Option<SocketAddr>),
    uid: u32,
    authorities: Vec<Vec<u8>>,
) -> KubeletSource {
    node.write("token", "secret-of-the-agent");
    if let Some(address) = configz {
        let line = format!(
            "  sl  local_address rem_address st ...\n   0: 0100007F:{:04X} 00000000:0000 0A \
             00000000:00000000 00:00000000 00000000 {uid} 0 1 1\n",
            address.port()
        );
        node.write("proc/net/tcp", &line);
        node.write("proc/net/tcp6", "");
    }
    let place = KubeletPlace {
        // The first unit is another distribution's.
        units: vec!["rke2-agent.service".into(), UNIT.into()],
        dir: "/var/lib/kubelet".to_owned(),
        healthz,
        configz,
    };
    let token = node.root.path().join("token").display().to_string();
    let access = Some(Access { token, node: "node-1".to_owned(), authorities });
    let settings = KubeletSettings { place, access, period: PERIOD };
    let lease_age = LeaseAge::default();
    lease_age.found(Some(Duration::from_secs(3)));
    KubeletSource::new(settings, node.bus.address.clone(), node.host(), lease_age)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_lives_and_waits_for_shutdowns_is_seen_so() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    node.login1.turn(|state| state.locks.push((0, its_lock(PID))));
    let health = Port::plain(&answer("200 OK", "ok")).await;
    let config = Port::with_tls(&config(30)).await;
    know(&node, &config);
    let source = source(&node, Some(health.address), Some(config.address), 0);
    let expected = KubeletFacts {
        lock_armed: Some(true),
        shutdown_groups: Some(vec![
            PriorityGroup { priority: 0, period_seconds: 20 },
            PriorityGroup { priority: CRITICAL_PRIORITY, period_seconds: 10 },
        ]),
        main_pid: Some(PID),
        unit: Some(Unit::Active),
        healthy: Some(Healthz::Ok),
        main_port: Some(MainPort::Answers),
        lease_age: Some(Duration::from_secs(3)),
        eviction: Some(KubeletEviction {
            hard: vec![("memory.available".into(), "100Mi".into())],
            soft: Vec::new(),
            local_storage_limits: true,
        }),
    };
    assert_eq!(source.ask().await, expected);
    let requests = requests(&config, "/configz");
    let request = requests.first().expect("the configuration must be asked").to_lowercase();
    assert!(request.contains("authorization: bearer secret-of-the-agent\r\n"), "{request}");
    // The configuration is fixed at the start of the process, and read once for each; the state of
    // the sync loop is not.
    assert_eq!(source.ask().await, expected);
    assert_eq!(self::requests(&config, "/configz").len(), 1);
    assert_eq!(self::requests(&config, "/healthz").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_is_gone_is_seen_so() {
    let node = Node::start(60).await;
    let systemd = systemd(&node).await;
    systemd.turn(|state| (state.active, state.main_pid) = ("failed".into(), 0));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("must be bindable");
    let address = listener.local_addr().expect("must have one");
    drop(listener);
    let facts = source(&node, Some(address), None, 0).ask().await;
    let expected = KubeletFacts {
        lock_armed: Some(false),
        shutdown_groups: None,
        main_pid: None,
        unit: Some(Unit::Inactive),
        healthy: Some(Healthz::Refused),
        main_port: None,
        lease_age: Some(Duration::from_secs(3)),
        eviction: None,
    };
    assert_eq!(facts, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_answer_is_not_known() {
    let mut node = Node::start(60).await;
    node.login1.go().await;
    let facts = source(&node, None, None, 0).ask().await;
    let lease_age = Some(Duration::from_secs(3));
    assert_eq!(facts, KubeletFacts { lease_age, ..KubeletFacts::default() });
    node.login1.come().await;
    let other = State { unit: "k3s.service".into(), ..State::default() };
    let _systemd = Systemd1::start(&node.bus.address, other, || {}).await;
    let facts = source(&node, None, None, 0).ask().await;
    assert_eq!((facts.unit, facts.lock_armed), (None, Some(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_process_is_not_the_kubelets() {
    // Any process can use the name kubelet. ([SD24])
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    node.login1.turn(|state| state.locks.push((0, its_lock(PID + 1))));
    assert_eq!(source(&node, None, None, 0).ask().await.lock_armed, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_a_child_in_the_kubelets_unit_is_the_kubelets() {
    // k0s, RKE2 and wrapper shells run the kubelet as a child of the unit's main process.
    let node = Node::start(60).await;
    let systemd = systemd(&node).await;
    node.login1.turn(|state| state.locks.push((0, its_lock(PID + 1))));
    systemd.turn(|state| state.children = vec![PID + 1]);
    assert_eq!(source(&node, None, None, 0).ask().await.lock_armed, Some(true));
    // Another unit is not the kubelet's, though systemd knows its processes.
    systemd.turn(|state| state.unit = "other.service".into());
    let other = source(&node, None, None, 0).ask().await;
    assert_eq!((other.main_pid, other.lock_armed), (None, Some(true)), "no unit: root suffices");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_unit_is_not_the_kubelets() {
    let node = Node::start(60).await;
    let systemd = systemd(&node).await;
    node.login1.turn(|state| state.locks.push((0, its_lock(PID + 1))));
    systemd.turn(|state| state.other = Some((PID + 1, "somebodys.service".into())));
    assert_eq!(source(&node, None, None, 0).ask().await.lock_armed, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_not_shown_to_a_port_of_another_user() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    let config = Port::with_tls(&config(30)).await;
    know(&node, &config);
    let facts = source(&node, None, Some(config.address), 1000).ask().await;
    assert_eq!((facts.shutdown_period(), config.requests()), (None, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_shown_to_a_certificate_of_the_cluster_for_this_node_too() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    for (name, authority_known, shown) in
        [("node-1", true, true), ("node-2", true, false), ("node-1", false, false)]
    {
        let (port, authority) = Port::signed(&config(30), name).await;
        let authorities = if authority_known { vec![authority] } else { Vec::new() };
        let source = source_with(&node, (None, Some(port.address)), 0, authorities);
        let facts = source.ask().await;
        assert_eq!(facts.shutdown_period().is_some(), shown, "{name} {authority_known}");
        assert_eq!(!port.requests().is_empty(), shown, "{name} {authority_known}");
        assert_eq!(facts.main_port, shown.then_some(MainPort::Answers));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_shown_to_the_certificate_in_the_kubelets_directory_alone() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    let (port, other) = (Port::with_tls(&config(30)).await, Port::with_tls(&config(30)).await);
    // None is known.
    let facts = source(&node, None, Some(port.address), 0).ask().await;
    assert_eq!((facts.shutdown_period(), port.requests()), (None, Vec::new()));
    know(&node, &other);
    let facts = source(&node, None, Some(port.address), 0).ask().await;
    assert_eq!((facts.shutdown_period(), port.requests()), (None, Vec::new()));
    // A certificate that the cluster signed lies alongside its key.
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let current = format!("{}{key}", port.certificate);
    node.write("var/lib/kubelet/pki/kubelet-server-current.pem", &current);
    let facts = source(&node, None, Some(port.address), 0).ask().await;
    assert_eq!(facts.shutdown_period(), Some(Duration::from_secs(30)));
    assert_eq!(facts.main_port, Some(MainPort::Answers));
    assert_eq!(requests(&port, "/configz").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_question_is_no_answer() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    let config = Port::with_tls(&answer("403 Forbidden", "no")).await;
    know(&node, &config);
    let health = Port::plain(&answer("500 Internal Server Error", "failed")).await;
    let facts = source(&node, Some(health.address), Some(config.address), 0).ask().await;
    assert_eq!((facts.shutdown_period(), facts.healthy), (None, Some(Healthz::Failing)));
    // Its kubelet lives, and does not know the token.
    assert_eq!(facts.main_port, Some(MainPort::Answers));
    assert_eq!(requests(&config, "/configz").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_sync_loop_is_seen_next_to_a_ping_that_is_answered() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    let health = Port::plain(&answer("200 OK", "ok")).await;
    let stuck =
        "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
    let main = Port::with_tls(&answer("500 Internal Server Error", stuck)).await;
    know(&node, &main);
    let facts = source(&node, Some(health.address), Some(main.address), 0).ask().await;
    assert_eq!((facts.healthy, facts.main_port), (Some(Healthz::Ok), Some(MainPort::Stuck)));
    // Another check that fails is not the sync loop's.
    let other = "[+]ping ok\n[-]log failed: reason withheld\n[+]syncloop ok\n";
    let main = Port::with_tls(&answer("500 Internal Server Error", other)).await;
    know(&node, &main);
    let facts = source(&node, Some(health.address), Some(main.address), 0).ask().await;
    assert_eq!(facts.main_port, Some(MainPort::Answers));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_is_silent_and_one_that_is_gone_refuses() {
    let node = Node::start(60).await;
    let _systemd = systemd(&node).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("must be bindable");
    let address = listener.local_addr().expect("must have one");
    let source = source(&node, Some(address), Some(address), 0);
    let facts = source.ask().await;
    let silent = (Some(Healthz::Silent), Some(MainPort::Silent));
    assert_eq!((facts.healthy, facts.main_port), silent);
    drop(listener);
    let facts = source.ask().await;
    let refused = (Some(Healthz::Refused), Some(MainPort::Refused));
    assert_eq!((facts.healthy, facts.main_port), refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_systemd_starts_again_is_not_inactive() {
    let node = Node::start(60).await;
    let systemd = systemd(&node).await;
    let unit = async |active: &str, job| {
        systemd.turn(|state| (state.active, state.job) = (active.into(), job));
        source(&node, None, None, 0).ask().await.unit
    };
    assert_eq!(unit("activating", false).await, Some(Unit::Changing));
    assert_eq!(unit("inactive", true).await, Some(Unit::Changing));
    assert_eq!(unit("inactive", false).await, Some(Unit::Inactive));
}

/// The requests for this path.
fn requests(port: &Port, path: &str) -> Vec<String> {
    let line = format!("GET {path} HTTP/1.1\r\n");
    port.requests().into_iter().filter(|request| request.starts_with(&line)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_is_sampled_anew_when_locks_change_and_at_an_announcement() {
    let node = Node::start(60).await;
    let systemd = systemd(&node).await;
    let session = node.session();
    let changes = session.changes.clone();
    let mut probe = changes.clone();
    let source = source(&node, None, None, 0);
    let (sender, mut events) = mpsc::channel(8);
    let stop = CancellationToken::new();
    let running = stop.run_until_cancelled(source.run(changes, sender));
    let watched = async {
        let first = seen(&mut events).await;
        assert_eq!((first.lock_armed, first.main_pid), (Some(false), Some(PID)));
        // The agent takes a lock, and with it the kubelet's shows, which the double does not
        // announce.
        settled(&mut probe).await;
        node.login1.turn(|state| state.locks.push((0, its_lock(PID))));
        let sink = node.sink();
        sink.take_lock().await;
        while seen(&mut events).await.lock_armed != Some(true) {}
        systemd.turn(|state| state.main_pid = 0);
        node.login1.shut_down("reboot").await;
        while seen(&mut events).await.main_pid.is_some() {}
        // The kubelet dies during a shutdown: the agent sees that in less than a minute.
        systemd.turn(|state| state.active = "failed".into());
        while seen(&mut events).await.unit != Some(Unit::Inactive) {}
        stop.cancel();
    };
    tokio::join!(running, watched);
    session.end().await;
}

/// Waits until the session has found logind: earlier changes do not count.
async fn settled(changes: &mut watch::Receiver<epilogue_agent::source::logind_session::Changes>) {
    let settled = changes.wait_for(|changes| changes.count > 0);
    let waited = tokio::time::timeout(WITHIN, settled).await;
    waited.expect("the session must find logind").expect("the session must live");
}

async fn seen(events: &mut mpsc::Receiver<Event>) -> KubeletFacts {
    match tokio::time::timeout(WITHIN, events.recv()).await {
        Ok(Some(Event::KubeletSeen(facts))) => facts,
        other => panic!("the kubelet must be seen, not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_says_what_the_clock_showed_when_the_boot_began() {
    let node = Node::start(5).await;
    let bus = Bus::connect(&node.bus.address.clone().into()).await.expect("must connect");
    assert!(Systemd::on(&bus).booted_at().await.is_err(), "systemd is not on the bus");
    let state = State { booted_at: 1_795_000_000_000_000, ..State::default() };
    let systemd = Systemd1::start(&node.bus.address, state, || {}).await;
    let noted = Systemd::on(&bus).booted_at().await.expect("must be answered");
    assert_eq!(noted.map(jiff::Timestamp::as_second), Some(1_795_000_000));
    systemd.turn(|state| state.booted_at = 0);
    assert_eq!(Systemd::on(&bus).booted_at().await.expect("must be answered"), None);
}
