//! Defines the Jobs of the demo: what each shows, and how it must end.

use std::fmt;

use serde_json::{Value, json};

use crate::nodes::SCRIPT_ANNOTATION;

/// The Job whose node is shut down.
pub(super) const DISRUPTED: &str = "disrupted";
/// The Job whose node dies without an announcement.
pub(super) const BEREAVED: &str = "bereaved";
/// The Job one of whose pods is deleted.
pub(super) const PATIENT: &str = "patient";

/// One Job of the demo.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// Its purpose, in one line.
    pub(super) shows: &'static str,
    pub(super) job: Value,
    pub(super) end: End,
}

/// How a Job must end.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) condition: &'static str,
    pub(super) succeeded: i32,
    pub(super) failed: i32,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, succeeded, failed } = self;
        write!(formatter, "{condition}: {succeeded} pods succeeded, {failed} counted as failed")
    }
}

/// All scenes, in the order of the table.
pub(super) fn scenes() -> Vec<Scene> {
    vec![
        Scene {
            name: "report",
            shows: "NonIndexed: 6 completions, 2 at a time",
            job: job("report", "succeed after=1s", json!({"parallelism": 2, "completions": 6})),
            end: End { condition: "Complete", succeeded: 6, failed: 0 },
        },
        Scene {
            name: "training",
            shows: "Indexed: index 3 fails once and is run again after its backoff",
            job: job(
                "training",
                "index=3: fail exit=42 after=1s times=1; succeed after=3s",
                json!({"completionMode": "Indexed", "parallelism": 5, "completions": 5}),
            ),
            end: End { condition: "Complete", succeeded: 5, failed: 1 },
        },
        Scene {
            name: "queue",
            shows: "work queue: no more pods once one has succeeded",
            job: job("queue", "succeed after=4s", json!({"parallelism": 3, "completions": null})),
            end: End { condition: "Complete", succeeded: 3, failed: 0 },
        },
        Scene {
            name: "broken",
            shows: "exit code 3 is a bug, says its podFailurePolicy: the Job fails at once",
            job: job(
                "broken",
                "fail exit=3 after=2s",
                json!({"podFailurePolicy": {"rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
                ]}}),
            ),
            end: End { condition: "Failed", succeeded: 0, failed: 1 },
        },
        Scene {
            name: DISRUPTED,
            shows: "its node shuts down: replaced elsewhere, not counted, backoffLimit 0",
            job: job(
                DISRUPTED,
                "times=1 on-term=143 after=500ms; succeed after=3s",
                json!({"backoffLimit": 0, "podFailurePolicy": disruptions_are_ignored()}),
            ),
            end: End { condition: "Complete", succeeded: 1, failed: 0 },
        },
        Scene {
            name: BEREAVED,
            shows: "its node dies for good: only pod GC fails its pod, and says why",
            job: job(
                BEREAVED,
                "times=1 hang; succeed after=1s",
                json!({"backoffLimit": 0, "podReplacementPolicy": "Failed",
                       "podFailurePolicy": disruptions_are_ignored()}),
            ),
            end: End { condition: "Complete", succeeded: 1, failed: 0 },
        },
        Scene {
            name: PATIENT,
            shows: "podReplacementPolicy Failed: no replacement before the old pod has ended",
            job: job(
                PATIENT,
                "times=1 on-term=143 after=5s; succeed after=1s",
                json!({"podReplacementPolicy": "Failed"}),
            ),
            end: End { condition: "Complete", succeeded: 1, failed: 1 },
        },
    ]
}

fn disruptions_are_ignored() -> Value {
    json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]})
}

fn job(name: &str, script: &str, spec: Value) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "managedBy": "epilogue.dev/job-controller",
            "template": {
                "metadata": {"annotations": {SCRIPT_ANNOTATION: script}},
                "spec": {"restartPolicy": "Never",
                         "containers": [{"name": "main", "image": "none"}]},
            },
        },
    });
    if let Value::Object(fields) = spec {
        for (field, value) in fields {
            job["spec"][field] = value;
        }
    }
    job
}
