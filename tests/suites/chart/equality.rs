//! The chart and the kustomize overlays are equal, object by object.

use std::collections::BTreeMap;

use epilogue_deploy::release::pack;
use serde_json::{Value, json};

use super::helm::{chart, done, rendered, rendered_from};
use crate::{platforms, release};

/// Labels that the chart adds.
const OF_HELM: [&str; 4] = [
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
];

/// The objects by name, without Helm's labels. Lists whose order means nothing are sorted.
fn normalised(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let count = objects.len();
    let named = objects.into_iter().map(|mut object| {
        if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
            labels.retain(|label, _| !OF_HELM.contains(&label.as_str()));
        }
        let pod = object.pointer_mut("/spec/template/spec");
        if let Some(pod) = pod {
            sort(&mut pod["volumes"]);
            sort(&mut pod["containers"][0]["volumeMounts"]);
            sort(&mut pod["containers"][0]["ports"]);
            sort(&mut pod["containers"][0]["env"]);
        }
        (platforms::named(&object), object)
    });
    let named: BTreeMap<String, Value> = named.collect();
    assert_eq!(named.len(), count, "two objects have one name");
    named
}

fn sort(list: &mut Value) {
    if let Some(list) = list.as_array_mut() {
        list.sort_by_key(|it| it["name"].to_string());
    }
}

fn assert_equal(what: &str, chart: Vec<Value>, kustomize: Vec<Value>) {
    let (chart, kustomize) = (normalised(chart), normalised(kustomize));
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&kustomize), "{what}");
    for (name, object) in &chart {
        assert_eq!(object, &kustomize[name], "{what}: {name}");
    }
}

#[tokio::test]
async fn in_both_modes_the_chart_is_equal_to_each_overlay() {
    let table = [
        ("", json!({})),
        ("k3s", json!({"platform": "k3s"})),
        ("k0s", json!({"platform": "k0s"})),
        ("microk8s", json!({"platform": "microk8s"})),
        ("no-logind", json!({"agent": {"logind": false}})),
        ("scraping", json!({"scraping": {"enabled": true}})),
        ("opt-in", json!({"optIn": {"enabled": true}})),
    ];
    for (overlay, mut values) in table {
        let acts = format!("overlays/{}", platforms::acting(overlay));
        let observes = match overlay {
            "" => "base".to_owned(),
            overlay => format!("overlays/{overlay}"),
        };
        assert_equal(&observes, rendered(&values).await, platforms::rendered(&observes).await);
        values["mode"] = json!("enforce");
        assert_equal(&acts, rendered(&values).await, platforms::rendered(&acts).await);
    }
}

/// A controller that only observes makes no PodGroup, so there is an overlay for one mode only.
#[tokio::test]
async fn gang_scheduling_is_equal_to_its_overlay_and_adds_nothing_to_what_observes() {
    let mut values = json!({"gangScheduling": {"enabled": true}});
    assert_equal("base", rendered(&values).await, platforms::rendered("base").await);
    values["mode"] = json!("enforce");
    let directory = "overlays/enforce-gang-scheduling";
    assert_equal(directory, rendered(&values).await, platforms::rendered(directory).await);
}

#[tokio::test]
async fn one_half_of_the_chart_is_one_half_of_the_base() {
    for (half, other) in [("agent", "controller"), ("controller", "agent")] {
        for (mode, directory) in [("observe", "base"), ("enforce", "overlays/enforce")] {
            let values = json!({
                "mode": mode, other: {"enabled": false}, "apiPriority": {"enabled": false},
            });
            let directory = format!("{directory}/{half}");
            let kustomize = platforms::rendered(&directory).await;
            assert_equal(&directory, rendered(&values).await, kustomize);
        }
    }
}

/// The chart takes manifests in by symbolic links; a package has the files.
#[tokio::test]
async fn the_packaged_chart_renders_what_the_directory_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let (chart, target) = (chart(), directory.path());
    let arguments = ["package", chart.to_str().expect("text"), "--destination"];
    let arguments = [&arguments[..], &[target.to_str().expect("text")]].concat();
    done(&arguments, &Value::Null).await;
    let package = target.join(format!("epilogue-{}.tgz", env!("CARGO_PKG_VERSION")));
    let values = json!({"scraping": {"enabled": true}});
    let (packaged, direct) = (rendered_from(&package, &values).await, rendered(&values).await);
    assert_eq!(packaged, direct);
}

#[tokio::test]
async fn the_chart_of_a_release_renders_what_the_directory_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = release::source(directory.path());
    pack::chart(&source, None, directory.path()).expect("a package");
    let package = directory.path().join(format!("epilogue-{}.tgz", source.version));
    let values = json!({"alerts": {"enabled": true}, "dashboards": {"enabled": true}});
    let (packaged, direct) = (rendered_from(&package, &values).await, rendered(&values).await);
    assert_eq!(packaged, direct);
}

#[tokio::test]
async fn all_pods_of_a_release_s_chart_have_the_image_by_its_digest() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = release::source(directory.path());
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    pack::chart(&source, Some(&digest), directory.path()).expect("a package");
    let package = directory.path().join(format!("epilogue-{}.tgz", source.version));
    let expected = format!("registry.epilogue.dev/epilogue@{digest}");
    let mut count = 0;
    for object in rendered_from(&package, &json!({})).await {
        if let Some(containers) = object.pointer("/spec/template/spec/containers") {
            let containers = containers.as_array().expect("a list");
            assert!(containers.iter().all(|it| it["image"] == expected), "{containers:?}");
            count += 1;
        }
    }
    assert_eq!(count, 2, "agents and controller");
}
