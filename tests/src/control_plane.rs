//! Runs a real Kubernetes API: etcd, kube-apiserver and, if requested, kube-controller-manager and
//! kube-scheduler. Starts them in order, stops them in reverse.

pub mod flags;
mod outage;
mod ports;
mod ready;

pub use outage::Part;
pub(crate) use ports::Reserved;
pub(crate) use ready::default_service_account;

use std::path::Path;
use std::time::Duration;

use futures::future::select_all;

use crate::audit;
use crate::binary::GoProgram;
use crate::cluster::Cluster;
use crate::error::LabError;
use crate::kubeconfig;
use crate::kubernetes::Version;
use crate::paths::LabDir;
use crate::pki::{self, Authority};
use crate::process::{Process, ProcessRecord, Program};
use crate::run_dir::{self, Phase, RunDir, State};

use flags::{Apart, Layout};

/// Time for a program to exit by itself before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// A port may be taken between our choice and the server's bind; then everything starts again.
const START_TRIES_MAX: usize = 3;

/// How a lab gets its name, which is also that of its directory.
#[derive(Clone, Debug)]
pub enum Name {
    /// This name; an error if a lab of that name runs.
    Exactly(String),
    /// This name, or with the suffix -2, -3, …
    FirstFree(String),
    /// This name with a random suffix, for tests.
    Unique(String),
}

/// The components to start.
#[derive(Clone, Debug)]
pub struct Options {
    labs: LabDir,
    name: Name,
    version: Version,
    controllers: Option<String>,
    scheduler: bool,
    audit: bool,
    api_server_flags: Vec<String>,
    controller_manager_flags: Vec<String>,
    scheduler_flags: Vec<String>,
    apart: Option<String>,
}

impl Options {
    /// etcd and kube-apiserver, nothing else, of the version that the suites run on.
    pub fn new(name: Name) -> Self {
        Self {
            labs: LabDir::of_workspace(),
            name,
            version: Version::of_tests(),
            controllers: None,
            scheduler: false,
            audit: true,
            api_server_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            apart: None,
        }
    }

    /// For a test: with a name of its own.
    pub fn unique(prefix: &str) -> Self {
        Self::new(Name::Unique(prefix.to_owned()))
    }

    /// Of this version of Kubernetes.
    #[must_use]
    pub fn kubernetes(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// With kube-controller-manager and these of its controllers, in the syntax of its flag
    /// `--controllers`: [`flags::ALL_CONTROLLERS`], `*,-job-controller`, or names.
    #[must_use]
    pub fn controller_manager(mut self, controllers: &str) -> Self {
        self.controllers = Some(controllers.to_owned());
        self
    }

    /// With kube-scheduler.
    #[must_use]
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// Without the audit of our programs' requests ([`crate::audit`]), for what is measured.
    #[must_use]
    pub fn without_audit(mut self) -> Self {
        self.audit = false;
        self
    }

    /// Adds a flag of kube-apiserver; it overrides the lab's own.
    #[must_use]
    pub fn api_server_flag(mut self, flag: &str) -> Self {
        self.api_server_flags.push(flag.to_owned());
        self
    }

    /// Adds a flag of kube-controller-manager; it overrides the lab's own.
    #[must_use]
    pub fn controller_manager_flag(mut self, flag: &str) -> Self {
        self.controller_manager_flags.push(flag.to_owned());
        self
    }

    /// With Workloads and PodGroups, and `spec.scheduling` of Jobs, which are off by default. Needs
    /// [`GangScheduling`](crate::kubernetes::Feature::GangScheduling).
    #[must_use]
    pub fn gang_scheduling(self) -> Self {
        let with_scheduler = Self { scheduler_flags: vec![flags::GANG_GATES.to_owned()], ..self };
        with_scheduler
            .controller_manager_flag(flags::GANG_GATES)
            .api_server_flag(flags::GANG_GATES)
            .api_server_flag(flags::GANG_APIS)
    }

    /// Stores this resource (`/pods`, `batch/jobs`) in an etcd of its own, which begins with the
    /// first revision.
    #[must_use]
    pub fn apart(mut self, resource: &str) -> Self {
        self.apart = Some(resource.to_owned());
        self
    }

    fn claim(&self) -> Result<RunDir, LabError> {
        match &self.name {
            Name::Exactly(name) => RunDir::claim(&self.labs, name),
            Name::Unique(prefix) => {
                let suffix = rand::random::<u32>();
                RunDir::claim(&self.labs, &format!("{prefix}-{suffix:08x}"))
            }
            Name::FirstFree(stem) => {
                let mut claimed = RunDir::claim(&self.labs, stem);
                let mut number = 2;
                while matches!(claimed, Err(LabError::NameTaken(_))) {
                    claimed = RunDir::claim(&self.labs, &format!("{stem}-{number}"));
                    number += 1;
                }
                claimed
            }
        }
    }
}

/// A running control plane. Dropped without [`ControlPlane::stop`], its processes are killed.
#[derive(Debug)]
pub struct ControlPlane {
    cluster: Cluster,
    options: Options,
    layout: Layout,
    run_dir: RunDir,
    /// In the order of their start.
    processes: Vec<Process>,
}

impl ControlPlane {
    /// Starts everything and returns when the API is ready, after 2 to 4 seconds.
    ///
    /// The programs must have been built: `cargo lab prepare`, or [`crate::binary::ensure`].
    pub async fn start(options: Options) -> Result<Self, LabError> {
        run_dir::prune(&options.labs);
        let run_dir = options.claim()?;
        let mut tries = 1;
        let (layout, processes) = loop {
            match start_processes(&options, &run_dir).await {
                Err(LabError::Ended { log_tail, .. })
                    if tries < START_TRIES_MAX && log_tail.contains("address already in use") =>
                {
                    tries += 1;
                }
                done => break done?,
            }
        };
        let cluster = Cluster::new(layout.kubeconfig("admin"), Some(layout.dir.clone()));
        let control_plane = Self { cluster, options, layout, run_dir, processes };
        default_service_account(&control_plane.admin_client().await?, "default").await?;
        control_plane.write_state(Phase::Ready)?;
        Ok(control_plane)
    }

