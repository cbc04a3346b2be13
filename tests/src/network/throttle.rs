//! A proxy before the API server that passes a limited number of requests a second. It answers the
//! others with 429 and Retry-After, as a server does that protects itself. It speaks HTTP/2 without
//! TLS and passes on the caller's own token.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// What an API server says in `Retry-After`.
const RETRY_AFTER_SECONDS: u32 = 1;

/// A working throttle. It ends when dropped.
#[derive(Debug)]
pub struct Throttle {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// The remaining requests of the budget; watches do not count.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn take(&mut self) -> bool {
        let now = Instant::now();
        let grown = (now - self.filled).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + grown).min(self.per_second.max(1.0));
        self.filled = now;
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }
}

impl Throttle {
    /// A throttle before the API that `client` reaches; `client` must have no identity of its own.
    pub async fn open(client: kube::Client, per_second: f64) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let bucket = Bucket { per_second, tokens: per_second, filled: Instant::now() };
        let accepting = tokio::spawn(accept(listener, client, Arc::new(Mutex::new(bucket))));
        Ok(Self { address, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, client: kube::Client, bucket: Arc<Mutex<Bucket>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                connections.spawn(serve(stream, client.clone(), Arc::clone(&bucket)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, client: kube::Client, bucket: Arc<Mutex<Bucket>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (client, bucket) = (client.clone(), Arc::clone(&bucket));
        async move { Ok::<_, Infallible>(answer(request, &client, &bucket).await) }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // The caller sees a connection that breaks.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    client: &kube::Client,
    bucket: &Mutex<Bucket>,
) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=true");
    if !is_watch && !bucket.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return too_many();
    }
    forward(request, client).await.unwrap_or_else(|error| {
        let body = Body::from(error.to_string().into_bytes());
        let mut reply = Response::new(body);
        *reply.status_mut() = StatusCode::BAD_GATEWAY;
        reply
    })
}

async fn forward(
    request: Request<Incoming>,
    client: &kube::Client,
) -> Result<Response<Body>, kube::Error> {
    let (mut parts, body) = request.into_parts();
    parts.version = http::Version::HTTP_11;
    parts.headers.remove(header::HOST);
    let body = http_body_util::BodyExt::collect(body).await.map_err(kube::Error::HyperError)?;
    let bytes = body.to_bytes().to_vec();
    let mut reply = client.send(Request::from_parts(parts, Body::from(bytes))).await?;
    // These headers exist in HTTP/1 only.
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        reply.headers_mut().remove(name);
    }
    *reply.version_mut() = http::Version::HTTP_2;
    Ok(reply)
}

fn too_many() -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
        "reason": "TooManyRequests", "message": "too many requests, please try again later",
        "details": {"retryAfterSeconds": RETRY_AFTER_SECONDS},
    });
    let mut reply = Response::new(Body::from(status.to_string().into_bytes()));
    *reply.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    reply.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
    reply
}
