//! Talks to the container runtime by CRI v1 over its unix socket: inspects pods and stops them.
//! Each operation is one attempt with a time limit.

pub mod client;
pub mod endpoint;
pub mod error;
mod probe;
mod state;
pub mod stats;
mod stop;
pub mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use agent_core::protocol::action::PodRef;
use agent_core::protocol::event::ActionResult;
use futures::future::join_all;
use parking_lot::Mutex;

pub use self::client::Client;
pub use self::endpoint::{Endpoint, Sockets};
pub use self::error::CriError;
pub use self::stop::Stop;

/// The node's container runtime. Connects with the first call, and again after each loss. It also
/// finds a runtime that starts after the agent.
#[derive(Clone, Debug)]
pub struct Runtime {
    sockets: Sockets,
    /// In place of the sockets.
    given: Option<Client>,
    chosen: Arc<Mutex<Option<(PathBuf, Client)>>>,
}

impl Runtime {
    /// The runtime behind one of `sockets`.
    pub fn new(sockets: Sockets) -> Self {
        Self { sockets, given: None, chosen: Arc::default() }
    }

    /// The runtime of this client.
    pub fn given(client: Client) -> Self {
        Self { given: Some(client), ..Self::new(Sockets::default()) }
    }

    /// Carries out `Action::InspectPod`.
    pub async fn inspect_pod(&self, pod: &PodRef) -> ActionResult {
        let state = async { state::read(&self.client().await?, &pod.uid).await };
        ActionResult::Runtime(state.await.map_err(|error: CriError| error.failure()))
    }

    /// Carries out `Action::ListRuntimePods`.
    pub async fn list_pods(&self) -> ActionResult {
        let pods = async { state::read_all(&self.client().await?).await };
        ActionResult::RuntimePods(pods.await.map_err(|error: CriError| error.failure()))
    }

    /// Carries out `Action::StopPod`. Takes at most its grace, twice its stop timeout, and 3 s.
    pub async fn stop_pod(&self, pod: &PodRef, wanted: Stop<'_>) -> ActionResult {
        let state = async { stop::stop(&self.client().await?, &pod.uid, wanted).await };
        ActionResult::Runtime(state.await.map_err(|error: CriError| error.failure()))
    }

    /// A client of the runtime behind the socket that exists now.
    pub async fn client(&self) -> Result<Client, CriError> {
        if let Some(client) = self.given.clone().or_else(|| self.remembered()) {
            return Ok(client);
        }
        let (socket, client) = choose(&self.sockets).await?;
        *self.chosen.lock() = Some((socket, client.clone()));
        Ok(client)
    }

    /// The chosen socket, while it exists.
    pub fn socket(&self) -> Option<PathBuf> {
        self.chosen.lock().as_ref().map(|(socket, _)| socket.clone())
    }

    fn remembered(&self) -> Option<Client> {
        let chosen = self.chosen.lock();
        let (socket, client) = chosen.as_ref()?;
        endpoint::is_socket(socket).then(|| client.clone())
    }
}

/// The one socket that exists; of several, the one whose owner speaks CRI v1. A containerd that
/// only serves Docker does not. The first answer does not decide: "has nothing of this pod" from
/// the wrong runtime would prove that nothing runs.
async fn choose(sockets: &Sockets) -> Result<(PathBuf, Client), CriError> {
    let mut found = Vec::new();
    for socket in sockets.present() {
        let client = Client::new(&socket)?;
        found.push((socket, client));
    }
    if found.len() > 1 {
        let answers = join_all(found.iter().map(|(_, client)| client.version())).await;
        let mut answers = answers.into_iter();
        found.retain(|_| match answers.next() {
            Some(Err(error)) => !error.is_unimplemented(),
            _ => true,
        });
    }
    if found.len() > 1 {
        let sockets = found.into_iter().map(|(socket, _)| socket).collect();
        return Err(CriError::Ambiguous { sockets });
    }
    found.pop().ok_or_else(|| CriError::NoSocket { searched: sockets.all().to_vec() })
}
