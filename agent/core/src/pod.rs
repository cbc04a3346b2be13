//! Defines the view of a pod that the agent's decisions depend on. The shell reads it from the
//! API's objects.

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Reason of the `DisruptionTarget` that a kubelet writes; the agent writes the same. ([SD16])
pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// The UID that the API assigns. Everything about a pod is keyed by it. ([AP9])
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

/// A pod to act on. Every write carries the UID. ([AP9])
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodRef {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: PodUid,
}

impl PodRef {
    /// The pod of this object.
    pub fn of(pod: &PodView) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

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
    /// Where the kubelet got the pod from.
    pub source: PodSource,
    /// The controlling owner.
    pub owner: Owner,
    /// `spec.restartPolicy`.
    pub restart_policy: RestartPolicy,
    /// After which exits a kubelet starts a regular container again in the pod's sandbox, as far as
    /// the container itself says so: the widest of their policies and rules.
    pub restarts_in_place: RestartPolicy,
    /// Whether a rule of a container or init container restarts all containers.
    pub restarts_all: bool,
    /// Names of the init containers that run alongside the others (restartPolicy Always).
    pub sidecars: Vec<String>,
    /// `spec.priority`; 0 if absent.
    pub priority: i32,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_seconds: Option<u32>,
    /// `metadata.deletionGracePeriodSeconds`; present exactly while the pod is being deleted.
    pub deletion_grace_seconds: Option<u32>,
    /// Whether `spec.activeDeadlineSeconds` has the value of the deadline lever, so that a live
    /// kubelet terminates the pod. ([API17])
    pub deadline_set: bool,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether the status shows that any container of the pod has ever run.
    pub has_run: bool,
    /// `spec.containers[].name`: the containers whose exit codes determine the phase.
    pub containers: Vec<String>,
    /// Latest `state.running.startedAt` of the containers; `None` if none of them is shown running.
    pub running_since: Option<Timestamp>,
    /// The `DisruptionTarget` condition, whatever its status.
    pub disruption: Option<Disruption>,
    /// Requests and limits of memory and disk.
    pub asks: Asks,
    /// Facts for a pod that is stuck terminating, and for the cause of a container's death.
    pub details: Details,
}

/// Requests and limits of a pod, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// Memory request of the pod itself, or else the sum of its containers, with overhead.
    pub memory: u64,
    /// Whether the memory request is one of the pod itself.
    pub memory_of_pod: bool,
    /// Memory limit of the pod itself, which its containers share.
    pub memory_limit: Option<u64>,
    /// Request of ephemeral storage, by the same rule.
    pub storage: u64,
    /// Its containers, regular ones first.
    pub containers: Vec<ContainerAsks>,
    /// emptyDir volumes on disk with a size limit above 0: name, limit.
    pub empty_dirs: Vec<(String, u64)>,
}

/// Requests and limits of one container, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerAsks {
    /// Name of the container.
    pub name: String,
    /// Whether it is an init container (sidecars included).
    pub init: bool,
    /// Whether it is an init container that runs as long as the pod: its restartPolicy is Always.
    pub sidecar: bool,
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
    /// `metadata.deletionTimestamp`: the end of the pod's grace period.
    pub deleted_at: Option<Timestamp>,
    /// Whether the pod has the finalizer by which its Job counts it.
    pub job_finalizer: bool,
    /// Whether the scheduler may bind the pod to a node with the agent's taint.
    pub tolerates_shutdown: bool,
    /// Whether a container has a preStop hook, which only a kubelet runs.
    pub pre_stop: bool,
    /// Whether the pod has device claims (DRA).
    pub resource_claims: bool,
    /// Whether the pod has persistent or CSI volumes, whose unmount other pods may wait for.
    pub persistent_volumes: bool,
    /// How many of its volumes may have to be attached to the node.
    pub attachable_volumes: usize,
    /// Whether the pod has emptyDir volumes in memory, which outlive its containers.
    pub memory_volumes: bool,
    /// Whether the kubelet has restarted a container.
    pub restarted: bool,
    /// `status.containerStatuses[]`, with those of init containers: name, runtime's id without its
    /// scheme. Entries without an id are omitted.
    pub container_ids: Vec<(String, String)>,
    /// The condition `epilogue.dev/OOMKilled`: its status and its reason.
    pub oom_killed: Option<(bool, String)>,
    /// Annotation `epilogue.dev/end-signal`, as it stands there.
    pub end_signal: Option<String>,
    /// Annotation `kubectl.kubernetes.io/default-container`.
    pub default_container: Option<String>,
    /// Names of the containers and init containers whose status has the reason `OOMKilled`. It is
    /// in `state.terminated`, or in `lastState.terminated` of a restarted container.
    pub oom_reported: Vec<String>,
}

