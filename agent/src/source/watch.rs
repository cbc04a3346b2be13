//! Lists and watches objects of one node for ever. The only place of the agent that knows watch
//! events; what they mean is the core's to say.

use std::pin::pin;
use std::time::Duration;

use epilogue_common::outcome::Failure;
use epilogue_runtime::classify::classify;
use futures::StreamExt as _;
use http::Request;
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

/// Objects per page where the server does not stream lists.
const PAGE_SIZE: usize = 200;
/// A node has a few hundred pods at most; more would be a selector that the server ignores.
const OBJECTS_MAX: usize = 10_000;
/// How long the server keeps one watch; it tells when it closes it.
const WATCH_SECONDS: u32 = 290;
/// A server that closes each watch at once must not be overrun either.
const ROUND_MIN: Duration = Duration::from_secs(1);
/// The first pause after a failure; doubled with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest pause in a shutdown.
const PAUSE_HURRIED_MAX: Duration = Duration::from_millis(500);
/// Marks the bookmark that ends a streamed list.
const LIST_END: &str = "k8s.io/initial-events-end";
/// The code by which the server says that it has forgotten a version.
const GONE: u16 = 410;

/// An object that can be watched, as slim as its reader likes.
pub(super) trait Watched: DeserializeOwned + Clone + Send + 'static {
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Seen<T> {
    /// All objects that there are.
    Listed(Vec<T>),
    /// An object was added or modified.
    Shown(T),
    /// An object was deleted.
    Gone(T),
}

/// Whom a watch tells; an error ends the watch, because nobody listens any more.
pub(super) trait Listener<T>: Send {
    /// Takes in what was seen; waits for room.
    fn tell(&mut self, seen: Seen<T>) -> impl Future<Output = Result<(), Deaf>> + Send;
}

/// Nobody listens any more.
#[derive(Clone, Copy, Debug, Error)]
#[error("nobody listens to the watch any more")]
pub struct Deaf;

#[derive(Debug, Error)]
enum WatchError {
    /// The server has forgotten our position.
    #[error("the version is too old")]
    Expired,
    /// The server does not stream lists.
    #[error("the server does not stream lists")]
    NoStreaming,
    /// The request or the stream failed.
    #[error("{0}")]
    Failed(Failure),
    /// The server reported an error in the stream.
    #[error("the server says: {0}")]
    Reported(String),
    /// A list came without version.
    #[error("a list came without version")]
    NoVersion,
    /// The list has no end.
    #[error("more than {OBJECTS_MAX} objects")]
    TooMany,
    /// There is nobody to tell.
    #[error(transparent)]
    Deaf(#[from] Deaf),
}

#[derive(Debug, Deserialize)]
struct Page<T> {
    metadata: PageMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

/// What to watch.
#[derive(Debug)]
pub(super) struct Scope {
    /// The path of the collection.
    pub(super) path: &'static str,
    /// The field selector.
    pub(super) selector: String,
}

/// One watch.
struct Watch<L> {
    client: Client,
    scope: Scope,
    listener: L,
    /// Whether a shutdown is going on.
    hurry: watch::Receiver<bool>,
    /// The version up to which everything was told; none before the first list.
    position: Option<String>,
    streams_lists: bool,
    failures: u32,
}

/// Tells everything that happens to the objects, for as long as somebody listens.
pub(super) async fn watch<T: Watched>(
    client: Client,
    scope: Scope,
    hurry: watch::Receiver<bool>,
    listener: impl Listener<T>,
) -> Deaf {
    let mut watch =
        Watch { client, scope, listener, hurry, position: None, streams_lists: true, failures: 0 };
    loop {
        let begun = Instant::now();
        match watch.round::<T>().await {
            Ok(()) => watch.rest(begun).await,
            Err(WatchError::Deaf(deaf)) => return deaf,
            Err(error) => watch.recover(&error).await,
        }
    }
}

impl<L> Watch<L> {
    /// One watch request, with a list before it where one is needed.
    async fn round<T: Watched>(&mut self) -> Result<(), WatchError>
    where
        L: Listener<T>,
    {
        if self.position.is_none() && !self.streams_lists {
            self.list::<T>().await?;
        }
        self.stream::<T>().await
    }

