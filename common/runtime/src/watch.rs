//! Lists and watches objects of one kind for ever. The only place that knows watch events; what
//! they mean is for the listener.

mod relist;
mod signs;
#[cfg(test)]
mod tests;
pub mod wire;

use std::pin::pin;
use std::time::Duration;

use epilogue_common::outcome::Failure;
use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use http::{HeaderValue, Request, header};
use kube::Client;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api_error::{chain, classify};

pub use self::relist::Relist;
pub use self::signs::{Signs, Watches};
pub use self::wire::{Controller, Read, Unreadable};
use self::wire::{Event, Page};

/// How long the server keeps one watch; it says when it closes it.
const WATCH_SECONDS: u32 = 290;
/// A server that closes each watch at once must not be overrun either.
const ROUND_MIN: Duration = Duration::from_secs(1);
/// A connection that has shown no byte for so long is dead: bookmarks come each minute.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// The longest line or page: far more than the API stores in an object, or in a page of them.
const BYTES_MAX: usize = 1 << 30;
/// A buffer larger than this is not kept for the next line.
const BUFFER_KEPT_MAX: usize = 1 << 20;
/// The code by which the server says that it has forgotten a version.
const GONE: u16 = 410;

/// What a watch yields. Versions are `resourceVersion`s.
#[derive(Clone, Debug)]
pub enum WatchEvent<T> {
    /// A list of everything begins; one that was coming in is void.
    ListBegins,
    /// The list has come to its end, and shows all that happened up to this version.
    ListEnds(String),
    /// An object is there, as part of a list or because it was added or modified.
    Shown(T),
    /// An object was deleted; its version is that of the deletion.
    Gone(T),
    /// An object is there, or was deleted, that cannot be read.
    Unreadable(Box<Unreadable>),
    /// The watch has yielded everything that happened up to this version.
    UpTo(String),
}

/// Receives the events of a watch. An error ends the watch.
pub trait Listener<T>: Send {
    /// Takes in an event; waits for room.
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
    /// A field selector, if not everything is to be seen.
    pub selector: Option<String>,
    /// Reads an object.
    pub read: Read<T>,
    /// `metadata.resourceVersion` of an object.
    pub version: fn(&T) -> &str,
    /// Where the watch shows that it lives.
    pub signs: Signs,
    /// By which a list is asked for.
    pub relist: Relist,
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
    /// The connection is dead.
    #[error("no byte for {} s, the connection is replaced", IDLE_MAX.as_secs())]
    Idle,
    /// The stream broke off.
    #[error("the stream broke off: {0}")]
    Broken(String),
    /// Something came that is no event and no list.
    #[error("the server sent {0}")]
    Garbled(String),
    /// A list came without version.
    #[error("a list came without version")]
    NoVersion,
    /// The list has no end.
    #[error("more than {0} objects")]
    TooMany(usize),
    /// The receiver of the events is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// One watch.
struct Watch<T, L> {
    client: Client,
    scope: Scope<T>,
    listener: L,
    /// The version up to which everything was yielded; none before the first list.
    position: Option<String>,
    streams_lists: bool,
    failures: u32,
    /// The last demand for a list when the round began.
    asked: u64,
}

/// Yields everything that happens to the objects, until the listener is closed.
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
            // What comes of a connection that stands still would come too late.
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
    /// One round, and the pause after it.
    async fn go_on(&mut self) -> Result<(), Closed> {
        let begun = Instant::now();
        match self.round().await {
            Ok(()) => tokio::time::sleep_until(begun + ROUND_MIN).await,
            Err(WatchError::Closed(closed)) => return Err(closed),
            Err(error) => self.recover(&error, begun.elapsed()).await,
        }
        Ok(())
    }

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
        let mut lines = pin!(self.open(request, listed.is_some()).await?);
        if listed.is_some() {
            self.listener.handle(WatchEvent::ListBegins).await?;
        }
        let mut line = Vec::new();
        while self.next_line(&mut lines, &mut line).await? {
            let event = wire::event(&line, self.scope.read).map_err(WatchError::Garbled)?;
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

    /// Tells of an object, and gives its version.
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
        let mut body = pin!(self.open(request, false).await?);
        let mut bytes = Vec::new();
        while self.next_bytes(&mut body, &mut bytes, |_| false).await? != Came::End {}
        wire::page(&bytes, self.scope.read).map_err(WatchError::Garbled)
    }

