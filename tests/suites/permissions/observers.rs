//! Programs that only observe: what they do, they may do, and they write events and a lease alone.
//! What they may not do is refused, even with a role that says more.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::BoundObjectReference;
use kube::Client;
use lab::agent::{Setup as AgentSetup, Site};
use lab::audit::{self, Expected};
use lab::controller::{Controller, Setup};
use lab::eventually;
use lab::install::{AGENT, AGENTS_NAMESPACE, CONTROLLER, NAMESPACE, OBSERVER};
use serde_json::{Value, json};

use super::call::{Answer, Call};
use super::world::{Token, World, node_path, pod_path};

const SOON: Duration = Duration::from_mins(2);
const OBSERVE: &str = "--mode=observe";
const MANAGED_BY: &str = "epilogue.dev/job-controller";
/// The verbs of requests that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];

/// Both accounts that only observe: namespace, name and client.
async fn observers(world: &World) -> [(&'static str, String, Client); 2] {
    let node = world.done(Call::get(node_path(&world.here()))).await;
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(world.here()),
        uid: node["metadata"]["uid"].as_str().map(str::to_owned),
    };
    let observer = async |namespace: &'static str, account: &str, bound| {
        let account = format!("{account}{OBSERVER}");
        let token = world.cluster().bound_token(namespace, &account, bound).await;
        let client = world.cluster().token_client(&token.expect("a token")).await;
        (namespace, account, client.expect("a client"))
    };
    [
        observer(AGENTS_NAMESPACE, AGENT, Some(bound)).await,
        observer(NAMESPACE, CONTROLLER, None).await,
    ]
}

/// A Job that names our controller.
fn job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "waits"},
        "spec": {"managedBy": MANAGED_BY, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}],
        }}},
    })
}

fn jobs(world: &World) -> String {
    format!("/apis/batch/v1/namespaces/{}/jobs", world.namespace())
}

/// What programs that act write to pods, nodes and Jobs.
fn writes(world: &World, pod: &Value) -> [Call; 8] {
    let label = || json!({"metadata": {"labels": {"a": "b"}}});
    let (pod, node) = (pod_path(pod), node_path(&world.here()));
    let new = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    });
    [
        Call::patch(&pod, label()).dry(),
        Call::patch(format!("{pod}/status"), json!({"status": {"phase": "Failed"}})).dry(),
        Call::delete(&pod, json!({})).dry(),
        Call::create(world.path("pods"), new).dry(),
        Call::patch(&node, label()).dry(),
        Call::patch(format!("{node}/status"), label()).dry(),
        Call::merge(format!("{}/waits", jobs(world)), label()).dry(),
        Call::merge(format!("{}/waits/status", jobs(world)), json!({"status": {"active": 1}}))
            .dry(),
    ]
}

#[tokio::test]
async fn observers_write_to_no_pod_node_or_job_even_if_a_role_lets_them() {
    let world = World::start(Token::OfNode).await;
    let pod = world.running("asked").await;
    world.done(Call::create(jobs(&world), job())).await;
    for (namespace, account, client) in observers(&world).await {
        for call in writes(&world, &pod) {
            let answer = call.send(&client).await;
            assert_eq!(answer.code, 403, "{call}: {}", answer.message);
        }
        // With all rights, the policy still refuses.
        let name = format!("{}-{namespace}", world.namespace());
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        });
        world.done(Call::create(bindings, binding)).await;
        let mut says = 0;
        for call in writes(&world, &pod) {
            let answer = async || call.send(&client).await;
            // Of several policies that refuse, any may be the one that is named.
            let refused = |answer: &Answer| answer.message.contains("ValidatingAdmissionPolicy");
            let answer = eventually("a policy refuses", SOON, answer, refused).await;
            says += u32::from(answer.message.contains("only observes"));
        }
        assert!(says > 0, "no refusal is the observer's policy's");
        world.done(Call::delete(format!("{bindings}/{name}"), json!({}))).await;
    }
    world.finish().await;
}

