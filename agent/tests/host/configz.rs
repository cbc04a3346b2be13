//! Provides a double of the kubelet's two ports: health in plain HTTP, configuration behind its own
//! certificate.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// Gives every request the same answer, while it lives.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    /// What it shows, as PEM.
    pub(crate) certificate: String,
    requests: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

impl Port {
    /// A port in plain HTTP.
    pub(crate) async fn plain(answer: &str) -> Self {
        Self::start(answer, None).await
    }

    /// A port with a certificate that no authority has signed.
    pub(crate) async fn with_tls(answer: &str) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["node-1".to_owned()]).expect("must be signable");
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("must be a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the default versions must do")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("the certificate must go with its key");
        let tls = Some(TlsAcceptor::from(Arc::new(config)));
        Self { certificate: cert.pem(), ..Self::start(answer, tls).await }
    }

    async fn start(answer: &str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, heard) = (answer.to_owned(), Arc::clone(&requests));
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                match &tls {
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(stream, &answer, &heard).await;
                        }
                    }
                    None => serve(stream, &answer, &heard).await,
                }
            }
        });
        Self { address, certificate: String::new(), requests, _task: task }
    }

    /// The requests, with headers.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves a connection. An error of the client is ignored.
async fn serve<S>(mut stream: S, answer: &str, heard: &Mutex<Vec<String>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    heard.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// An answer of HTTP.
pub(crate) fn http(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}
