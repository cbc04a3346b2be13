//! Provides a double of the kubelet's two ports: health in plain HTTP, configuration behind its own
//! certificate.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use doubles::http;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

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
        let (tls, certificate) = http::self_signed("node-1");
        Self { certificate, ..Self::start(answer, Some(tls)).await }
    }

    /// A port with a certificate for this node that an authority has signed; and the authority.
    pub(crate) async fn signed(answer: &str, node: &str) -> (Self, Vec<u8>) {
        let (tls, authority) = http::signed(node);
        (Self::start(answer, Some(tls)).await, authority)
    }

    async fn start(answer: &str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, heard) = (answer.to_owned(), Arc::clone(&requests));
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = |request| {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).push(request);
                    answer.clone()
                };
                match &tls {
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            http::serve(stream, answer).await;
                        }
                    }
                    None => http::serve(stream, answer).await,
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
