//! Compares our controller with upstream: both run the same scenarios on one API, and must end in
//! the same status with the same pods created.

mod scenarios;
mod seen;
mod stage;

use std::time::Duration;

use futures::future::join_all;
use lab::kubernetes::Feature;
use scenarios::Scenario;
use stage::Stage;

/// A Job whose pods fail at once, with a code that its policy ignores.
const LOOP: &str = "ignored-loop";
/// Upstream's backoff creates pods after 0, 10 and 30 s; without backoff there is one a second.
const LOOP_LASTS: Duration = Duration::from_secs(33);

/// The differences, for human readers; `None` if there is no difference.
async fn differences(stage: &Stage, scenario: Scenario) -> Option<String> {
    let name = scenario.name;
    let (ours, theirs) =
        tokio::join!(stage.ours().run(&scenario), stage.reference().run(&scenario));
    println!("{name}: {:.1} s, reference {:.1} s", ours.took_s, theirs.took_s);
    ours.seen.difference(&theirs.seen).map(|text| format!("{name}:\n{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_controllers_bring_the_same_about() {
    if Feature::OwnControllerManager.is_missing() {
        return;
    }
    let stage = Stage::start().await;
    let all = scenarios::all().into_iter().map(|scenario| differences(&stage, scenario));
    let (different, ours, theirs) = tokio::join!(
        join_all(all),
        stage.ours().pods_made(LOOP, scenarios::ignored_loop(), LOOP_LASTS),
        stage.reference().pods_made(LOOP, scenarios::ignored_loop(), LOOP_LASTS),
    );
    stage.stop().await;
    let different: Vec<String> = different.into_iter().flatten().collect();
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
    // The exact number at the very end depends on timing.
    assert!(ours >= 2 && ours <= theirs + 2, "{ours} pods of a loop, upstream made {theirs}");
}
