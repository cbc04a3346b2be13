//! A server for tests that answers as a metadata service does, or as none should.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    /// With the query.
    pub(super) path: String,
    head: String,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// Writes this and closes.
    Raw(Vec<u8>),
    /// Writes this, and nothing more.
    Half(&'static str),
    /// Writes this once it is notified.
    Later(Arc<Notify>, String),
    /// Says nothing.
    Hang,
    Close,
}

impl Reply {
    pub(super) fn raw(text: impl Into<String>) -> Self {
        Self::Raw(text.into().into_bytes())
    }

    pub(super) fn text(body: impl AsRef<str>) -> Self {
        Self::with(200, &[], body)
    }

    pub(super) fn status(status: u16) -> Self {
        Self::with(status, &[], "<html><head><title>An Error</title></head></html>")
    }

    pub(super) fn with(status: u16, headers: &[(&str, &str)], body: impl AsRef<str>) -> Self {
        let body = body.as_ref();
        let headers = headers.iter().map(|(name, value)| [name, ": ", value, "\r\n"].concat());
        let (headers, size) = (headers.collect::<String>(), body.len());
        let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {size}\r\n{headers}");
        Self::raw(head + "\r\n" + body)
    }
}

/// The server, which ends when it is dropped.
pub(super) struct Double {
    address: SocketAddr,
    asked: watch::Sender<Vec<Asked>>,
    task: JoinHandle<()>,
}

impl Double {
    /// Serves on a port of the loopback.
    pub(super) fn serve(reply: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = watch::Sender::default();
        let listener = TcpListener::from_std(listener).unwrap();
        let task = tokio::spawn(serve(listener, asked.clone(), reply));
        Self { address, asked, task }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests since the last call, as `GET /path`, sorted: some come at the same time.
    pub(super) fn asked(&self) -> Vec<String> {
        let asked = self.asked.send_replace(Vec::new());
        let mut asked: Vec<_> =
            asked.iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect();
        asked.sort();
        asked
    }

    /// Waits until there are so many requests since the last call of `asked`.
    pub(super) async fn until(&self, count: usize) {
        self.asked.subscribe().wait_for(|asked| asked.len() >= count).await.unwrap();
    }

    /// Ends it, so that no one listens.
    pub(super) async fn end(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    all: watch::Sender<Vec<Asked>>,
    mut reply: impl FnMut(&Asked) -> Reply,
) {
    let mut open = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let Some(asked) = read(&mut stream).await else { continue };
        all.send_modify(|all| all.push(asked.clone()));
        match reply(&asked) {
            // Whoever had enough may have closed it.
            Reply::Raw(text) => drop(stream.write_all(&text).await),
            Reply::Half(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                open.push(stream);
            }
            Reply::Later(when, text) => drop(tokio::spawn(async move {
                when.notified().await;
                let _ = stream.write_all(text.as_bytes()).await;
            })),
            Reply::Hang => open.push(stream),
            Reply::Close => {}
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).unwrap();
    let mut words = head.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Asked { method, path, head })
}
