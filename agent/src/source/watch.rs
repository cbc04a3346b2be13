//! What the agent watches: objects of its node, whole lists at once.

use std::time::Duration;

pub use epilogue_runtime::watch::Deaf;
use epilogue_runtime::watch::{self, Pauses, Relist, Signs};
use kube::Client;
use serde::de::DeserializeOwned;
use tokio::sync::watch::Receiver;

/// Objects per page where the server does not stream lists.
const PAGE_SIZE: u32 = 200;
/// A node has a few hundred pods at most; more would be a selector that the server ignores.
const OBJECTS_MAX: usize = 10_000;
/// The first pause after a failure; doubled with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest pause in a shutdown.
const PAUSE_HURRIED_MAX: Duration = Duration::from_millis(500);

/// An object that can be watched, as slim as its reader likes.
pub(super) trait Watched: DeserializeOwned + Clone + Send + 'static {
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
    /// `metadata.uid`.
    fn uid(&self) -> &str;
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Seen<T> {
    /// All objects that there are.
    Listed(Vec<T>),
    /// An object was added or modified.
    Shown(T),
    /// The object of this UID was deleted.
    Gone(String),
}

/// Whom a watch tells; an error ends the watch, because nobody listens any more.
pub(super) trait Listener<T>: Send {
    /// Takes in what was seen; waits for room.
    fn tell(&mut self, seen: Seen<T>) -> impl Future<Output = Result<(), Deaf>> + Send;
}

/// What to watch.
#[derive(Debug)]
pub(super) struct Scope {
    /// The path of the collection.
    pub(super) path: &'static str,
    /// The field selector.
    pub(super) selector: String,
    /// Where the watch shows that it lives.
    pub(super) signs: Signs,
}

/// Gathers lists until they are whole.
struct Gathered<T, L> {
    listener: L,
    /// What has come of a list that is coming in.
    list: Option<Vec<T>>,
}

impl<T: Watched, L: Listener<T>> watch::Listener<T> for Gathered<T, L> {
    async fn tell(&mut self, seen: watch::Seen<T>) -> Result<(), Deaf> {
        match (seen, &mut self.list) {
            (watch::Seen::ListBegins, list) => *list = Some(Vec::new()),
            (watch::Seen::Shown(object), Some(list)) => list.push(object),
            (watch::Seen::Shown(object), None) => self.listener.tell(Seen::Shown(object)).await?,
            (watch::Seen::Gone(object), _) => {
                self.listener.tell(Seen::Gone(object.uid().to_owned())).await?;
            }
            (watch::Seen::Unreadable(object), _) if object.gone => {
                self.listener.tell(Seen::Gone(object.uid)).await?;
            }
            // What was known of it stays until the next list, which cannot have it.
            (watch::Seen::Unreadable(object), _) => {
                let (namespace, name, error) = (&object.namespace, &object.name, &object.why);
                tracing::error!(namespace, name, error, "an object cannot be read");
            }
            (watch::Seen::ListEnds(_), list) => {
                if let Some(objects) = list.take() {
                    self.listener.tell(Seen::Listed(objects)).await?;
                }
            }
            (watch::Seen::UpTo(_), _) => {}
        }
        Ok(())
    }
}

/// Tells everything that happens to the objects, for as long as somebody listens; `hurry` says
/// that a shutdown is going on.
pub(super) async fn watch<T: Watched>(
    client: Client,
    scope: Scope,
    hurry: Receiver<bool>,
    listener: impl Listener<T>,
) -> Deaf {
    let pauses = Pauses {
        first: PAUSE_BASE,
        max: PAUSE_MAX,
        hurried_max: PAUSE_HURRIED_MAX,
        hurry: Some(hurry),
    };
    let scope = watch::Scope {
        path: scope.path.to_owned(),
        selector: Some(scope.selector),
        read: |text| serde_json::from_str(text),
        version: T::version,
        signs: scope.signs,
        relist: Relist::default(),
        page_size: PAGE_SIZE,
        objects_max: OBJECTS_MAX,
        pauses,
    };
    watch::watch(client, scope, Gathered { listener, list: None }).await
}
