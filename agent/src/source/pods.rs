//! Watches the pods of the node in the API.

use agent_core::pod::PodUid;
use agent_core::protocol::event::Event;
use epilogue_runtime::watch::Signs;
use kube::Client;
use tokio::sync::{mpsc, watch};

use super::watch::{Closed, Listener, Scope, Seen, watch};
use super::wire_pod::WirePod;

struct Pods(mpsc::Sender<Event>);

impl Listener<WirePod> for Pods {
    async fn deliver(&mut self, seen: Seen<WirePod>) -> Result<(), Closed> {
        let event = match seen {
            Seen::Listed(pods) => Event::PodsListed(pods.into_iter().map(WirePod::view).collect()),
            Seen::Shown(pod) => Event::PodObserved(Box::new(pod.view())),
            Seen::Gone(uid) => Event::PodGone(PodUid(uid)),
        };
        self.0.send(event).await.map_err(|_| Closed)
    }
}

/// Reports the node's pods until the receiver of events is gone; `hurry` says whether a shutdown is
/// in progress.
pub async fn run(
    client: Client,
    node: &str,
    hurry: watch::Receiver<bool>,
    signs: Signs,
    events: mpsc::Sender<Event>,
) -> Closed {
    let scope = Scope { path: "/api/v1/pods", selector: format!("spec.nodeName={node}"), signs };
    watch(client, scope, hurry, Pods(events)).await
}
