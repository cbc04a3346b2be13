//! Controller and agent may do what they do, and nothing else: one table, compared both ways.

use std::collections::BTreeSet;

use epilogue_deploy::manifests;
use serde_json::{Value, json};

/// A right: role, API group, resource, verb, the one object that it is limited to, and the call
/// that needs it.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const CLUSTER: &str = "ClusterRole/epilogue-controller";
const LEASE: &str = "Role/epilogue-controller-lease";

const AGENT: &str = "ClusterRole/epilogue-agent";
const KUBELETS_LEASE: &str = "Role/epilogue-agent-lease";

const CONTROLLERS: [Row; 24] = [
    (CLUSTER, "batch", "jobs", "list", "", "fill the store of Jobs"),
    (CLUSTER, "batch", "jobs", "watch", "", "keep the store of Jobs"),
    (CLUSTER, "batch", "jobs", "get", "", "before adoption, see that the Job is not being deleted"),
    (CLUSTER, "batch", "jobs/status", "update", "", "flush and settle write the status"),
    (CLUSTER, "batch", "jobs/finalizers", "update", "", "own pods with blockOwnerDeletion"),
    (CLUSTER, "", "pods", "list", "", "fill the store of pods"),
    (CLUSTER, "", "pods", "watch", "", "keep the store of pods"),
    (CLUSTER, "", "pods", "create", "", "start what the Job lacks"),
    (
        CLUSTER,
        "",
        "pods",
        "delete",
        "",
        "end what the Job has too much of, and what has no kubelet",
    ),
    (CLUSTER, "", "pods", "patch", "", "release the finalizer; adopt, and let go"),
    (CLUSTER, "", "pods/status", "patch", "", "Failed where no kubelet will say so; conditions"),
    (CLUSTER, "", "nodes", "list", "", "know which nodes are there"),
    (CLUSTER, "", "nodes", "watch", "", "see them go, be out of service, boot, write drained"),
    (CLUSTER, "", "nodes", "get", "", "be sure that one is gone before its pods are ended"),
    (CLUSTER, "", "nodes", "patch", "", "take away the taint of an agent that is gone"),
    (CLUSTER, "", "namespaces", "list", "", "know where hanging pods may be ended without proof"),
    (CLUSTER, "", "namespaces", "watch", "", "keep that knowledge"),
    (CLUSTER, "", "events", "create", "", "tell of a core/v1 event"),
    (CLUSTER, "", "events", "patch", "", "count a repeated core/v1 event"),
    (CLUSTER, "events.k8s.io", "events", "create", "", "tell of an events.k8s.io/v1 event"),
    (CLUSTER, "events.k8s.io", "events", "patch", "", "count a repeated events.k8s.io/v1 event"),
    (LEASE, "coordination.k8s.io", "leases", "create", "", "the first candidate makes the lease"),
    (LEASE, "coordination.k8s.io", "leases", "get", "epilogue-controller", "who leads?"),
    (
        LEASE,
        "coordination.k8s.io",
        "leases",
        "update",
        "epilogue-controller",
        "lead, renew, release",
    ),
];

const AGENTS: [Row; 14] = [
    (AGENT, "", "pods", "list", "", "know the node's pods"),
    (AGENT, "", "pods", "watch", "", "see them end"),
    (AGENT, "", "pods", "get", "", "read one anew, after a conflict and after a boot"),
    (AGENT, "", "pods", "delete", "", "end pods in place of a kubelet that does not (Replace)"),
    (AGENT, "", "pods", "patch", "", "end one without deleting it: the deadline lever"),
    (
        AGENT,
        "",
        "pods/status",
        "patch",
        "",
        "DisruptionTarget, OOMKilled, Failed where nothing runs",
    ),
    (AGENT, "", "nodes", "get", "", "read the taints, which are written as a whole"),
    (AGENT, "", "nodes", "list", "", "see what stands on the node from an earlier run"),
    (AGENT, "", "nodes", "watch", "", "see that its kubelet tells of the shutdown"),
    (AGENT, "", "nodes", "patch", "", "announce by annotation and taint"),
    (AGENT, "", "nodes/status", "patch", "", "show by conditions that the node's pods stall"),
    (AGENT, "", "nodes/configz", "get", "", "ask the kubelet for its periods and thresholds"),
    (KUBELETS_LEASE, "coordination.k8s.io", "leases", "get", "", "see since when it is silent"),
    (AGENT, "events.k8s.io", "events", "create", "", "tell people"),
];

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn rights(objects: &[Value]) -> BTreeSet<[String; 5]> {
    let mut rights = BTreeSet::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let mut names = strings(&rule["resourceNames"]);
            if names.is_empty() {
                names.push("");
            }
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        for only in &names {
                            let right = [&format!("{kind}/{name}"), group, resource, verb, only];
                            let right = right.map(str::to_owned);
                            assert!(rights.insert(right.clone()), "{right:?} is given twice");
                        }
                    }
                }
            }
        }
    }
    rights
}

#[test]
fn the_roles_give_what_the_table_says_and_nothing_else() {
    let given = rights(&manifests().expect("must be readable"));
    let table = || CONTROLLERS.iter().chain(&AGENTS);
    let needed: BTreeSet<[String; 5]> = table()
        .map(|(role, group, resource, verb, name, why)| {
            assert!(!why.is_empty());
            [*role, *group, *resource, *verb, *name].map(str::to_owned)
        })
        .collect();
    assert_eq!(needed.len(), table().count(), "a row appears twice");
    let missing: Vec<_> = needed.difference(&given).collect();
    let idle: Vec<_> = given.difference(&needed).collect();
    assert!(missing.is_empty() && idle.is_empty(), "not given {missing:?}, not needed {idle:?}");
}

#[test]
fn nothing_is_given_by_a_wildcard_or_by_a_path() {
    for object in manifests().expect("must be readable") {
        for rule in object["rules"].as_array().into_iter().flatten() {
            assert!(rule["nonResourceURLs"].is_null(), "{rule}");
            assert!(!rule.to_string().contains('*'), "{rule}");
        }
        assert!(object["aggregationRule"].is_null(), "{object}");
    }
}

#[test]
fn each_role_is_bound_to_its_program_s_account_and_to_nobody_else() {
    let objects = manifests().expect("must be readable");
    let mut bound = BTreeSet::new();
    for binding in objects.iter().filter(|object| !object["roleRef"].is_null()) {
        let role = &binding["roleRef"];
        let name = role["name"].as_str().expect("must have a name");
        let (account, namespace) = if name.starts_with("epilogue-agent") {
            ("epilogue-agent", "epilogue-agents")
        } else {
            ("epilogue-controller", "epilogue-system")
        };
        let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": namespace}]);
        assert_eq!(binding["subjects"], subjects, "{name}");
        assert_eq!(role["apiGroup"], "rbac.authorization.k8s.io");
        bound.insert(format!("{}/{name}", role["kind"]).replace('"', ""));
    }
    assert_eq!(bound, [CLUSTER, LEASE, AGENT, KUBELETS_LEASE].map(str::to_owned).into());
}
