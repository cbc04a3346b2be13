//! The agent's process on a node: it is started, crashes, and is stopped.

use std::sync::Arc;
use std::time::Duration;

use model_api::ModelApi;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::host::Host;
use super::wire::Sabotage;

/// How long an agent may take to end.
const AGENT_MAX: Duration = Duration::from_mins(1);

/// An agent that may run.
pub(super) struct AgentProcess {
    host: Arc<Host>,
    api: ModelApi,
    sabotage: Option<Sabotage>,
    running: Option<(JoinHandle<anyhow::Result<()>>, CancellationToken)>,
}

impl AgentProcess {
    /// One that does not run yet.
    pub(super) fn new(host: &Arc<Host>, api: &ModelApi, sabotage: Option<Sabotage>) -> Self {
        Self { host: Arc::clone(host), api: api.clone(), sabotage, running: None }
    }

    pub(super) fn start(&mut self) {
        let (host, api, sabotage) = (Arc::clone(&self.host), self.api.clone(), self.sabotage);
        let stop = CancellationToken::new();
        let token = stop.clone();
        let run = async move { host.run_agent(&api, sabotage, token).await };
        self.running = Some((tokio::spawn(run), stop));
    }

    /// Ends it at once.
    pub(super) async fn kill(&mut self) {
        if let Some((agent, _)) = self.running.take() {
            agent.abort();
            drop(agent.await);
        }
    }

    /// Stops one that still runs. Returns what was wrong.
    pub(super) async fn stop(&mut self) -> Option<String> {
        let (agent, stop) = self.running.take()?;
        stop.cancel();
        match timeout(AGENT_MAX, agent).await {
            Ok(Ok(Ok(()))) => None,
            Ok(ended) => Some(format!("the agent ended: {ended:?}")),
            Err(_) => Some("the agent does not stop".to_owned()),
        }
    }
}
