//! What the watches of the node's pods and of the node's own object have in common.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use epilogue_runtime::watch::{self, Newest, Pauses, Read, Relist, Scope, Signs, WatchEvent};
use futures::{Stream, StreamExt as _};
use kube::Client;
use tokio::sync::watch::Receiver;

/// Objects per page if the server does not stream lists: at their largest, they take half of the
/// agent's memory limit.
const PAGE_SIZE: u32 = 20;
/// Maximum number of objects. A node has a few hundred pods at most; with more, the server ignores
/// the selector.
const OBJECTS_MAX: usize = 10_000;
/// The first pause after a failure; doubles with each further failure.
const PAUSE_BASE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest pause in a shutdown.
const PAUSE_HURRIED_MAX: Duration = Duration::from_millis(500);

/// A watch of objects that concern the agent's node.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The node's name.
    pub node: String,
    /// Where it shows that it is alive.
    pub signs: Signs,
    /// Whether a shutdown is in progress.
    pub hurry: Receiver<bool>,
    /// The newest version that is known, also from the answers to the agent's calls.
    pub newest: Newest,
}

/// A kind of objects, and the field of them that names the node.
pub(super) struct Kind {
    /// The path of all objects.
    pub(super) path: &'static str,
    /// The path for lookups by name.
    pub(super) names: &'static str,
    /// The field.
    pub(super) field: &'static str,
}

/// The part of each pause that this node waits, 0.5 to 1. Otherwise thousands of agents, which lose
/// their watches at the same time, would also come back at the same time.
fn part_of(node: &str) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(node);
    0.5 + f64::from(hash as u16) / f64::from(u16::MAX) / 2.0
}

impl Watch {
    /// All changes of the objects of a kind whose field is the node's name, without end.
    pub(super) fn events<T: Send + 'static>(
        self,
        client: Client,
        Kind { path, names, field }: Kind,
        json: fn(&str) -> serde_json::Result<T>,
        version: fn(&T) -> &str,
    ) -> impl Stream<Item = WatchEvent<T>> + Send + use<T> {
        let part = part_of(&self.node);
        let scope = Scope {
            path: path.to_owned(),
            names: names.to_owned(),
            selector: Some(format!("{field}={}", self.node)),
            read: Read { json, protobuf: None },
            version,
            newest: self.newest,
            signs: self.signs,
            relist: Relist::default(),
            page_size: PAGE_SIZE,
            objects_max: OBJECTS_MAX,
            pauses: Pauses {
                first: PAUSE_BASE.mul_f64(part),
                max: PAUSE_MAX.mul_f64(part),
                unconnected_max: PAUSE_MAX.mul_f64(part),
                hurried_max: PAUSE_HURRIED_MAX,
                hurry: Some(self.hurry),
            },
            // Thousands of agents watch objects that rarely change.
            asks: false,
        };
        watch::watch(client, scope).inspect(|event| {
            if let WatchEvent::Unreadable(object) = event
                && !object.gone
            {
                let (namespace, name, error) = (&object.namespace, &object.name, &object.why);
                tracing::error!(namespace, name, error, "an object cannot be read");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_come_back_one_after_the_other() {
        let mut parts: Vec<f64> = (0..1_000).map(|node| part_of(&format!("node-{node}"))).collect();
        assert!(parts.iter().all(|part| (0.5..=1.0).contains(part)));
        parts.sort_by(f64::total_cmp);
        // Of 1,000 nodes at most 50 come in the same 2% of the time.
        let most = parts.windows(50).map(|some| some[49] - some[0]).fold(1.0, f64::min);
        assert!(most > 0.01, "{most}");
    }
}
