//! Provides a container runtime for a real kubelet: it makes what the kubelet asks for, of nothing
//! but names and times. A container runs until it is stopped, and ends a set time after SIGTERM.

mod messages;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epilogue_agent::cri::stats::{
    FilesystemIdentifier, FilesystemUsage, ImageFsInfoRequest, ImageFsInfoResponse,
    ListContainerStatsRequest, ListContainerStatsResponse, Number,
};
use epilogue_agent::cri::wire::{self, Call as _, ContainerState, Empty, PodSandboxState};
use futures::future::ready;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::body::Body;

use crate::cri::{serve, unary};
use messages::{
    Container, ContainerId, ContainerStatus, ContainerStatusAnswer, Containers, CreateContainer,
    Image, ImageStatusAnswer, Linux, ListContainers, ListPodSandbox, NamespaceOptions, Namespaces,
    Network, PodSandbox, PodSandboxId, PodSandboxStatus, PodSandboxStatusAnswer, PodSandboxes,
    RunPodSandbox, StatusOfContainer, StatusOfImage, StatusOfPodSandbox,
};

/// The name of an image that is not there.
pub const NO_IMAGE: &str = "missing";
/// `NamespaceMode` of a pod with the network of its node.
const NODE: i32 = 2;

/// A running runtime. It ends when it is dropped; its containers are not processes.
#[derive(Debug)]
pub struct PodRuntime {
    world: Arc<World>,
    server: Option<Runtime>,
}

/// What a test sees of a container.
#[derive(Clone, Debug)]
pub struct PodContainer {
    /// The pod's name.
    pub pod: String,
    /// When it was started.
    pub started: Option<Instant>,
    /// When the kubelet first asked for its end, and with what grace in seconds.
    pub stop: Option<(Instant, i64)>,
    /// When it ended, and its exit code.
    pub end: Option<(Instant, i32)>,
}

#[derive(Debug)]
struct World {
    images: String,
    things: Mutex<Things>,
}

#[derive(Debug, Default)]
struct Things {
    made: u64,
    /// How long a pod's containers take to end, and with what code, by the pod's name; others end
    /// at once, by the signal.
    ends: BTreeMap<String, (Duration, i32)>,
    sandboxes: Vec<PodSandbox>,
    containers: Vec<Record>,
}

#[derive(Debug)]
struct Record {
    status: ContainerStatus,
    sandbox: String,
    seen: PodContainer,
    is_removed: bool,
}

impl PodRuntime {
    /// Starts a runtime at this socket, whose images lie in this directory.
    pub fn start_at(socket: &Path, images: &Path) -> Self {
        fs::create_dir_all(socket.parent().expect("must lie in a directory"))
            .expect("must be writable");
        let images = images.display().to_string();
        let world = Arc::new(World { images, things: Mutex::default() });
        let served = Arc::clone(&world);
        let server = serve(
            socket,
            tower::service_fn(move |request| {
                let world = Arc::clone(&served);
                async move { Ok::<_, Infallible>(world.answer(request).await) }
            }),
        );
        Self { world, server: Some(server) }
    }

    /// From now on, the containers of this pod take so long to end after SIGTERM, with this code.
    pub fn set_end(&self, pod: &str, takes: Duration, code: i32) {
        self.world.things().ends.insert(pod.to_owned(), (takes, code));
    }

    /// Loses what runs, as containerd does when its machine boots.
    pub fn boot(&self) {
        let mut things = self.world.things();
        let not_ready = PodSandboxState::NotReady.into();
        things.sandboxes.iter_mut().for_each(|it| it.state = not_ready);
        for container in things.containers.iter_mut().filter(|it| it.seen.end.is_none()) {
            container.end(255);
            container.status.reason = "Unknown".into();
        }
    }

    /// All containers so far, in the order of their creation.
    pub fn containers(&self) -> Vec<PodContainer> {
        self.world.things().containers.iter().map(|it| it.seen.clone()).collect()
    }
}

