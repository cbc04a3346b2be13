//! Names that are an interface: finalizers, labels, annotations, taints, condition types and
//! reasons, as Kubernetes and this project define them.

/// Finalizer that keeps a Job's pod in the API until it is counted.
pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label with a pod's completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation: failures of the index before this pod that count.
pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation: failures of the index before this pod that the pod failure policy ignored.
pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// Annotation of a pod in a PodGroup with `disruptionMode: all`: how many attempts of the group
/// came before, as far as pods of the Job show that.
pub const GANG_ATTEMPT: &str = "epilogue.dev/gang-attempt";
/// Environment variable with the completion index.
pub const COMPLETION_INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// The `spec.managedBy` that names the Job controller of kube-controller-manager.
pub const RESERVED_MANAGED_BY: &str = "kubernetes.io/job-controller";
/// The `spec.managedBy` that names this project's controller.
pub const MANAGED_BY: &str = "epilogue.dev/job-controller";
/// Annotation of a Job: the template, in the Workload of its controller, for its pods' group.
pub const GROUP_TEMPLATE_NAME: &str = "scheduling.k8s.io/group-template-name";
/// Source component of the controller's events on Jobs: upstream's own name, which people filter
/// by.
pub const EVENT_SOURCE: &str = "job-controller";
/// Source component of the controller's events on pods that pod GC or disruption wrote.
pub const POD_GC_EVENT_SOURCE: &str = "epilogue-pod-gc";

/// The API's formats.
pub mod media_type {
    /// JSON.
    pub const JSON: &str = "application/json";
    /// Protobuf.
    pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    /// The beginning of each object in protobuf. A `runtime.Unknown` with the message follows.
    pub const PROTOBUF_MAGIC: &[u8] = b"k8s\0";
}

/// Condition types of pods.
pub mod pod_condition {
    /// The pod is about to terminate because of a disruption. (KEP-3329)
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// All containers are ready.
    pub const READY: &str = "Ready";
    /// All containers are ready, regardless of readiness gates.
    pub const CONTAINERS_READY: &str = "ContainersReady";
    /// The controller failed the pod instead of its kubelet. Reason and message give the evidence.
    pub const ENDED: &str = "epilogue.dev/Ended";
    /// A container of the pod was killed because memory was short.
    pub const OOM_KILLED: &str = "epilogue.dev/OOMKilled";
    /// The pod did not start within its Job's `pending-timeout`.
    pub const PENDING_TIMEOUT: &str = "epilogue.dev/PendingTimeout";
}

/// Reasons of `epilogue.dev/OOMKilled`.
pub mod oom_reason {
    /// The container, or its pod, reached its own memory limit.
    pub const CONTAINER_LIMIT: &str = "ContainerLimit";
    /// The node was out of memory.
    pub const NODE_OUT_OF_MEMORY: &str = "NodeOutOfMemory";
}

/// Condition types of nodes.
pub mod node_condition {
    /// Pods stall because the node lacks memory.
    pub const MEMORY_STALL: &str = "epilogue.dev/MemoryStall";
    /// Tasks stall on disk IO.
    pub const IO_STALL: &str = "epilogue.dev/IOStall";
    /// The agent would see a shutdown, delay it, and knows the pods.
    pub const AGENT_READY: &str = "epilogue.dev/AgentReady";
    /// The node is shutting down gracefully. (KEP-5683)
    pub const GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS: &str = "GracefulNodeShutdownInProgress";
    /// Notice was given of the node's end. (KEP-5683)
    pub const MAINTENANCE_PLANNED: &str = "MaintenancePlanned";

    /// The node is under maintenance now. (KEP-5683)
    pub const MAINTENANCE_IN_PROGRESS: &str = "MaintenanceInProgress";
    /// The node's pods are being ended. (KEP-5683)
    pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";
    /// The node's pods have ended. (KEP-5683)
    pub const DRAINED: &str = "Drained";

