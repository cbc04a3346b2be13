//! Compares what admission refuses and changes: by policies, which the API has built in, and by a
//! webhook that does not answer.

use std::time::Duration;

use jiff::Timestamp;
use lab::kubernetes::Feature;
use lab::{Namespace, eventually};
use model_api::{Effect, Fault, Kind, Matcher, ModelApi, Refusal, Verb, Webhook};
use serde_json::{Value, json};

use super::generator::{changed, step};
use super::side::{Answer, Side, Step};

/// How soon a server has read a new policy.
const SOON: Duration = Duration::from_mins(1);
const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const UNREACHABLE: &str = "https://127.0.0.1:1/";
const LABELS: [&str; 2] = ["by", "admission"];

/// Both sides, in a namespace of this name that has a Job.
struct Sides {
    namespace: String,
    handle: ModelApi,
    model: Side,
    api: Side,
}

impl Sides {
    async fn send(&mut self, step: &Step) -> (Answer, Answer) {
        (self.model.send(step).await, self.api.send(step).await)
    }

    fn pod(&self, name: &str) -> Step {
        let spec = json!({"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        step("POST", Kind::Pod.path(&self.namespace), pod)
    }

    /// A status with uncounted pods.
    fn status(&self) -> Step {
        let path = format!("{}/j", Kind::Job.path(&self.namespace));
        let lists = json!({"succeeded": ["a"], "failed": ["b"]});
        let status = json!({"status": {"active": 1, "uncountedTerminatedPods": lists}});
        step("PUT", format!("{path}/status"), changed(&path, 0, &status))
    }

    /// Registers these objects with the API, and injects the effect into the model. Once the API
    /// shows it, sends the request to both, and then takes all away.
    async fn compare(&mut self, what: &str, objects: &[(String, Value)], of: (Fault, Step)) {
        let (fault, request) = of;
        for (plural, object) in objects {
            let path = format!("{REGISTRATION}/{plural}");
            let (code, answer) = self.api.send(&step("POST", path, object.clone())).await;
            assert_eq!(code, 201, "{what}: {answer}");
        }
        let fault = self.handle.inject(fault);
        let expected = summary(&self.model.send(&request).await);
        let dry = Step { query: "dryRun=All".to_owned(), ..request.clone() };
        let api = &mut self.api;
        let seen = async || summary(&api.send(&dry).await);
        eventually(what, SOON, seen, |seen| *seen == expected).await;
        assert_eq!(summary(&self.api.send(&request).await), expected, "{what}");
        for (plural, object) in objects {
            let name = object["metadata"]["name"].as_str().expect("must have a name");
            let path = format!("{REGISTRATION}/{plural}/{name}");
            assert_eq!(self.api.send(&step("DELETE", path, Value::Null)).await.0, 200);
        }
        self.handle.lift(fault);
    }
}

/// What both sides must agree on.
fn summary((code, answer): &Answer) -> Value {
    json!({
        "code": code, "reason": answer["reason"], "message": answer["message"],
        "labels": answer["metadata"]["labels"][LABELS[0]],
        "lists": answer["status"]["uncountedTerminatedPods"], "active": answer["status"]["active"],
    })
}

/// Runs the comparisons, and lets the namespace go.
async fn on_both(comparisons: impl AsyncFnOnce(&mut Sides)) {
    let cluster = super::cluster();
    let namespace = Namespace::create(&cluster).await.expect("a namespace");
    let handle = ModelApi::new(Timestamp::now());
    let api = Side::new(cluster.admin_client().await.expect("a client"));
    let model = Side::new(handle.client("test/1"));
    let mut sides = Sides { namespace: namespace.name().to_owned(), handle, model, api };
    let body = json!({"metadata": {"name": namespace.name()}});
    sides.model.send(&step("POST", Kind::Namespace.path(""), body)).await;
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}});
    let (of_model, of_api) = sides.send(&step("POST", Kind::Job.path(namespace.name()), job)).await;
    assert_eq!((of_model.0, of_api.0), (201, 201));
    comparisons(&mut sides).await;
    namespace.finish().await.expect("the namespace goes");
}

fn creations() -> (Value, Matcher) {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                      "resources": ["pods"]});
    (rule, Matcher::on(Verb::Create, Kind::Pod))
}

