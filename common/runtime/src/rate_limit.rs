//! Limits requests to the API: an optional token bucket, a time limit for each, and the
//! `Retry-After` that the server sends.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode, header};
use kube::client::Body;
use thiserror::Error;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt as _};

/// Requests that wait for the limit go at multiples of this time, several at once: a process that
/// wakes for each alone needs twice the CPU. The rate stays the same.
const PULSE: Duration = Duration::from_millis(50);

/// How requests are limited. The defaults are client-go's, but without a bucket: a server with
/// priority and fairness needs none.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// Requests per second, and the burst; `None` means no limit.
    pub bucket: Option<(f64, u32)>,
    /// How often one request is retried after a `Retry-After`. With 0 the caller gets the reply at
    /// once: it has better to do than to wait in a request.
    pub retries_max: u32,
    /// Maximum `Retry-After` that is waited for here; with a longer one the caller gets the reply.
    pub wait_max: Duration,
    /// How long a reply may take to begin, except for watches. It is slightly longer than the
    /// server's own `--request-timeout`, so that the server's reply comes first.
    pub reply_max: Duration,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            bucket: None,
            retries_max: 10,
            wait_max: Duration::from_secs(30),
            reply_max: Duration::from_secs(65),
        }
    }
}

/// Why a request has no reply.
#[derive(Debug, Error)]
pub enum RateLimitError {
    /// The reply did not begin in time.
    #[error("no reply within {} s", .0.as_secs())]
    NoReply(Duration),
}

/// A service whose requests are limited.
#[derive(Clone, Debug)]
pub struct RateLimited<S> {
    inner: S,
    rate_limit: RateLimit,
    bucket: Option<Arc<Mutex<Bucket>>>,
}

/// The requests that wait for the limit.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    bucket: Option<Arc<Mutex<Bucket>>>,
}

impl Backlog {
    /// Whether a request waits, or one that came now would.
    pub fn has_waiting(&self) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).left(Instant::now()) < 1.0
        })
    }
}

/// A token bucket. Requests queue by taking tokens in advance.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
    began: Instant,
}

impl Bucket {
    fn new(per_second: f64, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst.max(1));
        Self { per_second, burst, tokens: burst, filled: now, began: now }
    }

    /// The tokens at this time; below zero if requests wait.
    fn left(&self, now: Instant) -> f64 {
        let grown = now.saturating_duration_since(self.filled).as_secs_f64() * self.per_second;
        (self.tokens + grown).min(self.burst)
    }

    /// Takes a token, and returns how long to wait for it. Requests that wait go in pulses.
    fn take(&mut self, now: Instant) -> Duration {
        self.tokens = self.left(now) - 1.0;
        self.filled = now;
        let wait = Duration::try_from_secs_f64(-self.tokens.min(0.0) / self.per_second)
            .unwrap_or(Duration::ZERO);
        if wait.is_zero() {
            return wait;
        }
        let due = now.saturating_duration_since(self.began).saturating_add(wait);
        let late = due.as_nanos() % PULSE.as_nanos();
        let rest = if late == 0 { 0 } else { PULSE.as_nanos() - late };
        wait.saturating_add(Duration::from_nanos(u64::try_from(rest).unwrap_or(0)))
    }
}

impl<S> RateLimited<S> {
    /// Limits the requests to `inner`.
    pub fn new(inner: S, rate_limit: RateLimit) -> Self {
        let bucket = rate_limit.bucket.map(|(per_second, burst)| {
            Arc::new(Mutex::new(Bucket::new(per_second, burst, Instant::now())))
        });
        Self { inner, rate_limit, bucket }
    }

    /// What tells whether requests wait for the limit.
    pub fn backlog(&self) -> Backlog {
        Backlog { bucket: self.bucket.clone() }
    }

    async fn token(&self) {
        let Some(bucket) = &self.bucket else { return };
        let wait = bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        tokio::time::sleep(wait).await;
    }
}

impl<S, B> Service<Request<Body>> for RateLimited<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + Sync,
    S: 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    /// Always ready: each call clones the inner service and waits for the clone.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limited = self.clone();
        Box::pin(async move { limited.send(request).await })
    }
}

impl<S, B> RateLimited<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone,
{
    async fn send(&self, mut request: Request<Body>) -> Result<Response<B>, BoxError> {
        let limit = (!is_watch(&request)).then_some(self.rate_limit.reply_max);
        for sent in 0_u32.. {
            let repeats = self.rate_limit.retries_max > 0 && may_repeat(&request);
            let again = if repeats { copy(&request) } else { None };
            self.token().await;
            let reply = within(limit, self.inner.clone().oneshot(request)).await?;
            let wait = server_wait(reply.status(), reply.headers());
            let (Some(next), Some(wait)) = (again, wait) else { return Ok(reply) };
            if sent >= self.rate_limit.retries_max || wait > self.rate_limit.wait_max {
                return Ok(reply);
            }
            tracing::debug!(uri = %next.uri(), wait_s = wait.as_secs(), "the server asks to wait");
            tokio::time::sleep(wait).await;
            request = next;
        }
        unreachable!("the number of retries must be finite")
    }
}

async fn within<T>(
    limit: Option<Duration>,
    reply: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    match limit {
        None => reply.await,
        Some(limit) => {
            tokio::time::timeout(limit, reply).await.map_err(|_| RateLimitError::NoReply(limit))?
        }
    }
}

/// The wait that the server requests. Only a reply with `Retry-After` says that the request was not
/// carried out; a 5xx without it may follow the write.
fn server_wait(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "follow=true"))
}