impl Drop for PodRuntime {
    fn drop(&mut self) {
        self.server.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl World {
    fn things(&self) -> MutexGuard<'_, Things> {
        self.things.lock().expect("no holder panics")
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            wire::VersionRequest::PATH => {
                unary(request, |_: wire::VersionRequest| ready(Ok(version()))).await
            }
            wire::StatusRequest::PATH => {
                unary(request, |_: wire::StatusRequest| ready(Ok(is_ready()))).await
            }
            RunPodSandbox::PATH => unary(request, |sent| ready(self.run(sent))).await,
            ListPodSandbox::PATH => unary(request, |sent| ready(Ok(self.sandboxes(&sent)))).await,
            StatusOfPodSandbox::PATH => unary(request, |sent| ready(self.sandbox(&sent))).await,
            wire::StopPodSandboxRequest::PATH => {
                unary(request, |sent| ready(Ok(self.stop_sandbox(&sent)))).await
            }
            PodSandboxId::PATH => {
                unary(request, |sent| ready(Ok(self.remove_sandbox(&sent)))).await
            }
            CreateContainer::PATH => unary(request, |sent| ready(self.create(sent))).await,
            ContainerId::PATH => unary(request, |sent| ready(self.start(&sent))).await,
            ListContainers::PATH => unary(request, |sent| ready(Ok(self.containers(&sent)))).await,
            StatusOfContainer::PATH => unary(request, |sent| ready(self.container(&sent))).await,
            wire::StopContainerRequest::PATH => unary(request, |sent| self.stop(sent)).await,
            wire::RemoveContainerRequest::PATH => {
                unary(request, |sent: wire::RemoveContainerRequest| {
                    ready(self.with(&sent.container_id, |it| it.is_removed = true))
                })
                .await
            }
            StatusOfImage::PATH => unary(request, |sent| ready(Ok(image(sent)))).await,
            // Nothing is counted of a container that is no process.
            ListContainerStatsRequest::PATH => {
                let none = ListContainerStatsResponse::default();
                unary(request, |_: ListContainerStatsRequest| ready(Ok(none.clone()))).await
            }
            ImageFsInfoRequest::PATH => {
                unary(request, |_: ImageFsInfoRequest| ready(Ok(self.image_fs()))).await
            }
            _ => Status::unimplemented(path).into_http(),
        }
    }

    fn run(&self, sent: RunPodSandbox) -> Result<PodSandboxId, Status> {
        let config = sent.config.ok_or_else(missing)?;
        let mut things = self.things();
        let id = things.id("sandbox");
        things.sandboxes.push(PodSandbox {
            id: id.clone(),
            metadata: config.metadata,
            state: PodSandboxState::Ready.into(),
            created_at: now(),
            labels: config.labels,
            annotations: config.annotations,
        });
        Ok(PodSandboxId { id })
    }

    fn sandboxes(&self, sent: &ListPodSandbox) -> PodSandboxes {
        let filter = sent.filter.clone().unwrap_or_default();
        let is_asked = |it: &&PodSandbox| {
            (filter.id.is_empty() || filter.id == it.id)
                && filter.state.as_ref().is_none_or(|state| state.state == it.state)
                && filter.labels.iter().all(|(key, value)| it.labels.get(key) == Some(value))
        };
        PodSandboxes { items: self.things().sandboxes.iter().filter(is_asked).cloned().collect() }
    }

    fn sandbox(&self, sent: &StatusOfPodSandbox) -> Result<PodSandboxStatusAnswer, Status> {
        let things = self.things();
        let found =
            things.sandboxes.iter().find(|it| it.id == sent.id).ok_or_else(missing)?.clone();
        let options = NamespaceOptions { network: NODE, ..NamespaceOptions::default() };
        let namespaces = Some(Namespaces { options: Some(options) });
        Ok(PodSandboxStatusAnswer {
            status: Some(PodSandboxStatus {
                id: found.id,
                metadata: found.metadata,
                state: found.state,
                created_at: found.created_at,
                network: Some(Network { ip: "127.0.0.1".into() }),
                linux: Some(Linux { namespaces }),
                labels: found.labels,
                annotations: found.annotations,
            }),
        })
    }

    fn stop_sandbox(&self, sent: &wire::StopPodSandboxRequest) -> Empty {
        let mut things = self.things();
        let id = &sent.pod_sandbox_id;
        things.containers.iter_mut().filter(|it| it.sandbox == *id).for_each(|it| it.end(137));
        let sandboxes = things.sandboxes.iter_mut().filter(|it| it.id == *id);
        sandboxes.for_each(|it| it.state = PodSandboxState::NotReady.into());
        Empty {}
    }

    fn remove_sandbox(&self, sent: &PodSandboxId) -> Empty {
        self.things().sandboxes.retain(|it| it.id != sent.id);
        Empty {}
    }

