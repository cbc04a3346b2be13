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
pub enum Weather {
    /// Bytes arrive this much later than they were sent, in each direction.
    Fair(Duration),
    /// Nothing arrives, and neither end gets an error: the effect of a lost route.
    Silent,
    /// Connections break, and no new one succeeds.
    Cut,
}

/// A path to one address. It ends when dropped.
#[derive(Debug)]
pub struct Path {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    accepting: JoinHandle<()>,
}

impl Path {
    /// A path to `to` that begins at an address of its own.
    pub async fn open(to: SocketAddr, weather: Weather) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let weather = watch::Sender::new(weather);
        let accepting = tokio::spawn(accept(listener, to, weather.subscribe()));
        Ok(Self { address, weather, accepting })
    }

    /// The address where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state from now on.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, mut weather: watch::Receiver<Weather>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                if *weather.borrow() != Weather::Cut {
                    connections.spawn(carry(stream, to, weather.clone()));
                }
            }
            () = cut(&mut weather), if !connections.is_empty() => connections.shutdown().await,
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Waits until all connections must break.
async fn cut(weather: &mut watch::Receiver<Weather>) {
    // Without a sender that changes it, this never happens.
    if weather.wait_for(|weather| *weather == Weather::Cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn carry(near: TcpStream, to: SocketAddr, weather: watch::Receiver<Weather>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    // An error shows as a connection that ends, as on any path.
    let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        () = one_way(near_read, far_write, weather.clone()) => {}
        () = one_way(far_read, near_write, weather) => {}
    }
}

/// Ends when either side does.
async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    weather: watch::Receiver<Weather>,
) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let delay = weather.clone();
    let reading = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(count) = from.read(&mut buffer).await {
            let latency = match *delay.borrow() {
                Weather::Fair(latency) => latency,
                Weather::Silent | Weather::Cut => Duration::ZERO,
            };
            let piece = (Instant::now() + latency, buffer[..count].to_vec());
            if count == 0 || sender.send(piece).await.is_err() {
                return;
            }
        }
    };
    let mut weather = weather;
    let writing = async {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            let is_fair = |weather: &Weather| matches!(weather, Weather::Fair(_));
            let held_for_good = weather.wait_for(is_fair).await.is_err();
            if held_for_good || to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    // Data read before the end is still delivered.
    tokio::join!(reading, writing);
}
