//! Tests that the API allows every write and read of an agent, in the agent's order, with either
//! kind of token.

use agent_core::termination::patches::{self, OomKilled};
use epilogue_common::names::node_condition;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::call::Call;
use super::world::{Token, World, agent_pod, ended, node_path, pod_path, running, view};

#[tokio::test]
async fn an_agent_in_a_pod_may_do_all_that_it_does() {
    holds(Token::OfPod).await;
}

#[tokio::test]
async fn an_agent_that_is_a_service_of_the_host_may_do_all_that_it_does() {
    holds(Token::OfNode).await;
}

#[tokio::test]
async fn the_pod_is_admitted_in_its_namespace_and_gets_a_token_that_is_renewed() {
    let world = World::start(Token::OfNode).await;
    let pod = agent_pod(&world.here(), &world.here());
    let pods = |namespace: &str| format!("/api/v1/namespaces/{namespace}/pods");
    let made = world.done(Call::create(pods("epilogue-agents"), pod.clone()).dry()).await;
    let volumes = made["spec"]["volumes"].as_array().expect("volumes");
    let token = volumes.iter().find_map(|volume| volume["projected"]["sources"].as_array());
    let expires = token.and_then(|sources| {
        sources.iter().find_map(|it| it["serviceAccountToken"]["expirationSeconds"].as_u64())
    });
    // The API server extends one of 3607 s to a year, and none of a day.
    assert_eq!(expires, Some(86_400), "{volumes:?}");
    assert_eq!(made["spec"]["priority"], 2_000_001_000);
    assert_eq!(made["status"]["qosClass"], "Burstable");
    // PodSecurity refuses the agent's pod in the controller's namespace.
    let mut pod = pod;
    pod["spec"]["serviceAccountName"] = "epilogue-controller".into();
    let elsewhere = Call::create(pods("epilogue-system"), pod).dry().send(&world.admin).await;
    assert_eq!(elsewhere.code, 403);
    assert!(elsewhere.message.contains("violates PodSecurity"), "{}", elsewhere.message);
    world.finish().await;
}

/// Policies have a cost budget; a pod that exceeds it would never be marked.
#[tokio::test]
async fn a_pod_as_large_as_they_come_may_be_marked() {
    let world = World::start(Token::OfPod).await;
    let count = 0..100;
    let annotations: Map<String, Value> =
        count.clone().map(|n| (format!("theirs/{n}"), "x".repeat(2_400).into())).collect();
    let containers: Vec<Value> =
        count.clone().map(|n| json!({"name": format!("c{n}"), "image": "none"})).collect();
    let statuses: Vec<Value> = count
        .clone()
        .map(|n| {
            json!({
                "name": format!("c{n}"), "image": "none", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"waiting": {"message": "m".repeat(1_000)}},
            })
        })
        .collect();
    let conditions: Vec<Value> =
        count.map(|n| json!({"type": format!("example.com/{n}"), "status": "True"})).collect();
    let change = json!({
        "metadata": {"annotations": annotations}, "spec": {"containers": containers},
    });
    let status = json!({
        "phase": "Running", "containerStatuses": statuses, "conditions": conditions,
    });
    let pod = world.pod("large", &world.here(), change, status).await;
    let body = patches::mark(&view(&pod), now());
    let pod = goes(&world, "mark", Call::patch(status_path(&pod), body)).await;
    let body = patches::failed(&view(&pod), now());
    goes(&world, "fail", Call::patch(status_path(&pod), body)).await;
    world.finish().await;
}

async fn holds(token: Token) {
    let world = World::start(token).await;
    reads(&world).await;
    writes(&world).await;
    emits_events(&world).await;
    world.finish().await;
}

/// All that an agent writes to its node and the pods on it.
pub(super) async fn writes(world: &World) {
    standing(world).await;
    shutdown(world).await;
    cancel(world).await;
    levers(world).await;
    evictions(world).await;
    stuck(world).await;
    causes(world).await;
    stalls(world).await;
}

/// Expects the call to be allowed; returns the object.
pub(super) async fn goes(world: &World, what: &str, call: Call) -> Value {
    let answer = call.send(&world.agent).await;
    assert!(answer.is_success(), "{what}: {call}: {} {}", answer.code, answer.message);
    println!("| {} | {what} | allowed |", world.who());
    answer.object()
}

