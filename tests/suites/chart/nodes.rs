//! Which nodes get which agent: each node that runs the image exactly one, whatever its labels are.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::helm::rendered;

/// The labels of a node that runs the image.
const IMAGE: [(&str, &str); 2] = [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")];

type Labels<'a> = BTreeMap<&'a str, &'a str>;

/// Whether the scheduler would put the DaemonSet's pod on a node with these labels.
fn selects(set: &Value, labels: &Labels<'_>) -> bool {
    let pod = &set["spec"]["template"]["spec"];
    let required =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let selected = pod["nodeSelector"].as_object().into_iter().flatten();
    let has = |(key, value): (&String, &Value)| labels.get(key.as_str()).copied() == value.as_str();
    let terms = required["nodeSelectorTerms"].as_array().expect("terms");
    let holds = |expression: &Value| {
        let label = labels.get(expression["key"].as_str().expect("a key"));
        let mut values = expression["values"].as_array().into_iter().flatten();
        let is_in = label.is_some_and(|label| values.any(|value| value == label));
        match expression["operator"].as_str() {
            Some("In") => is_in,
            Some("NotIn") => !is_in,
            other => panic!("{other:?}"),
        }
    };
    selected.into_iter().all(has)
        && terms
            .iter()
            .any(|term| term["matchExpressions"].as_array().expect("expressions").iter().all(holds))
}

fn daemon_sets(objects: Vec<Value>) -> Vec<Value> {
    objects.into_iter().filter(|object| object["kind"] == "DaemonSet").collect()
}

#[tokio::test]
async fn a_node_gets_the_agent_of_the_first_pool_that_selects_it_and_no_other() {
    let pools = json!([
        {"name": "a", "nodeSelector": {"pool": "a"}},
        {"name": "b", "nodeSelector": {"pool": "b", "zone": "1"}},
        {"name": "c", "nodeSelector": {"zone": "1"}},
        {"name": "d", "nodeSelector": {"disk": "ssd", "zone": "2"}},
    ]);
    let sets = daemon_sets(rendered(&json!({"agent": {"pools": pools}})).await);
    assert_eq!(sets.len(), 5);
    let values: [(&str, &[&str]); 3] =
        [("pool", &["", "a", "b"]), ("zone", &["", "1", "2"]), ("disk", &["", "ssd"])];
    let mut nodes: Vec<Labels<'_>> = vec![BTreeMap::from(IMAGE)];
    for (key, values) in values {
        let with = |node: &Labels<'static>, value: &'static str| {
            let mut node = node.clone();
            if !value.is_empty() {
                node.insert(key, value);
            }
            node
        };
        nodes = nodes
            .iter()
            .flat_map(|node| values.iter().map(|value| with(node, value)).collect::<Vec<_>>())
            .collect();
    }
    assert_eq!(nodes.len(), 18);
    for node in nodes {
        let names: Vec<&str> = sets
            .iter()
            .filter(|set| selects(set, &node))
            .filter_map(|set| set["metadata"]["name"].as_str())
            .collect();
        let is = |key: &str, value: &str| node.get(key) == Some(&value);
        let expected = if is("pool", "a") {
            "epilogue-agent-a"
        } else if is("pool", "b") && is("zone", "1") {
            "epilogue-agent-b"
        } else if is("zone", "1") {
            "epilogue-agent-c"
        } else if is("disk", "ssd") && is("zone", "2") {
            "epilogue-agent-d"
        } else {
            "epilogue-agent"
        };
        assert_eq!(names, [expected], "{node:?}");
    }
}

#[tokio::test]
async fn requirements_hold_for_all_agents_and_a_pool_may_have_its_own() {
    let terms = |key: &str, values: &[&str]| {
        let expression = |value: &&str| json!({"key": key, "operator": "In", "values": [value]});
        let term = |value: &&str| json!({"matchExpressions": [expression(value)]});
        let terms: Vec<Value> = values.iter().map(term).collect();
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms}}})
    };
    let values = json!({"agent": {
        "nodeSelector": {"ready": "yes"}, "affinity": terms("disk", &["ssd", "nvme"]),
        "pools": [{"name": "a", "nodeSelector": {"pool": "a"}},
                  {"name": "b", "nodeSelector": {"pool": "b"}, "affinity": terms("gpu", &["1"])}],
    }});
    let sets = daemon_sets(rendered(&values).await);
    let names = ["epilogue-agent", "epilogue-agent-a", "epilogue-agent-b"];
    for (set, (name, pool)) in sets.iter().zip(names.into_iter().zip(["", "a", "b"])) {
        assert_eq!(set["metadata"]["name"], name);
        let own = ("pool", pool);
        let node = |labels: &[(&'static str, &'static str)]| {
            [&IMAGE[..], &[own], labels].concat().into_iter().collect::<Labels<'_>>()
        };
        let places: &[_] =
            if pool == "b" { &[("gpu", "1")] } else { &[("disk", "ssd"), ("disk", "nvme")] };
        for place in places {
            assert!(selects(set, &node(&[("ready", "yes"), *place])), "{name}");
            assert!(!selects(set, &node(&[*place])), "{name}");
            let host = [("ready", "yes"), *place, ("epilogue.dev/agent", "host")];
            assert!(!selects(set, &node(&host)), "{name}: the host has a service");
        }
        assert!(!selects(set, &node(&[("ready", "yes")])), "{name}");
        let mut other = node(&[("ready", "yes"), places[0]]);
        other.insert("kubernetes.io/arch", "arm64");
        assert!(!selects(set, &other), "{name}: the image is of another architecture");
    }
    // What only prefers or avoids pods stays.
    let near = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}});
    let sets = daemon_sets(rendered(&json!({"agent": {"affinity": near}})).await);
    let affinity = &sets[0]["spec"]["template"]["spec"]["affinity"];
    assert_eq!(affinity["podAntiAffinity"], near["podAntiAffinity"]);
    assert!(!selects(
        &sets[0],
        &[&IMAGE[..], &[("epilogue.dev/agent", "host")]].concat().into_iter().collect()
    ));
}

/// The default selector cannot change and selects all; a DaemonSet manages only pods that it owns.
#[tokio::test]
async fn a_pool_s_selector_selects_its_own_pods_only() {
    let pools = json!([
        {"name": "a", "nodeSelector": {"pool": "a"}}, {"name": "b", "nodeSelector": {"pool": "b"}},
    ]);
    let sets = daemon_sets(rendered(&json!({"agent": {"pools": pools}})).await);
    let labels = |set: &Value| set["spec"]["template"]["metadata"]["labels"].clone();
    for set in &sets[1..] {
        let selector = set["spec"]["selector"]["matchLabels"].as_object().expect("labels");
        for other in &sets {
            let matches = selector.iter().all(|(key, value)| labels(other)[key] == *value);
            assert_eq!(matches, other == set, "{} {}", set["metadata"], other["metadata"]);
        }
        // `kubectl epilogue doctor` finds the agents by this label.
        assert_eq!(labels(set)["app.kubernetes.io/name"], "epilogue-agent");
    }
}
