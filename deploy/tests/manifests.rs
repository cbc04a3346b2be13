//! Checks the manifests: each parses without unknown fields, and they are consistent with each
//! other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use epilogue_common::names::{MANAGED_BY, job_option, opt_in};
use epilogue_deploy::{
    args, enforce, files, gang_scheduling, gang_scheduling_component, manifests, objects, observers,
};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const CONTROLLER: &str = "epilogue-controller";
const NAMESPACE: &str = "epilogue-system";

fn all() -> Vec<Value> {
    manifests().expect("must be readable")
}

/// The directory of the policy that only warns, which no kustomization includes.
fn lint_directory() -> PathBuf {
    enforce().join("../../../policy/lint")
}

/// The directory of the policies by which a namespace opts in, which the base does not include.
fn opt_in_directory() -> PathBuf {
    enforce().join("../../../policy/opt-in")
}

/// All objects of both modes, and those that are applied on request only.
fn with_optional() -> Vec<Value> {
    let optional = [lint_directory(), opt_in_directory()];
    let optional = optional.map(|directory| objects(&directory).expect("must be readable"));
    let other = [observers(), gang_scheduling()].map(|it| it.expect("must be readable"));
    all().into_iter().chain(other.into_iter().chain(optional).flatten()).collect()
}

/// The controller's object of a kind.
fn the(kind: &str) -> Value {
    let is_it = |object: &Value| {
        let namespace = &object["metadata"]["namespace"];
        let own = if kind == "Namespace" { &object["metadata"]["name"] } else { namespace };
        object["kind"] == kind && own == NAMESPACE
    };
    let mut found: Vec<Value> = all().into_iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "one {kind}");
    found.remove(0)
}

fn pod_spec() -> Value {
    the("Deployment")["spec"]["template"]["spec"].clone()
}

/// Parses and serializes an object with its API type, which drops unknown fields.
fn reread<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).expect("must parse");
    serde_json::to_value(typed).expect("must be written")
}

fn flag(name: &str) -> String {
    let args = args(&all(), CONTROLLER).expect("must have args");
    let prefix = format!("{name}=");
    args.iter().find_map(|arg| arg.strip_prefix(&prefix)).expect(name).to_owned()
}

fn yaml_files(directory: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("must be a directory") {
        let path = entry.expect("must be readable").path();
        if path.is_dir() {
            yaml_files(&path, found);
        } else if path.file_name().is_some_and(|name| name != "kustomization.yaml") {
            found.insert(path);
        }
    }
}

#[test]
fn every_file_is_applied() {
    let mut present = BTreeSet::new();
    let (common, policy) = (enforce().join("../../common"), enforce().join("../../../policy"));
    for directory in [enforce(), common, policy, gang_scheduling_component()] {
        let directory = directory.canonicalize().expect("must be there");
        yaml_files(&directory, &mut present);
    }
    let observer = |program: &str| enforce().join("../../../policy/observer").join(program);
    let observers = [observer("agent"), observer("controller")];
    let optional = [lint_directory(), opt_in_directory(), gang_scheduling_component()];
    let lists = [enforce()].into_iter().chain(optional).chain(observers);
    let lists = lists.map(|list| files(&list).expect("must be readable"));
    let listed = lists.flatten();
    let listed = listed.map(|path| path.canonicalize().expect("must be there")).collect();
    assert_eq!(present, listed);
}