fn status_path(pod: &Value) -> String {
    format!("{}/status", pod_path(pod))
}

fn now() -> Timestamp {
    Timestamp::now()
}

async fn reads(world: &World) {
    let here = world.here();
    let pod = world.running("read").await;
    let of_node = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{here}");
    let list = goes(world, "list the node's pods", Call::get(&of_node)).await;
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let own_node = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{here}");
    goes(world, "list the node itself", Call::get(&own_node)).await;
    for listed in [of_node, own_node] {
        let watch = format!("{listed}&watch=1&timeoutSeconds=1&resourceVersion={version}");
        let answer = Call::get(watch).send(&world.agent).await;
        assert!(answer.is_success(), "watch: {}", answer.message);
    }
    goes(world, "read a pod", Call::get(pod_path(&pod))).await;
    goes(world, "read the node", Call::get(node_path(&here))).await;
    goes(world, "read the kubelet's lease", Call::get(world.lease().await)).await;
    // The kubelet asks the API for these.
    for sub_resource in ["configz", "healthz"] {
        assert!(reviewed(world, sub_resource).await, "nodes/{sub_resource}");
    }
    for sub_resource in ["proxy", "log", "stats", "metrics", "checkpoint", "pods"] {
        assert!(!reviewed(world, sub_resource).await, "nodes/{sub_resource}");
    }
}

async fn reviewed(world: &World, sub_resource: &str) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "verb": "get", "resource": "nodes", "subresource": sub_resource,
        }},
    });
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = goes(world, "review", Call::create(reviews, review)).await;
    answer["status"]["allowed"] == true
}

/// P0: announcement, taint, and back. ([AP20], [AP21])
async fn standing(world: &World) {
    let node = node_path(&world.here());
    for state in [
        "idle",
        "shutting-down;boot=b;since=2026-11-21T14:05:06Z",
        "drained;boot=b;at=2026-11-21T14:05:06Z",
        "idle",
    ] {
        let body = json!({"metadata": {"annotations": {"epilogue.dev/state": state}}});
        goes(world, state, Call::patch(&node, body)).await;
    }
    let none = json!({"metadata": {"annotations": {"epilogue.dev/state": null}}});
    goes(world, "take the announcement back", Call::merge(&node, none)).await;
    // `spec.taints` is one value to every kind of patch: whole, guarded by the version read.
    let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
    let read = goes(world, "read the taints", Call::get(&node)).await;
    let foreign = read["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let version = &read["metadata"]["resourceVersion"];
    let both = [foreign.clone(), vec![ours]].concat();
    let taint = json!({
        "metadata": {"resourceVersion": version},
        "spec": {"taints": both},
    });
    goes(world, "taint", Call::patch(&node, taint)).await;
    let untaint = json!({"spec": {"taints": foreign}});
    goes(world, "take it back", Call::patch(&node, untaint)).await;
}

/// P1 to P4: DisruptionTarget, DELETE, Failed. ([AP11])
async fn shutdown(world: &World) {
    let here = world.here();
    let pod = world.running("marked").await;
    let at = now();
    let body = patches::mark(&view(&pod), at);
    let marked = goes(world, "mark", Call::patch(status_path(&pod), body)).await;
    let body = patches::mark(&view(&marked), at);
    let again = goes(world, "mark again", Call::patch(status_path(&pod), body)).await;
    assert_eq!(marked["metadata"]["resourceVersion"], again["metadata"]["resourceVersion"]);
    let uid = &pod["metadata"]["uid"];
    let preconditions = json!({"uid": uid, "resourceVersion": version(&again)});
    let options = json!({"preconditions": preconditions, "gracePeriodSeconds": 5});
    let deleted = goes(world, "delete", Call::delete(pod_path(&pod), options)).await;
    let body = patches::mark(&view(&deleted), at);
    goes(world, "mark what terminates", Call::patch(status_path(&pod), body)).await;

    for (name, phase) in [("fails", "Running"), ("pends", "Pending"), ("unknown", "Unknown")] {
        let mut status = running();
        status["phase"] = phase.into();
        let pod = world.pod(name, &here, json!({}), status).await;
        let body = patches::failed(&view(&pod), at);
        let failed = goes(world, phase, Call::patch(status_path(&pod), body)).await;
        assert_eq!(failed["status"]["phase"], "Failed");
        // The reply was lost: the agent repeats the write with the current version.
        let body = patches::failed(&view(&failed), at);
        goes(world, "the same again", Call::patch(status_path(&pod), body)).await;
    }
    let pod = world.pod("new", &here, json!({}), json!({})).await;
    let body = patches::failed(&view(&pod), at);
    goes(world, "Failed before the first status", Call::patch(status_path(&pod), body)).await;

    let name = format!("of-{here}");
    let pod = world.pod_in("kube-system", &name, &here, json!({}), running()).await;
    let body = patches::mark(&view(&pod), at);
    goes(world, "mark in any namespace", Call::patch(status_path(&pod), body)).await;
    world.done(Call::delete(pod_path(&pod), json!({"gracePeriodSeconds": 0}))).await;
}

/// A cancelled shutdown takes DisruptionTarget back. ([AP17])
async fn cancel(world: &World) {
    let pod = world.running("cancelled").await;
    let mark = patches::announced(&view(&pod), now(), now());
    let marked = goes(world, "mark", Call::patch(status_path(&pod), mark)).await;
    assert!(marked["metadata"]["annotations"]["epilogue.dev/ends-at"].is_string(), "{marked}");
    let clear = patches::clear(&view(&marked), now());
    let cleared = goes(world, "clear", Call::patch(status_path(&pod), clear)).await;
    assert!(cleared["metadata"]["annotations"]["epilogue.dev/ends-at"].is_null(), "{cleared}");
    let conditions = cleared["status"]["conditions"].as_array().expect("conditions");
    let is_disruption = |each: &&Value| each["type"] == "DisruptionTarget";
    let disruption = conditions.iter().find(is_disruption).expect("the condition");
    assert_eq!(disruption["status"], "False");
}

/// The version of an object.
fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().expect("must have a version")
}

