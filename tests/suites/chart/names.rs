//! Release name, namespaces and accounts are free, and everything that names them follows. What
//! cannot work is refused in words.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::helm::{chart, done, hooks, objects, refused, rendered};
use crate::platforms::named;

/// Everything that the chart can have, in namespaces whose names YAML could take for a number and
/// for a truth value.
fn elsewhere() -> Value {
    let mut values = everything();
    values["namespaces"] = json!({"controller": "007", "agents": "true"});
    values
}

fn everything() -> Value {
    json!({
        "mode": "enforce", "scraping": {"enabled": true}, "service": {"enabled": true},
        "monitor": {"kind": "ServiceMonitor"}, "alerts": {"enabled": true},
        "dashboards": {"enabled": true}, "networkPolicy": {"enabled": true},
        "optIn": {"enabled": true}, "gangScheduling": {"enabled": true},
        "agent": {"pools": [{"name": "a", "nodeSelector": {"pool": "a"}}]},
    })
}

/// All objects, and the hooks. The cluster of the tests, which only hooks need, lacks kinds of the
/// Prometheus operator, and may be too old for `optIn`.
async fn with_hooks(values: &Value) -> Vec<Value> {
    let mut known = values.as_object().expect("a map").clone();
    known.retain(|key, _| !["monitor", "alerts", "optIn"].contains(&key.as_str()));
    [rendered(values).await, hooks(&Value::Object(known)).await].concat()
}

/// Two objects of one name are a hook and what it replaces.
fn sorted(objects: Vec<Value>) -> Vec<Value> {
    let mut objects = objects;
    objects.sort_by_key(|it| format!("{} {}", named(it), it["metadata"]["annotations"]));
    objects
}

#[tokio::test]
async fn other_namespaces_are_named_wherever_the_own_ones_were() {
    let mut moved = with_hooks(&everything()).await;
    for object in &mut moved {
        let flow = object["kind"] == "FlowSchema";
        let text = object.to_string().replace("epilogue-system", "007");
        *object = serde_json::from_str(&text.replace("epilogue-agents", "true")).expect("JSON");
        if flow && object["metadata"]["name"] == "true" {
            // The name of the flow, which only looks like the namespace.
            object["metadata"]["name"] = json!("epilogue-agents");
        }
    }
    assert!(moved.len() > 70, "{}", moved.len());
    let (moved, found) = (sorted(moved), sorted(with_hooks(&elsewhere()).await));
    for (moved, found) in moved.iter().zip(&found) {
        assert_eq!(moved, found);
    }
    assert_eq!(moved.len(), found.len());
}

/// Accounts by namespace and name, of what uses one.
fn used(object: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let namespace = &object["metadata"]["namespace"];
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let template = &object["spec"]["template"]["spec"]["serviceAccountName"];
    let of_pods = [template, &object["spec"]["serviceAccountName"]];
    let of_pods = of_pods.into_iter().filter(|name| name.is_string());
    let of_flows =
        items(&object["spec"]["rules"]).into_iter().flat_map(|it| items(&it["subjects"]));
    let of_flows = of_flows.map(|subject| subject["serviceAccount"].clone());
    let subjects = items(&object["subjects"]).into_iter().chain(of_flows);
    let subjects: Vec<_> = subjects.map(|it| (text(&it["namespace"]), text(&it["name"]))).collect();
    of_pods.map(|name| (text(namespace), text(name))).chain(subjects).collect()
}

#[tokio::test]
async fn what_uses_an_account_uses_the_one_of_the_values() {
    let mut values = elsewhere();
    let account = |name: &str| json!({"name": name, "annotations": {"example.com/role": name}});
    values["controller"] = json!({"serviceAccount": account("jobs")});
    values["agent"]["serviceAccount"] = account("nodes");
    let objects = with_hooks(&values).await;
    let own = |it: &&Value| it["kind"] == "ServiceAccount";
    let key = |it: &Value| {
        let text = |field: &str| it["metadata"][field].as_str().expect("text").to_owned();
        (text("namespace"), text("name"))
    };
    let accounts: BTreeSet<_> = objects.iter().filter(own).map(key).collect();
    let name = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    let hooks = [name("true", "epilogue-agent-leave"), name("007", "epilogue-test")];
    let own_ones = [name("007", "jobs"), name("true", "nodes")];
    assert_eq!(accounts, own_ones.iter().chain(&hooks).cloned().collect());
    let used: BTreeSet<_> = objects.iter().flat_map(used).collect();
    // Flows and the right to ask about scrapers are given to the accounts of both modes.
    let observers = [name("007", "jobs-observer"), name("true", "nodes-observer")];
    let acting: BTreeSet<_> = used.difference(&BTreeSet::from(observers)).cloned().collect();
    assert_eq!(acting, accounts, "each is used, and no other");
    for object in objects.iter().filter(own).filter(|it| !hooks.contains(&key(it))) {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["example.com/role"], object["metadata"]["name"]);
    }
    // The policies bind an account of any name by its namespace.
    for policy in objects.iter().filter(|it| it["kind"] == "ValidatingAdmissionPolicy") {
        let Some(condition) = policy["spec"]["matchConditions"].as_array() else { continue };
        let text = condition[0]["expression"].as_str().expect("text");
        let agents = policy["metadata"]["labels"]["app.kubernetes.io/name"] == "epilogue-agent";
        let group = format!("'system:serviceaccounts:{}'", if agents { "true" } else { "007" });
        assert!(!text.contains("serviceaccount") || text.contains(&group), "{text}");
    }
}

#[tokio::test]
async fn no_object_depends_on_the_release_s_name_and_namespace() {
    let chart = chart();
    let chart = chart.to_str().expect("text");
    let names = |objects: &[Value]| objects.iter().map(named).collect::<BTreeSet<String>>();
    let all = names(&rendered(&json!({})).await);
    for (namespace, own) in [
        ("elsewhere", None),
        ("epilogue-agents", Some("Namespace//epilogue-agents")),
        ("epilogue-system", Some("Namespace//epilogue-system")),
    ] {
        let namespace = format!("--namespace={namespace}");
        let arguments = ["template", "other", chart, "--no-hooks", &namespace, "--values=-"];
        let found = names(&objects(&done(&arguments, &json!({})).await));
        let missing: Vec<&str> = all.difference(&found).map(String::as_str).collect();
        // It is there before the release, which is recorded in it.
        assert_eq!(missing, own.into_iter().collect::<Vec<_>>(), "{namespace}");
        assert!(found.is_subset(&all));
    }
}

#[tokio::test]
async fn a_name_that_cannot_work_is_refused_with_the_reason() {
    let why = "policies limit every account in";
    let table: [(Value, &[&str]); 6] = [
        (
            json!({"namespaces": {"agents": "kube-system"}}),
            &["namespaces.agents: kube-system: expected one of its own", why],
        ),
        (
            json!({"namespaces": {"controller": "default"}}),
            &["namespaces.controller: default", why],
        ),
        (
            json!({"namespaces": {"controller": "a", "agents": "a"}}),
            &["namespaces: both are a: expected two", why],
        ),
        (json!({"namespaces": {"agents": "A"}}), &["'/namespaces/agents'"]),
        (
            json!({"agent": {"serviceAccount": {"name": "default"}}}),
            &["agent.serviceAccount.name: default: expected another name"],
        ),
        (
            json!({"controller": {"serviceAccount": {"nam": "a"}}}),
            &["'/controller/serviceAccount'", "'nam' not allowed"],
        ),
    ];
    for (values, words) in table {
        let error = refused(&values).await;
        assert!(words.iter().all(|word| error.contains(word)), "{values}: {error}");
    }
}
