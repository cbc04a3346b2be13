//! Tests the API client: from a kubeconfig to a server on a real socket, and its errors.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use epilogue_common::outcome::FailureKind;
use epilogue_runtime::api_error::classify;
use epilogue_runtime::client::{ClientError, ClientOptions, connect};
use epilogue_runtime::rate_limit::RateLimit;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_util::task::AbortOnDropHandle;

fn options(kubeconfig: &Path) -> ClientOptions {
    ClientOptions {
        kubeconfig: Some(kubeconfig.to_owned()),
        user_agent: "epilogue-controller/0.1.0".to_owned(),
        rate_limit: RateLimit::default(),
    }
}

fn write(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("must make a directory");
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, text).expect("must write");
    (directory, path)
}

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: {server}}}}}]\n\
         users: [{{name: a, user: {{}}}}]\n"
    )
}

#[tokio::test]
async fn requests_carry_our_name_and_replies_are_classified() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("must listen");
    let address = listener.local_addr().expect("must have an address");
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("must be called");
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.expect("must be sent to");
        let body =
            r#"{"kind":"Status","code":404,"reason":"NotFound","message":"pods \"a\" not found"}"#;
        let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).await.expect("must answer");
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let (_directory, path) = write(&kubeconfig(&format!("http://{address}")));
    let client = connect(&options(&path)).await.expect("must make a client");
    let error = Api::<Pod>::default_namespaced(client).get("a").await.expect_err("must be gone");
    let failure = classify(error);
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert_eq!(failure.message, "pods \"a\" not found");
    let request = server.await.expect("must not panic");
    assert!(request.contains("user-agent: epilogue-controller/0.1.0"), "{request}");
}

/// A server that speaks HTTP/2 by TLS, and HTTP/1.1 to whoever knows no other. It answers each
/// request with 404 after a while, and counts connections.
async fn tls_server(offered: &[&[u8]]) -> (String, Arc<AtomicUsize>, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("must listen");
    let address = listener.local_addr().expect("must have an address");
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
    let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).expect("a key");
    let mut tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .expect("a certificate");
    tls.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let serve = async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("must be called");
            let Ok(stream) = acceptor.accept(tcp).await else { continue };
            count.fetch_add(1, Ordering::Relaxed);
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let answer = service_fn(move |request: Request<Incoming>| async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                assert_eq!(request.version() == Version::HTTP_2, is_http2);
                Response::builder().status(404).body(String::new())
            });
            let io = TokioIo::new(stream);
            tokio::spawn(async move {
                // A client that hangs up ends its connection only.
                let _ = if is_http2 {
                    http2::Builder::new(TokioExecutor::new()).serve_connection(io, answer).await
                } else {
                    http1::Builder::new().serve_connection(io, answer).await
                };
            });
        }
    };
    let server = AbortOnDropHandle::new(tokio::spawn(serve));
    (format!("https://{address}"), connections, server)
}

#[tokio::test]
async fn calls_share_one_connection_where_the_server_speaks_http_2() {
    for (offered, at_most) in [(&[&b"h2"[..], b"http/1.1"][..], 1), (&[b"http/1.1"], 20)] {
        let (url, connections, _server) = tls_server(offered).await;
        let text = kubeconfig(&url).replace("server:", "insecure-skip-tls-verify: true, server:");
        let (_directory, path) = write(&text);
        let client = connect(&options(&path)).await.expect("must make a client");
        let pods: Api<Pod> = Api::default_namespaced(client);
        pods.get("first").await.expect_err("must be gone");
        let calls = (0..20).map(|_| pods.get("a"));
        for reply in futures::future::join_all(calls).await {
            assert_eq!(classify(reply.expect_err("must be gone")).kind, FailureKind::NotFound);
        }
        let connections = connections.load(Ordering::Relaxed);
        assert!((1..=at_most).contains(&connections), "{connections} of {at_most}");
    }
}

/// An authority: its certificate in PEM, and what signs.
fn authority() -> (String, Issuer<'static, KeyPair>) {
    let params = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let key = KeyPair::generate().expect("a key");
    let pem = params().self_signed(&key).expect("a certificate").pem();
    (pem, Issuer::new(params(), key))
}

