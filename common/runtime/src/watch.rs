//! Lists and watches objects of one kind for ever. The only place that knows watch events; what
//! they mean is for those who are told.

use std::marker::PhantomData;
use std::pin::pin;
use std::time::Duration;

use epilogue_common::outcome::Failure;
use futures::StreamExt as _;
use http::Request;
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::classify::classify;

/// How long the server keeps one watch; it tells when it closes it.
const WATCH_SECONDS: u32 = 290;
/// A server that closes each watch at once must not be overrun either.
const ROUND_MIN: Duration = Duration::from_secs(1);
/// Marks the bookmark that ends a streamed list.
const LIST_END: &str = "k8s.io/initial-events-end";
/// The code by which the server says that it has forgotten a version.
const GONE: u16 = 410;

/// What a watch tells. Versions are `resourceVersion`s.
#[derive(Clone, Debug)]
pub enum Seen<T> {
    /// A list of everything begins; one that was coming in is void.
    ListBegins,
    /// The list has come to its end, and shows all that happened up to this version.
    ListEnds(String),
    /// An object is there, as part of a list or because it was added or modified.
    Shown(T),
    /// An object was deleted; its version is that of the deletion.
    Gone(T),
    /// Everything that happened up to this version was told.
    UpTo(String),
}

/// Whom a watch tells; an error ends the watch, because nobody listens any more.
pub trait Listener<T>: Send {
    /// Takes in what was seen; waits for room.
    fn tell(&mut self, seen: Seen<T>) -> impl Future<Output = Result<(), Deaf>> + Send;
}

/// Nobody listens any more.
#[derive(Clone, Copy, Debug, Error)]
#[error("nobody listens to the watch any more")]
pub struct Deaf;

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Scope<T> {
    /// The path of the collection.
    pub path: String,
    /// A field selector, if not everything is to be seen.
    pub selector: Option<String>,
    /// `metadata.resourceVersion` of an object.
    pub version: fn(&T) -> &str,
    /// Objects per page where the server does not stream lists.
    pub page_size: u32,
    /// More would be a selector that the server ignores.
    pub objects_max: usize,
    /// Between failures.
    pub pauses: Pauses,
}

/// How long a watch waits after failures.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// After the first; doubled with each further one.
    pub first: Duration,
    /// At most.
    pub max: Duration,
    /// At most, while something presses.
    pub hurried_max: Duration,
    /// Whether something presses; nothing ever does if there is none.
    pub hurry: Option<watch::Receiver<bool>>,
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
    /// The list has no end.
    #[error("more than {0} objects")]
    TooMany(usize),
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

/// One watch.
struct Watch<T, L> {
    client: Client,
    scope: Scope<T>,
    listener: L,
    /// The version up to which everything was told; none before the first list.
    position: Option<String>,
    streams_lists: bool,
    failures: u32,
    objects: PhantomData<fn() -> T>,
}

/// Tells everything that happens to the objects, for as long as somebody listens.
pub async fn watch<T>(client: Client, scope: Scope<T>, listener: impl Listener<T>) -> Deaf
where
    T: DeserializeOwned + Clone + Send + 'static,
{
    let mut watch = Watch {
        client,
        scope,
        listener,
        position: None,
        streams_lists: true,
        failures: 0,
        objects: PhantomData,
    };
    loop {
        let begun = Instant::now();
        match watch.round().await {
            Ok(()) => tokio::time::sleep_until(begun + ROUND_MIN).await,
            Err(WatchError::Deaf(deaf)) => return deaf,
            Err(error) => watch.recover(&error).await,
        }
    }
}

