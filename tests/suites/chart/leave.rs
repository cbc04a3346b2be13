//! What `helm uninstall` runs first: `epilogue-agent leave` on each node, and a pod that waits for
//! it. No kubelet runs here, so the test writes what kubelets would report. The program that waits
//! is the real one, with the rights of its account.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use lab::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::helm::{RELEASE, hooks_of, rendered};
use super::hook::Hook;
use crate::platforms::named;

const HOOK: &str = "epilogue-agent-leave";
const EVENT: &str = "pre-delete";
const SOON: Duration = Duration::from_mins(2);

fn the<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).expect(kind)
}

#[tokio::test]
async fn the_hooks_replace_the_agents_and_may_only_read() {
    let pools = json!([{"name": "batch", "nodeSelector": {"pool": "batch"}}]);
    let pool = json!({"mode": "enforce", "agent": {"pools": pools}});
    let (hooks, objects) = (hooks_of(EVENT, &pool).await, rendered(&pool).await);
    let names = |objects: &[Value], kind: &str| -> BTreeSet<String> {
        objects.iter().filter(|object| object["kind"] == kind).map(named).collect()
    };
    let sets = names(&hooks, "DaemonSet");
    assert_eq!(sets, names(&objects, "DaemonSet"), "the release deletes what replaces its own");
    assert_eq!(sets.len(), 2);
    for set in hooks.iter().filter(|object| object["kind"] == "DaemonSet") {
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(pod["initContainers"][0]["args"], json!(["leave", "--root=/host"]));
        let args = json!(["leave", "--root=/host", "--wait"]);
        assert_eq!(pod["containers"][0]["args"], args);
        assert_eq!(pod["initContainers"][0]["volumeMounts"], pod["containers"][0]["volumeMounts"]);
        let metadata = &set["metadata"];
        assert_eq!(metadata["labels"]["app.kubernetes.io/managed-by"], "Helm");
        assert_eq!(metadata["annotations"]["meta.helm.sh/release-name"], RELEASE);
        assert_eq!(metadata["annotations"]["meta.helm.sh/release-namespace"], "default");
    }
    let expected = json!([
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"],
         "resourceNames": ["epilogue-agent", "epilogue-agent-batch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]);
    assert_eq!(the(&hooks, "Role")["rules"], expected);
    let kinds: BTreeSet<&str> = hooks.iter().filter_map(|object| object["kind"].as_str()).collect();
    let expected = ["DaemonSet", "Pod", "Role", "RoleBinding", "ServiceAccount"];
    assert_eq!(kinds, BTreeSet::from(expected));
    assert!(hooks.iter().all(|it| it["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"));
}

/// Agents that observe may not remove what ones that acted have left.
#[tokio::test]
async fn where_all_observe_the_hooks_bring_the_account_that_may_leave() {
    let observes = hooks_of(EVENT, &json!({})).await;
    let acts = rendered(&json!({"mode": "enforce"})).await;
    let of_agents = |objects: &[Value]| -> BTreeSet<String> {
        let kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
        let rights = objects.iter().filter(|it| kinds.iter().any(|kind| it["kind"] == *kind));
        let own = rights
            .filter(|it| it["metadata"]["labels"]["app.kubernetes.io/name"] == "epilogue-agent");
        own.map(named).collect()
    };
    assert_eq!(of_agents(&observes), of_agents(&acts));
    assert_eq!(of_agents(&observes).len(), 5);
    let pod = &the(&observes, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "epilogue-agent");
    let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
    let writes = |name: &str| mounts.iter().any(|it| it["name"] == name && it["readOnly"] != true);
    assert!(writes("journal") && writes("logind-conf"));
    assert!(hooks_of(EVENT, &json!({"mode": "enforce"})).await.len() == observes.len() - 5);
}

#[tokio::test]
async fn the_hooks_can_be_switched_off() {
    for values in
        [json!({"agent": {"leaveOnUninstall": false}}), json!({"agent": {"enabled": false}})]
    {
        assert_eq!(hooks_of(EVENT, &values).await, [Value::Null; 0], "{values}");
    }
    let pod = |values: Value| async move {
        the(&hooks_of(EVENT, &values).await, "Pod")["spec"]["containers"][0]["args"].clone()
    };
    let args = pod(json!({"agent": {"leaveTimeoutSeconds": 30}})).await;
    assert_eq!(args.as_array().and_then(|args| args.last()), Some(&json!("--timeout=30s")));
}

/// The agents' namespace during an uninstallation.
pub(crate) struct Uninstallation<'a> {
    hook: Hook<'a>,
}

impl<'a> Uninstallation<'a> {
    pub(crate) fn new(
        control_plane: &'a ControlPlane,
        client: kube::Client,
        namespace: &'static str,
    ) -> Self {
        Self { hook: Hook { control_plane, client, namespace, name: HOOK } }
    }

    /// Waits for this many pods of the DaemonSet that is there now, and runs `leave`; returns their
    /// names. Pods of the replaced one may still be there.
    async fn leaving(&self, count: usize) -> Vec<String> {
        let sets: Api<DaemonSet> = Api::namespaced(self.hook.client.clone(), self.hook.namespace);
        let set = json!(sets.get("epilogue-agent").await.expect("the DaemonSet"));
        let args_of_leave = &set["spec"]["template"]["spec"]["containers"][0]["args"][0];
        assert_eq!(args_of_leave, "leave");
        let leaving = async || {
            let pods = self.hook.pods().list(&ListParams::default()).await.expect("the pods").items;
            let owner = |pod: &Pod| json!(pod.metadata.owner_references)[0]["uid"].clone();
            let of_set = pods.into_iter().filter(|pod| owner(pod) == set["metadata"]["uid"]);
            of_set.filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
        };
        eventually("the pods that leave", SOON, leaving, |names| names.len() == count).await
    }

    /// Reports as the kubelets do: one node is done, the other is down. Returns what the hook said.
    pub(crate) async fn of_a_live_node_and_one_that_is_down(&self) -> String {
        let args = self.hook.args().await;
        let pods = self.leaving(2).await;
        let ready = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}]});
        self.hook.report(&pods[0], ready).await;
        let output = self.hook.run(&args).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
        self.hook.report(HOOK, json!({"phase": "Succeeded"})).await;
        text
    }

    /// A node that lives cannot be cleaned: its pod says why. Returns what the hook said.
    pub(crate) async fn of_a_node_that_fails(&self) -> String {
        let args = self.hook.args().await;
        let pods = self.leaving(2).await;
        let message = "epilogue-agent: the node is shutting down; nothing was changed";
        let failing = json!({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z",
            "initContainerStatuses": [{"name": "leave", "image": "", "imageID": "", "ready": false,
                "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "message": message}}}]});
        self.hook.report(&pods[0], failing).await;
        let output = self.hook.run(&args).await;
        assert_eq!(output.status.code(), Some(1));
        self.hook.report(HOOK, json!({"phase": "Failed"})).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
