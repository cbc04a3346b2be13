//! Tests what the API refuses to an agent's token, and for which reason. An administrator may make
//! each request (a dry run shows it): only the identity is wrong.

use agent_core::termination::patches;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::call::{Answer, Call};
use super::world::{Token, World, ended, node_path, pod_path, running, view};

/// A request that must be refused.
pub(super) struct Refusal {
    what: &'static str,
    call: Call,
    code: u16,
    /// The text of the refusal.
    says: &'static str,
}

pub(super) const OTHER_NODE: &str = "may write to that node and its pods only";
/// RBAC's wording.
pub(super) const NO_RIGHT: &str = "epilogue-agent\" cannot";

fn refusal(what: &'static str, call: Call, code: u16, says: &'static str) -> Refusal {
    Refusal { what, call, code, says }
}

/// Refused by RBAC, or by the policy that knows the node.
pub(super) fn forbidden(what: &'static str, call: Call, says: &'static str) -> Refusal {
    refusal(what, call, 403, says)
}

/// Refused by a policy that knows the fields.
pub(super) fn invalid(what: &'static str, call: Call, says: &'static str) -> Refusal {
    refusal(what, call, 422, says)
}

/// No identity may make it.
async fn is_refused_to_everybody(world: &World, what: &str, call: Call, says: &str) {
    for client in [&world.agent, &world.admin] {
        let answer = call.send(client).await;
        println!("| everybody | {what} | {} |", words(&answer));
        assert!(answer.code == 422 && answer.message.contains(says), "{what}: {answer:?}");
    }
}

/// The API's message, for the table: its last part names the field and the reason.
fn words(answer: &Answer) -> String {
    let (code, text) = (answer.code, answer.message.replace('|', "/"));
    if answer.is_success() {
        return "allowed".to_owned();
    }
    let reason = text.split(" denied request: ").last().unwrap_or_default();
    let reason: String = reason.chars().take(120).collect();
    format!("refused {code}: {}", reason.trim())
}

/// Each request is valid in itself, refused to the agent with its reason, and changes nothing.
pub(super) async fn all_are_refused(world: &World, refusals: Vec<Refusal>) {
    let mut wrong = Vec::new();
    for Refusal { what, call, code, says } in &refusals {
        let control = call.clone().dry().send(&world.admin).await;
        if !control.is_success() {
            wrong.push(format!("{what}: not even an administrator: {}", control.message));
        }
        let answer = call.send(&world.agent).await;
        println!("| {} | {what} | {} |", world.who(), words(&answer));
        if answer.code != *code || !answer.message.contains(says) {
            wrong.push(format!("{what}: {call}: {} {}", answer.code, answer.message));
        }
    }
    println!("{} requests were refused", refusals.len() - wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn mark(pod: &Value) -> Call {
    let body = patches::mark(&view(pod), Timestamp::now());
    Call::patch(format!("{}/status", pod_path(pod)), body)
}

fn failed(pod: &Value) -> Call {
    let body = patches::failed(&view(pod), Timestamp::now());
    Call::patch(format!("{}/status", pod_path(pod)), body)
}

pub(super) fn status(pod: &Value, body: Value) -> Call {
    Call::patch(format!("{}/status", pod_path(pod)), body)
}

fn delete(pod: &Value) -> Call {
    let uid = &pod["metadata"]["uid"];
    let options = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 5});
    Call::delete(pod_path(pod), options)
}

fn deadline(pod: &Value, seconds: impl Into<Value>) -> Call {
    Call::merge(pod_path(pod), json!({"spec": {"activeDeadlineSeconds": seconds.into()}}))
}

/// A mark, and another status change with it.
fn marked_with(pod: &Value, status: &Value) -> Call {
    let mut body = patches::mark(&view(pod), Timestamp::now());
    for (key, value) in status.as_object().expect("fields of the status") {
        body["status"][key] = value.clone();
    }
    Call::patch(format!("{}/status", pod_path(pod)), body)
}

/// A mark with this announced end.
fn marked_at(pod: &Value, ends_at: &str) -> Call {
    let mut body = patches::mark(&view(pod), Timestamp::now());
    body["metadata"]["annotations"] = json!({"epilogue.dev/ends-at": ends_at});
    Call::patch(format!("{}/status", pod_path(pod)), body)
}

