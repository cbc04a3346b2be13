//! Tests the overlays of `deploy/kustomize`, rendered as `kubectl apply -k` does. Each changes what
//! its platform needs, and nothing else; its flags are flags of the agent.

use std::collections::BTreeSet;
use std::process::Stdio;

pub(crate) use lab::inventory::named;
use lab::kustomize;
use lab::paths::{program, workspace_root};
use serde_json::Value;
use tokio::process::Command;

const OVERLAYS: [&str; 6] = ["k3s", "k0s", "microk8s", "no-logind", "scraping", "opt-in"];

/// The overlay that acts, with the component of another one.
pub(crate) fn acting(overlay: &str) -> String {
    if overlay.is_empty() { "enforce".to_owned() } else { format!("enforce-{overlay}") }
}

/// The objects of a directory below `deploy/kustomize`.
pub(crate) async fn rendered(directory: &str) -> Vec<Value> {
    let directory = workspace_root().join("deploy/kustomize").join(directory);
    kustomize::render(&directory).await.expect("objects")
}

/// The agent's container, and the volumes of its pod.
fn agent(objects: &[Value]) -> (Value, Value) {
    let sets: Vec<&Value> = objects.iter().filter(|it| it["kind"] == "DaemonSet").collect();
    assert_eq!(sets.len(), 1);
    let pod = &sets[0]["spec"]["template"]["spec"];
    (pod["containers"][0].clone(), pod["volumes"].clone())
}

fn arguments(container: &Value) -> Vec<String> {
    let list = container["args"].as_array().expect("arguments");
    list.iter().map(|it| it.as_str().expect("text").to_owned()).collect()
}

/// Pairs of a mount's path in the container and the host's path behind it, without `/host`. The
/// token is no path of the host.
fn mounts(container: &Value, volumes: &Value) -> BTreeSet<(String, String)> {
    let behind = |name: &Value| {
        let volume = volumes.as_array().expect("volumes").iter().find(|it| it["name"] == *name);
        let volume = volume.unwrap_or_else(|| panic!("no volume {name}"));
        let host = volume["hostPath"]["path"].as_str().map(str::to_owned);
        assert!(host.is_some() || volume["projected"].is_object(), "{volume}");
        host
    };
    let list = container["volumeMounts"].as_array().expect("mounts").iter();
    let paths = list.filter_map(|mount| {
        let (path, host) = (mount["mountPath"].as_str().expect("a path"), behind(&mount["name"])?);
        Some((path.strip_prefix("/host").expect("below /host").to_owned(), host))
    });
    paths.collect()
}

/// Each overlay in both modes: the directory without it, the directory with it, and its name.
fn both_modes() -> impl Iterator<Item = (String, String, &'static str)> {
    OVERLAYS.into_iter().flat_map(|overlay| {
        [
            ("base".to_owned(), format!("overlays/{overlay}"), overlay),
            ("overlays/enforce".to_owned(), format!("overlays/{}", acting(overlay)), overlay),
        ]
    })
}

#[tokio::test]
async fn an_overlay_changes_the_daemon_set_and_nothing_that_was_there() {
    for (base, directory, overlay) in both_modes() {
        let (base, objects) = (rendered(&base).await, rendered(&directory).await);
        let changed: Vec<String> =
            base.iter().filter(|it| !objects.contains(it)).map(named).collect();
        let of_agents = ["DaemonSet/epilogue-agents/epilogue-agent"];
        let of_both = ["Deployment/epilogue-system/epilogue-controller", of_agents[0]];
        let expected = match overlay {
            "opt-in" => &[][..],
            "scraping" => &of_both[..],
            _ => &of_agents[..],
        };
        assert_eq!(changed, expected, "{overlay}");
        let names: BTreeSet<String> = base.iter().map(named).collect();
        let added: BTreeSet<String> =
            objects.iter().map(named).filter(|name| !names.contains(name)).collect();
        let expected: &[&str] = match overlay {
            "scraping" => &[
                "ClusterRole//epilogue-agent-metrics-reader",
                "ClusterRole//epilogue-agent-scraping",
                "ClusterRole//epilogue-controller-metrics-reader",
                "ClusterRole//epilogue-controller-scraping",
                "ClusterRoleBinding//epilogue-agent-scraping",
                "ClusterRoleBinding//epilogue-controller-scraping",
            ],
            "opt-in" => &[
                "MutatingAdmissionPolicy//epilogue-jobs",
                "MutatingAdmissionPolicy//epilogue-pod-replacement-policy",
                "MutatingAdmissionPolicyBinding//epilogue-jobs",
                "MutatingAdmissionPolicyBinding//epilogue-pod-replacement-policy",
            ],
            _ => &[],
        };
        assert_eq!(added.iter().collect::<Vec<_>>(), expected, "{overlay}");
    }
}

