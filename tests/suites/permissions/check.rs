//! Tests that `epilogue-agent check` asks the API whether reports would get through, and gets the
//! truth.

use lab::paths::program;
use serde_json::{Value, json};
use tokio::process::Command;

use super::call::Call;
use super::world::{Token, World, node_path, pod_path};

/// A directory with a kubeconfig of this world's token.
fn credentials(world: &World) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let text = std::fs::read_to_string(world.kubeconfig()).expect("the kubeconfig");
    let mut config: Value = serde_yaml_ng::from_str(&text).expect("a kubeconfig");
    config["users"][0]["user"] = json!({"token": world.token});
    std::fs::write(root.path().join("kubeconfig"), config.to_string()).expect("it is written");
    root
}

/// Its output about the API, as an agent with this world's token.
async fn checked(world: &World, node: &str) -> (String, String) {
    let root = credentials(world);
    let kubeconfig = root.path().join("kubeconfig");
    let output = Command::new(program("epilogue-agent"))
        .args(["check", "--output=json", "--node-name", node, "--root"])
        .arg(root.path())
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .env_remove("DBUS_SYSTEM_BUS_ADDRESS")
        .output()
        .await
        .expect("the program must be startable");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let checks = report["checks"].as_array().expect("checks");
    let api = checks.iter().find(|check| check["name"] == "api").expect("the API is checked");
    let text = |field: &str| api[field].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("found"))
}

#[tokio::test]
async fn an_agent_s_reports_would_get_through_and_nothing_is_marked() {
    for token in [Token::OfPod, Token::OfNode] {
        let world = World::start(token).await;
        let pod = world.running("asked").await;
        let (verdict, found) = checked(&world, &world.here()).await;
        assert!(found.contains("would be accepted"), "{found}");
        assert_ne!(verdict, "fail", "{found}");
        let after = world.done(Call::get(pod_path(&pod))).await;
        assert_eq!(after["metadata"]["resourceVersion"], pod["metadata"]["resourceVersion"]);
        world.finish().await;
    }
}

/// Runs `epilogue-agent leave` with the agent's token.
async fn left(world: &World) -> String {
    let root = credentials(world);
    let output = Command::new(program("epilogue-agent"))
        .args(["leave", "--node-name", &world.here(), "--root"])
        .arg(root.path())
        .arg("--kubeconfig")
        .arg(root.path().join("kubeconfig"))
        .env_remove("DBUS_SYSTEM_BUS_ADDRESS")
        .output()
        .await
        .expect("the program must be startable");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    said
}

#[tokio::test]
async fn leave_takes_back_what_the_agent_wrote_on_its_node_and_nothing_else() {
    let world = World::start(Token::OfPod).await;
    let node = node_path(&world.here());
    let read = async || world.done(Call::get(&node)).await;
    let before = read().await;
    let mut taints = before["spec"]["taints"].clone();
    let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
    taints.as_array_mut().expect("the foreign one").push(ours);
    let body = json!({"metadata": {"annotations": {"epilogue.dev/state": "idle", "theirs": "1"}},
                      "spec": {"taints": taints}});
    world.done(Call::merge(&node, body)).await;
    let stall = json!({"type": "epilogue.dev/MemoryStall", "status": "True"});
    let ready = json!({"type": "Ready", "status": "True"});
    let shared = |kind, message| json!({"type": kind, "status": "True", "message": message});
    let shutdown = shared("GracefulNodeShutdownInProgress", "epilogue-agent: it shuts down.");
    let planned = shared("MaintenancePlanned", "an administrator has planned it");
    let body = json!({"status": {"conditions": [stall, ready, shutdown, planned]}});
    world.done(Call::patch(format!("{node}/status"), body)).await;
    let said = left(&world).await;
    for part in ["annotation", "taint", "condition epilogue.dev/MemoryStall", "InProgress"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let after = read().await;
    assert_eq!(after["spec"]["taints"], before["spec"]["taints"]);
    assert_eq!(after["metadata"]["annotations"], json!({"theirs": "1"}));
    let conditions = after["status"]["conditions"].as_array().expect("conditions");
    let kinds: Vec<_> = conditions.iter().map(|condition| &condition["type"]).collect();
    assert_eq!(kinds, ["Ready", "MaintenancePlanned"], "another's stays");
    assert!(left(&world).await.contains("has nothing of the agent's"));
    world.finish().await;
}

#[tokio::test]
async fn a_token_without_its_node_is_found_out_before_the_shutdown() {
    let world = World::start(Token::Unbound).await;
    world.running("asked").await;
    let (verdict, found) = checked(&world, &world.here()).await;
    assert!(found.contains("would be refused"), "rights alone do not show it: {found}");
    assert_eq!(verdict, "fail");
    let (_, found) = checked(&world, "no-such-node").await;
    assert!(found.contains("node no-such-node not found"), "{found}");
    world.finish().await;
}