#[tokio::test]
async fn whatever_is_not_of_its_own_node_is_refused() {
    for token in [Token::OfPod, Token::OfNode] {
        let world = World::start(token).await;
        let there = world.there();
        let pod = world.pod("theirs", &there, json!({}), running()).await;
        let unbound = json!({"spec": {"nodeName": null}});
        let nowhere = world.pod("nowhere", "", unbound, json!({})).await;
        let ending = world.pod("ending", &there, json!({}), running()).await;
        world.done(Call::delete(pod_path(&ending), json!({"gracePeriodSeconds": 30}))).await;
        let name = format!("of-{there}");
        let system = world.pod_in("kube-system", &name, &there, json!({}), running()).await;
        let node = node_path(&there);
        let annotation = json!({"metadata": {"annotations": {"epilogue.dev/state": "idle"}}});
        let mut taints = world.done(Call::get(&node)).await["spec"]["taints"].clone();
        let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
        taints.as_array_mut().expect("taints").push(ours);
        let taint = json!({"spec": {"taints": taints}});
        let refusals = vec![
            forbidden("mark another node's pod", mark(&pod), OTHER_NODE),
            forbidden("fail another node's pod", failed(&pod), OTHER_NODE),
            forbidden("delete another node's pod", delete(&pod), OTHER_NODE),
            forbidden("hurry another node's pod that ends", delete(&ending), OTHER_NODE),
            forbidden("end another node's pod by its deadline", deadline(&pod, 1), OTHER_NODE),
            forbidden("mark a pod of another node's system", mark(&system), OTHER_NODE),
            forbidden("delete a pod of another node's system", delete(&system), OTHER_NODE),
            forbidden("mark a pod on no node", mark(&nowhere), "a pod on no node"),
            forbidden("delete a pod on no node", delete(&nowhere), "a pod on no node"),
            forbidden("announce for another node", Call::patch(&node, annotation), OTHER_NODE),
            forbidden("taint another node", Call::merge(&node, taint), OTHER_NODE),
        ];
        all_are_refused(&world, refusals).await;
        world.done(Call::delete(pod_path(&system), json!({"gracePeriodSeconds": 0}))).await;
        world.finish().await;
    }
}

