//! Assembles the test bed for one test or one run of the bench. Its methods panic, as tests do.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use doubles::bus::PrivateBus;
use doubles::login1::{Down, Login1};
use doubles::systemd1::{self, Systemd1};
use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::kubelet::{Healthz, Kubelet};
use super::program::Agent;
use super::record::{Ends, Record};
use super::token::Token;
use crate::audit::{Audit, Expected};
use crate::install;
use crate::network::{Path, PathState, Throttle};
use crate::nodes::{Options, SCRIPT_ANNOTATION, SimulatedNodes};
use crate::paths::program;
use crate::{Cluster, Namespace, eventually, kubeconfig};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const BOOT_ID: &str = "0b7c3f5e-1f52-4a39-9a3e-6f1f5b1d0c7a";
/// Enough for quick steps on a busy machine.
const SOON: Duration = Duration::from_mins(1);
const REQUESTS_AT_ONCE: usize = 16;
/// Age of the lease of a kubelet that does not live.
const SILENT_SINCE: Duration = Duration::from_hours(1);

/// The path from the agent to the API.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// On the same machine, with this time added to each round trip.
    RoundTrip(Duration),
    /// Limited to this many requests a second.
    PerSecond(f64),
}

/// The setup to build.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The agent's program.
    pub binary: PathBuf,
    /// Pods on the node, all of one Job.
    pub pods: usize,
    /// The script that the simulated node runs for them.
    pub script: &'static str,
    /// The delay that logind grants.
    pub delay_seconds: u64,
    /// The path from the agent to the API.
    pub way: Way,
    /// The kubelet next to the agent.
    pub kubelet: Kubelet,
    /// Whether the agent may use a container runtime, at its usual path below the root.
    pub runtime: bool,
    /// The expected mode of the agent, as its metrics name it.
    pub mode: &'static str,
    /// Whether the agent sees this machine's own `/proc` and cgroups.
    pub real_kernel: bool,
    /// Whether the agent's first token can be revoked: it is bound to a Pod instead of the Node.
    pub revocable_token: bool,
    /// Further arguments of the agent.
    pub arguments: Vec<String>,
    /// What the API answers it.
    pub expected: Expected,
}

/// The test bed.
pub struct Site {
    /// The record of what the API shows.
    pub record: Record,
    /// The Job of the pods.
    pub(super) owner: Value,
    /// The path to the API, if it is degradable.
    path: Option<Path>,
    pub(super) agent: Agent,
    token: Token,
    login1: Login1,
    pub(super) nodes: SimulatedNodes,
    pub(super) namespace: Namespace,
    pub(super) client: kube::Client,
    _throttle: Option<Throttle>,
    _healthz: Healthz,
    bus: PrivateBus,
    pub(super) root: TempDir,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            binary: program("epilogue-agent"),
            pods: 12,
            script: "on-term=143 after=100ms",
            delay_seconds: 30,
            way: Way::RoundTrip(Duration::ZERO),
            kubelet: Kubelet::Lives,
            runtime: false,
            mode: "replace",
            real_kernel: false,
            revocable_token: false,
            arguments: Vec::new(),
            expected: Expected::default(),
        }
    }
}

