//! Carries out the double's calls.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use epilogue_agent::cri::stats::{
    FilesystemIdentifier, FilesystemUsage, ImageFsInfoRequest, ImageFsInfoResponse,
    ListContainerStatsRequest, ListContainerStatsResponse, Number,
};
use epilogue_agent::cri::wire::{self, Call as _, Empty};
use epilogue_runtime::clock::Clock;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::faults::{Call, Faults, Rest, Seen};
use super::pods::{ContainerFact, Layer, Record, Sandbox};
use super::process::Process;

/// All state of the double.
#[derive(Debug)]
pub struct World {
    pub(super) faults: Faults,
    /// The runtime that waits for processes.
    pub(super) host: Handle,
    clock: Clock,
    things: Mutex<Things>,
}

#[derive(Debug, Default)]
struct Things {
    made: i64,
    sandboxes: Vec<Sandbox>,
    containers: Vec<Record>,
    /// Directories on the file systems of images.
    images: Vec<String>,
}

impl World {
    pub fn new(host: Handle, clock: Clock) -> Self {
        Self { faults: Faults::default(), host, clock, things: Mutex::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Things) -> T) -> T {
        work(&mut self.things.lock().expect("no holder panics"))
    }

    /// In ns since 1970.
    fn now(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanosecond()).expect("it must be before 2262")
    }

    /// Removes all of a pod.
    pub fn remove_pod(&self, uid: &str) {
        self.with(|things| {
            things.containers.retain(|container| container.uid != uid);
            things.sandboxes.retain(|sandbox| sandbox.uid != uid);
        });
    }

    /// Adds what `make` builds from a number and a time of creation; returns its id.
    pub(super) fn add_sandbox(&self, make: impl FnOnce(i64, i64) -> Sandbox) -> String {
        let now = self.now();
        self.with(|things| {
            things.made += 1;
            let sandbox = make(things.made, now + things.made);
            let id = sandbox.id.clone();
            things.sandboxes.push(sandbox);
            id
        })
    }

    pub(super) fn add_container(&self, make: impl FnOnce(i64, i64) -> Record) {
        let now = self.now();
        self.with(|things| {
            things.made += 1;
            let container = make(things.made, now + things.made);
            things.containers.push(container);
        });
    }

    pub(super) fn remove(&self, uid: &str, name: &str) {
        self.with(|things| {
            let is_it = |container: &Record| container.uid == uid && container.name == name;
            for container in things.containers.iter().filter(|container| is_it(container)) {
                container.process.iter().for_each(Process::kill);
            }
            things.containers.retain(|container| !is_it(container));
        });
    }

    pub(super) fn kill(&self, uid: &str, name: &str) {
        self.with(|things| {
            let is_it = |container: &&Record| container.uid == uid && container.name == name;
            for container in things.containers.iter().filter(is_it) {
                container.process.iter().for_each(Process::kill);
            }
        });
    }

    pub(super) fn set_layer(&self, uid: &str, name: &str, layer: Layer) {
        self.with(|things| {
            let is_it = |container: &&mut Record| container.uid == uid && container.name == name;
            things.containers.iter_mut().filter(is_it).for_each(|it| it.layer = layer);
        });
    }

    pub(super) fn set_images(&self, directories: &[&str]) {
        self.with(|things| things.images = directories.iter().map(ToString::to_string).collect());
    }

    /// The id of a container.
    pub fn id(&self, uid: &str, name: &str) -> Option<String> {
        let is_it = |container: &&Record| container.uid == uid && container.name == name;
        self.with(|things| things.containers.iter().rev().find(is_it).map(|it| it.id.clone()))
    }

    pub(super) fn facts(&self, uid: &str) -> Vec<ContainerFact> {
        self.with(|things| {
            let of_pod = things.containers.iter().filter(|container| container.uid == uid);
            of_pod.map(Record::fact).collect()
        })
    }

    pub(super) fn running(&self) -> usize {
        self.with(|things| {
            let running = things.containers.iter().filter(|container| {
                container.process.as_ref().is_some_and(|process| process.exit().is_none())
            });
            running.count()
        })
    }

    pub(super) fn kill_all(&self) {
        self.with(|things| {
            for container in &things.containers {
                container.process.iter().for_each(Process::kill);
            }
        });
    }

    fn container(&self, id: &str) -> Option<Record> {
        self.with(|things| things.containers.iter().find(|found| found.id == id).cloned())
    }

    /// Records a call about a container or sandbox by its id.
    async fn meet(&self, call: Call, id: &str, timeout: Option<i64>) -> Result<Rest, Status> {
        let (target, uid) = self.with(|things| {
            let container = things.containers.iter().find(|found| found.id == id);
            let sandbox = things.sandboxes.iter().find(|found| found.id == id);
            match (container, sandbox) {
                (Some(container), _) => (container.name.clone(), container.uid.clone()),
                (None, Some(sandbox)) => (sandbox.uid.clone(), sandbox.uid.clone()),
                (None, None) => (id.to_owned(), String::new()),
            }
        });
        self.faults.meet(Seen { call, target, uid, timeout, at: Instant::now() }).await
    }

    async fn version(&self) -> Result<wire::VersionResponse, Status> {
        self.meet(Call::Version, "", None).await?;
        Ok(wire::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "double".into(),
            runtime_version: "v0.0.0".into(),
            runtime_api_version: "v1".into(),
        })
    }

    async fn status(&self) -> Result<wire::StatusResponse, Status> {
        let rest = self.meet(Call::Status, "", None).await?;
        let condition = |kind: &str, status: bool| wire::RuntimeCondition {
            kind: kind.into(),
            status,
            reason: if status { String::new() } else { "Injected".into() },
            message: if status { String::new() } else { "the double injects it".into() },
        };
        // `Status` has one fault of its own: not ready.
        let ready = rest.refuse.is_none();
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", ready)];
        Ok(wire::StatusResponse { status: Some(wire::RuntimeStatus { conditions }) })
    }

    async fn list_sandboxes(
        &self,
        request: wire::ListPodSandboxRequest,
    ) -> Result<wire::ListPodSandboxResponse, Status> {
        let wanted = request.filter.unwrap_or_default().label_selector;
        let uid = wanted.get(wire::POD_UID_LABEL).cloned().unwrap_or_default();
        let rest = self.listing(Call::ListPodSandbox, &uid).await?;
        let all = rest.ignore_filter || wanted.is_empty();
        Ok(wire::ListPodSandboxResponse {
            items: self.with(|things| {
                let found = things.sandboxes.iter().filter(|found| all || found.uid == uid);
                found.map(Sandbox::listed).collect()
            }),
        })
    }

    async fn list_containers(
        &self,
        request: wire::ListContainersRequest,
    ) -> Result<wire::ListContainersResponse, Status> {
        let wanted = request.filter.unwrap_or_default().label_selector;
        let uid = wanted.get(wire::POD_UID_LABEL).cloned().unwrap_or_default();
        let rest = self.listing(Call::ListContainers, &uid).await?;
        let all = rest.ignore_filter || wanted.is_empty();
        Ok(wire::ListContainersResponse {
            containers: self.with(|things| {
                let found = things.containers.iter().filter(|found| all || found.uid == uid);
                found.map(Record::listed).collect()
            }),
        })
    }

    async fn listing(&self, call: Call, uid: &str) -> Result<Rest, Status> {
        let (target, uid, at) = (uid.to_owned(), uid.to_owned(), Instant::now());
        self.faults.meet(Seen { call, target, uid, timeout: None, at }).await
    }

    /// Only running containers.
    async fn container_stats(&self) -> Result<ListContainerStatsResponse, Status> {
        self.meet(Call::ListContainerStats, "", None).await?;
        let stats = self.with(|things| {
            let runs = |container: &&Record| container.state() == wire::ContainerState::Running;
            things.containers.iter().filter(runs).map(Record::stats).collect()
        });
        Ok(ListContainerStatsResponse { stats })
    }

    async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, Status> {
        self.meet(Call::ImageFsInfo, "", None).await?;
        let filesystem = |mountpoint: String| FilesystemUsage {
            fs_id: Some(FilesystemIdentifier { mountpoint }),
            // A kubelet reads no answer without it.
            used_bytes: Some(Number { value: 0 }),
            inodes_used: None,
        };
        let images = self.with(|things| things.images.clone());
        Ok(ImageFsInfoResponse {
            image_filesystems: images.into_iter().map(filesystem).collect(),
            container_filesystems: Vec::new(),
        })
    }

    async fn container_status(
        &self,
        request: wire::ContainerStatusRequest,
    ) -> Result<wire::ContainerStatusResponse, Status> {
        self.meet(Call::ContainerStatus, &request.container_id, None).await?;
        let container = self.container(&request.container_id);
        let container = container.ok_or_else(|| Status::not_found("no such container"))?;
        Ok(wire::ContainerStatusResponse { status: Some(container.status()) })
    }

    /// Sends the stop signal, waits, sends SIGKILL; does nothing to a container that does not run.
    /// Ends with the call: then it never sends SIGKILL.
    async fn stop_container(&self, request: wire::StopContainerRequest) -> Result<Empty, Status> {
        let grace = request.timeout;
        let rest = self.meet(Call::StopContainer, &request.container_id, Some(grace)).await?;
        let container = self.container(&request.container_id);
        if let Some(process) = container.and_then(|container| container.process) {
            let grace = Duration::from_secs(grace.try_into().unwrap_or(0));
            if !grace.is_zero() {
                process.terminate();
            }
            if timeout(grace, process.ended()).await.is_err() {
                process.kill();
                process.ended().await;
            }
        }
        rest.refuse.map_or(Ok(Empty {}), Err)
    }

    async fn stop_sandbox(&self, request: wire::StopPodSandboxRequest) -> Result<Empty, Status> {
        let id = request.pod_sandbox_id;
        let rest = self.meet(Call::StopPodSandbox, &id, None).await?;
        let processes: Vec<Process> = self.with(|things| {
            let inside = things.containers.iter().filter(|container| container.sandbox == id);
            inside.filter_map(|container| container.process.clone()).collect()
        });
        for process in processes {
            process.kill();
            process.ended().await;
        }
        self.with(|things| {
            for sandbox in things.sandboxes.iter_mut().filter(|sandbox| sandbox.id == id) {
                sandbox.ready = false;
            }
        });
        rest.refuse.map_or(Ok(Empty {}), Err)
    }

    async fn remove_container(
        &self,
        request: wire::RemoveContainerRequest,
    ) -> Result<Empty, Status> {
        self.meet(Call::RemoveContainer, &request.container_id, None).await?;
        if let Some(container) = self.container(&request.container_id) {
            self.remove(&container.uid, &container.name);
        }
        Ok(Empty {})
    }
}

