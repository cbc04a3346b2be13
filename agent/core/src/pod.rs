//! What of a pod the agent's decisions depend on. Reading it out of the API's objects is the
//! shell's job.

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Reason of the `DisruptionTarget` that a kubelet writes, and the agent with it.
/// ([SD16])
pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// The UID that the API gave a pod: what everything about a pod is keyed by. ([AP9])
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

/// One pod of the node, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// `metadata.uid`.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Who brought the pod to the kubelet.
    pub source: PodSource,
    /// The controlling owner.
    pub owner: Owner,
    /// `spec.restartPolicy`.
    pub restart_policy: RestartPolicy,
    /// Whether any container, init containers included, has a restart policy or rules of its own.
    pub container_restarts: bool,
    /// Names of the init containers that run alongside the others (restartPolicy Always).
    pub sidecars: Vec<String>,
    /// `spec.priority`; without one, 0.
    pub priority: i32,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_seconds: Option<u32>,
    /// `metadata.deletionGracePeriodSeconds`, which is there exactly when the pod is being deleted.
    pub deletion_grace_seconds: Option<u32>,
    /// Whether `spec.activeDeadlineSeconds` is what the deadline lever sets: a kubelet that lives
    /// ends the pod. ([API17])
    pub deadline_set: bool,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether the status shows that any container of the pod has ever run.
    pub has_run: bool,
    /// `spec.containers[].name`: those whose exit codes make the phase.
    pub containers: Vec<String>,
    /// The latest `state.running.startedAt` of the containers, none where none is shown running.
    pub running_since: Option<Timestamp>,
    /// The `DisruptionTarget` condition, whatever its status.
    pub disruption: Option<Disruption>,
    /// What it asks for of memory and disk.
    pub asks: Asks,
    /// What the ending of a pod that hangs depends on, and why its containers died.
    pub details: Details,
}

/// What a pod asks for, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// Memory: of the pod if it has a request of its own, else of its containers, with overhead.
    pub memory: u64,
    /// Whether that request stands on the pod itself.
    pub memory_of_pod: bool,
    /// Ephemeral storage, likewise.
    pub storage: u64,
    /// Its containers, regular ones first.
    pub containers: Vec<ContainerAsks>,
    /// emptyDir volumes on disk with a size limit above 0: name, limit.
    pub empty_dirs: Vec<(String, u64)>,
}

/// What one container asks for and may use, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerAsks {
    /// Its name.
    pub name: String,
    /// Whether it is an init container (sidecars included).
    pub init: bool,
    /// `requests.memory`.
    pub memory: u64,
    /// `limits.memory`.
    pub memory_limit: Option<u64>,
    /// `requests.ephemeral-storage`.
    pub storage: u64,
    /// `limits.ephemeral-storage`.
    pub storage_limit: Option<u64>,
}

/// Further facts of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// `metadata.deletionTimestamp`: when its grace is over.
    pub deleted_at: Option<Timestamp>,
    /// Whether it has the finalizer by which its Job counts it.
    pub job_finalizer: bool,
    /// Whether it has finalizers at all.
    pub finalizers: bool,
    /// Whether it may be bound to a node that the agent has tainted.
    pub tolerates_shutdown: bool,
    /// Whether a container has a preStop hook, which only a kubelet runs.
    pub pre_stop: bool,
    /// Whether it has claims of devices (DRA).
    pub resource_claims: bool,
    /// Whether it has persistent or CSI volumes, whose unmount others wait for.
    pub persistent_volumes: bool,
    /// Whether it has emptyDir volumes in memory: they stay after its containers.
    pub memory_volumes: bool,
    /// Whether a container was restarted.
    pub restarted: bool,
    /// `status.containerStatuses[]` and those of init containers: name, runtime's id without its
    /// scheme. Those without an id are missing.
    pub container_ids: Vec<(String, String)>,
    /// The condition `epilogue.dev/OOMKilled`: its status and its reason.
    pub oom_killed: Option<(bool, String)>,
    /// Names of the containers, init containers included, whose status (`state.terminated`, or
    /// `lastState.terminated` of one that was restarted) has the reason `OOMKilled`.
    pub oom_reported: Vec<String>,
}

/// Who brought a pod to the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodSource {
    /// The API.
    Api,
    /// A file or URL of the node. What the API shows is the mirror that the kubelet made
    /// (annotation `kubernetes.io/config.mirror`).
    Static,
}

/// The controlling owner of a pod, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A Job.
    Job,
    /// A DaemonSet, which creates its pod again on the same node.
    DaemonSet,
    /// Another controller.
    Other,
    /// None: a bare pod.
    None,
}