impl Site {
    /// Builds it, and waits until the agent is ready and all pods run.
    pub async fn start(cluster: &Cluster, setup: Setup) -> Self {
        let client = cluster.admin_client().await.expect("a client");
        install::apply_rights(&client).await.expect("the rights");
        install::apply_policy(&client).await.expect("the policies");
        let namespace = Namespace::create(cluster).await.expect("a namespace");
        let name = namespace.name().to_owned();
        let options = Options {
            nodes: 1,
            name_prefix: name.clone(),
            namespace: Some(name.clone()),
            shutdown_grace: Duration::from_secs(30),
            heartbeat: (setup.kubelet == Kubelet::Lives).then_some(Duration::from_secs(10)),
            ..Options::default()
        };
        let nodes = SimulatedNodes::start(client.clone(), options).await.expect("the node");
        let node = nodes.names()[0].clone();
        if setup.kubelet != Kubelet::Lives {
            nodes.age_lease(&node, SILENT_SINCE).await.expect("the lease");
        }
        let record = Record::of(Api::namespaced(client.clone(), &name));
        let owner = create_pods(&client, &name, &node, &setup).await;

        let root = tempfile::tempdir().expect("a directory");
        write_host(root.path(), setup.real_kernel);
        let bus = PrivateBus::start(root.path());
        let login1 = Login1::start(&bus.address, root.path(), setup.delay_seconds).await;
        let healthz = Healthz::serve(setup.kubelet).expect("a kubelet's health");
        let (path, throttle, server) = way(cluster, setup.way).await;
        let config = root.path().join("kubeconfig");
        let token = Token::write(cluster, &node, &server, &config, &setup).await;
        let admin = free_address();
        let mut arguments = vec![
            "run".to_owned(),
            format!("--node-name={node}"),
            format!("--kubeconfig={}", config.display()),
            format!("--root={}", root.path().display()),
            format!("--kubelet-healthz-address={}", healthz.address),
            "--raise-delay=false".to_owned(),
            format!("--metrics-bind-address={admin}"),
            "--log-format=text".to_owned(),
        ];
        if !setup.runtime {
            arguments.push("--runtime-endpoint=".to_owned());
        }
        if !setup.arguments.iter().any(|given| given.starts_with("--kubelet-address=")) {
            arguments.push("--kubelet-address=".to_owned());
        }
        arguments.extend(setup.arguments);
        let log = cluster.files(&name).join("agent.log");
        let audit = Audit::new(cluster, &name, setup.expected);
        let agent =
            Agent::start(&setup.binary, arguments, &bus, admin, &log, audit).expect("the agent");
        let mut site = Self {
            record,
            owner,
            path,
            agent,
            token,
            login1,
            nodes,
            namespace,
            client,
            _throttle: throttle,
            _healthz: healthz,
            bus,
            root,
        };
        site.is_ready(setup.pods, setup.mode).await;
        site
    }

    /// The agent's log.
    pub fn log(&self) -> PathBuf {
        self.agent.log()
    }

    /// The agent's process.
    pub fn pid(&self) -> u32 {
        self.agent.pid()
    }

    /// Waits until the agent is ready, knows its mode, and the pods run.
    async fn is_ready(&mut self, pods: usize, mode: &str) {
        let what = format!("the agent ready (log: {})", self.agent.log().display());
        let mode = format!("mode{{mode=\"{mode}\"}}");
        let see = async || {
            let ready = self.agent.page("/readyz?verbose").await;
            (ready, self.metric("pods").await, self.metric(&mode).await)
        };
        let known = |(ready, _, is_in_mode): &(String, Option<f64>, Option<f64>)| {
            ready.starts_with("HTTP/1.1 200") && *is_in_mode == Some(1.0)
        };
        eventually(&what, SOON, see, known).await;
        self.until("all pods run", |ends| ends.running == pods).await;
        let see = async || self.metric("pods").await;
        let seen = |known: &Option<f64>| known.is_some_and(|known| known as usize >= pods);
        eventually("the agent sees the pods", SOON, see, seen).await;
        self.agent.check().expect("the agent runs");
    }