    /// The types by which others say that the node is about to end. The last three ask for no new
    /// pods now; a planned maintenance may be days away.
    pub const ENDS_SOON: [&str; 4] =
        [MAINTENANCE_PLANNED, MAINTENANCE_IN_PROGRESS, DRAIN_IN_PROGRESS, DRAINED];
    /// The types that only the agent writes.
    pub const OURS: [&str; 3] = [MEMORY_STALL, IO_STALL, AGENT_READY];
    /// The types that others may write, too.
    pub const SHARED: [&str; 2] = [GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS, MAINTENANCE_PLANNED];
    /// How a message of the agent begins in a condition that others may write, too.
    pub const MESSAGE_START: &str = "epilogue-agent: ";

    /// Whether the agent has written a condition of this type, with this message.
    pub fn is_ours(kind: &str, message: &str) -> bool {
        OURS.contains(&kind) || SHARED.contains(&kind) && message.starts_with(MESSAGE_START)
    }
}

/// Condition types of Jobs.
pub mod job_condition {
    /// No pods run because `spec.suspend` is set.
    pub const SUSPENDED: &str = "Suspended";
    /// The Job will be Failed once its pods have terminated.
    pub const FAILURE_TARGET: &str = "FailureTarget";
    /// The Job has failed.
    pub const FAILED: &str = "Failed";
    /// The Job will be Complete once its pods have terminated.
    pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
    /// The Job has succeeded.
    pub const COMPLETE: &str = "Complete";
    /// The number of ignored pod failures; on Jobs with a `disruption-limit`.
    pub const DISRUPTIONS_IGNORED: &str = "epilogue.dev/DisruptionsIgnored";
}

/// Reasons of `FailureTarget` and `Failed`.
pub mod job_reason {
    /// A rule of `spec.podFailurePolicy` with the action FailJob matched.
    pub const POD_FAILURE_POLICY: &str = "PodFailurePolicy";

    /// The reason without the name or index of a rule, which `PodFailurePolicy_NAME` has.
    /// (KEP-4443)
    pub fn without_rule(reason: &str) -> &str {
        let rest = reason.strip_prefix(POD_FAILURE_POLICY);
        if rest.is_some_and(|rest| rest.starts_with('_')) { POD_FAILURE_POLICY } else { reason }
    }
}

/// Annotations of a Job for options that its API lacks.
pub mod job_option {
    /// Ignored failures beyond this many fail the Job.
    pub const DISRUPTION_LIMIT: &str = "epilogue.dev/disruption-limit";
    /// Backoff before new pods after the first failure.
    pub const BACKOFF_BASE: &str = "epilogue.dev/backoff-base";
    /// Maximum backoff before new pods after failures.
    pub const BACKOFF_MAX: &str = "epilogue.dev/backoff-max";
    /// A pod that has not started within this time is failed.
    pub const PENDING_TIMEOUT: &str = "epilogue.dev/pending-timeout";
    /// Prefer nodes other than those of disrupted pods.
    pub const AVOID_FAILED_NODES: &str = "epilogue.dev/avoid-failed-nodes";
    /// A deleted pod is failed this long after its grace period, without proof that it does not
    /// run. On a Job of any controller, or on a namespace for all its Jobs.
    pub const FORCE_FAIL_AFTER: &str = "epilogue.dev/force-fail-after";
    /// Pod GC deletes the older finished and counted pods of the running Job beyond this many.
    pub const FINISHED_PODS_KEPT: &str = "epilogue.dev/finished-pods-kept";
    /// Names for the rules of `spec.podFailurePolicy`, separated by commas, in the reason of a Job
    /// that one of them fails.
    pub const POD_FAILURE_POLICY_NAMES: &str = "epilogue.dev/pod-failure-policy-names";
    /// A pod that is about to end is replaced while it still runs.
    pub const REPLACE_EARLY: &str = "epilogue.dev/replace-early";
    /// All of them.
    pub const ALL: [&str; 9] = [
        DISRUPTION_LIMIT,
        BACKOFF_BASE,
        BACKOFF_MAX,
        PENDING_TIMEOUT,
        AVOID_FAILED_NODES,
        FORCE_FAIL_AFTER,
        FINISHED_PODS_KEPT,
        POD_FAILURE_POLICY_NAMES,
        REPLACE_EARLY,
    ];
}

/// Reasons of the events, on a Job, that say how a pod of it ended.
pub mod pod_end_event {
    /// A pod failed by itself; a Warning.
    pub const POD_FAILED: &str = "PodFailed";
    /// A pod was disrupted; Normal.
    pub const POD_DISRUPTED: &str = "PodDisrupted";
}

