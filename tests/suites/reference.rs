//! Our controller against the reference's: the same scenarios, run by each on one API, must end in
//! the same status and have made the same pods.

mod scenarios;
mod seen;
mod stage;

use futures::future::join_all;
use scenarios::Scenario;
use stage::Stage;

/// What differs, for people; nothing if nothing does.
async fn differences(stage: &Stage, scenario: Scenario) -> Option<String> {
    let name = scenario.name;
    let (ours, theirs) =
        tokio::join!(stage.ours().run(&scenario), stage.reference().run(&scenario));
    println!("{name}: {:.1} s, reference {:.1} s", ours.took_s, theirs.took_s);
    ours.seen.difference(&theirs.seen).map(|text| format!("{name}:\n{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_controllers_bring_the_same_about() {
    let stage = Stage::start().await;
    let all = scenarios::all().into_iter().map(|scenario| differences(&stage, scenario));
    let different: Vec<String> = join_all(all).await.into_iter().flatten().collect();
    stage.stop().await;
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
}
