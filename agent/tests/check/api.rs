//! Tests what `check` asks the API, against a double that answers by path.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use doubles::systemd1::{State, Systemd1};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Host;

/// The answers of the double.
#[derive(Clone, Copy, Default)]
struct Answers {
    /// A missing permission, as `verb resource`.
    denied: Option<(&'static str, &'static str)>,
    /// The status code of the answer to the patch with DisruptionTarget; 0 for 200.
    mark_code: u16,
    no_pods: bool,
    /// A proxy to the API is a static pod here.
    proxy: bool,
    no_node: bool,
}

/// The API's double; it stops when its value is dropped.
struct ApiDouble {
    kubeconfig: PathBuf,
    /// The requests that came, without access reviews, with the body of patches.
    seen: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl ApiDouble {
    async fn start(host: &Host, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
        let address = listener.local_addr().expect("must have one");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let log = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, answers, Arc::clone(&log)));
            }
        });
        let kubeconfig = host.root.path().join("kubeconfig");
        let document = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        fs::write(&kubeconfig, document.to_string()).expect("the root must be writable");
        Self { kubeconfig, seen, _tasks: tasks }
    }

    fn flag(&self) -> String {
        format!("--kubeconfig={}", self.kubeconfig.display())
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no holder panics").clone()
    }
}

