//! Lists and watches the objects of one kind for ever. Only this file handles the watch protocol;
//! the listener interprets the events.

mod frames;
pub(crate) mod protobuf;
mod relist;
mod signs;
#[cfg(test)]
mod tests;
pub mod wire;

use std::time::Duration;

use epilogue_common::outcome::Failure;
use futures::TryStreamExt as _;
use futures::io::AsyncBufRead;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api_error::classify;

use self::frames::Frames;
pub use self::relist::Relist;
pub use self::signs::{Signs, Watches};
pub use self::wire::Read;
use self::wire::{Event, Format, Page};
pub use epilogue_common::watch_event::{Controller, Unreadable, WatchEvent};

/// How long the server keeps one watch open.
const WATCH_SECONDS: u32 = 290;
/// Minimum duration of a round, so that a server that closes each watch at once is not overloaded.
const ROUND_MIN: Duration = Duration::from_secs(1);
/// A connection without a byte for this long is dead: a bookmark comes each minute.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// The status code for an expired version.
const GONE: u16 = 410;

/// Receives the events of a watch. An error ends the watch.
pub trait Listener<T>: Send {
    /// Handles an event; may wait for capacity.
    fn handle(&mut self, event: WatchEvent<T>) -> impl Future<Output = Result<(), Closed>> + Send;
}

impl<T, F> Listener<T> for F
where
    T: Send,
    F: FnMut(WatchEvent<T>) + Send,
{
    async fn handle(&mut self, event: WatchEvent<T>) -> Result<(), Closed> {
        self(event);
        Ok(())
    }
}

/// The receiver of the events is gone.
#[derive(Clone, Copy, Debug, Error)]
#[error("the receiver of the watch events is closed")]
pub struct Closed;

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Scope<T> {
    /// The path of the collection.
    pub path: String,
    /// A field selector; `None` selects all objects.
    pub selector: Option<String>,
    /// How to read an object.
    pub read: Read<T>,
    /// `metadata.resourceVersion` of an object.
    pub version: fn(&T) -> &str,
    /// Where the watch reports signs of life.
    pub signs: Signs,
    /// Requests for a new list.
    pub relist: Relist,
    /// Objects per page where the server does not stream lists.
    pub page_size: u32,
    /// Maximum of objects in a list; more would mean that the server ignores the selector.
    pub objects_max: usize,
    /// Backoff after failures.
    pub pauses: Pauses,
}

/// How long a watch waits after failures.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// The first pause; doubled with each further failure.
    pub first: Duration,
    /// The maximum pause.
    pub max: Duration,
    /// The maximum pause while `hurry` is true.
    pub hurried_max: Duration,
    /// Whether the watch is urgent; without a channel it never is.
    pub hurry: Option<watch::Receiver<bool>>,
}