    async fn stream<T: Watched>(&mut self) -> Result<(), WatchError>
    where
        L: Listener<T>,
    {
        let mut listing = self.position.is_none().then(Vec::new);
        let request = self.stream_request()?;
        let opened = self.client.request_events::<T>(request).await;
        let streamed = opened.map_err(|error| refused(error, listing.is_some()))?;
        let mut events = pin!(streamed);
        while let Some(event) = events.next().await {
            match event.map_err(failed)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => match &mut listing {
                    Some(list) if list.len() >= OBJECTS_MAX => return Err(WatchError::TooMany),
                    Some(list) => list.push(object),
                    None => {
                        self.moved(object.version());
                        self.listener.tell(Seen::Shown(object)).await?;
                    }
                },
                // A list is of what there is: nothing goes from it.
                WatchEvent::Deleted(object) => {
                    self.moved(object.version());
                    self.listener.tell(Seen::Gone(object)).await?;
                }
                WatchEvent::Bookmark(bookmark) => {
                    let ends = bookmark.metadata.annotations.contains_key(LIST_END);
                    if ends && let Some(list) = listing.take() {
                        self.listener.tell(Seen::Listed(list)).await?;
                    }
                    if listing.is_none() {
                        self.moved(&bookmark.metadata.resource_version);
                    }
                }
                WatchEvent::Error(status) if status.code == GONE => {
                    return Err(WatchError::Expired);
                }
                WatchEvent::Error(status) => return Err(WatchError::Reported(status.message)),
            }
        }
        Ok(())
    }

    async fn list<T: Watched>(&mut self) -> Result<(), WatchError>
    where
        L: Listener<T>,
    {
        let (mut list, mut token) = (Vec::new(), String::new());
        loop {
            let page: Page<T> =
                self.client.request(self.page_request(&token)?).await.map_err(failed)?;
            list.extend(page.items);
            token = page.metadata.r#continue;
            if list.len() > OBJECTS_MAX {
                return Err(WatchError::TooMany);
            }
            if token.is_empty() {
                let version = page.metadata.resource_version;
                if version.is_empty() {
                    return Err(WatchError::NoVersion);
                }
                self.listener.tell(Seen::Listed(list)).await?;
                self.moved(&version);
                return Ok(());
            }
        }
    }

    fn moved(&mut self, version: &str) {
        self.failures = 0;
        self.position = Some(version.to_owned());
    }

    /// The rest of the shortest round, after a watch that the server closed in order.
    async fn rest(&mut self, begun: Instant) {
        tokio::time::sleep_until(begun + ROUND_MIN).await;
    }

    /// Does what an error asks for, and pauses so that a broken server is not overrun.
    async fn recover(&mut self, error: &WatchError) {
        let path = self.scope.path;
        match error {
            WatchError::NoStreaming => {
                tracing::info!(path, "the server does not stream lists, reading pages");
                self.streams_lists = false;
                return;
            }
            WatchError::Expired => {
                tracing::info!(path, "the watch fell behind, listing again");
                self.position = None;
            }
            error => tracing::warn!(path, %error, failures = self.failures, "watch failed"),
        }
        let pause = PAUSE_BASE.saturating_mul(2_u32.saturating_pow(self.failures)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.pause(pause).await;
    }

    /// Waits, but not long once a shutdown is announced.
    async fn pause(&mut self, pause: Duration) {
        let begun = Instant::now();
        tokio::select! {
            () = tokio::time::sleep(pause) => return,
            hurried = self.hurry.wait_for(|hurry| *hurry) => drop(hurried),
        }
        tokio::time::sleep_until(begun + pause.min(PAUSE_HURRIED_MAX)).await;
    }

    /// A watch from a position, or of everything there is and from then on. An empty
    /// `resourceVersion` makes that list a consistent read.
    fn stream_request(&self) -> Result<Request<Vec<u8>>, WatchError> {
        let from = match &self.position {
            Some(version) => format!("resourceVersion={version}"),
            None => "resourceVersion=&resourceVersionMatch=NotOlderThan&sendInitialEvents=true"
                .to_owned(),
        };
        self.get(&format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&{from}"
        ))
    }

    fn page_request(&self, token: &str) -> Result<Request<Vec<u8>>, WatchError> {
        // The server makes the token of URL-safe characters.
        let token = if token.is_empty() { String::new() } else { format!("&continue={token}") };
        self.get(&format!("limit={PAGE_SIZE}{token}"))
    }

    fn get(&self, query: &str) -> Result<Request<Vec<u8>>, WatchError> {
        let Scope { path, selector } = &self.scope;
        // `=` in the selector is the only character that a name of a node does not have.
        let selector = selector.replace('=', "%3D");
        let uri = format!("{path}?fieldSelector={selector}&{query}");
        let request = Request::get(uri).body(Vec::new());
        request.map_err(|error| failed(kube::Error::HttpError(error)))
    }
}

fn failed(error: kube::Error) -> WatchError {
    match error {
        kube::Error::Api(status) if status.code == GONE => WatchError::Expired,
        error => WatchError::Failed(classify(error)),
    }
}

/// A server that does not know how to stream lists calls the request invalid.
fn refused(error: kube::Error, listing: bool) -> WatchError {
    match &error {
        kube::Error::Api(status) if listing && matches!(status.code, 400 | 422) => {
            WatchError::NoStreaming
        }
        _ => failed(error),
    }
}
