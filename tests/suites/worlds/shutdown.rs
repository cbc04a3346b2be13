//! The story of a node that shuts down, with its agent.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use doubles::login1::{Down, State};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams};
use lab::nodes::SimulatedNodes;
use lab::nodes::processes::Processes;
use model_api::{Kind, ModelApi};
use serde_json::Value;
use simulation::controller::Random;
use tokio::time::{Instant, sleep};

use super::agent_process::AgentProcess;
use super::host::{Deed, Host};
use super::wire::Sabotage;
use super::world::NAMESPACE;

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
/// The period of the kubelet's graceful shutdown, in seconds.
const GRACEFUL_SECONDS: u32 = 30;
/// Within this time the agent has to end deleted pods under a dead kubelet.
const STUCK_WITHIN: Duration = Duration::from_mins(10);
const AGENTS_LOCK: &str = "epilogue-agent";
/// How long an agent may take to take its lock.
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
    /// The same, and users delete pods that it can no longer end.
    Stuck,
    /// It has been silent for longer than its lease lasts.
    Hung,
    /// It dies after the announcement.
    Dies,
    /// It was dead for a while.
    Restarted,
}

impl Kubelet {
    /// Each in turn: of those with one state, or of those that fail otherwise.
    pub(super) fn of_seed(seed: u64, fails: bool) -> Self {
        let all: &[Self] = if fails {
            &[Self::Stuck, Self::Hung, Self::Dies, Self::Restarted]
        } else {
            &[Self::Plain, Self::Graceful, Self::Dead]
        };
        all[(seed % all.len() as u64) as usize]
    }

    /// Whether it reports nothing at the announcement or soon after it.
    pub(super) fn is_gone(self) -> bool {
        matches!(self, Self::Dead | Self::Stuck | Self::Hung | Self::Dies)
    }
}

/// What a node's shutdown was like, for the verdicts.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) node: String,
    pub(super) kubelet: Kubelet,
    /// When the shutdown was first announced, by logind or by a notice.
    pub(super) announced: Timestamp,
    /// When logind announced it.
    pub(super) signalled: Option<Timestamp>,
    /// When the time is over: logind's, or that of a notice which is still to come then.
    pub(super) due: Timestamp,
    /// When the agent's lock was gone.
    pub(super) released: Option<Timestamp>,
    /// When the agent crashed, if it did.
    pub(super) crashed: Option<Timestamp>,
    pub(super) cancelled: Option<Timestamp>,
    /// When the machine went off, and why then.
    pub(super) off: Option<(Timestamp, Down)>,
    pub(super) deeds: Vec<Deed>,
    /// Pods that were deleted long before the announcement, and that no one has ended.
    pub(super) stuck: Vec<String>,
    /// How often the kubelet answered `/healthz` and `/configz`.
    pub(super) answered: [usize; 2],
}

/// A notice of the end, ahead of logind.
#[derive(Clone, Copy, Debug)]
struct Notice {
    /// The end that it announces.
    end: Timestamp,
    /// How long after it logind announces the end.
    signal_in: Duration,
}

/// What a shutdown is to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) kubelet: Kubelet,
    /// Whether the agent may crash.
    pub(super) crashes: bool,
    pub(super) cancels: bool,
    /// Whether notice is given of it, ahead of logind.
    pub(super) has_notice: bool,
    pub(super) sabotage: Option<Sabotage>,
}

/// A node and its agent while the world runs.
pub(super) struct Shutdown {
    pub(super) host: Arc<Host>,
    api: ModelApi,
    random: Random,
    plan: Plan,
    agent: AgentProcess,
}