/// The writes that the API server was asked for by our accounts, as verb and resource. No request
/// is refused. The other test's calls are not from a program.
fn asked(world: &World, scope: &str) -> Vec<String> {
    let entries = audit::entries(world.cluster());
    let of_program =
        |line: &&str| line.contains(scope) && line.contains(r#"userAgent":"epilogue-"#);
    let entries: Vec<&str> = entries.lines().filter(of_program).collect();
    let refused = entries.iter().find(|line| line.contains(r#"decision":"forbid"#));
    assert_eq!(refused, None);
    let entries = entries.into_iter();
    let entries = entries.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let writes = entries.filter(|entry| !READS.contains(&text(&entry["verb"]).as_str()));
    writes
        .map(|it| format!("{} {}", text(&it["verb"]), text(&it["objectRef"]["resource"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_observes_a_shutdown_writes_events_alone_and_is_refused_nothing() {
    let world = World::start(Token::OfNode).await;
    let setup = AgentSetup {
        pods: 2,
        mode: "observe",
        arguments: vec![OBSERVE.to_owned()],
        ..AgentSetup::default()
    };
    let site = Site::start(world.cluster(), setup).await;
    let log = std::fs::read_to_string(site.log()).expect("its log");
    assert!(log.contains("only observes") && log.contains("--mode=enforce"), "{log}");
    site.shut_down().await;
    let scope = site.log();
    let scope = scope.parent().and_then(|dir| dir.file_name()).expect("named as its namespace");
    let scope = scope.to_str().expect("text").to_owned();
    let said = async || asked(&world, &scope);
    let all = eventually("its events", SOON, said, |all| all.len() >= 3).await;
    assert!(all.iter().all(|write| write == "create events"), "{all:?}");
    // Its end fails the test if a request was refused.
    site.stop().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_observes_writes_events_and_its_lease_and_is_refused_nothing() {
    let world = World::start(Token::OfNode).await;
    world.done(Call::create(jobs(&world), job())).await;
    let deleted = json!({"terminationGracePeriodSeconds": 1});
    world.pod("lost", &world.there(), json!({"spec": deleted}), super::world::running()).await;
    let dir = tempfile::tempdir().expect("a directory");
    let setup = Setup::debug(dir.path()).namespace(world.namespace());
    let arguments = [
        OBSERVE,
        "--leader-elect=true",
        "--leader-elect-resource-namespace=epilogue-system",
        "--pod-gc-quarantine=1s",
    ];
    let setup = arguments.into_iter().fold(setup, Setup::argument);
    // The agent of this world is refused requests in the same namespace; `asked` checks ours.
    let setup = setup.expected(Expected::Invalid);
    let controller = Controller::start(world.cluster(), &setup).await.expect("the controller");
    let log = async || std::fs::read_to_string(controller.log()).unwrap_or_default();
    let log = eventually("it works", SOON, log, |log| log.contains("working")).await;
    assert!(log.contains("only observes") && log.contains("--mode=enforce"), "{log}");
    // The node of a pod goes: pod GC would fail the pod.
    world.done(Call::delete(node_path(&world.there()), json!({}))).await;
    let scope = "epilogue-controller-observer";
    let said = async || asked(&world, scope);
    let has_event = |all: &Vec<String>| all.iter().any(|write| write == "create events");
    let all = eventually("its event", SOON, said, has_event).await;
    let may = ["create events", "patch events", "create leases", "update leases"];
    assert!(all.iter().all(|write| may.contains(&write.as_str())), "{all:?}");
    let job = world.done(Call::get(format!("{}/waits", jobs(&world)))).await;
    assert!(job["status"]["startTime"].is_null(), "it runs no Job: {}", job["status"]);
    controller.stop().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": world.there()}});
    world.done(Call::create("/api/v1/nodes", node)).await;
    world.finish().await;
}
