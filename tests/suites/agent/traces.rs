//! Tests the trace of a disrupted pod: agent and controller write one, without a connection.

use std::time::Duration;

use lab::agent::{Setup, Site};
use lab::bed;
use lab::collector::{Collector, SeenSpan};
use lab::controller::{self, Controller};
use lab::eventually;
use tokio::net::TcpListener;

use super::{SOON, cluster};

const AGENT: &str = "epilogue-agent";
const CONTROLLER: &str = "epilogue-controller";
/// Far more than the lock may wait for a collector, and less than an export's own time limit.
const RELEASE_MAX_S: f64 = 5.0;

async fn site(endpoint: &str) -> Site {
    let arguments = vec![format!("--otlp-endpoint={endpoint}")];
    Site::start(&cluster(), Setup { pods: 0, arguments, ..Setup::default() }).await
}

/// A Job with one pod that runs.
async fn running_pod(site: &Site) -> String {
    let job = bed::job("learning")
        .spec("backoffLimit", 6)
        .spec("podReplacementPolicy", "Failed")
        .script("hang on-term=143 after=100ms");
    site.create_job(job).await;
    let name = site.only_pod_of("learning").await;
    let pod = site.until_phase(&name, "Running").await;
    site.until_metric("pods", 1.0).await;
    pod.metadata.uid.expect("a pod has a UID")
}

async fn controller(site: &Site, endpoint: &str) -> Controller {
    let setup = controller::Setup::debug(&cluster().files(site.namespace()))
        .namespace(site.namespace())
        .argument("--default-job-pod-failure-backoff=2s")
        .argument(&format!("--otlp-endpoint={endpoint}"));
    Controller::start(&cluster(), &setup).await.expect("our controller")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disruption_is_one_trace_of_agent_and_controller() {
    let collector = Collector::start().await.expect("a collector");
    let site = site(&collector.endpoint()).await;
    let mut controller = controller(&site, &collector.endpoint()).await;
    let uid = running_pod(&site).await;
    site.shut_down().await;
    site.released().await;
    let see = async || collector.spans_of(&uid);
    let is_whole = |spans: &Vec<SeenSpan>| spans.len() >= 6;
    let spans = eventually("both halves export their spans", SOON, see, is_whole).await;
    let names = |service: &str| -> Vec<&str> {
        let own = spans.iter().filter(|span| span.service == service);
        own.map(|span| span.name.as_str()).collect()
    };
    let mut agents = names(AGENT);
    agents.sort_unstable();
    assert_eq!(agents, ["pod disruption", "report", "set DisruptionTarget", "terminate"]);
    assert_eq!(names(CONTROLLER), ["create replacement", "start replacement"]);

    let span = |name: &str| spans.iter().find(|span| span.name == name).expect("is there");
    let root = span("pod disruption");
    assert!(root.parent.is_empty(), "{root:?}");
    for child in spans.iter().filter(|span| span.name != root.name) {
        assert_eq!(child.parent, root.id, "{child:?}");
    }
    let steps = ["set DisruptionTarget", "terminate", "report", "start replacement"];
    let mut times = vec![root.begun];
    times.extend(steps.map(|name| span(name).ended));
    assert!(times.is_sorted(), "{times:?}: {spans:?}");
    assert_eq!(root.ended, span("report").ended);

    for (name, value) in [("k8s.node.name", site.node_name()), ("epilogue.cause", "shutdown")] {
        assert_eq!(root.attributes[name], value);
    }
    let started = span("start replacement");
    for (name, value) in [("k8s.job.name", "learning"), ("epilogue.replacement", "count")] {
        assert_eq!(started.attributes[name], value);
    }
    assert_ne!(started.attributes["epilogue.replacement.pod.uid"], uid);
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_never_answers_does_not_hold_the_lock() {
    // The system accepts connections for the listener, which reads nothing.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let site = site(&format!("http://{address}")).await;
    let mut controller = controller(&site, "").await;
    running_pod(&site).await;
    site.shut_down().await;
    site.released().await;
    let reported = site.known_metric("shutdown_reported_seconds").await;
    let released = site.known_metric("shutdown_released_seconds").await;
    assert!(released - reported < RELEASE_MAX_S, "{reported} s and {released} s");
    let see = async || dropped(&site.metrics().await);
    let within = SOON + Duration::from_secs(10);
    eventually("the lost spans are counted", within, see, |lost| *lost >= 4).await;
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    site.stop().await;
}

fn dropped(metrics: &str) -> u64 {
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("epilogue_trace_spans_dropped_total "));
    line.and_then(|value| value.parse().ok()).unwrap_or_default()
}
