//! Lists and watches one kind of object for ever. The only place that knows watch events; what
//! they mean is for the stores.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use controller_core::podgc::WireNode;
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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Objects per page where the server does not stream lists.
const PAGE_SIZE: u32 = 500;
/// How long the server keeps one watch; it tells when it closes it.
const WATCH_SECONDS: u32 = 290;
/// A server that closes each watch at once must not be overrun either.
const ROUND_MIN: Duration = Duration::from_secs(1);
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

impl Watched for WireNode {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "nodes";

    fn version(&self) -> &str {
        WireNode::version(self)
    }
}

/// A namespace as it came over the wire, reduced to what it can ask for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawNamespace {
    metadata: NamespaceMeta,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamespaceMeta {
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl RawNamespace {
    /// `metadata.name`.
    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }

    /// `metadata.annotations`.
    pub(crate) fn annotations(&self) -> &BTreeMap<String, String> {
        &self.metadata.annotations
    }
}

impl Watched for RawNamespace {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "namespaces";

    fn version(&self) -> &str {
        &self.metadata.resource_version
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
            let begun = Instant::now();
            match watch.round().await {
                Ok(()) => tokio::time::sleep_until(begun + ROUND_MIN).await,
                Err(error) => watch.recover(&error).await,
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;
    use std::collections::VecDeque;
    use std::sync::Arc;

    /// An API server that gives these answers one after the other, and then none.
    fn server(answers: Vec<(u16, String)>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answers) = (Arc::clone(&asked), Arc::new(Mutex::new(VecDeque::from(answers))));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            log.lock().push(request.uri().to_string());
            let answer = answers.lock().pop_front();
            async move {
                let Some((code, body)) = answer else {
                    return std::future::pending().await;
                };
                let status = StatusCode::from_u16(code).expect("must be a status");
                let body = Body::from(body.into_bytes());
                Response::builder().status(status).body(body)
            }
        });
        (Client::new(service, "default"), asked)
    }

    fn pod(name: &str, version: u64) -> Value {
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()}})
    }

    fn event(kind: &str, object: &Value) -> String {
        format!("{}\n", json!({"type": kind, "object": object}))
    }

    fn bookmark(version: u64, ends_list: bool) -> String {
        let annotations = if ends_list { json!({LIST_END: "true"}) } else { json!({}) };
        let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
        event("BOOKMARK", &json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}))
    }

    fn status(code: u16, reason: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
               "reason": reason, "code": code})
    }

    fn words(seen: &Seen<WirePod>) -> String {
        let pod = |pod: &WirePod| pod.metadata.name.clone().unwrap_or_default();
        match seen {
            Seen::ListBegins => "list".to_owned(),
            Seen::ListEnds(version) => format!("listed {version}"),
            Seen::Shown(it) => format!("shown {}", pod(it)),
            Seen::Gone(it) => format!("gone {}", pod(it)),
            Seen::UpTo(version) => format!("up to {version}"),
        }
    }

    /// What is told, and asked for, until nothing more is answered.
    async fn run(answers: Vec<(u16, String)>) -> (Vec<String>, Vec<String>) {
        let requests = answers.len() + 1;
        let (client, asked) = server(answers);
        let (token, told) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&told);
        let watching = watch::<WirePod>(client, None, token.clone(), move |seen| {
            log.lock().push(words(&seen));
        });
        let end = async {
            while asked.lock().len() < requests {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            token.cancel();
        };
        tokio::join!(watching, end);
        let (told, asked) = (told.lock().clone(), asked.lock().clone());
        (told, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_streamed_list_is_a_consistent_read_and_goes_on_as_a_watch() {
        let stream = [
            event("ADDED", &pod("a", 5)),
            bookmark(7, true),
            event("MODIFIED", &pod("a", 8)),
            event("DELETED", &pod("a", 9)),
            bookmark(12, false),
        ];
        let (told, asked) = run(vec![(200, stream.concat())]).await;
        let expected = ["list", "shown a", "listed 7", "shown a", "gone a", "up to 12"];
        assert_eq!(told, expected);
        assert!(asked[0].contains("resourceVersion=&"), "{}", asked[0]);
        assert!(asked[0].contains("sendInitialEvents=true"), "{}", asked[0]);
        assert!(asked[1].ends_with("&resourceVersion=12"), "{}", asked[1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_stream_lists_is_read_in_pages() {
        let page = |token: &str, name: &str| {
            let metadata = json!({"resourceVersion": "7", "continue": token});
            json!({"metadata": metadata, "items": [pod(name, 5)]}).to_string()
        };
        let refusal = status(422, "Invalid").to_string();
        let answers = vec![(422, refusal), (200, page("next", "a")), (200, page("", "b"))];
        let (told, asked) = run(answers).await;
        assert_eq!(told, ["list", "shown a", "shown b", "listed 7"]);
        assert!(asked[1].ends_with("/pods?limit=500"), "{}", asked[1]);
        assert!(asked[2].ends_with("&continue=next"), "{}", asked[2]);
        assert!(asked[3].ends_with("&resourceVersion=7"), "{}", asked[3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_position_leads_to_a_new_list_and_a_failure_does_not() {
        let list = [event("ADDED", &pod("a", 5)), bookmark(7, true)].concat();
        let expired = event("ERROR", &status(410, "Expired"));
        let broken = status(500, "InternalError").to_string();
        let answers = vec![(200, list.clone()), (500, broken), (200, expired), (200, list)];
        let (told, asked) = run(answers).await;
        assert_eq!(told, ["list", "shown a", "listed 7", "list", "shown a", "listed 7"]);
        assert!(asked[1].ends_with("&resourceVersion=7"), "{}", asked[1]);
        assert!(asked[2].ends_with("&resourceVersion=7"), "{}", asked[2]);
        assert!(asked[3].contains("sendInitialEvents=true"), "{}", asked[3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_breaks_off_begins_anew() {
        let half = event("ADDED", &pod("a", 5));
        let whole = [event("ADDED", &pod("b", 6)), bookmark(7, true)].concat();
        let (told, _) = run(vec![(200, half), (200, whole)]).await;
        assert_eq!(told, ["list", "shown a", "list", "shown b", "listed 7"]);
    }
}
