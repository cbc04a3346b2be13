//! Tests that the newest event of a Job never says less than the truth: clients take it for the
//! state.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use lab::bed::{Bed, SOON, is_active, job};
use lab::eventually;
use serde_json::json;

use super::bed;

/// Half as long as an event of created pods may wait amid many events.
const AT_ONCE: Duration = Duration::from_secs(5);
/// More than are few.
const OTHERS: usize = 30;

/// The reason of the newest event of a Job.
async fn newest(bed: &Bed, job: &str) -> Option<String> {
    let selector = ListParams::default().fields(&format!("involvedObject.name={job}"));
    let events = bed.api::<Event>().list(&selector).await.expect("the events").items;
    let version = |event: &Event| {
        let version = event.metadata.resource_version.as_deref().unwrap_or_default();
        version.parse::<u64>().expect("a version of etcd")
    };
    let newest = events.into_iter().max_by_key(|event| {
        let at = event.last_timestamp.as_ref().map(|time| time.0);
        (at.or(event.event_time.as_ref().map(|time| time.0)), version(event))
    });
    newest?.reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_could_be_created_at_last_is_the_newest_event_at_once() {
    let fast = ["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"];
    let bed = bed(&fast).await;
    bed.create(job("refused").pod("serviceAccountName", "absent").script("hang")).await;
    let message = bed.events_say("refused", "FailedCreate").await;
    assert!(message.contains("serviceaccount \"absent\" not found"), "{message}");
    bed.reaches("refused", SOON, |state| state.started).await;
    assert_eq!(newest(&bed, "refused").await.as_deref(), Some("FailedCreate"));

    // Events of created pods wait where there are many events.
    for number in 0..OTHERS {
        bed.create(job(&format!("other-{number}")).script("hang")).await;
    }
    let account = serde_json::from_value(json!({"metadata": {"name": "absent"}}));
    let account: ServiceAccount = account.expect("an account");
    let created = bed.api().create(&PostParams::default(), &account).await;
    created.expect("the account is created");
    let is_there = |pods: &[Pod]| pods.iter().any(is_active);
    bed.pods_reach("refused", is_there, |is_there| *is_there).await;
    let reason = async || newest(&bed, "refused").await;
    let is_news = |reason: &Option<String>| reason.as_deref() == Some("SuccessfulCreate");
    eventually("the newest event tells of the pod", AT_ONCE, reason, is_news).await;
    bed.stop().await;
}
