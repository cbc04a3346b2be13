//! Tests the events that say how pods ended: PodFailed and PodDisrupted on the Job.

use epilogue_common::pod_end::{Counted, ENDS_MAX, PodEnds};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams};
use lab::bed::{Bed, SOON, job};
use lab::eventually;
use serde_json::json;

use super::{NO_BACKOFF, bed};

/// What one Event says of ends.
#[derive(Debug)]
struct Said {
    kind: String,
    reason: String,
    message: String,
    count: i32,
    ends: PodEnds,
}

async fn said(bed: &Bed, job: &str) -> Vec<Said> {
    let selector = ListParams::default().fields(&format!("involvedObject.name={job}"));
    let events = bed.api::<Event>().list(&selector).await.expect("the events").items;
    let said = events.into_iter().filter_map(|event| {
        let ends = PodEnds::read(&event.metadata.annotations.unwrap_or_default())?;
        assert_eq!(event.involved_object.kind.as_deref(), Some("Job"));
        Some(Said {
            kind: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
            count: event.count.unwrap_or_default(),
            ends,
        })
    });
    said.collect()
}

async fn pods_are_gone(bed: &Bed) {
    let pods = bed.api::<Pod>();
    let all = (&DeleteParams::default().grace_period(0), &ListParams::default());
    pods.delete_collection(all.0, all.1).await.expect("the pods are deleted");
    let left = async || pods.list(&ListParams::default()).await.expect("the pods").items.len();
    eventually("the pods are gone", SOON, left, |left| *left == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_is_an_event_of_its_job() {
    let bed = bed(&[NO_BACKOFF, "--metrics-bind-address=127.0.0.1:0"]).await;
    let ignore = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    bed.create(
        job("mixed")
            .spec("podFailurePolicy", json!({"rules": [ignore]}))
            .script("fail exit=3 times=1; disrupt times=1; fail exit=137 times=1; succeed"),
    )
    .await;
    let state = bed.finished("mixed", SOON).await;
    assert_eq!((state.failed, state.succeeded), (2, 1));
    pods_are_gone(&bed).await;
    let told = async || said(&bed, "mixed").await;
    let all = |said: &Vec<Said>| said.iter().map(|each| each.count).sum::<i32>() == 3;
    let said = eventually("three ends are told", SOON, told, all).await;
    let [failed] = &said.iter().filter(|it| it.reason == "PodFailed").collect::<Vec<_>>()[..]
    else {
        panic!("{said:#?}")
    };
    assert_eq!((failed.kind.as_str(), failed.count), ("Warning", 2));
    assert_eq!((failed.ends.cause.as_str(), failed.ends.counted), ("ExitCode", Counted::Failed));
    let [first, last] = &failed.ends.last[..] else { panic!("{failed:#?}") };
    let words = ": container main exited with code 3; failure 1 of 6 allowed";
    assert!(first.says.contains(words) && first.says.contains(&first.pod), "{first:?}");
    let words = ": container main exited with code 137 (SIGKILL); failure 2 of 6 allowed";
    assert!(last.says.contains(words) && failed.message == last.says, "{failed:#?}");
    assert!(first.node.as_ref().is_some_and(|node| first.says.contains(node)), "{first:?}");
    assert_eq!(failed.ends.nodes.values().sum::<u32>(), 2);
    let [hit] = &said.iter().filter(|it| it.reason == "PodDisrupted").collect::<Vec<_>>()[..]
    else {
        panic!("{said:#?}")
    };
    assert_eq!((hit.kind.as_str(), hit.ends.counted), ("Normal", Counted::Ignored));
    assert!(hit.message.ends_with("; ignored by rule 0 of podFailurePolicy"), "{hit:?}");
    let page = bed.metrics().await;
    for (labels, count) in [
        (r#"cause="ExitCode",counted="Failed""#, 2),
        (&*format!(r#"cause="{}",counted="Ignored""#, hit.ends.cause), 1),
    ] {
        let line = format!("epilogue_pod_ends_total{{{labels}}} {count}");
        assert!(page.contains(&line), "{line} is not in {page}");
    }
    bed.stop().await;
}

/// A tenth of a write for each pod, and the last of them by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ends_of_one_cause_share_an_event() {
    let bed = bed(&[NO_BACKOFF]).await;
    let crowd = job("crowd").spec("parallelism", 40).spec("completions", 40);
    bed.create(crowd.spec("backoffLimit", 100).script("fail exit=1 times=40; succeed")).await;
    bed.finished("crowd", SOON).await;
    let told = async || said(&bed, "crowd").await;
    let all = |said: &Vec<Said>| said.iter().map(|each| each.count).sum::<i32>() == 40;
    let said = eventually("forty ends are told", SOON, told, all).await;
    let [one] = &said[..] else { panic!("{said:#?}") };
    assert_eq!(one.ends.last.len(), ENDS_MAX);
    assert_eq!(one.ends.nodes.values().sum::<u32>(), 40);
    bed.stop().await;
}
