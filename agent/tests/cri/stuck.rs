//! Tests deleted pods whose kubelet is dead. The core, its driver, the API's sink and the runtime's
//! run together, against an API of one pod and the runtime's double.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_core::agent::{Agent, Enforcement, Features, Settings, Status};
use agent_core::protocol::action::{Action, Notice};
use agent_core::protocol::event::{ActionResult, Event};
use agent_core::protocol::node::{Healthz, KubeletFacts, Unit};
use agent_core::shutdown::candidates::BarePods;
use agent_core::termination::hanging::StuckTimes;
use doubles::cri::{Call, Fault, Script};
use epilogue_agent::clock::Clock;
use epilogue_agent::cri::{Runtime, Stop};
use epilogue_agent::driver::{Driver, Lane, Parts, Shown, Sinks};
use epilogue_agent::metrics::Metrics;
use epilogue_agent::sink::api::{ApiSink, NewestVersions};
use epilogue_agent::source::stop::Stopping;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Node, pod, runtime};

const WITHIN: Duration = Duration::from_secs(20);

/// An API of one pod, which accepts status patches as the real one does.
#[derive(Clone, Debug)]
struct Api {
    pod: Arc<Mutex<Value>>,
    patches: Arc<Mutex<Vec<Value>>>,
}

impl Api {
    fn of(pod: Value) -> Self {
        Self { pod: Arc::new(Mutex::new(pod)), patches: Arc::default() }
    }

    fn sink(&self) -> ApiSink {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        let client = kube::Client::new(service, "default");
        let metrics = Metrics::new(&Registry::new()).expect("must register");
        ApiSink::new(client, "n1".to_owned(), metrics, NewestVersions::default())
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let patched = request.method() == Method::PATCH;
        let bytes = request.into_body().collect_bytes().await.expect("must have a body");
        let mut pod = self.pod.lock().unwrap_or_else(PoisonError::into_inner);
        if patched {
            let patch: Value = serde_json::from_slice(&bytes).expect("must be JSON");
            let version = &patch["metadata"]["resourceVersion"];
            if *version != pod["metadata"]["resourceVersion"] {
                let mut conflict = Response::new(Body::from(b"{}".to_vec()));
                *conflict.status_mut() = StatusCode::CONFLICT;
                return conflict;
            }
            pod["status"]["phase"] = patch["status"]["phase"].clone();
            pod["metadata"]["resourceVersion"] = json!("8");
            self.patches.lock().unwrap_or_else(PoisonError::into_inner).push(patch);
        }
        Response::new(Body::from(pod.to_string().into_bytes()))
    }