#[derive(Debug, Error)]
enum WatchError {
    /// The server no longer has our version.
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
    /// The connection is dead.
    #[error("no byte for {} s, the connection is replaced", IDLE_MAX.as_secs())]
    Idle,
    /// The stream broke off.
    #[error("the stream broke off: {0}")]
    Broken(String),
    /// The server sent something that is neither an event nor a list.
    #[error("the server sent {0}")]
    Garbled(String),
    /// A list has no version.
    #[error("a list came without version")]
    NoVersion,
    /// A list has too many objects.
    #[error("more than {0} objects")]
    TooMany(usize),
    /// The receiver of the events is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The state of one watch.
struct Watch<T, L> {
    client: Client,
    scope: Scope<T>,
    listener: L,
    /// The version up to which all changes were yielded; `None` before the first list.
    position: Option<String>,
    streams_lists: bool,
    failures: u32,
    /// The latest relist request when the round began.
    asked: u64,
}

/// Yields all changes of the objects until the listener is closed.
pub async fn watch<T>(client: Client, scope: Scope<T>, listener: impl Listener<T>) -> Closed
where
    T: Send + 'static,
{
    let mut watch = Watch {
        client,
        scope,
        listener,
        position: None,
        streams_lists: true,
        failures: 0,
        asked: 0,
    };
    let mut demands = watch.scope.relist.demands();
    loop {
        watch.asked = *demands.borrow_and_update();
        tokio::select! {
            closed = watch.go_on() => if let Err(closed) = closed { return closed },
            // A new list must not wait for a stalled connection.
            _ = demands.changed() => {
                watch.position = None;
                watch.failures = 0;
            }
        }
    }
}

impl<T, L> Watch<T, L>
where
    T: Send + 'static,
    L: Listener<T>,
{
    /// Runs one round, and the pause after it.
    async fn go_on(&mut self) -> Result<(), Closed> {
        let begun = Instant::now();
        match self.round().await {
            Ok(()) => tokio::time::sleep_until(begun + ROUND_MIN).await,
            Err(WatchError::Closed(closed)) => return Err(closed),
            Err(error) => self.recover(&error, begun.elapsed()).await,
        }
        Ok(())
    }

    /// Sends one watch request, after a list if one is needed.
    async fn round(&mut self) -> Result<(), WatchError> {
        if self.position.is_none() && !self.streams_lists {
            self.list().await?;
        }
        self.stream().await
    }

    async fn stream(&mut self) -> Result<(), WatchError> {
        let mut listed = self.position.is_none().then_some(0);
        let request = self.stream_request()?;
        let mut body = self.open(request, listed.is_some()).await?;
        if listed.is_some() {
            self.listener.handle(WatchEvent::ListBegins).await?;
        }
        let mut frame = Vec::new();
        while body.next_frame(&mut frame).await? {
            let event = wire::event(body.format(), &frame, &self.scope.read);
            let event = event.map_err(WatchError::Garbled)?;
            match event {
                Event::Object { object, gone } => {
                    if !gone {
                        self.counted(listed.as_mut(), 1)?;
                    }
                    let version = self.object(object, gone).await?;
                    self.moved(version, listed.is_some());
                }
                Event::Bookmark { version, ends_list } if ends_list && listed.is_some() => {
                    listed = None;
                    self.list_ends(&version).await?;
                    self.moved(version, false);
                }
                Event::Bookmark { version, .. } if listed.is_none() => {
                    self.moved(version.clone(), false);
                    self.listener.handle(WatchEvent::UpTo(version)).await?;
                }
                Event::Bookmark { .. } => {}
                Event::Error { code: GONE, .. } => return Err(WatchError::Expired),
                Event::Error { message, .. } => return Err(WatchError::Reported(message)),
            }
        }
        Ok(())
    }

    /// Passes an object to the listener, and returns its version.
    async fn object(
        &mut self,
        object: Result<T, Box<Unreadable>>,
        gone: bool,
    ) -> Result<String, WatchError> {
        let (version, event) = match object {
            Ok(object) => {
                let version = (self.scope.version)(&object).to_owned();
                (version, if gone { WatchEvent::Gone(object) } else { WatchEvent::Shown(object) })
            }
            Err(unreadable) => {
                self.scope.signs.failed("unreadable_object");
                (unreadable.version.clone(), WatchEvent::Unreadable(unreadable))
            }
        };
        self.listener.handle(event).await?;
        Ok(version)
    }

    async fn list(&mut self) -> Result<(), WatchError> {
        self.listener.handle(WatchEvent::ListBegins).await?;
        let (mut listed, mut token) = (0, String::new());
        loop {
            let page = self.page(&token).await?;
            self.counted(Some(&mut listed), page.objects.len())?;
            for object in page.objects {
                self.object(object, false).await?;
            }
            token = page.token;
            if token.is_empty() {
                let version = page.version;
                if version.is_empty() {
                    return Err(WatchError::NoVersion);
                }
                self.list_ends(&version).await?;
                self.moved(version, false);
                return Ok(());
            }
        }
    }

    async fn list_ends(&mut self, version: &str) -> Result<(), Closed> {
        self.listener.handle(WatchEvent::ListEnds(version.to_owned())).await?;
        self.scope.relist.done(self.asked);
        Ok(())
    }

    async fn page(&self, token: &str) -> Result<Page<T>, WatchError> {
        let request = self.page_request(token)?;
        let mut body = self.open(request, false).await?;
        let bytes = body.all().await?;
        wire::page(body.format(), &bytes, &self.scope.read).map_err(WatchError::Garbled)
    }

    /// Sends the request, and returns the reply's body.
    async fn open(
        &self,
        request: Request<Vec<u8>>,
        listing: bool,
    ) -> Result<Frames<impl AsyncBufRead + Unpin + use<T, L>>, WatchError> {
        let opened = async {
            let response = self.client.send(request.map(Body::from)).await?;
            accepted(response).await
        };
        let opened = tokio::time::timeout(IDLE_MAX, opened).await;
        let response = opened.map_err(|_| WatchError::Idle)?;
        let response = response.map_err(|error| refused(error, listing))?;
        let format = Format::of(response.headers());
        let body = response.into_body().into_data_stream().map_err(std::io::Error::other);
        Ok(Frames::new(body.into_async_read(), format, self.scope.signs.clone()))
    }

    /// Counts the objects of an unfinished list.
    fn counted(&self, listed: Option<&mut usize>, more: usize) -> Result<(), WatchError> {
        let Some(listed) = listed else { return Ok(()) };
        *listed += more;
        let max = self.scope.objects_max;
        if *listed > max { Err(WatchError::TooMany(max)) } else { Ok(()) }
    }

    /// Records that all changes up to this version were yielded, unless a list is unfinished. An
    /// empty version changes nothing.
    fn moved(&mut self, version: String, listing: bool) {
        if !listing && !version.is_empty() {
            self.position = Some(version);
        }
    }

    /// Reacts to an error, then pauses so that a failing server is not overloaded. The pause
    /// doubles with each failure, until a round lasts for the maximum pause.
    async fn recover(&mut self, error: &WatchError, held: Duration) {
        let path = self.scope.path.as_str();
        if held >= self.scope.pauses.max {
            self.failures = 0;
        }
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
        self.scope.signs.failed(error.reason());
        let Pauses { first, max, .. } = self.scope.pauses;
        let pause = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(max);
        self.failures = self.failures.saturating_add(1);
        self.scope.pauses.pause(pause).await;
    }

    /// Builds a watch from the position, or a streamed list followed by a watch. The empty
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
        // The server's token consists of URL-safe characters.
        let token = if token.is_empty() { String::new() } else { format!("&continue={token}") };
        self.get(&format!("limit={}{token}", self.scope.page_size))
    }

