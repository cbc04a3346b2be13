//! Sets up one case's machine: a control plane of its own, the node, the agent and our controller
//! if the case has them, and the pods. It follows the first pod of each role to its end, and each
//! Job with all of its pods. A simulated node takes what the real one lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{self, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use super::ledger::{JobRow, Ledger};
use super::pods::{self, NAMESPACE, NEVER_RUN, ROLES};
use super::scenario::JobController;
use crate::control_plane::flags::ALL_CONTROLLERS;
use crate::controller::{Controller, Setup};
use crate::nodes::{self, Bind, SimulatedNodes};
use crate::stopwatch::Stopwatch;
use crate::vm::agent::{self, Install};
use crate::vm::{Boot, Kit, KubeletConfig, Node, Seen, Watcher};
use crate::{ControlPlane, Options, observe_costly_until, observe_until};

/// Five times what an emulated machine takes for a dozen pods.
const RUNNING_WITHIN: Duration = Duration::from_mins(6);

/// The node.
const NODE: &str = "vm-1";

/// Shorter than the 20 s after which a silent node counts as lost here.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// A node with its pods.
pub(super) struct Stage {
    pub(super) control_plane: ControlPlane,
    pub(super) node: Node,
    pub(super) watcher: Watcher,
    /// What the Jobs and their pods did since the beginning of the story.
    ledger: Ledger,
    /// Who runs the Jobs.
    jobs_by: JobController,
    controller: Option<Controller>,
    /// Where replacements run. It comes when each first pod has its place on the real node.
    elsewhere: Option<SimulatedNodes>,
    /// When the machine was off for good.
    pub(super) off_at: Option<Timestamp>,
    pub(super) client: kube::Client,
    /// The running pod of each role at the beginning of the story.
    pub(super) originals: BTreeMap<&'static str, String>,
    /// How long each part took since the last reading.
    pub(super) took: Stopwatch,
    has_agent: bool,
}

impl Stage {
    /// Starts everything; returns when the pods of the roles run.
    pub(super) async fn set(
        kit: &Kit,
        kubelet: &KubeletConfig,
        install: Option<(Install, &[&str])>,
        jobs_by: JobController,
    ) -> anyhow::Result<Self> {
        let mut took = Stopwatch::default();
        let options = Options::unique("table")
            .controller_manager(ALL_CONTROLLERS)
            .controller_manager_flag("--node-monitor-grace-period=20s")
            .scheduler();
        let control_plane = ControlPlane::start(options).await?;
        took.lap("control plane");
        let client = control_plane.admin_client().await?;
        let cluster = control_plane.cluster();
        let dir = control_plane.dir();
        if let Some((install, _)) = install {
            agent::prepare(install, kit, dir, NODE).await?;
            took.lap("agent's build");
        }
        let node = Node::start(kit, cluster, dir, NODE, Boot::Snapshot, kubelet).await?;
        eprintln!("its files: {}", node.machine().dir().display());
        took.lap("node");
        if let Some((install, flags)) = install {
            agent::install(install, &node, cluster, flags).await?;
            took.lap("agent");
        }
        let controller = match jobs_by {
            JobController::Upstream => None,
            JobController::Ours => {
                let setup = Setup::debug(&dir.join("controller")).argument("--check-plans");
                // Only matters once the node is removed.
                let setup = setup.argument("--pod-gc-quarantine=1s");
                Some(Controller::start(cluster, &setup).await?)
            }
        };
        let watcher = Watcher::start(client.clone(), NAMESPACE, node.machine().dir()).await?;
        Ok(Self {
            ledger: ledger(&client),
            control_plane,
            node,
            watcher,
            jobs_by,
            controller,
            elsewhere: None,
            off_at: None,
            client,
            originals: BTreeMap::new(),
            took,
            has_agent: install.is_some(),
        })
    }

