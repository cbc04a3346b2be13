//! Tests what a dump holds, on objects with a token of its own in each text.

use std::collections::HashMap;
use std::sync::Arc;

use epilogue_common::names::{job_option, node};
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;
use crate::explain::rules::{Known, explain};
use crate::lease::Controller;
use controller_core::job::{Memory, Settings, SyncInput, Versions};
use controller_core::job_pods::JobPods;
use controller_core::view::{Interner, WireJob, WirePod};

/// The texts that must not get out begin with this.
const SECRET: &str = "secret-";

/// The object, if the API's types know each of its fields.
#[track_caller]
fn known<T: Serialize + DeserializeOwned>(object: Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).expect("must have the API's form");
    assert_eq!(serde_json::to_value(typed).expect("must be JSON"), object);
    object
}

/// Containers with every kind of text that an owner writes.
fn containers(name: &str) -> Value {
    let key = |of: &str| json!({"name": format!("secret-{of}-name"), "key": "secret-key"});
    let probe = json!({
        "exec": {"command": ["secret-probe"]},
        "httpGet": {"host": "secret-host", "path": "secret-path", "port": "secret-port",
                    "scheme": "secret-scheme",
                    "httpHeaders": [{"name": "secret-header", "value": "secret-bearer"}]},
    });
    json!([{
        "name": name,
        "image": "secret-registry/secret-image:secret-tag",
        "imagePullPolicy": "secret-pull",
        "command": ["secret-command"],
        "args": ["secret-arg"],
        "workingDir": "secret-dir",
        "env": [
            {"name": "secret-env", "value": "secret-value"},
            {"name": "secret-from", "valueFrom": {
                "secretKeyRef": key("env"), "configMapKeyRef": key("map"),
                "fieldRef": {"fieldPath": "secret-field"},
                "resourceFieldRef": {"resource": "secret-resource", "containerName": "secret-c"},
            }},
        ],
        "envFrom": [{"prefix": "secret-prefix", "secretRef": {"name": "secret-all"},
                     "configMapRef": {"name": "secret-config"}}],
        "lifecycle": {"preStop": {"exec": {"command": ["secret-stop"]}}, "stopSignal": "secret-9"},
        "livenessProbe": probe,
        "ports": [{"name": "secret-port", "containerPort": 1, "protocol": "secret-protocol",
                   "hostIP": "secret-ip"}],
        "resources": {"limits": {"cpu": "secret-cpu"}, "requests": {"secret-device": "1"},
                      "claims": [{"name": "secret-claim", "request": "secret-request"}]},
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {
            "operator": "secret-in", "values": [7]}}],
        "securityContext": {"seLinuxOptions": {"user": "secret-user", "level": "secret-level"},
                            "capabilities": {"add": ["secret-capability"]}},
        "terminationMessagePath": "secret-message-path",
        "terminationMessagePolicy": "secret-policy",
        "volumeDevices": [{"name": "secret-device", "devicePath": "secret-device-path"}],
        "volumeMounts": [{"name": "secret-mount", "mountPath": "secret-mount-path",
                          "subPath": "secret-sub", "subPathExpr": "secret-expression"}],
    }])
}