#[test]
fn every_object_parses_into_its_type_without_a_leftover() {
    for object in with_optional() {
        let kind = object["kind"].as_str().expect("must have a kind");
        let reread = match kind {
            "Namespace" => reread::<Namespace>(&object),
            "ServiceAccount" => reread::<ServiceAccount>(&object),
            "ClusterRole" => reread::<ClusterRole>(&object),
            "ClusterRoleBinding" => reread::<ClusterRoleBinding>(&object),
            "Role" => reread::<Role>(&object),
            "RoleBinding" => reread::<RoleBinding>(&object),
            "Deployment" => reread::<Deployment>(&object),
            "DaemonSet" => reread::<DaemonSet>(&object),
            "ValidatingAdmissionPolicy" => reread::<ValidatingAdmissionPolicy>(&object),
            "ValidatingAdmissionPolicyBinding" => {
                reread::<ValidatingAdmissionPolicyBinding>(&object)
            }
            "MutatingAdmissionPolicy" => reread::<MutatingAdmissionPolicy>(&object),
            "MutatingAdmissionPolicyBinding" => reread::<MutatingAdmissionPolicyBinding>(&object),
            "FlowSchema" => reread::<FlowSchema>(&object),
            "PriorityLevelConfiguration" => reread::<PriorityLevelConfiguration>(&object),
            "ResourceQuota" => reread::<ResourceQuota>(&object),
            "PodDisruptionBudget" => reread::<PodDisruptionBudget>(&object),
            other => panic!("{other} has no type here; add it"),
        };
        assert_eq!(reread, object, "{kind}");
    }
}

#[test]
fn no_object_appears_twice_and_each_is_in_a_namespace_that_comes_first() {
    let mut seen = BTreeSet::new();
    for object in with_optional() {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().expect("must have a name");
        assert!(seen.insert(format!("{kind}/{name}")), "{kind}/{name} appears twice");
        let cluster_kinds = [
            "Namespace",
            "ClusterRole",
            "ClusterRoleBinding",
            "FlowSchema",
            "PriorityLevelConfiguration",
        ];
        let of_cluster = cluster_kinds.contains(&kind) || kind.contains("AdmissionPolicy");
        if !of_cluster {
            let namespace = object["metadata"]["namespace"].as_str().expect("must be in one");
            // The namespace of the kubelets' leases exists in every cluster.
            let there = namespace == "kube-node-lease";
            assert!(there || seen.contains(&format!("Namespace/{namespace}")), "{kind}/{name}");
        }
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/part-of"], "epilogue");
    }
}

#[test]
fn the_lint_policy_warns_and_refuses_nothing() {
    let optional = objects(&lint_directory()).expect("must be readable");
    let [policy, binding] = &optional[..] else { panic!("a policy and its binding") };
    assert_eq!(policy["kind"], "ValidatingAdmissionPolicy");
    assert_eq!(policy["spec"]["failurePolicy"], "Ignore");
    let expected = json!({"policyName": policy["metadata"]["name"], "validationActions": ["Warn"]});
    assert_eq!(binding["spec"], expected);
}

#[test]
fn the_policies_to_opt_in_have_the_names_that_doctor_knows() {
    let objects = objects(&opt_in_directory()).expect("must be readable");
    let table = [
        (opt_in::JOBS, opt_in::MANAGED, opt_in::JOBS_BINDING, MANAGED_BY),
        (
            opt_in::POD_REPLACEMENT_POLICY,
            opt_in::FAILED,
            opt_in::POD_REPLACEMENT_POLICY_BINDING,
            "Failed",
        ),
    ];
    for ((label, value, name, sets), pair) in table.into_iter().zip(objects.chunks(2)) {
        let [policy, binding] = pair else { panic!("a policy and its binding") };
        let selector = &policy["spec"]["matchConstraints"]["namespaceSelector"];
        assert_eq!(*selector, json!({"matchLabels": {label: value}}));
        assert_eq!(binding["metadata"]["name"], name);
        assert_eq!(binding["spec"], json!({"policyName": policy["metadata"]["name"]}));
        assert_eq!(policy["spec"]["failurePolicy"], "Ignore", "a Job is never refused");
        let operations = &policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"];
        assert_eq!(*operations, json!(["CREATE"]));
        let patch = policy["spec"]["mutations"][0]["jsonPatch"]["expression"].as_str();
        assert!(patch.is_some_and(|patch| patch.contains(&format!("value: \"{sets}\""))));
    }
    assert_eq!(objects.len(), 4);
}

