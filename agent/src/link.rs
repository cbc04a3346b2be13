//! Keeps one HTTP/2 connection to the API open, so that the first write of a shutdown needs no
//! handshake. Connects before the first request, sends pings, and reconnects at once when the
//! connection breaks. Does not know the requests on it.
//!
//! hyper-util's pool cannot replace a connection whose path is dead before its own pings fail. With
//! the pings that are sent here, writes went through again 2.7 to 6.4 s after the path died; over
//! this link after 1.1 to 1.4 s, which is one attempt. logind grants 5 s by default. A pool that
//! pings each second, and waits as long for the reply, takes 1.3 to 1.7 s. It would send five times
//! the pings from every node, and give up a server that is only slow.

mod connect;

use std::error::Error as _;
use std::iter::successors;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use kube::client::Body;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tower::{BoxError, Service};

pub use connect::{ConnectError, Target};
use connect::{Heard, Opened};

/// First pause after a failed connect; doubles with each further failure.
const PAUSE_BASE: Duration = Duration::from_millis(100);
/// Longest pause while no request waits for the connection.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest pause while a request waits.
const PAUSE_WANTED_MAX: Duration = Duration::from_millis(500);
/// After a connection that lasted this long, pauses start small again.
const HELD_MIN: Duration = Duration::from_secs(1);
/// If a request is given up after this time without a byte received, the connection is dead. After
/// less, the caller only gave up early.
const SILENCE_MIN: Duration = Duration::from_millis(900);

/// Why a request could not be sent.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The connection broke between two requests, or with this one on it.
    #[error("the connection to {0} broke")]
    Broken(String, #[source] hyper::Error),
    /// The keeper has ended.
    #[error("the connection to {0} is closed for good")]
    Closed(String),
}

/// A connection for requests. Clones share it.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    line: watch::Sender<Option<Line>>,
    /// Notified when a request waits for a connection.
    wanted: Notify,
    /// The number of the connection to replace.
    dead: watch::Sender<u64>,
}

/// One connection, while it lasts.
#[derive(Clone)]
struct Line {
    number: u64,
    sender: SendRequest<Body>,
    heard: Heard,
}

/// How long the reply took to begin, stored on the reply.
#[derive(Clone, Copy, Debug)]
pub struct Took(pub Duration);

/// Guards a request: dropped without a reply, it may mark the connection as dead.
struct Unanswered {
    shared: Arc<Shared>,
    number: u64,
    heard: Heard,
    heard_before: u64,
    begun: Instant,
    answered: bool,
}

impl Link {
    /// A link that connects once `keep` runs.
    pub fn new(target: Target) -> Self {
        let (line, dead) = (watch::Sender::new(None), watch::Sender::new(0));
        Self { shared: Arc::new(Shared { target, line, wanted: Notify::new(), dead }) }
    }

    /// Keeps the connection for as long as it runs.
    pub async fn keep(&self) {
        self.shared.keep().await;
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        let mut line = self.shared.line().await?;
        let mut guard = Unanswered::new(&self.shared, &line);
        let mut reply = line.sender.send_request(request).await;
        guard.answered = true;
        if let Ok(reply) = &mut reply {
            reply.extensions_mut().insert(Took(guard.begun.elapsed()));
        }
        reply.map_err(|source| LinkError::Broken(self.shared.target.to_string(), source).into())
    }
}

impl Shared {
    /// Waits for a connection.
    async fn line(&self) -> Result<Line, LinkError> {
        let mut lines = self.line.subscribe();
        loop {
            if let Some(line) = lines.borrow_and_update().clone()
                && !line.sender.is_closed()
            {
                return Ok(line);
            }
            self.wanted.notify_one();
            if lines.changed().await.is_err() {
                return Err(LinkError::Closed(self.target.to_string()));
            }
        }
    }

    async fn keep(&self) {
        let mut failures = 0;
        for number in 1.. {
            match self.target.open().await {
                Ok(opened) => {
                    let begun = Instant::now();
                    self.hold(number, opened).await;
                    if begun.elapsed() >= HELD_MIN {
                        failures = 0;
                    }
                }
                Err(error) => {
                    let causes = successors(error.source(), |&cause| cause.source());
                    let causes: Vec<_> = causes.map(ToString::to_string).collect();
                    let source = causes.join(": ");
                    tracing::warn!(%error, source, failures, "no connection to the API");
                }
            }
            self.pause(failures).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Offers the connection until it breaks or counts as dead.
    async fn hold(&self, number: u64, opened: Opened) {
        let Opened { sender, connection, heard } = opened;
        let mut dead = self.dead.subscribe();
        self.line.send_replace(Some(Line { number, sender, heard }));
        tracing::debug!(target = %self.target, number, "connected to the API");
        tokio::select! {
            ended = connection => match ended {
                Ok(()) => tracing::info!("the API closed the connection"),
                Err(error) => tracing::warn!(%error, "the connection to the API broke"),
            },
            _ = dead.wait_for(|dead| *dead >= number) => {
                tracing::warn!("the API is silent, reconnecting");
            }
        }
        self.line.send_replace(None);
    }

    async fn pause(&self, failures: u32) {
        let pause = PAUSE_BASE.saturating_mul(2_u32.saturating_pow(failures));
        let begun = Instant::now();
        tokio::select! {
            () = tokio::time::sleep(pause.min(PAUSE_MAX)) => return,
            () = self.wanted.notified() => {}
        }
        tokio::time::sleep_until(begun + pause.min(PAUSE_WANTED_MAX)).await;
    }
}

impl Unanswered {
    fn new(shared: &Arc<Shared>, line: &Line) -> Self {
        Self {
            shared: Arc::clone(shared),
            number: line.number,
            heard_before: line.heard.bytes(),
            heard: line.heard.clone(),
            begun: Instant::now(),
            answered: false,
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let silent = self.heard.bytes() == self.heard_before;
        if !self.answered && silent && self.begun.elapsed() >= SILENCE_MIN {
            self.shared.dead.send_if_modified(|dead| {
                let newer = self.number > *dead;
                *dead = self.number.max(*dead);
                newer
            });
        }
    }
}

impl Service<Request<Body>> for Link {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
