//! Models the node: containers, the kubelet, and logind with its delay locks.

use std::time::Duration;

use agent_core::pod::{
    Asks, Details, Owner, Phase, PodSource, PodUid, PodView, RestartPolicy, TERMINATION_BY_KUBELET,
};
use agent_core::protocol::event::{LogindState, RuntimeContainer, RuntimeState};
use agent_core::protocol::node::{Healthz, KubeletFacts, MainPort, Unit};
use agent_core::shutdown::priority_groups::PriorityGroup;
use agent_core::termination::patches::SHUTDOWN_MESSAGE;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use serde_json::json;

use super::scope::{DELAY, EXITS_AFTER, Kubelet, PERIOD, PodKind, STARTS_AT, wall};
use crate::agent::api::{Api, Shown, Stored};
use crate::agent::merge::merge;

/// Reason of a DisruptionTarget that is not the agent's.
pub(super) const FOREIGN: &str = "EvictionByEvictionAPI";

/// Name of a native sidecar.
const SIDECAR: &str = "sidecar";

/// A pod's container, and what the kubelet does with the pod.
#[derive(Clone, Debug, Hash)]
pub(super) struct Pod {
    pub(super) number: usize,
    pub(super) running: bool,
    /// Whether its sidecar runs; `None` without one.
    sidecar: Option<bool>,
    code: Option<i32>,
    ended_at: Option<Duration>,
    sandbox: bool,
    /// Whether it has received SIGTERM, and when it exits by that.
    termed: bool,
    pub(super) exits_at: Option<Duration>,
    pub(super) kubelet_kills_at: Option<Duration>,
    /// The runtime kills only while the caller of the stop waits.
    pub(super) agent_kills_at: Option<Duration>,
    acting: Acting,
}

/// What the kubelet does with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Acting {
    Keeps,
    Terminates,
    Reported,
}

/// The kubelet's process.
#[derive(Clone, Debug, Hash)]
pub(super) struct KubeletState {
    pub(super) lives: bool,
    /// Whether it has a graceful shutdown of its own.
    armed: bool,
    pub(super) shutting_down: bool,
    cancelled: bool,
}

/// logind.
#[derive(Clone, Debug, Hash)]
pub(super) struct Logind {
    /// When it waits no longer; `None` without a shutdown.
    pub(super) until: Option<Duration>,
    /// The process of the agent that holds a lock.
    pub(super) agent_lock: Option<u8>,
    pub(super) kubelet_lock: bool,
    pub(super) other_lock: bool,
}

impl Pod {
    fn new(number: usize, kind: PodKind) -> Self {
        Self {
            number,
            running: true,
            sidecar: kind.sidecar.then_some(true),
            code: None,
            ended_at: None,
            sandbox: true,
            termed: false,
            exits_at: None,
            kubelet_kills_at: None,
            agent_kills_at: None,
            acting: Acting::Keeps,
        }
    }

    pub(super) fn uid(&self) -> PodUid {
        uid(self.number)
    }

    /// Whether its container exited with 0.
    pub(super) fn ended_well(&self) -> bool {
        self.code == Some(0)
    }

    /// Whether anything of it runs.
    pub(super) fn is_up(&self) -> bool {
        self.running || self.sidecar == Some(true)
    }

    /// SIGTERM. A sidecar stops last, and at once.
    pub(super) fn term(&mut self, kind: PodKind, now: Duration) {
        if self.running && !self.termed {
            self.termed = true;
            self.exits_at = (!kind.hangs).then(|| now + EXITS_AFTER);
        }
        self.stop_sidecar();
    }

    fn stop_sidecar(&mut self) {
        if !self.running {
            self.sidecar = self.sidecar.map(|_| false);
        }
    }

    pub(super) fn exit(&mut self, code: i32, now: Duration) {
        self.running = false;
        (self.code, self.ended_at) = (Some(code), Some(now));
        (self.exits_at, self.kubelet_kills_at, self.agent_kills_at) = (None, None, None);
        if self.termed {
            self.stop_sidecar();
        }
    }

    pub(super) fn stop_sandbox(&mut self) {
        self.stop_sidecar();
        self.sandbox &= self.running;
    }