/// The annotation, the deadline, and what follows a boot. ([API16], [API17], [AP19])
async fn levers(world: &World) {
    let pod = world.running("lever").await;
    let body = patches::failed(&view(&pod), now());
    goes(world, "annotation lever", Call::patch(status_path(&pod), body)).await;
    let pod = world.running("deadline").await;
    let body = patches::deadline(&view(&pod), version(&pod));
    goes(world, "deadline lever", Call::patch(pod_path(&pod), body)).await;
    let late = json!({"spec": {"activeDeadlineSeconds": 600}});
    let pod = world.pod("earlier", &world.here(), late, running()).await;
    let body = patches::deadline(&view(&pod), version(&pod));
    goes(world, "deadline lowered", Call::patch(pod_path(&pod), body)).await;
    let pod = world.running("lost").await;
    let body = patches::lost(&view(&pod), now());
    goes(world, "mark what a power cut ended", Call::patch(status_path(&pod), body)).await;
}

/// Writes to an evicted pod before its end and at its end. ([EV13], [EV26])
async fn evictions(world: &World) {
    let short = "The node was low on resource: memory. Threshold quantity: 150Mi, available: 90Mi. \
                 Container main was using 2Gi, request is 0, has larger consumption of memory. ";
    let pod = world.running("evicted").await;
    let marked = goes(world, "mark the victim", marked(&pod, short)).await;
    let body = evicted(&marked, short);
    let failed = goes(world, "fail the victim", Call::patch(status_path(&pod), body)).await;
    assert_eq!(failed["status"]["reason"], "Evicted");
    let limits = [
        "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Gi\". ",
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        "Container main exceeded its local ephemeral storage limit \"1Gi\". ",
    ];
    for (name, words) in ["over-volume", "over-total", "over-own"].into_iter().zip(limits) {
        let pod = world.running(name).await;
        let body = evicted(&pod, words);
        goes(world, name, Call::patch(status_path(&pod), body)).await;
    }
    let pod = world.running("deleted-victim").await;
    goes(world, "mark a victim to delete", self::marked(&pod, short)).await;
    let uid = &pod["metadata"]["uid"];
    let options = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 1});
    goes(world, "delete the victim", Call::delete(pod_path(&pod), options)).await;
}

