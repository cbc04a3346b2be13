//! Tests restarts in place and failed pods against `spec.backoffLimit`. ([C9], [C10])

use super::builders::{PodBuilder, api, failed, job, pod, pods, sync};

fn limits(policy: &str, limit: i32) -> super::builders::JobBuilder {
    job().size(2, 9).spec("backoffLimit", limit).with(|job| {
        job["spec"]["template"]["spec"]["restartPolicy"] = policy.into();
    })
}

fn with_restarts(phase: &str, restarts: &[u32]) -> Vec<PodBuilder> {
    let pods = pods(phase, restarts.len()).into_iter().zip(restarts);
    pods.map(|(pod, count)| pod.restarts(*count)).collect()
}

#[test]
fn restarts_in_place_reach_the_limit() {
    for (limit, phase, restarts, fails) in [
        (0, "Running", &[0, 0][..], false),
        (0, "Running", &[1], true),
        (1, "Running", &[1], true),
        (1, "Pending", &[1], true),
        (2, "Running", &[1, 1], true),
        (3, "Running", &[1, 1], false),
        (2, "Running", &[1, 2], true),
        (1, "Unknown", &[5], false),
        (1, "Succeeded", &[5], false),
    ] {
        let pods = with_restarts(phase, restarts);
        let row = format!("limit {limit}, {phase} {restarts:?}");
        let effects = sync(&mut api(limits("OnFailure", limit), pods));
        let count = if fails { restarts.len() } else { 0 };
        assert_eq!(effects.failed as usize, count, "{row}");
        assert_eq!(effects.deleted.len(), count, "{row}");
        assert_eq!(effects.conditions.is_empty(), !fails, "{row}");
    }
}

#[test]
fn restarts_of_a_pod_that_is_not_restarted_in_place_do_not_matter() {
    let effects = sync(&mut api(limits("Never", 1), with_restarts("Running", &[5])));
    assert!(effects.conditions.is_empty());
}

/// Restarts of init containers and sidecars add up, also of pods that are deleted or lost the
/// finalizer.
#[test]
fn restarts_of_every_container_and_every_living_pod_add_up() {
    let restarts = |list: &'static str| {
        move |pod: &mut serde_json::Value| {
            pod["status"][list] =
                serde_json::json!([{"name": "x", "restartCount": 1, "state": {}}]);
        }
    };
    let both = pod("a", "Running")
        .with(restarts("containerStatuses"))
        .with(restarts("initContainerStatuses"));
    assert!(!sync(&mut api(limits("OnFailure", 2), vec![both])).conditions.is_empty());
    let old = pod("t", "Running").restarts(2).terminating().untracked();
    let mut api = api(limits("OnFailure", 2).replaces_failed(), vec![old]);
    assert!(!sync(&mut api).conditions.is_empty());
}

#[test]
fn a_suspended_job_with_few_restarts_is_only_suspended() {
    let mut api = api(limits("OnFailure", 3).suspended(), with_restarts("Running", &[1, 1]));
    assert_eq!(sync(&mut api).conditions, ["Suspended/JobSuspended"]);
}

/// More failed pods than the limit fail the Job: from pods, counters and lists. ([S13], [C9])
#[test]
fn failed_pods_may_reach_the_limit_but_not_pass_it() {
    for (limit, counter, listed, pods_failed, fails) in [
        (0, 0, false, 0, false),
        (0, 0, false, 1, true),
        (1, 0, false, 1, false),
        (1, 0, false, 2, true),
        (1, 1, false, 0, false),
        (1, 1, false, 1, true),
        (1, 1, true, 0, true),
        (6, 0, false, 6, false),
        (6, 0, false, 7, true),
        (6, 5, true, 1, true),
    ] {
        let mut job = limits("Never", limit).status("failed", counter);
        if listed {
            job = job.uncounted(&[], &["gone"]);
        }
        let row = format!("limit {limit}, {counter} and {pods_failed}, listed {listed}");
        let effects = sync(&mut api(job, pods("Failed", pods_failed)));
        let total = counter + i32::from(listed) + pods_failed as i32;
        assert_eq!(effects.failed, total, "{row}");
        let expected = if fails { failed("BackoffLimitExceeded") } else { vec![] };
        assert_eq!(effects.conditions, expected, "{row}");
    }
}