/// A server for one connection after the other, each with the certificate of the next authority.
/// It answers each request with 404, and ends the connection.
async fn server_of(authorities: [&Issuer<'static, KeyPair>; 2]) -> (u16, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("must listen");
    let port = listener.local_addr().expect("must have an address").port();
    let acceptors = authorities.map(|authority| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        let signed = params.signed_by(&key, authority).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let tls = ServerConfig::builder().with_no_client_auth();
        let tls = tls.with_single_cert(vec![signed.der().clone()], key).expect("a certificate");
        TlsAcceptor::from(Arc::new(tls))
    });
    let serve = async move {
        let mut served = 0;
        loop {
            let (tcp, _) = listener.accept().await.expect("must be called");
            let Ok(mut stream) = acceptors[served].accept(tcp).await else { continue };
            let mut request = [0; 4096];
            // A client that rejects the certificate of TLS 1.3 ends the connection only now.
            if !matches!(stream.read(&mut request).await, Ok(1..)) {
                continue;
            }
            let reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(reply).await.expect("must answer");
            stream.shutdown().await.expect("must end");
            served = (served + 1).min(1);
        }
    };
    (port, AbortOnDropHandle::new(tokio::spawn(serve)))
}

#[tokio::test]
async fn a_rotated_authority_is_read_from_its_file_when_the_server_has_the_new_one() {
    let ((former, signs_former), (renewed, signs_renewed)) = (authority(), authority());
    let (port, _server) = server_of([&signs_former, &signs_renewed]).await;
    let server = format!("https://127.0.0.1:{port}, certificate-authority: ca.crt");
    let (directory, path) = write(&kubeconfig(&server));
    let file = directory.path().join("ca.crt");
    std::fs::write(&file, former).expect("must write");
    let client = connect(&options(&path)).await.expect("must make a client");
    let pods: Api<Pod> = Api::default_namespaced(client);
    let get = async || classify(pods.get("a").await.expect_err("must be gone"));
    assert_eq!(get().await.kind, FailureKind::NotFound);

    let failure = get().await;
    assert!(failure.message.contains("invalid peer certificate"), "{failure:?}");
    std::fs::write(&file, "no certificate").expect("must write");
    let failure = get().await;
    assert!(failure.message.contains("invalid peer certificate"), "{failure:?}");
    std::fs::write(&file, renewed).expect("must write");
    assert_eq!(get().await.kind, FailureKind::NotFound);
}

#[tokio::test]
async fn no_server_is_an_unknown_outcome_in_one_readable_line() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("must listen");
    let address = listener.local_addr().expect("must have an address");
    drop(listener);
    let (_directory, path) = write(&kubeconfig(&format!("http://{address}")));
    let client = connect(&options(&path)).await.expect("must make a client");
    let error = Api::<Pod>::default_namespaced(client).get("a").await.expect_err("must fail");
    let failure = classify(error);
    assert_eq!(failure.kind, FailureKind::Unknown);
    assert!(!failure.is_in_doubt(), "nothing was sent: {failure:?}");
    assert_eq!(failure.message.matches("Connection refused").count(), 1, "{}", failure.message);
}

#[tokio::test]
async fn a_connection_that_ends_before_the_reply_leaves_the_call_in_doubt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("must listen");
    let address = listener.local_addr().expect("must have an address");
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("must be called");
        let mut request = [0; 4096];
        stream.read(&mut request).await.expect("must read")
    });
    let (_directory, path) = write(&kubeconfig(&format!("http://{address}")));
    let client = connect(&options(&path)).await.expect("must make a client");
    let error = Api::<Pod>::default_namespaced(client).get("a").await.expect_err("must fail");
    let failure = classify(error);
    assert_eq!((failure.kind, failure.is_in_doubt()), (FailureKind::Unknown, true), "{failure:?}");
    server.await.expect("must not panic");
}

#[tokio::test]
async fn errors_name_the_file_and_the_flag() {
    let missing = Path::new("/nonexistent/kubeconfig");
    let error = connect(&options(missing)).await.err().expect("must fail");
    assert_eq!(
        error.to_string(),
        "cannot read the kubeconfig /nonexistent/kubeconfig (--kubeconfig)"
    );
    assert!(error.source().is_some());

    let (_directory, path) = write(&kubeconfig("http://a").replace("current-context: a", ""));
    let error = connect(&options(&path)).await.err().expect("must fail");
    assert!(matches!(error, ClientError::UseKubeconfig(..)), "{error:?}");
    assert!(error.to_string().contains("--kubeconfig"));

    let mut options = options(&path);
    options.user_agent = "a\nb".to_owned();
    std::fs::write(&path, kubeconfig("http://a")).expect("must write");
    let error = connect(&options).await.err().expect("must fail");
    assert!(matches!(error, ClientError::UserAgent(..)), "{error:?}");
}
