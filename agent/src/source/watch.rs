//! Watches objects of the agent's node, and delivers whole lists at once.

use std::collections::HashMap;
use std::time::Duration;

use epilogue_runtime::watch::{self, Pauses, Read, Relist, Scope, Signs, WatchEvent};
use futures::{Stream, StreamExt as _, future};
use kube::Client;
use serde::de::DeserializeOwned;
use thiserror::Error;
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

/// An object that can be watched, reduced to what its reader needs.
pub(super) trait Watched: DeserializeOwned + Clone + Send + 'static {
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
    /// `metadata.uid`.
    fn uid(&self) -> &str;
}

/// What a watch reports.
#[derive(Debug)]
pub(super) enum Seen<T> {
    /// All objects that exist.
    Listed(Vec<T>),
    /// An object was added or modified.
    Shown(T),
    /// The object of this UID was deleted.
    Gone(String),
}

/// The receiver of what was observed is gone.
#[derive(Clone, Copy, Debug, Error)]
#[error("the receiver of the observations is closed")]
pub struct Closed;

/// Collects lists until they are whole.
struct Gathered<T> {
    /// The part of an incoming list that has arrived.
    list: Option<Vec<T>>,
    /// Each object as it was last readable, by UID.
    known: HashMap<String, T>,
}

impl<T: Watched> Gathered<T> {
    fn new() -> Self {
        Self { list: None, known: HashMap::new() }
    }

    fn know(&mut self, object: &T) {
        self.known.insert(object.uid().to_owned(), object.clone());
    }

    /// Takes in an event, and returns what is known by it.
    fn take(&mut self, event: WatchEvent<T>) -> Option<Seen<T>> {
        match event {
            WatchEvent::ListBegins => {
                self.list = Some(Vec::new());
                None
            }
            WatchEvent::Shown(object) => {
                if let Some(list) = &mut self.list {
                    list.push(object);
                    return None;
                }
                self.know(&object);
                Some(Seen::Shown(object))
            }
            WatchEvent::Gone(object) => {
                self.known.remove(object.uid());
                Some(Seen::Gone(object.uid().to_owned()))
            }
            WatchEvent::Unreadable(object) if object.gone => {
                self.known.remove(&object.uid);
                Some(Seen::Gone(object.uid))
            }
            // The object exists: the last readable version stays, in a list too.
            WatchEvent::Unreadable(object) => {
                let (namespace, name, error) = (&object.namespace, &object.name, &object.why);
                tracing::error!(namespace, name, error, "an object cannot be read");
                if let Some(list) = &mut self.list {
                    list.extend(self.known.get(&object.uid).cloned());
                }
                None
            }
            WatchEvent::ListEnds(_) => {
                let objects = self.list.take()?;
                self.known.clear();
                for object in &objects {
                    self.know(object);
                }
                Some(Seen::Listed(objects))
            }
            WatchEvent::UpTo(_) => None,
        }
    }
}

/// All changes of the objects of a path that match the field selector, without end. `signs` show
/// that the watch is alive; `hurry` says whether a shutdown is in progress.
pub(super) fn watch<T: Watched>(
    client: Client,
    path: &str,
    selector: String,
    signs: Signs,
    hurry: Receiver<bool>,
) -> impl Stream<Item = Seen<T>> + Send + use<T> {
    let scope = Scope {
        path: path.to_owned(),
        selector: Some(selector),
        read: Read { json: |text| serde_json::from_str(text), protobuf: None },
        version: T::version,
        signs,
        relist: Relist::default(),
        page_size: PAGE_SIZE,
        objects_max: OBJECTS_MAX,
        pauses: Pauses {
            first: PAUSE_BASE,
            max: PAUSE_MAX,
            hurried_max: PAUSE_HURRIED_MAX,
            hurry: Some(hurry),
        },
    };
    let mut gathered = Gathered::new();
    watch::watch(client, scope).filter_map(move |event| future::ready(gathered.take(event)))
}

#[cfg(test)]
mod tests {
    use epilogue_runtime::watch::Unreadable;
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, Deserialize)]
    struct Object(String);

    impl Watched for Object {
        fn version(&self) -> &str {
            &self.0
        }

        fn uid(&self) -> &str {
            &self.0
        }
    }

    fn words(seen: Seen<Object>) -> String {
        let of = |objects: Vec<Object>| {
            objects.into_iter().map(|object| object.0).collect::<Vec<_>>().join(" ")
        };
        match seen {
            Seen::Listed(objects) => format!("listed {}", of(objects)),
            Seen::Shown(object) => format!("shown {}", object.0),
            Seen::Gone(uid) => format!("gone {uid}"),
        }
    }

    fn unreadable(uid: &str, gone: bool) -> WatchEvent<Object> {
        WatchEvent::Unreadable(Box::new(Unreadable {
            uid: uid.to_owned(),
            gone,
            ..Unreadable::default()
        }))
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_taken_for_gone() {
        let shown = |uid: &str| WatchEvent::Shown(Object(uid.to_owned()));
        let ends = || WatchEvent::ListEnds("1".to_owned());
        let mut gathered = Gathered::new();
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
        ];
        let seen = events.into_iter().filter_map(|event| gathered.take(event)).map(words);
        assert_eq!(seen.collect::<Vec<_>>(), ["listed a b", "listed a c", "gone a", "listed c"]);
    }
}
