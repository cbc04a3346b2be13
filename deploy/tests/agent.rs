//! Checks that the DaemonSet lets an agent outlive the pods that it reports, and that the policies
//! cover its account. ([API11])

use agent_core::shutdown::logind_conf::{OUR_DELAY_MAX, OUR_DROP_IN};
use epilogue_common::names::{disruption_reason, node, node_condition, oom_reason, pod_condition};
use epilogue_deploy::{args, manifests};
use serde_json::{Value, json};

const AGENT: &str = "epilogue-agent";
const NAMESPACE: &str = "epilogue-agents";

fn all() -> Vec<Value> {
    manifests().expect("must be readable")
}

fn named(kind: &str, name: &str) -> Value {
    let is_it = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == name;
    all().into_iter().find(is_it).unwrap_or_else(|| panic!("{kind}/{name}"))
}

fn daemon_set() -> Value {
    named("DaemonSet", AGENT)
}

fn pod_spec() -> Value {
    daemon_set()["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    let containers = pod_spec()["containers"].clone();
    assert_eq!(containers.as_array().map(Vec::len), Some(1));
    containers[0].clone()
}

fn flag(name: &str) -> String {
    let args = args(&all(), AGENT).expect("must have args");
    let prefix = format!("{name}=");
    args.iter().find_map(|arg| arg.strip_prefix(&prefix)).expect(name).to_owned()
}

fn policies() -> Vec<Value> {
    let of_agent = |object: &Value| {
        object["kind"] == "ValidatingAdmissionPolicy"
            && object["metadata"]["labels"]["app.kubernetes.io/name"] == AGENT
    };
    all().into_iter().filter(of_agent).collect()
}

#[test]
fn the_daemon_set_covers_every_node_of_linux_that_runs_the_image_without_the_service() {
    let pod = pod_spec();
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    let image = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    assert_eq!(pod["nodeSelector"], image);
    let required =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = json!([{"matchExpressions": [
        {"key": "epilogue.dev/agent", "operator": "NotIn", "values": ["host"]},
    ]}]);
    assert_eq!(required["nodeSelectorTerms"], terms);
    let selector = &daemon_set()["spec"]["selector"]["matchLabels"];
    assert_eq!(&daemon_set()["spec"]["template"]["metadata"]["labels"][NAME], &selector[NAME]);
    assert_eq!(selector[NAME], AGENT);
}

const NAME: &str = "app.kubernetes.io/name";

#[test]
fn the_agent_outlives_the_pods_that_it_terminates() {
    let pod = pod_spec();
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("must be given");
    assert!(grace > OUR_DELAY_MAX.as_secs(), "{grace} s");
    let resources = &container()["resources"];
    assert!(resources["limits"]["cpu"].is_null(), "its reports are not to be stretched");
    assert_eq!(resources["requests"]["cpu"], "20m");
    assert!(resources["limits"]["memory"].is_string(), "a leak is the agent's own");
    assert_eq!(pod["hostNetwork"], true, "the pods' network ends with them");
    assert_eq!(pod["dnsPolicy"], "Default", "no DNS of the cluster");
}

#[test]
fn nothing_kills_it_because_the_api_is_away() {
    let container = container();
    assert!(container["livenessProbe"].is_null() && container["startupProbe"].is_null());
    let get = &container["readinessProbe"]["httpGet"];
    let port = &container["ports"][0];
    assert_eq!((&get["path"], &get["port"]), (&json!("/readyz"), &port["name"]));
    // On the loopback, where the kubelet probes, because this port has no authentication.
    assert_eq!(get["host"], "127.0.0.1");
    assert_eq!(flag("--metrics-bind-address"), format!("127.0.0.1:{}", port["containerPort"]));
    // With the host's network a container port is a host port.
    assert_eq!(port["containerPort"], port["hostPort"]);
    let update = &daemon_set()["spec"]["updateStrategy"];
    assert_eq!(update["type"], "RollingUpdate");
    assert_eq!(update["rollingUpdate"], json!({"maxUnavailable": "10%"}));
}

#[test]
fn the_agent_is_root_with_the_capabilities_that_pressure_needs() {
    let pod = pod_spec();
    let expected = json!({
        "runAsUser": 0, "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
        "appArmorProfile": {"type": "Unconfined"},
        "seLinuxOptions": {"type": "spc_t"},
    });
    assert_eq!(pod["securityContext"], expected);
    let expected = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_RESOURCE", "IPC_LOCK"]},
    });
    assert_eq!(container()["securityContext"], expected);
    for field in ["hostPID", "hostIPC", "hostUsers", "initContainers"] {
        assert!(pod[field].is_null(), "{field}");
    }
    let labels = &named("Namespace", NAMESPACE)["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
}

