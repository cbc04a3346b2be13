//! Tests which Jobs failed by disruptions, and which wait.

use super::*;

/// A Job with this number of failures, and these conditions.
pub(super) fn job(name: &str, failures: u64, conditions: &Value) -> Value {
    json!({"kind": "Job", "metadata": {"namespace": "default", "name": name, "uid": name},
           "spec": {"backoffLimit": 1, "template": {"spec": {"restartPolicy": "Never"}}},
           "status": {"failed": failures, "conditions": conditions}})
}

fn failed_job(failures: u64, reason: &str) -> Value {
    let condition = json!({"type": "Failed", "status": "True", "reason": reason,
                           "message": "Container main for pod default/a failed with exit code 143",
                           "lastTransitionTime": at(800)});
    job("j", failures, &json!([condition]))
}

fn ignoring(mut job: Value) -> Value {
    let pattern = json!([{"type": "DisruptionTarget", "status": "True"}]);
    job["spec"]["podFailurePolicy"] =
        json!({"rules": [{"action": "Ignore", "onPodConditions": pattern}]});
    job
}

fn disrupted(name: &str) -> Value {
    because(failed(name, 143, "Error", 700), "Terminated", "")
}

fn own(name: &str) -> Value {
    failed(name, 1, "Error", 710)
}

fn guessed(name: &str) -> Value {
    failed(name, 255, "Unknown", 700)
}

#[track_caller]
fn assert_jobs(job: Value, pods: Vec<Value>, expected: &[&str]) {
    let mut objects = vec![node("n"), job];
    objects.extend(pods);
    let found = reported(objects).jobs;
    let line = |job: &AffectedJob| {
        let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
        let help = word(json!(job.epilogue));
        format!("{} {} {} {help}", job.code, job.disruptions, word(json!(job.basis)))
    };
    let found: Vec<String> = found.iter().map(line).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_job_within_its_limit_without_disruptions_failed_by_them() {
    let pods = || vec![disrupted("a"), disrupted("b")];
    let exceeded = |failures| failed_job(failures, "BackoffLimitExceeded");
    let by = "job-failed-by-disruptions";
    assert_jobs(ignoring(exceeded(2)), pods(), &[&format!("{by} 2 seen would-have-acted")]);
    assert_jobs(exceeded(2), pods(), &[&format!("{by} 2 seen no-help")]);
    let mixed = vec![disrupted("a"), own("b"), own("c")];
    // Two failures of its own exceed a limit of 1 only together with a third.
    assert_jobs(ignoring(exceeded(3)), mixed, &[]);
    let guess = vec![guessed("a"), own("b")];
    assert_jobs(ignoring(exceeded(2)), guess, &[&format!("{by} 1 estimated would-have-acted")]);
    assert_jobs(ignoring(exceeded(2)), vec![own("a"), own("b")], &[]);
}

#[test]
fn a_disruption_that_a_rule_ignored_is_no_failure() {
    let reported = |name| target(disrupted(name), "True", "TerminationByKubelet", 690);
    let exceeded = failed_job(2, "BackoffLimitExceeded");
    assert_jobs(ignoring(exceeded.clone()), vec![reported("a"), own("b"), own("c")], &[]);
    let counted = &["job-failed-by-disruptions 1 seen no-help"];
    assert_jobs(exceeded, vec![reported("a"), own("b")], counted);
}

#[test]
fn other_reasons_are_estimated_unless_the_condition_names_the_pod() {
    let deadline = ignoring(failed_job(1, "DeadlineExceeded"));
    let estimated = &["job-failed-by-disruptions 1 estimated would-have-acted"];
    assert_jobs(deadline, vec![disrupted("a")], estimated);
    let mut in_place = ignoring(failed_job(2, "BackoffLimitExceeded"));
    in_place["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
    assert_jobs(in_place, vec![disrupted("a")], estimated);
    let policy = ignoring(failed_job(1, "PodFailurePolicy"));
    let named = &["job-failed-by-disruptions 1 seen would-have-acted"];
    let by_name = ignoring(failed_job(1, "PodFailurePolicy_Evicted"));
    assert_jobs(by_name, vec![disrupted("a")], named);
    assert_jobs(policy.clone(), vec![disrupted("a")], named);
    assert_jobs(policy, vec![disrupted("b")], &[]);
}

#[test]
fn a_job_waits_for_a_pod_without_its_terminal_phase() {
    let found = reported(vec![job("j", 0, &json!([])), deleted(pod("p"), 0)]);
    assert_eq!(found.jobs.len(), 1);
    assert_eq!(found.jobs[0].code.as_str(), "job-waits-for-lost-pod");
    let complete = json!([{"type": "Complete", "status": "True"}]);
    assert!(reported(vec![job("j", 0, &complete), deleted(pod("p"), 0)]).jobs.is_empty());
}

#[test]
fn the_other_pods_of_a_failed_job_are_work_that_failed_with_it() {
    let mut objects = vec![node("n"), ignoring(failed_job(2, "BackoffLimitExceeded"))];
    let mut done = failed("done", 0, "Completed", 400);
    done["status"]["phase"] = "Succeeded".into();
    objects.extend([disrupted("a"), disrupted("b"), done]);
    let found = reported(objects);
    assert_eq!(found.jobs[0].work_seconds, 3990);
    let old = json!([{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded",
                      "lastTransitionTime": at(-172_800)}]);
    assert!(reported(vec![node("n"), job("j", 2, &old), disrupted("a")]).jobs.is_empty());
}