    /// A metric of the agent, named without its prefix.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let page = self.agent.page("/metrics").await;
        let line = page.lines().find_map(|line| {
            line.strip_prefix("epilogue_agent_")?.strip_prefix(name)?.strip_prefix(' ')
        });
        line.and_then(|value| value.parse().ok())
    }

    /// All of the agent's metrics.
    pub async fn metrics(&self) -> String {
        self.agent.page("/metrics").await
    }

    /// Announces a power-off; returns when.
    pub async fn shut_down(&self) -> Instant {
        let begun = Instant::now();
        self.login1.shut_down("poweroff").await;
        begun
    }

    /// systemd stops the system, and the agent with it; logind announces nothing.
    pub async fn system_stops(&self) -> Systemd1 {
        let state = systemd1::State { system: "stopping".to_owned(), ..Default::default() };
        let systemd = Systemd1::start(&self.bus.address, state, || ()).await;
        let pid = Pid::from_raw(self.agent.pid().cast_signed());
        kill(pid, Signal::SIGTERM).expect("the agent must run");
        systemd
    }

    /// Announces the machine's end by the file of a notice; it must be root's.
    pub fn give_notice(&self, text: &str) {
        let directory = self.root.path().join("run/epilogue");
        std::fs::create_dir_all(&directory).expect("must be creatable");
        let (new, notice) = (directory.join("notice.new"), directory.join("notice"));
        std::fs::write(&new, text).expect("must be writable");
        for (path, mode) in [(&directory, 0o755), (&new, 0o644)] {
            let permissions = Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).expect("must be settable");
        }
        std::fs::rename(new, notice).expect("must be renamable");
    }

    /// Takes the notice back.
    pub fn withdraw_notice(&self) {
        let file = self.root.path().join("run/epilogue/notice");
        std::fs::remove_file(file).expect("must be removable");
    }

    /// Cancels the shutdown.
    pub async fn cancel(&self) {
        self.login1.cancel().await;
    }

    /// Waits until the agent releases its lock in time; returns when.
    pub async fn released(&self) -> Instant {
        let state = self.login1.until("shut down", |state| state.down.is_some()).await;
        let log = self.agent.log();
        assert_eq!(state.down, Some(Down::Released), "log: {}", log.display());
        Instant::now()
    }

    /// Waits until the machine goes down, whether or not the lock was released.
    pub async fn down(&self) -> bool {
        let state = self.login1.until("shut down", |state| state.down.is_some()).await;
        state.down == Some(Down::Released)
    }

    /// Waits until the agent holds a lock.
    pub async fn locked(&self) {
        self.login1.until("locked", |state| !state.locks.is_empty()).await;
    }

    /// Waits for a state of the pods.
    pub async fn until(&self, what: &str, holds: impl Fn(&Ends) -> bool) -> Ends {
        let what = format!("{what} (log: {})", self.agent.log().display());
        eventually(&what, SOON, async || self.record.ends(), holds).await
    }

    /// Changes the path to the API.
    pub fn set_path(&self, path_state: PathState) {
        self.path.as_ref().expect("the path must be one that can change").set(path_state);
    }

    /// Kills the agent by SIGKILL and restarts it.
    pub async fn kill_and_restart(&mut self) {
        self.agent.kill().await;
        self.agent.start_again().expect("the agent starts again");
    }

    /// Kills the agent by SIGKILL, and starts this program in its place.
    pub async fn kill_and_restart_as(&mut self, binary: &std::path::Path) {
        self.agent.kill().await;
        self.agent.replace_by(binary);
        self.agent.start_again().expect("the agent starts again");
    }

    /// Replaces the agent's token in its file by another one.
    pub async fn replace_token(&self) {
        self.token.replace().await;
    }

    /// Revokes the agent's first token; returns once the API refuses it.
    pub async fn revoke_token(&self) {
        self.token.revoke().await;
    }

    /// The keys of the node's taints, and the agent's annotation.
    pub async fn node(&self) -> (Vec<String>, Option<String>) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.nodes.names()[0]).await.expect("the node");
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let said = node.metadata.annotations.and_then(|mut all| all.remove("epilogue.dev/state"));
        (taints.into_iter().map(|taint| taint.key).collect(), said)
    }

    /// Stops everything.
    pub async fn stop(self) {
        self.agent.stop().await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace.name());
        let all = pods.list(&kube::api::ListParams::default()).await.expect("the pods");
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        futures::stream::iter(all)
            .for_each_concurrent(REQUESTS_AT_ONCE, async |pod| {
                let name = pod.metadata.name.unwrap_or_default();
                // The pod may be gone.
                let _ = pods.patch(&name, &PatchParams::default(), &release).await;
            })
            .await;
        self.nodes.stop().await.expect("the node ends");
        self.namespace.finish().await.expect("the namespace goes");
    }
}