    fn create(&self, sent: CreateContainer) -> Result<ContainerId, Status> {
        let config = sent.config.ok_or_else(missing)?;
        let mut things = self.things();
        let id = things.id("container");
        let pod = config.labels.get(wire::POD_NAME_LABEL).cloned().unwrap_or_default();
        let image = config.image.unwrap_or_default();
        let status = ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: ContainerState::Created.into(),
            created_at: now(),
            image_ref: image.image.clone(),
            image_id: image.image.clone(),
            image: Some(image),
            // A kubelet removes all files that begin with it.
            log_path: format!("{}/logs/{id}.log", self.images),
            labels: config.labels,
            annotations: config.annotations,
            ..ContainerStatus::default()
        };
        let seen = PodContainer { pod, started: None, stop: None, end: None };
        things.containers.push(Record { status, sandbox: sent.sandbox, seen, is_removed: false });
        Ok(ContainerId { id })
    }

    fn with<T>(&self, id: &str, work: impl FnOnce(&mut Record) -> T) -> Result<Empty, Status> {
        let mut things = self.things();
        let found = things.containers.iter_mut().find(|it| it.is(id)).ok_or_else(missing)?;
        work(found);
        Ok(Empty {})
    }

    fn start(&self, sent: &ContainerId) -> Result<Empty, Status> {
        self.with(&sent.id, |it| {
            (it.status.state, it.status.started_at) = (ContainerState::Running.into(), now());
            it.seen.started = Some(Instant::now());
        })
    }

    fn containers(&self, sent: &ListContainers) -> Containers {
        let filter = sent.filter.clone().unwrap_or_default();
        let is_asked = |it: &&Record| {
            !it.is_removed
                && (filter.id.is_empty() || filter.id == it.status.id)
                && (filter.sandbox.is_empty() || filter.sandbox == it.sandbox)
                && filter.state.as_ref().is_none_or(|state| state.state == it.status.state)
                && filter.labels.iter().all(|(key, value)| it.status.labels.get(key) == Some(value))
        };
        let things = self.things();
        let found = things.containers.iter().filter(is_asked);
        Containers { containers: found.map(Record::listed).collect() }
    }

    fn container(&self, sent: &StatusOfContainer) -> Result<ContainerStatusAnswer, Status> {
        let things = self.things();
        let found = things.containers.iter().find(|it| it.is(&sent.id)).ok_or_else(missing)?;
        Ok(ContainerStatusAnswer { status: Some(found.status.clone()) })
    }

    /// Sends SIGTERM, waits, and kills.
    async fn stop(&self, sent: wire::StopContainerRequest) -> Result<Empty, Status> {
        let id = sent.container_id;
        let mut pod = String::new();
        self.with(&id, |it| {
            it.seen.stop.get_or_insert((Instant::now(), sent.timeout));
            pod.clone_from(&it.seen.pod);
        })?;
        let end = self.things().ends.get(&pod).copied();
        let (takes, code) = end.unwrap_or((Duration::ZERO, 143));
        let grace = Duration::from_secs(sent.timeout.try_into().unwrap_or(0));
        tokio::time::sleep(takes.min(grace)).await;
        self.with(&id, |it| it.end(if takes <= grace { code } else { 137 }))
    }

    fn image_fs(&self) -> ImageFsInfoResponse {
        let usage = FilesystemUsage {
            fs_id: Some(FilesystemIdentifier { mountpoint: self.images.clone() }),
            used_bytes: Some(Number { value: 0 }),
            inodes_used: None,
        };
        ImageFsInfoResponse { image_filesystems: vec![usage], container_filesystems: Vec::new() }
    }
}

impl Things {
    fn id(&mut self, of: &str) -> String {
        self.made += 1;
        format!("{of}{}", self.made)
    }
}

impl Record {
    fn is(&self, id: &str) -> bool {
        !self.is_removed && self.status.id == id
    }

    fn end(&mut self, code: i32) {
        if self.seen.end.is_none() {
            self.status.state = ContainerState::Exited.into();
            (self.status.finished_at, self.status.exit_code) = (now(), code);
            self.status.reason = if code == 0 { "Completed" } else { "Error" }.into();
            self.seen.end = Some((Instant::now(), code));
        }
    }

    fn listed(&self) -> Container {
        let status = self.status.clone();
        Container {
            id: status.id,
            sandbox: self.sandbox.clone(),
            metadata: status.metadata,
            image: status.image,
            image_ref: status.image_ref,
            state: status.state,
            created_at: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
            image_id: status.image_id,
        }
    }
}

fn missing() -> Status {
    Status::not_found("there is none here")
}

/// In ns since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it must be after 1970");
    i64::try_from(since.as_nanos()).expect("it must be before 2262")
}

fn version() -> wire::VersionResponse {
    wire::VersionResponse {
        version: "0.1.0".into(),
        runtime_name: "double".into(),
        runtime_version: "v0.0.0".into(),
        runtime_api_version: "v1".into(),
    }
}

fn is_ready() -> wire::StatusResponse {
    let condition = |kind: &str| wire::RuntimeCondition {
        kind: kind.into(),
        status: true,
        reason: String::new(),
        message: String::new(),
    };
    let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
    wire::StatusResponse { status: Some(wire::RuntimeStatus { conditions }) }
}

/// Every image but [`NO_IMAGE`] is there, and none can be pulled.
fn image(sent: StatusOfImage) -> ImageStatusAnswer {
    let spec = sent.image.unwrap_or_default();
    if spec.image.starts_with(NO_IMAGE) {
        return ImageStatusAnswer { image: None };
    }
    let id = spec.image.clone();
    let image = Image { id: id.clone(), repo_tags: vec![id], size: 1, spec: Some(spec) };
    ImageStatusAnswer { image: Some(image) }
}
