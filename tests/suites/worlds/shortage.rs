//! The story of a node that runs short of memory, with its agent.

use std::sync::Arc;

use jiff::Timestamp;
use model_api::ModelApi;
use simulation::controller::Random;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::agent_process::AgentProcess;
use super::host::{Deed, Host};
use super::memory::{History, Memory, TICK, Wrong};
use super::wire::Sabotage;

/// What the agent does about pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    Enforce,
    Observe,
    Off,
}

impl Pressure {
    /// The flag of the agent. A broken one does something else.
    pub(super) fn flag(self, sabotage: Option<Sabotage>) -> &'static str {
        match (self, sabotage) {
            (_, Some(Sabotage::OnlyObserve)) => "--pressure=observe",
            (_, Some(Sabotage::EvictAnyway)) | (Self::Enforce, _) => "--pressure=enforce",
            (Self::Observe, _) => "--pressure=observe",
            (Self::Off, _) => "--pressure=off",
        }
    }
}

/// What a node that ran short of memory was like, for the verdicts.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) node: String,
    pub(super) pressure: Pressure,
    /// When the agent crashed, and when another one was started.
    pub(super) crashed: Option<(Timestamp, Timestamp)>,
    pub(super) deeds: Vec<Deed>,
    pub(super) history: History,
}

/// The files of memory that this mistake needs.
pub(super) fn memory(host: &Host, sabotage: Option<Sabotage>) -> Memory {
    let wrong = match sabotage {
        Some(Sabotage::EvictSmallest) => Some(Wrong::Usage),
        Some(Sabotage::EvictForNothing) => Some(Wrong::Available),
        _ => None,
    };
    Memory::new(host.root(), wrong)
}

/// A node and its agent while the world runs.
pub(super) struct Shortage {
    host: Arc<Host>,
    api: ModelApi,
    pressure: Pressure,
    random: Random,
    agent: AgentProcess,
    crashed: Option<(Timestamp, Timestamp)>,
    ticks: JoinHandle<()>,
}

impl Shortage {
    /// The node's memory begins to be used, and its agent runs.
    pub(super) fn begin(
        host: Arc<Host>,
        api: &ModelApi,
        random: Random,
        pressure: Pressure,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mut agent = AgentProcess::new(&host, api, sabotage);
        agent.start();
        let ticks = tokio::spawn(pass(Arc::clone(&host), api.clone()));
        Self { host, api: api.clone(), pressure, random, agent, crashed: None, ticks }
    }

    /// Lets the agent crash once.
    pub(super) async fn crash(&mut self) {
        sleep(self.random.millis(1_000, 120_000)).await;
        let at = self.api.now();
        self.agent.kill().await;
        sleep(self.random.millis(100, 3_000)).await;
        self.agent.start();
        self.crashed = Some((at, self.api.now()));
    }

    /// Stops all. Returns what was wrong, and what the node was like.
    pub(super) async fn stop(&mut self) -> (Option<String>, Story) {
        let wrong = self.agent.stop().await;
        self.ticks.abort();
        let history = self.host.memory().map(Memory::history).unwrap_or_default();
        let Self { host, pressure, crashed, .. } = self;
        let (pressure, crashed) = (*pressure, *crashed);
        let story =
            Story { node: host.name.clone(), pressure, crashed, deeds: host.deeds(), history };
        (wrong, story)
    }
}

/// Lets the memory of a node grow, and the kernel kill.
async fn pass(host: Arc<Host>, api: ModelApi) {
    let Some(memory) = host.memory() else { return };
    loop {
        sleep(TICK).await;
        for uid in memory.tick(api.now()) {
            host.kill(&uid);
        }
    }
}
