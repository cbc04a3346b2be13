//! The ports of a node's kubelet: `/healthz`, and `/configz` behind TLS. Connections to them are in
//! memory.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use doubles::http;
use epilogue_agent::ports::{Ports, Socket};
use tokio::io::{DuplexStream, duplex};
use tokio_rustls::TlsAcceptor;

const HEALTHZ: u16 = 10248;
const CONFIGZ: u16 = 10250;
/// The capacity of a connection, in bytes.
const PIPE_BYTES: usize = 1 << 14;
/// A token that no one checks, below the node's root.
const TOKEN: &str = "token";

/// What the kubelet does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    Well,
    /// It takes connections and is silent.
    Never,
    /// It has no ports.
    Refused,
}

/// The two ports.
#[derive(Clone)]
pub(super) struct KubeletPorts {
    answers: Arc<Mutex<Answers>>,
    /// The sum of the periods of its graceful shutdown, in seconds.
    period_seconds: Arc<Mutex<u32>>,
    /// How often each port was asked and answered.
    answered: Arc<Mutex<[usize; 2]>>,
    tls: TlsAcceptor,
}

impl std::fmt::Debug for KubeletPorts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("KubeletPorts")
            .field("answers", &self.answers)
            .finish_non_exhaustive()
    }
}

impl KubeletPorts {
    /// Ports that answer. Writes what the agent reads of them below the root: root listens.
    pub(super) fn new(root: &Path) -> Self {
        let line = |port: u16| format!("0: 0100007F:{port:04X} 0:0 0A 0:0 0:0 0 0\n");
        let table = format!("header\n{}{}", line(HEALTHZ), line(CONFIGZ));
        std::fs::create_dir_all(root.join("proc/net")).expect("must be made");
        for (name, text) in [("tcp", table.as_str()), ("tcp6", "header\n")] {
            std::fs::write(root.join("proc/net").join(name), text).expect("must be writable");
        }
        std::fs::write(root.join(TOKEN), "secret").expect("must be writable");
        let (answers, answered) = (Arc::new(Mutex::new(Answers::Well)), Arc::default());
        let (tls, certificate) = http::self_signed("node");
        let pki = root.join("var/lib/kubelet/pki");
        std::fs::create_dir_all(&pki).expect("must be made");
        std::fs::write(pki.join("kubelet.crt"), certificate).expect("must be writable");
        Self { answers, period_seconds: Arc::default(), answered, tls }
    }

    /// The file of the token.
    pub(super) fn token(root: &Path) -> String {
        root.join(TOKEN).display().to_string()
    }

    pub(super) fn set(&self, answers: Answers) {
        *self.answers.lock().expect("no holder panics") = answers;
    }

    pub(super) fn set_period(&self, seconds: u32) {
        *self.period_seconds.lock().expect("no holder panics") = seconds;
    }

    /// How often `/healthz` and `/configz` were answered.
    pub(super) fn answered(&self) -> [usize; 2] {
        *self.answered.lock().expect("no holder panics")
    }

    /// How an agent reaches them.
    pub(super) fn ports(&self) -> Ports {
        let ports = self.clone();
        Ports::new(move |address| Box::pin(std::future::ready(ports.connect(address))))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Socket>> {
        let answers = *self.answers.lock().expect("no holder panics");
        if answers == Answers::Refused {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = duplex(PIPE_BYTES);
        let ports = self.clone();
        tokio::spawn(async move {
            match answers {
                Answers::Well => ports.serve(far, address.port()).await,
                // The connection stays open until the world ends.
                _ => pending().await,
            }
        });
        Ok(Box::new(near))
    }

    /// Serves one request. Errors are the client's.
    async fn serve(self, far: DuplexStream, port: u16) {
        let stream: Box<dyn Socket> = match port {
            CONFIGZ => match self.tls.accept(far).await {
                Ok(stream) => Box::new(stream),
                Err(_) => return,
            },
            _ => Box::new(far),
        };
        let answer = |request: String| {
            let configz = request.starts_with("GET /configz");
            let seconds = *self.period_seconds.lock().expect("no holder panics");
            let config = format!(r#"{{"kubeletconfig":{{"shutdownGracePeriod":"{seconds}s"}}}}"#);
            self.answered.lock().expect("no holder panics")[usize::from(configz)] += 1;
            http::answer("200 OK", if configz { &config } else { "ok" })
        };
        http::serve(stream, answer).await;
    }
}