impl Shutdown {
    pub(super) fn new(host: Arc<Host>, api: &ModelApi, random: Random, plan: Plan) -> Self {
        let agent = AgentProcess::new(&host, api, plan.sabotage);
        let shutdown = Self { host, api: api.clone(), random, plan, agent };
        if plan.kubelet == Kubelet::Graceful {
            shutdown.hold(KUBELETS_NUMBER, KUBELETS_LOCK);
            shutdown.host.kubelet().set_period(GRACEFUL_SECONDS);
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
        self.agent.start();
    }

    /// Shuts the node down, or begins to.
    pub(super) async fn play(&mut self, nodes: &SimulatedNodes) -> Story {
        let (name, kubelet) = (self.host.name.clone(), self.plan.kubelet);
        let stuck = self.before(nodes).await;
        // Without a crash, with one before the announcement, or with one after it.
        let crash = if self.plan.crashes { self.random.below(3) } else { 0 };
        if crash == 1 {
            self.agent.kill().await;
            self.wait(|state| !is_held(state, AGENTS_LOCK)).await;
            sleep(self.random.millis(100, 3_000)).await;
            self.agent.start();
        }
        self.wait(|state| is_held(state, AGENTS_LOCK)).await;
        if crash == 2 {
            // The agent's lock goes with it, and another one delays the shutdown on.
            self.hold(OTHERS_NUMBER, OTHERS_LOCK);
        }
        let announced = self.api.now();
        let notice = self.plan.has_notice.then(|| self.give_notice());
        let signal_in = notice.map_or(Duration::ZERO, |notice| notice.signal_in);
        let due = announced + signal_in + self.delay();
        if notice.is_none() {
            self.host.bus.login1.shut_down("poweroff").await;
        }
        if self.plan.sabotage == Some(Sabotage::LeaveAtOnce) {
            self.agent.kill().await;
        }
        let mut story = Story {
            node: name.clone(),
            kubelet,
            announced,
            signalled: notice.is_none().then_some(announced),
            due,
            released: None,
            crashed: None,
            cancelled: None,
            off: None,
            deeds: Vec::new(),
            stuck,
            answered: [0; 2],
        };
        let dies = self.random.millis(1, 5_000);
        let host = Arc::clone(&self.host);
        let ends = async {
            if kubelet == Kubelet::Dies {
                sleep(dies).await;
                nodes.behead(&name).await.expect("must be taken");
                host.behead();
            }
            if kubelet == Kubelet::Graceful {
                sleep(signal_in).await;
                nodes.shutdown(&name).await.expect("must be taken");
            }
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = self.follow(&mut story, notice, crash == 2) => {}
            () = ends => {}
        }
        if story.off.is_some() {
            self.agent.kill().await;
            nodes.vanish(&name).await.expect("must be taken");
        }
        story.answered = self.host.kubelet().answered();
        story
    }

    /// The delay that logind grants now.
    fn delay(&self) -> Duration {
        Duration::from_micros(self.host.bus.login1.state().delay_us_max)
    }

    /// Gives notice of the end. logind is to announce it by then, or a little earlier or later.
    fn give_notice(&mut self) -> Notice {
        let most = if self.plan.cancels { 70_000 } else { 150_000 };
        let ahead = self.random.millis(10_000, most);
        let end = self.api.now() + ahead;
        self.host.give_notice(end);
        let drift = self.random.millis(0, 10_000);
        Notice { end, signal_in: (ahead + drift).saturating_sub(Duration::from_secs(5)) }
    }

    /// What the kubelet does before the announcement. Returns deleted pods that no one ends.
    async fn before(&mut self, nodes: &SimulatedNodes) -> Vec<String> {
        let name = self.host.name.clone();
        let kubelet = self.plan.kubelet;
        if matches!(kubelet, Kubelet::Plain | Kubelet::Graceful | Kubelet::Dies) {
            sleep(self.random.millis(10_000, 60_000)).await;
            return Vec::new();
        }
        let begins = if kubelet == Kubelet::Hung { (1_000, 10_000) } else { (5_000, 25_000) };
        sleep(self.random.millis(begins.0, begins.1)).await;
        nodes.behead(&name).await.expect("must be taken");
        if kubelet == Kubelet::Hung {
            self.host.hang_kubelet();
        } else {
            self.host.behead();
        }
        if kubelet == Kubelet::Restarted {
            sleep(self.random.millis(1_000, 60_000)).await;
            nodes.revive(&name).await.expect("must be taken");
            self.host.revive();
            sleep(self.random.millis(1_000, 20_000)).await;
            return Vec::new();
        }
        if kubelet == Kubelet::Stuck {
            sleep(self.random.millis(0, 10_000)).await;
            return self.stick().await;
        }
        let lasts = if kubelet == Kubelet::Hung { (50_000, 70_000) } else { (60_000, 120_000) };
        sleep(self.random.millis(lasts.0, lasts.1)).await;
        Vec::new()
    }

    /// A user deletes pods of the node whose processes run, and the kernel kills these. Returns the
    /// pods that no one has ended in time. The success of a pod is for its kubelet to report.
    async fn stick(&mut self) -> Vec<String> {
        let mut stuck = self.live(|now| now == Processes::Run);
        // Such a Job ends by one pod that fails on its own.
        stuck.retain(|_, pod| !pod.starts_with("ignored"));
        let pods: Api<Pod> = Api::namespaced(self.api.client("user/1"), NAMESPACE);
        for pod in stuck.values() {
            let deleted = pods.delete(pod, &DeleteParams::default()).await;
            deleted.expect("a user's deletion must be taken");
        }
        sleep(self.random.millis(0, 20_000)).await;
        for uid in stuck.keys() {
            self.host.kill(uid);
        }
        let end = Instant::now() + STUCK_WITHIN;
        while !stuck.is_empty() && Instant::now() < end {
            sleep(Duration::from_secs(1)).await;
            let still = self.live(|now| now != Processes::Exited(0));
            stuck.retain(|uid, _| still.contains_key(uid));
        }
        stuck.into_values().collect()
    }

    /// The pods that the API shows as Running and whose processes here do this, by UID.
    fn live(&self, is: impl Fn(Processes) -> bool) -> BTreeMap<String, String> {
        let deeds = self.host.deeds().into_iter().map(|deed| (deed.uid, deed.now));
        let now: BTreeMap<String, Option<Processes>> = deeds.collect();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pods = self.api.list(Kind::Pod, NAMESPACE).into_iter();
        pods.filter(|pod| pod["status"]["phase"] == "Running")
            .map(|pod| (text(&pod["metadata"]["uid"]), text(&pod["metadata"]["name"])))
            .filter(|(uid, _)| now.get(uid).copied().flatten().is_some_and(&is))
            .collect()
    }

    /// Follows the shutdown until the machine is off or the shutdown is cancelled.
    async fn follow(&mut self, story: &mut Story, notice: Option<Notice>, crashes: bool) {
        let login1 = Arc::clone(&self.host.bus.login1);
        let begun = Instant::now();
        let cancels_within = if self.plan.has_notice { 60_000 } else { 8_000 };
        let cancel_at = self.plan.cancels.then(|| begun + self.random.millis(10, cancels_within));
        let mut crash_at = crashes.then(|| begun + self.random.millis(1, 5_000));
        let mut start_at = None;
        loop {
            let (time, now) = (self.api.now(), Instant::now());
            if let Some(Notice { end, signal_in }) = notice
                && story.signalled.is_none()
                && now >= begun + signal_in
            {
                login1.shut_down("poweroff").await;
                let due = time + self.delay();
                story.signalled = Some(time);
                story.due = if end > time { due.min(end) } else { due };
            }
            let state = login1.state();
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
                self.agent.kill().await;
                story.crashed = Some(time);
                start_at = Some(now + self.random.millis(100, 3_000));
            }
            if start_at.take_if(|at| now >= *at || is_cancelled).is_some() {
                self.agent.start();
            }
            if is_cancelled {
                self.host.withdraw_notice();
                if story.signalled.is_some() {
                    login1.cancel().await;
                }
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

    /// Someone removes the Node of a machine that is off.
    pub(super) async fn remove_node(&mut self) {
        sleep(self.random.millis(0, 60_000)).await;
        let nodes: Api<Node> = Api::all(self.api.client("user/1"));
        let deleted = nodes.delete(&self.host.name, &DeleteParams::default()).await;
        deleted.expect("must be deleted");
    }

    /// Stops an agent that still runs. Returns what was wrong.
    pub(super) async fn stop(&mut self) -> Option<String> {
        self.agent.stop().await
    }
}

fn is_held(state: &State, who: &str) -> bool {
    state.locks.iter().any(|(_, lock)| lock.1 == who)
}