#[tokio::test]
async fn a_token_that_names_no_node_may_write_nothing_and_gets_the_remedy() {
    const REMEDY: &str = "kubectl create token epilogue-agent";
    let world = World::start(Token::Unbound).await;
    let pod = world.running("pod").await;
    let annotation = json!({"metadata": {"annotations": {"epilogue.dev/state": "idle"}}});
    let node = node_path(&world.here());
    let refusals = vec![
        forbidden("mark", mark(&pod), REMEDY),
        forbidden("fail", failed(&pod), REMEDY),
        forbidden("delete", delete(&pod), REMEDY),
        forbidden("deadline", deadline(&pod, 1), REMEDY),
        forbidden("announce", Call::patch(node, annotation), REMEDY),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

#[tokio::test]
async fn of_a_pods_status_only_condition_and_failure_are_the_agents() {
    const FINAL: &str = "its terminal status is final";
    const FAILED_ONLY: &str = "to Failed only";
    let world = World::start(Token::OfPod).await;
    let (pod, here) = (world.running("pod").await, world.here());
    let failed_pod = world.pod("failed", &here, json!({}), ended("Failed")).await;
    let done = world.pod("done", &here, json!({}), ended("Succeeded")).await;
    let phase = |pod: &Value, phase: &str| status(pod, json!({"status": {"phase": phase}}));
    let condition = |condition: Value| status(&pod, json!({"status": {"conditions": [condition]}}));
    let mut statuses = pod["status"]["containerStatuses"].clone();
    statuses[0]["restartCount"] = 7.into();
    let ips = json!({"podIP": "10.1.0.9", "podIPs": [{"ip": "10.1.0.9"}, {"$patch": "replace"}]});
    let start = json!({"startTime": "2026-11-21T13:00:00Z"});
    let gone = json!({"$patch": "delete", "type": "PodScheduled"});
    let ready = |status: &str| json!({"type": "Ready", "status": status, "reason": "R"});
    let mut not_only_failed = patches::failed(&view(&pod), Timestamp::now());
    not_only_failed["status"]["conditions"][1]["status"] = "Unknown".into();
    let refusals = vec![
        invalid("Running to Succeeded", phase(&pod, "Succeeded"), FAILED_ONLY),
        invalid("Running to Pending", phase(&pod, "Pending"), FAILED_ONLY),
        invalid("a phase that there is not", phase(&pod, "Gone"), FAILED_ONLY),
        invalid("Failed to Running", phase(&failed_pod, "Running"), FINAL),
        invalid("Succeeded to Failed", failed(&done), FINAL),
        invalid("mark what succeeded", mark(&done), "never after"),
        invalid("mark what failed", mark(&failed_pod), "never after"),
        invalid("another reason", marked_with(&pod, &json!({"reason": "R"})), "to Failed only"),
        invalid("another message", marked_with(&pod, &json!({"message": "m"})), "to Failed only"),
        invalid(
            "statuses of containers",
            marked_with(&pod, &json!({"containerStatuses": statuses})),
            "change containerStatuses",
        ),
        invalid("the pod's addresses", marked_with(&pod, &ips), "podIP"),
        invalid("its start", marked_with(&pod, &start), "startTime"),
        invalid(
            "a foreign condition",
            condition(json!({"type": "PodScheduled", "status": "False"})),
            "no others",
        ),
        invalid(
            "a readiness gate",
            condition(json!({"type": "example.com/gate", "status": "False"})),
            "no others",
        ),
        invalid("a condition removed", condition(gone), "no others"),
        invalid("Ready, of a pod that lives", condition(ready("False")), "with the phase"),
        invalid(
            "neither ready nor not",
            status(&pod, not_only_failed),
            "Ready and ContainersReady change to False only",
        ),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

/// Whoever writes, and by whichever right. ([API6])
#[tokio::test]
async fn a_write_that_was_decided_on_another_pod_or_version_fails() {
    let world = World::start(Token::OfPod).await;
    let pod = world.running("pod").await;
    let marked = mark(&pod).send(&world.agent).await;
    assert!(marked.is_success(), "{marked:?}");
    let marked = marked.object();
    let mut another = patches::failed(&view(&marked), Timestamp::now());
    another["metadata"]["uid"] = "0b7c3f5e-1f52-4a39-9a3e-6f1f5b1d0c7a".into();
    let another = Call::patch(format!("{}/status", pod_path(&pod)), another);
    let options = json!({"preconditions": {"resourceVersion": pod["metadata"]["resourceVersion"]}});
    let calls = [
        ("a version that is over", failed(&pod), 409),
        ("another pod of the name", another, 422),
        ("a deletion of a version that is over", Call::delete(pod_path(&pod), options), 409),
    ];
    for client in [&world.agent, &world.admin] {
        for (what, call, code) in &calls {
            let answer = call.clone().send(client).await;
            println!("| everybody | {what} | {} |", words(&answer));
            assert_eq!(answer.code, *code, "{what}: {answer:?}");
        }
    }
    let now = world.done(Call::get(pod_path(&pod))).await;
    assert_eq!(now["status"]["phase"], "Running");
    assert!(now["metadata"]["deletionTimestamp"].is_null());
    world.finish().await;
}

#[tokio::test]
async fn what_else_a_status_patch_reaches_stays() {
    let world = World::start(Token::OfPod).await;
    let here = world.here();
    let tracked = json!({"metadata": {
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "labels": {"batch.kubernetes.io/job-completion-index": "0"},
    }});
    let pod = world.pod("pod", &here, tracked, running()).await;
    let metadata = |metadata: Value| {
        Call::merge(format!("{}/status", pod_path(&pod)), json!({"metadata": metadata}))
    };
    let refusals = vec![
        invalid("a label", metadata(json!({"labels": {"app": "b"}})), "change app"),
        // The order of the names is the server's.
        invalid("no labels", metadata(json!({"labels": null})), "labels: an agent may not change"),
        invalid(
            "another index",
            metadata(json!({"labels": {"batch.kubernetes.io/job-completion-index": "1"}})),
            "change batch.kubernetes.io/job-completion-index",
        ),
        invalid("the DNS of the cluster", metadata(json!({"labels": {"k8s-app": "d"}})), "k8s-app"),
        invalid("the finalizer of Jobs", metadata(json!({"finalizers": null})), "finalizers"),
        invalid("a finalizer", metadata(json!({"finalizers": ["a/b"]})), "finalizers"),
        invalid(
            "an annotation of Jobs",
            metadata(json!({"annotations": {"batch.kubernetes.io/job-index-failure-count": "9"}})),
            "change batch.kubernetes.io/job-index-failure-count",
        ),
        invalid(
            "a foreign annotation",
            metadata(json!({"annotations": {"theirs": "2"}})),
            "change theirs",
        ),
        invalid("no annotations", metadata(json!({"annotations": null})), "change theirs"),
        invalid(
            "an announced end without its cause",
            metadata(json!({"annotations": {"epilogue.dev/ends-at": "2026-12-01T08:00:00Z"}})),
            "on a pod whose DisruptionTarget is True",
        ),
        invalid("an announced end in other words", marked_at(&pod, "soon"), "is a time such as"),
    ];
    all_are_refused(&world, refusals).await;
    // The API itself keeps spec and owners out of a status patch: it accepts the patch, and they
    // stay.
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": here, "uid": "u"});
    let body = json!({
        "metadata": {"ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": "other"}]},
    });
    let answer = status(&pod, body).send(&world.agent).await;
    assert!(answer.is_success(), "{}", answer.message);
    assert_eq!(answer.object()["spec"], pod["spec"]);
    assert!(answer.object()["metadata"]["ownerReferences"].is_null());
    world.done(metadata(json!({"finalizers": null}))).await;
    world.finish().await;
}

#[tokio::test]
async fn of_a_pod_itself_only_an_earlier_end_is_the_agents() {
    const METADATA: &str = "metadata: an agent may not change";
    let world = World::start(Token::OfPod).await;
    let here = world.here();
    let late = json!({"spec": {"activeDeadlineSeconds": 100}});
    let limited = world.pod("limited", &here, late, running()).await;
    let tracked = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}});
    let pod = world.pod("pod", &here, tracked, running()).await;
    let done = world.pod("done", &here, json!({}), ended("Failed")).await;
    let metadata = |metadata: Value| Call::merge(pod_path(&pod), json!({"metadata": metadata}));
    let system = json!({"spec": {"priorityClassName": "system-node-critical"}});
    let system = world.pod_in("kube-system", &here, &here, system, running()).await;
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": here, "uid": "u"}]);
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let mut tolerations = pod["spec"]["tolerations"].clone();
    tolerations.as_array_mut().expect("the default ones").push(json!({"operator": "Exists"}));
    let toleration = json!({"spec": {"tolerations": tolerations}});
    let with = |options: Value| Call::delete(pod_path(&pod), options);
    let uid = &pod["metadata"]["uid"];
    let by_uid = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 0});
    let refusals = vec![
        invalid("an image", Call::patch(pod_path(&pod), image), "change containers"),
        invalid("a toleration", Call::merge(pod_path(&pod), toleration), "change tolerations"),
        invalid("labels", metadata(json!({"labels": {"app": "b"}})), "labels: an agent"),
        invalid(
            "annotations",
            metadata(json!({"annotations": {"theirs": "b"}})),
            "annotations: an agent",
        ),
        invalid("finalizers", metadata(json!({"finalizers": null})), METADATA),
        invalid("owners", metadata(json!({"ownerReferences": owner})), METADATA),
        invalid("deletion of whatever has the name", with(json!({})), "preconditions.uid"),
        invalid("deletion without time to end", with(by_uid), "gracePeriodSeconds is 0"),
        invalid("deletion of what has ended", delete(&done), "take its result away"),
        invalid("deletion of the system's own", delete(&system), "above 2000000000"),
        invalid("a deadline of the system's own", deadline(&system, 1), "above 2000000000"),
    ];
    all_are_refused(&world, refusals).await;
    let later = deadline(&limited, 200);
    is_refused_to_everybody(&world, "a later deadline", later, "less than or equal").await;
    let none = deadline(&limited, Value::Null);
    is_refused_to_everybody(&world, "no deadline", none, "to nil value").await;
    world.done(metadata(json!({"finalizers": null}))).await;
    world.done(Call::delete(pod_path(&system), json!({"gracePeriodSeconds": 0}))).await;
    world.finish().await;
}

