//! The kinds that the model knows, and what distinguishes them.

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Event, also as `events.k8s.io/v1`.
    Event,
    /// `batch/v1` Job.
    Job,
    /// `coordination.k8s.io/v1` Lease.
    Lease,
    /// `v1` Namespace.
    Namespace,
    /// `v1` Node.
    Node,
    /// `v1` Pod.
    Pod,
    /// `scheduling.k8s.io/v1beta1` PodGroup.
    PodGroup,
    /// `scheduling.k8s.io/v1` PriorityClass.
    PriorityClass,
    /// `scheduling.k8s.io/v1beta1` Workload.
    Workload,
}

/// What distinguishes a kind.
#[derive(Debug)]
pub(crate) struct Facts {
    /// `kind` of an object.
    pub(crate) name: &'static str,
    /// The resource in paths.
    pub(crate) plural: &'static str,
    /// The API group; empty for the core.
    pub(crate) group: &'static str,
    /// The version of the group.
    pub(crate) version: &'static str,
    /// Whether objects lie in namespaces.
    pub(crate) namespaced: bool,
    /// Whether there is `/status`, and a status that other writes keep.
    pub(crate) has_status: bool,
    /// Whether a change of the spec raises `metadata.generation`.
    pub(crate) has_generation: bool,
    /// Whether a write without `resourceVersion` is one at any version.
    pub(crate) unconditional: bool,
    /// Whether PUT creates what is not there.
    pub(crate) creates_by_put: bool,
    /// Whether DELETE gives the object that went, and not a Status.
    pub(crate) returns_deleted: bool,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Event,
        Self::Job,
        Self::Lease,
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::PodGroup,
        Self::PriorityClass,
        Self::Workload,
    ];

    pub(crate) fn facts(self) -> &'static Facts {
        match self {
            Self::Event => &EVENT,
            Self::Job => &JOB,
            Self::Lease => &LEASE,
            Self::Namespace => &NAMESPACE,
            Self::Node => &NODE,
            Self::Pod => &POD,
            Self::PodGroup => &POD_GROUP,
            Self::PriorityClass => &PRIORITY_CLASS,
            Self::Workload => &WORKLOAD,
        }
    }

    /// The kind of a resource in a version of a group.
    pub(crate) fn of(group: &str, version: &str, plural: &str) -> Option<Self> {
        let path = (if group == NEW_EVENTS { "" } else { group }, version, plural);
        let fits = |facts: &Facts| (facts.group, facts.version, facts.plural) == path;
        Self::ALL.into_iter().find(|kind| fits(kind.facts()))
    }

    /// Whether the API serves it only with gang scheduling.
    pub(crate) fn is_of_gangs(self) -> bool {
        matches!(self, Self::PodGroup | Self::Workload)
    }

    /// `apiVersion` of an object.
    pub(crate) fn api_version(self) -> String {
        let Facts { group, version, .. } = self.facts();
        if group.is_empty() { (*version).to_owned() } else { format!("{group}/{version}") }
    }

    /// The path of the collection, in a namespace unless it is empty:
    /// `/api/v1/namespaces/ns/pods`.
    pub fn path(self, namespace: &str) -> String {
        let facts = self.facts();
        let root = match facts.group {
            "" => "/api/v1".to_owned(),
            _ => format!("/apis/{}", self.api_version()),
        };
        match namespace {
            "" => format!("{root}/{}", facts.plural),
            namespace => format!("{root}/namespaces/{namespace}/{}", facts.plural),
        }
    }
}

/// The second group that has events, with other names of their fields.
pub(crate) const NEW_EVENTS: &str = "events.k8s.io";

/// An object of the core in a namespace, without a status of its own.
const PLAIN: Facts = Facts {
    name: "",
    plural: "",
    group: "",
    version: "v1",
    namespaced: true,
    has_status: false,
    has_generation: false,
    unconditional: true,
    creates_by_put: false,
    returns_deleted: false,
};
/// An object of the whole cluster, with a status.
const OF_CLUSTER: Facts = Facts { namespaced: false, has_status: true, ..PLAIN };
/// An object with a spec that has generations, and a status.
const WITH_STATUS: Facts = Facts { has_status: true, has_generation: true, ..PLAIN };
/// An object of gang scheduling.
const OF_GANGS: Facts =
    Facts { group: "scheduling.k8s.io", version: "v1beta1", unconditional: false, ..PLAIN };

const EVENT: Facts = Facts { name: "Event", plural: "events", creates_by_put: true, ..PLAIN };
const JOB: Facts = Facts { name: "Job", plural: "jobs", group: "batch", ..WITH_STATUS };
const LEASE: Facts = Facts {
    name: "Lease",
    plural: "leases",
    group: "coordination.k8s.io",
    unconditional: false,
    creates_by_put: true,
    ..PLAIN
};
const NAMESPACE: Facts = Facts { name: "Namespace", plural: "namespaces", ..OF_CLUSTER };
const NODE: Facts = Facts { name: "Node", plural: "nodes", ..OF_CLUSTER };
const POD: Facts = Facts { name: "Pod", plural: "pods", returns_deleted: true, ..WITH_STATUS };
const POD_GROUP: Facts =
    Facts { name: "PodGroup", plural: "podgroups", has_status: true, ..OF_GANGS };
const PRIORITY_CLASS: Facts = Facts {
    name: "PriorityClass",
    plural: "priorityclasses",
    group: "scheduling.k8s.io",
    has_status: false,
    has_generation: true,
    ..OF_CLUSTER
};
const WORKLOAD: Facts = Facts { name: "Workload", plural: "workloads", ..OF_GANGS };