fn spec() -> Value {
    json!({
        "nodeName": "n",
        "restartPolicy": "Never",
        "containers": containers("main"),
        "initContainers": containers("init"),
        "ephemeralContainers": [{"name": "secret-shell", "targetContainerName": "secret-target",
                                 "command": ["secret-debug"]}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "secret-node-key", "operator": "In", "values": ["secret-zone"]}]}]}}},
        "dnsConfig": {"nameservers": ["secret-dns"], "searches": ["secret-search"],
                      "options": [{"name": "secret-option", "value": "secret-ndots"}]},
        "dnsPolicy": "secret-dns-policy",
        "hostAliases": [{"ip": "secret-alias", "hostnames": ["secret-host-name"]}],
        "hostname": "secret-hostname",
        "imagePullSecrets": [{"name": "secret-pull-secret"}],
        "nodeSelector": {"secret-selected": "secret-node"},
        "overhead": {"cpu": "secret-overhead"},
        "priorityClassName": "secret-priority",
        "readinessGates": [{"conditionType": "secret-gate"}],
        "resourceClaims": [{"name": "secret-claims", "resourceClaimName": "secret-claimed"}],
        "runtimeClassName": "secret-runtime",
        "schedulerName": "secret-scheduler",
        "schedulingGates": [{"name": "secret-scheduling-gate"}],
        "securityContext": {"seccompProfile": {"type": "Warning",
                                               "localhostProfile": "secret-profile"},
                            "sysctls": [{"name": "secret-sysctl", "value": "secret-number"}]},
        "serviceAccountName": "secret-account",
        "subdomain": "secret-subdomain",
        "tolerations": [{"key": "secret-toleration", "value": "secret-tolerated"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "secret-topology",
                                       "whenUnsatisfiable": "secret-unsatisfiable"}],
        "volumes": [
            {"name": "secret-volume", "secret": {"secretName": "secret-mounted",
                "items": [{"key": "secret-item", "path": "secret-item-path"}]}},
            {"name": "secret-nfs", "nfs": {"server": "secret-server", "path": "secret-export"}},
            {"name": "secret-csi", "csi": {"driver": "secret-driver",
                "volumeAttributes": {"secret-attribute": "secret-attributed"},
                "nodePublishSecretRef": {"name": "secret-published"}}},
            {"name": "secret-host", "hostPath": {"path": "secret-host-path"}},
            {"name": "secret-projected", "projected": {"sources": [
                {"serviceAccountToken": {"audience": "secret-audience", "path": "secret-token"}}]}},
        ],
    })
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name, "namespace": "work", "uid": name,
        "generateName": "secret-generate", "selfLink": "secret-link",
        "creationTimestamp": "2026-11-21T09:00:00Z",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "secret-applied",
            "epilogue.dev/of-others": "secret-others",
            "secret-annotation": "secret-annotated",
        },
        "labels": {"secret-label": "secret-labelled", "job": "j"},
        "managedFields": [{"manager": "secret-manager", "operation": "secret-operation",
                           "fieldsV1": {"secret-path": {}}}],
    })
}

fn pod() -> Value {
    let state = |words: &str| {
        json!({
            "name": "main", "image": "secret-status-image", "imageID": "secret-image-id",
            "containerID": "secret-container-id", "ready": false, "restartCount": 0,
            "lastState": {"terminated": {"exitCode": 1, "message": "secret-last"}},
            "state": {"terminated": {
                "exitCode": 3, "message": format!("secret-{words}"), "reason": "Error",
                "containerID": "secret-ended", "startedAt": "2026-11-21T10:00:00Z",
                "finishedAt": "2026-11-21T10:01:00Z"}},
            "allocatedResources": {"cpu": "secret-allocated"},
        })
    };
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata("p"), "spec": spec(),
        "status": {
            "phase": "Failed", "message": "secret-message",
            "conditions": [{"type": "Ready", "status": "False", "message": "secret-condition",
                            "lastTransitionTime": "2026-11-21T10:01:00Z"}],
            "containerStatuses": [state("regular")],
            "initContainerStatuses": [state("init")],
            "ephemeralContainerStatuses": [state("ephemeral")],
            "hostIP": "secret-host-ip", "podIP": "secret-pod-ip",
            "hostIPs": [{"ip": "secret-host-ips"}], "podIPs": [{"ip": "secret-pod-ips"}],
            "nominatedNodeName": "secret-nominated", "qosClass": "secret-qos",
            "resize": "secret-resize",
        },
    });
    pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}]);
    known::<Pod>(pod)
}

fn job() -> Value {
    known::<Job>(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata("j"),
        "spec": {
            "backoffLimit": 2, "managedBy": "epilogue.dev/job-controller",
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {
                "containerName": "main", "operator": "In", "values": [3]}}]},
            "selector": {"matchLabels": {"job": "j"}},
            "template": {"metadata": metadata("t"), "spec": spec()},
        },
        "status": {"startTime": "2026-11-21T09:00:00Z", "uncountedTerminatedPods": {}},
    }))
}

fn node() -> Value {
    known::<Node>(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata("n"),
        "spec": {"podCIDR": "secret-cidr", "podCIDRs": ["secret-cidrs"],
                 "providerID": "secret-provider", "externalID": "secret-external",
                 "taints": [{"key": "a", "value": "secret-taint", "effect": "NoSchedule"}]},
        "status": {
            "addresses": [{"type": "secret-kind", "address": "secret-address"}],
            "allocatable": {"secret-resource": "secret-quantity"},
            "conditions": [{"type": "Ready", "status": "True", "message": "kept"}],
            "images": [{"names": ["secret-image"], "sizeBytes": 1}],
            "nodeInfo": {
                "architecture": "secret-arch", "bootID": "boot-1",
                "containerRuntimeVersion": "secret-cri", "kernelVersion": "secret-kernel",
                "kubeProxyVersion": "secret-proxy", "kubeletVersion": "secret-kubelet",
                "machineID": "secret-machine", "operatingSystem": "secret-os",
                "osImage": "secret-os-image", "systemUUID": "secret-system"},
            "volumesAttached": [{"name": "secret-attached", "devicePath": "secret-device"}],
            "volumesInUse": ["secret-in-use"],
        },
    }))
}

