//! Tests what a person reads of a Job.

use serde_json::json;

use super::builders::{JobBuilder, PodBuilder, job, now, pod};
use crate::job::{Explanation, Memory, Settings, SyncInput, Versions, explain};

fn explained(job: JobBuilder, pods: Vec<PodBuilder>) -> Explanation {
    let job = job.build().into();
    let pods: Vec<_> = pods.into_iter().map(|pod| pod.build().into()).collect();
    explain(&SyncInput {
        job: &job,
        pods: &pods,
        memory: &Memory::default(),
        seen: Versions::default(),
        now: now(),
        settings: &Settings::default(),
    })
}

/// Field, used and limit of each limit.
fn limits(explanation: &Explanation) -> Vec<(&str, i64, i64)> {
    explanation.limits.iter().map(|it| (it.field, it.used, it.limit)).collect()
}

fn waits(explanation: &Explanation) -> Vec<&str> {
    explanation.waits_for.iter().map(|it| &*it.text).collect()
}

fn finished() -> JobBuilder {
    job().size(1, 3).status("succeeded", 3).status("failed", 2).condition(
        "Complete",
        "CompletionsReached",
        "reached",
    )
}

#[test]
fn a_finished_job_shows_its_limits_and_its_pods() {
    let explanation = explained(finished(), vec![pod("a", "Succeeded"), pod("b", "Failed")]);
    assert_eq!(limits(&explanation), [("completions", 3, 3), ("backoffLimit", 2, 6)]);
    let pods = explanation.pods.iter().map(|it| (&*it.name, it.counts_as));
    assert_eq!(pods.collect::<Vec<_>>(), [("a", "succeeded"), ("b", "failed")]);
    assert_eq!(waits(&explanation), ["nothing: the Job is finished"]);
}

#[test]
fn a_finished_job_of_another_controller_waits_for_nothing() {
    let explanation = explained(finished().spec("managedBy", json!(null)), Vec::new());
    assert_eq!(waits(&explanation), ["nothing: the Job is finished"]);
}

#[test]
fn a_misspelled_manager_is_a_question() {
    let of = |manager: &str| explained(job().spec("managedBy", manager), Vec::new());
    let explanation = of("epilogue.dev/job-controler");
    let expected = "epilogue.dev/job-controler, which spec.managedBy names; did you mean \
                    epilogue.dev/job-controller?";
    assert_eq!(waits(&explanation), [expected]);
    let expected = "example.com/other, which spec.managedBy names";
    assert_eq!(waits(&of("example.com/other")), [expected]);
    let known = "kueue.x-k8s.io/multikueue";
    assert_eq!(waits(&of(known)), [format!("{known}, which spec.managedBy names")]);
}

#[test]
fn a_job_that_no_sync_has_started_is_not_running() {
    assert_eq!(explained(job(), Vec::new()).state, "not started yet");
    assert_eq!(explained(job().started(5), Vec::new()).state, "running");
}

#[test]
fn the_next_sync_shows_its_writes_of_the_status_and_the_pods_it_releases() {
    let explanation = explained(job().started(100).size(2, 2), vec![pod("won", "Succeeded")]);
    assert_eq!(explanation.released_pods, ["won"]);
    let status = explanation.next_status.as_ref().expect("the sync counts a pod");
    assert_eq!((status.succeeded, status.active), (Some(1), Some(1)));
    let lines = &explanation.next_sync;
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start));
    let release = at("remove the tracking finalizer from 1 pod: won").expect("it is released");
    assert!(at("create ") < at("write the status: "), "{lines:?}");
    assert!(at("write the status: ") < Some(release), "counted before it is released: {lines:?}");
    let last = lines.last().map(String::as_str).unwrap_or_default();
    assert!(last.starts_with("write the status: active 1, ready 0, terminating 0, succeeded 1"));
    let quiet = explained(finished(), Vec::new());
    assert_eq!((quiet.next_status, quiet.released_pods.len()), (None, 0));
}

#[test]
fn limits_of_annotations_and_of_indexes_are_shown() {
    let rule = json!({"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}]});
    let annotations = json!({"epilogue.dev/disruption-limit": "5",
                             "epilogue.dev/pending-timeout": "10m"});
    let job = job()
        .started(100)
        .size(2, 2)
        .failure_policy(json!([rule]))
        .meta("annotations", annotations);
    let lost = pod("lost", "Failed").condition("DisruptionTarget").ended(143, 5);
    let explanation = explained(job, vec![lost, pod("late", "Pending").created(60)]);
    let found = limits(&explanation);
    assert!(found.contains(&("epilogue.dev/disruption-limit", 1, 5)), "{found:?}");
    assert!(found.contains(&("epilogue.dev/pending-timeout", 60, 600)), "{found:?}");
}

#[test]
fn the_worst_index_counts_for_the_limit_per_index() {
    let indexed = job()
        .started(100)
        .indexed()
        .size(2, 2)
        .spec("backoffLimitPerIndex", 3)
        .spec("backoffLimit", i32::MAX);
    let pods = vec![pod("a", "Running").index(0).failures(2), pod("b", "Running").index(1)];
    let found = explained(indexed, pods);
    assert!(limits(&found).contains(&("backoffLimitPerIndex", 2, 3)), "{found:?}");
}