/// Serves the world over gRPC.
#[derive(Clone, Debug)]
pub struct Service(Arc<World>);

impl Service {
    pub fn new(world: Arc<World>) -> Self {
        Self(world)
    }
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let world = Arc::clone(&self.0);
        let path = request.uri().path().to_owned();
        async move {
            Ok(match path.as_str() {
                wire::VersionRequest::PATH => {
                    unary(request, |_: wire::VersionRequest| world.version()).await
                }
                wire::StatusRequest::PATH => {
                    unary(request, |_: wire::StatusRequest| world.status()).await
                }
                wire::ListPodSandboxRequest::PATH => {
                    unary(request, |sent| world.list_sandboxes(sent)).await
                }
                wire::ListContainersRequest::PATH => {
                    unary(request, |sent| world.list_containers(sent)).await
                }
                wire::ContainerStatusRequest::PATH => {
                    unary(request, |sent| world.container_status(sent)).await
                }
                wire::StopContainerRequest::PATH => {
                    unary(request, |sent| world.stop_container(sent)).await
                }
                wire::StopPodSandboxRequest::PATH => {
                    unary(request, |sent| world.stop_sandbox(sent)).await
                }
                ListContainerStatsRequest::PATH => {
                    unary(request, |_: ListContainerStatsRequest| world.container_stats()).await
                }
                ImageFsInfoRequest::PATH => {
                    unary(request, |_: ImageFsInfoRequest| world.image_fs_info()).await
                }
                wire::RemoveContainerRequest::PATH => {
                    unary(request, |sent| world.remove_container(sent)).await
                }
                _ => Status::unimplemented(path).into_http(),
            })
        }
        .boxed()
    }
}

/// Answers one call.
pub(crate) async fn unary<'a, C, F>(
    request: http::Request<Body>,
    answer: impl Fn(C) -> F + Send + Sync + 'a,
) -> http::Response<Body>
where
    C: wire::Call + Default,
    F: Future<Output = Result<C::Answer, Status>> + Send + 'a,
{
    let service = tower::service_fn(|request: Request<C>| {
        let answer = answer(request.into_inner());
        async move { answer.await.map(Response::new) }
    });
    tonic::server::Grpc::new(ProstCodec::<C::Answer, C>::default()).unary(service, request).await
}
