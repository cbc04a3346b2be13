//! Pressure and its like on a real node, with the agent installed from the files of `deploy/`: the
//! right pod ends, the API says why, and a Job can tell. How soon, and how often without the agent,
//! is in tests/node/README.md; `cargo lab node pressure` measures it.

use lab::node_pressure::{self, Hung, Install, Kind, Run, Setting, Stuck};

use crate::world::{kit, turn};

async fn play(setting: Setting) -> Run {
    let _turn = turn().await;
    let played = node_pressure::play(&kit().await, &setting, |_| ()).await;
    let (runs, losses) = played.unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", node_pressure::render(&setting, &runs, &losses));
    runs.into_iter().next().expect("one run must have been played")
}

#[tokio::test]
async fn hog_is_evicted_by_the_agent_as_a_disruption_and_nobody_else() {
    // Slowly taken: the test is not about who is faster.
    let mut setting = Setting::of(Kind::Memory, Some(Install::Host), 1);
    setting.rate = 20;
    let run = play(setting).await;
    assert!(run.end.disruption.as_deref() == Some("TerminationByKubelet"), "{run:?}");
    // The kubelet looks at containers once a second, and may report the end before the agent: then
    // the reason stands in the condition alone. (§7.2)
    let short = "The node was low on resource: memory. ";
    match run.end.phase.as_str() {
        "Failed/Evicted" => assert!(run.end.message.starts_with(short), "{run:?}"),
        other => assert_eq!(other, "Failed", "{run:?}"),
    }
    assert!(run.job.failed == 0 && run.job.replaced, "{run:?}");
    assert!(run.wrong.is_empty(), "{run:?}");
}

#[tokio::test]
async fn container_that_exceeds_its_own_limit_has_a_cause_and_is_no_disruption() {
    let run = play(Setting::of(Kind::OwnLimit, Some(Install::Host), 1)).await;
    assert!(run.end.phase.starts_with("Failed"), "{run:?}");
    assert!(run.end.disruption.is_none(), "{run:?}");
    assert!(run.end.cause.as_deref() == Some("ContainerLimit"), "{run:?}");
    assert!(run.job.failed == 1 && run.wrong.is_empty(), "{run:?}");
}

#[tokio::test]
async fn pod_deleted_during_a_hanging_pull_fails_though_the_kubelet_is_stopped() {
    let _turn = turn().await;
    let agent = Some(Install::Host);
    let stuck = Stuck { agent, pods: 1, kubelet_stops: true, after_seconds: Some(15) };
    let played = node_pressure::play_stuck(&kit().await, stuck).await;
    let hung: Vec<Hung> = played.unwrap_or_else(|error| panic!("{error:#}"));
    println!("OUTCOME {hung:#?}");
    assert!(hung.iter().all(|hung| hung.failed.is_some() && hung.stays), "{hung:#?}");
    // Its deleter knows why, and nobody else. (spec/node-agent.md PT1)
    assert!(hung.iter().all(|hung| hung.disruption.is_none()), "{hung:#?}");
}
