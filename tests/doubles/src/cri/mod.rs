//! Provides a double of the container runtime: CRI v1 on a unix socket, with processes as
//! containers. It does what containerd does, with scripted faults. Everything stops when it is
//! dropped.

mod faults;
mod pods;
mod process;
mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epilogue_runtime::clock::Clock;
use futures::stream;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};

pub use faults::{Call, Fault, Seen};
pub use pods::{ContainerFact, Layer, PodBuilder};
pub use process::{Exit, Process, Script};
pub(crate) use service::unary;
pub use service::{Service, World};

/// A running double.
#[derive(Debug)]
pub struct CriDouble {
    /// The path of its socket.
    pub socket: PathBuf,
    world: Arc<World>,
    /// A runtime of its own, so that dropping it breaks all connections, as the end of a process
    /// does.
    server: Option<Runtime>,
    /// The runtime that waits for the processes, across restarts of the server.
    host: Option<Runtime>,
}

impl CriDouble {
    /// Starts a double at containerd's socket on a host whose files lie under `root`.
    pub fn start(root: &Path) -> Self {
        Self::start_at(&root.join("run/containerd/containerd.sock"))
    }

    /// Starts a double at this socket.
    pub fn start_at(socket: &Path) -> Self {
        let dir = socket.parent().expect("must lie in a directory");
        fs::create_dir_all(dir).expect("the root must be writable");
        let host = runtime();
        let world = Arc::new(World::new(host.handle().clone(), Clock::MACHINE));
        let mut double = Self { socket: socket.to_owned(), world, server: None, host: Some(host) };
        double.listen();
        double
    }

    /// Stops the runtime, as a crash does; its containers keep running.
    pub fn crash(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
        // A crash leaves the socket's file; the next start replaces it.
        let _ = fs::remove_file(&self.socket);
    }

    /// Starts it again after a crash.
    pub fn listen(&mut self) {
        let service = Service::new(Arc::clone(&self.world));
        let server = serve(&self.socket, service);
        self.server = Some(server);
    }

    /// Begins a pod.
    pub fn pod(&self, uid: &str) -> PodBuilder {
        PodBuilder::new(Arc::clone(&self.world), uid)
    }

    /// From now on, each `call` about `target` meets the fault. The target is a container's name,
    /// or its pod's UID; empty means all.
    pub fn fault(&self, call: Call, target: &str, fault: Fault) {
        self.world.faults.add(call, target, fault);
    }

    /// Ends all faults; calls that hang keep hanging.
    pub fn mend(&self) {
        self.world.faults.clear();
    }

    /// How often a call came.
    pub fn count(&self, call: Call) -> usize {
        self.seen().iter().filter(|seen| seen.call == call).count()
    }

    /// The calls so far, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.world.faults.seen()
    }

    /// Removes a container by its name, after killing its process.
    pub fn remove(&self, uid: &str, name: &str) {
        self.world.remove(uid, name);
    }

    /// Kills a container's process by its name, as if it crashed.
    pub fn kill(&self, uid: &str, name: &str) {
        self.world.kill(uid, name);
    }

    /// Adds a pod with one container of this id, which runs without a process.
    pub fn add_idle(&self, uid: &str, name: &str, id: &str) {
        self.world.add_model_with_id(uid, name, Some(id), Process::idle());
    }

    /// Sets what is counted of a container's writable layer, by its name.
    pub fn set_layer(&self, uid: &str, name: &str, layer: Layer) {
        self.world.set_layer(uid, name, layer);
    }

    /// Sets directories on the file systems of images.
    pub fn set_images(&self, directories: &[&str]) {
        self.world.set_images(directories);
    }

    /// The runtime's id of a container, by its name.
    pub fn id(&self, uid: &str, name: &str) -> String {
        self.world.id(uid, name).expect("the container must be there")
    }

    /// The state of a pod's containers, in the order of their creation.
    pub fn containers(&self, uid: &str) -> Vec<ContainerFact> {
        self.world.facts(uid)
    }

    /// How many processes run.
    pub fn running(&self) -> usize {
        self.world.running()
    }
}

impl Drop for CriDouble {
    fn drop(&mut self) {
        self.crash();
        self.world.kill_all();
        if let Some(host) = self.host.take() {
            // The processes are killed; the task that waits for them may be dropped.
            host.shutdown_background();
        }
    }
}

/// Serves calls on a socket until the runtime is dropped.
pub(crate) fn serve<S>(socket: &Path, service: S) -> Runtime
where
    S: tower::Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static,
{
    let server = runtime();
    let listener = {
        let _context = server.enter();
        UnixListener::bind(socket).expect("the socket must be free")
    };
    let incoming = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    server.spawn(async move {
        tonic::transport::Server::builder().serve_with_incoming(service, incoming).await
    });
    server
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime must be startable")
}
