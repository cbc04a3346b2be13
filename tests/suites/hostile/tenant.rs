//! Tests a tenant that creates all of these objects in its namespace, while Jobs of another tenant
//! run.

use std::time::{Duration, Instant};

use http::Request;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use lab::bed::{JobState, SOON, job};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, SimulatedNodes};
use lab::{ControlPlane, Namespace, Options, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::objects::{self, Object};

/// A Job of one pod takes a few tenths of a second; the machine may be busy with other tests.
const TYPICAL_MAX: Duration = Duration::from_secs(5);
const MIB: usize = 1 << 20;
/// Number of concurrent calls.
const CALLS: usize = 32;
const CONTROLLERS: usize = 5_000;

struct Stage {
    control_plane: ControlPlane,
    controller: Controller,
    nodes: SimulatedNodes,
    tenant: Namespace,
    other: Namespace,
    /// With the tenant's rights.
    as_tenant: kube::Client,
    jobs: Api<Job>,
    probes: usize,
}

impl Stage {
    async fn start() -> Self {
        let options = Options::unique("hostile").controller_manager(QUIET_CONTROLLERS);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let cluster = control_plane.cluster();
        let client = control_plane.admin_client().await.expect("a client");
        let tenant = Namespace::create(cluster).await.expect("a namespace");
        let other = Namespace::create(cluster).await.expect("a namespace");
        let setup =
            Setup::debug(control_plane.dir()).argument("--metrics-bind-address=127.0.0.1:0");
        let controller = Controller::start(cluster, &setup).await.expect("our controller");
        let options = nodes::Options {
            namespace: Some(other.name().to_owned()),
            heartbeat: None,
            ..nodes::Options::default()
        };
        let nodes = SimulatedNodes::start(client.clone(), options).await.expect("nodes");
        give_rights(&client, tenant.name()).await;
        let as_tenant = cluster.service_account_client(tenant.name(), "tenant").await;
        let as_tenant = as_tenant.expect("the tenant's client");
        let jobs = Api::namespaced(client, other.name());
        Self { control_plane, controller, nodes, tenant, other, as_tenant, jobs, probes: 0 }
    }

    /// Runs a Job of the other tenant; returns how long it takes.
    async fn probe(&mut self) -> Duration {
        self.probes += 1;
        let name = format!("probe-{}", self.probes);
        let begun = Instant::now();
        self.jobs.create(&PostParams::default(), &job(&name).build()).await.expect("the Job");
        let state = async || JobState::of(&self.jobs.get(&name).await.expect("the Job"));
        eventually(&format!("the end of {name}"), SOON, state, JobState::is_finished).await;
        begun.elapsed()
    }

    /// Whether the API accepts it.
    async fn create(&self, object: &Object) -> Result<(), kube::Error> {
        let group = if object.resource == "jobs" { "/apis/batch/v1" } else { "/api/v1" };
        let path = format!("{group}/namespaces/{}/{}", self.tenant.name(), object.resource);
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(object.body.clone()).expect("must be a request");
        self.as_tenant.request_text(request).await.map(drop)
    }

    /// Unshared memory of the controller, in bytes.
    fn memory(&self) -> usize {
        self.figure("RssAnon:")
    }

    /// The most memory that the controller had, in bytes.
    fn peak(&self) -> usize {
        self.figure("VmHWM:")
    }

    fn figure(&self, name: &str) -> usize {
        let path = format!("/proc/{}/status", self.controller.pid());
        let status = std::fs::read_to_string(path).expect("the controller runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("a figure");
        kib.trim().parse::<usize>().expect("a number") * 1024
    }

    async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop().await;
        self.nodes.stop().await.expect("the nodes end");
        // They go with the control plane; their finalizers would block a deletion.
        std::mem::forget((self.tenant, self.other));
        self.control_plane.stop().await.expect("the control plane ends");
    }
}

/// Gives the rights of the role `edit` on Jobs and pods: all but their status.
async fn give_rights(client: &kube::Client, namespace: &str) {
    let params = PostParams::default();
    let account = serde_json::from_value(json!({"metadata": {"name": "tenant"}}));
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    accounts.create(&params, &account.expect("an account")).await.expect("the account");
    let role = json!({"metadata": {"name": "tenant"}, "rules": [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]});
    let role = serde_json::from_value(role).expect("a role");
    Api::<Role>::namespaced(client.clone(), namespace)
        .create(&params, &role)
        .await
        .expect("a role");
    let binding = json!({"metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}]});
    let binding = serde_json::from_value(binding).expect("a binding");
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    bindings.create(&params, &binding).await.expect("a binding");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_a_tenant_creates_holds_up_another_or_costs_much_memory() {
    let mut stage = Stage::start().await;
    stage.probe().await;
    let before = stage.memory();
    let (mut took, mut stored, mut weight) = (Vec::new(), 0, 0);
    for object in objects::all() {
        match stage.create(&object).await {
            Ok(()) => (stored, weight) = (stored + 1, weight + object.body.len()),
            Err(kube::Error::Api(status)) => {
                let message: String = status.message.chars().take(200).collect();
                println!("{}: the API refuses it: {message}", object.what);
            }
            Err(error) => panic!("{}: {error:.200}", object.what),
        }
        took.push(stage.probe().await);
        let (memory, may) = (stage.memory(), before + weight + weight / 5 + 40 * MIB);
        let [has, limit] = [memory, may].map(|bytes| bytes / MIB);
        let took_s = took.last().map_or(0.0, Duration::as_secs_f64);
        println!("{}: {has} of {limit} MiB, {took_s:.1} s", object.what);
        assert!(memory <= may, "{} takes {has} MiB, {limit} would do", object.what);
    }
    took.sort();
    println!(
        "{stored} objects of {} MiB; a Job alongside took up to {:?}",
        weight / MIB,
        took.last()
    );
    assert!(stored >= 40, "the API takes {stored} of them only");
    assert!(took[took.len() / 2] < TYPICAL_MAX, "Jobs alongside take {took:?}");
    stage.stop().await;
}

/// Suspended Jobs of 1.3 MB, and pods of 15,000 labels: what the controller keeps of them after a
/// restart stays below the limit, others are served, and so is the tenant.
async fn a_tenant_stores(jobs: usize, pods: usize, limit: usize) {
    use futures::StreamExt as _;
    let mut stage = Stage::start().await;
    stage.probe().await;
    let large = (0..jobs).map(objects::large_job);
    let labelled = (0..pods).map(objects::labelled_pod);
    let stored = large.chain(labelled).map(|object| {
        let stage = &stage;
        async move { stage.create(&object).await.expect("the API takes it") }
    });
    // More at once, and etcd takes too long for one of them.
    futures::stream::iter(stored).buffer_unordered(2).collect::<Vec<_>>().await;
    stage.controller.kill_and_restart().await.expect("our controller");
    for _ in 0..3 {
        let took = stage.probe().await;
        let (memory, peak) = (stage.memory() / MIB, stage.peak() / MIB);
        println!("{jobs} Jobs and {pods} pods: {memory} MiB, peak {peak} MiB, {took:?}");
        assert!(memory <= limit, "{memory} MiB, {limit} at most");
        assert!(peak <= limit, "{peak} MiB at times, {limit} at most");
    }
    // The last ones have no place, and their templates are read when they are needed.
    let client = stage.control_plane.admin_client().await.expect("a client");
    let all: Api<Job> = Api::namespaced(client, stage.tenant.name());
    let params = PatchParams::default();
    for number in [0, jobs - 1] {
        let name = objects::large_name(number);
        let resumed = Patch::Merge(json!({"spec": {"suspend": false}}));
        all.patch(&name, &params, &resumed).await.expect("the Job");
        let state = async || JobState::of(&all.get(&name).await.expect("the Job"));
        eventually(&format!("a pod of {name}"), SOON, state, |state| state.active == 1).await;
    }
    let text = get(&address(&stage.controller), "/metrics").await.expect("figures");
    let reads = text.lines().find(|line| line.starts_with("epilogue_job_template_reads_total"));
    println!("{}", reads.unwrap_or_default());
    let log = std::fs::read_to_string(stage.controller.log()).expect("the log");
    assert!(log.contains("templates of Jobs exceed the memory of a namespace"), "it is said");
    stage.stop().await;
}

/// The controller takes about 30 MiB without them, and what is stored is 130 + 20 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_with_large_jobs_and_many_labels_takes_little_memory() {
    Box::pin(a_tenant_stores(100, 60, 130)).await;
}

/// A gigabyte of Jobs and 7,500,000 labels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_a_tenant_with_a_gigabyte_of_jobs_takes_little_memory() {
    Box::pin(a_tenant_stores(800, 500, 400)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_controllers_names_make_neither_series_nor_memory() {
    use futures::StreamExt as _;
    let mut stage = Stage::start().await;
    stage.probe().await;
    let before = stage.memory();
    let calls = (0..CONTROLLERS).map(|number| {
        let managed_by = format!("example.com/controller-{number}");
        let job = job(&format!("of-{number}")).spec("managedBy", managed_by).spec("suspend", true);
        let body = job.raw().to_string().into_bytes();
        let object = Object { what: "a name", resource: "jobs", body };
        let stage = &stage;
        async move { stage.create(&object).await.expect("the API takes it") }
    });
    futures::stream::iter(calls).buffer_unordered(CALLS).collect::<Vec<_>>().await;
    stage.probe().await;
    let grown = stage.memory().saturating_sub(before);
    assert!(grown < CONTROLLERS * 3 * 1024 + 40 * MIB, "{} MiB", grown / MIB);
    let text = get(&address(&stage.controller), "/metrics").await.expect("figures");
    let series = text.lines().filter(|line| line.contains("external_controller")).count();
    assert!((1..10).contains(&series), "{series} series: {text}");
    stage.stop().await;
}

/// Silent connections and endless scrapes do not delay Jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_the_admin_server_takes_nothing_from_jobs() {
    let mut stage = Stage::start().await;
    stage.probe().await;
    let address = address(&stage.controller);
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(&address).await.expect("must connect"));
    }
    let scrapers = (0..8).map(|_| {
        let address = address.clone();
        tokio::spawn(async move {
            loop {
                // It does not matter here whether each one is answered.
                drop(get(&address, "/metrics").await);
            }
        })
    });
    let scrapers: Vec<_> = scrapers.collect();
    let mut took = Vec::new();
    for _ in 0..5 {
        took.push(stage.probe().await);
    }
    let live = async || get(&address, "/livez").await.unwrap_or_default();
    eventually("the server answers alongside", SOON, live, |text| text.contains("200 OK")).await;
    scrapers.iter().for_each(tokio::task::JoinHandle::abort);
    took.sort();
    assert!(took[2] < TYPICAL_MAX, "Jobs alongside take {took:?}");
    stage.stop().await;
}

/// Address of a controller's admin server, from its log. A restart gives it another one.
pub(crate) fn address(controller: &Controller) -> String {
    let log = std::fs::read_to_string(controller.log()).expect("the log");
    let (_, last) = log.rsplit_once("address=").expect("an address");
    last.split_whitespace().next().expect("an address").to_owned()
}

/// The raw answer.
pub(crate) async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
