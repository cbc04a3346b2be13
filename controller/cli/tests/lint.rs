//! Runs `kubectl epilogue lint` as a user does, on files and against an API server.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize as _;
use serde_json::{Value, json};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const MISTAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lint/mistakes.yaml");

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"));
    command.arg("lint").args(arguments);
    command
}

fn lint(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program must be startable")
}

/// With these objects on standard input.
fn lint_of_input(arguments: &[&str], objects: &Value) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program must be startable");
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(objects.to_string().as_bytes()).expect("the program must read");
    drop(stdin);
    child.wait_with_output().expect("the program must end")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The YAML files of a directory below the root.
fn manifests(directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(directory)).expect("a directory");
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect()
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("text");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).expect("YAML")).collect()
}

#[test]
fn every_example_is_clean() {
    let mut arguments = Vec::new();
    for path in manifests("examples") {
        arguments.extend(["-f".to_owned(), path.display().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert!(arguments.len() >= 20, "{arguments:?}");
    let output = lint(&arguments);
    let count = arguments.len() / 2;
    assert_eq!(text(&output), format!("nothing found in {count} Jobs and CronJobs\n"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_directory_stands_for_the_manifests_in_it() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let path = directory.path().to_str().expect("must be UTF-8");
    let empty = lint(&["-f", path]);
    assert_eq!(empty.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&empty.stderr).contains("holds no manifest"), "{empty:?}");
    std::fs::write(directory.path().join("notes.txt"), "{").expect("must be writable");
    std::fs::copy(MISTAKES, directory.path().join("mistakes.yml")).expect("must be writable");
    assert_eq!(text(&lint(&["-f", path])), text(&lint(&["-f", MISTAKES])));
}

#[test]
fn every_recipe_is_clean() {
    let recipes = manifests("examples/recipes");
    let of_batch = |object: &&Value| object["apiVersion"] == "batch/v1";
    let count: usize =
        recipes.iter().map(|path| documents(path).iter().filter(of_batch).count()).sum();
    let paths = recipes.iter().map(|path| path.to_str().expect("text"));
    let output = lint(&paths.flat_map(|path| ["-f", path]).collect::<Vec<_>>());
    assert!(count >= 6, "{count}");
    assert_eq!(text(&output), format!("nothing found in {count} Jobs and CronJobs\n"));
}

#[test]
fn mistakes_are_listed_as_a_table() {
    let output = lint(&["--filename", MISTAKES]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output), include_str!("lint/findings.txt"), "{}", text(&output));
}

#[test]
fn mistakes_are_listed_for_machines() {
    let output = lint(&["-f", MISTAKES, "-o", "json"]);
    let answer: Value = serde_json::from_str(&text(&output)).expect("must be JSON");
    assert_eq!((&answer["judged"], &answer["not_judged"]), (&json!(2), &json!([])));
    let first = &answer["findings"][0];
    assert_eq!(first["subject"], "job/work/report");
    assert_eq!(first["severity"], "error");
    assert_eq!(first["code"], "condition-type-unknown");
    assert_eq!(first["field"], "spec.podFailurePolicy.rules[0].onPodConditions[0].type");
    let output = lint(&["-f", MISTAKES, "-o", "yaml"]);
    let same: Value = serde_yaml_ng::from_str(&text(&output)).expect("must be YAML");
    assert_eq!(same, answer);
}

#[test]
fn standard_input_may_be_a_json_list() {
    let list = json!({"kind": "List", "items": documents(Path::new(MISTAKES))});
    let output = lint_of_input(&["-f", "-"], &list);
    assert_eq!(text(&output), include_str!("lint/findings.txt"));
}

#[test]
fn what_cannot_be_read_has_another_exit_code() {
    let broken = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken.yaml");
    std::fs::write(&broken, "kind: Job\n  spec: [").expect("the file must be writable");
    let broken = broken.display().to_string();
    let table: [(&[&str], &str); 4] = [
        (&["-f", "/does/not/exist"], "cannot read /does/not/exist"),
        (&["-f", MISTAKES, "-f", &broken], "broken.yaml:2: "),
        (&["-f", "-", "-f", "-"], "standard input can be read once"),
        (&["-f", MISTAKES, "-A"], "cannot be used with"),
    ];
    for (arguments, words) in table {
        let output = lint(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

/// Starts an API server that answers these paths, and refuses all others; returns its kubeconfig.
fn api(replies: BTreeMap<&'static str, Value>) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
    let port = listener.local_addr().expect("it has an address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection must come in");
            let request = BufReader::new(connection.try_clone().expect("it can be cloned"));
            let lines = request.lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let target = head[0].split(' ').nth(1).unwrap_or_default();
            let path = target.split('?').next().unwrap_or_default();
            let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                                 "reason": "Forbidden", "message": "forbidden", "code": 403});
            let (status, body) = match replies.get(path) {
                Some(items) => ("200 OK", json!({"items": items}).to_string()),
                None => ("403 Forbidden", refused.to_string()),
            };
            let reply = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            // A program that ends at a refusal leaves its other requests unread.
            drop(connection.write_all(reply.as_bytes()));
        }
    });
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kubeconfig-lint-{port}"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "home"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&path, config.to_string()).expect("the kubeconfig must be writable");
    path
}

/// As the API lists it: without a kind.
fn crowd() -> Value {
    json!([{"metadata": {"namespace": "home", "name": "crowd"},
            "spec": {"parallelism": 5, "template": {"spec": {"restartPolicy": "Never"}}}}])
}

#[test]
fn a_cluster_is_checked_with_its_quotas() {
    let quota = json!([{"metadata": {"namespace": "home", "name": "few"},
                        "spec": {"hard": {"pods": "2"}}}]);
    let of_home = api(BTreeMap::from([
        ("/apis/batch/v1/namespaces/home/jobs", crowd()),
        ("/apis/batch/v1/namespaces/home/cronjobs", json!([])),
        ("/api/v1/namespaces/home/resourcequotas", quota.clone()),
    ]));
    let of_all = api(BTreeMap::from([
        ("/apis/batch/v1/jobs", crowd()),
        ("/apis/batch/v1/cronjobs", json!([])),
        ("/api/v1/resourcequotas", quota),
    ]));
    let runs: [(&Path, &[&str]); 3] =
        [(&of_home, &[]), (&of_home, &["--namespace=home"]), (&of_all, &["-A"])];
    for (kubeconfig, arguments) in runs {
        let output = command(arguments).arg("--kubeconfig").arg(kubeconfig).output();
        let output = output.expect("the program must be startable");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = text(&output);
        assert!(text.contains("5 pods at once, but 2 fit: ResourceQuota few"), "{text}");
        assert!(text.contains("job/home/crowd") && !text.contains("not judged"), "{text}");
    }
}

#[test]
fn what_rbac_forbids_is_named() {
    let jobs = api(BTreeMap::from([("/apis/batch/v1/jobs", crowd())]));
    let output = command(&["-A", "--kubeconfig"]).arg(&jobs).output().expect("it must start");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = text(&output);
    assert!(text.contains("not judged: CronJobs were not read  [cron-jobs-not-read]"), "{text}");
    assert!(text.contains("ResourceQuotas were not read  [quotas-not-read]"), "{text}");
    let nothing = api(BTreeMap::new());
    let output = command(&["-A", "--kubeconfig"]).arg(&nothing).output().expect("it must start");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("the Jobs may not be read"), "{error}");
}

