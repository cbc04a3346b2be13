//! Alerts and dashboards behind values: the same as in `deploy/monitoring`.

use std::collections::BTreeMap;

use epilogue_deploy::documents;
use epilogue_deploy::monitoring::{directory, prometheus_rule};
use serde_json::{Value, json};

use super::helm::rendered;

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The groups of the only `PrometheusRule`.
fn groups(objects: &[Value]) -> Vec<Value> {
    let rules = of_kind(objects, "PrometheusRule");
    assert_eq!(rules.len(), 1);
    rules[0]["spec"]["groups"].as_array().cloned().expect("groups")
}

fn names(groups: &[Value]) -> Vec<&str> {
    groups.iter().filter_map(|group| group["name"].as_str()).collect()
}

#[tokio::test]
async fn the_alerts_are_those_of_the_kustomize_component() {
    let values = json!({"scraping": {"enabled": true},
                        "alerts": {"enabled": true, "labels": {"release": "prom"}}});
    let objects = rendered(&values).await;
    let component = documents(&prometheus_rule()).expect("the component").remove(0);
    let rule = of_kind(&objects, "PrometheusRule")[0];
    assert_eq!(rule["spec"], component["spec"]);
    for field in ["name", "namespace"] {
        assert_eq!(rule["metadata"][field], component["metadata"][field]);
    }
    let labels = rule["metadata"]["labels"].as_object().expect("labels");
    for (label, value) in component["metadata"]["labels"].as_object().expect("labels") {
        assert_eq!(labels[label], *value, "{label}");
    }
    assert_eq!(labels["release"], "prom");
}

#[tokio::test]
async fn no_alert_asks_for_a_program_that_nothing_scrapes() {
    let table: [(Value, &[&str], &str); 4] = [
        (json!({}), &["epilogue"], "epilogue-system"),
        (
            json!({"scraping": {"enabled": true}, "agent": {"leave": true}}),
            &["epilogue-controller", "epilogue"],
            "epilogue-system",
        ),
        (
            json!({"scraping": {"enabled": true}, "controller": {"enabled": false}}),
            &["epilogue-agent", "epilogue"],
            "epilogue-agents",
        ),
        (
            json!({"scraping": {"enabled": true}, "agent": {"enabled": false}}),
            &["epilogue-controller", "epilogue"],
            "epilogue-system",
        ),
    ];
    for (mut values, expected, namespace) in table {
        values["alerts"] = json!({"enabled": true});
        let objects = rendered(&values).await;
        assert_eq!(names(&groups(&objects)), expected, "{values}");
        assert_eq!(of_kind(&objects, "PrometheusRule")[0]["metadata"]["namespace"], namespace);
        let there = |object: &&Value| object["metadata"]["name"] == namespace;
        assert!(of_kind(&objects, "Namespace").iter().any(there), "{values}");
    }
}

#[tokio::test]
async fn the_dashboards_are_the_files_with_the_sidecar_s_label() {
    let objects = rendered(&json!({"dashboards": {"enabled": true}})).await;
    let mut found = BTreeMap::new();
    for map in of_kind(&objects, "ConfigMap") {
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(map["metadata"]["namespace"], "epilogue-system");
        for (file, text) in map["data"].as_object().expect("data") {
            found.insert(file.clone(), text.as_str().expect("text").to_owned());
        }
    }
    let files = std::fs::read_dir(directory().join("dashboards")).expect("the dashboards");
    let expected: BTreeMap<String, String> = files
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let text = std::fs::read_to_string(&path).expect("text");
            (format!("epilogue-{name}"), text)
        })
        .collect();
    assert_eq!(expected.len(), 3);
    assert_eq!(found, expected);
}

/// `scrape.yaml` says which labels alerts and dashboards rely on.
#[tokio::test]
async fn pod_monitors_set_the_labels_that_alerts_rely_on() {
    let values = json!({"scraping": {"enabled": true}, "podMonitor": {"enabled": true}});
    let objects = rendered(&values).await;
    let monitors = of_kind(&objects, "PodMonitor");
    assert_eq!(monitors.len(), 2);
    for monitor in monitors {
        let job = &monitor["spec"]["jobLabel"];
        let job = job.as_str().expect("a label");
        let labels = &monitor["spec"]["selector"]["matchLabels"];
        assert_eq!(labels[job], monitor["metadata"]["name"], "the pods' label names the job");
        let node = json!([{"sourceLabels": ["__meta_kubernetes_pod_node_name"],
                           "targetLabel": "node"}]);
        let is_agent = monitor["metadata"]["name"] == "epilogue-agent";
        let expected = if is_agent { node } else { Value::Null };
        assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["relabelings"], expected);
    }
}
