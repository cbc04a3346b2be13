//! Tests the API client: from a kubeconfig to a server on a real socket, and its errors.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use epilogue_common::outcome::FailureKind;
use epilogue_runtime::api_error::classify;
use epilogue_runtime::client::{ClientError, ClientOptions, connect};
use epilogue_runtime::rate_limit::RateLimit;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

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
    assert_eq!(failure.message.matches("Connection refused").count(), 1, "{}", failure.message);
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