#[tokio::test]
async fn static_pods_are_left_alone() {
    const STATIC: &str = "the pod is static";
    let world = World::start(Token::OfPod).await;
    let mirror = json!({
        "metadata": {"annotations": {"kubernetes.io/config.mirror": "h"}},
        "spec": {"automountServiceAccountToken": null},
    });
    let pod = world.pod("static", &world.here(), mirror, running()).await;
    let refusals = vec![
        invalid("mark a static pod", mark(&pod), STATIC),
        invalid("fail a static pod", failed(&pod), STATIC),
        invalid("end a static pod by its deadline", deadline(&pod, 1), STATIC),
        invalid("delete a static pod's mirror", delete(&pod), STATIC),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

#[tokio::test]
async fn of_its_node_only_announcement_and_taint_are_the_agents() {
    const TAINTS: &str = "spec.taints";
    let world = World::start(Token::OfPod).await;
    let node = node_path(&world.here());
    let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
    let foreign = taint("foreign", "NoSchedule");
    let taints = |taints: Value| Call::merge(&node, json!({"spec": {"taints": taints}}));
    let metadata = |metadata: Value| Call::merge(&node, json!({"metadata": metadata}));
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]);
    let cidrs = json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}});
    let refusals = vec![
        invalid("a label", metadata(json!({"labels": {"zone": "b"}})), "change zone"),
        invalid(
            "a role",
            metadata(json!({"labels": {"node-role.kubernetes.io/control-plane": ""}})),
            "change node-role.kubernetes.io/control-plane",
        ),
        invalid(
            "an annotation of a kubelet's",
            metadata(json!({"annotations": {"node.alpha.kubernetes.io/ttl": "9"}})),
            "change node.alpha.kubernetes.io/ttl",
        ),
        invalid(
            "an annotation of ours, but not this",
            metadata(json!({"annotations": {"epilogue.dev/other": "b"}})),
            "change epilogue.dev/other",
        ),
        invalid("a finalizer", metadata(json!({"finalizers": ["a/b"]})), "change finalizers"),
        invalid("an owner", metadata(json!({"ownerReferences": owner})), "ownerReferences"),
        invalid("a foreign taint", taints(json!([foreign, taint("k", "NoExecute")])), TAINTS),
        invalid("a foreign taint removed", taints(json!([])), TAINTS),
        invalid(
            "our taint, to evict",
            taints(json!([foreign, taint("epilogue.dev/shutting-down", "NoExecute")])),
            TAINTS,
        ),
        invalid(
            "whether pods may be bound",
            Call::patch(&node, json!({"spec": {"unschedulable": true}})),
            "change unschedulable",
        ),
        invalid("the network of its pods", Call::merge(&node, cidrs), "spec: an agent"),
        forbidden("the node's object", Call::delete(&node, json!({})), NO_RIGHT),
        forbidden("another node", Call::create("/api/v1/nodes", a("Node", "n")), NO_RIGHT),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}

