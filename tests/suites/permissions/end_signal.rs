//! Tests who may ask for a signal ahead of a pod's end: whoever creates the pod, in words that its
//! agent can read.

use epilogue_common::end_signal::EndSignal;
use serde_json::{Value, json};

use super::call::Call;
use super::world::{Token, World, pod_path};

fn pod(name: &str, signal: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"epilogue.dev/end-signal": signal}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    })
}

fn asks(signal: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {"epilogue.dev/end-signal": signal, "other": "x"}}})
}

/// The policy and the agent read the same words.
#[tokio::test]
async fn creator_asks_for_a_signal_that_the_agent_can_read() {
    let world = World::start(Token::OfPod).await;
    let table = [
        "USR1@90s",
        "HUP@1s",
        "USR2@2m",
        "WINCH@15m",
        "USR1@900s",
        "USR1@899s",
        "USR1@901s",
        "USR1@16m",
        "USR1@0s",
        "USR1@0m",
        "USR1@090s",
        "USR1",
        "USR1@",
        "TERM@90s",
        "SIGUSR1@90s",
        "usr1@90s",
        "USR1@90",
        "USR1@1m30s",
        " USR1@90s",
        "USR1@90s\n",
        "",
    ];
    for signal in table {
        let create = Call::create(world.path("pods"), pod("asks", signal)).dry();
        let answer = create.send(&world.admin).await;
        let is_readable = signal.parse::<EndSignal>().is_ok();
        println!("| {signal:?} | {} |", if answer.is_success() { "allowed" } else { "refused" });
        assert_eq!(answer.is_success(), is_readable, "{signal:?}: {answer:?}");
        assert!(is_readable || answer.message.contains("such as USR1@90s"), "{answer:?}");
    }
    world.finish().await;
}

#[tokio::test]
async fn pod_that_exists_asks_for_nothing_new() {
    let world = World::start(Token::OfPod).await;
    let asking = world.done(Call::create(world.path("pods"), pod("asking", "USR1@90s"))).await;
    let silent = world.running("silent").await;
    let refused = [(&asking, asks(Some("HUP@1s"))), (&silent, asks(Some("USR1@90s")))];
    for (pod, change) in refused {
        let answer = Call::merge(pod_path(pod), change).send(&world.admin).await;
        let says = "is set when the pod is created, and not changed later";
        assert!(answer.code == 422 && answer.message.contains(says), "{answer:?}");
    }
    for change in [asks(Some("USR1@90s")), asks(None)] {
        world.done(Call::merge(pod_path(&asking), change)).await;
    }
    world.finish().await;
}
