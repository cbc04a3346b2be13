//! Writes the status of a kubelet: container states, the pod's conditions, and the patch made of
//! them. `machine` decides what happens to a pod; this file only expresses it in the API's terms.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::pod::{ContainerSpec, PodView, Role};

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Termination {
    pub(super) code: i32,
    pub(super) reason: Cow<'static, str>,
    pub(super) message: Option<&'static str>,
    pub(super) started: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
}

impl Termination {
    pub(super) fn exit(
        code: i32,
        reason: Option<&str>,
        started: Timestamp,
        now: Timestamp,
    ) -> Self {
        let reason = match reason {
            Some(reason) => reason.to_owned().into(),
            None if code == 0 => "Completed".into(),
            None => "Error".into(),
        };
        Self { code, reason, message: None, started: Some(started), finished: Some(now) }
    }

    /// What the kubelet reports of a container it cannot find.
    pub(super) fn unknown() -> Self {
        Self {
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: Some("The container could not be located when the pod was terminated"),
            started: None,
            finished: None,
        }
    }

    fn json(&self, container_id: &str) -> Value {
        json!({
            "exitCode": self.code,
            "reason": self.reason,
            "message": self.message,
            "startedAt": self.started.map(seconds),
            "finishedAt": self.finished.map(seconds),
            "containerID": container_id,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContainerState {
    Waiting(Cow<'static, str>),
    Running { since: Timestamp },
    Terminated(Termination),
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) spec: ContainerSpec,
    pub(super) state: ContainerState,
    pub(super) last: Option<Termination>,
    pub(super) restarts: u32,
}

impl Container {
    pub(super) fn new(spec: ContainerSpec) -> Self {
        let state = ContainerState::Waiting("ContainerCreating".into());
        Self { spec, state, last: None, restarts: 0 }
    }

    pub(super) fn termination(&self) -> Option<&Termination> {
        match &self.state {
            ContainerState::Terminated(termination) => Some(termination),
            _ => None,
        }
    }

    /// Starts, or restarts after an end.
    pub(super) fn start(&mut self, now: Timestamp) {
        let past = std::mem::replace(&mut self.state, ContainerState::Running { since: now });
        if let ContainerState::Terminated(termination) = past {
            self.last = Some(termination);
        }
        if self.last.is_some() {
            self.restarts += 1;
        }
    }

    /// Exits, if it runs.
    pub(super) fn exit(&mut self, code: i32, reason: Option<&str>, now: Timestamp) {
        if let ContainerState::Running { since } = self.state {
            self.state = ContainerState::Terminated(Termination::exit(code, reason, since, now));
        }
    }

    /// Waits for its next start after an end.
    pub(super) fn back_off(&mut self) {
        let waiting = ContainerState::Waiting("CrashLoopBackOff".into());
        if let ContainerState::Terminated(termination) = std::mem::replace(&mut self.state, waiting)
        {
            self.last = Some(termination);
        }
    }

    fn json(&self, uid: &str, pod_ready: bool, message: Option<&str>) -> Value {
        let id = |run: u32| format!("sim://{uid}/{}/{run}", self.spec.name);
        let current = id(self.restarts);
        let (ready, started, state) = match &self.state {
            ContainerState::Waiting(reason) => {
                (false, false, json!({"waiting": {"reason": reason, "message": message}}))
            }
            ContainerState::Running { since } => {
                (pod_ready, true, json!({"running": {"startedAt": seconds(*since)}}))
            }
            ContainerState::Terminated(end) => {
                // A finished init container counts as ready, as the kubelet has it.
                let ready = self.spec.role == Role::Init && end.code == 0;
                (ready, false, json!({"terminated": end.json(&current)}))
            }
        };
        let never_ran = matches!(self.state, ContainerState::Waiting(_)) && self.last.is_none();
        let last = self
            .last
            .as_ref()
            .map(|end| json!({"terminated": end.json(&id(self.restarts.saturating_sub(1)))}));
        json!({
            "name": self.spec.name,
            "image": self.spec.image,
            "imageID": "",
            "containerID": if never_ran { None } else { Some(current) },
            "ready": ready,
            "started": started,
            "restartCount": self.restarts,
            "state": state,
            "lastState": last.unwrap_or_else(|| json!({})),
        })
    }
}

/// A condition's value and since when it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    pub(super) status: bool,
    since: Timestamp,
}

impl Flag {
    pub(super) fn new(status: bool, now: Timestamp) -> Self {
        Self { status, since: now }
    }

    pub(super) fn set(&mut self, status: bool, now: Timestamp) {
        if self.status != status {
            *self = Self::new(status, now);
        }
    }
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Why the node, and not the pod itself, terminated the pod.
#[derive(Clone, Debug)]
pub(super) struct Disruption {
    pub(super) message: String,
    pub(super) at: Timestamp,
}

/// The node's complete status of a pod.
#[derive(Clone, Debug)]
pub(super) struct PodStatus {
    pub(super) phase: Phase,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    /// The message of the waiting containers.
    pub(super) waiting_message: Option<String>,
    pub(super) containers: Vec<Container>,
    pub(super) started: Timestamp,
    pub(super) initialized: Flag,
    pub(super) ready: Flag,
    pub(super) sandbox: Flag,
    pub(super) disruption: Option<Disruption>,
}

impl PodStatus {
    pub(super) fn new(containers: &[ContainerSpec], now: Timestamp) -> Self {
        let has_init = containers.iter().any(|container| container.role != Role::Main);
        Self {
            phase: Phase::Pending,
            reason: None,
            message: None,
            waiting_message: None,
            containers: containers.iter().cloned().map(Container::new).collect(),
            started: now,
            initialized: Flag::new(!has_init, now),
            ready: Flag::new(false, now),
            sandbox: Flag::new(false, now),
            disruption: None,
        }
    }

    pub(super) fn of(&mut self, role: Role) -> impl Iterator<Item = &mut Container> {
        self.containers.iter_mut().filter(move |container| container.spec.role == role)
    }

    /// The strategic merge patch of `pods/status`. Conditions merge by type: those of other writers
    /// stay.
    pub(super) fn patch(&self, pod: &PodView, address: &Address) -> Value {
        let list = |init: bool| -> Vec<Value> {
            let chosen = self.containers.iter().filter(|c| (c.spec.role != Role::Main) == init);
            let message = self.waiting_message.as_deref();
            chosen.map(|c| c.json(&pod.uid, self.ready.status, message)).collect()
        };
        let mut status = json!({
            "observedGeneration": pod.generation,
            "phase": self.phase.name(),
            "reason": self.reason,
            "message": self.message,
            "startTime": seconds(self.started),
            "hostIP": address.host,
            "hostIPs": [{"ip": address.host}],
            "conditions": self.conditions(pod),
            "containerStatuses": list(false),
        });
        if self.sandbox.status || self.phase != Phase::Pending {
            status["podIP"] = json!(address.pod);
            // Nodes that were started anew do not know the address that they gave before.
            status["podIPs"] = json!([{"$patch": "replace"}, {"ip": address.pod}]);
        }
        let init = list(true);
        if !init.is_empty() {
            status["initContainerStatuses"] = Value::Array(init);
        }
        json!({"metadata": {"uid": &*pod.uid}, "status": status})
    }

    fn conditions(&self, pod: &PodView) -> Vec<Value> {
        let condition = |kind: &str, flag: Flag, reason: Option<&str>, message: Option<String>| {
            json!({
                "type": kind,
                "status": if flag.status { "True" } else { "False" },
                "reason": reason,
                "message": message,
                "lastTransitionTime": seconds(flag.since),
                "observedGeneration": pod.generation,
            })
        };
        let (reason, message) = self.unready();
        let (init_reason, init_message) = self.uninitialized();
        let mut all = vec![
            condition("PodReadyToStartContainers", self.sandbox, None, None),
            condition("Initialized", self.initialized, init_reason, init_message),
            condition("Ready", self.ready, reason, message.clone()),
            condition("ContainersReady", self.ready, reason, message),
        ];
        if !pod.scheduled_condition {
            all.push(condition("PodScheduled", Flag::new(true, self.started), None, None));
        }
        if let Some(disruption) = &self.disruption {
            let flag = Flag::new(true, disruption.at);
            let message = Some(disruption.message.clone());
            all.push(condition("DisruptionTarget", flag, Some("TerminationByKubelet"), message));
        }
        all
    }

    fn unready(&self) -> (Option<&'static str>, Option<String>) {
        match self.phase {
            Phase::Succeeded => (Some("PodCompleted"), None),
            Phase::Failed => (Some("PodFailed"), None),
            _ if self.ready.status => (None, None),
            _ => {
                let unready = self.names(|c| c.spec.role != Role::Init);
                let message = format!("containers with unready status: [{unready}]");
                (Some("ContainersNotReady"), Some(message))
            }
        }
    }

    fn uninitialized(&self) -> (Option<&'static str>, Option<String>) {
        if self.initialized.status {
            let done = self.phase == Phase::Succeeded;
            return (done.then_some("PodCompleted"), None);
        }
        let incomplete = self.names(|c| {
            c.spec.role == Role::Init && c.termination().is_none_or(|end| end.code != 0)
        });
        let message = format!("containers with incomplete status: [{incomplete}]");
        (Some("ContainersNotInitialized"), Some(message))
    }

    fn names(&self, keep: impl Fn(&Container) -> bool) -> String {
        let names: Vec<&str> =
            self.containers.iter().filter(|c| keep(c)).map(|c| c.spec.name.as_str()).collect();
        names.join(" ")
    }
}

/// The addresses in a pod's status.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) pod: String,
}

impl Address {
    /// Addresses repeat after 65,536 pods; no traffic is routed to them.
    pub(super) fn new(node: usize, pod: u32) -> Self {
        let [_, _, high, low] = pod.to_be_bytes();
        Self { host: host_address(node), pod: format!("10.244.{high}.{low}") }
    }
}

/// The internal address of the n-th node.
pub(super) fn host_address(node: usize) -> String {
    let [.., high, low] = node.to_be_bytes();
    format!("10.0.{high}.{low}")
}

/// Whole seconds, the resolution of the API.
pub(super) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
