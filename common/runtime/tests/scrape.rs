//! Tests metrics over the network: HTTPS, for bearers that the API server knows and allows.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use epilogue_runtime::admin::{Admin, AdminError, BindAddress, Certificate};
use epilogue_runtime::health::Checks;
use epilogue_runtime::process;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

/// An API server that knows `scraper`, which may read metrics, and `guest`, which may not.
#[derive(Default)]
struct Reviews {
    asked: AtomicUsize,
    is_down: AtomicBool,
}

impl Reviews {
    fn client(self: &Arc<Self>) -> Client {
        let reviews = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let reviews = Arc::clone(&reviews);
            async move { Ok::<_, std::convert::Infallible>(reviews.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_down.load(Ordering::SeqCst) {
            return Response::builder().status(503).body(Body::empty()).expect("an answer");
        }
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let review: Value = serde_json::from_slice(&body).expect("a review");
        let status = match path.as_str() {
            "/apis/authentication.k8s.io/v1/tokenreviews" => {
                let token = review["spec"]["token"].as_str().expect("a token");
                let known = ["scraper", "guest"].contains(&token);
                json!({"authenticated": known, "user": {"username": token, "groups": ["all"]}})
            }
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                let asked = json!({"path": "/metrics", "verb": "get"});
                assert_eq!(review["spec"]["nonResourceAttributes"], asked);
                assert_eq!(review["spec"]["groups"], json!(["all"]));
                json!({"allowed": review["spec"]["user"] == "scraper"})
            }
            other => panic!("nothing else may be asked: {other}"),
        };
        let answer = json!({"status": status}).to_string();
        Response::builder().status(201).body(Body::from(answer.into_bytes())).expect("an answer")
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Writes a certificate for 127.0.0.1 to `directory`.
fn certify(directory: &Path) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(directory.join("tls.crt"), made.cert.pem()).expect("it is written");
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).expect("written");
}

async fn serve(
    certificate: &Certificate,
    reviews: &Arc<Reviews>,
) -> Result<SocketAddr, AdminError> {
    let registry = Registry::new();
    process::register(&registry, "0.1.0", "test").expect("must register");
    let admin = Admin::bind(&BindAddress::Off, Checks::new(), Checks::new(), registry).await?;
    let address: BindAddress = "127.0.0.1:0".parse()?;
    let admin = admin.scraped(&address, certificate, reviews.client()).await?;
    let address = admin.scrape_addr().expect("an address");
    tokio::spawn(admin.serve(CancellationToken::new()));
    Ok(address)
}

/// Returns status and body. The server must show the directory's certificate.
async fn get(address: SocketAddr, directory: &Path, path: &str, token: &str) -> (u16, String) {
    let certificate = CertificateDer::from_pem_file(directory.join("tls.crt")).expect("PEM");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.expect("must connect");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await.expect("the certificate must hold");
    let bearer =
        if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n{bearer}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("must send");
    let mut reply = String::new();
    // The server may close without a TLS close notification.
    let _ = stream.read_to_string(&mut reply).await;
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, reply)
}

#[tokio::test]
async fn only_bearers_with_the_right_read_metrics() {
    let directory = tempfile::tempdir().expect("a directory");
    certify(directory.path());
    let reviews = Arc::new(Reviews::default());
    let certificate = Certificate::Directory(directory.path().to_owned());
    let address = serve(&certificate, &reviews).await.expect("must listen");
    let table = [
        ("", 401, "WWW-Authenticate: Bearer"),
        ("Basic c2NyYXBlcg==", 401, "bearer token"),
        ("Bearer ", 401, "bearer token"),
        ("Bearer stranger", 401, "bearer token"),
        ("Bearer guest", 403, "nonResourceURL /metrics"),
        ("Bearer scraper", 200, "epilogue_build_info"),
    ];
    for (token, status, words) in table {
        let (code, reply) = get(address, directory.path(), "/metrics", token).await;
        let has = reply.to_lowercase().contains(&words.to_lowercase());
        assert!(code == status && has, "{token}: {reply}");
    }
    let (code, _) = get(address, directory.path(), "/readyz", "Bearer scraper").await;
    assert_eq!(code, 404, "health is for the node");
    // Each verdict is cached, also while the API server is down.
    let asked = reviews.asked();
    reviews.is_down.store(true, Ordering::SeqCst);
    assert_eq!(get(address, directory.path(), "/metrics", "Bearer scraper").await.0, 200);
    assert_eq!(get(address, directory.path(), "/metrics", "Bearer guest").await.0, 403);
    assert_eq!(reviews.asked(), asked);
    assert_eq!(get(address, directory.path(), "/metrics", "Bearer late").await.0, 503);
}

#[tokio::test]
async fn a_rotated_certificate_is_shown_without_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    certify(directory.path());
    let reviews = Arc::new(Reviews::default());
    let certificate = Certificate::Directory(directory.path().to_owned());
    let address = serve(&certificate, &reviews).await.expect("must listen");
    for _ in 0..2 {
        // The client trusts the certificate that is in the directory now.
        certify(directory.path());
        assert_eq!(get(address, directory.path(), "/metrics", "Bearer scraper").await.0, 200);
    }
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_names_file_and_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    let reviews = Arc::new(Reviews::default());
    let certificate = Certificate::Directory(directory.path().to_owned());
    let error = serve(&certificate, &reviews).await.expect_err("there is none");
    let why = std::error::Error::source(&error).expect("a reason").to_string();
    assert!(why.contains("tls.crt") && why.contains("PEM"), "{why}");
    assert!(serve(&Certificate::SelfSigned, &reviews).await.is_ok());
}
