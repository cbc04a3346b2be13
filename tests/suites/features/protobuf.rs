//! Compares what is read and written in the API's two formats.

use std::sync::Arc;

use controller_core::job::{Body as WriteBody, PodDraft, SchedulingGroup, pod_body, status_body};
use controller_core::view::{self, FailureCounts, Interner, Job, Pod, Source, WireJob, WirePod};
use epilogue_common::names::media_type::{JSON, PROTOBUF};
use epilogue_runtime::watch::Read;
use epilogue_runtime::watch::wire::{Format, page, reply};
use http::{Method, Request, StatusCode, header};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::client::Body;
use lab::bed::{Bed, JobBuilder, SOON, job};
use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

const READ: Read<WirePod> = Read { json: view::read, protobuf: Some(WirePod::decode) };
const JOB: Read<Job> = Read {
    json: |text| WireJob::read(text)?.view(),
    protobuf: Some(|message| Job::decode(message).map(|(job, _)| job)),
};
const BOTH: &str = "application/vnd.kubernetes.protobuf,application/json";
/// A `managedBy` that no controller has, so that the status of its Jobs stands still.
const FOREIGN: &str = "example.com/absent";

/// Sends a request, and returns code, format and body of the reply.
async fn sent(
    bed: &Bed,
    (method, path): (Method, &str),
    (accept, content): (&str, &str),
    body: Vec<u8>,
) -> (StatusCode, Format, Vec<u8>) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, accept)
        .header(header::CONTENT_TYPE, content)
        .body(Body::from(body))
        .expect("a path must make a request");
    let response = bed.client().send(request).await.expect("the API must answer");
    let (code, format) = (response.status(), Format::of(response.headers()));
    let body = response.into_body().collect_bytes().await.expect("the body must come");
    (code, format, body.to_vec())
}