/// Where the kubelet got a pod from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodSource {
    /// The API.
    Api,
    /// A file or URL of the node. The API shows the mirror pod that the kubelet created (annotation
    /// `kubernetes.io/config.mirror`).
    Static,
}

/// The kind of a pod's controller, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A Job.
    Job,
    /// A DaemonSet, which recreates its pod on the same node.
    DaemonSet,
    /// Another controller.
    Other,
    /// No controller: a bare pod.
    None,
}

/// `spec.restartPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestartPolicy {
    /// Never restarts.
    Never,
    /// Restarts after a non-zero exit code.
    OnFailure,
    /// Restarts after any exit code.
    Always,
}

/// `status.phase`; empty counts as Pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// At least one container has not started.
    Pending,
    /// All containers have started, and at least one has not terminated for good.
    Running,
    /// All containers exited with 0.
    Succeeded,
    /// All containers have terminated, or the pod was terminated.
    Failed,
    /// The API lost contact with the node (obsolete, but valid).
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
    /// Its `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

impl Disruption {
    /// The condition's type.
    pub const TYPE: &'static str = DISRUPTION_TARGET;
}

impl PodView {
    /// Whether the phase is Succeeded or Failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the pod has been deleted.
    pub fn is_terminating(&self) -> bool {
        self.deletion_grace_seconds.is_some()
    }

    /// Whether the API already terminates the pod: it was deleted, or its deadline has passed.
    pub fn is_to_end(&self) -> bool {
        self.is_terminating() || self.deadline_set
    }

    /// Whether `DisruptionTarget` is `True`, whoever wrote it.
    pub fn is_disrupted(&self) -> bool {
        self.disruption.as_ref().is_some_and(|disruption| disruption.stands)
    }

    /// Whether no container of the pod can run again once its sandbox is lost, as it is at a boot.
    ///
    /// The pod's own policy alone decides: a kubelet makes no new sandbox for `Never`, whatever its
    /// containers and sidecars say. ([W20]) A rule that restarts all containers gets one. Only the
    /// exit code shows whether it matches, so such a pod counts as one that may run again.
    ///
    /// A pod that never ran can still run: the kubelet starts it when the node is back. An earlier
    /// condition would then be on a live pod. ([AP5])
    pub fn ends_with_its_sandbox(&self) -> bool {
        self.has_run && self.restart_policy == RestartPolicy::Never && !self.restarts_all
    }

    /// Whether no container of the pod can run again once the regular ones have exited, though its
    /// sandbox is still there.
    pub fn ends_with_its_containers(&self) -> bool {
        self.ends_with_its_sandbox() && self.restarts_in_place == RestartPolicy::Never
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
            restarts_in_place: RestartPolicy::Always,
            restarts_all: false,
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
            self.restarts(RestartPolicy::Never)
        }
        /// With this policy of the pod, which its containers share.
        pub(crate) fn restarts(self, policy: RestartPolicy) -> Self {
            self.with(|pod| (pod.restart_policy, pod.restarts_in_place) = (policy, policy))
        }
        /// With a native sidecar.
        pub(crate) fn sidecar(self) -> Self {
            self.with(|pod| pod.sidecars.push("sidecar".into()))
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
    fn the_pod_s_own_policy_decides_whether_it_survives_its_sandbox() {
        use RestartPolicy::{Always, Never, OnFailure};
        let own = |policy| pod("own").never().with(|pod| pod.restarts_in_place = policy);
        // Whether it ends with its sandbox, and with its containers.
        let table = [
            (pod("never").never(), true, true),
            (pod("always"), false, false),
            (pod("on-failure").restarts(OnFailure), false, false),
            (pod("sidecar").never().sidecar(), true, true),
            (own(OnFailure), true, false),
            (own(Always), true, false),
            // Its sandbox is built anew, and the container started in it.
            (pod("once").with(|pod| pod.restarts_in_place = Never), false, false),
            (own(OnFailure).with(|pod| pod.restarts_all = true), false, false),
            (pod("not-started").never().not_started(), false, false),
        ];
        for (pod, sandbox, containers) in table {
            let found = (pod.ends_with_its_sandbox(), pod.ends_with_its_containers());
            assert_eq!(found, (sandbox, containers), "{}", pod.name);
        }
    }
}
