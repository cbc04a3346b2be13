//! Which nodes get which agent: each node of Linux exactly one, whatever its labels are.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::helm::rendered;

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
    let mut nodes: Vec<Labels<'_>> = vec![BTreeMap::from([("kubernetes.io/os", "linux")])];
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
async fn requirements_hold_for_all_agents() {
    let values = json!({"agent": {
        "nodeSelector": {"ready": "yes"},
        "affinity": [{"key": "arch", "operator": "In", "values": ["amd64"]}],
        "pools": [{"name": "a", "nodeSelector": {"pool": "a"}}],
    }});
    for set in daemon_sets(rendered(&values).await) {
        let os = ("kubernetes.io/os", "linux");
        let pool = set["metadata"]["labels"]["epilogue.dev/pool"].as_str().unwrap_or("none");
        let node = |labels: &[(&'static str, &'static str)]| {
            let labels = [&[os], labels].concat().into_iter();
            labels.chain([("pool", pool)]).collect::<Labels<'_>>()
        };
        assert!(selects(&set, &node(&[("ready", "yes"), ("arch", "amd64")])), "{pool}");
        assert!(!selects(&set, &node(&[("ready", "yes")])), "{pool}");
        assert!(!selects(&set, &node(&[("arch", "amd64")])), "{pool}");
    }
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
