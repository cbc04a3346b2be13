//! The policies by which a namespace opts in have the API version that the cluster serves. Without
//! one, Helm says which version of Kubernetes has it.

use serde_json::{Value, json};

use super::helm::{RELEASE, chart, helm, objects, rendered};

/// Renders the chart as for a cluster of this version; the error if Helm refuses.
async fn rendered_for(version: &str, values: &Value) -> Result<Vec<Value>, String> {
    rendered_by(&[&format!("--kube-version={version}")], values).await
}

async fn rendered_by(flags: &[&str], values: &Value) -> Result<Vec<Value>, String> {
    let chart = chart();
    let arguments = ["template", RELEASE, chart.to_str().expect("text"), "--values=-"];
    let output = helm(&[&arguments[..], flags].concat(), values).await;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(objects(&String::from_utf8(output.stdout).expect("Helm prints text")))
}

fn of_opt_in(objects: Vec<Value>) -> Vec<Value> {
    let is_it = |object: &Value| {
        object["kind"].as_str().is_some_and(|kind| kind.starts_with("MutatingAdmissionPolicy"))
    };
    objects.into_iter().filter(is_it).collect()
}

#[tokio::test]
async fn the_api_version_is_the_one_of_the_cluster() {
    let values = json!({"optIn": {"enabled": true}});
    let table = [("1.34.2", "v1beta1"), ("1.35.0-gke.1", "v1beta1"), ("1.36.0", "v1")];
    for (version, expected) in table {
        let objects = rendered_for(version, &values).await.expect("the API is there");
        let found = of_opt_in(objects);
        assert_eq!(found.len(), 4, "{version}");
        let expected = format!("admissionregistration.k8s.io/{expected}");
        assert!(found.iter().all(|it| it["apiVersion"] == expected), "{version}: {found:?}");
    }
}

#[tokio::test]
async fn a_cluster_without_the_api_is_refused_with_a_remedy() {
    for version in ["1.30.0", "1.33.5"] {
        let refused = rendered_for(version, &json!({"optIn": {"enabled": true}})).await;
        let error = refused.expect_err("the API is missing");
        let words = [
            "optIn.enabled=true",
            &format!("admissionregistration.k8s.io of v{version} has no MutatingAdmissionPolicy"),
            "expected Kubernetes 1.36",
            "spec.managedBy in each Job",
        ];
        assert!(words.iter().all(|word| error.contains(word)), "{version}: {error}");
        let objects = rendered_for(version, &json!({})).await.expect("nothing needs the API");
        assert_eq!(of_opt_in(objects), [] as [Value; 0]);
    }
}

/// As in an installation: the cluster's kinds are known.
#[tokio::test]
async fn the_kinds_that_a_cluster_serves_decide() {
    let values = json!({"optIn": {"enabled": true}});
    let cluster = ["--kube-version=1.35.1", "--api-versions=v1/Pod"];
    let error = rendered_by(&cluster, &values).await.expect_err("the API is off");
    assert!(error.contains("has no MutatingAdmissionPolicy"), "{error}");
    let beta = "admissionregistration.k8s.io/v1beta1";
    let served = format!("--api-versions={beta}/MutatingAdmissionPolicy");
    let objects = rendered_by(&[&cluster[..], &[&served]].concat(), &values).await;
    let found = of_opt_in(objects.expect("the API is on"));
    assert!(found.len() == 4 && found.iter().all(|it| it["apiVersion"] == beta), "{found:?}");
}

#[tokio::test]
async fn a_controller_of_one_namespace_gets_the_jobs_of_that_one() {
    let values = json!({"optIn": {"enabled": true}, "controller": {"namespace": "batch"}});
    let found = of_opt_in(rendered(&values).await);
    let selected = |name: &str| {
        let is_it =
            |it: &&Value| it["kind"] == "MutatingAdmissionPolicy" && it["metadata"]["name"] == name;
        let policy = found.iter().find(is_it).expect(name);
        policy["spec"]["matchConstraints"]["namespaceSelector"]["matchLabels"].clone()
    };
    let expected = json!({"epilogue.dev/jobs": "managed", "kubernetes.io/metadata.name": "batch"});
    assert_eq!(selected("epilogue-jobs"), expected);
}
