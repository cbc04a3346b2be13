//! Records what the API showed of a node's pods, state after state: in memory for assertions and in
//! a file for failure analysis.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use tokio::task::JoinHandle;

use super::error::VmError;
use super::writers;
use crate::error::LabError;
use crate::eventually::observe_until;

/// The condition by which our agent reports an OOM kill.
const OOM_KILLED: &str = "epilogue.dev/OOMKilled";

/// One state of one pod.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// When we saw it, by the clock of this machine.
    pub at: Timestamp,
    /// The pod's name.
    pub pod: String,
    /// The name of its node.
    pub node: String,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// Status and reason of the condition DisruptionTarget.
    pub disruption: Option<(String, String)>,
    /// Reason and message of our own condition OOMKilled, if it is True.
    pub cause: Option<(String, String)>,
    /// Status of the condition Ready.
    pub ready: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The state of the container.
    pub container: String,
    /// When the container ended.
    pub finished_at: Option<Timestamp>,
    /// How often it was restarted.
    pub restarts: i32,
    /// Whether the object was gone after this state.
    pub gone: bool,
    /// The last writers, by `managedFields`: `MANAGER/OPERATION/SUBRESOURCE@TIME`.
    pub written_by: Vec<String>,
    /// The last writer of the phase.
    pub phase_by: String,
}

impl Seen {
    fn of(pod: &Pod, gone: bool) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let condition = |kind: &str| {
            status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
        };
        let container = status.container_statuses.iter().flatten().next();
        let terminated =
            container.and_then(|container| container.state.as_ref()?.terminated.as_ref());
        Self {
            at: Timestamp::now(),
            pod: pod.metadata.name.clone().unwrap_or_default(),
            node: pod.spec.iter().find_map(|spec| spec.node_name.clone()).unwrap_or_default(),
            phase: status.phase.clone().unwrap_or_default(),
            reason: status.reason.clone().unwrap_or_default(),
            message: status.message.clone().unwrap_or_default(),
            disruption: condition("DisruptionTarget").map(|condition| {
                (condition.status.clone(), condition.reason.clone().unwrap_or_default())
            }),
            cause: condition(OOM_KILLED).filter(|condition| condition.status == "True").map(
                |condition| {
                    let text = |text: &Option<String>| text.clone().unwrap_or_default();
                    (text(&condition.reason), text(&condition.message))
                },
            ),
            ready: condition("Ready").map(|ready| ready.status.clone()).unwrap_or_default(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            container: container.map(describe).unwrap_or_default(),
            finished_at: terminated.and_then(|ended| Some(ended.finished_at.as_ref()?.0)),
            restarts: container.map_or(0, |container| container.restart_count),
            gone,
            written_by: writers::last(&pod.metadata),
            phase_by: writers::of_status(&pod.metadata, "phase").unwrap_or_default(),
        }
    }

    /// Whether the phase is terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase.as_str(), "Failed" | "Succeeded")
    }

    /// Whether DisruptionTarget is True.
    pub fn is_disrupted(&self) -> bool {
        self.disruption.as_ref().is_some_and(|(status, _)| status == "True")
    }

    /// Whether the container ended.
    pub fn has_ended(&self) -> bool {
        self.container.starts_with("terminated")
    }
}

fn describe(container: &ContainerStatus) -> String {
    let Some(state) = &container.state else { return "none".to_owned() };
    if let Some(waiting) = &state.waiting {
        return format!("waiting {}", waiting.reason.as_deref().unwrap_or_default());
    }
    match &state.terminated {
        Some(ended) => {
            format!("terminated {} {}", ended.exit_code, ended.reason.as_deref().unwrap_or(""))
        }
        None => "running".to_owned(),
    }
}

/// One line: a failure's message may hold dozens.
impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.at.strftime("%H:%M:%S%.1f");
        write!(f, "{time} {} {} ready={}", self.pod, self.phase, self.ready)?;
        if !self.reason.is_empty() {
            write!(f, " reason={} ({})", self.reason, self.message)?;
        }
        if let Some((status, reason)) = &self.disruption {
            write!(f, " DisruptionTarget={status}/{reason}")?;
        }
        if let Some((reason, message)) = &self.cause {
            write!(f, " OOMKilled={reason} ({message})")?;
        }
        if self.deleting {
            write!(f, " deleting")?;
        }
        if self.gone {
            write!(f, " GONE")?;
        }
        write!(f, " [{} restarts={}]", self.container, self.restarts)?;
        write!(f, " by {}; phase by {}", self.written_by.join(","), self.phase_by)
    }
}

/// Follows the pods of one namespace until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Starts to follow; the states also go to `pods.log` in `dir`.
    pub async fn start(client: kube::Client, namespace: &str, dir: &Path) -> Result<Self, VmError> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let path = dir.join("pods.log");
        std::fs::create_dir_all(dir).map_err(LabError::file("create", dir))?;
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(LabError::file("open", path))?;
        let list = pods.list(&kube::api::ListParams::default()).await;
        let list = list.map_err(LabError::api("list the pods of the test"))?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            // Ends when the API does, which the test then sees by itself.
            while let Ok(events) = pods.watch(&WatchParams::default(), &version).await {
                pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    let (pod, gone) = match event {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                        WatchEvent::Deleted(pod) => (pod, true),
                        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                    };
                    version = pod.metadata.resource_version.clone().unwrap_or_default();
                    let state = Seen::of(&pod, gone);
                    // A full disk must not end the watch.
                    let _ = writeln!(log, "{state:?}");
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(state);
                }
            }
        });
        Ok(Self { seen, task })
    }

    /// Every state of `pod`, in order.
    pub fn history(&self, pod: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|state| state.pod == pod).cloned().collect()
    }

    /// The last state of every pod, by name.
    pub fn last(&self) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = std::collections::BTreeMap::new();
        for state in seen.iter() {
            last.insert(state.pod.clone(), state.clone());
        }
        last.into_values().collect()
    }

    /// Waits until the history of `pod` satisfies the predicate, and returns it; on time-out it
    /// panics with the history.
    #[track_caller]
    pub fn until(
        &self,
        pod: &str,
        what: &str,
        within: Duration,
        holds: impl Fn(&[Seen]) -> bool,
    ) -> impl Future<Output = Vec<Seen>> {
        let caller = std::panic::Location::caller();
        async move {
            let observe = async || self.history(pod);
            match observe_until(within, observe, |history| holds(history)).await {
                Ok(history) => history,
                Err(history) => {
                    panic!("{caller}: {pod}: not within {within:?}: {what}; seen: {history:#?}")
                }
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