/// Lists the pods of the bed in the format that `accept` asks for.
async fn listed(bed: &Bed, accept: &str, expected: Format) -> Vec<Pod> {
    let path = format!("/api/v1/namespaces/{}/pods", bed.namespace());
    let (_, format, body) = sent(bed, (Method::GET, &path), (accept, JSON), Vec::new()).await;
    assert_eq!(format, expected);
    let page = page(format, &body, &READ).expect("must be a list");
    assert!(!page.version.is_empty());
    let mut interner = Interner::default();
    let read = |object: Result<WirePod, _>| object.expect("must be readable").view(&mut interner);
    page.objects.into_iter().map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_read_alike_from_protobuf_and_json() {
    let bed = bed(&[NO_BACKOFF]).await;
    // Indexes that fail end soon, and the pods of the others stay as they are: they stand still.
    let mixed = job("mixed").indexed(5).spec("backoffLimitPerIndex", 2);
    let mixed = mixed
        .script("index=0: succeed; index=1: fail exit=137; index=2: hang; index=3: disrupt; ready");
    let sidecar = json!([{"name": "side", "image": "none", "restartPolicy": "Always"},
                         {"name": "once", "image": "none"}]);
    let mixed = mixed.pod("initContainers", sidecar).pod("activeDeadlineSeconds", 600);
    bed.create(mixed).await;
    bed.create(job("waits").script("waiting=ImagePullBackOff")).await;
    bed.create(job("going").script("hang on-term=143 after=60s")).await;
    bed.pods_reach("mixed", <[_]>::len, |count| *count >= 5).await;
    // A pod without a node would be gone at once.
    let its_name = |pods: &[k8s_openapi::api::core::v1::Pod]| -> Option<String> {
        let pod = pods.first()?;
        let runs = pod.status.as_ref()?.phase.as_deref()? == "Running";
        pod.metadata.name.clone().filter(|_| runs)
    };
    let going = bed.pods_reach("going", its_name, Option::is_some).await;
    bed.delete_pod(&going.unwrap_or_default()).await;
    let versions =
        |all: &[Pod]| -> Vec<_> { all.iter().map(|pod| (pod.uid.clone(), pod.version)).collect() };
    // Pods change for a while: two lists of the same versions are compared.
    let both = async || {
        let lists =
            (listed(&bed, JSON, Format::Json).await, listed(&bed, BOTH, Format::Protobuf).await);
        assert!(versions(&lists.0) != versions(&lists.1) || lists.0 == lists.1, "{lists:?}");
        lists
    };
    let has = |all: &[Pod], what: &dyn Fn(&Pod) -> bool| all.iter().any(what);
    lab::eventually("pods of all kinds stand still", SOON, both, |(json, protobuf)| {
        versions(json) == versions(protobuf)
            && has(json, &|pod| pod.deletion.is_some())
            && has(json, &|pod| pod.containers.iter().any(|it| it.terminated.is_some()))
            && has(json, &|pod| pod.index == Some(4) && pod.node.is_some())
    })
    .await;
}

fn path_of(bed: &Bed, name: &str, subresource: &str) -> String {
    format!("/apis/batch/v1/namespaces/{}/jobs/{name}{subresource}", bed.namespace())
}

/// The Job as it is read in the format that `accept` asks for.
async fn read_job(bed: &Bed, name: &str, accept: &str) -> Job {
    let path = path_of(bed, name, "");
    let (code, format, body) = sent(bed, (Method::GET, &path), (accept, JSON), Vec::new()).await;
    assert_eq!((code, format == Format::Protobuf), (StatusCode::OK, accept == BOTH));
    reply(format, &body, &JOB).expect("must be a Job")
}

/// The Job as JSON, without what every write changes.
async fn stored(bed: &Bed, name: &str) -> Value {
    let path = path_of(bed, name, "");
    let (_, _, body) = sent(bed, (Method::GET, &path), (JSON, JSON), Vec::new()).await;
    let mut job: Value = serde_json::from_slice(&body).expect("must be JSON");
    for field in ["resourceVersion", "managedFields"] {
        job["metadata"].as_object_mut().expect("metadata").remove(field);
    }
    job
}

/// A Job with all that its spec and metadata can say.
fn everything() -> JobBuilder {
    let rules = json!([
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailIndex", "onExitCodes":
            {"containerName": "main", "operator": "In", "values": [1, 2, 255]}},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [3]}},
    ]);
    let success = json!({"rules": [{"succeededIndexes": "0-2,5", "succeededCount": 3},
                                   {"succeededCount": 7}, {"succeededIndexes": "9"}]});
    let expressions = json!([
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "stage", "operator": "NotIn", "values": ["x"]},
        {"key": "app", "operator": "Exists"}, {"key": "off", "operator": "DoesNotExist"},
    ]);
    job("everything")
        .indexed(10)
        .metadata("labels", json!({"team": "red", "empty": ""}))
        .metadata("annotations", json!({"epilogue.dev/x": "1", "note": "\u{e9}\u{1f980}"}))
        .metadata("finalizers", json!(["example.com/held"]))
        .metadata(
            "ownerReferences",
            json!([
            {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u", "controller": false}]),
        )
        .spec("activeDeadlineSeconds", i64::MAX)
        .spec("ttlSecondsAfterFinished", 600)
        .spec("backoffLimitPerIndex", 0)
        .spec("maxFailedIndexes", 4)
        .spec("podReplacementPolicy", "Failed")
        .spec("podFailurePolicy", json!({"rules": rules}))
        .spec("successPolicy", success)
        .spec("manualSelector", true)
        .spec("selector", json!({"matchLabels": {"app": "all"}, "matchExpressions": expressions}))
        .pod_metadata("labels", json!({"app": "all", "tier": "a", "stage": "y"}))
}

/// All that a status can say.
fn full_status() -> Value {
    let at = "2026-01-02T03:04:05Z";
    json!({
        "startTime": at, "active": 2, "ready": 0, "terminating": 1, "succeeded": 4, "failed": 1,
        "completedIndexes": "0,2-4", "failedIndexes": "1",
        "uncountedTerminatedPods": {"succeeded": ["u1", "u2"], "failed": ["u3"]},
        "conditions": [
            {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "resumed",
             "lastProbeTime": at, "lastTransitionTime": at},
            {"type": "example.com/Other", "status": "Unknown"},
        ],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_read_and_write_alike_in_protobuf_and_json() {
    let bed = bed(&[]).await;
    let table = [
        (everything(), full_status()),
        (job("queue").spec("parallelism", 3), json!({"startTime": "2026-01-02T03:04:05Z"})),
        (job("paused").spec("suspend", true).spec("parallelism", 0), json!({})),
        (
            job("retries").spec("backoffLimit", 0).pod("restartPolicy", "OnFailure"),
            json!({"startTime": "2026-01-02T03:04:05Z", "ready": 0,
                "uncountedTerminatedPods": {"failed": ["u1"]}}),
        ),
    ];
    for (job, status) in table {
        let created = bed.create(job.spec("managedBy", FOREIGN)).await;
        let name = created.metadata.name.expect("a name");
        let jobs = bed.api::<k8s_openapi::api::batch::v1::Job>();
        let patch = Patch::Merge(json!({"status": status}));
        jobs.patch_status(&name, &PatchParams::default(), &patch).await.expect("must be a status");
        if name == "everything" {
            // The finalizer holds it.
            jobs.delete(&name, &DeleteParams::background()).await.expect("must be deleted");
        }
        let json = read_job(&bed, &name, JSON).await;
        let protobuf = read_job(&bed, &name, BOTH).await;
        assert!(matches!(json.source, Source::Json { .. }), "{json:?}");
        assert!(matches!(protobuf.source, Source::Protobuf { .. }), "{protobuf:?}");
        assert_eq!(Job { source: json.source.clone(), ..protobuf.clone() }, json);
        assert_eq!(json.deleting, name == "everything");
        check_writes(&bed, &name).await;
    }
}

/// A status write in either format changes the status alone, and only of the version that was read.
async fn check_writes(bed: &Bed, name: &str) {
    let path = path_of(bed, name, "/status");
    for (accept, terminating) in [(BOTH, 3), (JSON, 2), (BOTH, 0)] {
        let job = read_job(bed, name, accept).await;
        let mut expected = stored(bed, name).await;
        expected["status"]["terminating"] = terminating.into();
        let mut status = job.status.clone();
        status.terminating = Some(terminating);
        let body = || status_body(&job, &status).expect("must be writable");
        let content = body().content_type();
        assert_eq!(content, if accept == BOTH { PROTOBUF } else { JSON });
        let write = |body: WriteBody| body.into_bytes();
        let (code, format, reply_body) =
            sent(bed, (Method::PUT, &path), (BOTH, content), write(body())).await;
        assert_eq!(code, StatusCode::OK, "{}", String::from_utf8_lossy(&reply_body));
        let written = reply(format, &reply_body, &JOB).expect("must be a Job");
        assert_eq!(written.status, status);
        assert!(written.version > job.version);
        assert_eq!(stored(bed, name).await, expected);
        let (code, _, _) = sent(bed, (Method::PUT, &path), (BOTH, content), write(body())).await;
        assert_eq!(code, StatusCode::CONFLICT, "{name} {accept}");
    }
}

/// Templates with all that a pod adds to them, or that a copy could lose.
fn templates() -> Vec<JobBuilder> {
    let index = "batch.kubernetes.io/job-completion-index";
    let failures = "batch.kubernetes.io/job-index-failure-count";
    let own_variable = json!([{"name": "JOB_COMPLETION_INDEX", "value": "mine"}, {"name": "A"}]);
    let term = |node: &str| {
        json!({"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]})
    };
    let pods = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]);
    let affinity = json!({
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term("n")]},
            "preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 3, "preference": term("m")}],
        },
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": pods},
    });
    let labels = json!({"plain": "", index: "9"});
    vec![
        job("plain"),
        job("marked")
            .pod_metadata("labels", labels)
            .pod_metadata("annotations", json!({failures: "9", index: "9", "note": "kept"}))
            .pod_metadata("finalizers", json!(["batch.kubernetes.io/job-tracking", "a.com/b"]))
            .pod("hostname", "mine"),
        job("held").pod_metadata("finalizers", json!(["example.com/mine"])),
        job("affine").pod("affinity", affinity),
        job("only-pods").pod(
            "affinity",
            json!({"podAntiAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": pods}}),
        ),
        job("variables").pod(
            "containers",
            json!([
                {"name": "none", "image": "i"},
                {"name": "own", "image": "i", "env": own_variable},
                {"name": "other", "image": "i", "env": [{"name": "A", "value": "$(B)"}]},
            ]),
        ),
        rich(),
    ]
}

/// A template with fields of every type of the wire format.
fn rich() -> JobBuilder {
    let probe = |port: Value| json!({"httpGet": {"path": "/", "port": port}, "periodSeconds": 3});
    let container = json!({
        "name": "main", "image": "i", "args": ["a", ""], "tty": true, "stdin": false,
        "ports": [{"name": "web", "containerPort": 80, "protocol": "UDP"}],
        "resources": {"limits": {"cpu": "1500m", "memory": "1.5Gi", "example.com/x": "1e3"},
                      "requests": {"cpu": "0.1"}},
        "livenessProbe": probe(json!("web")), "readinessProbe": probe(json!(8080)),
        "securityContext": {"runAsUser": 0, "privileged": false,
                            "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/s", "subPathExpr": "$(NODE)"}],
        "env": [
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "CPU", "valueFrom":
                {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "KEY", "valueFrom":
                {"secretKeyRef": {"name": "s", "key": "k", "optional": false}}},
        ],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}],
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
    });
    let projected = json!([{"downwardAPI": {"items": [
        {"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o400}]}}]);
    job("rich")
        .pod("containers", json!([container]))
        .pod(
            "initContainers",
            json!([
            {"name": "side", "image": "i", "restartPolicy": "Always"},
            {"name": "first", "image": "i"}]),
        )
        .pod(
            "volumes",
            json!([
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "empty", "emptyDir": {}},
            {"name": "both", "projected": {"defaultMode": 0, "sources": projected}}]),
        )
        .pod(
            "tolerations",
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute",
                                    "tolerationSeconds": 0}]),
        )
        .pod(
            "topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}]),
        )
        .pod("hostAliases", json!([{"ip": "10.0.0.1", "hostnames": ["h"]}]))
        .pod("dnsConfig", json!({"options": [{"name": "ndots", "value": "1"}, {"name": "x"}]}))
        .pod(
            "securityContext",
            json!({"fsGroup": 0, "runAsNonRoot": false,
                                       "sysctls": [{"name": "a.b", "value": "1"}]}),
        )
        .pod("nodeSelector", json!({"disk": "", "zone": "z"}))
        .pod("imagePullSecrets", json!([{"name": "pull"}]))
        .pod("readinessGates", json!([{"conditionType": "example.com/ready"}]))
        .pod("terminationGracePeriodSeconds", 0)
        .pod("enableServiceLinks", false)
        .pod("subdomain", "sub")
}

/// A pod as the API answers its creation, without what differs between any two.
async fn made(bed: &Bed, body: WriteBody) -> Value {
    let path = format!("/api/v1/namespaces/{}/pods", bed.namespace());
    let content = body.content_type();
    let (code, _, reply) =
        sent(bed, (Method::POST, &path), (JSON, content), body.into_bytes()).await;
    assert_eq!(code, StatusCode::CREATED, "{}", String::from_utf8_lossy(&reply));
    let mut pod: Value = serde_json::from_slice(&reply).expect("must be JSON");
    let metadata = pod["metadata"].as_object_mut().expect("metadata");
    for field in ["name", "uid", "resourceVersion", "creationTimestamp"] {
        assert!(metadata.remove(field).is_some(), "{field}");
    }
    for entry in metadata["managedFields"].as_array_mut().expect("managed fields") {
        entry.as_object_mut().expect("an entry").remove("time");
    }
    pod
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_made_in_protobuf_and_json_are_equal() {
    let bed = bed(&[]).await;
    let failures = Some(FailureCounts { counted: 2, ignored: 1 });
    let avoid = vec!["node-a".into()];
    let group = SchedulingGroup { name: "group".into(), attempt: Some(1) };
    let drafts = [
        PodDraft::default(),
        PodDraft { index: Some(3), ..PodDraft::default() },
        PodDraft { avoid: avoid.clone(), ..PodDraft::default() },
        PodDraft { index: Some(0), avoid, failures, group: Some(Arc::new(group)) },
    ];
    for job in templates() {
        // A token's volume has a random name.
        let job = job.spec("managedBy", FOREIGN).pod("automountServiceAccountToken", false);
        let name = bed.create(job).await.metadata.name.expect("a name");
        let json = read_job(&bed, &name, JSON).await;
        let protobuf = read_job(&bed, &name, BOTH).await;
        for draft in &drafts {
            let bodies = (pod_body(&protobuf, draft), pod_body(&json, draft));
            assert_eq!((bodies.0.content_type(), bodies.1.content_type()), (PROTOBUF, JSON));
            let (protobuf, json) = (made(&bed, bodies.0).await, made(&bed, bodies.1).await);
            assert_eq!(protobuf, json, "{name} {draft:?}");
            assert_eq!(
                json["spec"]["containers"][0]["env"].is_array(),
                draft.index.is_some() || name == "rich"
            );
        }
    }
}
