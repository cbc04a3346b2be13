//! Simulated nodes: a small kubelet of our own that gives pods the statuses of a real one, as a
//! script on the pod says (see [`script`]). This file is its surface; `machine` decides per pod,
//! `world` over all of them, `drive` and `write` do the IO.
//!
//! Not KWOK: its stages cannot express a script per pod and attempt, exit codes and the reaction to
//! SIGTERM in one line, and it would be a second binary.

mod drive;
mod machine;
pub(crate) mod objects;
mod pod;
pub mod processes;
pub mod script;
mod status;
mod world;
mod write;

use std::collections::HashSet;
use std::time::Duration;

use epilogue_runtime::clock::Clock;
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use drive::{Command, Ends};
use machine::Pace;
use pod::PodObject;
use processes::{Observer, Signal};
use script::{Script, ScriptError};
use world::{Settings, World};

pub use machine::SHUTDOWN_MESSAGE;
pub use objects::SIMULATED_LABEL;
pub use script::ANNOTATION as SCRIPT_ANNOTATION;
pub use world::Stats;

const COMMANDS_MAX: usize = 16;

/// Whether the nodes bind unscheduled pods, and to which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// For a real scheduler, or pods that name their node.
    Never,
    /// To nodes that are up, in turn.
    RoundRobin,
    /// The same; reads the node before each binding, and skips one with a taint.
    Untainted,
}

/// Behaviour of the simulated nodes.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// Nodes are called `<name_prefix>-0`, `-1`, …
    pub name_prefix: String,
    /// Serve only the pods of this namespace, so that tests can share a control plane.
    pub namespace: Option<String>,
    pub bind: Bind,
    /// The script of pods without the annotation.
    pub default_script: String,
    /// Write one status per pod, the terminal one, unless a test must see others.
    pub skip_running: bool,
    /// The wait before a container's first restart; doubles up to 30 times itself (kubelet: 10 s).
    pub restart_backoff: Duration,
    /// Keep what is known of ended pods, so that kubelets that start again can report it.
    pub remembers: bool,
    /// Keep agents and pods without a toleration off the nodes.
    pub reserved: bool,
    /// The longest grace of a pod when its node shuts down.
    pub shutdown_grace: Duration,
    /// Maximum number of concurrent writes.
    pub writes_max: usize,
    /// How often the nodes renew their leases; `None`: there are no leases.
    pub heartbeat: Option<Duration>,
    /// Keep the Node objects at the end.
    pub keep_nodes: bool,
    /// The time in what they write, and by which scripts run.
    pub clock: Clock,
    /// Learns what the processes of pods do.
    pub observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 2,
            name_prefix: "sim".to_owned(),
            namespace: None,
            bind: Bind::RoundRobin,
            default_script: "succeed".to_owned(),
            skip_running: false,
            restart_backoff: Duration::from_millis(100),
            remembers: false,
            reserved: false,
            shutdown_grace: Duration::from_secs(30),
            writes_max: 64,
            heartbeat: Some(Duration::from_secs(10)),
            keep_nodes: false,
            clock: Clock::MACHINE,
            observer: None,
        }
    }
}

/// Why simulated nodes cannot be started, controlled or stopped.
#[derive(Debug, Error)]
pub enum NodesError {
    #[error("cannot write the node objects")]
    Objects(#[source] kube::Error),
    #[error("cannot read the script {text:?}")]
    Script { text: String, source: ScriptError },
    #[error("there is no node {0:?}")]
    NoSuchNode(String),
    #[error("the simulated nodes ended by themselves")]
    Ended,
}

/// A running set of simulated nodes. Dropping it stops them soon, `stop` stops them for sure.
pub struct SimulatedNodes {
    client: Client,
    names: Vec<String>,
    keep_nodes: bool,
    clock: Clock,
    commands: mpsc::Sender<Command>,
    stats: watch::Receiver<Stats>,
    tasks: Vec<JoinHandle<()>>,
    stop: DropGuard,
}

impl std::fmt::Debug for SimulatedNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedNodes").field("names", &self.names).finish_non_exhaustive()
    }
}