    /// Starts another kube-controller-manager with only these controllers, as an administrator
    /// gives them back to it.
    pub fn start_controllers(&mut self, controllers: &str) -> Result<(), LabError> {
        let flags = flags::controller_manager(&self.layout, controllers, &[]);
        let log = self.layout.log("kube-controller-manager-later");
        let path = self.options.labs.go_program(GoProgram::ControllerManager, self.options.version);
        let program = Program::new("kube-controller-manager", &path, flags, &log);
        self.processes.push(Process::spawn_control_plane(&program)?);
        Ok(())
    }

    /// Kills kube-controller-manager, as a machine does that loses power.
    pub async fn kill_controllers(&mut self) {
        let name = "kube-controller-manager";
        let is_it = |process: &Process| process.record().name == name;
        while let Some(at) = self.processes.iter().position(is_it) {
            self.processes.remove(at).kill().await;
        }
    }

    /// Access to it with any identity.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A client that may do everything.
    pub async fn admin_client(&self) -> Result<kube::Client, LabError> {
        self.cluster.admin_client().await
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig_path(&self) -> &Path {
        self.cluster.kubeconfig_path()
    }

    /// A client with the identity of one service account; see [`Cluster::service_account_client`].
    pub async fn service_account_client(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<kube::Client, LabError> {
        self.cluster.service_account_client(namespace, name).await
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        self.run_dir.name()
    }

    /// The lab's state directory: logs, pki, kubeconfigs, state.json.
    pub fn dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// The API's URL.
    pub fn server(&self) -> String {
        self.layout.server()
    }

    /// Its processes, in the order of their start.
    pub fn processes(&self) -> impl Iterator<Item = &ProcessRecord> {
        self.processes.iter().map(Process::record)
    }

    /// Waits until one of its processes ends unasked, and names it. Cancel safe.
    pub async fn ended(&mut self) -> LabError {
        select_all(self.processes.iter_mut().map(|process| Box::pin(process.ended()))).await.0
    }

    /// Stops everything: controllers, then the API server, etcd last (the API server would hang
    /// without it). Returns when all processes are gone. Logs stay, data are removed.
    pub async fn stop(mut self) -> Result<(), LabError> {
        self.end_processes().await;
        let apart = self.layout.etcd_apart().map(|apart| apart.etcd_data());
        for data in [self.layout.etcd_data()].into_iter().chain(apart) {
            std::fs::remove_dir_all(&data).map_err(LabError::file("remove", data))?;
        }
        self.write_state(Phase::Stopped)
    }

    /// Stops the processes; the directory stays, and stays locked.
    pub async fn end_processes(&mut self) {
        while let Some(process) = self.processes.pop() {
            process.stop(STOP_GRACE).await;
        }
    }

    fn write_state(&self, phase: Phase) -> Result<(), LabError> {
        let processes = self.processes.iter().map(|process| process.record().clone()).collect();
        write_state(&self.run_dir, &self.layout, phase, processes)
    }
}

async fn start_processes(
    options: &Options,
    run_dir: &RunDir,
) -> Result<(Layout, Vec<Process>), LabError> {
    let ports = [Reserved::any()?, Reserved::any()?, Reserved::any()?];
    let apart_ports = [Reserved::any()?, Reserved::any()?];
    let apart = |resource: &String| Apart {
        resource: resource.clone(),
        client_port: apart_ports[0].port(),
        peer_port: apart_ports[1].port(),
    };
    let layout = Layout {
        dir: run_dir.path().to_owned(),
        etcd_client_port: ports[0].port(),
        etcd_peer_port: ports[1].port(),
        api_port: ports[2].port(),
        apart: options.apart.as_ref().map(apart),
    };
    run_dir.subdirectory("logs")?;
    write_identities(&layout, &run_dir.subdirectory("pki")?)?;
    write_state(run_dir, &layout, Phase::Starting, Vec::new())?;
    drop((ports, apart_ports));

    let start = |program, flags| spawn_program(options, &layout, program, flags);
    let mut processes = vec![spawn(options, &layout, Part::Etcd)?];
    ready::listens(&mut processes[0], layout.etcd_client_port).await?;
    if let Some(apart) = layout.etcd_apart() {
        let mut etcd = spawn_etcd_apart(options, &layout, &apart)?;
        ready::listens(&mut etcd, apart.etcd_client_port).await?;
        processes.push(etcd);
    }
    if options.audit {
        let policy = layout.audit_policy();
        std::fs::write(&policy, audit::policy()).map_err(LabError::file("write", &policy))?;
    }
    let mut api_server = spawn(options, &layout, Part::ApiServer)?;
    ready::api_answers(&mut api_server, &layout).await?;
    processes.push(api_server);
    if let Some(controllers) = &options.controllers {
        let extra = &options.controller_manager_flags;
        let flags = flags::controller_manager(&layout, controllers, extra);
        processes.push(start(GoProgram::ControllerManager, flags)?);
    }
    if options.scheduler {
        let flags = flags::scheduler(&layout, &options.scheduler_flags);
        processes.push(start(GoProgram::Scheduler, flags)?);
    }
    Ok((layout, processes))
}

/// Starts etcd or kube-apiserver.
fn spawn(options: &Options, layout: &Layout, part: Part) -> Result<Process, LabError> {
    let flags = match part {
        Part::Etcd => flags::etcd(layout),
        Part::ApiServer => {
            let mut flags = flags::api_server(layout, &options.api_server_flags);
            if options.audit {
                flags.extend(flags::audit(layout));
            }
            flags
        }
    };
    spawn_program(options, layout, GoProgram::ControlPlane, flags)
}

/// Starts the etcd of one resource.
fn spawn_etcd_apart(
    options: &Options,
    layout: &Layout,
    apart: &Layout,
) -> Result<Process, LabError> {
    let (name, log) = ("etcd-apart", layout.log("etcd-apart"));
    std::fs::create_dir_all(&apart.dir).map_err(LabError::file("create", &apart.dir))?;
    let path = options.labs.go_program(GoProgram::ControlPlane, options.version);
    Process::spawn_control_plane(&Program::new(name, &path, flags::etcd(apart), &log))
}

fn spawn_program(
    options: &Options,
    layout: &Layout,
    program: GoProgram,
    flags: Vec<String>,
) -> Result<Process, LabError> {
    let (name, path) = (flags[0].clone(), options.labs.go_program(program, options.version));
    Process::spawn_control_plane(&Program::new(&name, &path, flags, &layout.log(&name)))
}

fn write_identities(layout: &Layout, pki_dir: &Path) -> Result<(), LabError> {
    let authority = Authority::create(pki_dir)?;
    let api_server = authority.api_server()?;
    pki::write_secret(&layout.pki("apiserver.crt"), &api_server.certificate)?;
    pki::write_secret(&layout.pki("apiserver.key"), &api_server.key)?;
    let (private, public) = pki::service_account_key()?;
    pki::write_secret(&layout.pki("sa.key"), &private)?;
    pki::write_secret(&layout.pki("sa.pub"), &public)?;
    let clients = [
        ("admin", "admin", Some("system:masters")),
        ("kube-controller-manager", "system:kube-controller-manager", None),
        ("kube-scheduler", "system:kube-scheduler", None),
    ];
    for (file, user, group) in clients {
        let identity = authority.client(user, group)?;
        let text = kubeconfig::render(&layout.server(), authority.certificate(), &identity);
        pki::write_secret(&layout.kubeconfig(file), &text)?;
    }
    Ok(())
}

fn write_state(
    run_dir: &RunDir,
    layout: &Layout,
    phase: Phase,
    processes: Vec<ProcessRecord>,
) -> Result<(), LabError> {
    run_dir.write_state(&State {
        name: run_dir.name().to_owned(),
        phase,
        supervisor: ProcessRecord::of("lab", std::process::id()),
        server: layout.server(),
        kubeconfig: layout.kubeconfig("admin"),
        processes,
    })
}
