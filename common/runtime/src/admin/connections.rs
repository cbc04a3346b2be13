//! Accepts and bounds the admin server's connections. They run on a thread of their own, so that a
//! flood does not slow down the work.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::is_loopback;
use super::scrape::Acceptor;

/// How long a client may take to send the head of its request.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of a request's head, in bytes.
const HEADERS_MAX: usize = 8 * 1024;
/// Maximum duration of a connection, which has one reply.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// How long open requests may take during shutdown; a scrape takes milliseconds.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Maximum of accepted connections per window; others wait in the kernel.
const ACCEPTED_MAX: u32 = 50;
const WINDOW: Duration = Duration::from_millis(100);
/// Pause after an error of `accept`, which usually means too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A listener, and what answers its connections.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    /// Answers clients on the loopback.
    pub(super) near: Router,
    /// Answers all others.
    pub(super) far: Router,
    pub(super) tls: Option<Acceptor>,
    /// Maximum of open connections.
    pub(super) max: usize,
}

/// Answers on a thread of its own until `token` is cancelled. At most `max` connections are open;
/// one more closes the oldest, so that slow clients do not block others.
pub(super) async fn serve(door: Option<Door>, token: CancellationToken) -> io::Result<()> {
    let Some(Door { listener, near, far, tls, max }) = door else {
        token.cancelled().await;
        return Ok(());
    };
    let listener = listener.into_std()?;
    let (ended, end) = oneshot::channel();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = runtime.and_then(|runtime| {
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener)?;
                accept(Door { listener, near, far, tls, max }, &token).await;
                Ok(())
            })
        });
        // The receiver may be gone.
        let _ = ended.send(result);
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(work)?;
    end.await.unwrap_or_else(|_| Err(io::Error::other("the thread of the admin server panicked")))
}

async fn accept(door: Door, token: &CancellationToken) {
    let Door { listener, near, far, tls, max } = door;
    let mut open: JoinSet<()> = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut window = Window { began: Instant::now(), accepted: 0 };
    loop {
        let accepted = tokio::select! {
            () = token.cancelled() => break,
            Some(_) = open.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let router = if is_loopback(peer.ip()) { &near } else { &far };
        oldest_first.retain(|connection| !connection.is_finished());
        if oldest_first.len() >= max
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
        }
        let connection = match tls.as_ref().map(Acceptor::current) {
            None => open.spawn(answer(stream, router.clone())),
            Some(Ok(tls)) => open.spawn(answer_by_tls(tls, stream, router.clone())),
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot answer a scraper");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        oldest_first.push_back(connection);
        window.pass().await;
    }
    drop(listener);
    // Requests without a reply by then are dropped.
    let _ = timeout(DRAIN_MAX, async { while open.join_next().await.is_some() {} }).await;
}

/// Answers one request. Errors of the connection are the client's concern and are ignored.
async fn answer<S>(stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = timeout(CONNECTION_MAX, connection).await;
}

async fn answer_by_tls(tls: TlsAcceptor, stream: TcpStream, router: Router) {
    if let Ok(Ok(stream)) = timeout(HEADERS_WITHIN, tls.accept(stream)).await {
        answer(stream, router).await;
    }
}

/// Limits how often a flood wakes the thread.
struct Window {
    began: Instant,
    accepted: u32,
}

impl Window {
    async fn pass(&mut self) {
        if self.began.elapsed() >= WINDOW {
            *self = Self { began: Instant::now(), accepted: 0 };
        }
        self.accepted += 1;
        if self.accepted >= ACCEPTED_MAX {
            sleep_until(self.began + WINDOW).await;
        }
    }
}
