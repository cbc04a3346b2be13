//! Sets up the scene that many runs share. It has upstream's controllers but no scheduler, the
//! agent and our controller if the setting has an agent, the well-behaved pods, and a recorder on
//! the node.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{self, Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use super::kind::Kind;
use super::pods::{self, BYSTANDERS, Bystander, WORKER};
use super::samples::{self, Sample};
use crate::control_plane::flags::ALL_CONTROLLERS;
use crate::controller::{Controller, Setup};
use crate::vm::agent::Install;
use crate::vm::{Kit, KubeletConfig, Scene, Seen, Setting};
use crate::{Options, observe_costly_until, observe_until};

/// Five times what an emulated machine takes for a dozen pods.
const RUNNING_WITHIN: Duration = Duration::from_mins(4);
/// Time for the kubelet to see that a shortage is over, and to clear the leftovers.
const CALM_WITHIN: Duration = Duration::from_mins(3);

const NODE: &str = "vm-1";

/// Path of the record: not on the disk that is filled.
const RECORD: &str = "/run/lab-record";
const SAMPLE_MS: u32 = 100;

/// The node's conditions that report a shortage.
const SHORTAGES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// Free disk when a run begins, in megabytes: more than a run writes.
const DISK_LEFT_MB: u32 = 1000;
/// Processes that the node may have: some thousand more than it needs.
const PROCESSES_MOST: u32 = 1600;

/// A machine without swap that runs short of memory rereads its programs from the disk again and
/// again before the kernel kills. An emulated one stood still for minutes. With this setting the
/// kernel kills when the working set of the last second does not fit.
const GUARD: &str = "echo y > /sys/kernel/mm/lru_gen/enabled && \
                     echo 1000 > /sys/kernel/mm/lru_gen/min_ttl_ms";

/// A node under pressure.
pub(super) struct Stage {
    pub(super) scene: Scene,
    /// Ours, which runs the Jobs if the node has the agent.
    controller: Option<Controller>,
    /// For each role its current pod, and the number of pods so far.
    bystanders: BTreeMap<&'static str, (String, u32)>,
}

impl Stage {
    /// Starts everything but the pods: the agent with these flags, and the kernel's guard against
    /// thrashing, if the setting has them.
    pub(super) async fn set(
        kit: &Kit,
        kubelet: &KubeletConfig,
        install: Option<(Install, Vec<String>)>,
        guard: bool,
    ) -> anyhow::Result<Self> {
        let options = Options::unique("pressure")
            .kubernetes(kit.platform.kubernetes)
            .controller_manager(ALL_CONTROLLERS);
        let mut commands = vec![prepare_command()];
        commands.extend(guard.then(|| GUARD.to_owned()));
        let setting = Setting { options, node: NODE, kubelet, agent: install, commands };
        let has_agent = setting.agent.is_some();
        let scene = Scene::set(kit, setting).await?;
        let mut controller = None;
        if has_agent {
            let (cluster, dir) = (scene.control_plane.cluster(), scene.control_plane.dir());
            let setup = Setup::debug(&dir.join("controller")).argument("--check-plans");
            controller = Some(Controller::start(cluster, &setup).await?);
        }
        Ok(Self { scene, controller, bystanders: BTreeMap::new() })
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        self.scene.api()
    }

    pub(super) fn jobs(&self) -> Api<Job> {
        self.scene.api()
    }

    /// Creates a Job of our controller's if it is there, else of upstream's.
    pub(super) async fn create_job(&self, mut job: Job) -> anyhow::Result<()> {
        if self.controller.is_some() {
            let spec = job.spec.as_mut().context("a Job has a spec")?;
            spec.managed_by = Some("epilogue.dev/job-controller".to_owned());
        }
        self.jobs().create(&PostParams::default(), &job).await.map(drop).context("create a Job")
    }

    /// Fails if our controller has ended, was refused a right, or made a plan that does not hold.
    pub(super) fn check_controller(&mut self) -> anyhow::Result<()> {
        let Some(controller) = &mut self.controller else { return Ok(()) };
        controller.check()?;
        let line = controller.never_logged();
        ensure!(line.is_none(), "our controller logged: {}", line.unwrap_or_default());
        Ok(())
    }

