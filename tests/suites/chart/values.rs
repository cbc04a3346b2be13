//! Each value does what it says, and an invalid one has an error that names its field.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::helm::{refused, rendered};
use crate::platforms::named;

fn names(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().map(named).collect()
}

fn the<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let found = objects.iter().find(|object| named(object) == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

const AGENT: &str = "DaemonSet/epilogue-agents/epilogue-agent";
const CONTROLLER: &str = "Deployment/epilogue-system/epilogue-controller";

#[tokio::test]
async fn without_pressure_the_agent_may_write_no_cgroup_and_sees_no_disk() {
    let pool = json!({"name": "evicts", "nodeSelector": {"a": "b"}, "pressure": "enforce"});
    let values = json!({"mode": "enforce", "agent": {"pressure": "off", "pools": [pool]}});
    let objects = rendered(&values).await;
    for (name, off) in [(AGENT.to_owned(), true), (format!("{AGENT}-evicts"), false)] {
        let pod = &the(&objects, &name)["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let mounts = container["volumeMounts"].as_array().expect("must have mounts");
        let cgroup = mounts.iter().find(|it| it["name"] == "cgroup").expect("must be mounted");
        assert_eq!(cgroup["readOnly"] == true, off, "{name}");
        let added = &container["securityContext"]["capabilities"]["add"];
        assert_eq!(added.is_null(), off, "{name}");
        for list in [mounts, pod["volumes"].as_array().expect("must have volumes")] {
            let has = |volume: &str| list.iter().any(|it| it["name"] == volume);
            for volume in ["logs", "containerd-images", "crio-images"] {
                assert_eq!(has(volume), !off, "{name} {volume}");
            }
            assert!(has("kubelet") && has("cgroup") && has("token"));
        }
    }
}

#[tokio::test]
async fn an_invalid_value_has_an_error_that_names_the_field() {
    let pools = |pool: Value| json!({"agent": {"pools": [pool]}});
    let selector = json!({"a": "b"});
    let table: Vec<(Value, &[&str])> = vec![
        (json!({"mode": "watch"}), &["'/mode'", "'observe', 'enforce'"]),
        (json!({"mod": "enforce"}), &["'mod' not allowed"]),
        (json!({"platform": "talos"}), &["'/platform'", "'microk8s'"]),
        (json!({"agent": {"pols": []}}), &["'/agent'", "'pols' not allowed"]),
        (json!({"agent": {"pressure": "on"}}), &["'/agent/pressure'", "'off'"]),
        (json!({"agent": {"kubeletRootDir": "k"}}), &["'/agent/kubeletRootDir'"]),
        (json!({"agent": {"runtimeEndpoint": "/s"}}), &["'/agent/runtimeEndpoint'", "unix:///"]),
        (pools(json!({"name": "a"})), &["'/agent/pools/0'", "'nodeSelector'"]),
        (pools(json!({"name": "a", "nodeSelector": {}})), &["'/agent/pools/0/nodeSelector'"]),
        (pools(json!({"name": "A b", "nodeSelector": selector})), &["'/agent/pools/0/name'"]),
        (
            pools(json!({"name": "a", "nodeSelector": selector, "mode": "off"})),
            &["'/agent/pools/0/mode'"],
        ),
        (
            pools(json!({"name": "a", "nodeSelector": selector, "extraArgs": ["--root=/"]})),
            &["agent.extraArgs: --root", "the chart sets this flag"],
        ),
        (
            json!({"agent": {"pools": [
                {"name": "a", "nodeSelector": {"a": "b"}}, {"name": "a", "nodeSelector": {"c": "d"}},
            ]}}),
            &["agent.pools: two have the name a"],
        ),
        (json!({"agent": {"extraArgs": ["run"]}}), &["'/agent/extraArgs/0'"]),
        (
            json!({"agent": {"extraArgs": ["--shutdown=enforce"]}}),
            &["agent.extraArgs: --shutdown", "set mode"],
        ),
        (
            json!({"agent": {"extraArgs": ["--priority-max=7"]}}),
            &["agent.extraArgs: --priority-max", "this version has no such flag"],
        ),
        (
            json!({"controller": {"extraArgs": ["--otlp-endpoint=http://127.0.0.1:1"]}}),
            &["controller.extraArgs: --otlp-endpoint", "this version has no such flag"],
        ),
        (
            json!({"controller": {"extraArgs": ["--pod-gc", "instead"]}}),
            &["'/controller/extraArgs/1'"],
        ),
        (
            json!({"controller": {"extraArgs": ["--pod-gc=instead"]}}),
            &["controller.extraArgs: --pod-gc", "controller.podGC"],
        ),
        (
            json!({"controller": {"extraArgs": ["--mode=enforce"]}}),
            &["controller.extraArgs: --mode", "set mode"],
        ),
        (json!({"controller": {"manageAllJobs": true}}), &["'/controller/manageAllJobs'"]),
        (json!({"controller": {"replicas": 0}}), &["'/controller/replicas'", "want 1"]),
        (
            json!({"optIn": {"enabled": true}, "controller": {"enabled": false}}),
            &["optIn.enabled=true: expected controller.enabled=true"],
        ),
        (
            json!({"gangScheduling": {"enabled": true}, "controller": {"enabled": false}}),
            &["gangScheduling.enabled=true: expected controller.enabled=true"],
        ),
        (json!({"gangScheduling": {"enable": true}}), &["'/gangScheduling'", "'enable' not"]),
        (json!({"image": {"digest": "abc"}}), &["'/image/digest'", "sha256:"]),
        (json!({"monitor": {"interval": "often"}}), &["'/monitor/interval'"]),
        (json!({"monitor": {"kind": "Probe"}}), &["'/monitor/kind'", "'ServiceMonitor'"]),
        (json!({"alerts": {"severities": {"page": "p1"}}}), &["'/alerts/severities'", "'page'"]),
        (
            json!({"agent": {"enabled": false}, "controller": {"enabled": false}}),
            &["controller.enabled and agent.enabled are both false"],
        ),
    ];
    for (values, words) in table {
        let error = refused(&values).await;
        assert!(words.iter().all(|word| error.contains(word)), "{values}: {error}");
    }
}

#[tokio::test]
async fn a_half_comes_with_its_rights_and_policies_and_nothing_of_the_other() {
    for (half, other) in [("agent", "controller"), ("controller", "agent")] {
        let objects = rendered(&json!({other: {"enabled": false}})).await;
        let of =
            |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        let (policies, bindings) =
            (of("ValidatingAdmissionPolicy"), of("ValidatingAdmissionPolicyBinding"));
        let bound: BTreeSet<&str> =
            bindings.iter().filter_map(|it| it["spec"]["policyName"].as_str()).collect();
        let all: BTreeSet<&str> =
            policies.iter().filter_map(|it| it["metadata"]["name"].as_str()).collect();
        assert_eq!(bound, all);
        assert!(all.len() > 5, "{half}: {all:?}");
        assert!(bindings.iter().all(|it| it["spec"]["validationActions"] == json!(["Deny"])));
        let strange: Vec<String> =
            objects.iter().map(named).filter(|it| it.contains(&format!("-{other}"))).collect();
        assert_eq!(strange, [""; 0], "{half}");
        assert_eq!(of("ServiceAccount").len(), 1);
    }
}

#[tokio::test]
async fn both_programs_have_the_image_of_the_values() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let version = env!("CARGO_PKG_VERSION");
    let table = [
        (json!({}), format!("registry.epilogue.dev/epilogue:{version}")),
        (json!({"repository": "r.example/e", "tag": "1"}), "r.example/e:1".to_owned()),
        (
            json!({"repository": "r.example/e", "tag": "1", "digest": digest}),
            format!("r.example/e@{digest}"),
        ),
    ];
    for (image, expected) in table {
        let objects = rendered(&json!({"image": image})).await;
        for workload in [AGENT, CONTROLLER] {
            let pod = &the(&objects, workload)["spec"]["template"]["spec"];
            assert_eq!(pod["containers"][0]["image"], expected);
            assert!(pod["imagePullSecrets"].is_null());
        }
    }
    let image = json!({"pullPolicy": "Always", "pullSecrets": ["a", "b"]});
    let objects = rendered(&json!({"image": image})).await;
    for workload in [AGENT, CONTROLLER] {
        let pod = &the(&objects, workload)["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "a"}, {"name": "b"}]));
        assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
    }
}

#[tokio::test]
async fn resources_tolerations_and_priority_are_those_of_the_values() {
    let values = json!({
        "agent": {
            "resources": {"limits": {"memory": "96Mi"}}, "tolerations": [], "priorityClassName": "",
        },
        "controller": {"replicas": 3, "priorityClassName": "mine"},
    });
    let objects = rendered(&values).await;
    let pod = &the(&objects, AGENT)["spec"]["template"]["spec"];
    let expected =
        json!({"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "96Mi"}});
    assert_eq!(pod["containers"][0]["resources"], expected);
    assert_eq!(pod["tolerations"], json!([]));
    assert!(pod["priorityClassName"].is_null());
    let deployment = &the(&objects, CONTROLLER)["spec"];
    assert_eq!(deployment["replicas"], 3);
    assert_eq!(deployment["template"]["spec"]["priorityClassName"], "mine");
}

#[tokio::test]
async fn each_switch_adds_or_removes_its_objects_and_no_others() {
    let all = names(&rendered(&json!({})).await);
    let table: [(&str, &[&str], &[&str]); 8] = [
        (
            "optIn",
            &[
                "MutatingAdmissionPolicy//epilogue-jobs",
                "MutatingAdmissionPolicy//epilogue-pod-replacement-policy",
                "MutatingAdmissionPolicyBinding//epilogue-jobs",
                "MutatingAdmissionPolicyBinding//epilogue-pod-replacement-policy",
            ],
            &[],
        ),
        ("networkPolicy", &["NetworkPolicy/epilogue-system/epilogue-controller"], &[]),
        // Without scraping there is nothing that they could ask.
        ("service", &[], &[]),
        ("alerts", &["PrometheusRule/epilogue-system/epilogue"], &[]),
        (
            "dashboards",
            &[
                "ConfigMap/epilogue-system/epilogue-dashboard-cluster",
                "ConfigMap/epilogue-system/epilogue-dashboard-job",
                "ConfigMap/epilogue-system/epilogue-dashboard-node",
            ],
            &[],
        ),
        (
            "scraping",
            &[
                "ClusterRole//epilogue-agent-metrics-reader",
                "ClusterRole//epilogue-agent-scraping",
                "ClusterRole//epilogue-controller-metrics-reader",
                "ClusterRole//epilogue-controller-scraping",
                "ClusterRoleBinding//epilogue-agent-scraping",
                "ClusterRoleBinding//epilogue-controller-scraping",
            ],
            &[],
        ),
        (
            "apiPriority",
            &[],
            &[
                "FlowSchema//epilogue-agents",
                "FlowSchema//epilogue-controller",
                "FlowSchema//epilogue-leader-election",
                "PriorityLevelConfiguration//epilogue",
            ],
        ),
        (
            "resourceQuota",
            &[],
            &[
                "ResourceQuota/epilogue-agents/epilogue-agent-priority",
                "ResourceQuota/epilogue-system/epilogue-controller-priority",
            ],
        ),
    ];
    for (value, added, removed) in table {
        let objects = rendered(&json!({value: {"enabled": removed.is_empty()}})).await;
        let now = names(&objects);
        assert_eq!(now.difference(&all).collect::<Vec<_>>(), added, "{value}");
        assert_eq!(all.difference(&now).collect::<Vec<_>>(), removed, "{value}");
    }
    let without = names(&rendered(&json!({"namespaces": {"create": false}})).await);
    let namespaces = ["Namespace//epilogue-agents", "Namespace//epilogue-system"];
    assert_eq!(all.difference(&without).collect::<Vec<_>>(), namespaces);
}

#[tokio::test]
async fn gang_scheduling_adds_rights_and_policies_to_a_controller_that_acts() {
    let names = async |values: &Value| names(&rendered(values).await);
    let acts = names(&json!({"mode": "enforce"})).await;
    let mut values = json!({"mode": "enforce", "gangScheduling": {"enabled": true}});
    let now = names(&values).await;
    let added = [
        "ClusterRole//epilogue-controller-gang-scheduling",
        "ClusterRoleBinding//epilogue-controller-gang-scheduling",
        "FlowSchema//epilogue-gang-scheduling",
        "ValidatingAdmissionPolicy//epilogue-controller-gang-creates",
        "ValidatingAdmissionPolicy//epilogue-controller-gang-pod-groups",
        "ValidatingAdmissionPolicy//epilogue-controller-gang-workloads",
        "ValidatingAdmissionPolicyBinding//epilogue-controller-gang-creates",
        "ValidatingAdmissionPolicyBinding//epilogue-controller-gang-pod-groups",
        "ValidatingAdmissionPolicyBinding//epilogue-controller-gang-workloads",
    ];
    assert_eq!(now.difference(&acts).collect::<Vec<_>>(), added);
    assert!(acts.is_subset(&now));
    values["apiPriority"] = json!({"enabled": false});
    assert!(!names(&values).await.contains(added[2]), "it needs the priority level");
}

#[tokio::test]
async fn monitoring_names_ports_that_the_pods_have() {
    let values = json!({
        "scraping": {"enabled": true}, "service": {"enabled": true},
        "networkPolicy": {"enabled": true, "from": [{"podSelector": {}}]},
        "monitor": {
            "kind": "PodMonitor", "labels": {"release": "prom"}, "interval": "30s",
            "tokenSecret": {"name": "scraper", "key": "token"},
        },
    });
    let objects = rendered(&values).await;
    let ports = |workload: &str| -> Vec<String> {
        let pod = &the(&objects, workload)["spec"]["template"]["spec"];
        let ports = pod["containers"][0]["ports"].as_array().expect("ports").iter();
        ports.map(|port| port["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert!(ports(AGENT).contains(&"metrics".to_owned()));
    assert!(ports(CONTROLLER).contains(&"metrics".to_owned()));
    let agent = the(&objects, "PodMonitor/epilogue-agents/epilogue-agent");
    let endpoint = &agent["spec"]["podMetricsEndpoints"][0];
    assert_eq!((&endpoint["port"], &endpoint["scheme"]), (&json!("metrics"), &json!("https")));
    let secret = json!({"name": "scraper", "key": "token"});
    assert_eq!(endpoint["authorization"]["credentials"], secret);
    assert_eq!(agent["metadata"]["labels"]["release"], "prom");
    let controller = the(&objects, "PodMonitor/epilogue-system/epilogue-controller");
    let endpoint = json!([{
        "port": "metrics", "scheme": "https", "interval": "30s",
        "tlsConfig": {"insecureSkipVerify": true}, "authorization": {"credentials": secret},
    }]);
    assert_eq!(controller["spec"]["podMetricsEndpoints"], endpoint);
    let service = the(&objects, "Service/epilogue-system/epilogue-controller");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], "metrics");
    let policy = the(&objects, "NetworkPolicy/epilogue-system/epilogue-controller");
    let ingress = json!([{"ports": [{"port": "metrics", "protocol": "TCP"}],
                          "from": [{"podSelector": {}}]}]);
    assert_eq!(policy["spec"]["ingress"], ingress);
    let closed = rendered(&json!({"networkPolicy": {"enabled": true}})).await;
    let policy = the(&closed, "NetworkPolicy/epilogue-system/epilogue-controller");
    assert_eq!(policy["spec"]["ingress"], json!([]), "without scraping it has no clients");
}

#[tokio::test]
async fn leave_replaces_every_agent_at_once() {
    let pools = json!([{"name": "a", "nodeSelector": {"pool": "a"}, "mode": "enforce"}]);
    let objects = rendered(&json!({"agent": {"leave": true, "pools": pools}})).await;
    for set in objects.iter().filter(|object| object["kind"] == "DaemonSet") {
        let container = &set["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["leave", "--root=/host", "--wait"]));
        assert!(container["readinessProbe"].is_null());
        assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], "100%");
    }
}

#[tokio::test]
async fn each_file_of_values_in_the_guide_is_accepted() {
    let page = lab::paths::workspace_root().join("docs/install.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let text = block.split("```").next().unwrap_or_default();
        let values: Value = serde_yaml_ng::from_str(text).expect("YAML");
        assert!(rendered(&values).await.len() > 40, "{text}");
    }
}
