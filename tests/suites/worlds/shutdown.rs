//! The story of a node that shuts down, with its agent.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use doubles::login1::{Down, State};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use lab::nodes::SimulatedNodes;
use model_api::ModelApi;
use simulation::controller::Random;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::host::{Deed, Host};
use super::wire::Sabotage;

/// How often the state of logind is read.
const LOOK: Duration = Duration::from_millis(10);
/// The kubelet's lock: what, who, why, mode, uid, pid.
const KUBELETS_LOCK: (&str, &str, &str, &str, u32, u32) =
    ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay", 0, 700);
/// The number of the kubelet's lock; logind's own count from 1.
const KUBELETS_NUMBER: u64 = 0;
/// The lock of some other process.
const OTHERS_LOCK: (&str, &str, &str, &str, u32, u32) =
    ("shutdown", "other", "Has its reasons", "delay", 0, 800);
const OTHERS_NUMBER: u64 = u64::MAX;
const AGENTS_LOCK: &str = "epilogue-agent";
/// How long an agent may take to take its lock, and to end.
const AGENT_MAX: Duration = Duration::from_mins(1);

/// The kubelet of a node that shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kubelet {
    /// It lives, and has no graceful shutdown of its own.
    Plain,
    /// Its graceful shutdown is armed.
    Graceful,
    /// It is dead for longer than its lease lasts.
    Dead,
}

impl Kubelet {
    /// Each in turn.
    pub(super) fn of_seed(seed: u64) -> Self {
        match seed % 3 {
            0 => Self::Plain,
            1 => Self::Graceful,
            _ => Self::Dead,
        }
    }
}

/// What a node's shutdown was like, for the verdicts.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) node: String,
    pub(super) kubelet: Kubelet,
    pub(super) announced: Timestamp,
    /// When logind's time is over.
    pub(super) due: Timestamp,
    /// When the agent's lock was gone.
    pub(super) released: Option<Timestamp>,
    /// When the agent crashed, if it did.
    pub(super) crashed: Option<Timestamp>,
    pub(super) cancelled: Option<Timestamp>,
    /// When the machine went off, and why then.
    pub(super) off: Option<(Timestamp, Down)>,
    pub(super) deeds: Vec<Deed>,
}

/// What a shutdown is to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) kubelet: Kubelet,
    /// Whether the agent may crash.
    pub(super) crashes: bool,
    pub(super) cancels: bool,
    pub(super) sabotage: Option<Sabotage>,
}

/// A node and its agent while the world runs.
pub(super) struct Shutdown {
    pub(super) host: Arc<Host>,
    api: ModelApi,
    random: Random,
    plan: Plan,
    agent: Option<(JoinHandle<anyhow::Result<()>>, CancellationToken)>,
}

impl Shutdown {
    pub(super) fn new(host: Arc<Host>, api: &ModelApi, random: Random, plan: Plan) -> Self {
        let shutdown = Self { host, api: api.clone(), random, plan, agent: None };
        if plan.kubelet == Kubelet::Graceful {
            shutdown.hold(KUBELETS_NUMBER, KUBELETS_LOCK);
        }
        shutdown
    }

    /// Another process than the agent takes a lock.
    fn hold(&self, number: u64, lock: (&str, &str, &str, &str, u32, u32)) {
        let (what, who, why, mode, uid, pid) = lock;
        let lock = (what.into(), who.into(), why.into(), mode.into(), uid, pid);
        self.host.bus.login1.turn(|state| state.locks.push((number, lock)));
    }

    /// Starts the agent.
    pub(super) fn start_agent(&mut self) {
        let (host, api, sabotage) = (Arc::clone(&self.host), self.api.clone(), self.plan.sabotage);
        let stop = CancellationToken::new();
        let token = stop.clone();
        let run = async move { host.run_agent(&api, sabotage, token).await };
        self.agent = Some((tokio::spawn(run), stop));
    }

