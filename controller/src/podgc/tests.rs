//! Tests pod GC's shell against a scripted server: the order of requests, and the reaction to
//! replies.

use std::collections::VecDeque;

use controller_core::podgc::{Mode, Settings};
use controller_core::view::WirePod;
use epilogue_runtime::clock::Clock;
use epilogue_runtime::watch::WatchEvent;
use http::{Response, StatusCode};
use jiff::SignedDuration;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::dispatch::Dispatch;
use crate::execute::Executor;

/// The received requests, and the answers that are left.
#[derive(Clone, Default)]
struct Server {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    answers: Arc<Mutex<VecDeque<(u16, Value)>>>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let line = format!("{} {}", request.method(), request.uri());
                let body = request.into_body().collect_bytes().await.expect("must be there");
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                server.asked.lock().push((line, body));
                let answer = server.answers.lock().pop_front();
                let (code, body) = answer.unwrap_or((500, json!({})));
                let status = StatusCode::from_u16(code).expect("must be a status");
                Response::builder().status(status).body(Body::from(body.to_string().into_bytes()))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, code: u16, body: Value) {
        self.answers.lock().push_back((code, body));
    }

    fn lines(&self) -> Vec<String> {
        self.asked.lock().iter().map(|(line, _)| line.clone()).collect()
    }

    fn body(&self, number: usize) -> Value {
        self.asked.lock()[number].1.clone()
    }
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
           "reason": reason, "code": code})
}

fn shown(version: u64) -> WatchEvent<WirePod> {
    let pod = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a",
                     "resourceVersion": version.to_string()},
        "spec": {"nodeName": "gone", "restartPolicy": "Never"},
        "status": {"phase": "Running"},
    });
    WatchEvent::Shown(serde_json::from_value(pod).expect("must be a pod"))
}

/// A worker that knows the pod `a` on a node that does not exist.
fn worker(server: &Server) -> Arc<Worker> {
    counting_worker(server, &Registry::new())
}

fn counting_worker(server: &Server, registry: &Registry) -> Arc<Worker> {
    worker_in(Mode::Alongside, server, registry)
}

fn worker_in(mode: Mode, server: &Server, registry: &Registry) -> Arc<Worker> {
    let settings = Settings { mode, quarantine: SignedDuration::ZERO, ..Settings::default() };
    let dispatch = Dispatch::for_tests(Some(settings));
    dispatch.open(true);
    dispatch.node(WatchEvent::ListBegins);
    dispatch.node(WatchEvent::ListEnds("1".to_owned()));
    dispatch.pod(shown(5));
    let dispatch = Arc::new(dispatch);
    Arc::new(Worker {
        executor: Executor::new(server.client(), Arc::clone(&dispatch), Clock::MACHINE),
        dispatch,
        clock: Clock::MACHINE,
        metrics: Metrics::new(registry).expect("must register"),
        instance: "test".to_owned(),
    })
}

fn ending(worker: &Worker) -> Arc<Queue<Item>> {
    Arc::clone(worker.dispatch.gc.as_ref().expect("must be there").of(Priority::Ending))
}

/// Works until the server has received this many requests.
async fn work_until(worker: &Arc<Worker>, server: &Server, requests: usize) {
    let token = CancellationToken::new();
    let end = async {
        while server.lines().len() < requests {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        token.cancel();
    };
    let queue = ending(worker);
    tokio::join!(queue.work(&**worker, 1, token.clone()), end);
}

const NODE: &str = "GET /api/v1/nodes/gone";
const PATCH: &str = "PATCH /api/v1/namespaces/default/pods/a/status";
const DELETE: &str = "DELETE /api/v1/namespaces/default/pods/a";
const EVENT: &str = "POST /api/v1/namespaces/default/events";

#[tokio::test(start_paused = true)]
async fn the_condition_comes_before_the_deletion_and_both_name_the_pod_that_was_read() {
    let server = Server::default();
    let worker = worker(&server);
    server.answer(404, refusal(404, "NotFound"));
    server.answer(200, json!({"metadata": {"uid": "uid-a", "resourceVersion": "6"}}));
    server.answer(200, json!({}));
    server.answer(201, json!({}));
    work_until(&worker, &server, 4).await;
    assert_eq!(server.lines(), [NODE, PATCH, DELETE, EVENT]);
    let identity = json!({"uid": "uid-a", "resourceVersion": "5"});
    assert_eq!(server.body(1)["metadata"], identity);
    assert_eq!(server.body(1)["status"]["phase"], "Failed");
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "uid-a"}});
    assert_eq!(server.body(2), options);
    assert_eq!(server.body(3)["involvedObject"]["uid"], "uid-a");
}

