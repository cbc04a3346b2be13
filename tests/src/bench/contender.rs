//! Runs the Jobs with one contender: our controller, or upstream's Job controller alone. Starts
//! each on a control plane of its own, with the same simulated nodes, and stops it again.

use std::path::PathBuf;

use serde::Serialize;

use crate::controller::{Controller, Setup};
use crate::nodes::{self, SimulatedNodes};
use crate::{ControlPlane, LabError, Options};

const REFERENCE: &str = "kube-controller-manager";
const MANAGED_BY: &str = "epilogue.dev/job-controller";
const NODES: usize = 10;

/// One column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Contender {
    /// Ours, which has no limit of its own.
    Ours,
    /// Upstream without its client's rate limit, so that the machine limits both alike.
    Reference,
    /// Upstream with its defaults, 20 requests a second and bursts of 30.
    Throttled,
}

impl Contender {
    /// The title of its column.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Reference => "reference",
            Self::Throttled => "ref, 20 qps",
        }
    }

    /// The `managedBy` of its Jobs.
    pub(super) fn managed_by(self) -> Option<&'static str> {
        (self == Self::Ours).then_some(MANAGED_BY)
    }

    /// The flags that limit its requests to so many a second; without a number, its own limit.
    fn limits(self, rate: Option<u32>) -> Vec<String> {
        let flags = |qps: u32, burst: u32| {
            vec![format!("--kube-api-qps={qps}"), format!("--kube-api-burst={burst}")]
        };
        match (self, rate) {
            (Self::Ours, None) => Vec::new(),
            (Self::Reference, None) => flags(5000, 5000),
            (Self::Throttled, _) => flags(20, 30),
            (Self::Ours | Self::Reference, Some(rate)) => flags(rate, rate),
        }
    }

    fn options(self, rate: Option<u32>) -> Options {
        let options = Options::unique("bench").without_audit();
        if self == Self::Ours {
            return options;
        }
        let limits = self.limits(rate);
        limits.iter().fold(options.controller_manager("job-controller"), |options, limit| {
            options.controller_manager_flag(limit)
        })
    }
}

/// Which statuses of a pod the nodes write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// One status per pod, its end, so that the nodes use as little of the machine as possible.
    EndOnly,
    /// Also Running, as a kubelet would.
    WithRunning,
}

/// A contender at work, with all that it needs.
pub(super) struct Bed {
    pub(super) control_plane: ControlPlane,
    pub(super) nodes: SimulatedNodes,
    /// Ours; upstream's is a process of the control plane.
    controller: Option<Controller>,
}

impl Bed {
    pub(super) async fn start(
        contender: Contender,
        binary: PathBuf,
        life: Life,
        rate: Option<u32>,
    ) -> anyhow::Result<Self> {
        let control_plane = ControlPlane::start(contender.options(rate)).await?;
        let controller = if contender == Contender::Ours {
            let dir = control_plane.dir().join("controller");
            let setup = Setup { binary, arguments: contender.limits(rate), ..Setup::debug(&dir) };
            let setup = setup.argument("--metrics-bind-address=127.0.0.1:0");
            Some(Controller::start(control_plane.cluster(), &setup).await?)
        } else {
            None
        };
        let options = nodes::Options {
            nodes: NODES,
            skip_running: life == Life::EndOnly,
            heartbeat: None,
            keep_nodes: true,
            ..nodes::Options::default()
        };
        let nodes = SimulatedNodes::start(control_plane.admin_client().await?, options).await?;
        Ok(Self { control_plane, nodes, controller })
    }

    /// The controller's pid.
    pub(super) fn controller_pid(&self) -> u32 {
        self.controller.as_ref().map_or_else(|| self.pid_of(REFERENCE), Controller::pid)
    }

    /// The API server's pid.
    pub(super) fn api_server_pid(&self) -> u32 {
        self.pid_of("kube-apiserver")
    }

    /// The pids of all processes of the bench, including itself.
    pub(super) fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> =
            self.control_plane.processes().map(|process| process.pid).collect();
        pids.extend(self.controller.as_ref().map(Controller::pid));
        pids.push(std::process::id());
        pids
    }

    /// Kills the controller by SIGKILL and starts it again at once.
    pub(super) async fn restart(&mut self) -> Result<(), LabError> {
        if let Some(controller) = &mut self.controller {
            return controller.kill_and_restart().await;
        }
        self.control_plane.kill_controllers().await;
        self.control_plane.start_controllers("job-controller")
    }

    /// The metrics of our controller; `None` for upstream's.
    pub(super) async fn metrics(&self) -> anyhow::Result<Option<String>> {
        let Some(controller) = &self.controller else { return Ok(None) };
        Ok(Some(controller.metrics().await?))
    }

    /// Fails if the controller has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        self.controller.as_mut().map_or(Ok(()), Controller::check)
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        // The nodes first: without the API server they would retry for long.
        let nodes = self.nodes.stop().await;
        if let Some(controller) = self.controller {
            controller.stop().await;
        }
        self.control_plane.stop().await?;
        Ok(nodes?)
    }

    fn pid_of(&self, name: &str) -> u32 {
        let mut processes = self.control_plane.processes();
        let process = processes.find(|process| process.name == name);
        process.expect("a control plane must have the processes it was started with").pid
    }
}
