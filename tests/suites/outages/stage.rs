//! Sets up an API of its own with our controller, simulated nodes, and Jobs under way.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::config::Kubeconfig;
use lab::audit::Expected;
use lab::bed::JobBuilder;
use lab::control_plane::Part;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, SimulatedNodes};
use lab::paths::program;
use lab::{ControlPlane, Namespace, Options, eventually, install, kubeconfig};

use super::jobs::{Account, jobs, totals};

/// Covers the longest pauses of watches after an outage, on a busy machine.
pub(crate) const LATER: Duration = Duration::from_mins(2);

/// An API of its own, and a namespace in it.
pub(crate) struct Ground {
    pub(crate) control_plane: ControlPlane,
    namespace: Namespace,
    client: kube::Client,
    expected: Expected,
}

/// How often a wait for progress may be repeated.
const ROUNDS_MAX: usize = 200;

/// Everything that runs.
pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    pub(crate) controller: Controller,
    nodes: Option<SimulatedNodes>,
    namespace: Namespace,
    client: kube::Client,
    /// How many Jobs of each kind there are.
    of_each: usize,
}

impl Ground {
    pub(crate) async fn lay() -> Self {
        Self::lay_on(Options::unique("outages")).await
    }

    /// The same on such a control plane.
    pub(crate) async fn lay_on(options: Options) -> Self {
        let control_plane = ControlPlane::start(options).await;
        let control_plane = control_plane.expect("a control plane");
        let client = control_plane.admin_client().await.expect("a client");
        install::apply_rights(&client).await.expect("the rights");
        let namespace = Namespace::create(control_plane.cluster()).await.expect("a namespace");
        Self { control_plane, namespace, client, expected: Expected::Valid }
    }

    /// From now on, the API refuses our controller nothing.
    pub(crate) fn accepted(mut self) -> Self {
        self.expected = Expected::Accepted;
        self
    }

    /// A token of our controller; if bound to a Secret of its namespace, it is valid while that
    /// exists.
    pub(crate) async fn controller_token(&self, secret: Option<&str>) -> String {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), install::NAMESPACE);
        let mut bound = None;
        if let Some(name) = secret {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, ..Secret::default() };
            let secret = secrets.create(&PostParams::default(), &secret).await.expect("a Secret");
            bound = Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: secret.metadata.name,
                uid: secret.metadata.uid,
            });
        }
        let cluster = self.control_plane.cluster();
        let token = cluster.bound_token(install::NAMESPACE, install::CONTROLLER, bound).await;
        token.expect("a token")
    }

    /// A kubeconfig for all API servers of this lab, without an identity.
    pub(crate) fn kubeconfig(&self) -> Kubeconfig {
        let path = self.control_plane.kubeconfig_path();
        kubeconfig::without_identity(kubeconfig::read(path).expect("a kubeconfig"))
    }

    /// Writes a kubeconfig for our controller, and returns the flag that names it.
    pub(crate) fn write_kubeconfig(&self, content: &Kubeconfig) -> String {
        let path = self.control_plane.dir().join("own.kubeconfig");
        kubeconfig::write(&path, content).expect("a kubeconfig");
        format!("--kubeconfig={}", path.display())
    }

    /// Starts our controller with these arguments, and this many Jobs of each kind.
    pub(crate) async fn stage(self, of_each: usize, arguments: &[&str]) -> Stage {
        let Self { control_plane, namespace, client, expected } = self;
        let setup = setup(control_plane.dir(), &namespace, arguments).expected(expected);
        let controller = Controller::start(control_plane.cluster(), &setup).await;
        let controller = controller.expect("our controller");
        let mut stage =
            Stage { control_plane, controller, nodes: None, namespace, client, of_each: 0 };
        stage.start_nodes().await;
        stage.create_jobs(of_each).await;
        stage
    }
}

