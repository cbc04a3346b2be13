//! A node with its agent: its files, its bus, its runtime, and the agent's process as it ships.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use clap::Parser as _;
use doubles::cri::{Exit, Process, Service, World as RuntimeModel};
use doubles::login1::Login1;
use doubles::systemd1;
use epilogue_agent::args::{Args, Command};
use epilogue_agent::clock::Clock as AgentClock;
use epilogue_agent::cri::{Client as RuntimeClient, Runtime};
use epilogue_agent::environment::Environment;
use epilogue_agent::host::Host as HostFiles;
use epilogue_agent::run;
use epilogue_runtime::clock::Clock;
use futures::stream;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use lab::nodes::processes::{Change, Observer, Processes, Signal};
use model_api::{Kind, ModelApi};
use nix::sys::signal::Signal as UnixSignal;
use tempfile::TempDir;
use tokio::io::duplex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};

use super::bus::Bus;
use super::kubelet::{Answers, KubeletPorts};
use super::memory::Memory;
use super::shortage::Pressure;
use super::shortage_ledger::THRESHOLD;
use super::wire::{Sabotage, Wire};

/// How the user agent of an agent begins.
pub(super) const AGENT: &str = "epilogue-agent/";
/// The delay that logind grants at first, in seconds; the agent raises it.
const DELAY_SECONDS: u64 = 5;
/// The kubelet's unit, and its process.
const UNIT: &str = "kubelet.service";
const PID: u32 = 700;
/// The capacity of a connection to the runtime, in bytes.
const PIPE_BYTES: usize = 1 << 16;

type Signaller = Box<dyn Fn(String, Signal) + Send + Sync>;

/// What the processes of a pod did, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) at: Timestamp,
    /// How many calls of the API there were before.
    pub(super) calls: usize,
    pub(super) uid: String,
    /// `None`: the node has removed all of the pod.
    pub(super) now: Option<Processes>,
}

/// A node.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) bus: Bus,
    root: TempDir,
    clock: Clock,
    runtime: Arc<RuntimeModel>,
    kubelet: KubeletPorts,
    processes: Arc<Table>,
    /// The memory, and what the agent does about pressure.
    memory: Option<(Arc<Memory>, Pressure)>,
}

/// The processes of the node.
struct Table {
    node: String,
    api: ModelApi,
    clock: Clock,
    signaller: OnceLock<Signaller>,
    exits: Mutex<BTreeMap<String, watch::Sender<Option<Exit>>>>,
    deeds: Mutex<Vec<Deed>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Table").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Host {
    /// A node of this name whose kubelet lives.
    pub(super) fn new(name: &str, api: &ModelApi, clock: Clock) -> Self {
        let root = tempfile::tempdir().expect("must be creatable");
        let boot_id = root.path().join("proc/sys/kernel/random/boot_id");
        std::fs::create_dir_all(boot_id.parent().expect("must have one")).expect("must be made");
        std::fs::write(boot_id, "first-boot\n").expect("must be writable");
        let booted_at = clock.now().as_microsecond();
        let systemd = systemd1::State {
            unit: UNIT.to_owned(),
            active: "active".to_owned(),
            main_pid: PID,
            booted_at: booted_at.try_into().expect("must be after 1970"),
            ..systemd1::State::default()
        };
        let login1 = Arc::new(Login1::without_bus(root.path(), DELAY_SECONDS));
        let bus = Bus { login1, systemd: Arc::new(Mutex::new(systemd)) };
        let node = name.to_owned();
        let table = Table {
            node: node.clone(),
            api: api.clone(),
            clock,
            signaller: OnceLock::new(),
            exits: Mutex::default(),
            deeds: Mutex::default(),
        };
        let runtime = Arc::new(RuntimeModel::new(Handle::current(), clock));
        let (kubelet, processes) = (KubeletPorts::new(root.path()), Arc::new(table));
        Self { name: node, bus, root, clock, runtime, kubelet, processes, memory: None }
    }

    /// The same node with a memory that its pods use.
    #[must_use]
    pub(super) fn with_memory(self, memory: Memory, pressure: Pressure) -> Self {
        Self { memory: Some((Arc::new(memory), pressure)), ..self }
    }

