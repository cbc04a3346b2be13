//! Runs `kubectl epilogue doctor` as a user does, on a dump.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const DUMP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doctor/dump.yaml");

/// Runs the program with a fixed time.
fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .args(["doctor", "--at=2026-11-21T12:00:00Z"])
        .args(arguments)
        .output()
        .expect("the program must be startable")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_dump_is_judged_as_a_table() {
    let output = doctor(&["--filename", DUMP]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output), include_str!("doctor/findings.txt"), "{}", text(&output));
}

#[test]
fn a_dump_is_judged_for_machines() {
    let output = doctor(&["--filename", DUMP, "-o", "json"]);
    let answer: Value = serde_json::from_str(&text(&output)).expect("must be JSON");
    let found = answer["findings"].as_array().expect("must be a list");
    let of = |field: &str| found.iter().map(|each| each[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("rule"), ["stuck-pod", "leftover-finalizer", "unserved-job"]);
    let subjects = ["pod/work/stuck-x7k2p", "pod/work/left-9qz4d", "job/work/typo"];
    assert_eq!(of("subject"), subjects);
    let codes = ["node-silent-no-proof", "finalizer-job-gone", "managed-by-misspelled"];
    assert_eq!(of("code"), codes);
    assert_eq!(found[0]["since"], "2026-11-21T10:05:30Z");
    assert_eq!(answer["not_judged"].as_array().map(Vec::len), Some(3), "{answer:#}");
}

/// A dump with a finished Job and the lease of a controller that says this of gang scheduling.
fn dump_of_lease(file: &str, gang_scheduling: &str) -> String {
    let lease = json!({
        "kind": "Lease",
        "metadata": {"namespace": "epilogue-system", "name": "epilogue-controller",
                     "annotations": {"epilogue.dev/gang-scheduling": gang_scheduling}},
        "spec": {"holderIdentity": "c_1", "leaseDurationSeconds": 15,
                 "renewTime": "2026-11-21T12:00:00.000000Z"},
    });
    let job = json!({
        "kind": "Job", "metadata": {"namespace": "work", "name": "done", "uid": "u"},
        "spec": {"template": {}},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    });
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let list = json!({"kind": "List", "items": [lease, job]});
    std::fs::write(&path, list.to_string()).expect("the directory is there");
    path.display().to_string()
}

#[test]
fn the_answer_says_whether_gangs_are_scheduled_and_what_is_missing() {
    let no_right = "off: the account may not list workloads of scheduling.k8s.io";
    let off = dump_of_lease("gang-off.json", no_right);
    let output = doctor(&["--filename", &off]);
    assert_eq!(output.status.code(), Some(0), "a state, not a finding");
    let text_of_off = text(&output);
    assert!(text_of_off.contains(&format!("\ngang scheduling: {no_right}\n  -> give")));
    let answer = text(&doctor(&["--filename", &off, "-o", "json"]));
    let answer: Value = serde_json::from_str(&answer).expect("must be JSON");
    assert_eq!(answer["gang_scheduling"]["state"], no_right);
    let on = text(&doctor(&["--filename", &dump_of_lease("gang-on.json", "on")]));
    assert!(on.contains("\ngang scheduling: on\n"), "{on}");
    let other = text(&doctor(&["--filename", DUMP, "-o", "json"]));
    assert!(!other.contains("gang_scheduling"), "{other}");
}

#[test]
fn another_namespace_has_nothing_to_find() {
    let output = doctor(&["--filename", DUMP, "--namespace=other"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).starts_with("nothing found\n"), "{}", text(&output));
}

#[test]
fn a_node_of_a_dump_is_reported_with_the_pods_on_it() {
    let output = doctor(&["silent", "--filename", DUMP]);
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output);
    for words in [
        "ready      fail    Ready=Unknown since 2026-11-21T10:00:00Z",
        "agent      fail    missing: no component reports",
        "[agent-missing]\n",
        "pod/work/stuck-x7k2p",
        "  as root on silent: epilogue-agent check\n",
        "verdict: fail",
    ] {
        assert!(text.contains(words), "{words:?} must be in {text}");
    }
    assert!(!text.contains("left-9qz4d"), "{text}");
}

#[test]
fn wrong_arguments_have_another_exit_code() {
    let table: [(&[&str], &str); 6] = [
        (&["--filename", "/does/not/exist"], "cannot read /does/not/exist"),
        (&["absent", "--filename", DUMP], "node absent not found"),
        (&["node/absent", "--filename", DUMP], "node absent not found"),
        (&["pod/x", "--filename", DUMP], "expected a node, such as node/worker-1"),
        (
            &["--controller-lease=x", "--filename", DUMP],
            "expected NAMESPACE/NAME, such as epilogue-system/epilogue-controller",
        ),
        (&["-A", "-n", "work"], "cannot be used with"),
    ];
    for (arguments, words) in table {
        let output = doctor(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}
