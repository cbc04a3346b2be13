//! Tests what the conditions of a failed Job say.

use jiff::SignedDuration;
use serde_json::json;

use super::builders::{JobBuilder, PodBuilder, api, job, message, pod, sync};
use crate::checks::fake_api::FakeApi;
use crate::job::BackoffRecord;

fn evicted(name: &str) -> PodBuilder {
    pod(name, "Failed").on_node().ended(143, 5).with(|pod| {
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
                                              "reason": "EvictionByEvictionAPI"}]);
    })
}

fn crashed(name: &str) -> PodBuilder {
    pod(name, "Failed").on_node().ended(1, 9)
}

fn limit(limit: i32) -> JobBuilder {
    job().size(9, 9).spec("backoffLimit", limit)
}

fn says(job: JobBuilder, pods: Vec<PodBuilder>) -> String {
    let mut api = api(job, pods);
    sync(&mut api);
    let said = message(&api, "FailureTarget");
    let terminal = message(&api, "Failed");
    assert!(terminal.is_empty() || terminal == said, "{said}; {terminal}");
    said
}

#[test]
fn one_failure_is_reported_in_full() {
    let words = "Job has reached the specified backoff limit: 1 failure of 0 allowed; pod p on \
                 node-1 was disrupted (EvictionByEvictionAPI), and no rule of podFailurePolicy \
                 ignores that";
    assert_eq!(says(limit(0), vec![evicted("p")]), words);
    let words = "Job has reached the specified backoff limit: 1 failure of 0 allowed; pod p on \
                 node-1: container main exited with code 1";
    assert_eq!(says(limit(0), vec![crashed("p")]), words);
}

#[test]
fn several_failures_are_counted_by_cause() {
    let pods = vec![crashed("a"), evicted("b"), crashed("c")];
    let words = "Job has reached the specified backoff limit: 3 failures of 2 allowed (2 \
                 ExitCode, 1 EvictionByEvictionAPI); the last: pod b on node-1 was disrupted \
                 (EvictionByEvictionAPI), and no rule of podFailurePolicy ignores that";
    assert_eq!(says(limit(2), pods), words);
}

fn fails_again(api: &mut FakeApi, name: &str) {
    let pod = crashed(name).ended(1, 1).build();
    api.pods.insert(pod.uid.clone(), pod.into());
    sync(api);
}

/// Those that are gone are remembered; after a restart only their number is left.
#[test]
fn failures_of_pods_that_are_gone_are_remembered_until_a_restart() {
    for (restarts, words) in [
        (false, "3 failures of 2 allowed (2 ExitCode, 1 EvictionByEvictionAPI)"),
        (true, "3 failures of 2 allowed (1 ExitCode, 2 more)"),
    ] {
        let mut api = api(limit(2), vec![evicted("a")]);
        sync(&mut api);
        fails_again(&mut api, "b");
        assert_eq!(api.job.status.failed, Some(2));
        api.pods.clear();
        if restarts {
            api.crash();
        }
        api.now += SignedDuration::from_mins(20);
        fails_again(&mut api, "c");
        let said = message(&api, "FailureTarget");
        assert!(said.contains(words), "{said}");
        assert!(said.contains("; the last: pod c on node-1: container main exited"), "{said}");
    }
}

/// The pods that are left in the API show how they ended.
#[test]
fn after_a_restart_the_pods_that_are_left_are_read() {
    let counted = |name: &str| crashed(name).untracked();
    let mut api = api(limit(2).status("failed", 2), vec![counted("a"), counted("b"), evicted("c")]);
    api.memory.backoff = None;
    sync(&mut api);
    let said = message(&api, "FailureTarget");
    let words = "3 failures of 2 allowed (2 ExitCode, 1 EvictionByEvictionAPI)";
    assert!(said.contains(words), "{said}");
    assert!(api.memory.backoff.is_some_and(|record| record != BackoffRecord::default()));
}

#[test]
fn restarts_in_place_are_reported_with_the_last_end() {
    let job = limit(2).with(|job| {
        job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
    });
    let pod = pod("p", "Running").on_node().with(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "main", "restartCount": 2, "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }]);
    });
    let words = "Job has reached the specified backoff limit: 2 restarts reach the limit of 2; pod \
                 p on node-1: container main was OOMKilled (exit code 137)";
    assert_eq!(says(job, vec![pod]), words);
}

#[test]
fn a_rule_that_fails_the_job_is_reported_with_node_and_cause() {
    let rules = json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]);
    let words = "Container main for pod ns/p failed with exit code 1 matching FailJob rule at \
                 index 0; pod p on node-1: container main exited with code 1";
    assert_eq!(says(limit(6).failure_policy(rules), vec![crashed("p")]), words);
}

#[test]
fn a_deadline_is_reported_with_what_the_pods_did() {
    let waiting = |name: &str, reason: &str| {
        let reason = reason.to_owned();
        pod(name, "Pending").with(move |pod| {
            pod["status"]["containerStatuses"] =
                json!([{"name": "main", "state": {"waiting": {"reason": reason}}}]);
        })
    };
    let unscheduled = pod("u", "Pending").with(|pod| {
        pod["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    });
    let late = || limit(6).spec("activeDeadlineSeconds", 30).started(40);
    let pods = vec![
        pod("r", "Running").on_node(),
        unscheduled.clone(),
        waiting("w", "ImagePullBackOff"),
        waiting("c", "ContainerCreating"),
        crashed("f"),
    ];
    let words = "Job was active longer than specified deadline of 30 s; the Job had 1 running, 3 \
                 pending (1 ImagePullBackOff, 1 Unschedulable), and 1 failure; pod f on node-1: \
                 container main exited with code 1";
    assert_eq!(says(late(), pods), words);
    let words = "Job was active longer than specified deadline of 30 s; the Job had 1 pending \
                 (Unschedulable)";
    assert_eq!(says(late(), vec![unscheduled]), words);
    let none = "Job was active longer than specified deadline of 30 s; the Job had no pod";
    assert_eq!(says(late(), Vec::new()), none);
}

#[test]
fn failed_indexes_are_named() {
    let per_index = || job().size(3, 3).indexed().spec("backoffLimitPerIndex", 0);
    let done = |name: &str, index: u32| pod(name, "Succeeded").index(index).ended(0, 9);
    let pods = vec![done("a", 0), crashed("b").index(1), done("c", 2)];
    let words = "Job has failed indexes: 1 of 3 (1), 1 failure; pod b (index 1) on node-1: \
                 container main exited with code 1";
    assert_eq!(says(per_index(), pods), words);
    let pods = vec![crashed("b").index(1)];
    let words = "Job has exceeded the specified maximal number of failed indexes: 1 of 0 allowed \
                 (1), 1 failure; pod b (index 1) on node-1: container main exited with code 1";
    assert_eq!(says(per_index().spec("maxFailedIndexes", 0), pods), words);
}

/// What others write is bounded, and no message is longer than the limit.
#[test]
fn a_message_is_bounded() {
    let long = |text: char| text.to_string().repeat(5_000);
    let pod = pod(&long('p'), "Failed")
        .ended(1, 5)
        .with(|pod| pod["spec"]["nodeName"] = long('n').into());
    let said = says(limit(0), vec![pod]);
    assert!(said.len() <= 1024 && said.ends_with('…'), "{} bytes", said.len());
}
