//! Tests which statuses of a Job the API server refuses, on Jobs of another controller. ([X1] to
//! [X5])

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PatchParams};
use lab::bed::{Bed, JobBuilder, job};
use serde_json::{Value, json};

use super::bed;

const STARTED: &str = "2026-01-01T00:00:00Z";
const ENDED: &str = "2026-01-01T00:10:00Z";

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "R", "message": "m",
           "lastProbeTime": STARTED, "lastTransitionTime": STARTED})
}

fn conditions(kinds: &[&str]) -> Value {
    kinds.iter().map(|kind| condition(kind, "True")).collect()
}

async fn patch(bed: &Bed, name: &str, status: &Value, dry_run: bool) -> Result<(), String> {
    let params = PatchParams { dry_run, ..PatchParams::default() };
    let patch = Patch::Merge(json!({"status": status}));
    match bed.api::<Job>().patch_status(name, &params, &patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 422 => Err(status.message.clone()),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Jobs with a status each.
async fn create(bed: &Bed) {
    let foreign = |job: JobBuilder| job.spec("managedBy", "example.com/absent");
    let two = |job: JobBuilder| job.spec("parallelism", 2).spec("completions", 4);
    let of_indexes = |name: &str| {
        two(job(name)).spec("completionMode", "Indexed").spec("backoffLimitPerIndex", 1)
    };
    let started = json!({"startTime": STARTED, "active": 1, "ready": 0, "succeeded": 1,
                         "failed": 1});
    let indexes = json!({"startTime": STARTED, "succeeded": 1, "completedIndexes": "0",
                         "failedIndexes": "1"});
    let elastic = json!({"startTime": STARTED, "succeeded": 1, "completedIndexes": "1"});
    let complete = json!({"startTime": STARTED, "completionTime": ENDED,
                          "conditions": conditions(&["SuccessCriteriaMet", "Complete"])});
    let failing = json!({"startTime": STARTED, "conditions": conditions(&["FailureTarget"])});
    let paused = json!({"startTime": STARTED, "conditions": [condition("Suspended", "True")]});
    let table = [
        (two(job("new")), json!({"active": 0})),
        (two(job("runs")), started),
        (of_indexes("indexes"), indexes),
        (job("elastic").indexed(2), elastic),
        (job("complete"), complete),
        (two(job("failing")), failing),
        (job("nothing").spec("suspend", true).spec("completions", 0), json!({"active": 0})),
        (job("paused").spec("suspend", true), paused),
    ];
    for (job, status) in table {
        let name = bed.create(foreign(job)).await.metadata.name.expect("a name");
        patch(bed, &name, &status, false).await.expect("a status that is allowed");
    }
    bed.change("paused", json!({"suspend": false})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_that_contradicts_itself_or_an_earlier_one_is_refused() {
    let bed = bed(&[]).await;
    create(&bed).await;
    let both = conditions(&["SuccessCriteriaMet", "Complete"]);
    let done = json!({"conditions": both, "completionTime": ENDED});
    let resumed = json!({"conditions": [condition("Suspended", "False")], "startTime": ENDED});
    let allowed = [
        ("runs", json!({"succeeded": 2, "failed": 2, "active": 2, "ready": 2})),
        ("runs", json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]}})),
        ("indexes", json!({"completedIndexes": "0,2", "succeeded": 2})),
        ("elastic", json!({"completedIndexes": "", "succeeded": 0})),
        ("nothing", done.clone()),
        ("paused", resumed),
    ];
    for (name, status) in allowed {
        let answer = patch(&bed, name, &status, true).await;
        assert_eq!(answer, Ok(()), "{name}: {status}");
    }
    let ends = |kinds: &[&str]| json!({"conditions": conditions(kinds), "active": 0});
    let with_time = |kinds: &[&str], at: &str| json!({"conditions": conditions(kinds), "active": 0, "completionTime": at});
    let complete = ["SuccessCriteriaMet", "Complete"];
    let listed = |succeeded: &[&str], failed: &[&str]| json!({"uncountedTerminatedPods": {"succeeded": succeeded, "failed": failed}});
    let refused = [
        // X1 and X2.
        ("new", ends(&["FailureTarget", "Failed"]), "startTime"),
        ("new", done, "startTime"),
        ("runs", json!({"startTime": ENDED}), "startTime"),
        ("runs", json!({"startTime": null}), "startTime"),
        // X3 and X4.
        ("indexes", json!({"completedIndexes": "0,1", "succeeded": 2}), "failedIndexes"),
        ("runs", json!({"succeeded": 0}), "succeeded"),
        // X5, in its order.
        ("runs", json!({"active": -1}), "active"),
        ("runs", listed(&[""], &[]), "uncountedTerminatedPods"),
        ("runs", listed(&["a"], &["a"]), "uncountedTerminatedPods"),
        ("runs", json!({"ready": 2}), "ready"),
        ("runs", json!({"failed": 0}), "failed"),
        ("failing", json!({"conditions": []}), "conditions"),
        (
            "runs",
            ends(&["SuccessCriteriaMet", "FailureTarget", "Complete", "Failed"]),
            "conditions",
        ),
        ("runs", ends(&["SuccessCriteriaMet", "FailureTarget"]), "conditions"),
        ("runs", with_time(&["Complete"], ENDED), "conditions"),
        ("runs", ends(&["Failed"]), "conditions"),
        ("runs", json!({"conditions": both, "completionTime": ENDED, "active": 1}), "active"),
        (
            "runs",
            json!({"conditions": both, "completionTime": ENDED, "active": 0, "terminating": 1}),
            "terminating",
        ),
        (
            "runs",
            json!({"conditions": both, "completionTime": ENDED, "active": 0,
                   "uncountedTerminatedPods": {"failed": ["a"]}}),
            "uncountedTerminatedPods",
        ),
        ("runs", ends(&complete), "completionTime"),
        ("runs", json!({"completionTime": ENDED}), "completionTime"),
        ("runs", with_time(&complete, "2025-01-01T00:00:00Z"), "completionTime"),
        ("complete", json!({"completionTime": "2026-01-01T00:11:00Z"}), "completionTime"),
        ("indexes", json!({"completedIndexes": "0,x"}), "completedIndexes"),
        ("indexes", json!({"completedIndexes": "2,0"}), "completedIndexes"),
        ("indexes", json!({"completedIndexes": "4"}), "completedIndexes"),
        ("runs", json!({"completedIndexes": "0"}), "completedIndexes"),
        ("elastic", json!({"failedIndexes": "0"}), "failedIndexes"),
    ];
    let mut wrong = Vec::new();
    for (name, status, field) in refused {
        match patch(&bed, name, &status, true).await {
            Err(message) if message.contains(field) => {}
            answer => wrong.push(format!("{name}: {status}: {field}: {answer:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    bed.stop().await;
}