    /// The body of the answer.
    async fn open(
        &self,
        request: Request<Vec<u8>>,
        listing: bool,
    ) -> Result<impl AsyncBufRead + use<T, L>, WatchError> {
        let opened = tokio::time::timeout(IDLE_MAX, self.client.request_stream(request)).await;
        let body = opened.map_err(|_| WatchError::Idle)?;
        let body = body.map_err(|error| refused(error, listing))?;
        self.scope.signs.alive();
        Ok(body)
    }

    /// Reads the next line; false at the end. Half a line at the end is what a server leaves that
    /// ends: it comes again.
    async fn next_line(
        &self,
        body: &mut (impl AsyncBufRead + Unpin),
        line: &mut Vec<u8>,
    ) -> Result<bool, WatchError> {
        line.clear();
        line.shrink_to(BUFFER_KEPT_MAX);
        loop {
            match self.next_bytes(body, line, |byte| byte == b'\n').await? {
                Came::Delimiter => return Ok(true),
                Came::Bytes => {}
                Came::End => return Ok(false),
            }
        }
    }

    /// Appends what comes next, up to the first byte that is a delimiter.
    async fn next_bytes(
        &self,
        body: &mut (impl AsyncBufRead + Unpin),
        bytes: &mut Vec<u8>,
        is_delimiter: impl Fn(u8) -> bool,
    ) -> Result<Came, WatchError> {
        let came = tokio::time::timeout(IDLE_MAX, body.fill_buf()).await;
        let came = came.map_err(|_| WatchError::Idle)?;
        let came = came.map_err(|error| WatchError::Broken(chain(&error)))?;
        if came.is_empty() {
            return Ok(Came::End);
        }
        let end = came.iter().position(|byte| is_delimiter(*byte));
        let taken = end.unwrap_or(came.len());
        bytes.extend_from_slice(&came[..taken]);
        body.consume_unpin(taken + usize::from(end.is_some()));
        self.scope.signs.alive();
        if bytes.len() > BYTES_MAX {
            return Err(WatchError::Garbled(format!("more than {BYTES_MAX} bytes at once")));
        }
        Ok(if end.is_some() { Came::Delimiter } else { Came::Bytes })
    }

    /// Counts the objects of a list that comes in.
    fn counted(&self, listed: Option<&mut usize>, more: usize) -> Result<(), WatchError> {
        let Some(listed) = listed else { return Ok(()) };
        *listed += more;
        let max = self.scope.objects_max;
        if *listed > max { Err(WatchError::TooMany(max)) } else { Ok(()) }
    }

    /// Everything up to this version was yielded, unless a list is still coming in. An object whose
    /// version cannot be read moves nothing.
    fn moved(&mut self, version: String, listing: bool) {
        if !listing && !version.is_empty() {
            self.position = Some(version);
        }
    }

    /// Does what an error asks for, and pauses so that a broken server is not overrun: the longer
    /// the oftener it fails, until a round has held for as long as the longest pause.
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
        // Compressed streams of watches have a member for each event, which few can read.
        let identity = HeaderValue::from_static("identity");
        let request = Request::get(uri).header(header::ACCEPT_ENCODING, identity);
        let request = request.body(Vec::new());
        request.map_err(|error| failed(kube::Error::HttpError(error)))
    }
}

/// What came of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Bytes, and no delimiter yet.
    Bytes,
    /// The delimiter, and what was before it.
    Delimiter,
    /// Nothing more.
    End,
}

impl WatchError {
    /// The metric's word.
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
            Self::Closed(_) => "deaf",
        }
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