/// Serves one connection, request by request.
async fn serve(mut stream: TcpStream, answers: Answers, seen: Arc<Mutex<Vec<String>>>) {
    let mut buffer = Vec::new();
    loop {
        let (head, body) = loop {
            if let Some(request) = take(&mut buffer) {
                break request;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let line = head.lines().next().unwrap_or_default().replace(" HTTP/1.1", "");
        let (code, answer) = answer(&line, &body, answers);
        if !line.starts_with("POST ") {
            seen.lock().expect("no holder panics").push(format!("{line} {body}"));
        }
        let text = answer.to_string();
        let reply = format!(
            "HTTP/1.1 {code} Said\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n\
             {text}",
            text.len()
        );
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Takes a whole request off the buffer: its head and its body.
fn take(buffer: &mut Vec<u8>) -> Option<(String, String)> {
    let end = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let whole = end + length.unwrap_or(0);
    if buffer.len() < whole {
        return None;
    }
    let body = String::from_utf8_lossy(&buffer[end..whole]).into_owned();
    buffer.drain(..whole);
    Some((head, body))
}

fn answer(line: &str, body: &str, answers: Answers) -> (u16, Value) {
    let status = |code: u16, reason: &str| {
        let message = format!("said {reason}");
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                      "reason": reason, "message": message, "metadata": {}}),
        )
    };
    let pod = json!({
        "metadata": {"namespace": "work", "name": "p", "uid": "u", "resourceVersion": "7"},
        "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    });
    if line.starts_with("POST ") {
        let review: Value = serde_json::from_str(body).expect("must be JSON");
        let asked = &review["spec"]["resourceAttributes"];
        let denied = answers.denied.is_some_and(|(verb, resource)| {
            let subresource = asked["subresource"].as_str().unwrap_or_default();
            let name = asked["resource"].as_str().unwrap_or_default();
            let whole = format!("{name}/{subresource}");
            asked["verb"] == verb && whole.trim_end_matches('/') == resource
        });
        return (201, json!({"status": {"allowed": !denied}}));
    }
    if line.starts_with("PATCH ") {
        return match answers.mark_code {
            403 => status(403, "Forbidden"),
            _ => (200, pod),
        };
    }
    if line.starts_with("GET /api/v1/nodes/n") {
        return if answers.no_node { status(404, "NotFound") } else { (200, json!({})) };
    }
    let mut pods = if answers.no_pods { vec![] } else { vec![pod] };
    if answers.proxy {
        pods.push(json!({
            "metadata": {"namespace": "kube-system", "name": "haproxy-n", "uid": "x",
                         "annotations": {"kubernetes.io/config.mirror": "a"}},
            "spec": {"nodeName": "n", "hostNetwork": true, "containers": [{"name": "main"}]},
            "status": {"phase": "Running"},
        }));
    }
    (200, json!({"kind": "PodList", "metadata": {}, "items": pods}))
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_would_get_through_and_nothing_is_changed() {
    let host = Host::start();
    let _logind = host.logind(40).await;
    let _cri = host.containers().await;
    let api = ApiDouble::start(&host, Answers::default()).await;
    let printed = host.check(&[&api.flag(), "--node-name=n"]).await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
    printed.assert("api", "ok", "DisruptionTarget on work/p would be accepted");
    let seen = api.seen();
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(seen[1].starts_with("GET /api/v1/pods?limit=50&fieldSelector=spec.nodeName%3Dn"));
    let path = "PATCH /api/v1/namespaces/work/pods/p/status?dryRun=All&fieldManager=epilogue-agent";
    assert!(seen[2].starts_with(path), "{seen:?}");
    let mark = ["DisruptionTarget", "TerminationByKubelet", r#""uid":"u""#];
    assert!(mark.iter().all(|word| seen[2].contains(word)), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_of_reports_fails_with_its_remedy() {
    let table = [
        (
            Answers { denied: Some(("patch", "pods/status")), ..Answers::default() },
            "the API forbids patch pods/status kubectl apply",
        ),
        (
            Answers { denied: Some(("patch", "nodes/status")), ..Answers::default() },
            "the API forbids patch nodes/status kubectl apply",
        ),
        (
            Answers { denied: Some(("get", "nodes/configz")), ..Answers::default() },
            "the API forbids get nodes/configz kubectl apply",
        ),
        (Answers { mark_code: 403, ..Answers::default() }, "would be refused: said Forbidden"),
        (Answers { no_node: true, ..Answers::default() }, "node n not found"),
    ];
    let host = Host::start();
    let _logind = host.logind(40).await;
    for (answers, words) in table {
        let api = ApiDouble::start(&host, answers).await;
        let printed = host.check(&[&api.flag(), "--node-name=n"]).await;
        assert_eq!(printed.code, 1, "{}", printed.stdout);
        printed.assert("api", "fail", words);
    }
    let api = ApiDouble::start(&host, Answers { no_pods: true, ..Answers::default() }).await;
    let flag = api.flag();
    host.check(&[&flag, "--node-name=n"]).await.assert("api", "ok", "no pod here to try");
    drop(api);
    let printed = host.check(&[&flag, "--node-name=n"]).await;
    printed.assert("api", "fail", "gives no answer");
    let printed = host.check(&["--kubeconfig=/does/not/exist", "--node-name=n"]).await;
    printed.assert("api", "fail", "cannot read the kubeconfig");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_that_may_carry_the_way_to_the_api_is_named() {
    // The double of the API listens on the loopback.
    let host = Host::start();
    let _logind = host.logind(40).await;
    let answers = Answers { proxy: true, ..Answers::default() };
    let api = ApiDouble::start(&host, answers).await;
    let printed = host.check(&[&api.flag(), "--node-name=n"]).await;
    printed.assert("api", "warn", "static pods here may carry it: kube-system/haproxy-n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_that_would_be_taken_is_reported() {
    let host = Host::start();
    let _logind = host.logind(40).await;
    let printed = host.check(&[]).await;
    printed.assert("mode", "ok", "Replace: the agent deletes the pods through the API, because");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("must be bindable");
    let address = listener.local_addr().expect("must have one");
    let fails = async move {
        let (mut stream, _) = listener.accept().await.expect("must come");
        // Closing a connection with unread bytes resets it.
        let mut request = [0; 1024];
        let read = stream.read(&mut request).await.expect("must be readable");
        assert!(request[..read].ends_with(b"\r\n\r\n"), "a request must come in one piece");
        let answer = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).await.expect("must be writable");
    };
    let flag = format!("--kubelet-healthz-address={address}");
    let flags = [flag.as_str()];
    let (printed, ()) = tokio::join!(host.check(&flags), fails);
    // No kubelet answers so; whoever does says nothing of its life. ([SD26])
    printed.assert("mode", "ok", "Replace");
    // Nothing listens there any more, and its unit does not run.
    let inactive =
        State { unit: "kubelet.service".into(), active: "inactive".into(), ..State::default() };
    let _systemd = Systemd1::start(&host.bus.address, inactive, || {}).await;
    let printed = host.check(&flags).await;
    printed.assert("mode", "fail", "the kubelet is dead");
    assert_eq!(
        printed.report()["mode"],
        "assist",
        "without a runtime the agent cannot terminate the pods"
    );
}
