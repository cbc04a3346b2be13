//! Runs the program against servers that are not an API server, and with kubeconfigs that cannot
//! be used: each error names its remedy.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

const PAGE: &str = "<!DOCTYPE html>\n<html><head><title>Access denied</title></head><body/></html>";

/// Starts a server that answers every request with this; returns its address.
fn server(code: u16, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
    let address = format!("http://{}", listener.local_addr().expect("it has an address"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection must come in");
            let request = BufReader::new(connection.try_clone().expect("it can be cloned"));
            let lines = request.lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let length = body.len();
            let reply = format!(
                "HTTP/1.1 {code} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            // A program that ends at a refusal leaves its other requests unread.
            drop(connection.write_all(reply.as_bytes()));
        }
    });
    address
}

fn kubeconfig(directory: &Path, server: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, config.to_string()).expect("must be writable");
    path.to_str().expect("must be UTF-8").to_owned()
}

fn run(arguments: &[&str], kubeconfig: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .args(arguments)
        .env_clear()
        .arg(format!("--kubeconfig={kubeconfig}"))
        .output()
        .expect("the program must be startable")
}

/// What the program says on standard error; it must end with this code.
fn error(arguments: &[&str], kubeconfig: &str, code: i32) -> String {
    let output = run(arguments, kubeconfig);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_a_proxy_refuses_is_not_a_missing_right() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let kubeconfig = kubeconfig(directory.path(), &server(403, PAGE));
    let commands: [(&[&str], i32); 6] = [
        (&["report"], 2),
        (&["doctor"], 2),
        (&["lint"], 2),
        (&["leave"], 2),
        (&["dump"], 1),
        (&["explain", "job/x"], 1),
    ];
    for (arguments, code) in commands {
        let error = error(arguments, &kubeconfig, code);
        let words = "between here and the API server refused: HTTP 403, \"Access denied\"; this \
                     says nothing about rights";
        assert!(error.contains(words) && error.lines().count() == 1, "{arguments:?}: {error}");
    }
}

#[test]
fn each_answer_of_another_program_names_its_remedy() {
    for (code, body, words) in [
        (401, PAGE, "HTTP 401, \"Access denied\"; sign in there"),
        (407, "", "HTTP 407; the proxy asks for credentials"),
        (502, "upstream \u{1b}[2J", "HTTP 502, \"upstream \\u{1b}[2J\"; the API server behind it"),
        (404, PAGE, "HTTP 404, \"Access denied\"; this says nothing"),
        (404, "404 page not found\n", "HTTP 404, \"404 page not found\"; this says nothing"),
        (403, r#"{"error": "no"}"#, "JSON that is not a Status; this says nothing"),
        (200, PAGE, "the answer is not JSON, so another program"),
    ] {
        let directory = tempfile::tempdir().expect("must be creatable");
        let kubeconfig = kubeconfig(directory.path(), &server(code, body));
        let error = error(&["report"], &kubeconfig, 2);
        assert!(error.contains(words), "{code} {body}: {error}");
    }
}

/// Without the Jobs, each pod would seem to have lost its Job.
#[test]
fn a_proxy_s_404_does_not_say_that_nothing_is_left() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let kubeconfig = kubeconfig(directory.path(), &server(404, PAGE));
    for arguments in [&["leave"][..], &["leave", "--release-finalizers"], &["lint"]] {
        let error = error(arguments, &kubeconfig, 2);
        assert!(error.contains("HTTP 404, \"Access denied\""), "{error}");
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_used_says_why() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let good = kubeconfig(directory.path(), "http://127.0.0.1:1");
    let refused = error(&["doctor"], &good, 2);
    assert!(refused.contains("Connection refused") && refused.contains("nothing listens there"));
    let unknown = error(&["doctor", "--context=nope"], &good, 2);
    assert_eq!(unknown, "error: the kubeconfig has no context nope; it has c\n");
    let missing = error(&["doctor"], "/does/not/exist", 2);
    assert!(missing.contains("'\"/does/not/exist\"': No such file"), "{missing}");
    let path = directory.path().join("bad");
    let bad = path.to_str().expect("must be UTF-8");
    std::fs::write(&path, "kind: Config\ntoken: secret {{\nx: [\n").expect("must be writable");
    let broken = error(&["doctor"], bad, 2);
    assert!(!broken.contains("secret") && broken.lines().count() == 1, "{broken}");
    std::fs::write(&path, "kind: Config\n").expect("must be writable");
    let empty = error(&["doctor"], bad, 2);
    assert!(empty.contains("names no current context") && empty.contains("none"), "{empty}");
}
