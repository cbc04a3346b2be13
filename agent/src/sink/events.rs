//! Writes events for people: one attempt each, over the connection for reads. The core alone paces
//! them: how many wait, how many are written at once, and that none about a pod goes out before all
//! pods of a shutdown are marked. Nothing depends on an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent_core::protocol::action::Notice;
use epilogue_common::outcome::Outcome;
use epilogue_runtime::api_error::classify;
use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Map, Value, json};

use crate::calls::{JSON, request, within};
use crate::metrics::Metrics;

/// How long one event may take to be written.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// Maximum bytes of a message in the API's validation.
const NOTE_BYTES_MAX: usize = 1024;
/// The reporting controller; the API wants a qualified name.
const REPORTER: &str = "epilogue.dev/agent";

/// Writes events. Clones share the count.
#[derive(Clone)]
pub struct EventSink {
    client: Client,
    node: String,
    /// How many events were written, or tried.
    count: Arc<AtomicU64>,
    metrics: Metrics,
}

impl EventSink {
    /// A sink for the events of this node's agent.
    pub fn new(client: Client, node: String, metrics: Metrics) -> Self {
        Self { client, node, count: Arc::default(), metrics }
    }

    /// Writes an event of now.
    pub async fn emit(&self, notice: &Notice, now: Timestamp) -> Outcome<()> {
        let written = within(WRITE_MAX, self.write(notice, now)).await;
        if let Err(failure) = &written {
            tracing::debug!(%failure, reason = notice.reason, "event not written");
        }
        self.metrics.event(written.is_ok());
        written
    }

    async fn write(&self, notice: &Notice, now: Timestamp) -> Outcome<()> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let event = event(notice, &self.node, now, number);
        let namespace = notice.pod.as_ref().map_or("default", |pod| pod.namespace.as_str());
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let request = request(Method::POST, &path, Some((JSON, &event)))?;
        self.client.request_text(request).await.map(drop).map_err(classify)
    }
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
}
