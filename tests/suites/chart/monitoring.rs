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
async fn monitors_of_either_kind_set_the_labels_that_alerts_rely_on() {
    for (kind, field) in [("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")] {
        let monitor = json!({"kind": kind, "labels": {"release": "prom"}, "interval": "30s"});
        let values = json!({"scraping": {"enabled": true}, "monitor": monitor});
        let objects = rendered(&values).await;
        let all = objects.iter().filter(|it| it["apiVersion"] == "monitoring.coreos.com/v1");
        let monitors: Vec<&Value> = all.collect();
        assert_eq!(monitors.len(), 2);
        for monitor in monitors {
            let (metadata, spec) = (&monitor["metadata"], &monitor["spec"]);
            assert_eq!(
                (&monitor["kind"], &metadata["labels"]["release"]),
                (&json!(kind), &json!("prom"))
            );
            // The label of the pods or of their Service names the job.
            let job = spec["jobLabel"].as_str().expect("a label");
            assert_eq!(spec["selector"]["matchLabels"][job], metadata["name"]);
            let mut expected = json!({"port": "metrics", "scheme": "https", "interval": "30s",
                "tlsConfig": {"insecureSkipVerify": true}});
            if metadata["name"] == "epilogue-agent" {
                expected["relabelings"] = json!([{
                    "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node",
                }]);
            }
            assert_eq!(spec[field], json!([expected]));
        }
    }
}

#[tokio::test]
async fn a_service_monitor_comes_with_services_that_select_the_pods_with_the_port() {
    let values = json!({"scraping": {"enabled": true}, "monitor": {"kind": "ServiceMonitor"},
        "agent": {"ports": {"metrics": 19466}}});
    let objects = rendered(&values).await;
    let services = of_kind(&objects, "Service");
    for monitor in of_kind(&objects, "ServiceMonitor") {
        let place = |object: &Value| {
            let metadata = &object["metadata"];
            (metadata["namespace"].clone(), metadata["name"].clone())
        };
        let service = services.iter().find(|it| place(it) == place(monitor)).expect("its Service");
        let has = |labels: &Value, wanted: &Value| {
            let mut wanted = wanted.as_object().expect("labels").iter();
            wanted.all(|(key, value)| labels[key] == *value)
        };
        assert!(has(&service["metadata"]["labels"], &monitor["spec"]["selector"]["matchLabels"]));
        let agent = monitor["metadata"]["name"] == "epilogue-agent";
        let port = if agent { 19466 } else { 9466 };
        let expected = json!([{"name": "metrics", "port": port, "targetPort": "metrics",
                               "protocol": "TCP"}]);
        assert_eq!(service["spec"]["ports"], expected);
        assert_eq!(service["spec"]["clusterIP"], "None", "each pod has its own metrics");
        let kind = if agent { "DaemonSet" } else { "Deployment" };
        for workload in of_kind(&objects, kind) {
            let template = &workload["spec"]["template"];
            assert!(has(&template["metadata"]["labels"], &service["spec"]["selector"]));
            let ports = template["spec"]["containers"][0]["ports"].as_array().expect("ports");
            assert!(ports.iter().any(|it| it["name"] == "metrics" && it["containerPort"] == port));
        }
    }
    assert_eq!((services.len(), of_kind(&objects, "ServiceMonitor").len()), (2, 2));
    // Without scraping there is nothing to ask.
    let objects = rendered(&json!({"monitor": {"kind": "ServiceMonitor"}})).await;
    assert_eq!(of_kind(&objects, "ServiceMonitor").len() + of_kind(&objects, "Service").len(), 0);
}

#[tokio::test]
async fn severities_and_labels_of_alerts_are_those_of_the_values() {
    let plain = json!({"scraping": {"enabled": true}, "alerts": {"enabled": true}});
    let values = json!({"scraping": {"enabled": true}, "alerts": {
        "enabled": true, "ruleLabels": {"team": "batch"}, "severities": {"critical": "p1"}}});
    let rules = |objects: Vec<Value>| -> Vec<Value> {
        let groups = groups(&objects);
        let all = groups.iter().flat_map(|it| it["rules"].as_array().cloned().expect("rules"));
        // A recording rule has no severity.
        all.filter(|rule| rule["alert"].is_string()).collect()
    };
    let (before, found) = (rules(rendered(&plain).await), rules(rendered(&values).await));
    let count = |severity: &str| {
        before.iter().filter(|rule| rule["labels"]["severity"] == severity).count()
    };
    assert!(count("critical") > 3 && count("warning") > 5);
    assert_eq!(count("critical") + count("warning"), before.len());
    for (mut before, found) in before.into_iter().zip(found) {
        if before["labels"]["severity"] == "critical" {
            before["labels"]["severity"] = json!("p1");
        }
        before["labels"]["team"] = json!("batch");
        assert_eq!(before, found);
    }
}
