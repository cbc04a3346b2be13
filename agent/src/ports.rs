//! Asks ports of this machine by HTTP: the kernel's, or others in a test.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

type Connecting = BoxFuture<'static, io::Result<Box<dyn Socket>>>;

/// The ports of a machine.
#[derive(Clone)]
pub struct Ports(Arc<dyn Fn(SocketAddr) -> Connecting + Send + Sync>);

impl Default for Ports {
    /// The kernel's.
    fn default() -> Self {
        Self::new(|address| {
            Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                Ok(Box::new(stream) as Box<dyn Socket>)
            })
        })
    }
}

impl Ports {
    /// Ports to which this connects.
    pub fn new(connect: impl Fn(SocketAddr) -> Connecting + Send + Sync + 'static) -> Self {
        Self(Arc::new(connect))
    }

    /// Connects to a port.
    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Socket>> {
        (self.0)(address).await
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ports").finish_non_exhaustive()
    }
}

/// A `GET` over a fresh connection to this address, which ends with the answer. `authorization` is
/// the header's value.
pub(crate) async fn get(
    stream: impl Socket + 'static,
    (address, path): (SocketAddr, &str),
    authorization: Option<String>,
) -> io::Result<Response<Incoming>> {
    let mut request = Request::get(path)
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "epilogue-agent")
        .header(header::CONNECTION, "close");
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let opened = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(io::Error::other)?;
    // It ends once no one waits for the answer.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(io::Error::other)
}