    /// Shuts the node down, or begins to.
    pub(super) async fn play(&mut self, nodes: &SimulatedNodes) -> Story {
        let (name, kubelet) = (self.host.name.clone(), self.plan.kubelet);
        if kubelet == Kubelet::Dead {
            sleep(self.random.millis(5_000, 25_000)).await;
            nodes.behead(&name).await.expect("must be taken");
            self.host.behead();
            sleep(self.random.millis(60_000, 120_000)).await;
        } else {
            sleep(self.random.millis(10_000, 60_000)).await;
        }
        // Without a crash, with one before the announcement, or with one after it.
        let crash = if self.plan.crashes { self.random.below(3) } else { 0 };
        if crash == 1 {
            self.kill_agent().await;
            self.wait(|state| !is_held(state, AGENTS_LOCK)).await;
            sleep(self.random.millis(100, 3_000)).await;
            self.start_agent();
        }
        self.wait(|state| is_held(state, AGENTS_LOCK)).await;
        if crash == 2 {
            // The agent's lock goes with it, and another one delays the shutdown on.
            self.hold(OTHERS_NUMBER, OTHERS_LOCK);
        }
        let login1 = Arc::clone(&self.host.bus.login1);
        let announced = self.api.now();
        login1.shut_down("poweroff").await;
        let due = announced + Duration::from_micros(login1.state().delay_us_max);
        if self.plan.sabotage == Some(Sabotage::LeaveAtOnce) {
            self.kill_agent().await;
        }
        let mut story = Story {
            node: name.clone(),
            kubelet,
            announced,
            due,
            released: None,
            crashed: None,
            cancelled: None,
            off: None,
            deeds: Vec::new(),
        };
        let ends = async {
            if kubelet == Kubelet::Graceful {
                nodes.shutdown(&name).await.expect("must be taken");
            }
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = self.follow(&mut story, crash == 2) => {}
            () = ends => {}
        }
        if story.off.is_some() {
            self.kill_agent().await;
            nodes.vanish(&name).await.expect("must be taken");
        }
        story
    }

    /// Follows the shutdown until the machine is off or the shutdown is cancelled.
    async fn follow(&mut self, story: &mut Story, crashes: bool) {
        let login1 = Arc::clone(&self.host.bus.login1);
        let begun = Instant::now();
        let cancel_at = self.plan.cancels.then(|| begun + self.random.millis(10, 8_000));
        let mut crash_at = crashes.then(|| begun + self.random.millis(1, 5_000));
        let mut start_at = None;
        loop {
            let (state, time, now) = (login1.state(), self.api.now(), Instant::now());
            if story.released.is_none() && !is_held(&state, AGENTS_LOCK) {
                story.released = Some(time);
            }
            if let Some(why) = state.down {
                story.off = Some((time, why));
                return;
            }
            // The real one's lock goes when its containers are down, not when that is reported.
            if story.kubelet == Kubelet::Graceful && !self.host.runs() {
                login1.release(KUBELETS_NUMBER).await;
            }
            let is_cancelled = cancel_at.is_some_and(|at| now >= at);
            if crash_at.take_if(|at| now >= *at).is_some() {
                self.kill_agent().await;
                story.crashed = Some(time);
                start_at = Some(now + self.random.millis(100, 3_000));
            }
            if start_at.take_if(|at| now >= *at || is_cancelled).is_some() {
                self.start_agent();
            }
            if is_cancelled {
                login1.cancel().await;
                story.cancelled = Some(time);
                return;
            }
            sleep(LOOK).await;
        }
    }

    async fn wait(&self, what: impl Fn(&State) -> bool) {
        let end = Instant::now() + AGENT_MAX;
        while !what(&self.host.bus.login1.state()) && Instant::now() < end {
            sleep(LOOK).await;
        }
    }

    async fn kill_agent(&mut self) {
        if let Some((agent, _)) = self.agent.take() {
            agent.abort();
            drop(agent.await);
        }
    }

    /// Someone removes the Node of a machine that is off.
    pub(super) async fn remove_node(&mut self) {
        sleep(self.random.millis(0, 60_000)).await;
        let nodes: Api<Node> = Api::all(self.api.client("user/1"));
        let deleted = nodes.delete(&self.host.name, &DeleteParams::default()).await;
        deleted.expect("must be deleted");
    }

    /// Stops an agent that still runs. Returns what was wrong.
    pub(super) async fn stop(&mut self) -> Option<String> {
        let (agent, stop) = self.agent.take()?;
        stop.cancel();
        match timeout(AGENT_MAX, agent).await {
            Ok(Ok(Ok(()))) => None,
            Ok(ended) => Some(format!("the agent ended: {ended:?}")),
            Err(_) => Some("the agent does not stop".to_owned()),
        }
    }
}

fn is_held(state: &State, who: &str) -> bool {
    state.locks.iter().any(|(_, lock)| lock.1 == who)
}
