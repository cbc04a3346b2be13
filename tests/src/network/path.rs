//! A TCP path with a latency, which can fall silent or be cut.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Pieces under way in one direction; a path of 200 ms at full speed holds no more.
const PIECES_MAX: usize = 1024;
const PIECE_BYTES: usize = 16 << 10;

/// State of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Bytes arrive this much later than they were sent, in each direction.
    Open(Duration),
    /// Nothing arrives, and neither end gets an error: the effect of a lost route.
    Silent,
    /// Connections break, and no new one succeeds.
    Cut,
}

/// A path to one address. It ends when dropped.
#[derive(Debug)]
pub struct Path {
    address: SocketAddr,
    state: watch::Sender<PathState>,
    accepting: JoinHandle<()>,
}

impl Path {
    /// A path to `to` that begins at an address of its own.
    pub async fn open(to: SocketAddr, state: PathState) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(state);
        let accepting = tokio::spawn(accept(listener, to, state.subscribe()));
        Ok(Self { address, state, accepting })
    }

    /// The address where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state from now on.
    pub fn set(&self, state: PathState) {
        self.state.send_replace(state);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, mut state: watch::Receiver<PathState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                if *state.borrow() != PathState::Cut {
                    connections.spawn(carry(stream, to, state.clone()));
                }
            }
            () = cut(&mut state), if !connections.is_empty() => connections.shutdown().await,
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Waits until all connections must break.
async fn cut(state: &mut watch::Receiver<PathState>) {
    // Without a sender that changes it, this never happens.
    if state.wait_for(|state| *state == PathState::Cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn carry(near: TcpStream, to: SocketAddr, state: watch::Receiver<PathState>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    // An error shows as a connection that ends, as on any path.
    let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        () = one_way(near_read, far_write, state.clone()) => {}
        () = one_way(far_read, near_write, state) => {}
    }
}

/// Ends when either side does.
async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: watch::Receiver<PathState>,
) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let delay = state.clone();
    let reading = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(count) = from.read(&mut buffer).await {
            let latency = match *delay.borrow() {
                PathState::Open(latency) => latency,
                PathState::Silent | PathState::Cut => Duration::ZERO,
            };
            let piece = (Instant::now() + latency, buffer[..count].to_vec());
            if count == 0 || sender.send(piece).await.is_err() {
                return;
            }
        }
    };
    let mut state = state;
    let writing = async {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            let is_open = |state: &PathState| matches!(state, PathState::Open(_));
            let held_for_good = state.wait_for(is_open).await.is_err();
            if held_for_good || to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    // Data read before the end is still delivered.
    tokio::join!(reading, writing);
}