/// `spec.restartPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever the exit code.
    Always,
    /// After a non-zero exit code.
    OnFailure,
    /// Not at all.
    Never,
}

/// `status.phase`; empty counts as Pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have been started.
    Pending,
    /// All containers have been started, and at least one has not ended for good.
    Running,
    /// All ended with 0.
    Succeeded,
    /// All ended, or the pod was ended.
    Failed,
    /// The API lost sight of the node (obsolete, but legal).
    Unknown,
}

/// A pod's `DisruptionTarget`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// Whether its status is `True`.
    pub stands: bool,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Its lastTransitionTime.
    pub since: Option<Timestamp>,
}

impl Disruption {
    /// The condition's type.
    pub const TYPE: &'static str = DISRUPTION_TARGET;
}

impl PodView {
    /// Whether the pod has reached its last phase.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether somebody has deleted the pod.
    pub fn is_terminating(&self) -> bool {
        self.deletion_grace_seconds.is_some()
    }

    /// Whether the pod will end as the API has it now: it was deleted, or given a deadline that is
    /// over.
    pub fn is_to_end(&self) -> bool {
        self.is_terminating() || self.deadline_set
    }

    /// Whether `DisruptionTarget` is `True`, whoever said so.
    pub fn is_disrupted(&self) -> bool {
        self.disruption.as_ref().is_some_and(|disruption| disruption.stands)
    }

    /// Whether no container of the pod can run again after it was stopped, not even after a
    /// reboot.
    ///
    /// A pod that never ran is not among them: the kubelet starts it when the node is back, and a
    /// condition written before would then stand on a living pod. ([AP5])
    pub fn cannot_run_again(&self) -> bool {
        self.has_run && self.restart_policy == RestartPolicy::Never && !self.container_restarts
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A running bare pod of the API with restart policy Always.
    pub(crate) fn pod(name: &str) -> PodView {
        PodView {
            uid: PodUid(format!("uid-{name}")),
            namespace: "default".into(),
            name: name.into(),
            generation: 1,
            resource_version: "7".into(),
            source: PodSource::Api,
            owner: Owner::None,
            restart_policy: RestartPolicy::Always,
            container_restarts: false,
            sidecars: Vec::new(),
            priority: 0,
            grace_seconds: Some(30),
            deletion_grace_seconds: None,
            deadline_set: false,
            phase: Phase::Running,
            has_run: true,
            containers: vec!["main".into()],
            running_since: None,
            disruption: None,
            asks: Asks::default(),
            details: Details::default(),
        }
    }

    impl PodView {
        pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
            change(&mut self);
            self
        }
        pub(crate) fn never(self) -> Self {
            self.with(|pod| pod.restart_policy = RestartPolicy::Never)
        }
        pub(crate) fn owner(self, owner: Owner) -> Self {
            self.with(|pod| pod.owner = owner)
        }
        pub(crate) fn namespace(self, namespace: &str) -> Self {
            self.with(|pod| pod.namespace = namespace.into())
        }
        pub(crate) fn priority(self, priority: i32) -> Self {
            self.with(|pod| pod.priority = priority)
        }
        pub(crate) fn grace(self, seconds: impl Into<Option<u32>>) -> Self {
            self.with(|pod| pod.grace_seconds = seconds.into())
        }
        pub(crate) fn deleting(self, seconds: u32) -> Self {
            self.with(|pod| pod.deletion_grace_seconds = Some(seconds))
        }
        pub(crate) fn phase(self, phase: Phase) -> Self {
            self.with(|pod| pod.phase = phase)
        }
        pub(crate) fn not_started(self) -> Self {
            self.phase(Phase::Pending).with(|pod| pod.has_run = false)
        }
        pub(crate) fn disrupted(self, reason: &str) -> Self {
            self.with(|pod| {
                pod.disruption = Some(Disruption {
                    stands: true,
                    reason: reason.into(),
                    message: "why".into(),
                    since: None,
                });
            })
        }
    }

    #[test]
    fn only_a_pod_that_ran_and_never_restarts_cannot_run_again() {
        let table = [
            (pod("never").never(), true),
            (pod("always"), false),
            (pod("on-failure").with(|pod| pod.restart_policy = RestartPolicy::OnFailure), false),
            (pod("rules").never().with(|pod| pod.container_restarts = true), false),
            (pod("not-started").never().not_started(), false),
        ];
        for (pod, expected) in table {
            assert_eq!(pod.cannot_run_again(), expected, "{}", pod.name);
        }
    }
}