#[test]
fn policies_know_all_annotations_of_jobs() {
    let known: Vec<String> = job_option::ALL.iter().map(|name| format!("'{name}'")).collect();
    let known = format!("[{}]", known.join(", "));
    for name in ["epilogue-job-annotations", "epilogue-lint"] {
        let is_it = |object: &&Value| {
            object["kind"] == "ValidatingAdmissionPolicy" && object["metadata"]["name"] == name
        };
        let objects = with_optional();
        let policy = objects.iter().find(is_it).expect(name);
        let variables = policy["spec"]["variables"].as_array().expect("must have variables");
        let list = variables.iter().find(|variable| variable["name"] == "known").expect(name);
        assert_eq!(list["expression"], known.as_str(), "{name}");
    }
}

#[test]
fn selectors_select_the_controller_s_pods() {
    let deployment = the("Deployment");
    let selector = &deployment["spec"]["selector"]["matchLabels"];
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for (key, value) in selector.as_object().expect("must select by labels") {
        assert_eq!(&labels[key], value);
    }
    assert_eq!(&the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], selector);
    let spread = &pod_spec()["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"];
    assert_eq!(spread, selector);
}

#[test]
fn the_pod_needs_a_node_that_runs_the_image() {
    let image = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    assert_eq!(pod_spec()["nodeSelector"], image);
}

#[test]
fn the_pod_runs_as_the_account_that_the_roles_are_bound_to() {
    let pod = pod_spec();
    assert_eq!(pod["serviceAccountName"], the("ServiceAccount")["metadata"]["name"]);
    assert_eq!(pod["automountServiceAccountToken"], false, "a volume has the token");
}

/// The API server lets a token that asks for exactly 3607 s live for a year.
#[test]
fn the_token_of_the_controller_lives_for_a_day() {
    let pod = pod_spec();
    let volume = &pod["volumes"][0];
    let token = &volume["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(
        (token["path"].as_str(), token["expirationSeconds"].as_u64()),
        (Some("token"), Some(86_400))
    );
    let mount = &pod["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["name"], volume["name"]);
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
}

/// Account, verb, API group and resource of each rule.
fn lines<'a>(account: &Value, rules: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let texts = |value: &Value| {
        let values = value.as_array().cloned().unwrap_or_default();
        values.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let name = account["name"].as_str().unwrap_or_default();
    let mut lines = BTreeSet::new();
    for rule in rules {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    lines.insert(format!("{name} {verb} {group}/{resource}"));
                }
            }
        }
    }
    lines
}