    fn phase(&self) -> String {
        let pod = self.pod.lock().unwrap_or_else(PoisonError::into_inner);
        pod["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    fn patches(&self) -> Vec<Value> {
        self.patches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The sinks of the runtime and the API; every other action returns success.
struct Both {
    api: ApiSink,
    runtime: Runtime,
    reported: mpsc::UnboundedSender<Notice>,
}

impl Sinks for Both {
    fn lane(&self, _: &Action) -> Lane {
        Lane::Free
    }

    fn carry_out(&self, action: Action) -> BoxFuture<'static, ActionResult> {
        let (api, runtime) = (self.api.clone(), self.runtime.clone());
        let reported = self.reported.clone();
        async move {
            match action {
                Action::EmitEvent(notice) => {
                    // The receiver is gone after the test.
                    let _ = reported.send(notice);
                    ActionResult::Done(Ok(()))
                }
                Action::InspectPod(pod) => runtime.inspect_pod(&pod).await,
                Action::StopPod { pod, grace_seconds, sidecars, reach, stop_timeout } => {
                    let wanted = Stop { grace_seconds, sidecars: &sidecars, reach, stop_timeout };
                    runtime.stop_pod(&pod, wanted).await
                }
                action @ Action::PatchStatus { .. } => api.carry_out(action).await,
                _ => ActionResult::Done(Ok(())),
            }
        }
        .boxed()
    }
}

/// The running agent, on a node whose kubelet is dead.
struct Site {
    api: Api,
    reported: mpsc::UnboundedReceiver<Notice>,
    status: watch::Receiver<Status>,
    stop: CancellationToken,
    events: mpsc::Sender<Event>,
    agent: JoinHandle<()>,
}

/// A pod of a Job, deleted some seconds ago.
fn deleted(phase: &str, statuses: &Value) -> Value {
    let at = Timestamp::now().saturating_sub(SignedDuration::from_secs(5)).expect("must be a time");
    json!({
        "metadata": {
            "uid": "a", "namespace": "default", "name": "name-of-a", "resourceVersion": "7",
            "deletionTimestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "deletionGracePeriodSeconds": 1,
            "finalizers": ["batch.kubernetes.io/job-tracking"],
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "app"}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    })
}

fn pending() -> Value {
    deleted("Pending", &json!([{"name": "app", "state": {"waiting": {}}}]))
}

fn running() -> Value {
    let state = json!({"running": {"startedAt": "2026-11-21T13:00:00Z"}});
    deleted("Running", &json!([{"name": "app", "state": state}]))
}

fn settings() -> Settings {
    let short = |millis| Duration::from_millis(millis);
    let stuck_times = StuckTimes {
        pace: short(100),
        dead: short(300),
        margin: short(100),
        ..StuckTimes::default()
    };
    Settings {
        boot_id: "boot-1".into(),
        booted_at: None,
        own_pod: None,
        priority_groups: None,
        priority_groups_given: true,
        priority_max: 2_000_000_000,
        bare_pods: BarePods::Leave,
        runtime: true,
        logind: true,
        notices: std::collections::BTreeSet::new(),
        raise_delay: false,
        enforce: true,
        tries_policies: false,
        in_flight_max: 4,
        features: Features { stuck_pods: Enforcement::Enforce, stuck_times, ..Features::default() },
    }
}

impl Site {
    async fn start(node: &Node, object: Value) -> Self {
        let api = Api::of(object);
        let (events, heard) = mpsc::channel(16);
        let (emit_event, reported) = mpsc::unbounded_channel();
        let clock = Clock::new(Arc::default());
        let sinks =
            Both { api: api.sink(), runtime: runtime(node.root.path()), reported: emit_event };
        let read = api.sink().carry_out(Action::ReadPod(pod("a"))).await;
        let ActionResult::Pod(Ok(Some(view))) = read else { panic!("{read:?}") };
        let (shown, status) = watch::channel(Status::default());
        let driver = Driver::new(Parts {
            agent: Agent::new(settings(), &[], clock.now()),
            node: "n1".to_owned(),
            clock: Box::new(move || clock.now()),
            events: heard,
            sinks,
            metrics: Metrics::new(&Registry::new()).expect("must register"),
            shown: Shown { status: shown, hurry: Default::default() },
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let stopped = async move {
            stopped.cancelled().await;
            Stopping::Agent
        };
        let agent = tokio::spawn(async move { driver.run(stopped).await.expect("must run") });
        let facts = KubeletFacts {
            unit: Some(Unit::Inactive),
            healthy: Some(Healthz::Refused),
            lease_age: Some(Duration::from_mins(1)),
            ..KubeletFacts::default()
        };
        for event in [Event::KubeletSeen(facts), Event::PodsListed(vec![*view])] {
            events.send(event).await.expect("must be reported");
        }
        Self { api, reported, status, stop, events, agent }
    }

    async fn until_failed(&self) {
        let begun = Instant::now();
        while self.api.phase() != "Failed" {
            let late = begun.elapsed() > WITHIN;
            assert!(!late, "still {}: {:?}", self.api.phase(), self.status.borrow());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The next event for people.
    async fn reported(&mut self) -> Notice {
        let next = tokio::time::timeout(WITHIN, self.reported.recv()).await;
        let Ok(Some(notice)) = next else { panic!("{next:?} {:?}", self.status.borrow()) };
        notice
    }

    async fn end(self) {
        self.stop.cancel();
        self.agent.await.expect("must not panic");
        drop(self.events);
    }
}

#[tokio::test]
async fn a_pod_deleted_while_pending_is_failed_when_the_runtime_has_nothing_of_it() {
    let node = Node::start();
    let mut site = Site::start(&node, pending()).await;
    site.until_failed().await;
    assert_eq!(site.reported().await.reason, "PodFailedByAgent");
    let patches = site.api.patches();
    assert_eq!(patches.len(), 1, "{patches:?}");
    assert_eq!(patches[0]["metadata"]["uid"], "a");
    assert!(!patches[0].to_string().contains("DisruptionTarget"), "{patches:?}");
    assert_eq!(node.ends(), [""; 0]);
    let lists = node.cri.seen().into_iter().filter(|seen| seen.call == Call::ListPodSandbox);
    assert!(lists.count() >= 2, "{:?}", node.cri.seen());
    site.end().await;
}

#[tokio::test]
async fn the_sandbox_that_a_hanging_image_left_is_stopped_before_the_pod_is_failed() {
    let node = Node::start();
    node.cri.pod("a").start().await;
    let site = Site::start(&node, pending()).await;
    site.until_failed().await;
    assert_eq!(node.ends(), ["StopPodSandbox a"]);
    let state = node.inspect("a").await.expect("must answer");
    assert!(!state.sandbox_ready, "{state:?}");
    site.end().await;
}

#[tokio::test]
async fn a_container_that_exited_in_its_kubelet_s_absence_is_failed_with_its_pod() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Exits(3)).start().await;
    let site = Site::start(&node, running()).await;
    site.until_failed().await;
    assert_eq!(node.ends(), ["StopPodSandbox a"], "what has exited is not stopped");
    site.end().await;
}

#[tokio::test]
async fn a_pod_that_runs_or_succeeded_is_left_and_reported() {
    for (script, words) in
        [(Script::Obedient, "has not exited"), (Script::Exits(0), "exited with 0")]
    {
        let node = Node::start();
        node.cri.pod("a").container("app", script).start().await;
        let mut site = Site::start(&node, running()).await;
        let notice = site.reported().await;
        assert_eq!(notice.reason, "PodStuckTerminating");
        assert!(notice.message.contains(words), "{}", notice.message);
        assert_eq!((site.api.phase().as_str(), node.ends().len()), ("Running", 0));
        site.end().await;
    }
}

#[tokio::test]
async fn a_runtime_that_does_not_answer_proves_nothing() {
    let node = Node::start();
    node.cri.fault(Call::ListPodSandbox, "", Fault::Refuse(tonic::Code::Unavailable));
    let mut site = Site::start(&node, pending()).await;
    let notice = site.reported().await;
    assert!(notice.message.contains("does not answer"), "{}", notice.message);
    assert_eq!(site.api.phase(), "Pending");
    site.end().await;
}
