//! The names that are an interface: finalizers, labels, annotations, condition types and
//! reasons, as Kubernetes and this project fix them.

/// Finalizer that keeps a Job's pod in the API until it is counted.
pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label with a pod's completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation: counted failures of the index before this pod.
pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation: failures of the index before this pod that the policy ignored.
pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// Environment variable with the completion index.
pub const COMPLETION_INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// The `spec.managedBy` that stands for the Job controller of kube-controller-manager.
pub const RESERVED_MANAGED_BY: &str = "kubernetes.io/job-controller";
/// The `spec.managedBy` of Jobs that ask for this project's controller.
pub const MANAGED_BY: &str = "epilogue.dev/job-controller";
/// Source component of the controller's events on Jobs; the reference's own name, which people
/// filter by.
pub const EVENT_SOURCE: &str = "job-controller";
/// Source component of the controller's events on pods that it ends.
pub const POD_GC_EVENT_SOURCE: &str = "epilogue-pod-gc";

/// Condition types of pods.
pub mod pod_condition {
    /// The pod is about to end because of a disruption, not of its own doing. (KEP-3329)
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// All containers are ready.
    pub const READY: &str = "Ready";
    /// All containers are ready, whatever the readiness gates say.
    pub const CONTAINERS_READY: &str = "ContainersReady";
    /// The controller ended the pod in its kubelet's stead. Reason and message are the evidence
    /// that nothing of it runs.
    pub const ENDED: &str = "epilogue.dev/Ended";
    /// A container of the pod was killed for want of memory.
    pub const OOM_KILLED: &str = "epilogue.dev/OOMKilled";
    /// The pod did not start within its Job's `pending-timeout`.
    pub const PENDING_TIMEOUT: &str = "epilogue.dev/PendingTimeout";
}

/// Reasons of `epilogue.dev/OOMKilled`.
pub mod oom_reason {
    /// The container, or its pod, was at a limit of its own.
    pub const CONTAINER_LIMIT: &str = "ContainerLimit";
    /// The node had no memory left.
    pub const NODE_OUT_OF_MEMORY: &str = "NodeOutOfMemory";
}

/// Condition types of nodes.
pub mod node_condition {
    /// Pods wait for memory that the node does not have.
    pub const MEMORY_STALL: &str = "epilogue.dev/MemoryStall";
    /// Tasks wait for disks.
    pub const IO_STALL: &str = "epilogue.dev/IOStall";
}

/// Condition types of Jobs.
pub mod job_condition {
    /// No pods run because `spec.suspend` is set.
    pub const SUSPENDED: &str = "Suspended";
    /// The Job will be Failed once its pods have ended.
    pub const FAILURE_TARGET: &str = "FailureTarget";
    /// The Job has failed.
    pub const FAILED: &str = "Failed";
    /// The Job will be Complete once its pods have ended.
    pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
    /// The Job has succeeded.
    pub const COMPLETE: &str = "Complete";
    /// How many pod failures were ignored; on Jobs with a `disruption-limit`.
    pub const DISRUPTIONS_IGNORED: &str = "epilogue.dev/DisruptionsIgnored";
}

/// Annotations by which a Job asks for more than the API can say.
pub mod job_option {
    /// Ignored failures beyond this many fail the Job.
    pub const DISRUPTION_LIMIT: &str = "epilogue.dev/disruption-limit";
    /// Wait before pods are created after the first failure.
    pub const BACKOFF_BASE: &str = "epilogue.dev/backoff-base";
    /// The longest wait before pods are created after failures.
    pub const BACKOFF_MAX: &str = "epilogue.dev/backoff-max";
    /// A pod that has not started by then is failed.
    pub const PENDING_TIMEOUT: &str = "epilogue.dev/pending-timeout";
    /// Prefer other nodes than those of disrupted pods.
    pub const AVOID_FAILED_NODES: &str = "epilogue.dev/avoid-failed-nodes";
    /// So long after the grace of a deleted pod, it is ended although nothing proves that it does
    /// not run. On a Job of any controller, or on a namespace for all Jobs in it.
    pub const FORCE_FAIL_AFTER: &str = "epilogue.dev/force-fail-after";
}

/// Reasons of `DisruptionTarget`.
pub mod disruption_reason {
    /// By the kubelet, and by the agent and the controller in its stead.
    pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
    /// By pod GC.
    pub const DELETION_BY_POD_GC: &str = "DeletionByPodGC";
}

/// What agent and controller write on nodes and on the pods of nodes that go.
pub mod node {
    /// Annotation of a node: what its agent says of it (`announcement::Announcement`).
    pub const STATE: &str = "epilogue.dev/state";
    /// Annotation of a node: how a shutdown would go now (`readiness::Readiness`).
    pub const READINESS: &str = "epilogue.dev/readiness";
    /// Taint of a node that shuts down, effect NoSchedule.
    pub const SHUTTING_DOWN_TAINT: &str = "epilogue.dev/shutting-down";
    /// Annotation of a pod: when the agent wrote its `phase=Failed` beside a live kubelet.
    /// ([API16])
    pub const TERMINATED_AT: &str = "epilogue.dev/terminated-at";
}
