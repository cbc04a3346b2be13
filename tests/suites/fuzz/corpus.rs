//! Well-formed inputs of every kind that others write.

use serde_json::{Value, json};

fn bytes(all: &[Value]) -> Vec<Vec<u8>> {
    all.iter().map(|value| value.to_string().into_bytes()).collect()
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn job() -> Value {
    let policy = json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailIndex", "onExitCodes": {"containerName": "main", "operator": "NotIn",
                                                "values": [1, 42]}}]});
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "namespace": "ns", "uid": "job-uid", "resourceVersion": "9",
            "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"epilogue.dev/backoff-base": "1s", "epilogue.dev/backoff-max": "1m",
                "epilogue.dev/disruption-limit": "7", "epilogue.dev/pending-timeout": "10m",
                "epilogue.dev/force-fail-after": "5m"},
            "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"parallelism": 2, "completions": 5, "completionMode": "Indexed",
            "backoffLimit": 6, "backoffLimitPerIndex": 2, "maxFailedIndexes": 3,
            "activeDeadlineSeconds": 600, "suspend": false, "ttlSecondsAfterFinished": 60,
            "managedBy": "epilogue.dev/job-controller", "podReplacementPolicy": "Failed",
            "podFailurePolicy": policy,
            "successPolicy": {"rules": [{"succeededIndexes": "0,2-3", "succeededCount": 2}]},
            "selector": {"matchLabels": {"job": "j"}, "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["b"]}]},
            "template": {"metadata": {"labels": {"job": "j"}, "annotations": {"a": "b"},
                                      "finalizers": ["example.com/f"]},
                "spec": {"restartPolicy": "OnFailure", "hostname": "h",
                    "initContainers": [{"name": "i", "image": "x"}],
                    "containers": [{"name": "main", "image": "x",
                        "env": [{"name": "A", "value": "b"}]}]}}},
        "status": {"active": 1, "ready": 1, "terminating": 0, "succeeded": 2, "failed": 1,
            "startTime": "2026-01-01T00:00:01Z", "completedIndexes": "0,2", "failedIndexes": "4",
            "uncountedTerminatedPods": {"succeeded": ["u1"], "failed": ["u2"]},
            "conditions": [{"type": "epilogue.dev/DisruptionsIgnored", "status": "True",
                "message": "3 pod failures were ignored by podFailurePolicy; not released yet: u3",
                "lastTransitionTime": "2026-01-01T00:00:02Z"}]}})
}

fn pod(phase: &str) -> Value {
    let state = |exit: i32| {
        json!({"terminated": {"exitCode": exit, "startedAt": "2026-01-01T00:00:02Z",
                              "finishedAt": "2026-01-01T00:00:05Z"}})
    };
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "j-0-x", "namespace": "ns", "uid": "u1", "resourceVersion": "11",
            "creationTimestamp": "2026-01-01T00:00:01Z",
            "deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30,
            "labels": {"job": "j", "batch.kubernetes.io/job-completion-index": "0"},
            "annotations": {"batch.kubernetes.io/job-completion-index": "0",
                "batch.kubernetes.io/job-index-failure-count": "1",
                "kubernetes.io/config.source": "api"},
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j",
                "uid": "job-uid", "controller": true}]},
        "spec": {"nodeName": "n", "restartPolicy": "Never", "priority": 7,
            "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 9,
            "containers": [{"name": "main", "image": "x", "resources": {
                "requests": {"memory": "1Gi", "ephemeral-storage": "10M"},
                "limits": {"memory": "2Gi", "ephemeral-storage": "1e9"}}}],
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
        "status": {"phase": phase, "reason": "Evicted", "startTime": "2026-01-01T00:00:02Z",
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:05Z"},
                {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
                 "message": "m", "lastTransitionTime": "2026-01-01T00:00:04Z"}],
            "containerStatuses": [{"name": "main", "restartCount": 2, "state": state(42),
                "containerID": "containerd://1", "lastState": state(1)}],
            "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"running":
                {"startedAt": "2026-01-01T00:00:02Z"}}}]}})
}

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "node-uid", "resourceVersion": "12",
            "annotations": {"epilogue.dev/state": "drained;boot=b;at=2026-01-01T00:00:03Z"}},
        "spec": {"unschedulable": true, "providerID": "x", "taints": [
            {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
        "status": {"nodeInfo": {"bootID": "b"}, "allocatable": {"memory": "1Gi"}, "conditions": [
            {"type": "Ready", "status": "Unknown", "message": "node is shutting down",
             "lastTransitionTime": "2026-01-01T00:00:03Z",
             "lastHeartbeatTime": "2026-01-01T00:00:02Z"}]}})
}

