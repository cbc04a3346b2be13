//! The kubelet's two ports on the loopback: its health, and its configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_core::protocol::node::Healthz;
use futures::AsyncReadExt as _;
use http::Request;
use kube::{Client, Config};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::kubelet_config::{KubeletConfig, read};
use super::listeners::{is_others, is_roots};
use crate::host::Host;

/// A kubelet that lives answers in milliseconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// The answer is `ok`, or a few lines about what is not.
const HEALTH_BYTES_MAX: u64 = 4 << 10;
/// A whole configuration is some 5 KB.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Where the kubelet's configuration is asked.
#[derive(Clone, Debug)]
pub struct Configz {
    /// The kubelet's main port, on the loopback.
    pub address: SocketAddr,
    /// The file of the token to show; its bearer needs `get` on `nodes/configz`.
    pub token: PathBuf,
}

/// Asks `/healthz`. While the kubelet is down, anybody may listen in its place and call it well:
/// what a port says that is not root's says nothing.
pub(crate) async fn healthz(address: SocketAddr, host: &Host) -> Option<Healthz> {
    let answer = asked(address).await;
    let others = answer != Healthz::Refused && is_others(host, address.port());
    (!others).then_some(answer)
}

async fn asked(address: SocketAddr) -> Healthz {
    match timeout(ANSWER_TIME_MAX, status_line(address)).await {
        Ok(Ok(line)) if line.split(' ').nth(1) == Some("200") => Healthz::Ok,
        Ok(Ok(_)) => Healthz::Failing,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => Healthz::Refused,
        // A connection that breaks off is no answer.
        Ok(Err(_)) | Err(_) => Healthz::Silent,
    }
}

async fn status_line(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET /healthz HTTP/1.1\r\nHost: {address}\r\nUser-Agent: epilogue-agent\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(HEALTH_BYTES_MAX).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let line = text.lines().next().filter(|line| line.starts_with("HTTP/1."));
    line.map(ToOwned::to_owned).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Asks `/configz`; the error says why there is no answer.
///
/// The certificate is not verified: the kubelet signs its own unless the cluster was told
/// otherwise, and on the loopback nobody is in between. But anybody may listen on the port while
/// the kubelet is down, and would be shown the token: hence a port that is not root's is not
/// asked.
pub(crate) async fn configuration(configz: &Configz, host: &Host) -> Result<KubeletConfig, String> {
    if !configz.address.ip().is_loopback() {
        return Err(format!("{} is not on the loopback", configz.address));
    }
    if !is_roots(host, configz.address.port()) {
        return Err(format!("nobody listens on port {}, or not root", configz.address.port()));
    }
    let asked = timeout(ANSWER_TIME_MAX, config_text(configz));
    let text = match asked.await {
        Ok(text) => text.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("no answer within {}s", ANSWER_TIME_MAX.as_secs())),
    };
    read(&text).ok_or_else(|| "the answer is no kubelet's configuration".to_owned())
}

async fn config_text(configz: &Configz) -> Result<String, kube::Error> {
    let url = format!("https://{}", configz.address);
    let mut config = Config::new(url.parse().expect("an address must make a URL"));
    config.accept_invalid_certs = true;
    config.auth_info.token_file = Some(configz.token.display().to_string());
    let client = Client::try_from(config)?;
    let request = Request::get("/configz").body(Vec::new()).map_err(kube::Error::HttpError)?;
    let mut text = String::new();
    let answer = client.request_stream(request).await?;
    let read = Box::pin(answer.take(CONFIG_BYTES_MAX)).read_to_string(&mut text).await;
    read.map(|_| text).map_err(kube::Error::ReadEvents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// What is made of an answer.
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
        tokio::join!(asked(address), serve).0
    }

    #[tokio::test]
    async fn health_is_told_by_the_status_line() {
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
    async fn a_port_that_nobody_listens_on_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        drop(listener);
        assert_eq!(asked(address).await, Healthz::Refused);
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        assert_eq!(asked(address).await, Healthz::Silent);
    }
}
