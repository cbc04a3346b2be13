//! Provides a CSI driver for a real kubelet: the node's half, which mounts nothing. A test says how
//! long it takes to unstage a volume.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use epilogue_agent::cri::wire::Call;
use futures::future::{Ready, ready};
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::body::Body;

use crate::cri::{serve, unary};

/// The driver's name, as a CSIDriver and a persistent volume state it.
pub const NAME: &str = "csi.lab.epilogue.dev";
/// How often a call that takes long looks whether it may end.
const POLL: Duration = Duration::from_millis(20);
/// `STAGE_UNSTAGE_VOLUME`.
const STAGES: i32 = 1;

/// A running driver. It ends when it is dropped.
#[derive(Debug)]
pub struct CsiDriver {
    world: Arc<World>,
    servers: Vec<Runtime>,
}

/// A call that the kubelet made, and when the driver answered it.
#[derive(Clone, Debug)]
pub struct CsiCall {
    /// Its name, such as `NodeStageVolume`.
    pub name: &'static str,
    /// The handle of the volume.
    pub volume: String,
    /// When it came.
    pub begun: Instant,
    /// When it was answered.
    pub done: Option<Instant>,
}

#[derive(Debug)]
struct World {
    node: String,
    endpoint: String,
    things: Mutex<Things>,
}

#[derive(Debug, Default)]
struct Things {
    /// How long an unstage takes; without a value it hangs.
    unstage_takes: Option<Duration>,
    calls: Vec<CsiCall>,
}

