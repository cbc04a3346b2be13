//! Tests suspending and resuming: pods, start time, condition, events.

use lab::bed::{SOON, job};
use serde_json::json;

use super::bed;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_suspended_and_resumed_without_a_failure() {
    let bed = bed(&[]).await;
    bed.create(
        job("held")
            .spec("suspend", true)
            .spec("parallelism", 2)
            .spec("completions", 2)
            .spec("activeDeadlineSeconds", 600)
            .script("hang on-term=143 after=2s times=2; succeed"),
    )
    .await;
    let state = bed.reaches("held", SOON, |state| !state.conditions.is_empty()).await;
    assert_eq!(state.conditions, ["Suspended"]);
    assert!(!state.started && bed.pods("held").await.is_empty());

    bed.change("held", json!({"suspend": false})).await;
    let state = bed.reaches("held", SOON, |state| state.ready == Some(2)).await;
    assert!(state.started && state.conditions.is_empty(), "{state:?}");
    assert_eq!(bed.conditions("held").await, ["Suspended=False JobResumed: Job resumed"]);

    bed.change("held", json!({"suspend": true})).await;
    let state = bed.reaches("held", SOON, |state| state.conditions == ["Suspended"]).await;
    assert_eq!((state.active, state.terminating, state.failed), (0, Some(2), 0));
    assert!(!state.started, "the clock of the deadline stops");
    assert_eq!(bed.conditions("held").await, ["Suspended=True JobSuspended: Job suspended"]);
    let state = bed.reaches("held", SOON, |state| state.terminating == Some(0)).await;
    assert_eq!(state.failed, 0);

    bed.change("held", json!({"suspend": false})).await;
    let state = bed.finished("held", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed, state.started), (2, 0, true));
    bed.events_say("held", "Suspended: Job suspended").await;
    bed.events_say("held", "Resumed: Job resumed").await;
    bed.events_say("held", "Completed: Job completed").await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_job_of_nothing_completes_without_a_start() {
    let bed = bed(&[]).await;
    bed.create(job("nothing").spec("suspend", true).spec("completions", 0)).await;
    let state = bed.finished("nothing", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert!(!state.started);
    bed.stop().await;
}
