//! Runs `kubectl epilogue explain` as a user does, against an API server that refuses.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;

/// Starts an API server that answers every request with this status; returns its kubeconfig.
fn api(code: u16, reason: &'static str, message: &str) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
    let port = listener.local_addr().expect("it has an address").port();
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "reason": reason, "message": message, "code": code});
    let body = status.to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection must come in");
            let request = BufReader::new(connection.try_clone().expect("it can be cloned"));
            let lines = request.lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let reply = format!(
                "HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            // A program that ends at a refusal leaves its other requests unread.
            drop(connection.write_all(reply.as_bytes()));
        }
    });
    kubeconfig(port)
}

fn kubeconfig(port: u16) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kubeconfig-{port}"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&path, config.to_string()).expect("the kubeconfig must be writable");
    path
}

fn explain(kubeconfig: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .args(["explain", "job/nope", "--namespace=work", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .expect("the program must be startable")
}

#[track_caller]
fn assert_error(kubeconfig: &Path, expected: &str) {
    let output = explain(kubeconfig);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn a_job_that_does_not_exist_is_named_with_the_command_that_lists_jobs() {
    let api = api(404, "NotFound", "jobs.batch \"nope\" not found");
    assert_error(
        &api,
        "error: Job work/nope does not exist; list the Jobs by `kubectl get jobs -n work`, or \
         choose another --namespace or --context\n",
    );
}

#[test]
fn a_refusal_has_the_api_s_own_message_and_the_remedy() {
    let message = "jobs.batch \"nope\" is forbidden: User \"u\" cannot get resource \"jobs\"";
    let api = api(403, "Forbidden", message);
    assert_error(
        &api,
        &format!(
            "error: cannot get /apis/batch/v1/namespaces/work/jobs/nope: {message}; ask for the \
             right to read it, or choose another --context\n"
        ),
    );
}

#[test]
fn an_api_that_does_not_answer_is_reported_with_the_remedy() {
    // Nothing listens on a port that was just given back.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let output = explain(&kubeconfig(port.expect("a port must be free").port()));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot get /apis/batch/v1/namespaces/work/jobs/nope: "), "{error}");
    let remedy = "; nothing listens there: check that the API server is up, and the server of the \
                  kubeconfig, or choose another --context\n";
    assert!(error.ends_with(remedy), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_job_may_be_named_as_kubectl_takes_it() {
    let dump = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doctor/dump.yaml");
    let explain = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
            .args(["explain", "--filename", dump])
            .args(arguments)
            .output()
            .expect("the program must be startable");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for arguments in [&["nope"][..], &["job/nope"], &["job", "nope"], &["jobs.batch", "nope"]] {
        let error = explain(arguments);
        assert!(error.contains("the dump holds no Job nope"), "{arguments:?}: {error}");
    }
    assert!(explain(&["a", "b"]).contains("expected one Job, such as job/a"));
    for arguments in [&["pod/nope"][..], &["pod", "nope"]] {
        let error = explain(arguments);
        assert!(error.contains("pod nope does not exist, or is gone"), "{arguments:?}: {error}");
    }
}

/// A pod of a Job is named instead of the Job: the lines about the other pods are left out.
#[test]
fn a_pod_of_a_job_is_explained_alone() {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "train",
                       "controller": true});
    let pod = |name: &str, owners: &[&serde_json::Value]| {
        json!({"kind": "Pod", "apiVersion": "v1",
               "metadata": {"namespace": "work", "name": name, "uid": name, "labels": {"a": "b"},
                            "creationTimestamp": "2026-11-21T12:00:00Z", "ownerReferences": owners},
               "spec": {"nodeName": "n"},
               "status": {"phase": "Running", "conditions": [{
                   "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                   "lastTransitionTime": "2026-11-21T12:30:00Z"}]}})
    };
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {}});
    let job = json!({"kind": "Job", "apiVersion": "batch/v1",
                     "metadata": {"namespace": "work", "name": "train", "uid": "train"},
                     "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let items = [job, pod("one", &[&owner]), pod("two", &[&owner]), pod("bare", &[])];
    let directory = tempfile::tempdir().expect("must be creatable");
    let dump = directory.path().join("dump.json");
    let list = json!({"kind": "List", "items": items}).to_string();
    std::fs::write(&dump, list).expect("must be writable");
    let explain = |pod: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
            .args(["explain", pod, "--at=2026-11-21T13:00:00Z", "--filename"])
            .arg(&dump)
            .output()
            .expect("the program must be startable");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let shown = explain("pod/one");
    assert!(shown.starts_with("Job work/train: "), "{shown}");
    assert!(shown.contains("\n  one (drain): marked 2026-11-21T12:30:00Z\n"), "{shown}");
    assert!(!shown.contains("two"), "{shown}");
    assert!(explain("train").contains("two (drain)"));
    assert!(explain("pod/bare").contains("pod work/bare belongs to no Job"));
}