/// Defines a message: each field with its type and number.
macro_rules! message {
    ($message:ident { $($field:ident: $kind:ty = ($($attribute:tt)*)),* $(,)? }) => {
        #[derive(Clone, PartialEq, Eq, prost::Message)]
        struct $message { $(#[prost($($attribute)*)] $field: $kind,)* }
    };
}

/// Names calls: service, call, request, answer.
macro_rules! calls {
    ($($service:literal $name:literal $request:ty => $answer:ty;)*) => { $(
        impl Call for $request {
            type Answer = $answer;
            const NAME: &'static str = $name;
            const PATH: &'static str = concat!("/", $service, "/", $name);
        }
    )* };
}

message!(PluginInfoRequest {});
message!(PluginInfo {
    kind: String = (string, tag = "1"),
    name: String = (string, tag = "2"),
    endpoint: String = (string, tag = "3"),
    versions: Vec<String> = (string, repeated, tag = "4"),
});
message!(Registered {
    is_registered: bool = (bool, tag = "1"),
    error: String = (string, tag = "2"),
});
message!(Nothing {});
message!(NodeInfoRequest {});
message!(NodeInfo { id: String = (string, tag = "1") });
message!(CapabilitiesRequest {});
message!(Capabilities { all: Vec<Capability> = (message, repeated, tag = "1"), });
message!(Capability { rpc: Option<Rpc> = (message, optional, tag = "1"), });
message!(Rpc { kind: i32 = (int32, tag = "1") });
message!(Stage { volume: String = (string, tag = "1") });
message!(Unstage { volume: String = (string, tag = "1") });
message!(Publish { volume: String = (string, tag = "1") });
message!(Unpublish { volume: String = (string, tag = "1") });

calls! {
    "pluginregistration.Registration" "GetInfo" PluginInfoRequest => PluginInfo;
    "pluginregistration.Registration" "NotifyRegistrationStatus" Registered => Nothing;
    "csi.v1.Node" "NodeGetInfo" NodeInfoRequest => NodeInfo;
    "csi.v1.Node" "NodeGetCapabilities" CapabilitiesRequest => Capabilities;
    "csi.v1.Node" "NodeStageVolume" Stage => Nothing;
    "csi.v1.Node" "NodePublishVolume" Publish => Nothing;
    "csi.v1.Node" "NodeUnpublishVolume" Unpublish => Nothing;
    "csi.v1.Node" "NodeUnstageVolume" Unstage => Nothing;
}

impl CsiDriver {
    /// Starts a driver for the kubelet of this node, whose files lie in this directory.
    pub fn start(dir: &Path, node: &str) -> Self {
        let root = dir.join("kubelet/root");
        // The kubelet sends the path as the authority, with `%2F` for a slash. Here only what
        // precedes an `@` may have such a code.
        let socket = root.join("plugins").join(NAME).join("csi@node.sock");
        let registry = root.join("plugins_registry").join(format!("{NAME}@registration.sock"));
        let endpoint = socket.display().to_string();
        let things = Mutex::new(Things { unstage_takes: Some(Duration::ZERO), calls: Vec::new() });
        let world = Arc::new(World { node: node.to_owned(), endpoint, things });
        let servers = [socket, registry].map(|socket| {
            let parent = socket.parent().expect("must lie in a directory");
            fs::create_dir_all(parent).expect("must be writable");
            let served = Arc::clone(&world);
            serve(
                &socket,
                tower::service_fn(move |request| {
                    let world = Arc::clone(&served);
                    async move { Ok::<_, Infallible>(world.answer(request).await) }
                }),
            )
        });
        Self { world, servers: servers.into() }
    }

    /// From now on, to unstage a volume takes so long, also where it has begun; without a value it
    /// hangs.
    pub fn set_unstage(&self, takes: Option<Duration>) {
        self.world.things().unstage_takes = takes;
    }

    /// All calls about volumes so far.
    pub fn calls(&self) -> Vec<CsiCall> {
        self.world.things().calls.clone()
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        self.servers.drain(..).for_each(Runtime::shutdown_background);
    }
}

impl World {
    fn things(&self) -> MutexGuard<'_, Things> {
        self.things.lock().expect("no holder panics")
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            PluginInfoRequest::PATH => {
                unary(request, |_: PluginInfoRequest| ready(Ok(self.info()))).await
            }
            Registered::PATH => {
                let answer = |sent: Registered| {
                    assert!(sent.is_registered, "the kubelet refuses the driver: {}", sent.error);
                    ready(Ok(Nothing {}))
                };
                unary(request, answer).await
            }
            NodeInfoRequest::PATH => {
                let id = self.node.clone();
                unary(request, |_: NodeInfoRequest| ready(Ok(NodeInfo { id: id.clone() }))).await
            }
            CapabilitiesRequest::PATH => {
                let stages = Capability { rpc: Some(Rpc { kind: STAGES }) };
                let all = Capabilities { all: vec![stages] };
                unary(request, |_: CapabilitiesRequest| ready(Ok(all.clone()))).await
            }
            Stage::PATH => unary(request, |it: Stage| self.at_once::<Stage>(it.volume)).await,
            Publish::PATH => unary(request, |it: Publish| self.at_once::<Publish>(it.volume)).await,
            Unpublish::PATH => {
                unary(request, |it: Unpublish| self.at_once::<Unpublish>(it.volume)).await
            }
            Unstage::PATH => unary(request, |it: Unstage| self.unstage(it.volume)).await,
            _ => Status::unimplemented(path).into_http(),
        }
    }

    fn info(&self) -> PluginInfo {
        PluginInfo {
            kind: "CSIPlugin".into(),
            name: NAME.into(),
            endpoint: self.endpoint.clone(),
            versions: vec!["1.0.0".into()],
        }
    }

    fn begin<C: Call>(&self, volume: String) -> usize {
        let mut things = self.things();
        things.calls.push(CsiCall { name: C::NAME, volume, begun: Instant::now(), done: None });
        things.calls.len() - 1
    }

    fn at_once<C: Call>(&self, volume: String) -> Ready<Result<Nothing, Status>> {
        let call = self.begin::<C>(volume);
        self.things().calls[call].done = Some(Instant::now());
        ready(Ok(Nothing {}))
    }

    async fn unstage(&self, volume: String) -> Result<Nothing, Status> {
        let call = self.begin::<Unstage>(volume);
        let begun = Instant::now();
        while self.things().unstage_takes.is_none_or(|takes| begun.elapsed() < takes) {
            tokio::time::sleep(POLL).await;
        }
        self.things().calls[call].done = Some(Instant::now());
        Ok(Nothing {})
    }
}