fn a(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
}

/// RBAC refuses everything that an agent does not need.
#[tokio::test]
async fn everything_else_in_the_cluster_is_out_of_reach() {
    let world = World::start(Token::OfPod).await;
    for object in [a("Secret", "s"), a("ConfigMap", "c"), event(&world)] {
        let kind = object["kind"].as_str().expect("a kind").to_lowercase();
        world.done(Call::create(world.path(&format!("{kind}s")), object)).await;
    }
    let pod = world.running("pod").await;
    let refusals = [pods(&world, &pod), secrets(&world), cluster(&world)];
    all_are_refused(&world, refusals.into_iter().flatten().collect()).await;
    // A request that the API server would pass on to a kubelet has no dry run.
    let pod = pod_path(&pod);
    let passed_on = [
        Call::patch(format!("{pod}/resize"), json!({"spec": {}})),
        Call::create(format!("{pod}/exec?command=sh&stdin=1"), Value::Null),
        Call::create(format!("{pod}/attach"), Value::Null),
        Call::create(format!("{pod}/portforward"), Value::Null),
        Call::get(format!("{pod}/log")),
        Call::get(format!("{pod}/proxy/")),
        Call::get(format!("{}/proxy/pods", node_path(&world.here()))),
        Call::get(format!("{}/proxy/configz", node_path(&world.here()))),
    ];
    for call in passed_on {
        let answer = call.send(&world.agent).await;
        println!("| {} | {call} | {} |", world.who(), words(&answer));
        assert!(answer.code == 403 && answer.message.contains(NO_RIGHT), "{call}: {answer:?}");
    }
    world.finish().await;
}