#[test]
fn the_agent_mounts_of_the_host_what_it_needs_and_no_more() {
    let root = flag("--root");
    let (pod, container) = (pod_spec(), container());
    let volumes = pod["volumes"].as_array().expect("must have volumes");
    let mut mounted: Vec<(String, bool)> = Vec::new();
    for mount in container["volumeMounts"].as_array().expect("must have mounts") {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let volume = volume.expect("must be a volume");
        if volume["name"] == "token" {
            continue;
        }
        let host = volume["hostPath"]["path"].clone();
        let host = host.as_str().expect("must be a path of the host").to_owned();
        assert_eq!(mount["mountPath"], format!("{root}{host}"));
        mounted.push((host, mount["readOnly"] != true));
    }
    assert_eq!(mounted.len() + 1, volumes.len(), "each volume is mounted once");
    let drop_ins = OUR_DROP_IN.rsplit_once('/').expect("must be in a directory").0;
    let expected = [
        ("/run/dbus", false),
        ("/run/epilogue", false),
        ("/run/containerd", false),
        ("/run/crio", false),
        (drop_ins, true),
        ("/var/lib/epilogue-agent", true),
        ("/proc", false),
        ("/sys/fs/cgroup", true),
        ("/var/lib/kubelet", false),
        ("/var/log/pods", false),
        ("/var/lib/containerd", false),
        ("/var/lib/containers/storage", false),
    ];
    assert_eq!(mounted, expected.map(|(path, writes)| (path.to_owned(), writes)));
}

/// The API server lets a token that asks for exactly 3607 s live for a year.
#[test]
fn the_token_of_the_agent_lives_for_a_day() {
    let pod = pod_spec();
    let named = |list: &Value| {
        let list = list.as_array().expect("must be a list");
        list.iter().find(|each| each["name"] == "token").cloned().expect("must be there")
    };
    let (volume, mount) = (named(&pod["volumes"]), named(&container()["volumeMounts"]));
    let sources = volume["projected"]["sources"].as_array().expect("must have sources");
    let token = json!({"path": "token", "expirationSeconds": 86_400});
    assert_eq!(sources[0]["serviceAccountToken"], token);
    assert_eq!(sources[1]["configMap"]["name"], "kube-root-ca.crt");
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
}

#[test]
fn the_agent_knows_its_node_and_its_pod_and_has_a_token_of_its_pod() {
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let expected = json!([
        {"name": "NODE_NAME", "valueFrom": from("spec.nodeName")},
        {"name": "POD_UID", "valueFrom": from("metadata.uid")},
        {"name": "EPILOGUE_MODE", "value": "enforce"},
    ]);
    assert_eq!(container()["env"], expected);
    let pod = pod_spec();
    assert_eq!(pod["serviceAccountName"], AGENT);
    assert_eq!(pod["automountServiceAccountToken"], false);
    let account = named("ServiceAccount", AGENT);
    assert_eq!(account["automountServiceAccountToken"], false);
    for object in [account, daemon_set()] {
        assert_eq!(object["metadata"]["namespace"], NAMESPACE);
    }
}