/// Exempt are events, which can wait, configz and healthz, which a kubelet answers, and
/// jobs/finalizers.
#[test]
fn flows_hold_the_calls_of_both_accounts_and_no_others() {
    let all = [all(), gang_scheduling().expect("must be readable")].concat();
    let of_kind = |kind: &'static str| all.iter().filter(move |object| object["kind"] == kind);
    let mut flows = BTreeSet::new();
    for schema in of_kind("FlowSchema") {
        let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str();
        assert!(matches!(level, Some("epilogue" | "leader-election")), "{level:?}");
        for rule in schema["spec"]["rules"].as_array().expect("must have rules") {
            let subjects = rule["subjects"].as_array().expect("must have subjects");
            let names = subjects.iter().map(|it| it["serviceAccount"]["name"].as_str());
            let names: Vec<&str> = names.flatten().collect();
            // The accounts of both modes have one flow. One that observes makes no PodGroup.
            let observer = format!("{}-observer", names[0]);
            let of_gangs = schema["metadata"]["name"] == "epilogue-gang-scheduling";
            let observers = (!of_gangs).then_some(observer.as_str());
            assert_eq!(names[1..], observers.into_iter().collect::<Vec<_>>());
            let rules = rule["resourceRules"].as_array().expect("must have rules");
            flows.extend(lines(&subjects[0]["serviceAccount"], rules));
        }
    }
    let mut rights = BTreeSet::new();
    for binding in of_kind("ClusterRoleBinding").chain(of_kind("RoleBinding")) {
        let role = &binding["roleRef"];
        let is_it = |object: &&Value| {
            object["kind"] == role["kind"] && object["metadata"]["name"] == role["name"]
        };
        let role = all.iter().find(is_it).expect("must be there");
        let rules = role["rules"].as_array().expect("must have rules");
        rights.extend(lines(&binding["subjects"][0], rules));
    }
    let exempt = ["/events", "/nodes/configz", "/nodes/healthz", "/finalizers"];
    let waits = |line: &String| exempt.iter().any(|it| line.ends_with(it));
    rights.retain(|line| !waits(line));
    let beyond: Vec<_> = rights.difference(&flows).collect();
    assert!(beyond.is_empty(), "without a flow: {beyond:#?}");
    // A rule of a flow names all verbs of all its resources, so verbs are not compared.
    let resources = |lines: &BTreeSet<String>| -> BTreeSet<String> {
        let parts = lines.iter().filter_map(|line| line.split_once(' '));
        parts
            .filter_map(|(name, rest)| Some(format!("{name} {}", rest.split_once(' ')?.1)))
            .collect()
    };
    let (flows, rights) = (resources(&flows), resources(&rights));
    let without_right: Vec<_> = flows.difference(&rights).collect();
    assert!(without_right.is_empty(), "flows without a right: {without_right:#?}");
}

#[test]
fn probes_ask_the_admin_server() {
    let container = &pod_spec()["containers"][0];
    let port = &container["ports"][0];
    let address = flag("--health-probe-bind-address");
    assert_eq!(address, format!(":{}", port["containerPort"]));
    // Plain HTTP, without authentication.
    assert!(flag("--metrics-bind-address").starts_with("127.0.0.1:"));
    let table =
        [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")];
    for (probe, path) in table {
        let get = &container[probe]["httpGet"];
        assert_eq!((&get["path"], &get["port"]), (&json!(path), &port["name"]), "{probe}");
    }
}

#[test]
fn the_lease_s_flags_name_what_the_role_allows() {
    let role = the("Role");
    assert_eq!(role["metadata"]["namespace"], flag("--leader-elect-resource-namespace"));
    let named: Vec<&Value> =
        role["rules"].as_array().into_iter().flatten().map(|rule| &rule["resourceNames"]).collect();
    let name = json!([flag("--leader-elect-resource-name")]);
    assert_eq!(named, [&Value::Null, &name]);
}

#[test]
fn more_than_one_replica_needs_the_election_and_a_budget() {
    let replicas = the("Deployment")["spec"]["replicas"].as_i64().expect("must say how many");
    let args = args(&all(), CONTROLLER).expect("must have args");
    assert!(replicas > 1 && args.contains(&"--leader-elect".to_owned()));
    assert_eq!(the("PodDisruptionBudget")["spec"]["maxUnavailable"], 1);
}

#[test]
fn the_pod_satisfies_the_restricted_standard_that_its_namespace_enforces() {
    let labels = &the("Namespace")["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
    let pod = pod_spec();
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for field in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
        assert!(pod[field].is_null(), "{field}");
    }
    let volumes = pod["volumes"].as_array().expect("must have volumes");
    assert!(volumes.iter().all(|volume| volume["projected"].is_object()), "{volumes:?}");
    for container in pod["containers"].as_array().expect("must have containers") {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    }
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
}

#[test]
fn the_image_is_this_version_s_and_the_program_is_in_it() {
    let container = pod_spec()["containers"][0].clone();
    assert_eq!(
        container["image"],
        format!("registry.epilogue.dev/epilogue:{}", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(container["command"], json!([format!("/{CONTROLLER}")]));
}