fn marked(pod: &Value, message: &str) -> Call {
    Call::patch(status_path(pod), patches::pressed(&view(pod), now(), message))
}

/// Writes to a deleted pod that does not terminate; the deleter states the cause. ([PT1], [PT7])
async fn stuck(world: &World) {
    for name in ["stuck", "hanging"] {
        let pod = world.running(name).await;
        let options = json!({"gracePeriodSeconds": 30});
        let deleted = world.done(Call::delete(pod_path(&pod), options)).await;
        let body = patches::failed_for_deleter(&view(&deleted), now());
        goes(world, name, Call::patch(status_path(&pod), body)).await;
    }
}

/// `phase=Failed` of a pod whose containers have ended for a shortage or for its own limit.
pub(crate) fn evicted(pod: &Value, message: &str) -> Value {
    patches::evicted(&view(pod), now(), message)
}

/// Reports why a process died, before or after the kubelet reports the pod's end.
async fn causes(world: &World) {
    let pod = world.running("killed").await;
    let limit = killed(&pod, "ContainerLimit");
    goes(world, "killed at its limit", Call::patch(status_path(&pod), limit)).await;
    let disruption = Some(("The node was out of memory.", now()));
    let (reason, message) = ("NodeOutOfMemory", "The kernel killed container main.");
    let cause = OomKilled { reason, message, since: None, disruption };
    let node = patches::oom_killed(&view(&pod), &cause);
    goes(world, "killed for the node", Call::patch(status_path(&pod), node)).await;
    let ended = world.pod("killed-late", &world.here(), json!({}), ended("Failed")).await;
    let late = killed(&ended, "ContainerLimit");
    goes(world, "reported too late", Call::patch(status_path(&ended), late)).await;
}

/// `epilogue.dev/OOMKilled` with a reason.
pub(crate) fn killed(pod: &Value, reason: &'static str) -> Value {
    let message = "The kernel killed process java (4711) of container main: at its limit of 1Gi.";
    let cause = OomKilled { reason, message, since: Some(now()), disruption: None };
    patches::oom_killed(&view(pod), &cause)
}

/// Writes our own conditions of the node.
async fn stalls(world: &World) {
    let status = format!("{}/status", node_path(&world.here()));
    let ready = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "4"},
    }});
    world.done(Call::patch(&status, ready)).await;
    for (stands, reason) in [(true, "PodsWaitForMemory"), (false, "NoStall")] {
        for kind in ["epilogue.dev/MemoryStall", "epilogue.dev/IOStall"] {
            let body = patches::node_condition(kind, stands, reason, "m", now());
            let node = goes(world, kind, Call::patch(&status, body)).await;
            assert_eq!(node["status"]["capacity"]["cpu"], "4");
        }
    }
    let message = "epilogue-agent: m";
    for (kind, stands) in
        node_condition::SHARED.into_iter().flat_map(|it| [(it, true), (it, false)])
    {
        let body = patches::node_condition(kind, stands, "R", message, now());
        goes(world, kind, Call::patch(&status, body)).await;
    }
    let body = patches::node_condition(node_condition::AGENT_READY, true, "R", "m", now());
    goes(world, "ready", Call::patch(&status, body)).await;
}

async fn emits_events(world: &World) {
    let (here, namespace) = (world.here(), world.namespace());
    let event = |namespace: &str, regarding: Value| {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {
                "generateName": "reported-", "namespace": namespace,
                "annotations": {"starved_resource": "memory", "offending_containers": "main"},
            },
            "regarding": regarding,
            "type": "Normal", "reason": "ShutdownSeen", "note": "n", "action": "Watch",
            "eventTime": "2026-11-21T14:05:06.000000Z",
            "reportingController": "epilogue.dev/agent", "reportingInstance": here,
        })
    };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": namespace});
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": here});
    for (namespace, regarding) in [(namespace, pod), ("default", node)] {
        let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        goes(world, "event", Call::create(events, event(namespace, regarding))).await;
    }
}