/// Annotations of the controller's lease, by which others know how it runs.
pub mod lease {
    /// The version of the leader.
    pub const VERSION: &str = "epilogue.dev/version";
    /// Whether it runs all Jobs without `spec.managedBy`: `true` or `false`.
    pub const MANAGE_ALL_JOBS: &str = "epilogue.dev/manage-all-jobs";
    /// The namespaces that it watches, separated by commas; absent if it watches all.
    pub const WATCH_NAMESPACE: &str = "epilogue.dev/watch-namespace";
    /// What pod GC does: `off`, `observe`, `alongside` or `instead`.
    pub const MODE: &str = "epilogue.dev/mode";
    /// Whether it runs Jobs: `true`, or `false` with `--mode=observe`.
    pub const RUNS_JOBS: &str = "epilogue.dev/runs-jobs";
    /// Whether it makes the Workloads and PodGroups of Jobs: `on`, or `off: ` with the reason
    /// (`gang_scheduling::GangScheduling`).
    pub const GANG_SCHEDULING: &str = "epilogue.dev/gang-scheduling";
}

/// Labels by which a namespace opts in, where the optional admission policies are installed.
pub mod opt_in {
    /// Jobs without `spec.managedBy` get this project's controller.
    pub const JOBS: &str = "epilogue.dev/jobs";
    /// The value of [`JOBS`] that the policy knows.
    pub const MANAGED: &str = "managed";
    /// Jobs get this `spec.podReplacementPolicy` instead of the default. On a Job, the label
    /// excludes the Job.
    pub const POD_REPLACEMENT_POLICY: &str = "epilogue.dev/pod-replacement-policy";
    /// The value of [`POD_REPLACEMENT_POLICY`] that the policy knows.
    pub const FAILED: &str = "Failed";
    /// The binding of the policy for [`JOBS`].
    pub const JOBS_BINDING: &str = "epilogue-jobs";
    /// The binding of the policy for [`POD_REPLACEMENT_POLICY`].
    pub const POD_REPLACEMENT_POLICY_BINDING: &str = "epilogue-pod-replacement-policy";
}

/// Reasons of `DisruptionTarget`.
pub mod disruption_reason {
    /// The kubelet terminates the pod, or the agent or the controller acts in its place.
    pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
    /// Pod GC deletes the pod.
    pub const DELETION_BY_POD_GC: &str = "DeletionByPodGC";
    /// The kubelet rejected the pod for a reason of its node.
    pub const REJECTED_BY_KUBELET: &str = "RejectedByKubelet";
    /// The node booted, and its kubelet found the pod's containers dead or gone.
    pub const LOST_BY_NODE: &str = "LostByNode";
}

/// Annotations and taints that agent and controller write on nodes, and on pods of nodes that go
/// away.
pub mod node {
    /// Annotation of a node: the state that its agent announces (`announcement::Announcement`).
    pub const STATE: &str = "epilogue.dev/state";
    /// Annotation of a node: its readiness for a shutdown (`readiness::Readiness`).
    pub const READINESS: &str = "epilogue.dev/readiness";
    /// Taint of a node that shuts down, with the effect NoSchedule.
    pub const SHUTTING_DOWN_TAINT: &str = "epilogue.dev/shutting-down";
    /// Taints by which others say that the node is about to end, with the effect NoSchedule:
    /// Karpenter's, cluster-autoscaler's, GKE's, and those of aws-node-termination-handler.
    pub const ENDS_SOON_TAINTS: [&str; 8] = [
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "ToBeDeletedByClusterAutoscaler",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/rebalance-recommendation",
    ];
    /// Annotation of a pod: when the agent wrote its `phase=Failed` alongside a live kubelet.
    /// ([API16])
    pub const TERMINATED_AT: &str = "epilogue.dev/terminated-at";
    /// Annotation of a pod: the signal that it asks for ahead of its end (`end_signal::EndSignal`).
    pub const END_SIGNAL: &str = "epilogue.dev/end-signal";
    /// Annotation of a pod with `DisruptionTarget`: by when its containers end, as announced.
    pub const ENDS_AT: &str = "epilogue.dev/ends-at";
}
