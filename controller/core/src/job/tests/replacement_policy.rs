//! Tests `spec.podReplacementPolicy` and `status.terminating`. (KEP-3939)

use serde_json::json;

use super::builders::{JobBuilder, PodBuilder, api, job, pod, pods, sync};

fn terminating(count: usize) -> Vec<PodBuilder> {
    (0..count).map(|number| pod(&format!("t-{number}"), "Running").terminating()).collect()
}

fn with(mut some: Vec<PodBuilder>, more: Vec<PodBuilder>) -> Vec<PodBuilder> {
    some.extend(more);
    some
}

/// Job, pods: failed, terminating, patches, created, deleted, active.
type Row = (JobBuilder, Vec<PodBuilder>, (i32, i32, usize, usize, usize, i32));

/// By the policy, terminating pods block creation or count as failed. ([P3], [P4], [R1], [T17])
#[test]
fn terminating_pods_count_by_the_policy() {
    let one_of_each =
        || vec![pod("a", "Running"), pod("f", "Failed"), pod("t", "Running").terminating()];
    let many =
        || with(pods("Running", 2).into_iter().map(PodBuilder::on_node).collect(), terminating(4));
    let eager = |job: JobBuilder| job.spec("podReplacementPolicy", "TerminatingOrFailed");
    let policy = |job: JobBuilder| job.failure_policy(json!([]));
    let rows: Vec<Row> = vec![
        (job().size(1, None).replaces_failed(), one_of_each(), (1, 1, 1, 0, 0, 1)),
        (job().size(1, 1), one_of_each(), (2, 1, 2, 0, 0, 1)),
        (eager(job().size(1, 1)), one_of_each(), (2, 1, 2, 0, 0, 1)),
        (eager(job().size(1, None)), one_of_each(), (2, 1, 2, 0, 0, 1)),
        (job().size(1, 1).replaces_failed(), many(), (0, 5, 1, 0, 1, 1)),
        (policy(job().size(1, 1)), many(), (0, 5, 1, 0, 1, 1)),
        // Limits of want − active − terminating: below, at, above.
        (job().size(3, 5).replaces_failed(), terminating(2), (0, 2, 0, 1, 0, 1)),
        (job().size(3, 5).replaces_failed(), terminating(3), (0, 3, 0, 0, 0, 0)),
        (job().size(3, 5).replaces_failed(), terminating(4), (0, 4, 0, 0, 0, 0)),
    ];
    for (row, (job, pods, expected)) in rows.into_iter().enumerate() {
        let effects = sync(&mut api(job, pods));
        let found = (
            effects.failed,
            effects.terminating,
            effects.patches,
            effects.created.len(),
            effects.deleted.len(),
            effects.active,
        );
        assert_eq!(found, expected, "row {row}");
    }
}

#[test]
fn a_terminating_pod_is_replaced_at_once_or_after_its_end() {
    // Its deletion began 200 s ago, which is longer than any backoff of one failure.
    let old = || pod("t", "Running").terminating().with(long_ago);
    let effects = sync(&mut api(job().size(1, 1), vec![old()]));
    assert_eq!((effects.created.len(), effects.failed), (1, 1));
    let effects = sync(&mut api(job().size(1, 1).replaces_failed(), vec![old()]));
    assert_eq!((effects.created.len(), effects.failed, effects.patches), (0, 0, 0));
}

fn long_ago(pod: &mut serde_json::Value) {
    pod["metadata"]["deletionTimestamp"] = super::builders::ago(170).to_string().into();
}

/// A terminating pod blocks its index; one without an index blocks the count only. ([I4])
#[test]
fn indexes_are_blocked_by_their_terminating_pods_under_policy_failed() {
    let stray = || vec![pod("t", "Running").terminating()];
    let placed = || vec![pod("t", "Running").index(0).terminating().with(long_ago)];
    let failed = |job: JobBuilder| job.replaces_failed();
    let plain = |job: JobBuilder| job;
    for (row, (policy, pods, created, patches)) in [
        (failed as fn(JobBuilder) -> JobBuilder, stray(), vec![0], 0),
        (plain, stray(), vec![0, 1], 1),
        (failed, placed(), vec![1], 0),
        (plain, placed(), vec![0, 1], 1),
    ]
    .into_iter()
    .enumerate()
    {
        let effects = sync(&mut api(policy(job().size(2, 5).indexed()), pods));
        assert_eq!(effects.created_indexes(), created, "row {row}");
        assert_eq!((effects.terminating, effects.patches), (1, patches), "row {row}");
    }
}

#[test]
fn a_terminating_pod_without_finalizer_blocks_its_replacement_too() {
    let stripped = || vec![pod("t", "Running").terminating().untracked().with(long_ago)];
    let effects = sync(&mut api(job().replaces_failed(), stripped()));
    assert_eq!((effects.created.len(), effects.terminating), (0, 1));
    let effects = sync(&mut api(job(), stripped()));
    assert_eq!((effects.created.len(), effects.terminating, effects.failed), (1, 1, 0));
}

/// A terminating pod that succeeds counts as succeeded under the policy Failed. ([R3])
#[test]
fn a_terminating_pod_that_ends_well_counts_as_succeeded_under_policy_failed() {
    let ended = || vec![pod("t", "Succeeded").terminating()];
    let effects = sync(&mut api(job().replaces_failed(), ended()));
    assert_eq!((effects.succeeded, effects.failed), (1, 0));
    // Under the other policy it was counted while it terminated, and stays so.
    let effects = sync(&mut api(job().uncounted(&[], &["t"]), ended()));
    assert_eq!((effects.succeeded, effects.failed), (0, 1));
}
