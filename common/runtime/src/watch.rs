//! Lists and watches the objects of one kind for ever, as a stream of events. Only this file
//! handles the watch protocol; its reader interprets the events.

mod error;
mod frames;
mod newest;
mod pauses;
pub(crate) mod protobuf;
mod relist;
mod restored;
mod signs;
mod stall;
#[cfg(test)]
mod tests;
pub mod wire;

use std::pin::Pin;
use std::time::Duration;
use std::{mem, vec};

use futures::io::AsyncBufRead;
use futures::{Stream, TryStreamExt as _, stream};
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use self::error::{WatchError, accepted, failed, refused};
use self::frames::{Frames, PAGE_BYTES_MAX};
pub use self::newest::Newest;
pub use self::pauses::Pauses;
use self::pauses::{Backoff, Round};
pub use self::relist::Relist;
use self::restored::{ANSWER_MAX, Check, LOOKUP, Reached, ask};
pub use self::signs::{Signs, Watches};
use self::stall::{Place, Question, Stall, Stalled};
pub use self::wire::Read;
use self::wire::{Event, Format, Page};
pub use epilogue_common::watch_event::{Controller, Unreadable, WatchEvent};

/// How long the server keeps one watch open.
const WATCH_SECONDS: u32 = 290;
/// Minimum duration of a round, so that a server that closes each watch at once is not overloaded.
const ROUND_MIN: Duration = Duration::from_secs(1);
/// A connection without a byte for this long is dead: a bookmark comes each minute.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Scope<T> {
    /// The path of the collection.
    pub path: String,
    /// The path of a collection of the same kind in which the server finds a name without a
    /// search: that of one namespace, if the kind has namespaces.
    pub names: String,
    /// A field selector; `None` selects all objects.
    pub selector: Option<String>,
    /// How to read an object.
    pub read: Read<T>,
    /// `metadata.resourceVersion` of an object.
    pub version: fn(&T) -> &str,
    /// What is known of the kind, from the watch and from other calls.
    pub newest: Newest,
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
    /// Whether a watch that shows nothing new asks for the API's version, to notice that it stands
    /// still. Otherwise it notices that from what the program writes.
    pub asks: bool,
}

/// The state of one watch.
struct Watch<T> {
    client: Client,
    scope: Scope<T>,
    /// The version up to which all changes were yielded; `None` before the first list.
    position: Option<String>,
    reached: Reached,
    streams_lists: bool,
    backoff: Backoff,
    /// The latest relist request when the list began.
    asked: u64,
    /// The latest relist request that a list answers whose end was yielded, and perhaps not handled
    /// yet.
    answered: Option<u64>,
    /// How many objects of an unfinished list were yielded; `None` if there is none.
    listed: Option<usize>,
    /// When the last request for a watch or a list began.
    begun: Instant,
    phase: Phase<T>,
}

/// What a watch waits for.
enum Phase<T> {
    /// Nothing: its next request is due.
    Due,
    /// The objects and further pages of a list.
    Paging(Pages<T>),
    /// The frames of an open watch.
    Streaming(Streaming),
    /// The end of this pause.
    Pausing(Duration),
}

/// A list that is read in pages.
struct Pages<T> {
    /// The objects of the last page that are not yielded yet.
    objects: vec::IntoIter<Result<T, Box<Unreadable>>>,
    /// The token of the next page; `None` after the last one.
    next: Option<String>,
    /// Version of the list.
    version: String,
}

/// An open watch.
struct Streaming {
    frames: Frames<Reader>,
    /// The memory of the last frame.
    frame: Vec<u8>,
    check: Check,
}

/// The body of a reply.
type Reader = Pin<Box<dyn AsyncBufRead + Send>>;

