//! Pressure and its like on a real node, with the agent installed from the files of `deploy/`: the
//! right pod ends, the API says why, and a Job can tell. How soon, and how often without the agent,
//! is in tests/node/README.md; `cargo lab node pressure` measures it.

use lab::node_pressure::{self, Hung, Install, Kind, Run, Setting, Stuck};

use crate::world::{kit, turn};

/// On one machine: its start takes longer than each of them.
#[tokio::test]
async fn agent_ends_the_right_pods_and_says_why() {
    let _turn = turn().await;
    let agent = Some(Install::Host);
    // Slowly taken: the test is not about who is faster.
    let hog = Setting { rate: 30, ..Setting::of(Kind::Memory, agent, 1) };
    let threshold = hog.threshold.clone();
    let own_limit = Setting { threshold, ..Setting::of(Kind::OwnLimit, agent, 1) };
    let stuck = Stuck { agent, pods: 1, kubelet_stops: true, after_seconds: Some(15) };
    let settings = [own_limit, hog];
    let played = node_pressure::play_in_turn(&kit().await, &settings, stuck).await;
    let (runs, hung) = played.unwrap_or_else(|error| panic!("{error:#}"));
    println!("OUTCOME {runs:#?} {hung:#?}");
    container_that_exceeds_its_own_limit_has_a_cause_and_is_no_disruption(&runs[0]);
    hog_is_evicted_by_the_agent_as_a_disruption_and_nobody_else(&runs[1]);
    pod_deleted_during_a_hanging_pull_fails_though_the_kubelet_is_stopped(&hung);
}

fn container_that_exceeds_its_own_limit_has_a_cause_and_is_no_disruption(run: &Run) {
    assert!(run.end.phase.starts_with("Failed"), "{run:?}");
    assert!(run.end.disruption.is_none(), "{run:?}");
    assert!(run.end.cause.as_deref() == Some("ContainerLimit"), "{run:?}");
    assert!(run.job.failed == 1 && run.wrong.is_empty(), "{run:?}");
}

fn hog_is_evicted_by_the_agent_as_a_disruption_and_nobody_else(run: &Run) {
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

fn pod_deleted_during_a_hanging_pull_fails_though_the_kubelet_is_stopped(hung: &[Hung]) {
    assert!(!hung.is_empty(), "no pod was deleted");
    assert!(hung.iter().all(|hung| hung.failed.is_some() && hung.stays), "{hung:#?}");
    // Its deleter knows why, and nobody else. (spec/node-agent.md PT1)
    assert!(hung.iter().all(|hung| hung.disruption.is_none()), "{hung:#?}");
}
