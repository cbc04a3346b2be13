//! The modes as flags: which the chart writes, and that both programs accept them.

use std::process::Stdio;

use lab::paths::program;
use serde_json::{Value, json};
use tokio::process::Command;

use super::helm::{notes, rendered};

/// The flags of the first container of a workload, without those of the base.
fn flags(objects: &[Value], workload: &str) -> Vec<String> {
    let base = epilogue_deploy::manifests().expect("the base");
    let program = if workload == "epilogue-controller" { workload } else { "epilogue-agent" };
    let base = epilogue_deploy::args(&base, program).expect("arguments");
    let all = epilogue_deploy::args(objects, workload).expect("arguments");
    assert_eq!(all[..base.len()], base, "{workload}");
    all[base.len()..].to_vec()
}

const OBSERVES: [&str; 3] = ["--shutdown=observe", "--pressure=observe", "--stuck-pods=observe"];
/// With these, pod GC has no rule that can apply.
const IDLE: [&str; 3] =
    ["--pod-gc=off", "--stale-disruption-reset=off", "--node-shutdown-marks=false"];
const REPORTS: [&str; 1] = ["--pod-gc=observe"];

#[tokio::test]
async fn without_values_the_chart_observes() {
    let objects = rendered(&json!({})).await;
    assert_eq!(flags(&objects, "epilogue-agent"), OBSERVES);
    assert_eq!(flags(&objects, "epilogue-controller"), REPORTS);
    let objects = rendered(&json!({"controller": {"podGC": "off"}})).await;
    assert_eq!(flags(&objects, "epilogue-controller"), IDLE);
}

#[tokio::test]
async fn the_mode_limits_what_the_fine_values_say() {
    let table: [(&str, Value, &[&str]); 7] = [
        ("observe", json!({"pressure": "enforce"}), &OBSERVES),
        (
            "observe",
            json!({"pressure": "off", "stuckPods": "off"}),
            &["--shutdown=observe", "--pressure=off", "--stuck-pods=off"],
        ),
        ("enforce", json!({}), &[]),
        ("enforce", json!({"pressure": "enforce"}), &["--pressure=enforce"]),
        ("enforce", json!({"stuckPods": "observe"}), &["--stuck-pods=observe"]),
        ("enforce", json!({"extraArgs": ["--bare-pods=delete"]}), &["--bare-pods=delete"]),
        (
            "enforce",
            json!({"kubeletRootDir": "/k", "kubeletUnit": "k.service",
                   "runtimeEndpoint": "unix:///r/s"}),
            &[
                "--kubelet-unit=k.service",
                "--kubelet-root-dir=/k",
                "--runtime-endpoint=unix:///r/s",
            ],
        ),
    ];
    for (mode, agent, expected) in table {
        let objects = rendered(&json!({"mode": mode, "agent": agent})).await;
        assert_eq!(flags(&objects, "epilogue-agent"), expected, "{mode} {agent}");
    }
}

#[tokio::test]
async fn a_pool_has_a_mode_of_its_own() {
    let pool = |name: &str, more: Value| {
        let mut pool = json!({"name": name, "nodeSelector": {"pool": name}});
        pool.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("one"));
        pool
    };
    let pools = [
        pool("acts", json!({"mode": "enforce"})),
        pool("evicts", json!({"mode": "enforce", "pressure": "enforce"})),
        pool("same", json!({"extraArgs": ["--bare-pods=delete"]})),
    ];
    let objects = rendered(&json!({"agent": {"pools": pools}})).await;
    assert_eq!(flags(&objects, "epilogue-agent"), OBSERVES);
    assert_eq!(flags(&objects, "epilogue-agent-acts"), [""; 0]);
    assert_eq!(flags(&objects, "epilogue-agent-evicts"), ["--pressure=enforce"]);
    let same = flags(&objects, "epilogue-agent-same");
    assert_eq!(same, [&OBSERVES[..], &["--bare-pods=delete"]].concat());
}

#[tokio::test]
async fn the_controller_s_values_are_its_flags() {
    let values = json!({"mode": "enforce", "controller": {
        "manageAllJobs": true, "namespace": "jobs", "podGC": "instead",
        "extraArgs": ["--kube-api-qps=50"], "replicas": 1,
    }});
    let objects = rendered(&values).await;
    let expected =
        ["--manage-all-jobs", "--namespace=jobs", "--pod-gc=instead", "--kube-api-qps=50"];
    assert_eq!(flags(&objects, "epilogue-controller"), expected);
    let budget = objects.iter().find(|object| object["kind"] == "PodDisruptionBudget");
    assert_eq!(budget, None, "a single replica may be evicted");
}

#[tokio::test]
async fn notes_say_what_happens_now() {
    let pool = json!({"agent": {"pools": [
        {"name": "batch", "nodeSelector": {"a": "b"}, "mode": "enforce"},
    ]}});
    let table: [(Value, &[&str]); 8] = [
        (json!({"optIn": {"enabled": true}}), &["the label epilogue.dev/jobs=managed"]),
        (
            json!({}),
            &["mode: observe", "write events only", "Pod GC: writes events only", "mode=enforce"],
        ),
        (json!({"controller": {"podGC": "off"}}), &["mode: observe", "Pod GC: off."]),
        (
            json!({"mode": "enforce", "agent": {"pressure": "enforce"}}),
            &["mode: enforce", "terminates pods", "Evictions: enforce", "kubectl epilogue leave"],
        ),
        (
            json!({"mode": "enforce", "agent": {"leaveOnUninstall": false}}),
            &["mode: enforce", "agent.leave=true"],
        ),
        (pool, &["Pool batch: mode enforce"]),
        (json!({"agent": {"leave": true}}), &["epilogue-agent leave", "uninstall epilogue"]),
        (
            json!({"mode": "enforce", "controller": {"manageAllJobs": true}}),
            &["runs all Jobs", "Pod GC: alongside"],
        ),
    ];
    for (values, words) in table {
        let notes = notes(&values).await;
        assert!(words.iter().all(|word| notes.contains(word)), "{values}: {notes}");
        let long = notes.lines().find(|line| line.len() > 100);
        assert_eq!(long, None, "{values}");
    }
}

/// The programs accept every flag, and exit for want of a host and of an API.
#[tokio::test]
async fn both_programs_accept_the_flags_of_both_modes() {
    let nowhere = tempfile::tempdir().expect("a directory");
    let root = format!("--root={}", nowhere.path().display());
    for values in [json!({}), json!({"mode": "enforce"}), json!({"platform": "k0s"})] {
        let objects = rendered(&values).await;
        for (name, own) in [("epilogue-agent", root.as_str()), ("epilogue-controller", "")] {
            let flags = epilogue_deploy::args(&objects, name).expect("arguments");
            let output = Command::new(program(name))
                .args(flags.iter().filter(|flag| !flag.starts_with("--root=")))
                .args(Some(own).filter(|flag| !flag.is_empty()))
                .arg("--kubeconfig=nowhere")
                .env("NODE_NAME", "n1")
                .stdin(Stdio::null())
                .output()
                .await
                .expect("the program must start");
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            // 2 is a mistake in the command line.
            assert_eq!(output.status.code(), Some(1), "{name} {values}: {said}");
        }
    }
}
