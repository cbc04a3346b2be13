//! Watches the pods of the node in the API.

use std::pin::pin;

use agent_core::pod::PodUid;
use agent_core::protocol::event::Event;
use epilogue_runtime::watch::Signs;
use futures::StreamExt as _;
use kube::Client;
use tokio::sync::{mpsc, watch};

use super::watch::{Closed, Seen, watch};
use super::wire_pod::WirePod;

/// Reports the node's pods until the receiver of events is gone; `hurry` says whether a shutdown is
/// in progress.
pub async fn run(
    client: Client,
    node: &str,
    hurry: watch::Receiver<bool>,
    signs: Signs,
    events: mpsc::Sender<Event>,
) -> Closed {
    let selector = format!("spec.nodeName={node}");
    let mut observed = pin!(watch::<WirePod>(client, "/api/v1/pods", selector, signs, hurry));
    while let Some(seen) = observed.next().await {
        let event = match seen {
            Seen::Listed(pods) => Event::PodsListed(pods.into_iter().map(WirePod::view).collect()),
            Seen::Shown(pod) => Event::PodObserved(Box::new(pod.view())),
            Seen::Gone(uid) => Event::PodGone(PodUid(uid)),
        };
        if events.send(event).await.is_err() {
            break;
        }
    }
    Closed
}
