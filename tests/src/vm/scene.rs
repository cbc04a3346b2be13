//! Sets up a machine for stories about the end of pods: a control plane of its own, the node, the
//! agent if the setting has one, and a watcher of the pods.

use std::fmt;

use anyhow::Context as _;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Resource};

use super::agent::{self, Install};
use super::{Boot, Kit, KubeletConfig, Node, Watcher};
use crate::stopwatch::Stopwatch;
use crate::{ControlPlane, Options};

/// The namespace of all its objects.
pub const NAMESPACE: &str = "default";

/// What to set up.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The control plane.
    pub options: Options,
    /// The node's name.
    pub node: &'a str,
    /// The node's kubelet.
    pub kubelet: &'a KubeletConfig,
    /// How the agent is installed, and its flags.
    pub agent: Option<(Install, Vec<String>)>,
    /// Command lines that run on the node before the agent comes.
    pub commands: Vec<String>,
}

/// A node with its control plane.
pub struct Scene {
    /// The control plane.
    pub control_plane: ControlPlane,
    /// The node.
    pub node: Node,
    /// The states of the pods.
    pub watcher: Watcher,
    /// A client that may do everything.
    pub client: kube::Client,
    /// How long each part took since the last reading.
    pub took: Stopwatch,
}

impl fmt::Debug for Scene {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scene").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Scene {
    /// Starts everything; returns when the node is ready, and the agent.
    pub async fn set(kit: &Kit, setting: Setting<'_>) -> anyhow::Result<Self> {
        let Setting { options, node: name, kubelet, agent, commands } = setting;
        let mut took = Stopwatch::default();
        let control_plane = ControlPlane::start(options).await?;
        took.lap("control plane");
        let client = control_plane.admin_client().await?;
        let (cluster, dir) = (control_plane.cluster(), control_plane.dir());
        if let Some((install, _)) = &agent {
            agent::prepare(*install, kit, dir, name).await?;
            took.lap("agent's build");
        }
        let node = Node::start(kit, cluster, dir, name, Boot::Snapshot, kubelet).await?;
        eprintln!("its files: {}", node.machine().dir().display());
        for command in &commands {
            node.run(command).await.with_context(|| format!("run {command:?} on the node"))?;
        }
        took.lap("node");
        if let Some((install, flags)) = &agent {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            agent::install(*install, &node, cluster, &flags).await?;
            took.lap("agent");
        }
        let watcher = Watcher::start(client.clone(), NAMESPACE, node.machine().dir()).await?;
        Ok(Self { control_plane, node, watcher, client, took })
    }

    /// The objects of a kind in its namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Forgets the states of the pods so far.
    pub async fn watch_anew(&mut self) -> anyhow::Result<()> {
        let dir = self.node.machine().dir();
        self.watcher = Watcher::start(self.client.clone(), NAMESPACE, dir).await?;
        Ok(())
    }

    /// Stops everything.
    pub async fn strike(self) -> anyhow::Result<()> {
        let Self { control_plane, node, watcher, .. } = self;
        drop(watcher);
        // Its processes go with it; the API that knew it goes next.
        drop(node);
        Ok(control_plane.stop().await?)
    }
}
