//! Opens a connection: name to address, TCP and TLS by the connector of the runtime's client, then
//! HTTP/2.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::vec;

use epilogue_runtime::client;
use http::Uri;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_util::io::InspectReader;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _, service_fn};

/// Maximum time of all steps together: five round trips of 200 ms, and time for a busy server.
const OPEN_MAX: Duration = Duration::from_secs(3);
/// Maximum time of the name lookup. Name services stop early in a shutdown; the last known
/// addresses serve as well.
const RESOLVE_MAX: Duration = Duration::from_secs(1);
/// Time between two pings.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Maximum time that a ping may remain unanswered.
const PING_MAX: Duration = Duration::from_secs(2);
/// How much the server may send, of one reply and of all, before the agent has read it.
const WINDOW_BYTES: (u32, u32) = (256 << 10, 1 << 20);

/// The task that drives the connection.
type Driver = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;
/// Looks up the addresses of a name.
type Resolver = BoxCloneSyncService<Name, vec::IntoIter<SocketAddr>, io::Error>;

/// How many bytes have arrived on a connection: that tells a slow server from a dead path.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard(Arc<AtomicU64>);

impl Heard {
    /// How many bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The server to connect to.
pub struct Target {
    url: Uri,
    connector: HttpsConnector<HttpConnector<Resolver>>,
}

/// A connection that was opened.
pub(super) struct Opened {
    pub(super) sender: SendRequest<Body>,
    pub(super) connection: Driver,
    pub(super) heard: Heard,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The configuration has no usable address.
    #[error("invalid server {0} in the kubeconfig: expected https://HOST:PORT")]
    Address(String),
    /// The configuration's certificates or keys are unusable.
    #[error("the certificates or keys for {0} cannot be used")]
    Tls(String, #[source] kube::Error),
    /// The host's name has no address, or there is no TCP connection, or no TLS session.
    #[error("cannot connect to {0}")]
    Connect(String, #[source] BoxError),
    /// The server does not speak HTTP/2.
    #[error(
        "{0} does not speak HTTP/2; give the address of the API server itself in place of a \
         proxy's"
    )]
    NoHttp2(String),
    /// The HTTP/2 session did not begin.
    #[error("no HTTP/2 session with {0}")]
    Http2(String, #[source] hyper::Error),
    /// Connecting took too long.
    #[error("no connection to {target} within {} s", OPEN_MAX.as_secs())]
    TooLong {
        /// The server's address.
        target: String,
    },
}

impl Target {
    /// The API server of a client's configuration.
    pub fn new(config: &kube::Config, authorities: Option<PathBuf>) -> Result<Self, ConnectError> {
        let url = config.cluster_url.clone();
        if url.host().is_none() || !matches!(url.scheme_str(), Some("https" | "http")) {
            return Err(ConnectError::Address(url.to_string()));
        }
        let mut tcp = HttpConnector::new_with_resolver(resolver());
        tcp.set_connect_timeout(Some(OPEN_MAX));
        match client::connector(config, authorities, tcp) {
            Ok(connector) => Ok(Self { url, connector }),
            Err(source) => Err(ConnectError::Tls(url.to_string(), source)),
        }
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> Result<Opened, ConnectError> {
        let opening = timeout(OPEN_MAX, self.try_open()).await;
        opening.map_err(|_| ConnectError::TooLong { target: self.to_string() })?
    }

    async fn try_open(&self) -> Result<Opened, ConnectError> {
        let stream = self.connector.clone().oneshot(self.url.clone()).await;
        let stream = stream.map_err(|source| ConnectError::Connect(self.to_string(), source))?;
        let is_tls = self.url.scheme_str() == Some("https");
        if is_tls && !stream.connected().is_negotiated_h2() {
            return Err(ConnectError::NoHttp2(self.to_string()));
        }
        let heard = Heard::default();
        let count = Arc::clone(&heard.0);
        let stream = InspectReader::new(TokioIo::new(stream), move |bytes: &[u8]| {
            count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        });
        let mut builder = Builder::new(TokioExecutor::new());
        let handshake = builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_MAX)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_BYTES.0)
            .initial_connection_window_size(WINDOW_BYTES.1)
            .handshake::<_, Body>(TokioIo::new(stream))
            .await;
        let (sender, connection) =
            handshake.map_err(|source| ConnectError::Http2(self.to_string(), source))?;
        Ok(Opened { sender, connection: Box::pin(connection), heard })
    }
}

/// Looks names up, and remembers the addresses that the last lookup found.
fn resolver() -> Resolver {
    let known: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    BoxCloneSyncService::new(service_fn(move |name: Name| {
        let known = Arc::clone(&known);
        async move {
            // The connector sets the port.
            let found = match timeout(RESOLVE_MAX, lookup_host((name.as_str(), 0))).await {
                Ok(found) => found.map(Vec::from_iter),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            let mut known = known.lock();
            match found {
                Ok(found) if !found.is_empty() => *known = found,
                Err(error) if known.is_empty() => return Err(error),
                _ => {}
            }
            Ok(known.clone().into_iter())
        }
    }))
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.url.authority().map_or("", |authority| authority.as_str()))
    }
}
