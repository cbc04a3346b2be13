//! What `helm test` says of an installation. No kubelet runs here, so the test writes what kubelets
//! and the controller would report. The program that asks is the real one, with the rights of its
//! account.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use lab::ControlPlane;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::helm::{hooks_of, rendered};
use super::hook::Hook;
use crate::platforms::named;

const NAME: &str = "epilogue-test";
const EVENT: &str = "test";

fn the<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).expect(kind)
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().map(|it| it.as_str().expect("text")).collect()
}

/// The values of a flag of the hook's program.
fn flags<'a>(hooks: &'a [Value], flag: &str) -> Vec<&'a str> {
    let args = texts(&the(hooks, "Pod")["spec"]["containers"][0]["args"]);
    args.into_iter().filter_map(|arg| arg.strip_prefix(flag)?.strip_prefix('=')).collect()
}

/// The objects that a rule of the hook's roles names, as `resource/namespace/name`.
fn may_read(hooks: &[Value]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for role in hooks.iter().filter(|it| it["kind"] == "Role" || it["kind"] == "ClusterRole") {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().expect("rules") {
            assert_eq!(rule["verbs"], json!(["get"]), "{role}");
            for resource in texts(&rule["resources"]) {
                let names = texts(&rule["resourceNames"]);
                assert!(!names.is_empty(), "{role}");
                all.extend(names.iter().map(|name| format!("{resource}/{namespace}/{name}")));
            }
        }
    }
    all
}

fn table() -> [Value; 7] {
    let pools = json!([{"name": "batch", "nodeSelector": {"pool": "batch"}, "mode": "enforce"}]);
    [
        json!({}),
        json!({"mode": "enforce"}),
        json!({"mode": "enforce", "gangScheduling": {"enabled": true}}),
        json!({"agent": {"pools": pools}}),
        json!({"agent": {"enabled": false}}),
        json!({"mode": "enforce", "controller": {"enabled": false}}),
        json!({"namespaces": {"controller": "007", "agents": "true"}, "agent": {"leave": true}}),
    ]
}

#[tokio::test]
async fn the_test_asks_about_each_part_of_the_release_and_may_read_no_more() {
    for values in table() {
        let (hooks, objects) = (hooks_of(EVENT, &values).await, rendered(&values).await);
        let of = |kind: &'static str| objects.iter().filter(move |it| it["kind"] == kind);
        let text = |it: &Value, field: &str| it["metadata"][field].as_str().map(str::to_owned);
        let places = |kind| {
            let place =
                |it: &Value| Some(format!("{}/{}", text(it, "namespace")?, text(it, "name")?));
            of(kind).filter_map(place).collect::<BTreeSet<String>>()
        };
        let policies: BTreeSet<String> =
            of("ValidatingAdmissionPolicy").filter_map(|it| text(it, "name")).collect();
        let set = |flag: &str| flags(&hooks, flag).into_iter().map(str::to_owned).collect();
        let (asked, sets, deployments): (BTreeSet<String>, BTreeSet<String>, BTreeSet<String>) =
            (set("--policy"), set("--daemon-set"), set("--controller"));
        assert_eq!(asked, policies, "{values}");
        assert_eq!(
            (&sets, &deployments),
            (&places("DaemonSet"), &places("Deployment")),
            "{values}"
        );

        let mut expected = BTreeSet::new();
        for policy in &policies {
            expected.insert(format!("validatingadmissionpolicies//{policy}"));
            expected.insert(format!("validatingadmissionpolicybindings//{policy}"));
        }
        expected.extend(sets.iter().map(|it| format!("daemonsets/{it}")));
        for place in &deployments {
            expected.extend([format!("deployments/{place}"), format!("leases/{place}")]);
        }
        assert_eq!(may_read(&hooks), expected, "{values}");
        let pod = the(&hooks, "Pod");
        for binding in hooks.iter().filter(|it| it["kind"].to_string().contains("Binding")) {
            let account = json!([{"kind": "ServiceAccount", "name": NAME,
                                  "namespace": pod["metadata"]["namespace"]}]);
            assert_eq!(binding["subjects"], account);
            assert_eq!(binding["roleRef"]["name"], NAME);
        }
        let names: BTreeSet<String> = hooks.iter().map(named).collect();
        assert_eq!(names.len(), hooks.len(), "{values}");
    }
}

/// What the pod of the uninstallation has, apart from what each does.
#[tokio::test]
async fn its_pod_is_as_bounded_as_the_one_of_the_uninstallation() {
    let values = json!({
        "image": {"digest": format!("sha256:{}", "0".repeat(64)), "pullSecrets": ["a"]},
        "commonLabels": {"team": "batch"}, "commonAnnotations": {"cost": "1"},
        "controller": {"tolerations": [{"key": "infra", "operator": "Exists"}]},
        "agent": {"priorityClassName": ""},
    });
    let (test, leave) = (hooks_of(EVENT, &values).await, hooks_of("pre-delete", &values).await);
    let (test, leave) = (the(&test, "Pod"), the(&leave, "Pod"));
    let bounds = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for own in ["serviceAccountName", "activeDeadlineSeconds"] {
            spec[own].take();
        }
        for own in ["name", "args"] {
            spec["containers"][0][own].take();
        }
        spec
    };
    assert_eq!(bounds(test), bounds(leave));
    assert_eq!(test["metadata"]["labels"]["team"], "batch");
    assert_eq!(test["metadata"]["annotations"]["cost"], "1");
    assert_eq!(test["spec"]["serviceAccountName"], NAME);
}

/// A run of `helm test`.
pub(crate) struct Installation<'a> {
    hook: Hook<'a>,
}

impl<'a> Installation<'a> {
    pub(crate) fn new(
        control_plane: &'a ControlPlane,
        client: kube::Client,
        namespace: &'static str,
    ) -> Self {
        Self { hook: Hook { control_plane, client, namespace, name: NAME } }
    }

    /// Reports all pods of a namespace as ready, but not one of a hook, which has ended.
    pub(crate) async fn all_are_ready(&self, namespace: &str) {
        let pods: Api<Pod> = Api::namespaced(self.hook.client.clone(), namespace);
        let all = pods.list(&ListParams::default()).await.expect("the pods");
        for pod in all.into_iter().filter(|pod| pod.metadata.owner_references.is_some()) {
            let ready = json!({"status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}]}});
            let (params, patch) = (PatchParams::default(), Patch::Merge(ready));
            let name = pod.metadata.name.expect("a name");
            pods.patch_status(&name, &params, &patch).await.expect("the pod's status");
        }
    }

    /// Renews the lease as the controller's leader does, and does not end.
    pub(crate) async fn lead(&self) {
        let leases: Api<Lease> = Api::namespaced(self.hook.client.clone(), "epilogue-system");
        let params = PatchParams::apply("test").force();
        loop {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "epilogue-controller"},
                "spec": {"holderIdentity": "leader", "renewTime": now()}});
            leases.patch("epilogue-controller", &params, &Patch::Apply(lease)).await.expect("it");
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Runs the program of the pod, which may wait so long. Returns what it said.
    pub(crate) async fn said(&self, wait: &str, succeeds: bool) -> String {
        let mut args = self.hook.args().await;
        let timeout = args.iter_mut().find(|arg| arg.starts_with("--timeout="));
        *timeout.expect("a timeout") = format!("--timeout={wait}");
        let output = self.hook.run(&args).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), succeeds, "{text} {error}");
        let phase = if succeeds { "Succeeded" } else { "Failed" };
        self.hook.report(NAME, json!({"phase": phase})).await;
        text
    }
}

fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}
