//! Tests what the API refuses to an agent's token outside of shutdowns: the node's conditions, the
//! end of victims, and why a process was killed.

use epilogue_common::names::node_condition::{
    GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS as SHUTDOWN, MAINTENANCE_PLANNED,
};
use serde_json::{Value, json};

use super::allowed::{evicted, killed};
use super::call::Call;
use super::refused::{OTHER_NODE, all_are_refused, forbidden, invalid, status};
use super::world::{Token, World, ended, node_path, pod_path, running};

const SHORT: &str = "The node was low on resource: memory. ";

/// A patch of a node's status with these changes.
fn node_status(node: &str, status: impl Into<Value>) -> Call {
    Call::patch(format!("{}/status", node_path(node)), json!({"status": status.into()}))
}

fn node_condition(node: &str, kind: &str, value: &str) -> Call {
    let condition = json!({"type": kind, "status": value, "reason": "R"});
    node_status(node, json!({"conditions": [condition]}))
}

/// A condition that several writers may set.
fn shared(kind: &str, value: &str, message: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": value, "reason": "R", "message": message}]})
}

#[tokio::test]
async fn of_its_nodes_status_only_its_own_conditions_are_the_agents() {
    const NO_OTHERS: &str = "MaintenancePlanned, and no others";
    const NOT_THEIRS: &str = "another writer has set the condition";
    let world = World::start(Token::OfPod).await;
    let (here, there) = (world.here(), world.there());
    let kubelets = json!({
        "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"},
        ],
        "capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {
            "machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "k",
            "osImage": "o", "containerRuntimeVersion": "c", "kubeletVersion": "v",
            "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
        },
    });
    world.done(node_status(&here, kubelets)).await;
    let others = shared(MAINTENANCE_PLANNED, "True", "an administrator has planned it");
    world.done(node_status(&here, others)).await;
    let stall = "epilogue.dev/MemoryStall";
    let metadata = |metadata: Value| {
        Call::patch(format!("{}/status", node_path(&here)), json!({"metadata": metadata}))
    };
    let no_plan = json!({"conditions": [{"$patch": "delete", "type": MAINTENANCE_PLANNED}]});
    let removed = json!({"conditions": [{"$patch": "delete", "type": "MemoryPressure"}]});
    let moved = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]});
    let rebooted = json!({"nodeInfo": {"bootID": "other"}});
    let volumes = json!({"volumesInUse": ["kubernetes.io/csi/v"]});
    let refusals = vec![
        forbidden("a stall of another node", node_condition(&there, stall, "True"), OTHER_NODE),
        forbidden(
            "the other stall of another node",
            node_condition(&there, "epilogue.dev/IOStall", "False"),
            OTHER_NODE,
        ),
        invalid("the node's readiness", node_condition(&here, "Ready", "False"), NO_OTHERS),
        invalid("MemoryPressure", node_condition(&here, "MemoryPressure", "True"), NO_OTHERS),
        invalid("DiskPressure", node_condition(&here, "DiskPressure", "True"), NO_OTHERS),
        invalid("a condition removed", node_status(&here, removed), NO_OTHERS),
        invalid(
            "a condition that resembles ours",
            node_condition(&here, "epilogue.dev/Other", "True"),
            NO_OTHERS,
        ),
        invalid(
            "a stall of a third kind",
            node_condition(&here, stall, "Perhaps"),
            "True or False",
        ),
        invalid("a drain", node_condition(&here, "DrainInProgress", "True"), NO_OTHERS),
        invalid(
            "a shutdown without its writer",
            node_status(&here, shared(SHUTDOWN, "True", "the node shuts down")),
            NOT_THEIRS,
        ),
        invalid(
            "another's plan taken back",
            node_status(&here, shared(MAINTENANCE_PLANNED, "False", "epilogue-agent: none")),
            NOT_THEIRS,
        ),
        invalid("another's plan removed", node_status(&here, no_plan), NOT_THEIRS),
        invalid(
            "its capacity",
            node_status(&here, json!({"capacity": {"cpu": "64"}})),
            "change capacity",
        ),
        invalid(
            "what pods may have of it",
            node_status(&here, json!({"allocatable": {"cpu": "64"}})),
            "change allocatable",
        ),
        invalid("its addresses", node_status(&here, moved), "change addresses"),
        invalid("which boot it is", node_status(&here, rebooted), "change nodeInfo"),
        invalid("the volumes in use", node_status(&here, volumes), "change volumesInUse"),
        invalid("a label by the status", metadata(json!({"labels": {"zone": "b"}})), "labels"),
        invalid(
            "an annotation by the status",
            metadata(json!({"annotations": {"epilogue.dev/state": "idle"}})),
            "change epilogue.dev/state",
        ),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

#[tokio::test]
async fn a_victim_ends_as_the_agent_ends_it_or_not_at_all() {
    let world = World::start(Token::OfPod).await;
    let (here, there) = (world.here(), world.there());
    let pod = world.running("pod").await;
    let theirs = world.pod("theirs", &there, json!({}), running()).await;
    let done = world.pod("done", &here, json!({}), ended("Succeeded")).await;
    let deleted = world.running("deleted").await;
    let slowly = json!({"gracePeriodSeconds": 30});
    let deleted = world.done(Call::delete(pod_path(&deleted), slowly)).await;
    let body = |change: fn(&mut Value)| {
        let mut body = evicted(&pod, SHORT);
        change(&mut body);
        status(&pod, body)
    };
    let refusals = vec![
        forbidden("evict another node's pod", status(&theirs, evicted(&theirs, SHORT)), OTHER_NODE),
        invalid("evict what has succeeded", status(&done, evicted(&done, SHORT)), "is final"),
        invalid(
            "reason Evicted on a pod that runs",
            body(|body| body["status"] = json!({"reason": "Evicted", "message": SHORT})),
            "to Failed only",
        ),
        invalid(
            "evicted, and yet successful",
            body(|body| body["status"]["phase"] = "Succeeded".into()),
            "to Failed only",
        ),
        invalid(
            "a reason of the control plane",
            body(|body| body["status"]["reason"] = "NodeLost".into()),
            "not write \"NodeLost\"",
        ),
        invalid(
            "no reason for a pod that was not deleted",
            body(|body| drop(body["status"].as_object_mut().map(|it| it.remove("reason")))),
            "write Terminated or Evicted",
        ),
        invalid(
            "another reason for a deleted pod",
            status(&deleted, {
                let mut body = evicted(&deleted, SHORT);
                body["status"]["reason"] = "Stuck".into();
                body
            }),
            "leave that of a deleted pod",
        ),
        invalid(
            "evicted for no shortage",
            body(|body| body["status"]["message"] = "Because.".into()),
            "needs the shortage",
        ),
        invalid(
            "evicted without a word",
            body(|body| drop(body["status"].as_object_mut().map(|it| it.remove("message")))),
            "needs the shortage",
        ),
        invalid(
            "an annotation that is the controller's",
            body(|body| {
                body["metadata"]["annotations"]["epilogue.dev/force-fail-after"] = "1s".into();
            }),
            "change epilogue.dev/force-fail-after",
        ),
        invalid(
            "still ready",
            body(|body| {
                let conditions = json!([{"type": "Ready", "status": "True", "reason": "R"}]);
                body["status"]["conditions"] = conditions;
            }),
            "change to False only",
        ),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

#[tokio::test]
async fn an_event_is_of_the_agents_own_node_and_no_larger_than_it_needs() {
    let world = World::start(Token::OfPod).await;
    let (here, there, namespace) = (world.here(), world.there(), world.namespace().to_owned());
    let event = |change: Value| {
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"generateName": "reported-"},
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": here},
            "type": "Normal", "reason": "Seen", "note": "n", "action": "Watch",
            "eventTime": "2026-11-21T14:05:06.000000Z",
            "reportingController": "epilogue.dev/agent", "reportingInstance": here,
        });
        for (key, value) in change.as_object().cloned().unwrap_or_default() {
            event[key] = value;
        }
        event
    };
    let path = |namespace: &str| format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let of = |namespace: &str, change: Value| Call::create(path(namespace), event(change));
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": there});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": namespace});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "namespace": namespace});
    let large = json!({"a": "x".repeat(2_000)});
    let labels = json!({"generateName": "reported-", "labels": {"a": "b"}});
    let refusals = vec![
        invalid(
            "as the kubelet",
            of("default", json!({"reportingController": "kubelet"})),
            "as epilogue.dev/agent",
        ),
        invalid(
            "as a node whose name begins alike",
            of("default", json!({"reportingInstance": &here[..here.len() - 1]})),
            "reports as that node",
        ),
        invalid(
            "as another node's",
            of("default", json!({"reportingInstance": there})),
            "reports as that node",
        ),
        invalid("about another node", of("default", json!({"regarding": node})), "regarding"),
        invalid("about a Job", of(&namespace, json!({"regarding": job})), "regarding"),
        invalid(
            "about a pod of another namespace",
            of("default", json!({"regarding": pod})),
            "regarding",
        ),
        invalid(
            "with a large annotation",
            of("default", json!({"metadata": {"generateName": "reported-", "annotations": large}})),
            "at most 8 annotations",
        ),
        invalid("with labels", of("default", json!({"metadata": labels})), "at most 8"),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

#[tokio::test]
async fn a_cause_is_one_of_the_agents_own() {
    const REASONS: &str = "ContainerLimit or";
    let world = World::start(Token::OfPod).await;
    let (here, there) = (world.here(), world.there());
    let pod = world.running("pod").await;
    let theirs = world.pod("theirs", &there, json!({}), running()).await;
    let ended = world.pod("ended", &here, json!({}), ended("Failed")).await;
    let reported = world.running("killed").await;
    world.done(status(&reported, killed(&reported, "ContainerLimit"))).await;
    let condition =
        |pod: &Value, condition: Value| status(pod, json!({"status": {"conditions": [condition]}}));
    let disruption = |value: &str, reason: &str| {
        condition(&pod, json!({"type": "DisruptionTarget", "status": value, "reason": reason}))
    };
    let taken_back = json!({"type": "epilogue.dev/OOMKilled", "status": "False"});
    let removed = json!({"$patch": "delete", "type": "epilogue.dev/OOMKilled"});
    let refusals = vec![
        forbidden(
            "a kill on another node",
            status(&theirs, killed(&theirs, "ContainerLimit")),
            OTHER_NODE,
        ),
        invalid("a foreign reason", status(&pod, killed(&pod, "OOMKilled")), REASONS),
        invalid("no reason", status(&pod, killed(&pod, "")), REASONS),
        invalid("a foreign reason at the end", status(&ended, killed(&ended, "Other")), REASONS),
        invalid("a kill taken back", condition(&reported, taken_back), REASONS),
        invalid("a kill removed", condition(&reported, removed), REASONS),
        invalid(
            "the controller's word",
            condition(&pod, json!({"type": "epilogue.dev/Ended", "status": "True"})),
            "no others",
        ),
        invalid(
            "a disruption by others",
            disruption("True", "PreemptionByScheduler"),
            "the reason TerminationByKubelet",
        ),
        invalid("a disruption of no kind", disruption("Unknown", ""), "TerminationByKubelet"),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}
