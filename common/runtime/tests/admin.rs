//! Tests the admin server over a real socket.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use epilogue_runtime::admin::{Admin, BindAddress};
use epilogue_runtime::health::{Checks, Flag};
use epilogue_runtime::process;
use prometheus::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("must connect");
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("must send");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("must be answered");
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let body = reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).expect("a body");
    (status, body)
}

#[tokio::test]
async fn the_three_pages_are_served_until_the_token_is_cancelled() {
    let registry = Registry::new();
    process::register(&registry, "0.1.0", "test").expect("must register");
    let caches = Flag::failing("pods: not listed yet");
    let ready = Checks::new().with_flag("caches", &caches);
    let live = Checks::new().with("ping", || Ok(()));
    let address: BindAddress = "127.0.0.1:0".parse().expect("must parse");
    let admin = Admin::bind(&address, live, ready, registry).await.expect("must listen");
    let address = admin.local_addr().expect("must have an address");
    let token = CancellationToken::new();
    let server = tokio::spawn(admin.serve(token.clone()));

    assert_eq!(fetch(address, "/livez").await, (200, "ok".to_owned()));
    let page = "[+]ping ok\n[+]runtime ok\nlivez check passed\n".to_owned();
    assert_eq!(fetch(address, "/livez?verbose").await, (200, page));
    let page = "[-]caches failed: pods: not listed yet\nreadyz check failed\n".to_owned();
    assert_eq!(fetch(address, "/readyz").await, (503, page));
    caches.pass();
    assert_eq!(fetch(address, "/readyz").await, (200, "ok".to_owned()));
    let (status, text) = fetch(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("epilogue_build_info"), "{text}");
    assert_eq!(fetch(address, "/other").await.0, 404);

    token.cancel();
    server.await.expect("must not panic").expect("must end well");
    assert!(TcpStream::connect(address).await.is_err());
}

/// An address of this machine that is not on the loopback. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[tokio::test]
async fn metrics_go_by_plain_http_to_the_loopback_alone() {
    let registry = Registry::new();
    process::register(&registry, "0.1.0", "test").expect("must register");
    let live = Checks::new().with("ping", || Ok(()));
    let all: BindAddress = "0.0.0.0:0".parse().expect("must parse");
    let admin = Admin::bind(&all, live, Checks::new(), registry).await.expect("must listen");
    let admin = admin.probed(&all).await.expect("must listen");
    let [open, probes] = [admin.local_addr(), admin.probe_addr()].map(|it| it.expect("a port"));
    let token = CancellationToken::new();
    let server = tokio::spawn(admin.serve(token.clone()));
    let near = IpAddr::from([127, 0, 0, 1]);
    let at = |ip: IpAddr, port: SocketAddr| SocketAddr::new(ip, port.port());

    assert_eq!(fetch(at(near, open), "/metrics").await.0, 200);
    // The port of probes has no metrics for anyone.
    for (path, expected) in [("/livez", 200), ("/readyz", 200), ("/metrics", 404)] {
        assert_eq!(fetch(at(near, probes), path).await.0, expected, "{path}");
    }
    // A machine without a network has no other clients.
    if let Some(far) = own_address() {
        let (status, text) = fetch(at(far, open), "/metrics").await;
        assert_eq!(status, 404, "{text}");
        assert!(text.contains("--scrape-bind-address"), "{text}");
        for (path, expected) in [("/livez", 200), ("/readyz", 200)] {
            assert_eq!(fetch(at(far, open), path).await.0, expected, "{path}");
            assert_eq!(fetch(at(far, probes), path).await.0, expected, "{path}");
        }
    }
    token.cancel();
    server.await.expect("must not panic").expect("must end well");
}

#[tokio::test]
async fn an_open_connection_does_not_hold_up_the_end() {
    let address = BindAddress::Host("127.0.0.1".to_owned(), 0);
    let admin = Admin::bind(&address, Checks::new(), Checks::new(), Registry::new())
        .await
        .expect("must listen");
    let address = admin.local_addr().expect("must have an address");
    let token = CancellationToken::new();
    let server = tokio::spawn(admin.serve(token.clone()));
    let mut stream = TcpStream::connect(address).await.expect("must connect");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.expect("must send");
    token.cancel();
    server.await.expect("must not panic").expect("must end well");
}

/// Starts a server without metrics; returns its address and the token that stops it.
async fn bare(connections: usize) -> (SocketAddr, CancellationToken) {
    let address = BindAddress::Host("127.0.0.1".to_owned(), 0);
    let live = Checks::new().with("ping", || Ok(()));
    let admin = Admin::bind(&address, live, Checks::new(), Registry::new()).await;
    let admin = admin.expect("must listen").connections(connections);
    let address = admin.local_addr().expect("must have an address");
    let token = CancellationToken::new();
    tokio::spawn(admin.serve(token.clone()));
    (address, token)
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_disconnected() {
    let (address, token) = bare(32).await;
    let mut stream = TcpStream::connect(address).await.expect("must connect");
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: ").await.expect("must send");
    let begun = Instant::now();
    let mut reply = Vec::new();
    // The server closes or resets the connection, with or without a reply.
    let _ = stream.read_to_end(&mut reply).await;
    assert!(begun.elapsed() >= Duration::from_secs(4), "a slow client has its time");
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert!(!reply.contains("200 OK"), "{reply}");
    token.cancel();
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let (address, token) = bare(32).await;
    let mut stream = TcpStream::connect(address).await.expect("must connect");
    let head = format!("GET /livez HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "x".repeat(9_000));
    // The server may close the connection before the head is sent.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert!(reply.is_empty() || reply.contains(" 431 "), "{reply}");
    assert_eq!(fetch(address, "/livez").await.0, 200);
    token.cancel();
}

#[tokio::test]
async fn hundreds_of_silent_connections_keep_no_client_out() {
    let (address, token) = bare(16).await;
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(address).await.expect("must connect"));
    }
    for page in ["/livez", "/metrics", "/readyz"] {
        assert_eq!(fetch(address, page).await.0, 200, "{page}");
    }
    let mut first = silent.swap_remove(0);
    let closed = first.read(&mut [0; 8]).await;
    assert!(!matches!(closed, Ok(1..)), "the oldest made room: {closed:?}");
    token.cancel();
}

#[tokio::test]
async fn switched_off_it_takes_no_port_and_still_ends_by_the_token() {
    let admin = Admin::bind(&BindAddress::Off, Checks::new(), Checks::new(), Registry::new())
        .await
        .expect("must do nothing");
    assert_eq!(admin.local_addr(), None);
    let token = CancellationToken::new();
    token.cancel();
    admin.serve(token).await.expect("must end well");
}
