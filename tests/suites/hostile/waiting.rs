//! Tests Jobs that wait, for a webhook that hangs or asks to come later, or for quota: no other
//! Job waits with them, and what they wait for wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doubles::http;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use lab::bed::{SOON, job};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::{ControlPlane, Namespace, Options, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// Jobs of the namespace whose webhook is slow.
const JOBS: usize = 40;
/// The neighbour's first pod comes within a fifth of this; the machine may be busy.
const FIRST_POD_MAX: Duration = Duration::from_secs(10);
/// The webhook's own limit in the API server.
const HANGS: Duration = Duration::from_secs(10);
/// A Job asks for freed quota within a third of this. Its backoff alone takes longer by then.
const QUOTA_MAX: Duration = Duration::from_secs(15);
const REFUSED_FOR: Duration = Duration::from_secs(36);

struct Stage {
    control_plane: ControlPlane,
    controller: Controller,
    tenant: Namespace,
    other: Namespace,
    client: kube::Client,
}

/// A webhook that hangs, or refuses with 429 and a wait of 30 s.
struct Webhook {
    hangs: Arc<AtomicBool>,
    url: String,
    certificate: String,
    _serving: AbortOnDropHandle<()>,
}

impl Stage {
    async fn start() -> Self {
        let controllers = format!("{QUIET_CONTROLLERS},resourcequota-controller");
        let options = Options::unique("waiting").controller_manager(&controllers);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let cluster = control_plane.cluster();
        let client = control_plane.admin_client().await.expect("a client");
        let tenant = Namespace::create(cluster).await.expect("a namespace");
        let other = Namespace::create(cluster).await.expect("a namespace");
        let setup = Setup::debug(control_plane.dir());
        let controller = Controller::start(cluster, &setup).await.expect("our controller");
        Self { control_plane, controller, tenant, other, client }
    }

    fn api<K>(&self, namespace: &Namespace) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace.name())
    }

    async fn create(&self, namespace: &Namespace, name: &str) {
        let jobs: Api<Job> = self.api(namespace);
        jobs.create(&PostParams::default(), &job(name).build()).await.expect("the Job");
    }

    /// Waits for a pod of this Job; returns for how long.
    async fn first_pod(&self, namespace: &Namespace, name: &str, within: Duration) -> Duration {
        let begun = Instant::now();
        let pods: Api<Pod> = self.api(namespace);
        let params = ListParams::default().labels(&format!("job-name={name}"));
        let count = async || pods.list(&params).await.expect("the pods").items.len();
        eventually(&format!("a pod of {name}"), within, count, |count| *count > 0).await;
        begun.elapsed()
    }

    /// Registers the webhook for new pods of the tenant.
    async fn register(&self, webhook: &Webhook) {
        let name = self.tenant.name();
        let configuration = json!({
            "metadata": {"name": name},
            "webhooks": [{
                "name": "slow.example.com", "sideEffects": "None", "failurePolicy": "Fail",
                "timeoutSeconds": HANGS.as_secs(), "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "url": webhook.url,
                    "caBundle": ByteString(webhook.certificate.clone().into_bytes()),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                           "resources": ["pods"]}],
            }],
        });
        let configuration = serde_json::from_value(configuration).expect("a configuration");
        Api::<ValidatingWebhookConfiguration>::all(self.client.clone())
            .create(&PostParams::default(), &configuration)
            .await
            .expect("the configuration");
        // A server reads it a moment later.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop().await;
        // They go with the control plane.
        std::mem::forget((self.tenant, self.other));
        self.control_plane.stop().await.expect("the control plane ends");
    }
}

impl Webhook {
    async fn start() -> Self {
        let (acceptor, certificate) = http::self_signed("127.0.0.1");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}/", listener.local_addr().expect("an address"));
        let hangs = Arc::new(AtomicBool::new(true));
        let now = Arc::clone(&hangs);
        let serving = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (acceptor, now) = (acceptor.clone(), Arc::clone(&now));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let uid = review(&mut stream).await;
                    if now.load(Ordering::Relaxed) {
                        tokio::time::sleep(HANGS * 2).await;
                    }
                    let answer = http::answer("200 OK", &later(&uid).to_string());
                    drop(stream.write_all(answer.as_bytes()).await);
                    drop(stream.shutdown().await);
                });
            }
        });
        Self { hangs, url, certificate, _serving: AbortOnDropHandle::new(serving) }
    }
}

/// Reads a review; returns its UID.
async fn review(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Value {
    let mut received = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap_or_default();
        received.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&received);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if let Ok(review) = serde_json::from_str::<Value>(body) {
            return review["request"]["uid"].clone();
        }
        if count == 0 {
            return Value::Null;
        }
    }
}

/// The refusal that asks to come again in 30 s.
fn later(uid: &Value) -> Value {
    let status = json!({"code": 429, "reason": "TooManyRequests", "message": "later",
                        "details": {"retryAfterSeconds": 30}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
           "response": {"uid": uid, "allowed": false, "status": status}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_whose_webhook_hangs_or_asks_to_wait_delays_no_other() {
    let stage = Stage::start().await;
    let webhook = Webhook::start().await;
    stage.register(&webhook).await;
    stage.create(&stage.other, "warm").await;
    stage.first_pod(&stage.other, "warm", SOON).await;
    for (hangs, what) in [(true, "hangs"), (false, "asks to wait")] {
        webhook.hangs.store(hangs, Ordering::Relaxed);
        for number in 0..JOBS {
            stage.create(&stage.tenant, &format!("slow-{hangs}-{number}")).await;
        }
        let mut took = Vec::new();
        for number in 0..30 {
            let name = format!("quick-{hangs}-{number}");
            stage.create(&stage.other, &name).await;
            took.push(stage.first_pod(&stage.other, &name, SOON).await);
        }
        took.sort();
        println!("the webhook {what}: first pods after {:?} and up to {:?}", took[15], took[29]);
        assert!(took[29] < FIRST_POD_MAX, "the webhook {what}: {took:?}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_waits_for_quota_asks_again_soon_after_a_pod_has_ended() {
    let stage = Stage::start().await;
    let quotas: Api<ResourceQuota> = stage.api(&stage.tenant);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    let quota = serde_json::from_value(quota).expect("a quota");
    quotas.create(&PostParams::default(), &quota).await.expect("the quota");
    let used = async || {
        let status = quotas.get("q").await.expect("the quota").status.unwrap_or_default();
        status.used.unwrap_or_default().get("pods").map(|it| it.0.clone())
    };
    eventually("the quota counts", SOON, used, Option::is_some).await;
    let pods: Api<Pod> = stage.api(&stage.tenant);
    let holder = json!({"metadata": {"name": "holder"},
        "spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "none"}]}});
    let holder = serde_json::from_value(holder).expect("a pod");
    pods.create(&PostParams::default(), &holder).await.expect("the pod");
    stage.create(&stage.tenant, "waits").await;
    tokio::time::sleep(REFUSED_FOR).await;
    let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete("holder", &params).await.expect("the deletion");
    let took = stage.first_pod(&stage.tenant, "waits", SOON).await;
    println!("a pod {took:?} after the quota was free");
    assert!(took < QUOTA_MAX, "{took:?}");
    stage.stop().await;
}
