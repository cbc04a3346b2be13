//! A release on a real API of its own: installed, upgraded, rolled back, uninstalled. Then nothing
//! is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Namespace, Node};
use kube::api::{Api, ListParams, PostParams};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::inventory::{is_of_release, named};
use lab::{ControlPlane, Options, eventually};
use serde_json::{Value, json};

use super::helm::{RELEASE, chart, done, helm, rendered};
use super::installation::Installation;
use super::leave::Uninstallation;

/// The name of a release, which is as good as ours.
const OTHER: &str = "other";
/// A namespace goes within seconds after its content.
const SOON: Duration = Duration::from_mins(2);

/// They create the pods that admission has to accept, and fill in the quotas' status.
const CONTROLLERS: &str =
    "daemonset-controller,deployment-controller,replicaset-controller,resourcequota-controller";

/// All objects of the API by name, of all kinds that can be listed.
async fn inventory(client: &kube::Client) -> BTreeMap<String, Value> {
    lab::inventory::inventory(client).await.unwrap_or_else(|error| panic!("list: {error}"))
}

/// The same, as soon as the API server has created what it creates by itself.
async fn settled(client: &kube::Client) -> BTreeSet<String> {
    let system = ["default", "kube-node-lease", "kube-public", "kube-system"];
    let namespaces: Api<Namespace> = Api::all(client.clone());
    eventually(
        "the API server's namespaces are there",
        SOON,
        async || namespaces.list(&ListParams::default()).await.expect("namespaces").items.len(),
        |count| *count >= system.len(),
    )
    .await;
    let mut last = BTreeSet::new();
    loop {
        let now: BTreeSet<String> = inventory(client).await.into_keys().collect();
        // Each namespace gets a service account and the authority's certificates.
        let whole = system.iter().all(|namespace| {
            now.iter().any(|name| name.ends_with(&format!("ServiceAccount/{namespace}/default")))
        });
        if whole && now == last {
            return now;
        }
        last = now;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// One cluster with Helm's release in it.
struct Lab {
    control_plane: ControlPlane,
    client: kube::Client,
    chart: String,
}

impl Lab {
    async fn start() -> Self {
        let controllers = format!("{QUIET_CONTROLLERS},{CONTROLLERS}");
        let options = Options::unique("chart").controller_manager(&controllers);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let client = control_plane.admin_client().await.expect("a client");
        let chart = chart().to_str().expect("text").to_owned();
        Self { control_plane, client, chart }
    }

    /// Runs a command of Helm; returns what it prints.
    async fn helm(&self, arguments: &[&str], values: &Value) -> String {
        let kubeconfig = format!("--kubeconfig={}", self.control_plane.kubeconfig_path().display());
        let common = [kubeconfig.as_str(), "--namespace=kube-system"];
        done(&[arguments, &common].concat(), values).await
    }

    async fn install(&self, release: &str, values: &Value) {
        self.helm(&["install", release, &self.chart, "--values=-"], values).await;
    }

    async fn upgrade(&self, values: &Value) {
        let arguments = ["upgrade", RELEASE, &self.chart, "--reset-values", "--values=-"];
        self.helm(&arguments, values).await;
    }

    /// The objects with these values are there, and each DaemonSet has its flags.
    async fn holds(&self, values: &Value) {
        let all = inventory(&self.client).await;
        let found = |object: &Value| {
            let name = format!("/{}", named(object));
            all.iter().find(|(key, _)| key.ends_with(&name)).map(|(_, object)| object.clone())
        };
        let args =
            |object: &Value| object.pointer("/spec/template/spec/containers/0/args").cloned();
        let expected = rendered(values).await;
        for object in &expected {
            let stored = found(object).unwrap_or_else(|| panic!("no {}", named(object)));
            assert_eq!(args(&stored), args(object), "{}", named(object));
            let is_ours = is_of_release("", &stored, &[RELEASE, OTHER]);
            assert!(is_ours, "{}", named(object));
        }
        let sets = |kind: &Value| *kind == "DaemonSet";
        let count = expected.iter().filter(|object| sets(&object["kind"])).count();
        assert_eq!(all.values().filter(|object| sets(&object["kind"])).count(), count);
    }

    /// The API knows the selector of the notes' command.
    async fn events_of_agents_can_be_selected(&self) {
        let events: Api<Event> = Api::all(self.client.clone());
        let selector = ListParams::default().fields("reportingComponent=epilogue.dev/agent");
        events.list(&selector).await.expect("events");
    }

    /// Admission accepts the pods of both programs: by the namespaces' pod security, quotas,
    /// priority classes.
    async fn pods_are_admitted(&self) {
        let count = async || {
            let all = inventory(&self.client).await;
            let of = |namespace: &str| {
                let name = format!("/Pod/{namespace}/");
                all.keys().filter(|key| key.contains(&name)).count()
            };
            (of("epilogue-system"), of("epilogue-agents"))
        };
        eventually("the pods are there", SOON, count, |count| *count == (2, 2)).await;
    }
}

impl Lab {
    /// The nodes, of which the first lives.
    async fn create_nodes(&self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        for name in ["n1", "n2"] {
            let node = json!({"metadata": {"name": name, "labels": {
                "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name}}});
            let node = serde_json::from_value(node).expect("a node");
            nodes.create(&PostParams::default(), &node).await.expect("the node");
        }
    }

    fn uninstallation(&self, namespace: &'static str) -> Uninstallation<'_> {
        Uninstallation::new(&self.control_plane, self.client.clone(), namespace)
    }

    /// `helm test` passes once pods are ready and a controller leads, and fails before; it names
    /// what does not work.
    async fn is_tested(&self) {
        let test = Installation::new(&self.control_plane, self.client.clone(), "epilogue-system");
        let kubeconfig = format!("--kubeconfig={}", self.control_plane.kubeconfig_path().display());
        let arguments = ["test", RELEASE, "--namespace=kube-system", &kubeconfig];
        let (output, said) = tokio::join!(helm(&arguments, &Value::Null), test.said("1s", false));
        assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        for words in [
            "does not work: daemonset epilogue-agents/epilogue-agent: 0 of 2 nodes",
            "does not work: deployment epilogue-system/epilogue-controller: 0 of 2 pods",
            "does not work: lease epilogue-system/epilogue-controller: no controller holds it",
            "to do: kubectl --namespace epilogue-system logs deployment/epilogue-controller",
            "admission policies limit the accounts",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        for namespace in ["epilogue-agents", "epilogue-system"] {
            test.all_are_ready(namespace).await;
        }
        let run = async { tokio::join!(helm(&arguments, &Value::Null), test.said("2min", true)) };
        let (output, said) = tokio::select! {
            done = run => done,
            () = test.lead() => unreachable!("a leader goes on"),
        };
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && printed.contains("Succeeded"), "{printed}");
        assert!(said.contains("leader holds it") && !said.contains("does not work"), "{said}");
    }

    /// Nothing of the release is left, and nothing else went.
    async fn has_nothing_but(&self, before: &BTreeSet<String>) {
        let left = async || {
            let all = inventory(&self.client).await;
            let ours =
                all.iter().filter(|(name, object)| is_of_release(name, object, &[RELEASE, OTHER]));
            let new = all.keys().filter(|name| !before.contains(*name));
            ours.map(|(name, _)| name).chain(new).cloned().collect::<BTreeSet<String>>()
        };
        eventually("nothing of the release is left", SOON, left, BTreeSet::is_empty).await;
        let after: BTreeSet<String> = inventory(&self.client).await.into_keys().collect();
        assert_eq!(before.difference(&after).collect::<Vec<_>>(), [""; 0], "nothing else went");
    }
}

#[tokio::test]
async fn a_release_is_installed_upgraded_rolled_back_and_leaves_nothing() {
    let lab = Lab::start().await;
    lab.create_nodes().await;
    let before = settled(&lab.client).await;

    let observe = json!({"agent": {"leaveTimeoutSeconds": 10}});
    lab.install(RELEASE, &observe).await;
    lab.holds(&observe).await;
    lab.pods_are_admitted().await;
    lab.is_tested().await;
    lab.events_of_agents_can_be_selected().await;
    let enforce = json!({"mode": "enforce", "scraping": {"enabled": true},
        "optIn": {"enabled": true}, "agent": {"pools": [
        {"name": "batch", "nodeSelector": {"pool": "batch"}, "pressure": "enforce"}]}});
    lab.upgrade(&enforce).await;
    lab.holds(&enforce).await;
    let history = lab.helm(&["history", RELEASE], &Value::Null).await;
    assert!(history.contains("superseded") && history.contains("deployed"), "{history}");
    lab.helm(&["rollback", RELEASE, "1"], &Value::Null).await;
    lab.holds(&observe).await;
    let leave = json!({"agent": {"leave": true, "leaveTimeoutSeconds": 10}});
    lab.upgrade(&leave).await;
    lab.holds(&leave).await;
    lab.upgrade(&observe).await;

    let uninstallation = lab.uninstallation("epilogue-agents");
    let arguments = ["uninstall", RELEASE];
    let (printed, said) = tokio::join!(
        lab.helm(&arguments, &Value::Null),
        uninstallation.of_a_live_node_and_one_that_is_down()
    );
    assert!(said.contains("leave is done on 1 of 2 nodes"), "{said}");
    assert!(said.contains("not reached: node"), "{said}");
    // Helm lists here what it does not take for its own, and leaves that to the namespace's end.
    assert_eq!(printed.trim(), r#"release "epilogue" uninstalled"#);
    lab.has_nothing_but(&before).await;

    lab.install(RELEASE, &observe).await;
    lab.holds(&observe).await;
    lab.control_plane.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_node_that_cannot_leave_stops_the_uninstallation() {
    let lab = Lab::start().await;
    lab.create_nodes().await;
    let before = settled(&lab.client).await;
    // In names of its own.
    let values = json!({"namespaces": {"agents": "nodes"}, "controller": {"enabled": false},
        "agent": {"leaveTimeoutSeconds": 10, "serviceAccount": {"name": "node-agent"}}});
    lab.install(OTHER, &values).await;

    let kubeconfig = format!("--kubeconfig={}", lab.control_plane.kubeconfig_path().display());
    let arguments = ["uninstall", OTHER, "--namespace=kube-system", &kubeconfig];
    let uninstallation = lab.uninstallation("nodes");
    let (output, said) =
        tokio::join!(helm(&arguments, &Value::Null), uninstallation.of_a_node_that_fails());
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(said.contains("the node is shutting down"), "{said}");
    let all = inventory(&lab.client).await;
    let policies = all.keys().filter(|name| name.contains("/ValidatingAdmissionPolicy/"));
    assert!(policies.count() > 5, "the release is still there");

    // The same again, once the node can leave.
    let (_, said) = tokio::join!(
        helm(&arguments, &Value::Null),
        uninstallation.of_a_live_node_and_one_that_is_down()
    );
    assert!(said.contains("leave is done on 1 of 2 nodes"), "{said}");
    lab.has_nothing_but(&before).await;
    lab.control_plane.stop().await.expect("it stops");
}