    /// Well-behaved pods that were harmed: ended, marked, or restarted.
    pub(super) fn hurt(&self) -> Vec<(&'static str, Seen)> {
        let last = self.scene.watcher.last();
        let of = |name: &String| last.iter().find(|seen| seen.pod == *name).cloned();
        let hurt =
            |seen: &Seen| seen.is_terminal() || seen.gone || seen.deleting || seen.is_disrupted();
        self.bystanders
            .iter()
            .filter_map(|(role, (name, _))| Some((*role, of(name)?)))
            .filter(|(_, seen)| hurt(seen) || seen.restarts > 0)
            .collect()
    }

    /// Restores the well-behaved pods, and waits until nothing is short any more.
    pub(super) async fn calm(&mut self, kind: Kind) -> anyhow::Result<()> {
        self.no_shortage().await?;
        let hurt: Vec<&str> = self.hurt().into_iter().map(|(role, _)| role).collect();
        let missing: Vec<&'static str> = BYSTANDERS
            .iter()
            .map(|(role, ..)| *role)
            .filter(|role| !self.bystanders.contains_key(role) || hurt.contains(role))
            .collect();
        for role in &missing {
            self.replace(role, kind).await?;
        }
        for role in missing {
            let name = if role == WORKER {
                self.pod_of(&self.bystanders[role].0).await?.0
            } else {
                self.bystanders[role].0.clone()
            };
            self.runs(&name).await?;
            let count = self.bystanders[role].1;
            self.bystanders.insert(role, (name, count));
        }
        Ok(())
    }

    async fn replace(&mut self, role: &'static str, kind: Kind) -> anyhow::Result<()> {
        let (old, count) = self.bystanders.get(role).cloned().unwrap_or_default();
        if role == WORKER && count > 0 {
            self.remove_job(&format!("{role}-{count}")).await?;
        } else if count > 0 {
            // A deleted pod is gone.
            let _ = self.pods().delete(&old, &DeleteParams::default().grace_period(0)).await;
        }
        let name = format!("{role}-{}", count + 1);
        match pods::bystander(role, &name, self.scene.node.name(), kind) {
            Bystander::Bare(pod) => {
                self.pods().create(&PostParams::default(), &pod).await.map(drop)?;
            }
            Bystander::Job(job) => {
                self.create_job(*job).await?;
            }
        }
        self.bystanders.insert(role, (name, count + 1));
        Ok(())
    }

    async fn runs(&self, pod: &str) -> anyhow::Result<()> {
        let observe = async || self.scene.watcher.history(pod).pop();
        let runs = |seen: &Option<Seen>| {
            seen.as_ref().is_some_and(|seen| seen.phase == "Running" && seen.container == "running")
        };
        match observe_until(RUNNING_WITHIN, observe, runs).await {
            Ok(_) => Ok(()),
            Err(last) => bail!("{pod} does not run: {last:?}"),
        }
    }

    /// The first pod of a Job: its name and uid.
    pub(super) async fn pod_of(&self, job: &str) -> anyhow::Result<(String, String)> {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        let observe = async || {
            let pods = self.pods().list(&selector).await.map(|list| list.items);
            let meta = pods.unwrap_or_default().pop()?.metadata;
            Some((meta.name?, meta.uid?))
        };
        let seen = observe_until(RUNNING_WITHIN, observe, Option::is_some).await;
        seen.ok().flatten().with_context(|| format!("Job {job} has no pod"))
    }