fn event(reporter: &str, kind: &str) -> Value {
    known::<Event>(json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": "default", "name": format!("{reporter}.{kind}"),
                     "annotations": {"secret-a": "secret-b"}},
        "involvedObject": {"kind": kind, "name": "n", "namespace": "default", "uid": "u",
                           "fieldPath": "secret-field"},
        "reason": "NodeShutdownStarted", "message": "kept", "type": "Warning",
        "action": "secret-action", "reportingComponent": reporter,
        "reportingInstance": "secret-instance",
        "source": {"component": reporter, "host": "secret-source"},
        "lastTimestamp": "2026-11-21T09:00:00Z",
    }))
}

#[test]
fn no_text_that_an_owner_writes_gets_out() {
    let lease = json!({"kind": "Lease", "metadata": metadata("l"), "spec": {
        "holderIdentity": "h", "preferredHolder": "secret-holder", "strategy": "secret-strategy"}});
    let namespace = json!({"kind": "Namespace", "metadata": metadata("work"),
                           "status": {"phase": "secret-phase"}});
    let objects = [pod(), job(), node(), event("epilogue.dev/agent", "Node"), lease, namespace];
    let redacted = redact(&objects);
    assert_eq!(redacted.len(), objects.len());
    let text = serde_json::to_string_pretty(&redacted).expect("must be JSON");
    let leaked: Vec<&str> = text.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(leaked.is_empty(), "{leaked:#?}");
    let before = serde_json::to_string(&objects).expect("must be JSON");
    assert!(before.matches(SECRET).count() > 200);
}

/// Each text of the objects in turn is a token, which is in the dump only if its path is kept.
#[test]
fn a_token_in_any_text_gets_out_only_where_the_list_says() {
    for object in [pod(), job(), node()] {
        let kind = object["kind"].as_str().expect("must be text");
        let kind = Kind::ALL.into_iter().find(|it| it.name() == kind).expect("must be known");
        let mut texts = Vec::new();
        pointers(&object, String::new(), String::new(), &mut texts);
        for (pointer, path) in texts.iter().filter(|(_, path)| path != "kind") {
            let mut marked = object.clone();
            *marked.pointer_mut(pointer).expect("must be there") = "TOKEN".into();
            let out = serde_json::to_string(&redact(&[marked])).expect("must be JSON");
            let selects = ["spec.selector.matchLabels.job", "spec.template.metadata.labels.job"];
            let is_selected = kind == Kind::Job && selects.contains(&path.as_str());
            let is_kept = is_selected || kept_fields(kind).contains(&path.as_str());
            assert_eq!(out.contains("TOKEN"), is_kept, "{path}");
        }
    }
}

/// The pointers to all texts, with their paths.
fn pointers(value: &Value, pointer: String, path: String, all: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                pointers(field, format!("{pointer}/{escaped}"), path, all);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, format!("{pointer}/{index}"), format!("{path}[]"), all);
            }
        }
        Value::String(_) => all.push((pointer, path)),
        _ => {}
    }
}

#[test]
fn labels_are_kept_where_a_selector_names_them() {
    let redacted = redact(&[pod(), job()]);
    assert_eq!(redacted[0]["metadata"]["labels"], json!({"job": "j"}));
    assert_eq!(redacted[1]["metadata"].get("labels"), None);
    assert_eq!(redacted[1]["spec"]["template"]["metadata"]["labels"], json!({"job": "j"}));
    let mut other = job();
    other["spec"]["selector"] = json!({"matchExpressions": [
        {"key": "secret-label", "operator": "Exists"}]});
    let redacted = redact(&[pod(), other]);
    assert_eq!(redacted[0]["metadata"]["labels"], json!({"secret-label": "secret-labelled"}));
}