fn write_host(root: &std::path::Path, real_kernel: bool) {
    if real_kernel {
        std::fs::create_dir_all(root.join("sys/fs")).expect("must be creatable");
        std::fs::create_dir_all(root.join("var/lib/epilogue-agent")).expect("must be creatable");
        for dir in ["proc", "sys/fs/cgroup"] {
            let target = std::path::Path::new("/").join(dir);
            std::os::unix::fs::symlink(target, root.join(dir)).expect("must be linkable");
        }
        return;
    }
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("must have one")).expect("must be creatable");
        std::fs::write(path, text).expect("must be writable");
    };
    write("proc/sys/kernel/random/boot_id", BOOT_ID);
    // To the agent it looks as if no process listens.
    write("proc/net/tcp", "");
    write("proc/net/tcp6", "");
    write("sys/fs/cgroup/cgroup.controllers", "memory\n");
    for dir in ["var/lib/epilogue-agent", "sys/fs/cgroup/kubepods"] {
        std::fs::create_dir_all(root.join(dir)).expect("must be creatable");
    }
}

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("must have an address")
}

/// The address for the agent, and the proxy behind it.
async fn way(cluster: &Cluster, way: Way) -> (Option<Path>, Option<Throttle>, String) {
    let config = kubeconfig::read(cluster.kubeconfig_path()).expect("a kubeconfig");
    match way {
        Way::RoundTrip(time) => {
            let server: http::Uri = server(&config).parse().expect("must be an address");
            let to = (server.host().unwrap_or("127.0.0.1"), server.port_u16().unwrap_or(443));
            let to = tokio::net::lookup_host(to).await.expect("an address").next();
            let path_state = PathState::Open(time / 2);
            let path = Path::open(to.expect("an address"), path_state).await.expect("a path");
            let address = format!("https://{}", path.address());
            (Some(path), None, address)
        }
        Way::PerSecond(rate) => {
            let anonymous = kubeconfig::without_identity(config);
            let path = cluster.kubeconfig_path();
            let client = kubeconfig::client(anonymous, path).await.expect("a client");
            let throttle = Throttle::open(client, rate).await.expect("a throttle");
            let address = format!("http://{}", throttle.address());
            (None, Some(throttle), address)
        }
    }
}

fn server(config: &Kubeconfig) -> String {
    let cluster = config.clusters.first().and_then(|named| named.cluster.as_ref());
    cluster.and_then(|cluster| cluster.server.clone()).expect("a kubeconfig must name its server")
}

/// Creates the pods of a Job without a controller: only the node acts on them.
async fn create_pods(client: &kube::Client, namespace: &str, node: &str, setup: &Setup) -> Value {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let job = serde_json::from_value(json!({
        "metadata": {"name": "work"},
        "spec": {"managedBy": "example.com/absent", "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}},
    }));
    let job = job.expect("must be a Job");
    let job = jobs.create(&PostParams::default(), &job).await.expect("the Job");
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "work", "controller": true,
                       "uid": job.metadata.uid});
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    futures::stream::iter(0..setup.pods)
        .for_each_concurrent(REQUESTS_AT_ONCE, async |index| {
            let pod = pod(&format!("work-{index:03}"), node, setup.script, &owner);
            let pod = serde_json::from_value(pod).expect("must be a pod");
            pods.create(&PostParams::default(), &pod).await.expect("a pod");
        })
        .await;
    owner
}

pub(super) fn pod(name: &str, node: &str, script: &str, owner: &Value) -> Value {
    json!({
        "metadata": {
            "name": name,
            "annotations": {SCRIPT_ANNOTATION: script},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never", "nodeName": node, "terminationGracePeriodSeconds": 10,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}],
        },
    })
}