fn event(world: &World) -> Value {
    let mut event = a("Event", "e");
    event["involvedObject"] = json!({"kind": "Pod", "name": "p", "namespace": world.namespace()});
    event
}

fn pods(world: &World, pod: &Value) -> Vec<Refusal> {
    let mut new = a("Pod", "new");
    new["spec"] = json!({
        "nodeName": world.here(), "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i"}],
    });
    let mut eviction = a("Eviction", "pod");
    eviction["apiVersion"] = "policy/v1".into();
    let path = pod_path(pod);
    let ephemeral = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    vec![
        forbidden("create a pod", Call::create(world.path("pods"), new), NO_RIGHT),
        forbidden("write a whole pod", Call::update(&path, pod.clone()), NO_RIGHT),
        forbidden(
            "write a whole status",
            Call::update(format!("{path}/status"), pod.clone()),
            NO_RIGHT,
        ),
        forbidden("delete all pods", Call::delete(world.path("pods"), json!({})), NO_RIGHT),
        forbidden("evict", Call::create(format!("{path}/eviction"), eviction), NO_RIGHT),
        forbidden("debug", Call::patch(format!("{path}/ephemeralcontainers"), ephemeral), NO_RIGHT),
    ]
}

fn secrets(world: &World) -> Vec<Refusal> {
    let token = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []},
    });
    let tokens = "/api/v1/namespaces/epilogue-agents/serviceaccounts/epilogue-agent/token";
    let annotation = json!({"metadata": {"annotations": {"a": "b"}}});
    vec![
        forbidden("read a secret", Call::get(world.path("secrets/s")), NO_RIGHT),
        forbidden("list secrets", Call::get("/api/v1/secrets"), NO_RIGHT),
        forbidden("read a config map", Call::get(world.path("configmaps/c")), NO_RIGHT),
        forbidden("list config maps", Call::get("/api/v1/configmaps"), NO_RIGHT),
        forbidden("make a token", Call::create(tokens, token), NO_RIGHT),
        forbidden("read events", Call::get(world.path("events")), NO_RIGHT),
        forbidden("change an event", Call::patch(world.path("events/e"), annotation), NO_RIGHT),
        forbidden("delete an event", Call::delete(world.path("events/e"), json!({})), NO_RIGHT),
    ]
}

fn cluster(world: &World) -> Vec<Refusal> {
    let of = |group: &str, kind: &str, name: &str| {
        let mut object = a(kind, name);
        object["apiVersion"] = group.into();
        object
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = of("coordination.k8s.io/v1", "Lease", &world.there());
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/epilogue-system/leases";
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = of("rbac.authorization.k8s.io/v1", "ClusterRole", "r");
    let mut binding = of("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "b");
    binding["roleRef"] = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
    });
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let policy = format!("{policies}/epilogue-agent-own-node");
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let policy_binding = format!("{bindings}/epilogue-agent-own-node");
    let namespace = format!("/api/v1/namespaces/{}", world.namespace());
    vec![
        forbidden("make a node's lease", Call::create(leases, lease), NO_RIGHT),
        forbidden("list leases", Call::get(leases), NO_RIGHT),
        forbidden("list the controller's lease", Call::get(elsewhere), NO_RIGHT),
        forbidden("list nodes' metrics", Call::get("/metrics"), "cannot get path"),
        forbidden("make a role", Call::create(format!("{rbac}/clusterroles"), role), NO_RIGHT),
        forbidden(
            "bind a role",
            Call::create(format!("{rbac}/clusterrolebindings"), binding),
            NO_RIGHT,
        ),
        forbidden("remove the policy", Call::delete(policy, json!({})), NO_RIGHT),
        forbidden("unbind the policy", Call::delete(policy_binding, json!({})), NO_RIGHT),
        forbidden("delete a namespace", Call::delete(namespace, json!({})), NO_RIGHT),
        forbidden("list Jobs", Call::get("/apis/batch/v1/jobs"), NO_RIGHT),
        forbidden("list namespaces", Call::get("/api/v1/namespaces"), NO_RIGHT),
        forbidden("list volumes", Call::get("/api/v1/persistentvolumes"), NO_RIGHT),
    ]
}