/// All changes of the objects. It never ends: after a failure it goes on where it was, or with a
/// new list.
pub fn watch<T>(client: Client, scope: Scope<T>) -> impl Stream<Item = WatchEvent<T>> + Send
where
    T: Send + 'static,
{
    let demands = scope.relist.demands();
    scope.newest.watched(&scope.signs);
    let watch = Watch {
        client,
        reached: Reached::new(scope.newest.clone()),
        scope,
        position: None,
        streams_lists: true,
        backoff: Backoff::default(),
        asked: 0,
        answered: None,
        listed: None,
        begun: Instant::now(),
        phase: Phase::Due,
    };
    let stall = Stall::new(watch.scope.newest.clone(), watch.question());
    stream::unfold((watch, demands, stall), async |(mut watch, mut demands, mut stall)| {
        let event = watch.next(&mut demands, &mut stall).await;
        Some((event, (watch, demands, stall)))
    })
}

impl<T> Watch<T>
where
    T: Send + 'static,
{
    /// Waits for the next event. The reader has handled the one before.
    async fn next(&mut self, demands: &mut Receiver<u64>, stall: &mut Stall) -> WatchEvent<T> {
        if let Some(asked) = self.answered.take() {
            self.scope.relist.done(asked);
        }
        loop {
            if demands.has_changed().is_ok_and(|changed| changed) {
                self.begin_anew();
            }
            if self.position.is_none() && matches!(self.phase, Phase::Due) {
                self.asked = *demands.borrow_and_update();
            }
            let place = self.place();
            let step = tokio::select! {
                biased;
                step = self.step() => step,
                // A new list must not wait for a stalled connection.
                _ = demands.changed() => {
                    self.begin_anew();
                    continue;
                }
                stalled = stall.stalled(place) => {
                    self.stalled(stalled);
                    continue;
                }
            };
            match step {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(error) => {
                    self.recover(&error);
                    if matches!(error, WatchError::Restored { .. }) {
                        return WatchEvent::Restored;
                    }
                }
            }
        }
    }

    /// Gives up whatever is under way for a new list.
    fn begin_anew(&mut self) {
        self.position = None;
        // The list may be asked for because the API has gone back.
        self.reached.forget();
        self.backoff = Backoff::default();
        self.phase = Phase::Due;
    }

    /// How far an open watch has come.
    fn place(&self) -> Place {
        match (&self.phase, self.listed, &self.position) {
            (Phase::Streaming(_), Some(listed), _) => Place::Listing(listed),
            (Phase::Streaming(_), None, Some(version)) => {
                Place::At(version.parse().unwrap_or_default())
            }
            _ => Place::Closed,
        }
    }

    /// A question for the API's version, where the watch asks.
    fn question(&self) -> Option<Question> {
        let (client, read) = (self.client.clone(), self.scope.read.clone());
        let request = self.lookup().ok().filter(|_| self.scope.asks)?;
        Some(Box::new(move || {
            let (client, read, request) = (client.clone(), read.clone(), request.clone());
            Box::pin(async move {
                let asked = tokio::time::timeout(ANSWER_MAX, ask(&client, request, &read)).await;
                asked.ok()?.ok()?.parse().ok()
            })
        }))
    }

    /// The watch lives and does not move: it gives up for a new list. If lists do not come to an
    /// end either, the next one is read in pages, for which the server asks etcd.
    fn stalled(&mut self, stalled: Stalled) {
        let (path, lasted_s) = (self.scope.path.as_str(), stalled.lasted.as_secs());
        if let Some(version) = stalled.goal {
            tracing::warn!(path, version, lasted_s, "the watch does not move, listing again");
        } else {
            tracing::warn!(path, lasted_s, "the list does not move, reading pages");
            self.streams_lists = false;
        }
        self.scope.signs.stalled(stalled.goal);
        self.position = None;
        self.backoff = Backoff::default();
        self.phase = Phase::Due;
    }

    /// Waits for what the phase waits for. Not every step leads to an event.
    async fn step(&mut self) -> Result<Option<WatchEvent<T>>, WatchError> {
        match &mut self.phase {
            Phase::Due => self.begin().await,
            Phase::Paging(pages) => {
                if let Some(object) = pages.objects.next() {
                    return Ok(Some(self.seen(object, false).1));
                }
                match pages.next.take() {
                    Some(token) => self.next_page(&token).await,
                    None => self.end_pages().map(Some),
                }
            }
            Phase::Streaming(Streaming { frames, frame, check }) => {
                if check.during(frames.next_frame(frame)).await?? {
                    let event = wire::event(frames.format(), frame, &self.scope.read);
                    return self.streamed(event.map_err(WatchError::Garbled)?);
                }
                let lasted = self.begun.elapsed();
                self.reached.ended(check, lasted);
                self.phase = Phase::Pausing(ROUND_MIN.saturating_sub(lasted));
                Ok(None)
            }
            Phase::Pausing(pause) => {
                self.scope.pauses.pause(*pause).await;
                self.phase = Phase::Due;
                Ok(None)
            }
        }
    }

    /// Begins a list, or a watch from the position.
    async fn begin(&mut self) -> Result<Option<WatchEvent<T>>, WatchError> {
        self.begun = Instant::now();
        let lists = self.position.is_none();
        self.listed = lists.then_some(0);
        if lists {
            self.reached.list_begins();
        }
        if lists && !self.streams_lists {
            let next = Some(String::new());
            let objects = Vec::new().into_iter();
            self.phase = Phase::Paging(Pages { objects, next, version: String::new() });
            return Ok(Some(WatchEvent::ListBegins));
        }
        let frames = self.open(self.stream_request()?, lists).await?;
        // The watch is open first: what happens after the answer ends it.
        let check = if lists { Check::default() } else { self.check()? };
        self.phase = Phase::Streaming(Streaming { frames, frame: Vec::new(), check });
        Ok(lists.then_some(WatchEvent::ListBegins))
    }

    /// Takes in an event of an open watch.
    fn streamed(&mut self, event: Event<T>) -> Result<Option<WatchEvent<T>>, WatchError> {
        match event {
            Event::Object { object, gone } => {
                if !gone {
                    self.count(1)?;
                }
                let (version, event) = self.seen(object, gone);
                self.moved(version);
                Ok(Some(event))
            }
            Event::Bookmark { version, ends_list: true } if self.listed.is_some() => {
                self.list_ends(version).map(Some)
            }
            Event::Bookmark { version, .. } if self.listed.is_none() => {
                self.moved(version.clone());
                Ok(Some(WatchEvent::UpTo(version)))
            }
            Event::Bookmark { .. } => Ok(None),
            Event::Error { code, message } => Err(WatchError::reported(code, message)),
        }
    }

    /// The version of an object, and the event that shows it.
    fn seen(&self, object: Result<T, Box<Unreadable>>, gone: bool) -> (String, WatchEvent<T>) {
        match object {
            Ok(object) => {
                let version = (self.scope.version)(&object).to_owned();
                (version, if gone { WatchEvent::Gone(object) } else { WatchEvent::Shown(object) })
            }
            Err(unreadable) => {
                self.scope.signs.failed("unreadable_object");
                (unreadable.version.clone(), WatchEvent::Unreadable(unreadable))
            }
        }
    }

    async fn next_page(&mut self, token: &str) -> Result<Option<WatchEvent<T>>, WatchError> {
        let Page { version, token, objects } = self.page(token).await?;
        self.count(objects.len())?;
        let next = (!token.is_empty()).then_some(token);
        self.phase = Phase::Paging(Pages { objects: objects.into_iter(), next, version });
        Ok(None)
    }

    /// Ends a list whose last page was yielded; the watch from its version is due.
    fn end_pages(&mut self) -> Result<WatchEvent<T>, WatchError> {
        match mem::replace(&mut self.phase, Phase::Due) {
            Phase::Paging(Pages { version, .. }) if !version.is_empty() => self.list_ends(version),
            _ => Err(WatchError::NoVersion),
        }
    }

    fn list_ends(&mut self, version: String) -> Result<WatchEvent<T>, WatchError> {
        self.reached.list_ends(&version)?;
        self.listed = None;
        self.moved(version.clone());
        self.answered = Some(self.asked);
        Ok(WatchEvent::ListEnds(version))
    }

    /// Where a page is too large, this and all later ones have fewer objects.
    async fn page(&mut self, token: &str) -> Result<Page<T>, WatchError> {
        loop {
            let size = self.scope.page_size;
            let bytes_max = if size > 1 { PAGE_BYTES_MAX } else { usize::MAX };
            let mut body = self.open(self.page_request(token)?, false).await?;
            match body.all(bytes_max).await {
                Err(WatchError::LargePage) => self.scope.page_size = (size / 10).max(1),
                bytes => {
                    let page = wire::page(body.format(), &bytes?, &self.scope.read);
                    return page.map_err(WatchError::Garbled);
                }
            }
        }
    }

    /// Sends the request, and returns the reply's body.
    async fn open(
        &mut self,
        request: Request<Vec<u8>>,
        listing: bool,
    ) -> Result<Frames<Reader>, WatchError> {
        let opened = async {
            let response = self.client.send(request.map(Body::from)).await?;
            accepted(response).await
        };
        let opened = tokio::time::timeout(IDLE_MAX, opened).await;
        let response = opened.map_err(|_| WatchError::Idle)?;
        let response = response.map_err(|error| refused(error, listing))?;
        let format = Format::of(response.headers());
        let body = response.into_body().into_data_stream().map_err(std::io::Error::other);
        let reader: Reader = Box::pin(body.into_async_read());
        Ok(Frames::new(reader, format, self.scope.signs.clone()))
    }

    /// A question for the server's version, if it may have gone back.
    fn check(&mut self) -> Result<Check, WatchError> {
        let Some(from) = self.reached.take_doubt() else { return Ok(Check::default()) };
        let request = self.lookup()?;
        let Scope { read, pauses, .. } = &self.scope;
        Ok(Check::new(from, self.client.clone(), request, read.clone(), pauses))
    }

    fn lookup(&self) -> Result<Request<Vec<u8>>, WatchError> {
        self.get_at(format!("{}?{LOOKUP}", self.scope.names))
    }

    /// Counts further objects of an unfinished list.
    fn count(&mut self, more: usize) -> Result<(), WatchError> {
        let Some(listed) = &mut self.listed else { return Ok(()) };
        *listed += more;
        let max = self.scope.objects_max;
        if *listed > max { Err(WatchError::TooMany(max)) } else { Ok(()) }
    }

    /// Records that all changes up to this version were yielded, unless a list is unfinished. An
    /// empty version changes nothing.
    fn moved(&mut self, version: String) {
        if self.listed.is_none() && !version.is_empty() {
            self.reached.moved(&version);
            self.scope.signs.moved(version.parse().unwrap_or_default());
            self.position = Some(version);
        }
    }

    /// Reacts to an error with a pause, so that a failing server is not overloaded.
    fn recover(&mut self, error: &WatchError) {
        let watched = self.listed.is_none() && matches!(self.phase, Phase::Streaming(_));
        self.phase = Phase::Due;
        self.reached.broke();
        let path = self.scope.path.as_str();
        let round = Round { lasted: self.begun.elapsed(), watched };
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
            WatchError::Restored { .. } => {
                tracing::warn!(path, %error, "listing again");
                self.position = None;
                self.reached.forget();
            }
            error => {
                tracing::warn!(path, %error, failures = self.backoff.failures(), "watch failed");
            }
        }
        self.scope.signs.failed(error.reason());
        self.phase = Phase::Pausing(self.backoff.next(&self.scope.pauses, round, error));
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
        self.get_at(format!("{}?{selector}{query}", self.scope.path))
    }

    fn get_at(&self, uri: String) -> Result<Request<Vec<u8>>, WatchError> {
        // A compressed watch has one gzip member per event, which few decoders read.
        let identity = HeaderValue::from_static("identity");
        let request = Request::get(uri)
            .header(header::ACCEPT_ENCODING, identity)
            .header(header::ACCEPT, self.scope.read.accept());
        let request = request.body(Vec::new());
        request.map_err(|error| failed(kube::Error::HttpError(error)))
    }
}
