//! Provides a container runtime that answers the measurements from scripted data; it can become
//! silent.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use epilogue_agent::cri::stats::{
    ContainerAttributes, ContainerStats, FilesystemIdentifier, FilesystemUsage, ImageFsInfoRequest,
    ImageFsInfoResponse, ListContainerStatsRequest, ListContainerStatsResponse, Number,
};
use epilogue_agent::cri::wire::{
    CONTAINER_NAME_LABEL, Call, Container, ListContainersRequest, ListContainersResponse,
    POD_UID_LABEL,
};
use epilogue_agent::cri::{Runtime, Sockets};
use futures::FutureExt as _;
use futures::future::{BoxFuture, pending};
use futures::stream;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Its answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub(crate) containers: Vec<Container>,
    pub(crate) stats: Vec<ContainerStats>,
    pub(crate) images: Vec<FilesystemUsage>,
    pub(crate) layers: Vec<FilesystemUsage>,
    pub(crate) silent: bool,
    /// Containers' usage is answered only after this notification.
    pub(crate) late: Option<Arc<Notify>>,
    /// The calls that came.
    pub(crate) calls: Vec<String>,
}

/// A running double; stops when dropped.
pub(crate) struct FakeRuntime {
    words: Arc<Mutex<Words>>,
    sockets: Sockets,
    _server: JoinSet<()>,
}

impl FakeRuntime {
    /// Listens at containerd's socket on the host under `root`.
    pub(crate) fn start(root: &Path, words: Words) -> Self {
        let socket = root.join("run/containerd/containerd.sock");
        std::fs::create_dir_all(socket.parent().expect("must have one")).expect("must be writable");
        let listener = UnixListener::bind(&socket).expect("the socket must be free");
        let incoming = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let words = Arc::new(Mutex::new(words));
        let service = Service(Arc::clone(&words));
        let mut server = JoinSet::new();
        server.spawn(async move {
            let serve = tonic::transport::Server::builder().serve_with_incoming(service, incoming);
            serve.await.expect("must serve");
        });
        Self { words, sockets: Sockets::new(None, root), _server: server }
    }

    pub(crate) fn runtime(&self) -> Runtime {
        Runtime::new(self.sockets.clone())
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Words) -> T) -> T {
        work(&mut self.words.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often a call came.
    pub(crate) fn calls(&self, name: &str) -> usize {
        self.with(|words| words.calls.iter().filter(|call| call.ends_with(name)).count())
    }
}

fn labels(uid: &str, name: &str) -> BTreeMap<String, String> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([pair(POD_UID_LABEL, uid), pair(CONTAINER_NAME_LABEL, name)])
}

/// A container of a pod.
pub(crate) fn container(uid: &str, name: &str, id: &str) -> Container {
    Container { id: id.into(), labels: labels(uid, name), ..Container::default() }
}

/// A file system with this path.
pub(crate) fn filesystem(path: &str) -> FilesystemUsage {
    let fs_id = Some(FilesystemIdentifier { mountpoint: path.into() });
    FilesystemUsage { fs_id, ..FilesystemUsage::default() }
}

/// A container's writable layer; `None` is not counted yet.
pub(crate) fn layer(
    uid: &str,
    name: &str,
    bytes: Option<u64>,
    inodes: Option<u64>,
) -> ContainerStats {
    let number = |value: Option<u64>| value.map(|value| Number { value });
    ContainerStats {
        attributes: Some(ContainerAttributes { id: "x".into(), labels: labels(uid, name) }),
        writable_layer: Some(FilesystemUsage {
            used_bytes: number(bytes),
            inodes_used: number(inodes),
            ..FilesystemUsage::default()
        }),
    }
}

#[derive(Clone, Debug)]
struct Service(Arc<Mutex<Words>>);

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let called = request.uri().path().to_owned();
        let words = {
            let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            words.calls.push(called.clone());
            words.clone()
        };
        async move {
            if words.silent {
                pending::<()>().await;
            }
            Ok(match called.as_str() {
                ListContainersRequest::PATH => {
                    let answer = ListContainersResponse { containers: words.containers };
                    unary::<ListContainersRequest>(request, answer).await
                }
                ListContainerStatsRequest::PATH => {
                    if let Some(late) = &words.late {
                        late.notified().await;
                    }
                    let answer = ListContainerStatsResponse { stats: words.stats };
                    unary::<ListContainerStatsRequest>(request, answer).await
                }
                ImageFsInfoRequest::PATH => {
                    let answer = ImageFsInfoResponse {
                        image_filesystems: words.images,
                        container_filesystems: words.layers,
                    };
                    unary::<ImageFsInfoRequest>(request, answer).await
                }
                _ => Status::unimplemented(called).into_http(),
            })
        }
        .boxed()
    }
}

async fn unary<C: Call<Answer: Clone> + Default>(
    request: http::Request<Body>,
    answer: C::Answer,
) -> http::Response<Body> {
    let service = tower::service_fn(move |_: Request<C>| {
        let answer = answer.clone();
        async move { Ok::<_, Status>(Response::new(answer)) }
    });
    tonic::server::Grpc::new(ProstCodec::<C::Answer, C>::default()).unary(service, request).await
}
