//! What of a kubelet the agent asks beside the API: its `/healthz`.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// A kubelet's health, always good. It ends when dropped.
#[derive(Debug)]
pub(super) struct Healthz {
    pub(super) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Healthz {
    /// Serves on an address of its own.
    pub(super) async fn serve() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // A caller that goes away has no answer, and needs none.
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(ANSWER).await;
            }
        });
        Ok(Self { address, serving })
    }
}

impl Drop for Healthz {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
