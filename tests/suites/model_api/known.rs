//! What the model leaves out on purpose, in one place.
//!
//! No request tries what the model does not know: a write that changes only what the server keeps
//! (`creationTimestamp`), which can refresh a time in `managedFields` and so have a version;
//! finalizers of the garbage collector; server-side apply; `pods/eviction`; rights; Workloads,
//! PodGroups and JSON patches, as the suite's cluster has no gang scheduling. Answers in protobuf are
//! not compared: they are written by the same table as the requests in protobuf.

/// Fields that the real API adds and the model does not know: the kind of the object, and the path
/// to the field. `*` stands for every item of a list.
pub(crate) const UNKNOWN: [(&str, &str); 33] = [
    ("", "metadata/managedFields"),
    // Admission of service accounts mounts a token.
    ("Pod", "spec/volumes"),
    ("Pod", "spec/containers/*/volumeMounts"),
    // Admission of default tolerations.
    ("Pod", "spec/tolerations"),
    ("Pod", "spec/containers/*/terminationMessagePath"),
    ("Pod", "spec/containers/*/terminationMessagePolicy"),
    ("Pod", "spec/containers/*/imagePullPolicy"),
    ("Pod", "spec/containers/*/resources"),
    ("Job", "spec/template/spec/containers/*/terminationMessagePath"),
    ("Job", "spec/template/spec/containers/*/terminationMessagePolicy"),
    ("Job", "spec/template/spec/containers/*/imagePullPolicy"),
    ("Job", "spec/template/spec/containers/*/resources"),
    ("Job", "spec/manualSelector"),
    // Typed objects show empty values of required fields.
    ("Pod", "status/containerStatuses/*/lastState"),
    ("Pod", "status/containerStatuses/*/imageID"),
    ("Pod", "status/containerStatuses/*/resources"),
    ("Pod", "status/conditions/*/lastProbeTime"),
    ("Node", "status/daemonEndpoints"),
    ("Node", "status/nodeInfo"),
    ("Node", "status/conditions/*/lastHeartbeatTime"),
    ("Event", "source"),
    ("Event", "firstTimestamp"),
    ("Event", "lastTimestamp"),
    ("Event", "eventTime"),
    ("Event", "deprecatedSource"),
    ("Event", "deprecatedFirstTimestamp"),
    ("Event", "deprecatedLastTimestamp"),
    ("Event", "reportingComponent"),
    ("Event", "reportingInstance"),
    ("PriorityClass", "description"),
    ("PriorityClass", "preemptionPolicy"),
    ("PriorityClass", "globalDefault"),
    ("Namespace", "metadata/annotations"),
];
