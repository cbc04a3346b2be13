//! Watches the pods of the node in the API, and delivers whole lists at once.

use std::collections::HashMap;
use std::mem;
use std::pin::pin;

use agent_core::pod::{PodUid, PodView};
use agent_core::protocol::event::Event;
use epilogue_runtime::watch::WatchEvent;
use futures::StreamExt as _;
use kube::Client;
use tokio::sync::mpsc;

use super::tell;
use super::watch::{Kind, Watch};
use super::wire_pod::WirePod;

/// Collects lists until they are whole.
#[derive(Default)]
struct Pods {
    /// The part of an incoming list that has arrived.
    list: Option<Vec<PodView>>,
    /// Each pod as it was last readable.
    known: HashMap<PodUid, PodView>,
    /// Whether the API has gone back to an earlier version since the last list.
    restored: bool,
}

impl Pods {
    /// Takes in an event of the watch, and returns what it means to the core.
    fn take(&mut self, event: WatchEvent<PodView>) -> Option<Event> {
        let gone = match event {
            WatchEvent::ListBegins => {
                self.list = Some(Vec::new());
                return None;
            }
            WatchEvent::Shown(pod) => {
                if let Some(list) = &mut self.list {
                    list.push(pod);
                    return None;
                }
                self.known.insert(pod.uid.clone(), pod.clone());
                return Some(Event::PodObserved(Box::new(pod)));
            }
            // The pod exists: its last readable version stays, in a list too.
            WatchEvent::Unreadable(pod) if !pod.gone => {
                let known = self.known.get(&PodUid(pod.uid));
                self.list.as_mut()?.extend(known.cloned());
                return None;
            }
            WatchEvent::ListEnds(_) => {
                let list = self.list.take()?;
                let restored =
                    mem::take(&mut self.restored) || list.iter().any(|it| self.went_back(it));
                self.known = list.iter().map(|pod| (pod.uid.clone(), pod.clone())).collect();
                let event = if restored { Event::PodsRestored } else { Event::PodsListed };
                return Some(event(list));
            }
            WatchEvent::Restored => {
                self.restored = true;
                return None;
            }
            WatchEvent::UpTo(_) => return None,
            WatchEvent::Gone(pod) => pod.uid,
            WatchEvent::Unreadable(pod) => PodUid(pod.uid),
        };
        self.known.remove(&gone);
        Some(Event::PodGone(gone))
    }

    /// Whether a list shows an older version of a pod than the watch did. Lists are consistent
    /// reads, so the API has gone back.
    fn went_back(&self, pod: &PodView) -> bool {
        let version = |pod: &PodView| pod.resource_version.parse::<u64>().ok();
        let known = self.known.get(&pod.uid).and_then(version);
        version(pod).zip(known).is_some_and(|(listed, known)| listed < known)
    }
}

/// Reports the node's pods.
pub async fn run(client: Client, watch: Watch, events: mpsc::Sender<Event>) {
    let read = |text: &str| serde_json::from_str(text).map(WirePod::view);
    let scope = Kind {
        path: "/api/v1/pods",
        names: "/api/v1/namespaces/default/pods",
        field: "spec.nodeName",
    };
    let observed = watch.events(client, scope, read, |pod: &PodView| &pod.resource_version);
    let mut observed = pin!(observed);
    let mut pods = Pods::default();
    while let Some(event) = observed.next().await {
        if let Some(event) = pods.take(event) {
            tell(&events, event).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use epilogue_runtime::watch::Unreadable;
    use serde_json::json;

    use super::*;

    fn shown(uid: &str) -> WatchEvent<PodView> {
        let pod = serde_json::from_value::<WirePod>(json!({"metadata": {"uid": uid}}));
        WatchEvent::Shown(pod.expect("must parse").view())
    }

    fn of_version(uid: &str, version: &str) -> WatchEvent<PodView> {
        let metadata = json!({"uid": uid, "resourceVersion": version});
        let pod = serde_json::from_value::<WirePod>(json!({"metadata": metadata}));
        WatchEvent::Shown(pod.expect("must parse").view())
    }

    fn words(event: Event) -> String {
        let of = |pods: Vec<PodView>| {
            pods.into_iter().map(|pod| pod.uid.0).collect::<Vec<_>>().join(" ")
        };
        match event {
            Event::PodsListed(pods) => format!("listed {}", of(pods)),
            Event::PodsRestored(pods) => format!("restored {}", of(pods)),
            Event::PodObserved(pod) => format!("shown {}", pod.uid.0),
            Event::PodGone(uid) => format!("gone {}", uid.0),
            other => panic!("{other:?}"),
        }
    }

    fn unreadable(uid: &str, gone: bool) -> WatchEvent<PodView> {
        WatchEvent::Unreadable(Box::new(Unreadable {
            uid: uid.to_owned(),
            gone,
            ..Unreadable::default()
        }))
    }

    #[test]
    fn a_list_of_an_api_that_has_gone_back_says_so() {
        let ends = || WatchEvent::ListEnds("1".to_owned());
        let mut pods = Pods::default();
        let events = [
            WatchEvent::ListBegins,
            of_version("a", "50"),
            ends(),
            WatchEvent::ListBegins,
            of_version("a", "50"),
            ends(),
            of_version("a", "60"),
            WatchEvent::ListBegins,
            of_version("a", "50"),
            ends(),
            WatchEvent::Restored,
            WatchEvent::ListBegins,
            of_version("b", "55"),
            ends(),
            WatchEvent::ListBegins,
            of_version("b", "55"),
            ends(),
        ];
        let seen = events.into_iter().filter_map(|event| pods.take(event)).map(words);
        let expected = ["listed a", "listed a", "shown a", "restored a", "restored b", "listed b"];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_pod_that_cannot_be_read_is_not_taken_for_gone() {
        let ends = || WatchEvent::ListEnds("1".to_owned());
        let mut pods = Pods::default();
        let events = [
            WatchEvent::ListBegins,
            shown("a"),
            shown("b"),
            ends(),
            unreadable("a", false),
            WatchEvent::ListBegins,
            unreadable("a", false),
            unreadable("never-read", false),
            shown("c"),
            ends(),
            unreadable("a", true),
            WatchEvent::ListBegins,
            unreadable("a", false),
            shown("c"),
            ends(),
            shown("d"),
        ];
        let seen = events.into_iter().filter_map(|event| pods.take(event)).map(words);
        let expected = ["listed a b", "listed a c", "gone a", "listed c", "shown d"];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
