//! Calls the container runtime, each call with its own timeout, over one connection that reconnects
//! when it breaks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod::PodUid;
use http::uri::PathAndQuery;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::error::CriError;
use super::wire::{self, Call};

/// Maximum time of a read. The kubelet's own reads take ms; a shutdown does not wait for a slower
/// runtime.
pub const READ_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of concurrent reads.
const READS_MAX: usize = 32;
/// Maximum number of concurrent stops. More than a node has containers, because each waits for a
/// container's grace.
const STOPS_MAX: usize = 2_048;
/// Maximum bytes of one answer, the same as the kubelet's client has.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A connection to one runtime.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    reads: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    /// When the reads that belong together must all be answered.
    reads_end: Option<Instant>,
}

impl Client {
    /// Makes a client of the runtime at `socket`; connects with the first call.
    pub fn new(socket: &Path) -> Result<Self, CriError> {
        let refused = |source: tonic::transport::Error| CriError::Refused {
            call: "connect",
            status: Box::new(Status::from_error(source.into())),
        };
        let endpoint =
            Endpoint::from_shared(format!("unix:{}", socket.display())).map_err(refused)?;
        Ok(Self::over(endpoint.connect_lazy()))
    }

    /// Makes a client over this connection.
    pub fn over(channel: Channel) -> Self {
        let (reads, stops) = (Semaphore::new(READS_MAX), Semaphore::new(STOPS_MAX));
        Self { channel, reads: Arc::new(reads), stops: Arc::new(stops), reads_end: None }
    }

    /// The same connection, for several reads that together take no longer than one, so that a slow
    /// runtime does not delay each of them. The one that gets no answer is the one that fails.
    pub(super) fn one_read(&self) -> Self {
        let end = Instant::now() + READ_TIME_MAX;
        let reads_end = Some(self.reads_end.map_or(end, |earlier| earlier.min(end)));
        Self { reads_end, ..self.clone() }
    }

    /// The runtime's name and version.
    pub async fn version(&self) -> Result<wire::VersionResponse, CriError> {
        self.read(wire::VersionRequest { version: "v1".into() }).await
    }

    /// The runtime's own conditions.
    pub async fn status(&self) -> Result<Vec<wire::RuntimeCondition>, CriError> {
        let answer = self.read(wire::StatusRequest {}).await?;
        Ok(answer.status.unwrap_or_default().conditions)
    }

    /// The sandboxes of a pod, or all, ready or not.
    pub async fn sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<wire::PodSandbox>, CriError> {
        let filter = of.map(|uid| wire::PodSandboxFilter { label_selector: selector(uid) });
        let answer = self.read(wire::ListPodSandboxRequest { filter }).await?;
        Ok(answer.items.into_iter().filter(|item| is_of(&item.labels, of)).collect())
    }

    /// The containers of a pod, or all, with exited ones.
    pub async fn containers(&self, of: Option<&PodUid>) -> Result<Vec<wire::Container>, CriError> {
        let filter = of.map(|uid| wire::ContainerFilter { label_selector: selector(uid) });
        let answer = self.read(wire::ListContainersRequest { filter }).await?;
        Ok(answer.containers.into_iter().filter(|item| is_of(&item.labels, of)).collect())
    }

    /// The status of one container; `None` if it does not exist.
    pub async fn container(&self, id: &str) -> Result<Option<wire::ContainerStatus>, CriError> {
        let request = wire::ContainerStatusRequest { container_id: id.to_owned() };
        match self.read(request).await {
            Ok(answer) => Ok(answer.status),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stops a container: its stop signal, `grace_seconds`, SIGKILL. Returns when it is down. A
    /// container that does not exist counts as down.
    ///
    /// The runtime sends SIGKILL only while the caller waits for the answer. If the caller gives up
    /// before the grace is over, the container gets only the stop signal.
    pub async fn stop_container(
        &self,
        id: &str,
        grace_seconds: u32,
        within: Duration,
    ) -> Result<(), CriError> {
        let request = wire::StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::from(grace_seconds),
        };
        self.stop(request, within).await
    }

    /// Stops a sandbox, and kills what still runs in it.
    pub async fn stop_sandbox(&self, id: &str, within: Duration) -> Result<(), CriError> {
        let request = wire::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.stop(request, within).await
    }

    /// Removes a container.
    pub async fn remove_container(&self, id: &str, within: Duration) -> Result<(), CriError> {
        let request = wire::RemoveContainerRequest { container_id: id.to_owned() };
        self.stop(request, within).await
    }

    pub(super) async fn read<C: Call>(&self, request: C) -> Result<C::Answer, CriError> {
        self.read_within(request, READ_TIME_MAX).await
    }

    pub(super) async fn read_within<C: Call>(
        &self,
        request: C,
        within: Duration,
    ) -> Result<C::Answer, CriError> {
        let end = Instant::now() + within;
        let end = self.reads_end.map_or(end, |earlier| earlier.min(end));
        self.call(&self.reads, request, within, end).await
    }

    async fn stop<C>(&self, request: C, within: Duration) -> Result<(), CriError>
    where
        C: Call<Answer = wire::Empty>,
    {
        match self.call(&self.stops, request, within, Instant::now() + within).await {
            Ok(wire::Empty {}) => Ok(()),
            // NotFound means stopped. ([AP25])
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes one call. The wait for its turn counts as part of its time, which is `within` until
    /// `end`.
    async fn call<C: Call>(
        &self,
        turns: &Semaphore,
        request: C,
        within: Duration,
        end: Instant,
    ) -> Result<C::Answer, CriError> {
        let answer = async {
            let _turn = turns.acquire().await.expect("the turns must never be closed");
            let mut grpc =
                Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = PathAndQuery::from_static(C::PATH);
            let codec = ProstCodec::<C, C::Answer>::default();
            let mut request = Request::new(request);
            if let Some((name, value)) = C::HEADER {
                request.metadata_mut().insert(name, MetadataValue::from_static(value));
            }
            grpc.unary(request, path, codec).await
        };
        match timeout_at(end, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(CriError::Refused { call: C::NAME, status: Box::new(status) }),
            Err(_) => Err(CriError::NoAnswer { call: C::NAME, within }),
        }
    }
}

fn selector(uid: &PodUid) -> BTreeMap<String, String> {
    BTreeMap::from([(wire::POD_UID_LABEL.to_owned(), uid.0.clone())])
}

/// Whether the labels are the pod's, if one is asked for. The agent checks this again: a runtime
/// that ignores filters would make it stop another pod's containers.
fn is_of(labels: &BTreeMap<String, String>, pod: Option<&PodUid>) -> bool {
    pod.is_none_or(|uid| labels.get(wire::POD_UID_LABEL) == Some(&uid.0))
}
