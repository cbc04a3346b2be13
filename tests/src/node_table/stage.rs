//! Sets up one case's scene: the node, the agent and our controller if the case has them, and the
//! pods. It follows the first pod of each role to its end, and each Job with all of its pods. A
//! simulated node takes what the real one lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{self, Pod};
use kube::Api;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::case::JobController;
use super::ledger::{JobRow, Ledger};
use super::pods::{self, NEVER_RUN, ROLES};
use crate::control_plane::flags::ALL_CONTROLLERS;
use crate::controller::{Controller, Setup, never_logged};
use crate::nodes::{self, Bind, SimulatedNodes};
use crate::vm::agent::{self, Install};
use crate::vm::release;
use crate::vm::scene::NAMESPACE;
use crate::vm::{Kit, KubeletConfig, Scene, Seen, Setting};
use crate::{Options, observe_costly_until, observe_until};

/// Five times what an emulated machine takes for a dozen pods.
const RUNNING_WITHIN: Duration = Duration::from_mins(6);

/// The node.
const NODE: &str = "vm-1";

/// Shorter than the 20 s after which a silent node counts as lost here.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// A node with its pods.
pub(super) struct Stage {
    pub(super) scene: Scene,
    /// What the Jobs and their pods did since the beginning of the story.
    ledger: Ledger,
    /// Who runs the Jobs.
    jobs_by: JobController,
    controller: Option<Controller>,
    /// Where replacements run. It comes when each first pod has its place on the real node.
    elsewhere: Option<SimulatedNodes>,
    /// When the machine was off for good.
    pub(super) off_at: Option<Timestamp>,
    /// When the machine began its last boot, by its own clock, if that was a part of the story.
    pub(super) booted_at: Option<Timestamp>,
    /// The running pod of each role at the beginning of the story.
    pub(super) originals: BTreeMap<&'static str, String>,
    has_agent: bool,
    /// Whether the chart installed the agent and the controller of the release.
    is_released: bool,
}

impl Stage {
    /// Starts everything; returns when the pods of the roles run.
    pub(super) async fn set(
        kit: &Kit,
        kubelet: &KubeletConfig,
        install: Option<(Install, &[&str])>,
        commands: Vec<String>,
        jobs_by: JobController,
    ) -> anyhow::Result<Self> {
        let options = Options::unique("table")
            .kubernetes(kit.platform.kubernetes)
            .controller_manager(ALL_CONTROLLERS)
            .controller_manager_flag("--node-monitor-grace-period=20s")
            .scheduler();
        let agent = install
            .map(|(install, flags)| (install, flags.iter().map(ToString::to_string).collect()));
        let setting = Setting { options, node: NODE, kubelet, agent, commands };
        let scene = Scene::set(kit, setting).await?;
        let is_released = install.is_some_and(|(install, _)| install == Install::Chart);
        let (cluster, dir) = (scene.control_plane.cluster(), scene.control_plane.dir());
        let setup = Setup::debug(&dir.join("controller"));
        let controller = match jobs_by {
            JobController::Upstream => None,
            JobController::Ours if is_released => {
                Some(Controller::start_installed(cluster, &release::replica(setup)).await?)
            }
            JobController::Ours => {
                let setup = setup.argument("--check-plans");
                // Only matters once the node is removed.
                let setup = setup.argument("--pod-gc-quarantine=1s");
                Some(Controller::start(cluster, &setup).await?)
            }
        };
        Ok(Self {
            ledger: ledger(&scene),
            scene,
            jobs_by,
            controller,
            elsewhere: None,
            off_at: None,
            booted_at: None,
            originals: BTreeMap::new(),
            has_agent: install.is_some(),
            is_released,
        })
    }

    /// Creates the pods of all roles, waits until each is in its expected state, and starts the
    /// simulated node.
    pub(super) async fn fill(&mut self) -> anyhow::Result<()> {
        let create = PostParams::default();
        let (jobs, sets) = (self.jobs(), self.scene.api::<DaemonSet>());
        for pod in pods::bare(self.scene.node.name()) {
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
            // Our own programs would not run there.
            reserved: self.is_released,
            ..nodes::Options::default()
        };
        self.elsewhere = Some(SimulatedNodes::start(self.scene.client.clone(), options).await?);
        Ok(())
    }

