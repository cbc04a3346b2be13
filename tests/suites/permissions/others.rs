//! Tests that every write of both programs passes where the admission of others adds labels,
//! annotations and conditions to it, or changes what it added before.

use std::time::Duration;

use lab::kubernetes::Feature;
use lab::{eventually, install};
use serde_json::{Value, json};

use super::call::Call;
use super::world::{Token, World, node_path, pod_path};
use super::{allowed, controller};

/// What the policies add to each object.
const SEEN: &str = "audit.example.com/seen";
/// What they add to a pod, and change when its conditions change.
const CONDITIONS: &str = "audit.example.com/conditions";
/// Time for the API server to learn of a policy.
const SOON: Duration = Duration::from_mins(1);

/// Policies of others that change our writes to these resources, each with its binding.
fn policies(world: &World) -> [Vec<Value>; 3] {
    let both = format!(
        "Object{{metadata: Object.metadata{{labels: {{'{SEEN}': 'yes', 'team': 'audit'}}, \
         annotations: {{'{SEEN}': 'yes', 'note': 'audited'}}}}}}"
    );
    let counted = format!(
        "Object{{metadata: Object.metadata{{annotations: {{'{CONDITIONS}': \
         string(has(object.status.conditions) ? object.status.conditions.filter(each, \
         !each.type.startsWith('audit.')).size() : 0)}}}}}}"
    );
    let condition = "Object{status: Object.status{conditions: [Object.status.conditions{\
                     type: 'audit.example.com/Seen', status: 'True'}]}}";
    let all = json!(["pods", "pods/status", "nodes", "nodes/status", "jobs", "jobs/status"]);
    [
        mutation(world, "keys", &all, &both),
        mutation(world, "values", &json!(["pods", "pods/status"]), &counted),
        mutation(world, "conditions", &json!(["pods/status", "nodes/status"]), condition),
    ]
}

fn mutation(world: &World, what: &str, resources: &Value, expression: &str) -> Vec<Value> {
    let metadata = json!({"name": format!("{what}-{}", world.namespace())});
    let api = "admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["", "batch"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": resources,
            }]},
            "matchConditions": [
                {"name": "of-our-programs", "expression":
                    "request.userInfo.username.startsWith('system:serviceaccount:epilogue-')"},
                {"name": "of-this-test", "expression": format!(
                    "has(request.namespace) && request.namespace == '{0}' \
                     || request.name.startsWith('{0}')",
                    world.namespace(),
                )},
            ],
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": expression},
            }],
        },
    });
    let binding = json!({
        "apiVersion": api, "kind": "MutatingAdmissionPolicyBinding", "metadata": metadata,
        "spec": {"policyName": metadata["name"]},
    });
    vec![policy, binding]
}

/// The same world, whose API server changes our writes.
async fn mutating(world: World) -> World {
    for object in policies(&world).iter().flatten() {
        install::apply_object(&world.admin, object).await.expect("the policy is installed");
    }
    let pod = world.running("asked").await;
    let body = json!({"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"},
    ]}});
    let probe = Call::patch(format!("{}/status", pod_path(&pod)), body).dry();
    let probed = async || {
        let answer = probe.send(&world.agent).await;
        let words = [SEEN, CONDITIONS, "audit.example.com/Seen"];
        !answer.is_success() || words.iter().all(|word| answer.message.contains(word))
    };
    eventually("the policies are in use", SOON, probed, |in_use| *in_use).await;
    world
}

async fn finish(world: World) {
    for object in policies(&world).iter().flatten().rev() {
        install::delete_object(&world.admin, object).await.expect("the policy goes");
    }
    world.finish().await;
}

fn is_seen(object: &Value) {
    for field in ["labels", "annotations"] {
        assert_eq!(object["metadata"][field][SEEN], "yes", "{object}");
    }
}

#[tokio::test]
async fn an_agent_may_do_all_that_it_does_while_others_change_its_writes() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let world = mutating(World::start(Token::OfPod).await).await;
    allowed::writes(&world).await;
    is_seen(&world.done(Call::get(node_path(&world.here()))).await);
    finish(world).await;
}

#[tokio::test]
async fn the_controller_may_do_all_that_it_does_while_others_change_its_writes() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let world = mutating(World::start(Token::OfNode).await.of_the_controller().await).await;
    is_seen(&controller::writes_to_pods(&world).await);
    let path = node_path(&world.here());
    let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
    world.done(Call::merge(&path, json!({"spec": {"taints": [ours]}}))).await;
    let none = Call::merge(&path, json!({"spec": {"taints": []}}));
    is_seen(&allowed::goes(&world, "take the taint away", none).await);
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
        "spec": {"suspend": true, "managedBy": "epilogue.dev/job-controller", "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
        }}},
    });
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", world.namespace());
    let mut job = world.done(Call::create(&jobs, job)).await;
    job["status"]["active"] = 0.into();
    let write = Call::update(format!("{jobs}/job/status"), job);
    is_seen(&allowed::goes(&world, "write a status", write).await);
    finish(world).await;
}
