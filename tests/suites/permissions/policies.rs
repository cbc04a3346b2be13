//! Tests that the agent's own dry runs notice each missing policy, and name it.

use std::time::Duration;

use epilogue_agent::source::policies::round;
use lab::eventually;
use lab::install;

use super::call::Call;
use super::world::{Token, World};

const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
/// Time for the API server to learn of it.
const SOON: Duration = Duration::from_mins(1);

/// One after the other, since the rest of this suite needs the policies. This test is alone in its
/// process, and `lab test` runs it alone on the machine.
#[tokio::test]
async fn each_policy_that_is_missing_is_noticed_and_named() {
    let world = World::start(Token::OfPod).await;
    world.running("tried").await;
    let node = world.here();
    let round = async || round(&world.agent, &node).await.expect("the API must answer");
    let found = async || round().await.missing;
    assert_eq!(found().await, None, "all hold");
    for policy in [
        "epilogue-agent-own-node",
        "epilogue-agent-node",
        "epilogue-agent-node-status",
        "epilogue-agent-pod-status",
        "epilogue-agent-pods",
        "epilogue-agent-deletion",
        "epilogue-agent-events",
    ] {
        let binding = format!("{BINDINGS}/{policy}");
        world.done(Call::delete(binding, serde_json::json!({}))).await;
        eventually("it is noticed", SOON, &found, |missing| *missing == Some(policy)).await;
        install::apply_policy(&world.admin).await.expect("the policies");
        eventually("it holds again", SOON, &found, Option::is_none).await;
        println!("| agent | {policy} removed | noticed, and named |");
    }
    world.finish().await;
}
