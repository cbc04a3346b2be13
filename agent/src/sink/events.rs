//! Writes events for people, in the background when no more important write waits. Nothing depends
//! on events: without room, or without an answer, one is counted and dropped.

use std::sync::Arc;
use std::time::Duration;

use agent_core::agent::Status;
use agent_core::protocol::action::Notice;
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::metrics::{EventFate, Metrics};

/// Maximum number of queued notices. A shutdown emits one for each pod, and a node has a few
/// hundred.
const QUEUE_LENGTH_MAX: usize = 512;
/// How long one event may take to be written.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// How long an event waits for more important writes.
const YIELD_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of a message in the API's validation.
const NOTE_BYTES_MAX: usize = 1024;
/// The reporting controller; the API wants a qualified name.
const REPORTER: &str = "epilogue.dev/agent";

/// The queue's sender.
#[derive(Clone, Debug)]
pub struct EventSink {
    queue: mpsc::Sender<(Timestamp, Notice)>,
    metrics: Metrics,
}

/// Writes the queued events.
pub struct EventWriter {
    client: Client,
    node: Arc<str>,
    queue: mpsc::Receiver<(Timestamp, Notice)>,
    status: watch::Receiver<Status>,
    metrics: Metrics,
}

impl EventSink {
    /// Makes the queue's sender and its writer.
    pub fn new(
        client: Client,
        node: &str,
        status: watch::Receiver<Status>,
        metrics: Metrics,
    ) -> (Self, EventWriter) {
        let (sender, queue) = mpsc::channel(QUEUE_LENGTH_MAX);
        let writer =
            EventWriter { client, node: node.into(), queue, status, metrics: metrics.clone() };
        (Self { queue: sender, metrics }, writer)
    }

    /// Queues a notice; never waits.
    pub fn emit(&self, notice: Notice, at: Timestamp) {
        if self.queue.try_send((at, notice)).is_err() {
            self.metrics.event(EventFate::Dropped);
        }
    }
}

impl EventWriter {
    /// Writes until `token` is cancelled.
    pub async fn run(mut self, token: CancellationToken) {
        tokio::select! {
            () = token.cancelled() => {}
            () = self.write_for_ever() => {}
        }
    }

    async fn write_for_ever(&mut self) {
        let mut number = 0_u64;
        while let Some((at, notice)) = self.queue.recv().await {
            self.give_way().await;
            number = number.wrapping_add(1);
            let fate = match timeout(WRITE_MAX, self.write(&notice, at, number)).await {
                Ok(Ok(())) => EventFate::Written,
                Ok(Err(error)) => {
                    tracing::debug!(%error, reason = notice.reason, "event not written");
                    EventFate::Failed
                }
                Err(_) => EventFate::Failed,
            };
            self.metrics.event(fate);
        }
    }

    /// Waits until no mark, no deletion and no report is in flight. A slow server, or one that
    /// counts requests, has none to spare for events.
    async fn give_way(&mut self) {
        let metrics = self.metrics.clone();
        let quiet = async {
            while self.status.wait_for(is_quiet).await.is_ok() {
                if metrics.api().in_flight() == 0 {
                    return;
                }
                metrics.api().idle().await;
            }
        };
        // An event that waits too long goes out anyway.
        let _ = timeout(YIELD_MAX, quiet).await;
    }