#[test]
fn the_image_is_this_version_s_and_the_program_is_in_it() {
    let container = container();
    assert_eq!(
        container["image"],
        format!("registry.epilogue.dev/epilogue:{}", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(container["command"], json!([format!("/{AGENT}")]));
}

/// It binds whoever creates pods, and must hold up none that asks for nothing.
const END_SIGNAL_POLICY: &str = "epilogue-pod-end-signal";

#[test]
fn policy_of_pods_concerns_only_those_that_ask_and_holds_up_none_in_doubt() {
    let policies = policies();
    let is_it = |policy: &&Value| policy["metadata"]["name"] == END_SIGNAL_POLICY;
    let spec = &policies.iter().find(is_it).expect("the policy")["spec"];
    assert_eq!(spec["failurePolicy"], "Ignore");
    let asks = format!(
        "has(object.metadata.annotations) && '{}' in object.metadata.annotations",
        node::END_SIGNAL
    );
    assert_eq!(spec["matchConditions"], json!([{"name": "asks", "expression": asks}]));
    let rules = &spec["matchConstraints"]["resourceRules"];
    assert_eq!(rules[0]["resources"], json!(["pods"]), "no status, which kubelets write");
    let binding = named("ValidatingAdmissionPolicyBinding", END_SIGNAL_POLICY);
    let expected = json!({"policyName": END_SIGNAL_POLICY, "validationActions": ["Deny"]});
    assert_eq!(binding["spec"], expected);
}

#[test]
fn every_policy_binds_the_account_and_refuses_when_in_doubt() {
    let is_of_pods = |policy: &Value| policy["metadata"]["name"] == END_SIGNAL_POLICY;
    let (of_pods, of_agents): (Vec<_>, Vec<_>) = policies().into_iter().partition(is_of_pods);
    assert_eq!((of_pods.len(), of_agents.len()), (1, 7));
    for policy in of_agents {
        let name = &policy["metadata"]["name"];
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail", "{name}");
        // With any prefix or suffix of an overlay, and for every account of its namespace.
        let conditions = json!([{
            "name": "is-an-agent",
            "expression":
                "request.userInfo.username.matches( \
                 '^system:serviceaccount:[^:]+:([a-z0-9.-]+-)?epilogue-agent(-[a-z0-9.-]+)?$') \
                 || 'system:serviceaccounts:epilogue-agents' in request.userInfo.groups",
        }]);
        assert_eq!(spec["matchConditions"], conditions, "{name}");
        let binding = named("ValidatingAdmissionPolicyBinding", name.as_str().expect("a name"));
        let expected = json!({"policyName": name, "validationActions": ["Deny"]});
        assert_eq!(binding["spec"], expected, "no exception for {name}");
        for validation in spec["validations"].as_array().expect("must have some") {
            let says = validation.get("message").or(validation.get("messageExpression"));
            assert!(says.is_some(), "{name}: {validation}");
        }
    }
}

#[test]
fn the_policies_know_the_names_that_the_agent_writes() {
    let policies = policies();
    let text = |name: &str| {
        let policy = policies.iter().find(|policy| policy["metadata"]["name"] == name);
        policy.expect(name)["spec"].to_string()
    };
    let node_policy = text("epilogue-agent-node");
    assert!(node_policy.contains(&format!("['{}', '{}']", node::STATE, node::READINESS)));
    assert!(node_policy.contains(&format!("taint.key == '{}'", node::SHUTTING_DOWN_TAINT)));
    let pod_policy = text("epilogue-agent-pod-status");
    let ours = format!("['{}', '{}']", node::TERMINATED_AT, node::ENDS_AT);
    assert!(pod_policy.contains(&ours));
    let words = [
        pod_condition::DISRUPTION_TARGET,
        pod_condition::READY,
        pod_condition::CONTAINERS_READY,
        pod_condition::OOM_KILLED,
        oom_reason::CONTAINER_LIMIT,
        oom_reason::NODE_OUT_OF_MEMORY,
        disruption_reason::TERMINATION_BY_KUBELET,
    ];
    for word in words {
        assert!(pod_policy.contains(&format!("'{word}'")), "{word}");
    }
    let node_status = text("epilogue-agent-node-status");
    for kind in node_condition::OURS.into_iter().chain(node_condition::SHARED) {
        assert!(node_status.contains(&format!("'{kind}'")), "{kind}");
    }
    assert!(node_status.contains(&format!("startsWith('{}')", node_condition::MESSAGE_START)));
}
