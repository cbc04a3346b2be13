//! A proxy before the API that can hold connections: it keeps back later data, as a network that
//! loses packets. It can also let watches stand still, as a server whose cache does. Plain HTTP to
//! one client, whose credentials go on to the API.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, stream};
use http::{HeaderValue, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// How often a watch that stands still sends a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(5);

type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// The proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    gates: Arc<Gates>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Gates(Mutex<Watches>);

#[derive(Debug, Default)]
struct Watches {
    /// For each open watch: its resource, and its gate.
    open: Vec<(String, watch::Sender<Gate>)>,
    /// The resource whose watches stand still.
    frozen: Option<String>,
}

/// What becomes of the data of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// It waits.
    Held,
    /// It waits, and bookmarks of the version before come instead.
    Frozen,
}

/// A watch, and what it has shown last.
struct Shown {
    body: Pin<Box<Body>>,
    gate: watch::Receiver<Gate>,
    /// What has come of an unfinished line.
    line: Vec<u8>,
    /// Of the last object: API version, kind, version.
    last: Option<[Value; 3]>,
}

impl Gates {
    fn new_gate(&self, resource: &str) -> watch::Receiver<Gate> {
        let mut gates = self.0.lock().expect("no holder panics");
        let is_frozen = gates.frozen.as_deref() == Some(resource);
        let (gate, seen) = watch::channel(if is_frozen { Gate::Frozen } else { Gate::Open });
        gates.open.push((resource.to_owned(), gate));
        seen
    }

    /// Sets the gates of the watches of a resource that are open now; returns their number.
    fn set(&self, resource: &str, to: Gate) -> usize {
        let mut gates = self.0.lock().expect("no holder panics");
        gates.frozen = (to == Gate::Frozen).then(|| resource.to_owned());
        gates.open.retain(|(_, gate)| gate.receiver_count() > 0);
        let of_it: Vec<_> = gates.open.iter().filter(|(of, _)| of == resource).collect();
        for (_, gate) in &of_it {
            // A watch closed since then has nothing to hold.
            let _ = gate.send(to);
        }
        of_it.len()
    }
}

impl Shown {
    fn new(body: Body, gate: watch::Receiver<Gate>) -> Self {
        Self { body: Box::pin(body), gate, line: Vec::new(), last: None }
    }

    async fn next(&mut self) -> Option<Result<Frame<Bytes>, kube::Error>> {
        loop {
            let gate = *self.gate.borrow_and_update();
            let bookmark = self.bookmark().filter(|_| gate == Gate::Frozen);
            tokio::select! {
                biased;
                changed = self.gate.changed() => changed.ok()?,
                frame = self.body.frame(), if gate == Gate::Open || !self.line.is_empty() => {
                    let frame = frame?;
                    if let Some(data) = frame.as_ref().ok().and_then(Frame::data_ref) {
                        self.saw(&data.clone());
                    }
                    return Some(frame);
                }
                () = tokio::time::sleep(BOOKMARK_EVERY), if bookmark.is_some() => {
                    return bookmark.map(Ok);
                }
            }
        }
    }

    /// Remembers the object of the last whole line, if the watch is in JSON.
    fn saw(&mut self, data: &[u8]) {
        self.line.extend_from_slice(data);
        let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') else { return };
        let lines: Vec<u8> = self.line.drain(..=end).collect();
        for line in lines.split(|byte| *byte == b'\n') {
            let Ok(mut event) = serde_json::from_slice::<Value>(line) else { continue };
            let object = &mut event["object"];
            let version = object["metadata"]["resourceVersion"].take();
            self.last = Some([object["apiVersion"].take(), object["kind"].take(), version]);
        }
    }

    fn bookmark(&self) -> Option<Frame<Bytes>> {
        let [api_version, kind, version] = self.last.as_ref()?;
        let metadata = json!({"resourceVersion": version, "creationTimestamp": null});
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        let line = format!("{}\n", json!({"type": "BOOKMARK", "object": object}));
        Some(Frame::data(Bytes::from(line)))
    }
}

impl Proxy {
    /// Starts it on loopback; it forwards to the API with this client, which has no credentials.
    pub async fn start(client: kube::Client) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let gates = Arc::new(Gates::default());
        let serving = tokio::spawn(serve(listener, client, Arc::clone(&gates)));
        Ok(Self { address, gates, _serving: AbortOnDropHandle::new(serving) })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Holds the watches of a resource (`pods`) that are open now; returns their number. Later
    /// watches are free.
    pub fn hold_watches(&self, resource: &str) -> usize {
        self.gates.set(resource, Gate::Held)
    }

    /// Lets the watches of a resource stand still, also later ones: they send bookmarks, and
    /// nothing that is new. Returns the number of those that are open.
    pub fn freeze_watches(&self, resource: &str) -> usize {
        self.gates.set(resource, Gate::Frozen)
    }

    /// Lets them move again.
    pub fn thaw_watches(&self, resource: &str) -> usize {
        self.gates.set(resource, Gate::Open)
    }
}

async fn serve(listener: TcpListener, client: kube::Client, gates: Arc<Gates>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (client, gates) = (client.clone(), Arc::clone(&gates));
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let (client, gates) = (client.clone(), Arc::clone(&gates));
                async move { Ok::<_, Infallible>(forward(request, client, &gates).await) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that goes away is not our error.
            drop(connection.await);
        });
    }
}

async fn forward(request: Request<Incoming>, client: kube::Client, gates: &Gates) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let resource = request.uri().path().rsplit('/').next().unwrap_or_default();
    let gate = query.contains("watch=true").then(|| gates.new_gate(resource));
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(header::HOST);
    if gate.is_some() {
        // The bookmarks of a watch that stands still are lines of JSON.
        parts.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    }
    let sent = match body.collect().await {
        Ok(body) => {
            let body = Body::from(body.to_bytes().to_vec());
            client.send(Request::from_parts(parts, body)).await.map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    match sent {
        Ok(answer) => answer.map(|body| match gate {
            Some(gate) => StreamBody::new(frames(Shown::new(body, gate))).boxed_unsync(),
            None => body.boxed_unsync(),
        }),
        Err(error) => {
            let body = Full::from(error).map_err(|never| match never {}).boxed_unsync();
            Response::builder().status(502).body(body).expect("must be an answer")
        }
    }
}

fn frames(shown: Shown) -> impl Stream<Item = Result<Frame<Bytes>, kube::Error>> {
    stream::unfold(shown, async |mut shown| {
        let frame = shown.next().await?;
        Some((frame, shown))
    })
}
