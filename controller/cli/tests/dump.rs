//! Runs `kubectl epilogue dump` as a user does: on a dump, and against an API server.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doctor/dump.yaml");
const AT: &str = "--at=2026-11-21T12:00:00Z";

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .args(arguments)
        .output()
        .expect("the program must be startable")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("must be UTF-8")
}

/// The objects of the fixture, by kind.
fn fixture(kind: &str) -> Vec<Value> {
    let dump = std::fs::read_to_string(FIXTURE).expect("must be readable");
    let dump: Value = serde_yaml_ng::from_str(&dump).expect("must be YAML");
    let items = dump["items"].as_array().expect("must be a list");
    items.iter().filter(|item| item["kind"] == kind).cloned().collect()
}

/// What an API server lists at each path; it refuses all others with 403.
fn api(lists: BTreeMap<&'static str, Vec<Value>>) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
    let port = listener.local_addr().expect("it has an address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection must come in");
            let request = BufReader::new(connection.try_clone().expect("it can be cloned"));
            let mut lines = request.lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let path = first.split([' ', '?']).nth(1).unwrap_or_default();
            let (code, body) = match lists.get(path) {
                // In a list, the items have no kind.
                Some(items) => (
                    200,
                    json!({"kind": "SomeList", "metadata": {}, "items":
                    items.iter().cloned().map(without_kind).collect::<Vec<_>>()}),
                ),
                None => (
                    403,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                                     "reason": "Forbidden", "message": "no", "code": 403}),
                ),
            };
            let body = body.to_string();
            let reply = format!(
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
            // A program that ends at a refusal leaves its other requests unread.
            drop(connection.write_all(reply.as_bytes()));
        }
    });
    kubeconfig(port)
}

fn without_kind(mut object: Value) -> Value {
    let fields = object.as_object_mut().expect("must be an object");
    fields.remove("kind");
    fields.remove("apiVersion");
    object
}

fn kubeconfig(port: u16) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dump-kubeconfig-{port}"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&path, config.to_string()).expect("the kubeconfig must be writable");
    path
}

#[test]
fn a_redacted_dump_has_the_findings_of_the_original() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let path = directory.path().join("dump.yaml");
    let output = run(&["dump", "-f", FIXTURE, "-o", utf8(&path)]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output), format!("wrote {}\n", path.display()));
    let doctor = run(&["doctor", AT, "-f", utf8(&path)]);
    assert_eq!(text(&doctor), include_str!("doctor/findings.txt"));
    for arguments in [["doctor", "silent"], ["doctor", "well"], ["explain", "job/stuck"]] {
        let of = |dump: &str| run(&[&arguments[..], &[AT, "-f", dump]].concat());
        let (original, redacted) = (of(FIXTURE), of(utf8(&path)));
        assert_eq!(text(&redacted), text(&original), "{arguments:?}");
        assert_eq!(redacted.status.code(), original.status.code());
    }
}

#[test]
fn a_dump_of_a_cluster_has_the_findings_of_the_cluster() {
    let api = api(BTreeMap::from([
        ("/api/v1/namespaces/work/pods", fixture("Pod")),
        ("/apis/batch/v1/namespaces/work/jobs", fixture("Job")),
        ("/api/v1/nodes", fixture("Node")),
        ("/api/v1/namespaces/work", vec![json!({"metadata": {"name": "work"}})]),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", Vec::new()),
        ("/api/v1/namespaces/work/events", Vec::new()),
        ("/api/v1/namespaces/default/events", Vec::new()),
        ("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings", Vec::new()),
    ]));
    let api = ["-n", "work", "--kubeconfig", utf8(&api)];
    let output = run(&[&["dump"], &api[..]].concat());
    assert!(output.status.success(), "{output:?}");
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(warning, "warning: not in the dump, because they may not be read: leases\n");
    let dump = text(&output);
    let (first, _) = dump.split_once('\n').expect("must have lines");
    assert!(first.starts_with("# kubectl epilogue doctor -A -f FILE --at=2"), "{first}");
    let directory = tempfile::tempdir().expect("must be creatable");
    let path = directory.path().join("dump.yaml");
    std::fs::write(&path, &dump).expect("must be writable");
    let live = run(&[&["doctor", AT], &api[..]].concat());
    let dumped = run(&["doctor", AT, "-f", utf8(&path)]);
    assert_eq!(text(&dumped), text(&live));
    assert!(!text(&live).contains("namespaces-not-read"), "{}", text(&live));
    assert!(text(&live).contains("[leases-not-read]"), "{}", text(&live));
    assert_eq!(dumped.status.code(), Some(1));
}

#[test]
fn an_account_without_rights_gets_an_error_and_no_file() {
    let api = api(BTreeMap::new());
    let directory = tempfile::tempdir().expect("must be creatable");
    let path = directory.path().join("dump.yaml");
    let output = run(&["dump", "-A", "--kubeconfig", utf8(&api), "-o", utf8(&path)]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("error: neither pods nor Jobs may be read; use "), "{error}");
    assert!(!path.exists());
}
