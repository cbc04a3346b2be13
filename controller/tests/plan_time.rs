//! Tests that a plan takes little time, whatever a tenant has written into a Job and its pods.
//!
//! Each limit is hundreds of times what the plan takes, also in a debug build on a busy machine.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use controller_core::job::{
    Memory, PodOutcomes, Settings, SyncInput, Versions, plan_pods, plan_status,
};
use controller_core::job_pods::JobPods;
use controller_core::view::{Interner, Job, Pod, WireJob, WirePod};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// How long one plan may take here.
const LIMIT: Duration = Duration::from_secs(30);

/// Fails unless the work ends in time. Work that does not end is left to the end of the process.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = channel();
    std::thread::spawn(move || sender.send(work()));
    match result.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: no plan after {LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: the plan panicked"),
    }
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

fn job(metadata: &Value, spec: &Value) -> Arc<Job> {
    let mut job = json!({
        "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {
            "managedBy": "epilogue.dev/job-controller",
            "selector": {"matchLabels": {"a": "0"}},
            "template": {"spec": {"restartPolicy": "Never"}},
        },
    });
    merge(&mut job["metadata"], metadata);
    merge(&mut job["spec"], spec);
    Arc::new(WireJob::read(&job.to_string()).and_then(WireJob::view).expect("must be a Job"))
}

fn merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

/// Pods of the Job, each with its number in its name.
fn pods(count: usize, metadata: &Value, status: &Value) -> Vec<Arc<Pod>> {
    let mut interner = Interner::default();
    let pod = |number: usize| {
        let mut pod = json!({
            "metadata": {
                "name": format!("p-{number}"), "namespace": "n", "uid": format!("p-{number}"),
                "resourceVersion": "1", "creationTimestamp": "2026-01-01T11:59:00Z",
                "labels": {"a": "0"},
                "finalizers": ["batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j",
                    "uid": "u", "controller": true}],
            },
            "spec": {"containers": []},
            "status": status,
        });
        merge(&mut pod["metadata"], metadata);
        let wire: WirePod = serde_json::from_value(pod).expect("must be a pod");
        Arc::new(wire.view(&mut interner))
    };
    (0..count).map(pod).collect()
}

/// Makes both plans of a sync.
fn plan(job: &Arc<Job>, pods: &[Arc<Pod>]) -> String {
    let (memory, settings) = (Memory::default(), Settings::default());
    let input = SyncInput {
        job,
        pods: &JobPods::of(job, pods),
        memory: &memory,
        groups: None,
        seen: Versions::default(),
        now: now(),
        settings: &settings,
        counts_max: SignedDuration::ZERO,
    };
    let plan = plan_pods(&input);
    let census = &plan.facts.census;
    let outcomes = PodOutcomes {
        active: census.active,
        ready: census.ready,
        terminating: census.terminating.len(),
        all_deleted: true,
    };
    plan_status(&plan, &outcomes);
    plan.to_string()
}

#[test]
fn a_count_of_failures_in_an_annotation_is_not_counted_up_to() {
    let limits = json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2,
        "backoffLimitPerIndex": i32::MAX});
    let base = json!({"annotations": {"epilogue.dev/backoff-base": "0s"}});
    let job = job(&base, &limits);
    let annotations = json!({"annotations": {
        "batch.kubernetes.io/job-completion-index": "0",
        "batch.kubernetes.io/job-index-failure-count": "2147483646"}});
    let failed = pods(1, &annotations, &json!({"phase": "Failed"}));
    let plan = in_time("2147483646 failures", move || plan(&job, &failed));
    assert!(plan.contains("create"), "{plan}");
}

/// Each pod is searched for in the selector, at each sync.
#[test]
fn a_selector_without_end_is_searched_and_not_walked() {
    let values: Vec<String> = (0..400_000).map(|number| number.to_string()).collect();
    let any = |operator: &str, values: &[String]| {
        let one = json!({"key": "a", "operator": operator, "values": values});
        json!([one])
    };
    let each = |operator: &str, key: &dyn Fn(usize) -> String| -> Value {
        let one = |number| json!({"key": key(number), "operator": operator, "values": ["x"]});
        (0..30_000).map(one).collect()
    };
    let absent: Value = (0..30_000)
        .map(|number| json!({"key": format!("k{number}"), "operator": "DoesNotExist"}))
        .collect();
    for (what, expressions) in [
        ("values", any("In", &values)),
        ("other values", any("NotIn", &values[1..])),
        ("absent labels", absent),
        ("values of many labels", each("NotIn", &|number| format!("k{number}"))),
        ("requirements of one label", each("NotIn", &|_| "a".to_owned())),
    ] {
        let selector = json!({"matchLabels": {"a": "0"}, "matchExpressions": expressions});
        let spec = json!({"selector": selector, "parallelism": 4_000, "completions": 4_000});
        let many = pods(4_000, &json!({}), &json!({"phase": "Pending"}));
        let plan = in_time(what, move || plan(&job(&json!({}), &spec), &many));
        assert!(plan.contains("active 4000"), "{what}: {plan}");
    }
}