    /// Makes room for another story on a running machine: the API has no objects of this one, and
    /// the agent is ready again. Remaining containers end during the next story's start.
    pub(super) async fn clear(&mut self) -> anyhow::Result<()> {
        let (all, now) = (ListParams::default(), DeleteParams::background().grace_period(0));
        self.set_unschedulable(false).await?;
        let sets = self.scene.api::<DaemonSet>();
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
            agent::ready(&self.scene.node).await?;
        }
        self.originals.clear();
        self.booted_at = None;
        self.scene.watch_anew().await?;
        self.ledger = ledger(&self.scene);
        Ok(())
    }

    /// The API of the roles' pods.
    pub(super) fn pods(&self) -> Api<Pod> {
        self.scene.api()
    }

    /// The API of the roles' Jobs.
    pub(super) fn jobs(&self) -> Api<Job> {
        self.scene.api()
    }

    /// The last state of the role's first pod, or of any of its pods before that is known.
    pub(super) fn last(&self, role: &str) -> Option<Seen> {
        let original = self.originals.get(role);
        self.scene.watcher.last().into_iter().find(|seen| match original {
            Some(name) => seen.pod == *name,
            None => is_of(role, &seen.pod),
        })
    }

    /// How many pods the role has had on the node.
    pub(super) fn pods_of(&self, role: &str) -> usize {
        let node = self.scene.node.name();
        let seen = self.scene.watcher.last().into_iter();
        seen.filter(|seen| is_of(role, &seen.pod) && seen.node == node).count()
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
        let nodes: Api<v1::Node> = Api::all(self.scene.client.clone());
        nodes.get_opt(self.scene.node.name()).await.context("read the node")
    }

    /// Removes the node from the API, as a user or an autoscaler does with a machine that is gone.
    pub(super) async fn remove_node(&self) -> anyhow::Result<()> {
        let nodes: Api<v1::Node> = Api::all(self.scene.client.clone());
        let removed = nodes.delete(self.scene.node.name(), &DeleteParams::default()).await;
        removed.map(drop).context("remove the node")
    }

    /// Cordons the node and evicts its pods, as `kubectl drain --ignore-daemonsets` does.
    pub(super) async fn drain(&self) -> anyhow::Result<()> {
        self.set_unschedulable(true).await?;
        let pods = self.pods().list(&ListParams::default()).await.context("list the pods")?;
        let names = pods.items.into_iter().filter_map(|pod| pod.metadata.name);
        for name in names.filter(|name| !is_of("daemon", name)) {
            let evicted = self.pods().evict(&name, &EvictParams::default()).await;
            evicted.with_context(|| format!("evict {name}"))?;
        }
        Ok(())
    }

    async fn set_unschedulable(&self, is_so: bool) -> anyhow::Result<()> {
        let nodes: Api<v1::Node> = Api::all(self.scene.client.clone());
        let spec = Patch::Merge(json!({"spec": {"unschedulable": is_so}}));
        let patched = nodes.patch(self.scene.node.name(), &PatchParams::default(), &spec).await;
        patched.map(drop).context("cordon the node")
    }

    /// What a Job did so far.
    pub(super) fn job(&self, job: &str) -> Option<JobRow> {
        self.ledger.row(job, self.scene.node.name())
    }

    /// Fails if our controller has ended, was refused a right, or made a plan that does not hold.
    pub(super) async fn check_controller(&mut self) -> anyhow::Result<()> {
        let mut line = None;
        if let Some(controller) = &mut self.controller {
            controller.check()?;
            line = controller.never_logged();
        }
        if self.is_released && self.off_at.is_none() {
            let logs = release::controller_logs(&self.scene.node).await?;
            line = line.or(never_logged(&logs).map(str::to_owned));
        }
        ensure!(line.is_none(), "our controller logged: {}", line.unwrap_or_default());
        Ok(())
    }

    /// Asks the chart's release whether it works, as a user does; returns what Helm prints.
    pub(super) async fn test_release(&self) -> anyhow::Result<String> {
        Ok(release::test(self.scene.control_plane.cluster()).await?)
    }

    /// The names of the release's objects that the API has.
    pub(super) async fn objects_of_release(&self) -> anyhow::Result<Vec<String>> {
        Ok(release::objects(self.scene.control_plane.cluster()).await?)
    }

    /// Removes the chart's release, as a user does; returns what Helm prints.
    pub(super) async fn uninstall(&mut self) -> anyhow::Result<String> {
        // The replica elsewhere is not Helm's.
        if let Some(replica) = self.controller.take() {
            replica.stop().await;
        }
        let cluster = self.scene.control_plane.cluster();
        Ok(release::uninstall(&self.scene.node, cluster).await?)
    }

    /// Stops everything.
    pub(super) async fn strike(self) -> anyhow::Result<()> {
        let Self { scene, ledger, controller, elsewhere, .. } = self;
        drop(ledger);
        if let Some(elsewhere) = elsewhere {
            elsewhere.stop().await?;
        }
        if let Some(controller) = controller {
            controller.stop().await;
        }
        scene.strike().await
    }
}

fn ledger(scene: &Scene) -> Ledger {
    Ledger::of(scene.api(), scene.api())
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