    /// Creates the pods of all roles, waits until each is in its expected state, and starts the
    /// simulated node.
    pub(super) async fn fill(&mut self) -> anyhow::Result<()> {
        let create = PostParams::default();
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), NAMESPACE);
        for pod in pods::bare(self.node.name()) {
            self.pods().create(&create, &pod.build()).await.context("create a pod")?;
        }
        for job in pods::jobs(self.jobs_by) {
            jobs.create(&create, &job).await.context("create a Job")?;
        }
        sets.create(&create, &pods::daemon_set()).await.context("create the DaemonSet")?;
        for (role, _) in ROLES {
            let seen = self.until(role, RUNNING_WITHIN, |seen| has_begun(role, seen)).await?;
            self.originals.insert(role, seen.pod);
        }
        let options = nodes::Options {
            nodes: 1,
            namespace: Some(NAMESPACE.to_owned()),
            bind: Bind::Never,
            // For the DaemonSet's pod.
            default_script: "hang".to_owned(),
            heartbeat: Some(HEARTBEAT),
            ..nodes::Options::default()
        };
        self.elsewhere = Some(SimulatedNodes::start(self.client.clone(), options).await?);
        Ok(())
    }

    /// Makes room for another story on a running machine: the API has no objects of this one, and
    /// the agent is ready again. Remaining containers end during the next story's start.
    pub(super) async fn clear(&mut self) -> anyhow::Result<()> {
        let (all, now) = (ListParams::default(), DeleteParams::background().grace_period(0));
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), NAMESPACE);
        sets.delete_collection(&now, &all).await.context("delete the DaemonSet")?;
        self.jobs().delete_collection(&now, &all).await.context("delete the Jobs")?;
        self.pods().delete_collection(&now, &all).await.context("delete the pods")?;
        let left = async || {
            let pods = self.pods().list(&all).await.map(|list| list.items);
            pods.map(|pods| pods.into_iter().filter_map(|pod| pod.metadata.name).collect())
        };
        let none = |left: &Result<Vec<String>, _>| left.as_ref().is_ok_and(Vec::is_empty);
        let seen = observe_costly_until(RUNNING_WITHIN, left, none).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("the pods do not go: {last:?}"))?;
        if let Some(elsewhere) = self.elsewhere.take() {
            elsewhere.stop().await?;
        }
        if self.has_agent {
            agent::ready(&self.node).await?;
        }
        self.originals.clear();
        let dir = self.node.machine().dir();
        self.watcher = Watcher::start(self.client.clone(), NAMESPACE, dir).await?;
        self.ledger = ledger(&self.client);
        Ok(())
    }

    /// The API of the roles' pods.
    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The API of the roles' Jobs.
    pub(super) fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The last state of the role's first pod, or of any of its pods before that is known.
    pub(super) fn last(&self, role: &str) -> Option<Seen> {
        let original = self.originals.get(role);
        self.watcher.last().into_iter().find(|seen| match original {
            Some(name) => seen.pod == *name,
            None => is_of(role, &seen.pod),
        })
    }

    /// Waits for a state of the role's pod.
    pub(super) async fn until(
        &self,
        role: &str,
        within: Duration,
        holds: impl Fn(&Seen) -> bool,
    ) -> anyhow::Result<Seen> {
        let observe = async || self.last(role);
        let seen = observe_until(within, observe, |seen| seen.as_ref().is_some_and(&holds)).await;
        match seen {
            Ok(Some(seen)) => Ok(seen),
            Ok(None) => bail!("{role}: there is no such pod"),
            Err(last) => bail!("{role}: not within {within:?}; last seen: {last:?}"),
        }
    }

    /// The node, as the API has it now; `None` if it is removed.
    pub(super) async fn node_object(&self) -> anyhow::Result<Option<v1::Node>> {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        nodes.get_opt(self.node.name()).await.context("read the node")
    }

    /// Removes the node from the API, as a user or an autoscaler does with a machine that is gone.
    pub(super) async fn remove_node(&self) -> anyhow::Result<()> {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let removed = nodes.delete(self.node.name(), &DeleteParams::default()).await;
        removed.map(drop).context("remove the node")
    }

    /// What a Job did so far.
    pub(super) fn job(&self, job: &str) -> Option<JobRow> {
        self.ledger.row(job, self.node.name())
    }

    /// Fails if our controller has ended, was refused a right, or made a plan that does not hold.
    pub(super) fn check_controller(&mut self) -> anyhow::Result<()> {
        let Some(controller) = &mut self.controller else { return Ok(()) };
        controller.check()?;
        let line = controller.never_logged();
        ensure!(line.is_none(), "our controller logged: {}", line.unwrap_or_default());
        Ok(())
    }

    /// Stops everything.
    pub(super) async fn strike(self) -> anyhow::Result<()> {
        let Self { control_plane, node, watcher, ledger, controller, elsewhere, .. } = self;
        drop((watcher, ledger));
        if let Some(elsewhere) = elsewhere {
            elsewhere.stop().await?;
        }
        if let Some(controller) = controller {
            controller.stop().await;
        }
        // Its processes go with it; the API that knew it goes next.
        drop(node);
        control_plane.stop().await?;
        Ok(())
    }
}

fn ledger(client: &kube::Client) -> Ledger {
    let jobs = Api::namespaced(client.clone(), NAMESPACE);
    Ledger::of(jobs, Api::namespaced(client.clone(), NAMESPACE))
}

fn is_of(role: &str, pod: &str) -> bool {
    pod == role || pod.strip_prefix(role).is_some_and(|rest| rest.starts_with('-'))
}

fn has_begun(role: &str, seen: &Seen) -> bool {
    match role {
        "done" => seen.phase == "Succeeded",
        "pull" => seen.phase == "Pending" && seen.container.contains("Pull"),
        _ => {
            debug_assert!(!NEVER_RUN.contains(&role), "{role} does not run");
            seen.phase == "Running" && seen.container == "running"
        }
    }
}