/// The quoted texts of an expression.
fn quoted(expression: &str) -> Vec<&str> {
    expression.split('\'').skip(1).step_by(2).collect()
}

#[test]
fn the_admission_policy_warns_of_nothing_that_lint_does_not_find() {
    let path = Path::new(ROOT).join("deploy/policy/lint/policy.yaml");
    let policy = documents(&path).remove(0);
    let variables = policy["spec"]["variables"].as_array().expect("variables");
    let variable = variables.iter().find(|each| each["name"] == "meant").expect("the variable");
    let texts = quoted(variable["expression"].as_str().expect("an expression"));
    assert!(texts.len() >= 20, "{texts:?}");
    for pair in texts.chunks(2) {
        let rules = json!([{"action": "Count", "onPodConditions": [{"type": pair[0]}]}]);
        let job = json!({"kind": "Job", "spec": {"podFailurePolicy": {"rules": rules}}});
        let found = text(&lint_of_input(&["-f", "-"], &job));
        let words = format!("did you mean {}?", pair[1]);
        assert!(found.contains(&words), "{pair:?}: {found}");
    }
    // Each warning ends with a code of lint.
    for validation in policy["spec"]["validations"].as_array().expect("validations") {
        let expression = validation["messageExpression"].as_str();
        let message = expression.or(validation["message"].as_str()).expect("a message");
        let code = message.rsplit_once('[').and_then(|(_, code)| code.split(']').next());
        let known = epilogue_common::finding_code::FindingCode::ALL;
        let is_known = known.iter().any(|it| Some(it.as_str()) == code);
        assert!(is_known, "{message}");
    }
}
