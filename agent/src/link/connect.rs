//! Opens a connection: name to address, TCP, TLS, HTTP/2.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::heard::{Counted, Heard};

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

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The server to connect to.
pub struct Target {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The addresses that the last lookup found.
    known: Mutex<Vec<SocketAddr>>,
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
    /// The name is not valid for TLS.
    #[error("{0:?} cannot be the name in a certificate")]
    ServerName(String),
    /// The host's name has no address.
    #[error("cannot find the address of {0}")]
    Resolve(String, #[source] io::Error),
    /// There is no TCP connection.
    #[error("cannot connect to {0}")]
    Tcp(String, #[source] io::Error),
    /// There is no TLS session.
    #[error("no TLS session with {0}")]
    Handshake(String, #[source] io::Error),
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
    pub fn new(config: &kube::Config) -> Result<Self, ConnectError> {
        let url = &config.cluster_url;
        let bad = || ConnectError::Address(url.to_string());
        let host = url.host().ok_or_else(bad)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let secure = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tls = if secure { Some(tls(config, &host)?) } else { None };
        Ok(Self { host, port, tls, known: Mutex::default() })
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> Result<Opened, ConnectError> {
        let opening = timeout(OPEN_MAX, self.try_open()).await;
        opening.map_err(|_| ConnectError::TooLong { target: self.to_string() })?
    }

    async fn try_open(&self) -> Result<Opened, ConnectError> {
        let addresses = self.addresses().await?;
        let heard = Heard::default();
        let stream = self.tcp(&addresses).await?;
        // Patches are small, and must not wait for the next one.
        let failed = |source| ConnectError::Tcp(self.to_string(), source);
        stream.set_nodelay(true).map_err(failed)?;
        let stream = self.secure(Counted::new(stream, heard.clone())).await?;
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

    async fn addresses(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let looking = tokio::net::lookup_host((self.host.as_str(), self.port));
        let found = match timeout(RESOLVE_MAX, looking).await {
            Ok(found) => found.map(Vec::from_iter),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let mut known = self.known.lock();
        match found {
            Ok(found) if !found.is_empty() => known.clone_from(&found),
            Err(source) if known.is_empty() => {
                return Err(ConnectError::Resolve(self.host.clone(), source));
            }
            _ => {}
        }
        Ok(known.clone())
    }

    /// Connects to the first address that accepts.
    async fn tcp(&self, addresses: &[SocketAddr]) -> Result<TcpStream, ConnectError> {
        let each = OPEN_MAX / u32::try_from(addresses.len() + 1).unwrap_or(u32::MAX);
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in addresses {
            match timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(ConnectError::Tcp(self.to_string(), last))
    }

    async fn secure(&self, stream: Counted<TcpStream>) -> Result<Box<dyn Stream>, ConnectError> {
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let stream = connector
            .connect(name.clone(), stream)
            .await
            .map_err(|source| ConnectError::Handshake(self.to_string(), source))?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(ConnectError::NoHttp2(self.to_string()));
        }
        Ok(Box::new(stream))
    }
}

fn tls(
    config: &kube::Config,
    host: &str,
) -> Result<(TlsConnector, ServerName<'static>), ConnectError> {
    let name = config.tls_server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| ConnectError::ServerName(name.to_owned()))?;
    let mut tls = config
        .rustls_client_config()
        .map_err(|source| ConnectError::Tls(config.cluster_url.to_string(), source))?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok((TlsConnector::from(Arc::new(tls)), name))
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, self.port).fmt(formatter),
            Err(_) => write!(formatter, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Target").field(&self.to_string()).finish()
    }
}