    async fn write(&self, notice: &Notice, at: Timestamp, number: u64) -> Result<(), kube::Error> {
        let event = event(notice, &self.node, at, number);
        let namespace = notice.pod.as_ref().map_or("default", |pod| pod.namespace.as_str());
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(event.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await.map(drop)
    }
}

/// Whether no shutdown is in the middle of its writes.
fn is_quiet(status: &Status) -> bool {
    status
        .shutdown
        .as_ref()
        .is_none_or(|it| it.cancelled || (it.marked_after.is_some() && it.unacknowledged == 0))
}

/// The event's body. The number distinguishes it from others of the same moment. For a node,
/// kubelets use its name as its UID, and kubectl searches for that.
fn event(notice: &Notice, node: &str, at: Timestamp, number: u64) -> Value {
    let (regarding, namespace, name) = if let Some(pod) = &notice.pod {
        let pod_ref = json!({"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace,
                             "name": pod.name, "uid": pod.uid});
        (pod_ref, pod.namespace.as_str(), pod.name.as_str())
    } else {
        let node_ref = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node});
        (node_ref, "default", node)
    };
    let annotations: Map<String, Value> = notice
        .annotations
        .iter()
        .map(|(key, value)| ((*key).into(), value.as_str().into()))
        .collect();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "namespace": namespace,
            "name": format!("{}.{:x}.{number:x}", prefix(name, 200), at.as_nanosecond()),
            "annotations": annotations,
        },
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        "reportingController": REPORTER,
        "reportingInstance": prefix(node, 128),
        "action": notice.reason,
        "reason": notice.reason,
        "regarding": regarding,
        "note": prefix(&notice.message, NOTE_BYTES_MAX),
        "type": if notice.warning { "Warning" } else { "Normal" },
    })
}

/// The beginning of a text, in at most `bytes_max` bytes.
fn prefix(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl std::fmt::Debug for EventWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EventWriter").field("node", &self.node).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::pod::PodUid;
    use agent_core::protocol::action::PodRef;

    fn at() -> Timestamp {
        "2026-11-21T14:05:06.123456789Z".parse().expect("must be a time")
    }

    fn notice(pod: Option<PodRef>, message: String) -> Notice {
        let annotations = Vec::new();
        Notice { pod, warning: true, reason: "ShutdownSeen", message, annotations }
    }

    #[test]
    fn an_event_about_the_node_lies_in_default_and_names_it() {
        let event = event(&notice(None, "why".into()), "n1", at(), 1);
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["regarding"]["kind"], "Node");
        assert_eq!(event["regarding"]["uid"], "n1");
        assert_eq!(event["eventTime"], "2026-11-21T14:05:06.123456Z");
        assert_eq!((&event["type"], &event["note"]), (&json!("Warning"), &json!("why")));
    }

    #[test]
    fn an_event_about_a_pod_lies_alongside_it_and_long_words_are_cut() {
        let uid = PodUid("u".into());
        let pod = PodRef { namespace: "jobs".into(), name: "p".repeat(253), uid };
        let event = event(&notice(Some(pod), "ä".repeat(1024)), "n1", at(), u64::MAX);
        assert_eq!(event["metadata"]["namespace"], "jobs");
        assert_eq!(event["regarding"]["uid"], "u");
        assert_eq!(event["note"].as_str().map(str::len), Some(1024));
        assert!(event["metadata"]["name"].as_str().is_some_and(|name| name.len() <= 253));
    }

    #[test]
    fn what_programs_read_of_an_eviction_is_in_its_annotations() {
        // Parallel lists with commas. ([EV15])
        let annotations =
            vec![("starved_resource", "memory".into()), ("offending_containers", "a,b".into())];
        let notice =
            Notice { annotations, reason: "Evicted", ..notice(None, "The node was low".into()) };
        let event = event(&notice, "n1", at(), 1);
        let expected = json!({"starved_resource": "memory", "offending_containers": "a,b"});
        assert_eq!(event["metadata"]["annotations"], expected);
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("Evicted")));
        assert_eq!(event["reportingController"], REPORTER);
    }

    #[test]
    fn two_events_of_one_moment_have_two_names() {
        let name = |number| {
            event(&notice(None, "why".into()), "n1", at(), number)["metadata"]["name"].clone()
        };
        assert_ne!(name(1), name(2));
    }

    #[test]
    fn events_wait_while_a_shutdown_marks_and_reports() {
        assert!(is_quiet(&Status::default()));
    }
}
