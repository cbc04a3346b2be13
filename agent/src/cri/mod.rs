//! Talks to the container runtime by CRI v1 over its unix socket: inspects pods and stops them.
//! Each operation is one attempt with a time limit.

pub mod client;
pub mod endpoint;
pub mod error;
mod probe;
pub mod signal;
mod state;
pub mod stats;
mod stop;
pub mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use agent_core::protocol::action::PodRef;
use agent_core::protocol::event::ActionResult;
use epilogue_common::end_signal::Signal;
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
    /// The socket that the kubelet names.
    kubelets: Arc<Mutex<Option<PathBuf>>>,
    chosen: Arc<Mutex<Option<Chosen>>>,
}

/// The runtime in use.
#[derive(Debug)]
struct Chosen {
    socket: PathBuf,
    client: Client,
    /// The sockets among which it was chosen.
    among: Vec<PathBuf>,
}

impl Runtime {
    /// The runtime behind one of `sockets`.
    pub fn new(sockets: Sockets) -> Self {
        Self { sockets, given: None, kubelets: Arc::default(), chosen: Arc::default() }
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

    /// Carries out `Action::SignalContainer`.
    pub async fn signal_container(&self, container: &str, signal: Signal) -> ActionResult {
        let sent = async { signal::send(&self.client().await?, container, signal).await };
        ActionResult::Done(sent.await.map_err(|error: CriError| error.failure()))
    }

    /// Takes the endpoint that the kubelet names: from now on, no other runtime is asked. It stays
    /// known while the kubelet is down.
    pub fn kubelet_names(&self, endpoint: &str) {
        if let Some(socket) = self.sockets.kubelets(endpoint) {
            *self.kubelets.lock() = Some(socket);
        }
    }

    /// A client of the runtime behind the kubelet's socket, or behind the one that exists now.
    pub async fn client(&self) -> Result<Client, CriError> {
        if let Some(client) = &self.given {
            return Ok(client.clone());
        }
        let kubelets = self.kubelets.lock().clone();
        let among = match kubelets {
            Some(named) if endpoint::is_socket(&named) => vec![named],
            Some(named) => return Err(CriError::NotThere { named }),
            None => self.sockets.present(),
        };
        if let Some(client) = self.remembered(&among) {
            return Ok(client);
        }
        let (socket, client) = self.choose(&among).await?;
        *self.chosen.lock() = Some(Chosen { socket, client: client.clone(), among });
        Ok(client)
    }

    /// The chosen socket.
    pub fn socket(&self) -> Option<PathBuf> {
        self.chosen.lock().as_ref().map(|chosen| chosen.socket.clone())
    }

    /// The earlier choice. When another runtime has come, as at a boot, there is a new one.
    fn remembered(&self, among: &[PathBuf]) -> Option<Client> {
        let chosen = self.chosen.lock();
        chosen.as_ref().filter(|chosen| chosen.among == among).map(|chosen| chosen.client.clone())
    }

    /// The one socket that exists; of several, the one whose owner speaks CRI v1. A containerd that
    /// only serves Docker does not. The first answer does not decide: "has nothing of this pod"
    /// from the wrong runtime would prove that nothing runs.
    async fn choose(&self, present: &[PathBuf]) -> Result<(PathBuf, Client), CriError> {
        let mut found = Vec::new();
        for socket in present {
            found.push((socket.clone(), Client::new(socket)?));
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
        found.pop().ok_or_else(|| CriError::NoSocket { searched: self.sockets.all().to_vec() })
    }
}
