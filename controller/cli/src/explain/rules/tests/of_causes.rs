//! Tests that the causes of waits and of failures are named.

use super::*;
use crate::colour::Paint;
use crate::render::text;

const NONE: &Controller = &Controller::WithoutLease;

fn event(reason: &str, kind: &str, uid: &str, message: &str) -> Value {
    json!({
        "kind": "Event", "type": "Warning", "reason": reason, "message": message,
        "involvedObject": {"kind": kind, "uid": uid}, "metadata": {},
        "firstTimestamp": at(-600), "lastTimestamp": at(-5), "count": 4,
    })
}

fn quota() -> Value {
    let message = "Error creating: pods \"j-x\" is forbidden: exceeded quota: few, requested: \
                   pods=1, used: pods=1, limited: pods=1";
    event("FailedCreate", "Job", "job-uid", message)
}

#[test]
fn a_job_that_a_quota_blocks_waits_for_the_quota_also_under_another_controller() {
    let line = format!(
        "the quota few to allow its pods: requested: pods=1, used: pods=1, limited: pods=1 (last \
         refused at {})",
        at(-5)
    );
    let unmanaged = spec(started(), &[("managedBy", json!(null))]);
    for job in [started(), unmanaged] {
        let found = explained_with(job, Vec::new(), Some(&[quota()]), NONE);
        assert_eq!(waits(&found).first().copied(), Some(&*line));
        assert_eq!(found.waits_for[0].code, Code::QuotaExceeded);
    }
}

#[test]
fn pods_that_lack_the_same_are_one_line_in_the_scheduler_s_words() {
    let lacking = |name: &str| {
        let mut pod = pod(name, "Pending");
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available"}]);
        pod
    };
    let found = explained(started(), vec![lacking("a"), lacking("b")]);
    let expected = "2 pods (a, b) to be scheduled: 0/3 nodes are available";
    assert!(waits(&found).contains(&expected), "{found:?}");
}

#[test]
fn a_backoff_and_a_deadline_say_when_they_end_and_the_next_sync_why() {
    let mut job = spec(started(), &[("activeDeadlineSeconds", 160.into())]);
    let found = explained(job.clone(), vec![pod("a", "Running"), pod("b", "Running")]);
    let deadline = format!("the end of its activeDeadlineSeconds, in 1m, at {}", at(60));
    assert!(waits(&found).contains(&&*deadline), "{found:?}");
    assert_eq!(found.wakes_up_for, Some("its activeDeadlineSeconds end"));
    let line = format!("synced again in 60.0 s, at {}: its activeDeadlineSeconds end.", at(60));
    assert!(text(&found, Paint::Plain).contains(&line), "{}", text(&found, Paint::Plain));
    job["spec"]["activeDeadlineSeconds"] = json!(null);
    let mut failed = pod("a", "Failed");
    failed["status"]["containerStatuses"] = json!([{"name": "main",
        "state": {"terminated": {"exitCode": 1, "finishedAt": at(-2)}}}]);
    let found = explained(job, vec![failed, pod("b", "Running")]);
    let backoff = waits(&found).into_iter().find(|it| it.starts_with("the backoff"));
    assert!(backoff.is_some_and(|it| it.ends_with(&format!(", until {}", at(8)))), "{found:?}");
    assert_eq!(found.wakes_up_for, Some("the backoff ends"));
}

#[test]
fn an_unknown_annotation_is_named_on_any_job() {
    let mut job = spec(started(), &[("managedBy", json!(null))]);
    job["metadata"]["annotations"] =
        json!({"epilogue.dev/backof-base": "5s", "epilogue.dev/backoff-max": "1m", "a/b": "c"});
    let found = explained(job, Vec::new());
    let lines: Vec<&str> = found.annotations.iter().map(|it| &*it.text).collect();
    let expected = "epilogue.dev/backof-base has no effect: it is unknown; did you mean \
                    epilogue.dev/backoff-base?";
    assert_eq!(lines, [expected]);
    assert!(text(&found, Paint::Plain).contains(expected));
}

fn failed_job() -> Value {
    let mut job = spec(job(), &[("backoffLimit", 0.into())]);
    job["status"] = json!({
        "uncountedTerminatedPods": {}, "failed": 14,
        "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded",
                        "message": "Job has reached the specified backoff limit",
                        "lastTransitionTime": at(-5)}],
    });
    job
}

fn evicted() -> Value {
    let ends = json!([{"pod": "gone", "node": "n7", "at": at(-9),
                       "says": "pod gone on n7 was disrupted (EvictionByEvictionAPI)"}]);
    let mut event = event("PodDisrupted", "Job", "job-uid", "");
    event["metadata"]["annotations"] = json!({
        "epilogue.dev/cause": "EvictionByEvictionAPI", "epilogue.dev/counted": "Failed",
        "epilogue.dev/ends": ends.to_string(), "epilogue.dev/nodes": "{\"n7\":4}"});
    event
}

#[test]
fn a_failed_job_says_the_cause_then_what_to_do_and_how_its_pods_ended() {
    let mut crashed = pod("left", "Failed");
    crashed["metadata"]["finalizers"] = json!([]);
    crashed["status"]["containerStatuses"] = json!([{"name": "main",
        "state": {"terminated": {"exitCode": 3, "finishedAt": at(-20)}}}]);
    let mut known = pod("gone", "Failed");
    known["metadata"]["finalizers"] = json!([]);
    let found = explained_with(failed_job(), vec![crashed, known], Some(&[evicted()]), NONE);
    let ends: Vec<_> =
        found.ends.last.iter().map(|it| (&*it.pod, &*it.cause, it.counted)).collect();
    let expected =
        [("gone", "EvictionByEvictionAPI", Some("Failed")), ("left", "ExitCode", Some("Failed"))];
    assert_eq!(ends, expected, "each pod once, the latest first");
    assert_eq!(found.ends.more, 12);
    let text = text(&found, Paint::Plain);
    let mut lines = text.lines();
    let first = "Job ns/j: Failed: BackoffLimitExceeded: Job has reached the specified backoff \
                 limit; pod gone on n7 was disrupted (EvictionByEvictionAPI)  [job-finished]";
    assert_eq!(lines.next(), Some(first));
    let second = "To do: a disruption counted as a failure; a new Job ignores it with:";
    assert_eq!(lines.next(), Some(second));
    assert!(text.contains("  spec:\n") && text.contains("type: DisruptionTarget"), "{text}");
    let line = format!(
        "  {}  pod gone on n7 was disrupted (EvictionByEvictionAPI)  (EvictionByEvictionAPI; \
         Failed)\n",
        at(-9)
    );
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("  and 12 more, of which only the number is known\n"), "{text}");
}

#[test]
fn without_pods_and_events_only_the_number_is_known() {
    let found = explained_with(failed_job(), Vec::new(), None, NONE);
    assert_eq!((found.ends.last.len(), found.ends.more), (0, 14));
    assert_eq!(found.remedy, None);
    let text = text(&found, Paint::Plain);
    assert!(text.contains("Ends:\n  14, of which only the number is known\n"), "{text}");
    assert!(text.contains("events were not read"), "{text}");
}
