//! Lists the rights of all accounts, and the call that needs each. A test compares them with the
//! roles in `deploy/kustomize`; `docs/operations.md` prints them.

/// A right: role, API group, resource, verb, the only object that it covers (or empty), and the
/// call that needs it.
pub type Right =
    (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

/// The controller's role in the whole cluster.
pub const CONTROLLER_ROLE: &str = "ClusterRole/epilogue-controller";
/// The controller's role for its lease.
pub const ELECTION_ROLE: &str = "Role/epilogue-controller-lease";

/// The controller's role with gang scheduling, which only the component of this name gives.
pub const GANG_ROLE: &str = "ClusterRole/epilogue-controller-gang-scheduling";

/// The agents' role in the whole cluster.
pub const AGENT_ROLE: &str = "ClusterRole/epilogue-agent";
/// The agents' role for the kubelets' leases.
pub const LEASE_ROLE: &str = "Role/epilogue-agent-lease";

/// The role of a controller that only observes.
pub const CONTROLLER_OBSERVER_ROLE: &str = "ClusterRole/epilogue-controller-observer";
/// Its role for its lease.
pub const OBSERVER_ELECTION_ROLE: &str = "Role/epilogue-controller-observer-lease";
/// The role of agents that only observe.
pub const AGENT_OBSERVER_ROLE: &str = "ClusterRole/epilogue-agent-observer";
/// Their role for the kubelets' leases.
pub const OBSERVER_LEASE_ROLE: &str = "Role/epilogue-agent-observer-lease";

/// The rights of both programs where they only observe.
pub const OBSERVERS: [Right; 24] = [
    (CONTROLLER_OBSERVER_ROLE, "batch", "jobs", "list", "", "fill the store of Jobs"),
    (CONTROLLER_OBSERVER_ROLE, "batch", "jobs", "watch", "", "keep the store of Jobs"),
    (CONTROLLER_OBSERVER_ROLE, "", "pods", "list", "", "fill the store of pods"),
    (CONTROLLER_OBSERVER_ROLE, "", "pods", "watch", "", "keep the store of pods"),
    (CONTROLLER_OBSERVER_ROLE, "", "nodes", "list", "", "know which nodes are there"),
    (CONTROLLER_OBSERVER_ROLE, "", "nodes", "watch", "", "see them go, be out of service, boot"),
    (CONTROLLER_OBSERVER_ROLE, "", "nodes", "get", "", "be sure that one is gone"),
    (
        CONTROLLER_OBSERVER_ROLE,
        "",
        "namespaces",
        "list",
        "",
        "know where hanging pods may be failed without proof",
    ),
    (CONTROLLER_OBSERVER_ROLE, "", "namespaces", "watch", "", "keep that knowledge"),
    (CONTROLLER_OBSERVER_ROLE, "", "events", "create", "", "report a core/v1 event"),
    (CONTROLLER_OBSERVER_ROLE, "", "events", "patch", "", "count a repeated core/v1 event"),
    (
        CONTROLLER_OBSERVER_ROLE,
        "events.k8s.io",
        "events",
        "create",
        "",
        "report an events.k8s.io/v1 event",
    ),
    (
        CONTROLLER_OBSERVER_ROLE,
        "events.k8s.io",
        "events",
        "patch",
        "",
        "count a repeated events.k8s.io/v1 event",
    ),
    (OBSERVER_ELECTION_ROLE, "coordination.k8s.io", "leases", "create", "", "make the lease"),
    (
        OBSERVER_ELECTION_ROLE,
        "coordination.k8s.io",
        "leases",
        "get",
        "epilogue-controller",
        "who leads?",
    ),
    (
        OBSERVER_ELECTION_ROLE,
        "coordination.k8s.io",
        "leases",
        "update",
        "epilogue-controller",
        "lead, renew, release",
    ),
    (AGENT_OBSERVER_ROLE, "", "pods", "list", "", "know the node's pods"),
    (AGENT_OBSERVER_ROLE, "", "pods", "watch", "", "see them terminate"),
    (AGENT_OBSERVER_ROLE, "", "nodes", "list", "", "see what an earlier run left on the node"),
    (AGENT_OBSERVER_ROLE, "", "nodes", "watch", "", "see that its kubelet reports the shutdown"),
    (
        AGENT_OBSERVER_ROLE,
        "",
        "nodes/configz",
        "get",
        "",
        "ask the kubelet for its periods and thresholds",
    ),
    (
        AGENT_OBSERVER_ROLE,
        "",
        "nodes/healthz",
        "get",
        "",
        "ask the kubelet whether its sync loop turns",
    ),
    (
        OBSERVER_LEASE_ROLE,
        "coordination.k8s.io",
        "leases",
        "get",
        "",
        "see since when it is silent",
    ),
    (AGENT_OBSERVER_ROLE, "events.k8s.io", "events", "create", "", "emit events"),
];

/// The controller's rights.
pub const CONTROLLERS: [Right; 24] = [
    (CONTROLLER_ROLE, "batch", "jobs", "list", "", "fill the store of Jobs"),
    (CONTROLLER_ROLE, "batch", "jobs", "watch", "", "keep the store of Jobs"),
    (
        CONTROLLER_ROLE,
        "batch",
        "jobs",
        "get",
        "",
        "before adoption, see that the Job is not being deleted",
    ),
    (CONTROLLER_ROLE, "batch", "jobs/status", "update", "", "flush and settle write the status"),
    (CONTROLLER_ROLE, "batch", "jobs/finalizers", "update", "", "own pods with blockOwnerDeletion"),
    (CONTROLLER_ROLE, "", "pods", "list", "", "fill the store of pods"),
    (CONTROLLER_ROLE, "", "pods", "watch", "", "keep the store of pods"),
    (CONTROLLER_ROLE, "", "pods", "create", "", "start what the Job lacks"),
    (
        CONTROLLER_ROLE,
        "",
        "pods",
        "delete",
        "",
        "delete what the Job has too much of, and what has no kubelet",
    ),
    (CONTROLLER_ROLE, "", "pods", "patch", "", "remove the finalizer; adopt and release"),
    (
        CONTROLLER_ROLE,
        "",
        "pods/status",
        "patch",
        "",
        "Failed where no kubelet reports it; conditions",
    ),
    (CONTROLLER_ROLE, "", "nodes", "list", "", "know which nodes are there"),
    (
        CONTROLLER_ROLE,
        "",
        "nodes",
        "watch",
        "",
        "see them go, be out of service, boot, write drained",
    ),
    (
        CONTROLLER_ROLE,
        "",
        "nodes",
        "get",
        "",
        "be sure that one is gone before its pods are failed",
    ),
    (CONTROLLER_ROLE, "", "nodes", "patch", "", "remove the taint of an agent that is gone"),
    (
        CONTROLLER_ROLE,
        "",
        "namespaces",
        "list",
        "",
        "know where hanging pods may be failed without proof",
    ),
    (CONTROLLER_ROLE, "", "namespaces", "watch", "", "keep that knowledge"),
    (CONTROLLER_ROLE, "", "events", "create", "", "report a core/v1 event"),
    (CONTROLLER_ROLE, "", "events", "patch", "", "count a repeated core/v1 event"),
    (CONTROLLER_ROLE, "events.k8s.io", "events", "create", "", "report an events.k8s.io/v1 event"),
    (
        CONTROLLER_ROLE,
        "events.k8s.io",
        "events",
        "patch",
        "",
        "count a repeated events.k8s.io/v1 event",
    ),
    (
        ELECTION_ROLE,
        "coordination.k8s.io",
        "leases",
        "create",
        "",
        "the first candidate makes the lease",
    ),
    (ELECTION_ROLE, "coordination.k8s.io", "leases", "get", "epilogue-controller", "who leads?"),
    (
        ELECTION_ROLE,
        "coordination.k8s.io",
        "leases",
        "update",
        "epilogue-controller",
        "lead, renew, release",
    ),
];

/// API group of Workloads and PodGroups.
const SCHEDULING: &str = "scheduling.k8s.io";

/// What the controller may also do with gang scheduling.
pub const GANGS: [Right; 10] = [
    (GANG_ROLE, SCHEDULING, "workloads", "list", "", "fill the store of Workloads"),
    (GANG_ROLE, SCHEDULING, "workloads", "watch", "", "keep the store of Workloads"),
    (GANG_ROLE, SCHEDULING, "workloads", "get", "", "see whether a lost reply created it"),
    (GANG_ROLE, SCHEDULING, "workloads", "create", "", "say which pods belong together"),
    (GANG_ROLE, SCHEDULING, "workloads", "patch", "", "set the gang's new minCount"),
    (GANG_ROLE, SCHEDULING, "podgroups", "list", "", "fill the store of PodGroups"),
    (GANG_ROLE, SCHEDULING, "podgroups", "watch", "", "keep the store of PodGroups"),
    (GANG_ROLE, SCHEDULING, "podgroups", "get", "", "see whether a lost reply created it"),
    (GANG_ROLE, SCHEDULING, "podgroups", "create", "", "give the Job's pods their group"),
    (GANG_ROLE, SCHEDULING, "podgroups", "patch", "", "set the gang's new minCount"),
];

/// The agents' rights.
pub const AGENTS: [Right; 15] = [
    (AGENT_ROLE, "", "pods", "list", "", "know the node's pods"),
    (AGENT_ROLE, "", "pods", "watch", "", "see them terminate"),
    (AGENT_ROLE, "", "pods", "get", "", "read one again, after a conflict and after a boot"),
    (
        AGENT_ROLE,
        "",
        "pods",
        "delete",
        "",
        "delete pods in place of a kubelet that does not (Replace)",
    ),
    (AGENT_ROLE, "", "pods", "patch", "", "terminate one without deleting it: the deadline lever"),
    (
        AGENT_ROLE,
        "",
        "pods/status",
        "patch",
        "",
        "DisruptionTarget, OOMKilled, Failed where nothing runs",
    ),
    (AGENT_ROLE, "", "nodes", "get", "", "read the taints, which are written as a whole"),
    (AGENT_ROLE, "", "nodes", "list", "", "see what an earlier run left on the node"),
    (AGENT_ROLE, "", "nodes", "watch", "", "see that its kubelet reports the shutdown"),
    (AGENT_ROLE, "", "nodes", "patch", "", "announce by annotation and taint"),
    (
        AGENT_ROLE,
        "",
        "nodes/status",
        "patch",
        "",
        "show by conditions that pods stall, or that it shuts down",
    ),
    (AGENT_ROLE, "", "nodes/configz", "get", "", "ask the kubelet for its periods and thresholds"),
    (AGENT_ROLE, "", "nodes/healthz", "get", "", "ask the kubelet whether its sync loop turns"),
    (LEASE_ROLE, "coordination.k8s.io", "leases", "get", "", "see since when it is silent"),
    (AGENT_ROLE, "events.k8s.io", "events", "create", "", "emit events"),
];