    /// What the runtime answers.
    pub(super) fn runtime(&self) -> RuntimeState {
        let reason = match self.code {
            None => "",
            Some(0) => "Completed",
            Some(_) => "Error",
        };
        let main = RuntimeContainer {
            id: format!("c-{}", self.number),
            name: "main".to_owned(),
            exited: !self.running,
            exit_code: self.code,
            finished_at: self.ended_at.map(wall),
            reason: reason.to_owned(),
        };
        let sidecar = self.sidecar.map(|runs| RuntimeContainer {
            id: format!("s-{}", self.number),
            name: SIDECAR.to_owned(),
            exited: !runs,
            exit_code: (!runs).then_some(143),
            finished_at: self.ended_at.filter(|_| !runs).map(wall),
            reason: String::new(),
        });
        RuntimeState {
            containers: std::iter::once(main).chain(sidecar).collect(),
            sandbox_ready: self.sandbox,
            sandbox_known: true,
        }
    }

    /// What the kubelet shows of the container.
    fn shown(&self) -> Shown {
        Shown {
            running_since: self.running.then(|| wall(Duration::from_secs(10))),
            ids: vec![("main".to_owned(), format!("c-{}", self.number))],
            restarted: false,
            killed: Vec::new(),
        }
    }
}

fn uid(number: usize) -> PodUid {
    PodUid(format!("uid-p{number}"))
}

/// All pods, in the API and on the node.
pub(super) fn populate(api: &mut Api, kinds: &[PodKind]) -> Vec<Pod> {
    let numbered = kinds.iter().enumerate();
    let pods: Vec<Pod> = numbered.map(|(number, kind)| Pod::new(number, *kind)).collect();
    for (pod, kind) in pods.iter().zip(kinds) {
        let mut stored = Stored::new(view(pod, *kind), !kind.restarts);
        stored.note_containers(pod.shown());
        stored.status["phase"] = "Running".into();
        if kind.disrupted {
            let at = wall(STARTS_AT.saturating_sub(Duration::from_secs(20))).to_string();
            let condition = json!({
                "type": DISRUPTION_TARGET, "status": "True", "reason": FOREIGN,
                "message": "evicted", "lastTransitionTime": at,
            });
            merge(&mut stored.status, &json!({"conditions": [condition]}));
        }
        api.create(stored);
    }
    pods
}

fn view(pod: &Pod, kind: PodKind) -> PodView {
    PodView {
        uid: pod.uid(),
        namespace: "ns".to_owned(),
        name: format!("p{}", pod.number),
        generation: 1,
        resource_version: String::new(),
        source: PodSource::Api,
        owner: if kind.restarts { Owner::Other } else { Owner::Job },
        restart_policy: if kind.restarts { RestartPolicy::Always } else { RestartPolicy::Never },
        restarts_in_place: if kind.restarts { RestartPolicy::Always } else { RestartPolicy::Never },
        restarts_all: false,
        sidecars: kind.sidecar.then(|| SIDECAR.to_owned()).into_iter().collect(),
        priority: 0,
        grace_seconds: Some(30),
        deletion_grace_seconds: None,
        phase: Phase::Pending,
        deadline_set: false,
        has_run: false,
        containers: vec!["main".to_owned()],
        running_since: None,
        disruption: None,
        asks: Asks::default(),
        details: Details::default(),
    }
}

impl KubeletState {
    pub(super) fn new(kubelet: Kubelet) -> Self {
        let (lives, armed) = (kubelet != Kubelet::Stopped, kubelet == Kubelet::ShutsDown);
        Self { lives, armed, shutting_down: false, cancelled: false }
    }

    /// Whether it has something to do with this pod.
    pub(super) fn acts(&self, pod: &Pod, api: &Api) -> bool {
        let Some(stored) = api.pods.get(&pod.uid()).filter(|_| self.lives) else { return false };
        let deleted = stored.deletion().is_some();
        match pod.acting {
            Acting::Keeps => deleted || self.shutting_down || !pod.running || stored.is_terminal(),
            Acting::Terminates => !pod.running,
            Acting::Reported => deleted && !stored.finalizer && stored.is_terminal(),
        }
    }

