//! Ten kinds of Jobs, five of each: what their pods do, and how the Jobs end.

use lab::bed::{JobBuilder, JobState, job};
use serde_json::{Value, json};

/// Jobs of each kind.
pub(crate) const OF_EACH: usize = 5;

/// A kind of Job.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    spec: fn(JobBuilder) -> JobBuilder,
    /// A script by which a Job comes to rest in its middle: a suspension then meets no pod that is
    /// about to end. Such a pod may lose its finalizer before it counts. ([P14])
    pub(crate) steady: &'static str,
    /// A script without a rest.
    pub(crate) brisk: &'static str,
    /// Whether a Job with the first script is in its middle.
    pub(crate) in_the_middle: fn(&JobState) -> bool,
    /// What the status counts at the end: succeeded, failed with each script; `None` if the test
    /// deletes the Job.
    pub(crate) totals: Option<[(i32, i32); 2]>,
}

impl Kind {
    /// The Job of this number.
    pub(crate) fn job(&self, number: usize, script: &str) -> JobBuilder {
        let name = name(self.name, number);
        let job = job(&name).spec("managedBy", Value::Null).spec("backoffLimit", 6);
        (self.spec)(job).script(script).pod("automountServiceAccountToken", false)
    }
}

/// The name of a Job.
pub(crate) fn name(kind: &str, number: usize) -> String {
    format!("{kind}-{number}")
}

/// Does something for each Job.
pub(crate) async fn each(act: impl AsyncFn(&Kind, usize)) {
    for number in 0..OF_EACH {
        for kind in &KINDS {
            act(kind, number).await;
        }
    }
}

fn plain(job: JobBuilder, parallelism: u32, completions: u32) -> JobBuilder {
    job.spec("parallelism", parallelism).spec("completions", completions)
}

fn with_rule(job: JobBuilder, rule: &Value) -> JobBuilder {
    job.spec("podFailurePolicy", json!({"rules": [rule]}))
}

/// All kinds.
pub(crate) const KINDS: [Kind; 10] = [
    Kind {
        name: "plain",
        spec: |job| plain(job, 2, 6),
        steady: "succeed times=3; hang times=2; succeed",
        brisk: "succeed after=700ms",
        in_the_middle: |state| (state.succeeded, state.active) == (3, 2),
        totals: Some([(6, 0), (6, 0)]),
    },
    Kind {
        name: "indexed",
        spec: |job| job.indexed(5),
        steady: "index=0-1: succeed; hang times=1; succeed",
        brisk: "index=0-1: succeed; succeed after=4s",
        in_the_middle: |state| state.completed_indexes == "0,1" && state.active == 3,
        totals: Some([(5, 0), (5, 0)]),
    },
    Kind {
        name: "backoff",
        spec: |job| job,
        steady: "fail exit=1 times=1; hang times=1; succeed",
        brisk: "fail exit=1 times=2; succeed after=300ms",
        in_the_middle: |state| (state.failed, state.active) == (1, 1),
        totals: Some([(1, 1), (1, 2)]),
    },
    Kind {
        name: "per-index",
        spec: |job| {
            job.indexed(3).spec("backoffLimit", json!(null)).spec("backoffLimitPerIndex", 1)
        },
        steady: "index=1: fail exit=1; index=2: hang times=1; succeed",
        brisk: "index=1: fail exit=1 after=300ms; succeed after=500ms",
        in_the_middle: |state| state.failed_indexes.as_deref() == Some("1") && state.active == 1,
        totals: Some([(2, 2), (2, 2)]),
    },
    Kind {
        name: "ignored",
        spec: |job| {
            with_rule(
                plain(job, 2, 4),
                &json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}),
            )
        },
        steady: "disrupt times=2; hang times=2; succeed",
        brisk: "disrupt after=300ms times=2; succeed after=1s",
        in_the_middle: |state| (state.failed, state.active, state.ready) == (0, 2, Some(2)),
        totals: Some([(4, 0), (4, 0)]),
    },
    Kind {
        name: "fail-job",
        spec: |job| {
            let codes = json!({"operator": "In", "values": [42]});
            with_rule(plain(job, 2, 2), &json!({"action": "FailJob", "onExitCodes": codes}))
        },
        steady: "hang times=1; fail exit=42",
        brisk: "hang times=1; fail exit=42 after=3s",
        in_the_middle: JobState::is_finished,
        totals: Some([(0, 2), (0, 2)]),
    },
    Kind {
        name: "terminating",
        spec: |job| plain(job, 2, 2).spec("podReplacementPolicy", "Failed"),
        // Longer than the suspension of 50 Jobs takes on a busy machine.
        steady: "on-term=1 after=20s times=2; succeed",
        brisk: "on-term=1 after=3s times=2; succeed",
        in_the_middle: |state| state.ready == Some(2),
        totals: Some([(2, 2), (2, 2)]),
    },
    Kind {
        name: "deleted",
        spec: |job| plain(job, 2, 4),
        steady: "on-term=143 after=2s",
        brisk: "on-term=143 after=2s",
        in_the_middle: |state| state.ready == Some(2),
        totals: None,
    },
    Kind {
        name: "suspended",
        spec: |job| plain(job, 2, 2).spec("suspend", true),
        steady: "succeed",
        brisk: "succeed",
        in_the_middle: |state| state.conditions == ["Suspended"],
        totals: Some([(0, 0), (2, 0)]),
    },
    Kind {
        name: "queue",
        spec: |job| job.spec("parallelism", 3).spec("completions", json!(null)),
        steady: "hang times=3; succeed",
        brisk: "succeed after=3s",
        in_the_middle: |state| state.ready == Some(3),
        totals: Some([(3, 0), (3, 0)]),
    },
];
