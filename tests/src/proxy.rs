//! A proxy before the API that can hold connections: it keeps back later data, as a network that
//! loses packets. Plain HTTP to one client, whose credentials go on to the API.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures::{Stream, stream};
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// The proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    gates: Arc<Gates>,
    _serving: AbortOnDropHandle<()>,
}

/// For each open watch: its resource, and whether it is held.
#[derive(Debug, Default)]
struct Gates(Mutex<Vec<(String, watch::Sender<bool>)>>);

impl Gates {
    fn new_gate(&self, resource: &str) -> watch::Receiver<bool> {
        let (gate, seen) = watch::channel(false);
        self.0.lock().expect("no holder panics").push((resource.to_owned(), gate));
        seen
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
        let mut gates = self.gates.0.lock().expect("no holder panics");
        gates.retain(|(_, gate)| gate.receiver_count() > 0);
        let of_it: Vec<_> = gates.iter().filter(|(of, _)| of == resource).collect();
        for (_, gate) in &of_it {
            // A watch closed since then has nothing to hold.
            let _ = gate.send(true);
        }
        of_it.len()
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
    let sent = match body.collect().await {
        Ok(body) => {
            let body = Body::from(body.to_bytes().to_vec());
            client.send(Request::from_parts(parts, body)).await.map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    match sent {
        Ok(answer) => answer.map(|body| match gate {
            Some(gate) => StreamBody::new(gated(body, gate)).boxed_unsync(),
            None => body.boxed_unsync(),
        }),
        Err(error) => {
            let body = Full::from(error).map_err(|never| match never {}).boxed_unsync();
            Response::builder().status(502).body(body).expect("must be an answer")
        }
    }
}

/// Data that arrives while the gate is closed waits behind it.
fn gated(
    body: Body,
    gate: watch::Receiver<bool>,
) -> impl Stream<Item = Result<Frame<Bytes>, kube::Error>> {
    stream::unfold((Box::pin(body), gate), async |(mut body, mut gate)| {
        let frame = body.frame().await?;
        gate.wait_for(|held| !held).await.ok()?;
        Some((frame, (body, gate)))
    })
}