#[tokio::test]
async fn each_mount_shows_the_agent_the_same_path_as_on_the_host() {
    for (base, directory, overlay) in both_modes() {
        let (container, volumes) = agent(&rendered(&directory).await);
        let mounts = mounts(&container, &volumes);
        for (path, host) in &mounts {
            assert_eq!(path, host, "{overlay}");
        }
        let used = container["volumeMounts"].as_array().map(Vec::len);
        assert_eq!(volumes.as_array().map(Vec::len), used, "{overlay}: no volume is left over");
        let has = |path: &str| mounts.iter().any(|(it, _)| it == path);
        let socket = |path: &str| path.contains("run");
        let snap = "/var/snap/microk8s/common";
        let expected: &[String] = &match overlay {
            "k3s" => vec![
                "/run/k3s/containerd".to_owned(),
                "/var/lib/rancher/k3s/agent/containerd".to_owned(),
                "/var/lib/kubelet".to_owned(),
            ],
            "k0s" => ["/run/k0s", "/var/lib/k0s/containerd", "/var/lib/k0s/kubelet"]
                .map(str::to_owned)
                .to_vec(),
            "microk8s" => ["run", "var/lib/containerd", "var/lib/kubelet"]
                .map(|path| format!("{snap}/{path}"))
                .to_vec(),
            _ => vec!["/run/containerd".to_owned(), "/var/lib/kubelet".to_owned()],
        };
        let acts = base != "base";
        let right = |path: &String| has(path) == (acts || !socket(path));
        assert!(expected.iter().all(right), "{directory}: {mounts:?}");
        assert_eq!(has("/run/dbus"), overlay != "no-logind", "{overlay}");
    }
}

/// The agent accepts every flag, and exits before it asks the API, because it has no kubeconfig.
#[tokio::test]
async fn the_flags_of_each_overlay_are_the_agents() {
    for (_, directory, overlay) in both_modes() {
        let (container, _) = agent(&rendered(&directory).await);
        let nowhere = tempfile::tempdir().expect("a directory");
        let root = |flag: &String| !flag.starts_with("--root=");
        let output = Command::new(program("epilogue-agent"))
            .args(arguments(&container).into_iter().filter(root))
            .arg(format!("--root={}", nowhere.path().display()))
            .arg("--kubeconfig=nowhere")
            .env("NODE_NAME", "n1")
            .stdin(Stdio::null())
            .output()
            .await
            .expect("the program must start");
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{overlay}: {said}");
        assert!(said.contains("(--kubeconfig)"), "{overlay}: {said}");
        let flags = arguments(&container);
        let unit = flags.iter().find_map(|it| it.strip_prefix("--kubelet-unit="));
        let expected = match overlay {
            "k3s" => Some("k3s-agent.service,k3s.service"),
            "k0s" => Some("k0sworker.service,k0scontroller.service"),
            "microk8s" => Some("snap.microk8s.daemon-kubelite.service"),
            _ => None,
        };
        assert_eq!(unit, expected, "{overlay}");
    }
}