fn statuses() -> (Value, Matcher) {
    let rule = json!({"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                      "resources": ["jobs/status"]});
    let matcher = Matcher::on(Verb::Update, Kind::Job);
    (rule, Matcher { subresource: Some("status".to_owned()), ..matcher })
}

/// A policy about these writes, and its binding.
fn policy(kind: &str, namespace: &str, (rule, spec): (&Value, Value)) -> [(String, Value); 2] {
    let mut spec = spec;
    spec["failurePolicy"] = "Fail".into();
    spec["matchConstraints"] = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceRules": [rule],
    });
    let mut binding = json!({"policyName": namespace});
    if kind == "validating" {
        binding["validationActions"] = json!(["Deny"]);
    }
    let metadata = json!({"name": namespace});
    [
        (format!("{kind}admissionpolicies"), json!({"metadata": metadata, "spec": spec})),
        (format!("{kind}admissionpolicybindings"), json!({"metadata": metadata, "spec": binding})),
    ]
}

#[tokio::test]
async fn policies_and_a_silent_webhook_refuse_as_the_model_says() {
    on_both(async |sides| {
        let namespace = sides.namespace.clone();
        let refuses = json!({"validations": [{"expression": "false", "message": "not now"}]});
        let denied = |kind, name| {
            let refusal = Refusal::denied_by_policy(kind, name, &namespace, "not now");
            Effect::Validate(Webhook::refusing(refusal))
        };
        let ((rule, matcher), pod) = (creations(), sides.pod("p"));
        let objects = policy("validating", &namespace, (&rule, refuses.clone()));
        let fault = Fault::of(matcher.clone(), denied(Kind::Pod, "p"));
        sides.compare("a policy refuses a pod", &objects, (fault, pod.clone())).await;

        let webhook = json!({
            "metadata": {"name": namespace},
            "webhooks": [{
                "name": "admit.example.com", "sideEffects": "None", "failurePolicy": "Fail",
                "admissionReviewVersions": ["v1"], "clientConfig": {"url": UNREACHABLE},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [rule],
            }],
        });
        let objects = [("validatingwebhookconfigurations".to_owned(), webhook)];
        let error = format!(
            "Post \"{UNREACHABLE}?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused"
        );
        let refusal = Refusal::unreachable_webhook("admit.example.com", &error);
        let fault = Fault::of(matcher, Effect::Validate(Webhook::refusing(refusal)));
        sides.compare("a webhook does not answer", &objects, (fault, pod)).await;

        let ((rule, matcher), status) = (statuses(), sides.status());
        let objects = policy("validating", &namespace, (&rule, refuses));
        let fault = Fault::of(matcher, denied(Kind::Job, "j"));
        sides.compare("a policy refuses a status", &objects, (fault, status)).await;
    })
    .await;
}

#[tokio::test]
async fn policies_change_what_is_stored_as_in_the_model() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    on_both(async |sides| {
        let namespace = sides.namespace.clone();
        let changes = |patch: &str| {
            let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": patch}});
            json!({"reinvocationPolicy": "Never", "mutations": [patch]})
        };
        let ((rule, matcher), pod) = (creations(), sides.pod("p"));
        let patch =
            r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {"by": "admission"}}]"#;
        let objects = policy("mutating", &namespace, (&rule, changes(patch)));
        let label = Webhook::changing(|pod, _| {
            pod["metadata"]["labels"][LABELS[0]] = LABELS[1].into();
        });
        let fault = Fault::of(matcher, Effect::Mutate(label));
        sides.compare("a policy labels a pod", &objects, (fault, pod)).await;

        let ((rule, matcher), status) = (statuses(), sides.status());
        let patch = r#"[JSONPatch{op: "remove", path: "/status/uncountedTerminatedPods"}]"#;
        let objects = policy("mutating", &namespace, (&rule, changes(patch)));
        let drop = Webhook::changing(|job, _| {
            job["status"]["uncountedTerminatedPods"] = Value::Null;
        });
        let fault = Fault::of(matcher, Effect::Mutate(drop));
        sides.compare("a policy drops the lists of a status", &objects, (fault, status)).await;
    })
    .await;
}
