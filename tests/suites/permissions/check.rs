//! `epilogue-agent check` asks the API whether reports would get through, and is told the truth.

use lab::paths::program;
use serde_json::{Value, json};
use tokio::process::Command;

use super::call::Call;
use super::world::{Token, World, pod_path};

/// What it says of the API, as an agent with this world's token.
async fn checked(world: &World, node: &str) -> (String, String) {
    let root = tempfile::tempdir().expect("a directory");
    let text = std::fs::read_to_string(world.kubeconfig()).expect("the kubeconfig");
    let mut config: Value = serde_yaml_ng::from_str(&text).expect("a kubeconfig");
    config["users"][0]["user"] = json!({"token": world.token});
    let kubeconfig = root.path().join("kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).expect("it is written");
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
        assert!(found.contains("would be taken"), "{found}");
        assert_ne!(verdict, "fail", "{found}");
        let after = world.done(Call::get(pod_path(&pod))).await;
        assert_eq!(after["metadata"]["resourceVersion"], pod["metadata"]["resourceVersion"]);
        world.finish().await;
    }
}

#[tokio::test]
async fn a_token_without_its_node_is_found_out_before_the_shutdown() {
    let world = World::start(Token::Unbound).await;
    world.running("asked").await;
    let (verdict, found) = checked(&world, &world.here()).await;
    assert!(found.contains("would be refused"), "rights alone do not tell: {found}");
    assert_eq!(verdict, "fail");
    let (_, found) = checked(&world, "no-such-node").await;
    assert!(found.contains("there is no node no-such-node"), "{found}");
    world.finish().await;
}