    /// Does the next thing with a pod.
    pub(super) fn act(&self, pod: &mut Pod, kind: PodKind, api: &mut Api, now: Duration) {
        let uid = pod.uid();
        let Some(stored) = api.pods.get(&uid) else { return };
        let (deletion, terminal) = (stored.deletion(), stored.is_terminal());
        let name = stored.name().to_owned();
        match pod.acting {
            Acting::Keeps if !pod.running => {
                let ends = !kind.restarts || deletion.is_some() || self.shutting_down || terminal;
                if ends {
                    pod.acting = Acting::Terminates;
                } else {
                    *pod = Pod::new(pod.number, kind);
                }
            }
            Acting::Keeps => {
                pod.acting = Acting::Terminates;
                let grace = deletion.map_or(PERIOD, |grace| Duration::from_secs(grace.into()));
                let grace = if self.shutting_down { grace.min(PERIOD) } else { grace };
                pod.term(kind, now);
                pod.kubelet_kills_at = Some(now + grace.max(Duration::from_secs(1)));
            }
            Acting::Terminates => {
                pod.acting = Acting::Reported;
                pod.stop_sandbox();
                self.report(pod, api, now);
                if api.pods.get(&uid).is_some_and(|stored| stored.deletion().is_some()) {
                    // If it is gone, it is gone.
                    let _ = api.delete(&name, &uid, 0);
                }
            }
            Acting::Reported => {
                let _ = api.delete(&name, &uid, 0);
            }
        }
    }

    /// Writes the final status; a phase that is terminal already stays.
    fn report(&self, pod: &Pod, api: &mut Api, now: Duration) {
        let phase = if pod.ended_well() { "Succeeded" } else { "Failed" };
        let mut status = json!({"phase": phase});
        if self.shutting_down {
            let at = wall(Duration::from_secs(now.as_secs())).to_string();
            status["conditions"] = json!([{
                "type": DISRUPTION_TARGET, "status": "True", "reason": TERMINATION_BY_KUBELET,
                "message": SHUTDOWN_MESSAGE, "lastTransitionTime": at,
            }]);
        }
        let shown = pod.shown();
        api.update(&pod.uid(), |stored| {
            if !stored.is_terminal() {
                merge(&mut stored.status, &status);
            }
            stored.note_containers(shown);
        });
    }

    /// It hears that the machine shuts down, or does not.
    pub(super) fn hear(&mut self, shuts_down: bool, api: &mut Api) {
        if !self.lives || !self.armed {
            return;
        }
        if shuts_down && !self.shutting_down {
            self.shutting_down = true;
            api.update_node(|node| node.kubelet_says_shutdown = true);
        }
        self.cancelled = !shuts_down && self.shutting_down;
    }

    /// Whether all its pods are terminated, so that it gives its lock back.
    pub(super) fn is_done(&self, pods: &[Pod], lock: bool) -> bool {
        let open = pods.iter().any(|pod| pod.acting != Acting::Reported);
        self.lives && self.shutting_down && !open && (lock || self.cancelled)
    }

    /// Gives its lock back; after a cancelled shutdown it takes a new one. ([SD10])
    pub(super) fn finish(&mut self, logind: &mut Logind, api: &mut Api) {
        logind.kubelet_lock = self.cancelled && logind.until.is_none();
        if std::mem::take(&mut self.cancelled) {
            self.shutting_down = false;
            api.update_node(|node| node.kubelet_says_shutdown = false);
        }
    }

    /// What the agent's source sees of it.
    pub(super) fn facts(&self, logind: &Logind) -> KubeletFacts {
        let period = if self.armed { PERIOD } else { Duration::ZERO };
        KubeletFacts {
            lock_armed: Some(logind.kubelet_lock),
            shutdown_groups: self.lives.then(|| PriorityGroup::of_all(period)),
            main_pid: self.lives.then_some(1_000),
            unit: Some(if self.lives { Unit::Active } else { Unit::Inactive }),
            healthy: Some(if self.lives { Healthz::Ok } else { Healthz::Refused }),
            main_port: Some(if self.lives { MainPort::Answers } else { MainPort::Refused }),
            lease_age: Some(Duration::from_secs(3)),
            eviction: None,
        }
    }
}

impl Logind {
    pub(super) fn new(kubelet: Kubelet, other_lock: bool) -> Self {
        let kubelet_lock = kubelet == Kubelet::ShutsDown;
        Self { until: None, agent_lock: None, kubelet_lock, other_lock }
    }

    /// Whether no lock delays a shutdown, or its time is over.
    pub(super) fn goes(&self, now: Duration) -> bool {
        let locked = self.agent_lock.is_some() || self.kubelet_lock || self.other_lock;
        self.until.is_some_and(|until| !locked || now >= until)
    }

    /// What a process of the agent reads.
    pub(super) fn state(&self, process: u8) -> LogindState {
        LogindState {
            owner: ":1.1".to_owned(),
            delay: Some(DELAY),
            preparing: self.until.is_some(),
            scheduled: None,
            lock_listed: Some(self.agent_lock == Some(process)),
        }
    }
}
