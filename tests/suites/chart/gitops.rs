//! Tools that render the chart and apply what they get (Argo CD, `helm template`) get what an
//! installation has, and nothing that would replace an agent. Helm 3 renders what Helm 4 does.

use std::collections::BTreeSet;

use lab::Cluster;
use serde_json::{Value, json};

use super::helm::{RELEASE, chart, done, helm, helm_3, is_hook, objects};
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
async fn a_template_run_has_no_hook_and_no_object_twice() {
    for values in values() {
        for flags in [&[][..], &ARGO] {
            let found = template(flags, &values).await;
            let hooks: Vec<String> = found.iter().filter(|it| is_hook(it)).map(named).collect();
            assert_eq!(hooks, [""; 0], "{values}");
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

/// A build of a second Helm, so not in each run.
#[tokio::test]
async fn rare_helm_3_renders_what_helm_4_does_and_refuses_the_same() {
    let chart = chart();
    let chart = chart.to_str().expect("text");
    let cluster = Cluster::of_tests("chart").expect("the suite's cluster");
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig_path().display());
    // Built as a module, Helm 3 takes an old version of Kubernetes for the default.
    let offline = vec!["--kube-version=1.37.0"];
    let mut online = offline.clone();
    online.extend(["--dry-run=server", "--is-upgrade", &kubeconfig]);
    let mut runs: Vec<(Value, Vec<&str>)> =
        values().into_iter().map(|values| (values, offline.clone())).collect();
    runs.extend(values()[..2].iter().map(|values| (values.clone(), online.clone())));
    for (values, flags) in runs {
        let arguments = [&["template", RELEASE, chart, "--values=-"], &flags[..]].concat();
        let output = helm_3(&arguments, &values).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{values}: {error}");
        let found = objects(&String::from_utf8_lossy(&output.stdout));
        assert!(found.len() > 40, "{values}");
        assert_eq!(found, objects(&done(&arguments, &values).await), "{values} {flags:?}");
    }
    for (values, words) in [
        (json!({"agent": {"pols": []}}), "'pols' not allowed"),
        (json!({"namespaces": {"agents": "kube-system"}}), "expected one of its own"),
    ] {
        let arguments = ["template", RELEASE, chart, "--kube-version=1.37.0", "--values=-"];
        for output in [helm(&arguments, &values).await, helm_3(&arguments, &values).await] {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && error.contains(words), "{values}: {error}");
        }
    }
}