/// An eviction's 429 refers to a disruption budget, which the caller must weigh.
fn may_repeat(request: &Request<Body>) -> bool {
    !request.uri().path().ends_with("/eviction")
}

/// The same request; `None` if its body is a stream.
pub(crate) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tower::service_fn;

    const SECOND: Duration = Duration::from_secs(1);

    fn request(uri: &str) -> Request<Body> {
        Request::post(uri).body(Body::from(b"x".to_vec())).expect("must be a request")
    }

    fn reply(code: u16, retry_after: Option<&str>) -> Response<()> {
        let mut reply = Response::builder().status(code);
        if let Some(wait) = retry_after {
            reply = reply.header("Retry-After", wait);
        }
        reply.body(()).expect("must be a response")
    }

    /// Sends to a server that replies with the codes in turn, and repeats the last one. Returns the
    /// last code, the number of requests and the seconds that passed.
    async fn talk(
        uri: &str,
        replies: &'static [(u16, Option<&str>)],
        rate_limit: RateLimit,
    ) -> (u16, u32, u64) {
        let sent = Arc::new(AtomicU32::new(0));
        let counter = sent.clone();
        let server = service_fn(move |_: Request<Body>| {
            let index = counter.fetch_add(1, Ordering::Relaxed) as usize;
            let (code, wait) = replies[index.min(replies.len() - 1)];
            async move { Ok::<_, BoxError>(reply(code, wait)) }
        });
        let started = Instant::now();
        let reply =
            RateLimited::new(server, rate_limit).oneshot(request(uri)).await.expect("must answer");
        let passed = started.elapsed().as_secs();
        (reply.status().as_u16(), sent.load(Ordering::Relaxed), passed)
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_the_server_asks_to_repeat_is_repeated_after_the_wait_it_asks_for() {
        let rate_limit = RateLimit { retries_max: 3, ..RateLimit::default() };
        let busy = &[(429, Some("2")), (503, Some("1")), (201, None)];
        assert_eq!(talk("/pods", busy, rate_limit.clone()).await, (201, 3, 3));
        assert_eq!(talk("/pods", &[(429, Some("1"))], rate_limit.clone()).await, (429, 4, 3));
        assert_eq!(talk("/pods", &[(429, None)], rate_limit.clone()).await, (429, 1, 0));
        assert_eq!(talk("/pods", &[(504, None)], rate_limit.clone()).await, (504, 1, 0));
        assert_eq!(talk("/pods", &[(409, Some("1"))], rate_limit.clone()).await, (409, 1, 0));
        assert_eq!(talk("/pods", &[(429, Some("31"))], rate_limit.clone()).await, (429, 1, 0));
        assert_eq!(talk("/pods/a/eviction", &[(429, Some("1"))], rate_limit).await, (429, 1, 0));
        let none = RateLimit { retries_max: 0, ..RateLimit::default() };
        assert_eq!(talk("/pods", &[(429, Some("1"))], none).await, (429, 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_reply_ends_and_a_watch_does_not() {
        let rate_limit = RateLimit { reply_max: SECOND, ..RateLimit::default() };
        let silent = service_fn(|_: Request<Body>| std::future::pending::<Result<_, BoxError>>());
        let limited = RateLimited::new(silent, rate_limit);
        let error = limited.clone().oneshot(request("/pods")).await.map(|_: Response<()>| ());
        assert_eq!(error.expect_err("must end").to_string(), "no reply within 1 s");
        let watch = limited.oneshot(request("/pods?watch=true&timeoutSeconds=9"));
        assert!(tokio::time::timeout(SECOND * 100, watch).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_lets_a_burst_go_and_then_its_rate() {
        let mut bucket = Bucket::new(2.0, 3, Instant::now());
        let waits = [0, 0, 0, 500, 1_000].map(Duration::from_millis);
        assert_eq!(waits.map(|_| bucket.take(Instant::now())), waits);
        tokio::time::advance(SECOND * 60).await;
        let waits = [0, 0, 0, 500].map(Duration::from_millis);
        assert_eq!(waits.map(|_| bucket.take(Instant::now())), waits);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_go_together_at_the_same_rate() {
        let mut bucket = Bucket::new(100.0, 1, Instant::now());
        bucket.take(Instant::now());
        tokio::time::advance(Duration::from_millis(3)).await;
        let waits: Vec<u128> =
            (0..200).map(|_| bucket.take(Instant::now()).as_millis() + 3).collect();
        assert!(waits.iter().all(|wait| wait % 50 == 0), "{waits:?}");
        assert_eq!(waits[..6], [50, 50, 50, 50, 50, 100]);
        assert_eq!(waits[199], 2_000, "a hundred a second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backlog_shows_whether_requests_wait() {
        let bucket = Some((1.0, 2));
        let service = service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(reply(200, None)) });
        let limited = RateLimited::new(service, RateLimit { bucket, ..RateLimit::default() });
        let backlog = limited.backlog();
        let send = || async { limited.clone().oneshot(request("/pods")).await.expect("a reply") };
        assert!(!backlog.has_waiting());
        send().await;
        assert!(!backlog.has_waiting(), "another one would go at once");
        send().await;
        assert!(backlog.has_waiting());
        tokio::time::advance(SECOND).await;
        assert!(!backlog.has_waiting());
        assert!(!Backlog::default().has_waiting(), "without a limit");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_the_bucket() {
        let rate_limit = RateLimit { bucket: Some((1.0, 1)), ..RateLimit::default() };
        let busy = &[(429, Some("0")), (429, Some("0")), (200, None)];
        assert_eq!(talk("/pods", busy, rate_limit).await, (200, 3, 2));
    }
}
