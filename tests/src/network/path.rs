//! A TCP path with a latency, which can fall silent, lose replies or be cut.

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
    /// Requests arrive, and replies are lost. A connection that has lost some breaks when it opens.
    RepliesLost,
    /// Connections break, and no new one succeeds.
    Cut,
}

/// What connections follow.
#[derive(Clone, Copy, Debug)]
struct Now {
    state: PathState,
    /// Connections of former eras are silent.
    era: u64,
}

type Follows = watch::Receiver<Now>;

/// A path to one address. It ends when dropped.
#[derive(Debug)]
pub struct Path {
    address: SocketAddr,
    now: watch::Sender<Now>,
    accepting: JoinHandle<()>,
}

impl Path {
    /// A path to `to` that begins at an address of its own.
    pub async fn open(to: SocketAddr, state: PathState) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let now = watch::Sender::new(Now { state, era: 0 });
        let accepting = tokio::spawn(accept(listener, to, now.subscribe()));
        Ok(Self { address, now, accepting })
    }

    /// The address where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state from now on.
    pub fn set(&self, state: PathState) {
        self.now.send_modify(|now| now.state = state);
    }

    /// Silences the connections of now for good: the effect of a firewall that has forgotten them.
    /// New ones are as before.
    pub fn forget_connections(&self) {
        self.now.send_modify(|now| now.era += 1);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, mut now: Follows) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                if now.borrow().state != PathState::Cut {
                    connections.spawn(carry(stream, to, now.clone()));
                }
            }
            () = cut(&mut now), if !connections.is_empty() => connections.shutdown().await,
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Waits until all connections must break.
async fn cut(now: &mut Follows) {
    // Without a sender that changes it, this never happens.
    if now.wait_for(|now| now.state == PathState::Cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn carry(near: TcpStream, to: SocketAddr, now: Follows) {
    let era = now.borrow().era;
    let Ok(far) = TcpStream::connect(to).await else { return };
    // An error shows as a connection that ends, as on any path.
    let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let requests = Direction { now: now.clone(), era, is_of_replies: false };
    let replies = Direction { now, era, is_of_replies: true };
    tokio::select! {
        () = requests.carry(near_read, far_write) => {}
        () = replies.carry(far_read, near_write) => {}
    }
}

/// One direction of a connection.
struct Direction {
    now: Follows,
    era: u64,
    is_of_replies: bool,
}

impl Direction {
    /// Ends when either side does.
    async fn carry(mut self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
        let delay = self.now.clone();
        let reading = async move {
            let mut buffer = vec![0; PIECE_BYTES];
            while let Ok(count) = from.read(&mut buffer).await {
                let latency = match delay.borrow().state {
                    PathState::Open(latency) => latency,
                    _ => Duration::ZERO,
                };
                let piece = (Instant::now() + latency, buffer[..count].to_vec());
                if count == 0 || sender.send(piece).await.is_err() {
                    return;
                }
            }
        };
        let mut opens = self.now.clone();
        let writing = async {
            let mut has_lost = false;
            loop {
                let next = tokio::select! {
                    next = pieces.recv() => next,
                    _ = opens.wait_for(|now| is_open(now.state)), if has_lost => None,
                };
                let Some((due, piece)) = next else { return };
                tokio::time::sleep_until(due).await;
                match self.arrives().await {
                    Some(true) if !has_lost && to.write_all(&piece).await.is_ok() => {}
                    Some(false) => has_lost = true,
                    _ => return,
                }
            }
        };
        tokio::pin!(writing);
        tokio::select! {
            () = &mut writing => {}
            // Data read before the end is still delivered.
            () = reading => writing.await,
        }
    }

    /// Waits until a piece arrives, or is lost (`false`); `None`: it is held for good.
    async fn arrives(&mut self) -> Option<bool> {
        let (era, is_of_replies) = (self.era, self.is_of_replies);
        let moves = |now: &Now| {
            now.era == era && (is_open(now.state) || now.state == PathState::RepliesLost)
        };
        let now = self.now.wait_for(moves).await.ok()?;
        Some(!(is_of_replies && now.state == PathState::RepliesLost))
    }
}

fn is_open(state: PathState) -> bool {
    matches!(state, PathState::Open(_))
}
