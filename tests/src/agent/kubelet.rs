//! Serves the kubelet endpoint that the agent polls apart from the API: `/healthz`.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const BACKLOG: u32 = 16;

/// State of the kubelet; one that does not live has not renewed its lease for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// Its process answers.
    Lives,
    /// No process exists: the port refuses connections.
    Dead,
    /// A process accepts connections, and never answers.
    Hangs,
}

/// A kubelet's constant health. It ends when dropped.
#[derive(Debug)]
pub(super) struct Healthz {
    pub(super) address: SocketAddr,
    /// Holds a refusing port, so that no other process starts to answer there.
    _held: Option<TcpSocket>,
    serving: Option<JoinHandle<()>>,
}

impl Healthz {
    /// Serves on an address of its own, or refuses. Call it within a runtime.
    pub(super) fn serve(kubelet: Kubelet) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        if kubelet == Kubelet::Dead {
            return Ok(Self { address, _held: Some(socket), serving: None });
        }
        let serving = tokio::spawn(answer(socket.listen(BACKLOG)?, kubelet));
        Ok(Self { address, _held: None, serving: Some(serving) })
    }
}

async fn answer(listener: TcpListener, kubelet: Kubelet) {
    let mut unanswered = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        if kubelet == Kubelet::Hangs {
            unanswered.push(stream);
            continue;
        }
        // A caller that goes away needs no answer.
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(ANSWER).await;
    }
}

impl Drop for Healthz {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}