pub(crate) fn jobs() -> Vec<Vec<u8>> {
    bytes(&[job()])
}

pub(crate) fn pods() -> Vec<Vec<u8>> {
    bytes(&[pod("Failed"), pod("Running"), pod("Succeeded")])
}

pub(crate) fn nodes() -> Vec<Vec<u8>> {
    bytes(&[node()])
}

/// A field of a protobuf message whose value is bytes.
fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("must be short");
    assert!(tag < 16 && length < 0x80, "tag and length take one byte each");
    [&[tag << 3 | 2, length], value].concat()
}

/// An object as the API wraps it in protobuf.
fn wrapped(message: &[u8]) -> Vec<u8> {
    [b"k8s\0", &*field(2, message)].concat()
}

/// A Job as a protobuf message.
fn job_message() -> Vec<u8> {
    let label = field(11, &[field(1, b"app"), field(2, b"a")].concat());
    let metadata = [field(1, b"j"), field(5, b"u1"), field(6, b"5"), label.clone()].concat();
    let variable = field(7, &field(1, b"A"));
    let container = field(2, &[field(1, b"main"), variable].concat());
    let pod = [container, field(3, b"OnFailure")].concat();
    let template = [field(1, &[label, field(14, b"a.io/b")].concat()), field(2, &pod)].concat();
    let selector = field(1, &[field(1, b"app"), field(2, b"a")].concat());
    let spec = [field(4, &selector), field(6, &template), field(9, b"Indexed")].concat();
    let spec = [spec, vec![1 << 3, 2, 2 << 3, 3], field(15, b"a/b")].concat();
    let condition = [field(1, b"Suspended"), field(2, b"False"), field(4, &[1 << 3, 9])].concat();
    let status = [field(1, &condition), field(2, &[1 << 3, 8]), field(7, b"0,2")].concat();
    let status = [status, field(8, &field(1, b"u2"))].concat();
    [field(1, &metadata), field(2, &spec), field(3, &status)].concat()
}

pub(crate) fn protobuf_jobs() -> Vec<Vec<u8>> {
    vec![job_message()]
}

/// Events of watches and a page of a list, as protobuf.
fn protobuf() -> Vec<Vec<u8>> {
    let label = field(11, &[field(1, b"app"), field(2, b"a")].concat());
    let metadata = [field(1, b"a"), field(5, b"u1"), field(6, b"5"), label].concat();
    let status = [field(1, b"Running"), field(2, &field(1, b"Ready"))].concat();
    let pod = [field(1, &metadata), field(3, &status)].concat();
    let event = [field(1, b"ADDED"), field(2, &field(1, &wrapped(&pod)))].concat();
    let page = [field(1, &[field(2, b"5"), field(3, b"x")].concat()), field(2, &pod)].concat();
    vec![event, wrapped(&page), wrapped(&[field(3, b"too old"), vec![6 << 3, 0x9a, 3]].concat())]
}

/// Lines of a watch and pages of a list.
pub(crate) fn watch() -> Vec<Vec<u8>> {
    let mut all = protobuf();
    all.extend(watch_of_json());
    all
}

fn watch_of_json() -> Vec<Vec<u8>> {
    bytes(&[
        json!({"type": "ADDED", "object": pod("Running")}),
        json!({"type": "DELETED", "object": job()}),
        json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5",
            "annotations": {"k8s.io/initial-events-end": "true"}}}}),
        json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410,
            "reason": "Expired", "message": "too old"}}),
        json!({"metadata": {"resourceVersion": "5", "continue": "x"}, "items": [job(), node()]}),
    ])
}

pub(crate) fn indexes() -> Vec<Vec<u8>> {
    texts(&["", "0", "0-3", "1,3-5,7", "0-2147483646", "99999"])
}

pub(crate) fn durations() -> Vec<Vec<u8>> {
    texts(&["0", "1s", "1h2m3.5s", "-1ns", "2540400h", "1min 2s", "infinity", "500ms"])
}

pub(crate) fn quantities() -> Vec<Vec<u8>> {
    texts(&["0", "1Gi", "1.5e3", "100m", "12Ei", "-1", "1e-9", "1048576"])
}

pub(crate) fn announcements() -> Vec<Vec<u8>> {
    texts(&[
        "idle",
        "shutting-down;boot=b;since=2026-01-01T00:00:03Z",
        "drained;boot=1b4e28ba-2fa1-11d2-883f-0016d3cca427;at=2026-01-01T00:00:03Z",
    ])
}