impl<T, L> Watch<T, L>
where
    T: DeserializeOwned + Clone + Send + 'static,
    L: Listener<T>,
{
    /// One watch request, with a list before it where one is needed.
    async fn round(&mut self) -> Result<(), WatchError> {
        if self.position.is_none() && !self.streams_lists {
            self.list().await?;
        }
        self.stream().await
    }

    async fn stream(&mut self) -> Result<(), WatchError> {
        let mut listed = self.position.is_none().then_some(0);
        let request = self.stream_request()?;
        let opened = self.client.request_events::<T>(request).await;
        let mut events = pin!(opened.map_err(|error| refused(error, listed.is_some()))?);
        if listed.is_some() {
            self.listener.tell(Seen::ListBegins).await?;
        }
        while let Some(event) = events.next().await {
            match event.map_err(failed)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.counted(listed.as_mut(), 1)?;
                    self.moved((self.scope.version)(&object).to_owned(), listed.is_some());
                    self.listener.tell(Seen::Shown(object)).await?;
                }
                WatchEvent::Deleted(object) => {
                    self.moved((self.scope.version)(&object).to_owned(), listed.is_some());
                    self.listener.tell(Seen::Gone(object)).await?;
                }
                WatchEvent::Bookmark(bookmark) => {
                    let ends = bookmark.metadata.annotations.contains_key(LIST_END);
                    let version = bookmark.metadata.resource_version;
                    if ends && listed.take().is_some() {
                        self.listener.tell(Seen::ListEnds(version.clone())).await?;
                        self.moved(version, false);
                    } else if listed.is_none() {
                        self.moved(version.clone(), false);
                        self.listener.tell(Seen::UpTo(version)).await?;
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

    async fn list(&mut self) -> Result<(), WatchError> {
        self.listener.tell(Seen::ListBegins).await?;
        let (mut listed, mut token) = (0, String::new());
        loop {
            let request = self.page_request(&token)?;
            let page: Page<T> = self.client.request(request).await.map_err(failed)?;
            self.counted(Some(&mut listed), page.items.len())?;
            for object in page.items {
                self.listener.tell(Seen::Shown(object)).await?;
            }
            token = page.metadata.r#continue;
            if token.is_empty() {
                let version = page.metadata.resource_version;
                if version.is_empty() {
                    return Err(WatchError::NoVersion);
                }
                self.listener.tell(Seen::ListEnds(version.clone())).await?;
                self.moved(version, false);
                return Ok(());
            }
        }
    }

    /// Counts the objects of a list that comes in.
    fn counted(&self, listed: Option<&mut usize>, more: usize) -> Result<(), WatchError> {
        let Some(listed) = listed else { return Ok(()) };
        *listed += more;
        let max = self.scope.objects_max;
        if *listed > max { Err(WatchError::TooMany(max)) } else { Ok(()) }
    }

    /// Everything up to this version was told, unless a list is still coming in.
    fn moved(&mut self, version: String, listing: bool) {
        self.failures = 0;
        if !listing {
            self.position = Some(version);
        }
    }

    /// Does what an error asks for, and pauses so that a broken server is not overrun.
    async fn recover(&mut self, error: &WatchError) {
        let path = self.scope.path.as_str();
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
        let Pauses { first, max, .. } = self.scope.pauses;
        let pause = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(max);
        self.failures = self.failures.saturating_add(1);
        self.scope.pauses.pause(pause).await;
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
        self.get(&format!("limit={}{token}", self.scope.page_size))
    }

    fn get(&self, query: &str) -> Result<Request<Vec<u8>>, WatchError> {
        // `=` is the only character of a selector of ours that a query would take for its own.
        let selector = self.scope.selector.as_ref().map_or_else(String::new, |selector| {
            format!("fieldSelector={}&", selector.replace('=', "%3D"))
        });
        let uri = format!("{}?{selector}{query}", self.scope.path);
        let request = Request::get(uri).body(Vec::new());
        request.map_err(|error| failed(kube::Error::HttpError(error)))
    }
}

impl Pauses {
    /// Waits, but not long once something presses.
    async fn pause(&mut self, pause: Duration) {
        let begun = Instant::now();
        let hurried = async {
            match &mut self.hurry {
                Some(hurry) => drop(hurry.wait_for(|hurry| *hurry).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => return,
            () = hurried => {}
        }
        tokio::time::sleep_until(begun + pause.min(self.hurried_max)).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Response, StatusCode};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use std::collections::VecDeque;
    use std::sync::Arc;

    /// An API server that gives these answers one after the other, and then none.
    fn server(answers: Vec<(u16, String)>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answers) = (Arc::clone(&asked), Arc::new(Mutex::new(VecDeque::from(answers))));
        let service = tower::service_fn(move |request: Request<Body>| {
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

    #[derive(Clone, Debug, Deserialize)]
    struct Object {
        metadata: ObjectMeta,
    }

    /// Notes down in words what it is told.
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Listener<Object> for Log {
        async fn tell(&mut self, seen: Seen<Object>) -> Result<(), Deaf> {
            self.0.lock().push(words(&seen));
            Ok(())
        }
    }

    fn scope(objects_max: usize) -> Scope<Object> {
        let pauses = Pauses {
            first: Duration::from_millis(500),
            max: Duration::from_secs(30),
            hurried_max: Duration::from_secs(30),
            hurry: None,
        };
        Scope {
            path: "/api/v1/pods".into(),
            selector: Some("spec.nodeName=n1".into()),
            version: |object| object.metadata.resource_version.as_deref().unwrap_or_default(),
            page_size: 500,
            objects_max,
            pauses,
        }
    }

    fn words(seen: &Seen<Object>) -> String {
        let pod = |pod: &Object| pod.metadata.name.clone().unwrap_or_default();
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
        let told = Arc::new(Mutex::new(Vec::new()));
        let watching = watch(client, scope(2), Log(Arc::clone(&told)));
        let end = async {
            while asked.lock().len() < requests {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            deaf = watching => panic!("{deaf}"),
            () = end => {}
        }
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
        assert!(
            asked[1].ends_with("/pods?fieldSelector=spec.nodeName%3Dn1&limit=500"),
            "{}",
            asked[1]
        );
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

    #[tokio::test(start_paused = true)]
    async fn a_list_without_end_is_given_up_and_a_watch_is_none() {
        let three = |kind: &str| {
            let events = ["a", "b", "c"].map(|name| event(kind, &pod(name, 5)));
            events.concat()
        };
        let whole = [bookmark(7, true), three("ADDED")].concat();
        let (told, _) = run(vec![(200, three("ADDED")), (200, whole)]).await;
        let expected =
            ["list", "shown a", "shown b", "list", "listed 7", "shown a", "shown b", "shown c"];
        assert_eq!(told, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_short_once_something_presses() {
        let (sender, receiver) = watch::channel(false);
        let mut pauses = Pauses {
            first: Duration::from_millis(1),
            max: Duration::from_secs(5),
            hurried_max: Duration::from_millis(500),
            hurry: Some(receiver),
        };
        let begun = Instant::now();
        pauses.pause(Duration::from_secs(5)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
        sender.send_replace(true);
        let begun = Instant::now();
        pauses.pause(Duration::from_secs(5)).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(500));
    }
}
