//! Defines the double's pods: their sandboxes and containers, labelled as the kubelet labels them.

use std::collections::BTreeMap;
use std::sync::Arc;

use epilogue_agent::cri::stats::{ContainerAttributes, ContainerStats, FilesystemUsage, Number};
use epilogue_agent::cri::wire::{
    CONTAINER_NAME_LABEL, Container, ContainerState, ContainerStatus, POD_UID_LABEL, PodSandbox,
    PodSandboxState,
};

use super::process::{Exit, Process, Script};
use super::service::World;

/// One sandbox.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) uid: String,
    pub(super) ready: bool,
    created_at: i64,
}

/// One container.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) sandbox: String,
    created_at: i64,
    pub(super) process: Option<Process>,
    pub(super) layer: Layer,
}

/// What is counted of a container's writable layer; `None` is not counted yet.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

impl Default for Layer {
    fn default() -> Self {
        Self { bytes: Some(0), inodes: Some(1) }
    }
}

/// What a test sees of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFact {
    pub name: String,
    /// `None` while it runs, and if it never started.
    pub exit: Option<Exit>,
    pub started: bool,
}

impl World {
    /// Adds a pod whose one container is this process, which a model runs.
    pub fn add_model(&self, uid: &str, name: &str, process: Process) {
        self.add_model_with_id(uid, name, None, process);
    }

    pub(super) fn add_model_with_id(
        &self,
        uid: &str,
        name: &str,
        id: Option<&str>,
        process: Process,
    ) {
        let sandbox = self.add_sandbox(|number, created_at| Sandbox {
            id: format!("sandbox{number}"),
            uid: uid.to_owned(),
            ready: true,
            created_at,
        });
        self.add_container(|number, created_at| Record {
            id: id.map_or_else(|| format!("container{number}"), str::to_owned),
            name: name.to_owned(),
            uid: uid.to_owned(),
            sandbox,
            created_at,
            process: Some(process),
            layer: Layer::default(),
        });
    }
}

/// A pod under construction.
#[derive(Debug)]
pub struct PodBuilder {
    world: Arc<World>,
    uid: String,
    containers: Vec<(String, Script)>,
}

impl PodBuilder {
    pub(super) fn new(world: Arc<World>, uid: &str) -> Self {
        Self { world, uid: uid.to_owned(), containers: Vec::new() }
    }

    /// Adds a container behind the others.
    #[must_use]
    pub fn container(mut self, name: &str, script: Script) -> Self {
        self.containers.push((name.to_owned(), script));
        self
    }

    /// Starts the pod.
    pub async fn start(self) {
        let sandbox = self.world.add_sandbox(|number, created_at| Sandbox {
            id: format!("sandbox{number}"),
            uid: self.uid.clone(),
            ready: true,
            created_at,
        });
        for (name, script) in &self.containers {
            let process = script.start(&self.world.host).await;
            self.world.add_container(|number, created_at| Record {
                id: format!("container{number}"),
                name: name.clone(),
                uid: self.uid.clone(),
                sandbox: sandbox.clone(),
                created_at,
                process,
                layer: Layer::default(),
            });
        }
    }
}

fn labels(uid: &str) -> BTreeMap<String, String> {
    let pair = |key: &str, value: String| (key.to_owned(), value);
    BTreeMap::from([
        pair(POD_UID_LABEL, uid.to_owned()),
        pair("io.kubernetes.pod.name", format!("name-of-{uid}")),
        pair("io.kubernetes.pod.namespace", "default".to_owned()),
    ])
}

impl Sandbox {
    pub(super) fn listed(&self) -> PodSandbox {
        let state = if self.ready { PodSandboxState::Ready } else { PodSandboxState::NotReady };
        let mut labels = labels(&self.uid);
        labels.insert("app".into(), "of the pod's own".into());
        PodSandbox {
            id: self.id.clone(),
            state: state.into(),
            created_at: self.created_at,
            labels,
            annotations: [("kubernetes.io/config.source".to_owned(), "api".to_owned())].into(),
        }
    }
}

impl Record {
    pub(super) fn state(&self) -> ContainerState {
        match &self.process {
            None => ContainerState::Created,
            Some(process) if process.exit().is_some() => ContainerState::Exited,
            Some(_) => ContainerState::Running,
        }
    }

    pub(super) fn fact(&self) -> ContainerFact {
        ContainerFact {
            name: self.name.clone(),
            exit: self.process.as_ref().and_then(Process::exit),
            started: self.process.is_some(),
        }
    }

    pub(super) fn listed(&self) -> Container {
        let mut labels = labels(&self.uid);
        labels.insert(CONTAINER_NAME_LABEL.to_owned(), self.name.clone());
        Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            labels,
        }
    }

    pub(super) fn stats(&self) -> ContainerStats {
        let Container { id, labels, .. } = self.listed();
        let number = |value| Number { value };
        ContainerStats {
            attributes: Some(ContainerAttributes { id, labels }),
            writable_layer: Some(FilesystemUsage {
                used_bytes: self.layer.bytes.map(number),
                inodes_used: self.layer.inodes.map(number),
                ..FilesystemUsage::default()
            }),
        }
    }

    pub(super) fn status(&self) -> ContainerStatus {
        let exit = self.process.as_ref().and_then(Process::exit);
        let reason = match exit {
            None => "",
            Some(Exit { code: 0, .. }) => "Completed",
            Some(_) => "Error",
        };
        ContainerStatus {
            id: self.id.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            started_at: if self.process.is_some() { self.created_at } else { 0 },
            finished_at: exit.map_or(0, |exit| exit.finished_at),
            exit_code: exit.map_or(0, |exit| exit.code),
            reason: reason.to_owned(),
        }
    }
}