impl Stage {
    /// Starts everything, our controller with these arguments, and this many Jobs of each kind.
    pub(crate) async fn start(of_each: usize, arguments: &[&str]) -> Self {
        Ground::lay().await.stage(of_each, arguments).await
    }

    /// Starts a second controller with these arguments.
    pub(crate) async fn start_standby(&self, arguments: &[&str]) -> Controller {
        self.start_alongside("standby", &program("epilogue-controller"), arguments).await
    }

    /// Starts another controller of this name, which may be of another version.
    pub(crate) async fn start_alongside(
        &self,
        name: &str,
        binary: &Path,
        arguments: &[&str],
    ) -> Controller {
        let mut setup = setup(&self.control_plane.dir().join(name), &self.namespace, arguments);
        setup.binary = binary.to_owned();
        let controller = Controller::start(self.control_plane.cluster(), &setup).await;
        controller.expect("another controller")
    }

    /// Creates this many more Jobs of each kind.
    pub(crate) async fn create_jobs(&mut self, of_each: usize) {
        let numbers = self.of_each..self.of_each + of_each;
        self.of_each = numbers.end;
        for job in jobs(numbers) {
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

    /// The pods of the Jobs.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace.name())
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
        let params = ListParams::default();
        let (jobs, pods) = (self.jobs().list(&params).await, self.pods().list(&params).await);
        Some(Account::of_all(&jobs.ok()?.items, &pods.ok()?.items))
    }

    /// Waits until this Job counts so many pods that succeeded.
    pub(crate) async fn succeeded(&self, job: &str, pods: i32, within: Duration) {
        let what = format!("{pods} of {job} (log: {})", self.controller.log().display());
        let succeeded = async || {
            let accounts = self.accounts().await?;
            accounts.get(job).map(|account| account.totals().0)
        };
        eventually(&what, within, succeeded, |succeeded| *succeeded >= Some(pods)).await;
    }

    /// How many pods all Jobs count.
    async fn counted(&self) -> i32 {
        let counted = async || {
            let accounts = self.accounts().await?;
            Some(accounts.values().map(Account::counted).sum::<i32>())
        };
        let counted = eventually("the API answers", LATER, counted, Option::is_some).await;
        counted.expect("what was awaited must be there")
    }

    /// Waits until the Jobs count so many more pods, and some Job is not finished. A busy machine may
    /// show this too late, when all Jobs are finished: then more are created.
    pub(crate) async fn progress(&mut self, pods: i32) {
        let wanted = self.counted().await + pods;
        let what = format!("progress amid Jobs (log: {})", self.controller.log().display());
        for _ in 0..10 {
            let seen = async || {
                let accounts = self.accounts().await?;
                let counted: i32 = accounts.values().map(Account::counted).sum();
                Some((counted >= wanted, accounts.values().all(Account::is_finished)))
            };
            let has_news = |seen: &Option<_>| seen.is_some_and(|(reached, ended)| reached || ended);
            let seen = eventually(&what, LATER, seen, has_news).await;
            if seen == Some((true, false)) {
                return;
            }
            self.create_jobs(6).await;
        }
        panic!("all Jobs were finished each time");
    }

    /// The same again and again, until this holds.
    pub(crate) async fn progress_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if holds(self) {
                return;
            }
            self.progress(10).await;
        }
        panic!("{what}: not within {ROUNDS_MAX} rounds (log: {})", self.controller.log().display());
    }

    /// Waits until all pods have ended; returns whether some pods of unfinished Jobs are not
    /// counted then: what a controller that hears of no pod leaves.
    pub(crate) async fn stands_still(&self) -> bool {
        let ended = |accounts: &Option<BTreeMap<_, Account>>| {
            accounts.as_ref().is_some_and(|all| all.values().all(Account::has_no_unfinished_pod))
        };
        let accounts = async || self.accounts().await;
        let accounts = eventually("all pods end", LATER, accounts, ended).await;
        accounts.expect("they were awaited").values().any(Account::has_uncounted_pods)
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