#[test]
fn events_stay_if_read_and_only_agents_keep_their_message() {
    let event = |reporter: &str, kind: &str, reason: &str, second: u8| {
        let mut event = event(reporter, kind);
        event["reason"] = reason.into();
        event["lastTimestamp"] = format!("2026-11-21T09:00:{second:02}Z").into();
        event
    };
    let redacted = redact(&[
        event("kubelet", "Pod", "secret-started", 5),
        event("kubelet", "Pod", "secret-oldest", 1),
        event("epilogue.dev/agent", "Node", "NodeShutdownStarted", 2),
        event("epilogue.dev/agent", "Pod", "PodLost", 3),
        event("kubelet", "Node", "Rebooted", 4),
        event("epilogue.dev/job-controller", "Job", "StatusAltered", 5),
    ]);
    let shown = |each: &Value| {
        let text = |field: &str| each[field].as_str().unwrap_or("-").to_owned();
        format!("{} {} {}", text("reason"), text("message"), &text("lastTimestamp")[17..])
    };
    let shown: Vec<String> = redacted.iter().map(shown).collect();
    let expected = [
        "- - 01Z",
        "NodeShutdownStarted kept 02Z",
        "PodLost - 03Z",
        "Rebooted - 04Z",
        "StatusAltered - 05Z",
    ];
    assert_eq!(shown, expected);
    assert_eq!(redacted[0].get("involvedObject"), None);
    assert!(redact(&[json!({"kind": "Secret", "data": {"a": "b"}}), json!(null)]).is_empty());
}

#[test]
fn a_job_is_explained_from_its_dump_as_from_its_cluster() {
    let text = |objects: &[Value]| {
        let of = |kind: &str| {
            objects.iter().find(|each| each["kind"] == kind).cloned().expect("must be there")
        };
        let job = WireJob::parse(of("Job")).and_then(WireJob::view).expect("must be readable");
        let pod: WirePod = serde_json::from_value(of("Pod")).expect("must be readable");
        let explanation = explain(
            &SyncInput {
                pods: &JobPods::of(&job, &[Arc::new(pod.view(&mut Interner::default()))]),
                job: &Arc::new(job),
                memory: &Memory::default(),
                groups: None,
                seen: Versions::default(),
                now: "2026-11-21T12:00:00Z".parse().expect("must be a time"),
                settings: &Settings::default(),
                counts_max: SignedDuration::ZERO,
            },
            &Known {
                job: &Value::Null,
                pods: HashMap::new(),
                events: None,
                controller: &Controller::NotRead,
                only: None,
            },
        );
        serde_json::to_value(explanation).expect("must be JSON")
    };
    let mut unselected = job();
    unselected["spec"]["selector"] = json!({});
    for job in [job(), unselected] {
        let explanation = text(&[pod(), job.clone()]);
        assert!(explanation["nextSync"].as_array().is_some_and(|steps| !steps.is_empty()));
        assert_eq!(text(&redact(&[pod(), job])), explanation);
    }
}

#[test]
fn a_pod_of_a_dump_is_read_as_that_of_its_cluster() {
    let view = |object: &Value| {
        let pod: WirePod = serde_json::from_value(object.clone()).expect("must be readable");
        let labels = Arc::default();
        controller_core::view::Pod { labels, ..pod.view(&mut Interner::default()) }
    };
    let changes: [(&str, Value); 12] = [
        ("/metadata/generation", json!(3)),
        ("/metadata/annotations/kubernetes.io~1config.mirror", json!("secret-hash")),
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/activeDeadlineSeconds", json!(60)),
        ("/spec/containers/0/restartPolicy", json!("Always")),
        ("/spec/initContainers/0/restartPolicy", json!("Always")),
        ("/spec/containers/0/restartPolicyRules", json!([{"action": "Restart"}])),
        ("/spec/initContainers/0/restartPolicyRules", json!([{"action": "Restart"}])),
        ("/status/reason", json!("Evicted")),
        ("/status/containerStatuses/0/state", json!({"waiting": {"reason": "ImagePullBackOff"}})),
        (
            "/status/initContainerStatuses/0/state",
            json!({"waiting": {"reason": "PodInitializing"}}),
        ),
        (
            "/status/initContainerStatuses/0/state/terminated/startedAt",
            json!("2026-11-21T11:00:00Z"),
        ),
    ];
    for (pointer, value) in &changes {
        let mut pod = pod();
        pod["status"]["startTime"] = "2026-11-21T09:00:00Z".into();
        pod["spec"]["activeDeadlineSeconds"] = 3600.into();
        for list in ["containers", "initContainers"] {
            pod["spec"][list][0]["restartPolicyRules"].take();
        }
        set(&mut pod, pointer, value.clone());
        assert_eq!(view(&redact(&[pod.clone()])[0]), view(&pod), "{pointer}");
    }
}

