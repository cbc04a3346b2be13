//! Asks the kubelet's two ports on the loopback: its health, and its configuration.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use agent_core::protocol::node::{Healthz, MainPort};
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::kubelet::Access;
use super::kubelet_config::{KubeletConfig, read};
use super::kubelet_tls::{self, Known};
use super::listeners::{is_others, is_roots};
use crate::host::Host;
use crate::ports::{self, Ports, Socket};

/// Maximum time of an answer. A live kubelet answers in milliseconds.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum size of an answer: a whole configuration is some 5 KB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// In the answer of `/healthz` while the sync loop is stuck. ([SD26])
const STUCK: &[u8] = b"[-]syncloop failed";

/// The kubelet's main port, and how to ask it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Main<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) access: &'a Access,
    /// The kubelet's directory, which may have its certificate.
    pub(crate) directory: &'a str,
    pub(crate) host: &'a Host,
}

/// Why the main port gave no answer to use.
enum Gap {
    /// No process listens.
    Refused,
    /// No connection, or no handshake, in time.
    Silent,
    /// It took the connection and gave no answer in time.
    Slow,
    /// The port is another's, or the answer cannot be read.
    Other(String),
}

/// Asks the port of `/healthz`, a ping. While the kubelet is down, any process may listen on its
/// port and answer that all is well. So an answer from a port that is not root's does not count.
pub(crate) async fn healthz(address: SocketAddr, within: Duration, host: &Host) -> Option<Healthz> {
    let answer = asked(address, within, host.ports()).await;
    let others = answer != Healthz::Refused && is_others(host, address.port());
    (!others).then_some(answer)
}

async fn asked(address: SocketAddr, within: Duration, ports: &Ports) -> Healthz {
    let asking =
        async { ports::get(ports.connect(address).await?, (address, "/healthz"), None).await };
    match timeout(within, asking).await {
        Ok(Ok(answer)) if answer.status() == StatusCode::OK => Healthz::Ok,
        Ok(Ok(_)) => Healthz::Failing,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Healthz::Refused,
        // A broken connection is not an answer.
        Ok(Err(_)) | Err(_) => Healthz::Silent,
    }
}

impl Main<'_> {
    /// Asks `/healthz`, which checks the sync loop; `None` if another process listens.
    pub(crate) async fn healthz(self, within: Duration) -> Option<MainPort> {
        match self.get("/healthz", within).await {
            Ok((StatusCode::INTERNAL_SERVER_ERROR, text)) if contains(&text, STUCK) => {
                Some(MainPort::Stuck)
            }
            // A kubelet without the API cannot judge the token, and is slow to say so.
            Ok(_) | Err(Gap::Slow) => Some(MainPort::Answers),
            Err(Gap::Silent) => Some(MainPort::Silent),
            Err(Gap::Refused) => Some(MainPort::Refused),
            Err(Gap::Other(error)) => {
                tracing::debug!(error, "nothing is known of the kubelet's sync loop");
                None
            }
        }
    }

    /// Asks `/configz`; the error says why there is no answer.
    pub(crate) async fn configuration(self) -> Result<KubeletConfig, String> {
        let text = match self.get("/configz", ANSWER_TIME_MAX).await {
            Ok((StatusCode::OK, text)) => text,
            Ok((status, _)) => return Err(format!("the kubelet answers {status}")),
            Err(Gap::Refused) => return Err(format!("no listener on {}", self.address)),
            Err(Gap::Silent | Gap::Slow) => {
                return Err(format!("no answer within {}s", ANSWER_TIME_MAX.as_secs()));
            }
            Err(Gap::Other(error)) => return Err(error),
        };
        read(&String::from_utf8_lossy(&text))
            .ok_or_else(|| "the response is not a kubelet's configuration".to_owned())
    }

    /// One request, with the token.
    ///
    /// While the kubelet is down, anybody may listen on its port, and would see the token. So a
    /// port that is not root's is not asked, and its certificate must be known as the kubelet's.
    async fn get(self, path: &str, within: Duration) -> Result<(StatusCode, Vec<u8>), Gap> {
        let (address, host) = (self.address, self.host);
        let other = |error: io::Error| Gap::Other(error.to_string());
        if !address.ip().is_loopback() {
            return Err(Gap::Other(format!("{address} is not on the loopback")));
        }
        if is_others(host, address.port()) {
            return Err(Gap::Other(format!("port {} is not root's", address.port())));
        }
        let token = std::fs::read_to_string(&self.access.token).map_err(other)?;
        let known = Known::of(host, self.directory, self.access);
        let connecting = async {
            let stream = host.ports().connect(address).await?;
            // Only now is it certain that somebody listens.
            if !is_roots(host, address.port()) {
                return Err(io::Error::other(format!("port {} is not root's", address.port())));
            }
            kubelet_tls::secure(stream, address, known).await
        };
        let stream = match timeout(within, connecting).await {
            Err(_) => return Err(Gap::Silent),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(Gap::Refused);
            }
            Ok(stream) => stream.map_err(other)?,
        };
        let bearer = format!("Bearer {}", token.trim());
        match timeout(ANSWER_TIME_MAX, ask(stream, (address, path), bearer)).await {
            Ok(answer) => answer.map_err(other),
            Err(_) => Err(Gap::Slow),
        }
    }
}

async fn ask(
    stream: impl Socket + 'static,
    (address, path): (SocketAddr, &str),
    bearer: String,
) -> io::Result<(StatusCode, Vec<u8>)> {
    let answer = ports::get(stream, (address, path), Some(bearer)).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok((status, body.map_err(io::Error::other)?.to_bytes().to_vec()))
}

fn contains(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|part| part == words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// The verdict on an answer.
    async fn said(answer: &str) -> Healthz {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("must come");
            let mut request = [0; 512];
            let read = stream.read(&mut request).await.expect("must be readable");
            assert!(request[..read].starts_with(b"GET /healthz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).await.expect("must be writable");
        };
        let ports = Ports::default();
        tokio::join!(asked(address, ANSWER_TIME_MAX, &ports), serve).0
    }

    #[tokio::test]
    async fn the_status_line_gives_the_health() {
        assert_eq!(said("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await, Healthz::Ok);
        let failing = "HTTP/1.1 500 Internal Server Error\r\n\r\nsyncloop: failed";
        assert_eq!(said(failing).await, Healthz::Failing);
        assert_eq!(said("SSH-2.0-x\r\n").await, Healthz::Silent);
    }

    #[tokio::test]
    async fn a_port_that_is_not_roots_says_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        for (uid, expected) in [(0, Some(Healthz::Silent)), (1000, None)] {
            let root = tempfile::tempdir().expect("must be creatable");
            let table = root.path().join("proc/net");
            std::fs::create_dir_all(&table).expect("must be creatable");
            let line = format!("0: 0100007F:{:04X} 0:0 0A 0:0 0:0 0 {uid}\n", address.port());
            std::fs::write(table.join("tcp"), format!("header\n{line}")).expect("must be writable");
            std::fs::write(table.join("tcp6"), "header\n").expect("must be writable");
            let host = Host::new(root.path().to_owned());
            assert_eq!(healthz(address, ANSWER_TIME_MAX, &host).await, expected, "{uid}");
        }
    }

    #[tokio::test]
    async fn a_port_without_a_listener_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        drop(listener);
        assert_eq!(asked(address, ANSWER_TIME_MAX, &Ports::default()).await, Healthz::Refused);
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        assert_eq!(asked(address, ANSWER_TIME_MAX, &Ports::default()).await, Healthz::Silent);
    }
}
