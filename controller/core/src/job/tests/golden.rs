//! Holds the count of ignored failures, which a Job's status keeps, to the files of all versions: a
//! Job outlives the controller that began it.

use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, api, job, message, pod, sync};
use crate::checks::fake_api::FakeApi;

const KIND: &str = "epilogue.dev/DisruptionsIgnored";

/// What each version writes, the newest last.
fn golden() -> Vec<Value> {
    let files = [include_str!("../../../../../common/golden/controller-1.json")];
    let condition = |file: &str| {
        let bodies: Value = serde_json::from_str(file).expect("must be JSON");
        bodies["job: disruptions ignored"].clone()
    };
    files.into_iter().map(condition).collect()
}

/// A Job with two ignored failures, `d-1` and `d-2`, and this limit.
fn disrupted(limit: &str) -> (JobBuilder, Vec<PodBuilder>) {
    let rule = json!({"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}]});
    let job = job()
        .spec("podFailurePolicy", json!({"rules": [rule]}))
        .meta("annotations", json!({"epilogue.dev/disruption-limit": limit}));
    let pods =
        ["d-1", "d-2"].map(|name| pod(name, "Failed").condition("DisruptionTarget").ended(143, 5));
    (job, pods.into())
}

fn stored(api: &FakeApi) -> Value {
    let condition = api.job.true_condition(KIND).expect("the condition must be there");
    json!({"type": KIND, "status": "True", "reason": condition.reason,
           "message": condition.message})
}

#[test]
fn the_count_of_ignored_failures_is_written_as_in_the_newest_golden_file() {
    let (job, pods) = disrupted("9");
    let mut api = api(job, pods);
    sync(&mut api);
    let golden = golden().pop().expect("there must be one");
    assert_eq!(stored(&api), golden, "it has changed: keep the former file, and add a new one");
}

/// The two that a former version has counted, and not released, are counted once.
#[test]
fn the_count_of_ignored_failures_of_each_former_version_is_read() {
    for condition in golden() {
        let text = |name: &str| condition[name].as_str().expect("must be a text").to_owned();
        for (limit, more, fails) in [("2", false, false), ("2", true, true), ("3", true, false)] {
            let (job, mut pods) = disrupted(limit);
            if more {
                pods.push(pod("d-3", "Failed").condition("DisruptionTarget").ended(143, 5));
            }
            let job = job.condition(KIND, &text("reason"), &text("message"));
            let mut api = api(job, pods);
            let effects = sync(&mut api);
            let failed =
                effects.conditions.iter().any(|each| each.ends_with("/DisruptionLimitExceeded"));
            let expected = if more { "3 pod" } else { "2 pod" };
            assert!(text("message").starts_with("2 pod"));
            let message = message(&api, KIND);
            assert!(message.starts_with(expected), "{message}");
            assert_eq!(failed, fails, "limit {limit}, {message}: {:?}", effects.conditions);
        }
    }
}