/// Sets a field, also one that is new.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').expect("must be a pointer");
    let parent = object.pointer_mut(parent).expect("must be there");
    parent[name.replace("~1", "/")] = value;
}

#[test]
fn selector_and_status_of_a_job_are_kept() {
    let mut job = job();
    job["spec"]["selector"]["matchExpressions"] =
        json!([{"key": "secret-label", "operator": "In", "values": ["a", "b"]}]);
    job["status"]["completionTime"] = "2026-11-21T11:00:00Z".into();
    let redacted = redact(&[job.clone()]);
    assert_eq!(redacted[0]["spec"]["selector"], job["spec"]["selector"]);
    assert_eq!(redacted[0]["status"], job["status"]);
}

#[test]
fn the_small_kinds_are_kept_as_they_are_read() {
    let mut namespace = json!({"kind": "Namespace", "metadata": metadata("work")});
    set(&mut namespace, "/metadata/annotations/epilogue.dev~1force-fail-after", json!("10m"));
    set(&mut namespace, "/metadata/labels/epilogue.dev~1jobs", json!("managed"));
    let expected = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "work", "annotations": {"epilogue.dev/force-fail-after": "10m"},
        "labels": {"epilogue.dev/jobs": "managed"}}});
    assert_eq!(redact(&[namespace]), [expected]);
    let kind = "MutatingAdmissionPolicyBinding";
    let binding =
        json!({"kind": kind, "metadata": metadata("b"), "spec": {"policyName": "secret-p"}});
    let expected = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": "b"}});
    assert_eq!(redact(&[binding]), [expected]);
    let spec = json!({"holderIdentity": "h", "leaseDurationSeconds": 15, "renewTime": "t"});
    let mut lease = json!({"kind": "Lease", "metadata": metadata("l"), "spec": spec});
    let setup = json!({"epilogue.dev/version": "1", "epilogue.dev/manage-all-jobs": "true",
                       "epilogue.dev/watch-namespace": "a", "epilogue.dev/mode": "off"});
    for (name, value) in setup.as_object().expect("annotations") {
        lease["metadata"]["annotations"][name] = value.clone();
    }
    let expected = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
        "metadata": {"name": "l", "namespace": "work", "annotations": setup}});
    assert_eq!(redact(&[lease]), [expected]);
    let redacted = redact(&[event("epilogue.dev/agent", "Node")]);
    assert_eq!(redacted[0]["lastTimestamp"], "2026-11-21T09:00:00Z");
    let mut node = node();
    node["spec"]["unschedulable"] = true.into();
    node["spec"]["taints"][0]["timeAdded"] = "2026-11-21T09:00:00Z".into();
    node["status"]["conditions"][0]["reason"] = "KubeletReady".into();
    let redacted = redact(&[node]);
    assert_eq!(
        redacted[0]["spec"],
        json!({"unschedulable": true, "taints": [
        {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-11-21T09:00:00Z"}]})
    );
    assert_eq!(
        redacted[0]["status"],
        json!({"nodeInfo": {"bootID": "boot-1"}, "conditions": [
        {"type": "Ready", "status": "True", "message": "kept", "reason": "KubeletReady"}]})
    );
}

#[test]
fn the_annotations_that_programs_read_are_kept() {
    use job_option::{
        AVOID_FAILED_NODES, BACKOFF_BASE, BACKOFF_MAX, DISRUPTION_LIMIT, FINISHED_PODS_KEPT,
        FORCE_FAIL_AFTER, PENDING_TIMEOUT, POD_FAILURE_POLICY_NAMES, REPLACE_EARLY,
    };
    let of_jobs = [
        AVOID_FAILED_NODES,
        BACKOFF_BASE,
        BACKOFF_MAX,
        DISRUPTION_LIMIT,
        FINISHED_PODS_KEPT,
        FORCE_FAIL_AFTER,
        PENDING_TIMEOUT,
        POD_FAILURE_POLICY_NAMES,
        REPLACE_EARLY,
    ];
    let kept = |kind, name: &str| {
        kept_fields(kind).contains(&format!("metadata.annotations.{name}").as_str())
    };
    assert!(of_jobs.iter().all(|name| kept(Kind::Job, name)));
    assert!(kept(Kind::Namespace, FORCE_FAIL_AFTER));
    assert!([node::STATE, node::READINESS].iter().all(|name| kept(Kind::Node, name)));
}