    /// Binds a pod, as a scheduler would.
    pub(super) async fn bind(&self, pod: &str) -> anyhow::Result<()> {
        let binding = Binding {
            metadata: ObjectMeta { name: Some(pod.to_owned()), ..ObjectMeta::default() },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(self.scene.node.name().to_owned()),
                ..ObjectReference::default()
            },
        };
        let bound: Result<serde_json::Value, _> =
            self.pods().create_subresource("binding", pod, &PostParams::default(), &binding).await;
        bound.map(drop).context("bind a pod")
    }

    /// Removes a Job and its pods, and waits until they are gone from the API.
    pub(super) async fn remove_job(&self, job: &str) -> anyhow::Result<()> {
        // A Job that is already gone is fine.
        let _ = self.jobs().delete(job, &DeleteParams::background()).await;
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        let observe = async || self.pods().list(&selector).await.map_or(1, |list| list.items.len());
        let seen = observe_costly_until(CALM_WITHIN, observe, |left| *left == 0).await;
        seen.map(drop).map_err(|left| anyhow::anyhow!("Job {job} has still {left} pods"))
    }

    /// Waits until the node's conditions report no shortage.
    pub(super) async fn no_shortage(&self) -> anyhow::Result<()> {
        let nodes: Api<v1::Node> = Api::all(self.scene.client.clone());
        let observe = async || match nodes.get(self.scene.node.name()).await {
            Ok(node) => shortages(&node),
            Err(error) => vec![error.to_string()],
        };
        let seen = observe_costly_until(CALM_WITHIN, observe, Vec::is_empty).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("the node has still {last:?}"))
    }

    /// Clears the record.
    pub(super) async fn begin_record(&self) -> anyhow::Result<()> {
        Ok(self.scene.node.run(&format!("truncate -s 0 {RECORD}")).await.map(drop)?)
    }

    /// The record since then.
    pub(super) async fn record(&self) -> anyhow::Result<Vec<Sample>> {
        Ok(samples::parse(&self.scene.node.run(&format!("cat {RECORD}")).await?))
    }

    /// By how many milliseconds the node's clock is ahead of ours.
    pub(super) async fn clock_ahead(&self) -> anyhow::Result<i64> {
        let before = jiff::Timestamp::now().as_millisecond();
        let theirs: i64 = self.scene.node.run("date +%s%3N").await?.trim().parse()?;
        let after = jiff::Timestamp::now().as_millisecond();
        Ok(theirs - i64::midpoint(before, after))
    }

    /// How often systemd restarted essential services of the node, and what the kernel killed.
    pub(super) async fn losses(&self) -> anyhow::Result<String> {
        let ask = "systemctl show --property=NRestarts --value kubelet containerd epilogue-agent \
                   | paste -sd' '; journalctl -k -o cat --grep='Killed process' --no-pager \
                   | sed -E 's/.*\\((.*)\\).*(oom_score_adj.*)/\\1 \\2/' | sort | uniq -c \
                   | paste -sd' '";
        Ok(self.scene.node.run(ask).await?.replace('\n', " "))
    }

    /// Stops everything.
    pub(super) async fn strike(self) -> anyhow::Result<()> {
        if let Some(controller) = self.controller {
            controller.stop().await;
        }
        self.scene.strike().await
    }
}

/// Starts the recorder, and makes the node small where it is large. Lifts a default of systemd: no
/// service or container may have more than 15 % of the processes.
fn prepare_command() -> String {
    format!(
        "systemd-run --quiet --unit=recorder -p OOMScoreAdjust=-1000 -p Nice=-10 \
         -p StandardOutput=append:{RECORD} /opt/tools/container record {SAMPLE_MS} && \
         mkdir -p /run/systemd/system.conf.d && \
         printf '[Manager]\\nDefaultTasksMax=infinity\\n' > /run/systemd/system.conf.d/lab.conf && \
         systemctl daemon-reexec && sysctl -q kernel.pid_max={PROCESSES_MOST} && \
         left=$(df --output=avail -m /var/lib/kubelet | tail -1) && \
         fallocate -l $((left - {DISK_LEFT_MB}))M /var/ballast"
    )
}

fn shortages(node: &v1::Node) -> Vec<String> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| SHORTAGES.contains(&condition.type_.as_str()))
        .filter(|condition| condition.status == "True")
        .map(|condition| condition.type_.clone())
        .collect()
}
