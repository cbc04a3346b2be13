//! Tools that render the chart and apply what they get (Argo CD, `helm template`) get what an
//! installation has, and nothing that would replace an agent.

use std::collections::BTreeSet;

use lab::Cluster;
use serde_json::{Value, json};

use super::helm::{RELEASE, chart, done, is_hook, objects};
use crate::platforms::named;

fn values() -> [Value; 3] {
    let pools = json!([{"name": "a", "nodeSelector": {"pool": "a"}, "tolerations": []}]);
    [
        json!({}),
        json!({"mode": "enforce", "platform": "k3s", "agent": {"leave": true, "pools": pools}}),
        json!({
            "mode": "enforce", "namespaces": {"controller": "007", "agents": "true"},
            "scraping": {"enabled": true}, "monitor": {"kind": "ServiceMonitor"},
            "alerts": {"enabled": true}, "dashboards": {"enabled": true},
            "networkPolicy": {"enabled": true}, "optIn": {"enabled": true},
            "agent": {"pools": pools, "serviceAccount": {"name": "nodes"}},
            "commonLabels": {"team": "batch"}, "commonAnnotations": {"cost": "1"},
        }),
    ]
}

/// What a tool gets that runs `helm template` with these flags.
async fn template(flags: &[&str], values: &Value) -> Vec<Value> {
    let chart = chart();
    let arguments = ["template", RELEASE, chart.to_str().expect("text"), "--values=-"];
    objects(&done(&[&arguments[..], flags].concat(), values).await)
}

/// Argo CD gives the versions and kinds of its cluster, and takes the last of two equal objects.
const ARGO: [&str; 4] = [
    "--kube-version=1.37.0",
    "--api-versions=v1/Pod",
    "--api-versions=apps/v1/DaemonSet",
    "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
];

#[tokio::test]
async fn a_template_run_has_no_hook_of_the_uninstallation_and_no_object_twice() {
    for values in values() {
        for flags in [&[][..], &ARGO] {
            let found = template(flags, &values).await;
            // Those of `helm test` only add a pod.
            let hooks = found.iter().filter(|it| is_hook(it));
            let harmful: Vec<String> = hooks
                .filter(|it| it["metadata"]["annotations"]["helm.sh/hook"] != "test")
                .map(named)
                .collect();
            assert_eq!(harmful, [""; 0], "{values}");
            let names: BTreeSet<String> = found.iter().map(named).collect();
            assert_eq!(names.len(), found.len(), "{values}");
        }
    }
}

/// A template run has no cluster to look at.
#[tokio::test]
async fn without_hooks_a_cluster_gets_what_a_template_run_prints() {
    let cluster = Cluster::of_tests("chart").expect("the suite's cluster");
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig_path().display());
    // The cluster has no kinds of the Prometheus operator.
    for values in &values()[..2] {
        let flags = ["--dry-run=server", "--is-upgrade", "--no-hooks", &kubeconfig];
        assert_eq!(template(&flags, values).await, template(&["--no-hooks"], values).await);
        let flags = ["--dry-run=server", "--is-upgrade", &kubeconfig];
        let hooks = template(&flags, values).await.into_iter().filter(is_hook).count();
        assert!(hooks >= 5, "a cluster has the hooks: {hooks}");
    }
}