    fn get(&self, query: &str) -> Result<Request<Vec<u8>>, WatchError> {
        // `=` is the only character in our selectors that needs escaping.
        let selector = self.scope.selector.as_ref().map_or_else(String::new, |selector| {
            format!("fieldSelector={}&", selector.replace('=', "%3D"))
        });
        let uri = format!("{}?{selector}{query}", self.scope.path);
        // A compressed watch has one gzip member per event, which few decoders read.
        let identity = HeaderValue::from_static("identity");
        let request = Request::get(uri)
            .header(header::ACCEPT_ENCODING, identity)
            .header(header::ACCEPT, self.scope.read.accept());
        let request = request.body(Vec::new());
        request.map_err(|error| failed(kube::Error::HttpError(error)))
    }
}

impl WatchError {
    /// The value of the metric's label `reason`.
    fn reason(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NoStreaming => "no_streaming",
            Self::Failed(_) => "request",
            Self::Reported(_) => "reported",
            Self::Idle => "idle",
            Self::Broken(_) => "broken",
            Self::Garbled(_) => "garbled",
            Self::NoVersion => "no_version",
            Self::TooMany(_) => "too_many",
            Self::Closed(_) => "closed",
        }
    }
}

impl Pauses {
    /// Waits for the pause, but at most for `hurried_max` once the watch is urgent.
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

/// Turns a refusal into an error. Its body has the format that the request accepts.
async fn accepted(response: Response<Body>) -> Result<Response<Body>, kube::Error> {
    let code = response.status();
    if !code.is_client_error() && !code.is_server_error() {
        return Ok(response);
    }
    let format = Format::of(response.headers());
    let body = response.into_body().collect_bytes().await?;
    Err(kube::Error::Api(Box::new(wire::refusal(format, &body, code.as_u16()))))
}

fn failed(error: kube::Error) -> WatchError {
    match error {
        kube::Error::Api(status) if status.code == GONE => WatchError::Expired,
        error => WatchError::Failed(classify(error)),
    }
}

/// A server that cannot stream lists answers that the request is invalid.
fn refused(error: kube::Error, listing: bool) -> WatchError {
    match &error {
        kube::Error::Api(status) if listing && matches!(status.code, 400 | 422) => {
            WatchError::NoStreaming
        }
        _ => failed(error),
    }
}
