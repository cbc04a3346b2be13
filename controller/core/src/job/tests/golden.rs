//! Holds what a Job keeps in its status, its annotations and its pods to the files of all versions:
//! a Job outlives the controller that began it.

use std::collections::BTreeSet;

use epilogue_common::names::job_option::{ALL, FORCE_FAIL_AFTER, REPLACE_EARLY};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, api, job, message, now, pod, sync};
use crate::checks::fake_api::FakeApi;
use crate::job::{Options, PodDraft, RuleNames, fail_pending_patch, is_ours, pod_body};
use crate::podgc::namespace::force_fail_after;
use crate::view::FailureCounts;

const KIND: &str = "epilogue.dev/DisruptionsIgnored";

/// What each version writes under this name, the newest last.
fn golden(name: &str) -> Vec<Value> {
    let files = [include_str!("../../../../../common/golden/controller-1.json")];
    let body = |file: &str| {
        let bodies: Value = serde_json::from_str(file).expect("must be JSON");
        bodies[name].clone()
    };
    files.into_iter().map(body).collect()
}

/// Fails if this is not what the newest version writes under this name.
fn is_golden(name: &str, written: &Value) {
    let golden = golden(name).pop().expect("there must be one");
    assert_eq!(*written, golden, "it has changed: keep the former file, and add a new one");
}

/// A Job whose indexes may fail thrice each.
fn indexed() -> JobBuilder {
    job().indexed().size(2, 2).spec("backoffLimitPerIndex", 3)
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
    is_golden("job: disruptions ignored", &stored(&api));
}

#[test]
fn pods_are_written_as_in_the_newest_golden_file() {
    let failures = FailureCounts { counted: 2, ignored: 1 };
    let draft = PodDraft { index: Some(1), failures: Some(failures), ..PodDraft::default() };
    let body = pod_body(&indexed().build(), &draft);
    let body = serde_json::from_str(body.json().expect("must be JSON")).expect("must be JSON");
    is_golden("job: pod of an index", &body);
    let pending = pod("a", "Pending").build();
    is_golden("job: pod that did not start", &fail_pending_patch(&pending, now()));
}

/// The index of a pod that a former version has created goes on counting its failures.
#[test]
fn pods_of_each_former_version_are_read() {
    for body in golden("job: pod of an index") {
        let failed = pod("a", "Failed").ended(1, 3_600).with(|pod| {
            for field in ["annotations", "labels", "finalizers", "ownerReferences"] {
                pod["metadata"][field] = body["metadata"][field].clone();
            }
        });
        let other = pod("b", "Running").index(0);
        let mut api = api(indexed().started(7_200), vec![failed, other]);
        let effects = sync(&mut api);
        assert_eq!(effects.created_indexes(), [1]);
        let failures = FailureCounts { counted: 3, ignored: 1 };
        assert_eq!(effects.created[0].failures, Some(failures));
    }
    for patch in golden("job: pod that did not start") {
        let status = patch["status"].clone();
        let ended = pod("a", "Failed").with(|pod| pod["status"] = status).build();
        assert!(ended.has_condition("epilogue.dev/PendingTimeout"));
    }
}

/// The two that a former version has counted, and not released, are counted once.
#[test]
fn the_count_of_ignored_failures_of_each_former_version_is_read() {
    for condition in golden("job: disruptions ignored") {
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

/// Users keep their manifests for longer than a version lasts.
#[test]
fn the_options_of_each_former_version_are_read() {
    let files = [
        (include_str!("../../../../../common/golden/user-1.json"), &[REPLACE_EARLY][..]),
        (include_str!("../../../../../common/golden/user-2.json"), &[]),
    ];
    for (file, later) in files {
        let bodies: Value = serde_json::from_str(file).expect("must be JSON");
        let body = &bodies["job: options"];
        let set = body["metadata"]["annotations"].as_object().expect("must be annotations");
        let names: BTreeSet<&str> = set.keys().map(String::as_str).collect();
        let all = ALL.into_iter().filter(|name| !later.contains(name)).collect();
        assert_eq!(names, all, "an option without its golden value");
        let job = job().with(|job| {
            job["metadata"]["annotations"] = body["metadata"]["annotations"].clone();
            job["spec"]["managedBy"] = body["spec"]["managedBy"].clone();
        });
        let job = job.build();
        let expected = Options {
            disruption_limit: Some(3),
            backoff_base: Some(SignedDuration::from_millis(500)),
            backoff_max: Some(SignedDuration::from_mins(10)),
            pending_timeout: Some(SignedDuration::from_secs(30)),
            avoid_failed_nodes: true,
            finished_pods_kept: Some(5),
            rule_names: RuleNames::parse("Broken,,2").ok(),
            replace_early: later.is_empty(),
            problems: Vec::new(),
        };
        assert_eq!(Options::of(&job.annotations, SignedDuration::ZERO), expected);
        let after = force_fail_after(&job.annotations[FORCE_FAIL_AFTER]);
        assert_eq!(after, Some(SignedDuration::from_mins(90)));
        assert!(is_ours(&job, false));
    }
}
