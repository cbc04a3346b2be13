//! Lists and watches one kind of object for ever. The only place that knows watch events; what
//! they mean is for the stores.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use controller_core::view::{Version, WirePod};
use epilogue_common::outcome::Failure;
use epilogue_runtime::classify::classify;
use futures::StreamExt as _;
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// Objects per page where the server does not stream lists.
const PAGE_SIZE: u32 = 500;
/// How long the server keeps one watch; it tells when it closes it.
const WATCH_SECONDS: u32 = 290;
/// The first pause after a failure; doubled with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(500);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Marks the bookmark that ends a streamed list.
const LIST_END: &str = "k8s.io/initial-events-end";
/// The code by which the server says that it has forgotten a version.
const GONE: u16 = 410;

/// An object that can be watched.
pub(crate) trait Watched: DeserializeOwned + Clone + Debug + Send + 'static {
    /// The path of its group and version.
    const GROUP: &'static str;
    /// The name of its kind in paths.
    const PLURAL: &'static str;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
}

/// A Job as it came over the wire; whether it parses is found out one by one.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct RawJob(pub(crate) Value);

impl Watched for RawJob {
    const GROUP: &'static str = "/apis/batch/v1";
    const PLURAL: &'static str = "jobs";

    fn version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

impl Watched for WirePod {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "pods";

    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// What a watch tells.
#[derive(Clone, Debug)]
pub(crate) enum Seen<T> {
    /// A list of everything begins; one that was coming in is void.
    ListBegins,
    /// The list has come to its end, and shows all that happened up to this version.
    ListEnds(Version),
    /// An object is there, as part of a list or because it was added or modified.
    Shown(T),
    /// An object was deleted; its version is that of the deletion.
    Gone(T),
    /// Everything that happened up to this version was told.
    UpTo(Version),
}

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

/// One watch.
struct Watch<H> {
    client: Client,
    path: String,
    handle: H,
    /// The version up to which everything was told; none before the first list.
    position: Option<String>,
    streams_lists: bool,
    failures: u32,
}

/// Tells everything that happens to objects of a kind, in one namespace or in all, until `token`
/// is cancelled.
pub(crate) async fn watch<T: Watched>(
    client: Client,
    namespace: Option<&str>,
    token: CancellationToken,
    handle: impl FnMut(Seen<T>) + Send,
) {
    let path = match namespace {
        None => format!("{}/{}", T::GROUP, T::PLURAL),
        Some(namespace) => format!("{}/namespaces/{namespace}/{}", T::GROUP, T::PLURAL),
    };
    let mut watch =
        Watch { client, path, handle, position: None, streams_lists: true, failures: 0 };
    let forever = async {
        loop {
            if let Err(error) = watch.round().await {
                watch.recover(&error).await;
            }
        }
    };
    tokio::select! {
        () = token.cancelled() => {}
        () = forever => {}
    }
}

impl<H: Send> Watch<H> {
    /// One watch request, with a list before it where one is needed.
    async fn round<T: Watched>(&mut self) -> Result<(), WatchError>
    where
        H: FnMut(Seen<T>),
    {
        if self.position.is_none() && !self.streams_lists {
            self.list::<T>().await?;
        }
        self.stream::<T>().await
    }

    async fn stream<T: Watched>(&mut self) -> Result<(), WatchError>
    where
        H: FnMut(Seen<T>),
    {
        let mut listing = self.position.is_none();
        let request = stream_request(&self.path, self.position.as_deref())?;
        let opened = self.client.request_events::<T>(request).await;
        let mut events = pin!(opened.map_err(|error| refused(error, listing))?);
        if listing {
            (self.handle)(Seen::ListBegins);
        }
        while let Some(event) = events.next().await {
            match event.map_err(failed)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.moved(object.version(), listing);
                    (self.handle)(Seen::Shown(object));
                }
                WatchEvent::Deleted(object) => {
                    self.moved(object.version(), listing);
                    (self.handle)(Seen::Gone(object));
                }
                WatchEvent::Bookmark(bookmark) => {
                    let ends = bookmark.metadata.annotations.contains_key(LIST_END);
                    let version = bookmark.metadata.resource_version;
                    let told = Version::parse(&version);
                    if listing && ends {
                        listing = false;
                        self.moved(&version, listing);
                        (self.handle)(Seen::ListEnds(told));
                    } else if !listing {
                        self.moved(&version, listing);
                        (self.handle)(Seen::UpTo(told));
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
        H: FnMut(Seen<T>),
    {
        (self.handle)(Seen::ListBegins);
        let mut token = String::new();
        loop {
            let request = page_request(&self.path, &token)?;
            let page: Page<T> = self.client.request(request).await.map_err(failed)?;
            page.items.into_iter().for_each(|object| (self.handle)(Seen::Shown(object)));
            token = page.metadata.r#continue;
            if token.is_empty() {
                let version = page.metadata.resource_version;
                if version.is_empty() {
                    return Err(WatchError::NoVersion);
                }
                (self.handle)(Seen::ListEnds(Version::parse(&version)));
                self.moved(&version, false);
                return Ok(());
            }
        }
    }

    fn moved(&mut self, version: &str, listing: bool) {
        self.failures = 0;
        if !listing {
            self.position = Some(version.to_owned());
        }
    }

    /// Does what an error asks for, and pauses so that a broken server is not overrun.
    async fn recover(&mut self, error: &WatchError) {
        let path = self.path.as_str();
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
        tokio::time::sleep(pause).await;
    }
}

/// A watch from a position, or of everything there is and from then on.
///
/// An empty `resourceVersion` makes that list a consistent read; a stale one would hide pods
/// that the process before us created, and so lead to more of them. (spec §30)
fn stream_request(
    path: &str,
    position: Option<&str>,
) -> Result<http::Request<Vec<u8>>, WatchError> {
    let from = match position {
        Some(version) => format!("resourceVersion={version}"),
        None => {
            "resourceVersion=&resourceVersionMatch=NotOlderThan&sendInitialEvents=true".to_owned()
        }
    };
    get(&format!(
        "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&{from}"
    ))
}

fn page_request(path: &str, token: &str) -> Result<http::Request<Vec<u8>>, WatchError> {
    // The server makes the token of URL-safe characters.
    let token = if token.is_empty() { String::new() } else { format!("&continue={token}") };
    get(&format!("{path}?limit={PAGE_SIZE}{token}"))
}

fn get(uri: &str) -> Result<http::Request<Vec<u8>>, WatchError> {
    let request = http::Request::get(uri).body(Vec::new());
    request.map_err(|error| failed(kube::Error::HttpError(error)))
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