impl SimulatedNodes {
    /// Creates the nodes and begins to serve the pods.
    pub async fn start(client: Client, options: Options) -> Result<Self, NodesError> {
        let script = parse(&options.default_script)?;
        let names: Vec<String> =
            (0..options.nodes).map(|n| format!("{}-{n}", options.name_prefix)).collect();
        let (reserved, clock) = (options.reserved, options.clock);
        objects::create(&client, &names, reserved, clock).await.map_err(NodesError::Objects)?;
        let token = CancellationToken::new();
        let (silent, silent_seen) = watch::channel(HashSet::new());
        let (stats, stats_seen) = watch::channel(Stats::default());
        let (commands, orders) = mpsc::channel(COMMANDS_MAX);
        let mut tasks = Vec::new();
        if let Some(every) = options.heartbeat {
            objects::create_lease_namespace(&client).await.map_err(NodesError::Objects)?;
            let (client, names, clock) = (client.clone(), names.clone(), options.clock);
            let leases =
                objects::keep_leases(client, names, every, silent_seen, (token.clone(), clock));
            tasks.push(tokio::spawn(leases));
        }
        let world = World::new(Settings {
            nodes: names.clone(),
            bind: options.bind,
            pace: Pace {
                skip_running: options.skip_running,
                restart_backoff: options.restart_backoff,
                remembers: options.remembers,
            },
            shutdown_grace: options.shutdown_grace,
            script,
            observer: options.observer,
        });
        let pods: Api<PodObject> = match &options.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let clock = options.clock;
        let ends = Ends { commands: orders, silent, stats, stop: token.clone(), clock };
        let writes_max = options.writes_max.max(1);
        tasks.push(tokio::spawn(drive::run(client.clone(), pods, world, writes_max, ends)));
        let keep_nodes = options.keep_nodes;
        let stop = token.drop_guard();
        Ok(Self { client, names, keep_nodes, clock, commands, stats: stats_seen, tasks, stop })
    }

    /// The names of the nodes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Counts of the nodes so far.
    pub fn stats(&self) -> Stats {
        self.stats.borrow().clone()
    }

    /// Shuts a node down gracefully: NotReady, every pod terminated and marked as the kubelet does.
    /// Returns when the end of all its pods is in the API; from then on the node is silent.
    pub async fn shutdown(&self, node: &str) -> Result<(), NodesError> {
        let ready = objects::Ready::ShuttingDown;
        let index = self.index(node)?;
        objects::mark(&self.client, node, ready, self.clock).await.map_err(NodesError::Objects)?;
        self.order(|done| Command::ShutDown { node: index, done }).await
    }

    /// Lets a node vanish: it writes nothing any more. Returns when none of its writes is under
    /// way.
    pub async fn vanish(&self, node: &str) -> Result<(), NodesError> {
        let node = self.index(node)?;
        self.order(|done| Command::Vanish { node, done }).await
    }

    /// Lets the kubelet of a node die; its pods' processes go on. Returns when none of its writes
    /// is under way.
    pub async fn behead(&self, node: &str) -> Result<(), NodesError> {
        let node = self.index(node)?;
        self.order(|done| Command::Behead { node, done }).await
    }

    /// What sends signals to the processes of a pod.
    pub fn signaller(&self) -> impl Fn(String, Signal) + Clone + Send + Sync + 'static {
        let commands = self.commands.clone();
        move |uid, signal| {
            let commands = commands.clone();
            // Nodes that have stopped have no processes.
            tokio::spawn(async move { commands.send(Command::Signal { uid, signal }).await.ok() });
        }
    }

    /// What lets all kubelets start again: they list their pods, and report what they know of them.
    pub fn restarter(&self) -> impl Fn() + Clone + Send + Sync + 'static {
        let commands = self.commands.clone();
        move || {
            let commands = commands.clone();
            // Nodes that have stopped do not start again.
            tokio::spawn(async move { commands.send(Command::Restart).await.ok() });
        }
    }

    /// Lets a node that was shut down or vanished, or whose kubelet died, answer again.
    pub async fn revive(&self, node: &str) -> Result<(), NodesError> {
        let index = self.index(node)?;
        let ready = objects::Ready::Yes;
        objects::mark(&self.client, node, ready, self.clock).await.map_err(NodesError::Objects)?;
        self.order(|done| Command::Revive { node: index, done }).await
    }

    /// Gives a node without heartbeat a lease whose last renewal is this old.
    pub async fn age_lease(&self, node: &str, age: Duration) -> Result<(), NodesError> {
        objects::create_lease_namespace(&self.client).await.map_err(NodesError::Objects)?;
        objects::age_lease(&self.client, node, age, self.clock).await.map_err(NodesError::Objects)
    }

    /// Stops the nodes: writes under way are finished, tasks joined, the Node objects removed.
    pub async fn stop(self) -> Result<(), NodesError> {
        self.stop.disarm().cancel();
        for task in self.tasks {
            task.await.map_err(|_| NodesError::Ended)?;
        }
        if self.keep_nodes {
            return Ok(());
        }
        objects::remove(&self.client, &self.names).await.map_err(NodesError::Objects)
    }

    fn index(&self, node: &str) -> Result<usize, NodesError> {
        let found = self.names.iter().position(|name| name == node);
        found.ok_or_else(|| NodesError::NoSuchNode(node.to_owned()))
    }

    async fn order(
        &self,
        command: impl FnOnce(oneshot::Sender<()>) -> Command,
    ) -> Result<(), NodesError> {
        let (done, answer) = oneshot::channel();
        self.commands.send(command(done)).await.map_err(|_| NodesError::Ended)?;
        answer.await.map_err(|_| NodesError::Ended)
    }
}

fn parse(text: &str) -> Result<Script, NodesError> {
    Script::parse(text).map_err(|source| NodesError::Script { text: text.to_owned(), source })
}
