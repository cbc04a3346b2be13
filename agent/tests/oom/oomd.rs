//! Tests systemd-oomd with a double on a private bus, and with a process that only pretends to be
//! oomd.

use std::path::Path;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::OomdKill;
use doubles::bus::PrivateBus;
use epilogue_agent::host::Host;
use epilogue_agent::source::oomd;
use epilogue_agent::source::session::Pauses;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo::{DBusProxy, RequestNameFlags};
use zbus::names::{BusName, WellKnownName};

use super::node::{Node, WITHIN};

const NAME: &str = "org.freedesktop.oom1";
const PATH: &str = "/org/freedesktop/oom1";
const MANAGER: &str = "org.freedesktop.oom1.Manager";
const CGROUP: &str = "/kubepods.slice/kubepods-poduid_1.slice/cri-containerd-a.scope";
const PAUSES: Pauses = Pauses { min: Duration::from_millis(10), max: Duration::from_millis(100) };

async fn connect(bus: &PrivateBus) -> Connection {
    let address = bus.address.as_str();
    Builder::address(address).build().await.expect("the bus must take a connection")
}

async fn take_name(connection: &Connection) {
    let name = WellKnownName::try_from(NAME).expect("must be a name");
    let bus = DBusProxy::new(connection).await.expect("must be a bus");
    bus.request_name(name, RequestNameFlags::default()).await.expect("the name must be free");
}

async fn killed(by: &Connection, to: Option<BusName<'_>>, cgroup: &str, reason: &str) {
    by.emit_signal(to, PATH, MANAGER, "Killed", &(cgroup, reason)).await.expect("must be sent");
}

struct Listening {
    events: mpsc::Receiver<Event>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Option<()>>,
}

impl Listening {
    fn start(bus: &PrivateBus, root: &Path) -> Self {
        let (sender, events) = mpsc::channel(64);
        let stop = CancellationToken::new();
        // The form of a host's address: it does not say which bus it was.
        let address = bus.address.split(',').next().unwrap_or_default().to_owned();
        let run = oomd::run(address, Host::new(root.to_owned()), PAUSES, sender);
        let run = stop.clone().run_until_cancelled_owned(run);
        Self { events, stop, task: tokio::spawn(run) }
    }

    /// The next kill; `by` repeats the signal until the source reports it.
    async fn hear(&mut self, by: &Connection, cgroup: &str, reason: &str) -> OomdKill {
        let heard = async {
            loop {
                killed(by, None, cgroup, reason).await;
                let event = timeout(Duration::from_millis(100), self.events.recv()).await;
                if let Ok(event) = event {
                    return event.expect("the source must run");
                }
            }
        };
        let event = timeout(WITHIN, heard).await.expect("a kill must be reported");
        // Signals that were repeated before the first was reported.
        while timeout(Duration::from_millis(150), self.events.recv()).await.is_ok() {}
        let Event::OomdKilled(kill) = event else { panic!("{event:?}") };
        *kill
    }
}

#[tokio::test]
async fn a_kill_by_oomd_is_mapped_to_the_pod() {
    let root = tempfile::tempdir().expect("must be creatable");
    let bus = PrivateBus::start(root.path());
    let oomd = connect(&bus).await;
    take_name(&oomd).await;
    let mut listening = Listening::start(&bus, root.path());
    let kill = listening.hear(&oomd, CGROUP, "memory-pressure").await;
    let whose =
        |kill: &OomdKill| (kill.pod.as_ref().map(|pod| pod.0.clone()), kill.container_id.clone());
    assert_eq!(whose(&kill), (Some("uid-1".into()), Some("a".into())));
    assert_eq!((kill.cgroup.as_str(), kill.reason.as_str()), (CGROUP, "memory-pressure"));

    let kill = listening.hear(&oomd, "/kubepods.slice/kubepods-poduid_2.slice", "x").await;
    assert_eq!(whose(&kill), (Some("uid-2".into()), None));
    let kill = listening.hear(&oomd, "/user.slice/a.scope", &"y\n".repeat(9_000)).await;
    assert_eq!(whose(&kill), (None, None));
    assert!(kill.reason.len() <= 4_096 && !kill.reason.contains('\n'));
    listening.stop.cancel();
    timeout(WITHIN, listening.task).await.expect("must end").expect("must not panic");
}

#[tokio::test]
async fn a_kill_in_a_user_s_cgroup_with_the_names_of_a_pod_is_no_pod_s() {
    let node = Node::new();
    node.pod("uid-1");
    let root = &node.root;
    let bus = PrivateBus::start(root.path());
    let oomd = connect(&bus).await;
    take_name(&oomd).await;
    let mut listening = Listening::start(&bus, root.path());
    let kill = listening.hear(&oomd, CGROUP, "x").await;
    assert_eq!(kill.pod.map(|pod| pod.0).as_deref(), Some("uid-1"));
    let own = format!("/user.slice/user-1000.slice/user@1000.service{CGROUP}");
    assert_eq!(listening.hear(&oomd, &own, "x").await.pod, None);
}

#[tokio::test]
async fn only_the_owner_of_the_name_is_believed() {
    let root = tempfile::tempdir().expect("must be creatable");
    let bus = PrivateBus::start(root.path());
    let oomd = connect(&bus).await;
    take_name(&oomd).await;
    let forger = connect(&bus).await;
    let mut listening = Listening::start(&bus, root.path());
    listening.hear(&oomd, CGROUP, "true").await;

    // To all, and to each connection on the bus alone.
    let proxy = DBusProxy::new(&forger).await.expect("must be a bus");
    killed(&forger, None, CGROUP, "forged").await;
    for name in proxy.list_names().await.expect("must be listed") {
        if name.as_str().starts_with(':') {
            let to = Some(name.inner().clone());
            killed(&forger, to.clone(), CGROUP, "forged").await;
            // A change of the owner that the bus did not announce.
            let ours = forger.unique_name().expect("must have a name").as_str();
            let change = (NAME, "", ours);
            let (path, bus) = ("/org/freedesktop/DBus", "org.freedesktop.DBus");
            let sent = forger.emit_signal(to.clone(), path, bus, "NameOwnerChanged", &change);
            sent.await.expect("must be sent");
            killed(&forger, to, CGROUP, "forged").await;
        }
    }
    // The right sender with the wrong signature.
    let sent = oomd.emit_signal(None::<BusName<'_>>, PATH, MANAGER, "Killed", &(7_u32, true));
    sent.await.expect("must be sent");
    let kill = listening.hear(&oomd, CGROUP, "true again").await;
    assert_eq!(kill.reason, "true again");

    // Another process takes over the name.
    let name = WellKnownName::try_from(NAME).expect("must be a name");
    let bus_of_oomd = DBusProxy::new(&oomd).await.expect("must be a bus");
    bus_of_oomd.release_name(name).await.expect("must be released");
    take_name(&forger).await;
    let kill = listening.hear(&forger, CGROUP, "of the next").await;
    assert_eq!(kill.reason, "of the next");
}

#[tokio::test]
async fn oomd_may_come_later_and_the_bus_may_go() {
    let root = tempfile::tempdir().expect("must be creatable");
    let bus = PrivateBus::start(root.path());
    let mut listening = Listening::start(&bus, root.path());
    let oomd = connect(&bus).await;
    take_name(&oomd).await;
    listening.hear(&oomd, CGROUP, "first").await;
    drop(bus);
    let bus = PrivateBus::start(root.path());
    let oomd = connect(&bus).await;
    take_name(&oomd).await;
    let kill = listening.hear(&oomd, CGROUP, "after").await;
    assert_eq!(kill.reason, "after");
}