#[tokio::test(start_paused = true)]
async fn observing_writes_only_an_event_and_only_once() {
    let server = Server::default();
    let registry = Registry::new();
    let worker = worker_in(Mode::Observe, &server, &registry);
    server.answer(404, refusal(404, "NotFound"));
    server.answer(201, json!({}));
    work_until(&worker, &server, 2).await;
    assert_eq!(server.lines(), [NODE, EVENT]);
    let event = server.body(1);
    assert_eq!((&event["type"], &event["reason"]), (&json!("Normal"), &json!("PodWouldFail")));
    let message = "Would be failed and deleted: node no longer exists (--pod-gc=observe)";
    assert_eq!(event["message"], message);
    // The pod changes, and the verdict stays.
    worker.dispatch.pod(shown(6));
    let token = CancellationToken::new();
    let end = async {
        tokio::time::sleep(Duration::from_mins(10)).await;
        token.cancel();
    };
    let queue = ending(&worker);
    tokio::join!(queue.work(&*worker, 1, token.clone()), end);
    assert_eq!(server.lines().len(), 2);
    let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("a page");
    assert!(page.contains("epilogue_pod_gc_would_have_total{action=\"orphaned\"} 1"), "{page}");
    assert!(!page.contains("force_delete_pods_total{"), "{page}");
}

/// Pod GC counts by namespace and reason, under upstream's names with our prefix. ([GC5])
#[tokio::test(start_paused = true)]
async fn deletions_and_errors_are_counted_by_namespace_and_reason() {
    let server = Server::default();
    let registry = Registry::new();
    let worker = counting_worker(&server, &registry);
    server.answer(404, refusal(404, "NotFound"));
    server.answer(500, refusal(500, "InternalError"));
    server.answer(200, json!({"metadata": {"uid": "uid-a", "resourceVersion": "6"}}));
    server.answer(200, json!({}));
    server.answer(201, json!({}));
    work_until(&worker, &server, 5).await;
    let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("a page");
    for name in ["force_delete_pods_total", "force_delete_pod_errors_total"] {
        let line = format!(
            "epilogue_pod_gc_collector_{name}{{namespace=\"default\",reason=\"orphaned\"}} 1"
        );
        assert!(page.contains(&line), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changed_meanwhile_is_judged_again_as_it_is_then() {
    let server = Server::default();
    let worker = worker(&server);
    server.answer(404, refusal(404, "NotFound"));
    server.answer(409, refusal(409, "Conflict"));
    work_until(&worker, &server, 2).await;
    assert_eq!(server.lines(), [NODE, PATCH]);
    worker.dispatch.pod(shown(8));
    server.answer(200, json!({"metadata": {"uid": "uid-a", "resourceVersion": "9"}}));
    assert!(worker.check(&ending(&worker), &Item::Pod("ns".into(), "uid-a".into())).await.is_err());
    assert_eq!(server.lines()[2..], [PATCH, DELETE], "the deletion follows; here it fails");
    assert_eq!(server.body(2)["metadata"]["resourceVersion"], "8");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_failed_is_tried_again_when_the_patch_is_shown() {
    let server = Server::default();
    let worker = worker(&server);
    let item = Item::Pod("ns".into(), "uid-a".into());
    server.answer(404, refusal(404, "NotFound"));
    server.answer(200, json!({"metadata": {"uid": "uid-a", "resourceVersion": "6"}}));
    server.answer(500, refusal(500, "InternalError"));
    assert!(worker.check(&ending(&worker), &item).await.is_err());
    assert!(worker.check(&ending(&worker), &item).await.is_ok(), "the patch is still to be shown");
    assert_eq!(server.lines(), [NODE, PATCH, DELETE]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_another_client_deleted_is_awaited_as_gone() {
    let server = Server::default();
    let worker = worker(&server);
    let item = Item::Pod("ns".into(), "uid-a".into());
    server.answer(404, refusal(404, "NotFound"));
    server.answer(404, refusal(404, "NotFound"));
    assert!(worker.check(&ending(&worker), &item).await.is_ok());
    assert!(worker.check(&ending(&worker), &item).await.is_ok());
    assert_eq!(server.lines(), [NODE, PATCH]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_api_has_or_does_not_answer_for_keeps_its_pods() {
    let server = Server::default();
    let worker = worker(&server);
    let item = Item::Node("gone".into());
    server.answer(500, refusal(500, "InternalError"));
    assert!(worker.check(&ending(&worker), &item).await.is_err());
    // The quarantine of a node that exists starts again, and is zero here.
    for _ in 0..3 {
        server.answer(200, json!({"metadata": {"name": "gone"}}));
    }
    assert!(worker.check(&ending(&worker), &item).await.is_ok());
    assert!(server.lines().iter().all(|line| line == NODE), "{:?}", server.lines());
}
