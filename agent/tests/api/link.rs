//! Tests the standing connection against a server that counts its connections and can make one
//! silent.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epilogue_agent::client::LinkedClient;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::WITHIN;

/// The number of connections that came, and the number of the first that is not silent.
#[derive(Clone, Debug, Default)]
struct Counters {
    connections: Arc<AtomicU64>,
    speaks_from: Arc<AtomicU64>,
}

async fn serve(counters: Counters) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("must listen");
    let address = listener.local_addr().expect("must have an address");
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let number = counters.connections.fetch_add(1, Ordering::SeqCst) + 1;
            let speaks_from = Arc::clone(&counters.speaks_from);
            let service = service_fn(move |_: Request<Incoming>| {
                let speaks_from = Arc::clone(&speaks_from);
                async move {
                    if number < speaks_from.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    let body = number.to_string().into_bytes();
                    Ok::<_, Infallible>(Response::new(Body::from(body)))
                }
            });
            connections.spawn(async move {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

fn linked(address: SocketAddr) -> LinkedClient {
    let url = format!("http://{address}").parse().expect("must be an address");
    let client = LinkedClient::new(&kube::Config::new(url), None, Arc::new(|_| {}));
    client.expect("must be a client")
}

/// The number of the connection that answers; `None` after a second, the time of an attempt.
async fn ask(client: &LinkedClient) -> Option<u64> {
    let request = Request::get("/version").body(Vec::new()).expect("must be a request");
    let asked = timeout(Duration::from_secs(1), client.client.request_text(request)).await;
    asked.ok()?.ok()?.parse().ok()
}

#[tokio::test]
async fn the_connection_is_there_before_the_first_request_and_serves_all() {
    let counters = Counters::default();
    let client = linked(serve(counters.clone()).await);
    let keeping = tokio::spawn(client.clone().keep());
    let opened = async {
        while counters.connections.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, opened).await.expect("must connect by itself");
    let answers = futures::future::join_all((0..50).map(|_| ask(&client))).await;
    assert_eq!(answers, vec![Some(1); 50]);
    assert_eq!(counters.connections.load(Ordering::SeqCst), 1);
    keeping.abort();
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_heard_is_replaced() {
    let counters = Counters::default();
    counters.speaks_from.store(2, Ordering::SeqCst);
    let client = linked(serve(counters.clone()).await);
    let keeping = tokio::spawn(client.clone().keep());
    assert_eq!(ask(&client).await, None, "the first connection is silent");
    let again = async {
        loop {
            if let Some(number) = ask(&client).await {
                return number;
            }
        }
    };
    let number = timeout(WITHIN, again).await.expect("must be answered");
    assert!(number >= 2, "{number}");
    keeping.abort();
}
