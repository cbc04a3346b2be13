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

/// The mode in the environment of a workload's first container.
pub(super) fn mode(objects: &[Value], workload: &str) -> String {
    let is_it =
        |it: &&Value| it["metadata"]["name"] == workload && !it["spec"]["template"].is_null();
    let set = objects.iter().find(is_it).expect(workload);
    let env = set["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("some");
    let mode = env.iter().find(|it| it["name"] == "EPILOGUE_MODE").expect("the mode");
    mode["value"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn without_values_the_chart_observes() {
    let objects = rendered(&json!({})).await;
    for workload in ["epilogue-agent", "epilogue-controller"] {
        assert_eq!(flags(&objects, workload), [""; 0], "the mode limits all tasks");
        assert_eq!(mode(&objects, workload), "observe");
        assert_eq!(mode(&rendered(&json!({"mode": "enforce"})).await, workload), "enforce");
    }
    let objects = rendered(&json!({"controller": {"podGC": "off"}})).await;
    assert_eq!(flags(&objects, "epilogue-controller"), ["--pod-gc=off"]);
}

/// What of the host the agent's container could write, and its sockets of runtimes.
fn reach(objects: &[Value], workload: &str) -> Vec<String> {
    let is_it = |it: &&Value| it["kind"] == "DaemonSet" && it["metadata"]["name"] == workload;
    let set = objects.iter().find(is_it).expect(workload);
    let mounts = &set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"];
    let reaches = |it: &&Value| {
        it["readOnly"] != true || ["containerd", "crio"].iter().any(|name| it["name"] == *name)
    };
    let mounts = mounts.as_array().expect("mounts").iter().filter(reaches);
    mounts.map(|it| it["name"].as_str().expect("text").to_owned()).collect()
}

#[tokio::test]
async fn a_pool_that_observes_has_no_socket_no_writable_mount_and_the_observer_s_account() {
    let pool = |mode: &str| json!({"name": "a", "nodeSelector": {"pool": "a"}, "mode": mode});
    let all = ["containerd", "crio", "logind-conf", "journal", "cgroup"];
    for (mode, other) in [("observe", "enforce"), ("enforce", "observe")] {
        let values = json!({"mode": mode, "agent": {"pools": [pool(other)]}});
        let objects = rendered(&values).await;
        for (workload, mode) in [("epilogue-agent", mode), ("epilogue-agent-a", other)] {
            let (reach, observes) = (reach(&objects, workload), mode == "observe");
            assert_eq!(reach, if observes { &[][..] } else { &all[..] }, "{values} {workload}");
            assert_eq!(self::mode(&objects, workload), mode);
            let set = objects
                .iter()
                .find(|it| it["kind"] == "DaemonSet" && it["metadata"]["name"] == workload);
            let account = &set.expect("a set")["spec"]["template"]["spec"]["serviceAccountName"];
            let expected = if observes { "epilogue-agent-observer" } else { "epilogue-agent" };
            assert_eq!(*account, expected);
            let there =
                |it: &Value| it["kind"] == "ServiceAccount" && it["metadata"]["name"] == *account;
            assert!(objects.iter().any(there), "{expected}");
        }
    }
}

#[tokio::test]
async fn the_mode_limits_what_the_fine_values_say() {
    let table: [(&str, Value, &[&str]); 8] = [
        ("observe", json!({"pressure": "enforce"}), &[]),
        ("observe", json!({"runtimeEndpoint": "unix:///r/s"}), &[]),
        (
            "observe",
            json!({"pressure": "off", "stuckPods": "off"}),
            &["--pressure=off", "--stuck-pods=off"],
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
    assert_eq!(flags(&objects, "epilogue-agent"), [""; 0]);
    let modes = ["", "-acts", "-evicts", "-same"];
    let modes = modes.map(|pool| mode(&objects, &format!("epilogue-agent{pool}")));
    assert_eq!(modes, ["observe", "enforce", "enforce", "observe"]);
    assert_eq!(flags(&objects, "epilogue-agent-acts"), [""; 0]);
    assert_eq!(flags(&objects, "epilogue-agent-evicts"), ["--pressure=enforce"]);
    let same = flags(&objects, "epilogue-agent-same");
    assert_eq!(same, ["--bare-pods=delete"]);
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
    let table: [(Value, &[&str]); 9] = [
        (
            json!({"mode": "enforce", "gangScheduling": {"enabled": true}}),
            &["a Workload and a PodGroup", "scheduling.k8s.io/v1beta1"],
        ),
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
