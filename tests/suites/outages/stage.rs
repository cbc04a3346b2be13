//! Sets up an API of its own with our controller, simulated nodes, and Jobs under way.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use lab::audit::Expected;
use lab::bed::JobBuilder;
use lab::control_plane::Part;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, SimulatedNodes};
use lab::{ControlPlane, Namespace, Options, eventually};

use super::jobs::{Account, jobs, totals};

/// Covers the longest pauses of watches after an outage, on a busy machine.
pub(crate) const LATER: Duration = Duration::from_mins(2);

/// Everything that runs.
pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    pub(crate) controller: Controller,
    nodes: Option<SimulatedNodes>,
    namespace: Namespace,
    client: kube::Client,
}

impl Stage {
    /// Starts everything, our controller with these arguments, and this many Jobs of each kind.
    pub(crate) async fn start(of_each: usize, arguments: &[&str]) -> Self {
        let control_plane = ControlPlane::start(Options::unique("outages")).await;
        let control_plane = control_plane.expect("a control plane");
        let cluster = control_plane.cluster();
        let client = control_plane.admin_client().await.expect("a client");
        let namespace = Namespace::create(cluster).await.expect("a namespace");
        let setup = setup(control_plane.dir(), &namespace, arguments);
        let controller = Controller::start(cluster, &setup).await.expect("our controller");
        let mut stage = Self { control_plane, controller, nodes: None, namespace, client };
        stage.start_nodes().await;
        stage.create_jobs(of_each).await;
        stage
    }

    /// Starts a second controller with these arguments.
    pub(crate) async fn start_standby(&self, arguments: &[&str]) -> Controller {
        let dir = self.control_plane.dir().join("standby");
        let setup = setup(&dir, &self.namespace, arguments);
        let controller = Controller::start(self.control_plane.cluster(), &setup).await;
        controller.expect("our second controller")
    }

    /// Creates this many Jobs of each kind.
    pub(crate) async fn create_jobs(&self, of_each: usize) {
        for job in jobs(of_each) {
            self.create(job).await;
        }
    }

    /// Creates a Job.
    pub(crate) async fn create(&self, job: JobBuilder) {
        let created = self.jobs().create(&PostParams::default(), &job.build()).await;
        created.expect("the Job");
    }

    /// Stops everything.
    pub(crate) async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop_after_outage().await;
        self.namespace.finish().await.expect("the namespace goes");
        self.nodes.expect("they run").stop().await.expect("the nodes end");
        self.control_plane.stop().await.expect("the control plane ends");
    }

    /// What our controller has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.controller.log()).expect("the controller's log")
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// Starts the nodes, as kubelets that have just been started: they take in the pods that the
    /// API has.
    pub(crate) async fn start_nodes(&mut self) {
        let options =
            nodes::Options { heartbeat: None, keep_nodes: true, ..nodes::Options::default() };
        let nodes = SimulatedNodes::start(self.client.clone(), options).await.expect("nodes");
        self.nodes = Some(nodes);
    }

    /// Stops the nodes, which forget their pods.
    pub(crate) async fn stop_nodes(&mut self) {
        self.nodes.take().expect("they run").stop().await.expect("the nodes end");
    }

    /// Kills a program of the control plane, and starts it again.
    pub(crate) async fn restart(&mut self, part: Part) {
        self.control_plane.kill(part).await;
        self.control_plane.start_again(part).await.expect("it starts again");
    }

    /// What the API shows of each Job; `None` if it does not answer.
    pub(crate) async fn accounts(&self) -> Option<BTreeMap<String, Account>> {
        let (params, name) = (ListParams::default(), self.namespace.name());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), name);
        let (jobs, pods) = (self.jobs().list(&params).await, pods.list(&params).await);
        Some(Account::of_all(&jobs.ok()?.items, &pods.ok()?.items))
    }

    /// How many pods all Jobs count.
    pub(crate) async fn counted(&self) -> i32 {
        let counted = async || {
            let accounts = self.accounts().await?;
            Some(accounts.values().map(Account::counted).sum::<i32>())
        };
        let counted = eventually("the API answers", LATER, counted, Option::is_some).await;
        counted.expect("what was awaited must be there")
    }

    /// Waits until all Jobs count this many pods.
    pub(crate) async fn until_counted(&self, pods: i32) {
        let what = format!("progress (log: {})", self.controller.log().display());
        eventually(&what, LATER, async || self.counted().await, |counted| *counted >= pods).await;
    }

    /// Whether each Job is Complete or Failed.
    pub(crate) async fn all_are_finished(&self) -> bool {
        let finished = async || {
            let accounts = self.accounts().await?;
            Some(accounts.values().all(Account::is_finished))
        };
        let finished = eventually("the API answers", LATER, finished, Option::is_some).await;
        finished.expect("what was awaited must be there")
    }

    /// Waits until each Job is finished and its status counts each pod once.
    pub(crate) async fn all_are_exact(&self) {
        self.reach(|_, account| account.is_exact()).await;
    }

    /// The same, where each pod has run once.
    pub(crate) async fn all_are_exact_and_as_scripted(&self) {
        self.reach(|name, account| account.is_exact() && account.totals() == totals(name)).await;
    }

    async fn reach(&self, is_right: impl Fn(&str, &Account) -> bool) {
        let wrong = async || {
            let wrong = self.accounts().await?.into_iter();
            let is_wrong = |(name, account): &(String, Account)| {
                !account.is_finished() || !is_right(name, account)
            };
            let stats = self.nodes.as_ref().map(SimulatedNodes::stats);
            Some((wrong.filter(is_wrong).collect::<Vec<_>>(), stats))
        };
        let what = format!("exact counts (log: {})", self.controller.log().display());
        eventually(&what, LATER, wrong, |wrong| {
            wrong.as_ref().is_some_and(|(wrong, _)| wrong.is_empty())
        })
        .await;
    }
}

fn setup(dir: &Path, namespace: &Namespace, arguments: &[&str]) -> Setup {
    let setup = Setup::debug(dir).namespace(namespace.name()).argument("--check-plans");
    let setup = setup.argument("--default-job-pod-failure-backoff=10ms").expected(Expected::Valid);
    arguments.iter().fold(setup, |setup, argument| setup.argument(argument))
}
