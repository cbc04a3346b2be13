//! Asks the kubelet's two ports on the loopback: its health, and its configuration.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use agent_core::protocol::node::Healthz;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::kubelet_config::{KubeletConfig, read};
use super::kubelet_tls;
use super::listeners::{is_others, is_roots};
use crate::host::Host;
use crate::ports::{self, Ports};

/// Maximum time of an answer. A live kubelet answers in milliseconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum size: a whole configuration is some 5 KB.
const CONFIG_BYTES_MAX: usize = 1 << 20;

/// Asks `/healthz`. While the kubelet is down, any process may listen on its port and answer that
/// all is well. So an answer from a port that is not root's does not count.
pub(crate) async fn healthz(address: SocketAddr, host: &Host) -> Option<Healthz> {
    let answer = asked(address, host.ports()).await;
    let others = answer != Healthz::Refused && is_others(host, address.port());
    (!others).then_some(answer)
}

async fn asked(address: SocketAddr, ports: &Ports) -> Healthz {
    let asking =
        async { ports::get(ports.connect(address).await?, (address, "/healthz"), None).await };
    match timeout(ANSWER_TIME_MAX, asking).await {
        Ok(Ok(answer)) if answer.status() == StatusCode::OK => Healthz::Ok,
        Ok(Ok(_)) => Healthz::Failing,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Healthz::Refused,
        // A broken connection is not an answer.
        Ok(Err(_)) | Err(_) => Healthz::Silent,
    }
}

/// Asks `/configz` with the token of this file; the error says why there is no answer. The
/// directory is the kubelet's.
///
/// While the kubelet is down, anybody may listen on its port, and would see the token. So a port
/// that is not root's is not asked, and the certificate must be one in the kubelet's directory,
/// where those can be read.
pub(crate) async fn configuration(
    address: SocketAddr,
    token: &str,
    directory: &str,
    host: &Host,
) -> Result<KubeletConfig, String> {
    if !address.ip().is_loopback() {
        return Err(format!("{address} is not on the loopback"));
    }
    if !is_roots(host, address.port()) {
        return Err(format!("no listener on port {}, or not root's", address.port()));
    }
    let asked = async {
        let token = std::fs::read_to_string(token)?;
        let certificates = kubelet_tls::certificates(host, directory);
        let stream = host.ports().connect(address).await?;
        let stream = kubelet_tls::secure(stream, address, certificates).await?;
        let bearer = format!("Bearer {}", token.trim());
        let answer = ports::get(stream, (address, "/configz"), Some(bearer)).await?;
        if answer.status() != StatusCode::OK {
            return Err(io::Error::other(format!("the kubelet answers {}", answer.status())));
        }
        let body = Limited::new(answer.into_body(), CONFIG_BYTES_MAX).collect().await;
        Ok(body.map_err(io::Error::other)?.to_bytes())
    };
    let text = match timeout(ANSWER_TIME_MAX, asked).await {
        Ok(text) => text.map_err(|error: io::Error| error.to_string())?,
        Err(_) => return Err(format!("no answer within {}s", ANSWER_TIME_MAX.as_secs())),
    };
    read(&String::from_utf8_lossy(&text))
        .ok_or_else(|| "the response is not a kubelet's configuration".to_owned())
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
        tokio::join!(asked(address, &ports), serve).0
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
            assert_eq!(healthz(address, &host).await, expected, "{uid}");
        }
    }

    #[tokio::test]
    async fn a_port_without_a_listener_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        drop(listener);
        assert_eq!(asked(address, &Ports::default()).await, Healthz::Refused);
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        assert_eq!(asked(address, &Ports::default()).await, Healthz::Silent);
    }
}