    /// The directory of its files.
    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Its memory, if it has one.
    pub(super) fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref().map(|(memory, _)| &**memory)
    }

    /// Announces the end of the machine by the file of a notice.
    pub(super) fn give_notice(&self, at: Timestamp) {
        let directory = self.root.path().join("run/epilogue");
        std::fs::create_dir_all(&directory).expect("must be creatable");
        let new = directory.join("notice.new");
        std::fs::write(&new, format!("at={at}\n")).expect("must be writable");
        for (path, mode) in [(&directory, 0o755), (&new, 0o644)] {
            let permissions = Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).expect("must be settable");
        }
        std::fs::rename(new, directory.join("notice")).expect("must be renamable");
    }

    /// Takes the notice back, if there is one.
    pub(super) fn withdraw_notice(&self) {
        drop(std::fs::remove_file(self.root.path().join("run/epilogue/notice")));
    }

    /// What tells the node's runtime of its pods' processes.
    pub(super) fn observer(&self) -> Observer {
        let (table, runtime) = (Arc::clone(&self.processes), Arc::clone(&self.runtime));
        let memory = self.memory.as_ref().map(|(memory, _)| Arc::clone(memory));
        Observer::new(move |change| {
            if change.node == table.node {
                table.take(&runtime, change);
                if let Some(memory) = &memory {
                    table.account(&runtime, memory, change);
                }
            }
        })
    }

    /// Sets what sends signals to the processes.
    pub(super) fn set_signaller(&self, signaller: impl Fn(String, Signal) + Send + Sync + 'static) {
        assert!(self.processes.signaller.set(Box::new(signaller)).is_ok(), "must be set once");
    }

    /// The kernel kills the processes of a pod.
    pub(super) fn kill(&self, uid: &str) {
        self.processes.signaller.get().expect("must be set")(uid.to_owned(), Signal::Kill);
    }

    /// What the processes have done.
    pub(super) fn deeds(&self) -> Vec<Deed> {
        self.processes.deeds.lock().expect("no holder panics").clone()
    }

    /// Whether a process runs.
    pub(super) fn runs(&self) -> bool {
        let exits = self.processes.exits.lock().expect("no holder panics");
        exits.values().any(|exit| exit.borrow().is_none())
    }

    /// The kubelet's process is gone.
    pub(super) fn behead(&self) {
        self.set_kubelet("inactive", 0, Answers::Refused);
    }

    /// The kubelet's process is there, and does nothing.
    pub(super) fn hang_kubelet(&self) {
        self.kubelet.set(Answers::Never);
    }

    /// The kubelet has started again.
    pub(super) fn revive(&self) {
        self.set_kubelet("active", PID + 1, Answers::Well);
    }

    fn set_kubelet(&self, active: &str, pid: u32, answers: Answers) {
        let mut systemd = self.bus.systemd.lock().expect("no holder panics");
        (systemd.active, systemd.main_pid) = (active.to_owned(), pid);
        self.kubelet.set(answers);
    }

    /// The kubelet's ports.
    pub(super) fn kubelet(&self) -> &KubeletPorts {
        &self.kubelet
    }

    /// Runs the agent once.
    pub(super) async fn run_agent(
        &self,
        api: &ModelApi,
        sabotage: Option<Sabotage>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let root = format!("--root={}", self.root.path().display());
        let node = format!("--node-name={}", self.name);
        let mut arguments = vec!["epilogue-agent", "run", "--mode=enforce", &node, &root];
        arguments.push("--metrics-bind-address=0");
        let threshold = format!("--eviction-hard=memory.available<{THRESHOLD}");
        match self.memory {
            None => arguments.extend(["--pressure=off", "--oom-causes=false"]),
            Some((_, pressure)) => arguments.extend([&threshold, pressure.flag(sabotage)]),
        }
        let args = Args::try_parse_from(arguments).expect("must be arguments");
        let Command::Run(args) = args.command else { unreachable!("it is run") };
        let config = args.config().expect("must be a configuration");
        let client = Wire::new(api, &format!("{AGENT}{}", self.name), sabotage).plain_client();
        let environment = Environment {
            host: HostFiles::new(self.root.path().to_owned())
                .inline()
                .with_ports(self.kubelet.ports()),
            reads: client.clone(),
            writes: client,
            links: Vec::new(),
            token_file: Some(KubeletPorts::token(self.root.path())),
            authorities: Vec::new(),
            bus: self.bus.address(),
            runtime: Some(Runtime::given(self.runtime_client())),
            clock: AgentClock::given(self.clock),
        };
        run::work(config, environment, stop).await
    }

    fn runtime_client(&self) -> RuntimeClient {
        let service = Service::new(Arc::clone(&self.runtime));
        let connector = tower::service_fn(move |_| {
            let (near, far) = duplex(PIPE_BYTES);
            let one = stream::iter([Ok::<_, io::Error>(far)]);
            tokio::spawn(Server::builder().serve_with_incoming(service.clone(), one));
            async { Ok::<_, io::Error>(TokioIo::new(near)) }
        });
        let endpoint = Endpoint::from_static("http://runtime");
        RuntimeClient::over(endpoint.connect_with_connector_lazy(connector))
    }
}

impl Table {
    /// Tells the memory of a pod's processes.
    fn account(&self, runtime: &RuntimeModel, memory: &Memory, change: Change<'_>) {
        let uid = change.uid;
        match change.now {
            Some(Processes::Run) => {
                let pods = self.api.list(Kind::Pod, "");
                let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == uid);
                let container = runtime.id(uid, change.container);
                if let Some((pod, container)) = pod.zip(container) {
                    memory.start(pod, uid, &container);
                }
            }
            Some(Processes::Exited(_)) | None => memory.end(uid),
            Some(Processes::None | Processes::End) => {}
        }
    }

    fn take(self: &Arc<Self>, runtime: &RuntimeModel, change: Change<'_>) {
        let at = self.clock.now();
        let uid = change.uid.to_owned();
        match change.now {
            Some(Processes::Run) => {
                let (sender, exit) = watch::channel(None);
                let (table, of) = (Arc::clone(self), uid.clone());
                let process = Process::model(
                    move |signal| {
                        let kills = signal == UnixSignal::SIGKILL;
                        let signal = if kills { Signal::Kill } else { Signal::Term };
                        let signaller = table.signaller.get().expect("must be set");
                        signaller(of.clone(), signal);
                    },
                    exit,
                );
                self.exits.lock().expect("no holder panics").insert(uid.clone(), sender);
                runtime.add_model(&uid, change.container, process);
            }
            Some(Processes::Exited(code)) => {
                let finished_at = at.as_nanosecond().try_into().expect("must be before 2262");
                let exits = self.exits.lock().expect("no holder panics");
                if let Some(exit) = exits.get(&uid) {
                    exit.send_replace(Some(Exit { code, finished_at }));
                }
            }
            Some(Processes::None | Processes::End) => {}
            None => {
                self.exits.lock().expect("no holder panics").remove(&uid);
                runtime.remove_pod(&uid);
            }
        }
        self.deeds.lock().expect("no holder panics").push(Deed {
            at,
            calls: self.api.calls(),
            uid,
            now: change.now,
        });
    }
}
