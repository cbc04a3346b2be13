//! Tests the events that say how pods ended: PodFailed and PodDisrupted on the Job.

use epilogue_common::pod_end::{Counted, ENDS_MAX, PodEnds};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams};
use lab::bed::{Bed, SOON, job};
use lab::paths::program;
use lab::{Cluster, eventually};
use serde_json::{Value, json};
use tokio::process::Command;

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
    let reported = async || said(&bed, "mixed").await;
    let all = |said: &Vec<Said>| said.iter().map(|each| each.count).sum::<i32>() == 3;
    let said = eventually("three ends are reported", SOON, reported, all).await;
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
    // With the default backoff no pod is replaced before the Job fails.
    let bed = bed(&[]).await;
    let crowd = job("crowd").spec("parallelism", 40).spec("completions", 40);
    bed.create(crowd.spec("backoffLimit", 39).script("fail exit=1")).await;
    bed.finished("crowd", SOON).await;
    let reported = async || said(&bed, "crowd").await;
    let all = |said: &Vec<Said>| said.iter().map(|each| each.count).sum::<i32>() == 40;
    let said = eventually("forty ends are reported", SOON, reported, all).await;
    let [one] = &said[..] else { panic!("{said:#?}") };
    assert_eq!(one.ends.last.len(), ENDS_MAX);
    assert_eq!(one.ends.nodes.values().sum::<u32>(), 40);
    bed.stop().await;
}

/// What `explain` says of a Job.
async fn explained(bed: &Bed, job: &str) -> Value {
    let cluster = Cluster::of_tests("features").expect("the suite's cluster");
    let output = Command::new(program("kubectl-epilogue"))
        .args(["explain", &format!("job/{job}"), "-n", bed.namespace(), "-o", "json"])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        .output()
        .await
        .expect("the program must be startable");
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{job}: {error}"))
}

/// Each Job fails for good for another cause; then its pods go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_says_why_a_job_failed_when_its_pods_are_gone() {
    let bed = bed(&[NO_BACKOFF]).await;
    let gates = json!([{"name": "example.com/wait"}]);
    for job in [
        job("crashed").spec("backoffLimit", 0).script("fail exit=3"),
        job("evicted").spec("backoffLimit", 0).script("disrupt"),
        job("again").spec("backoffLimit", 1).pod("restartPolicy", "OnFailure").script("fail"),
        job("late").spec("activeDeadlineSeconds", 1).pod("schedulingGates", gates),
        job("index").indexed(2).spec("backoffLimitPerIndex", 0).script("index=1: fail; succeed"),
    ] {
        bed.create(job).await;
    }
    let names = ["crashed", "evicted", "again", "late", "index"];
    for name in names {
        bed.finished(name, SOON).await;
    }
    for name in ["crashed", "evicted", "again", "index"] {
        eventually(
            &format!("the end of {name} is reported"),
            SOON,
            async || said(&bed, name).await.len(),
            |it| *it == 1,
        )
        .await;
    }
    pods_are_gone(&bed).await;
    for (name, facts, remedy) in [
        ("crashed", [": container main exited with code 3", "1 failure of 0"], "backoffLimit: 6"),
        ("evicted", [" was disrupted (", "1 failure of 0"], "type: DisruptionTarget"),
        ("again", [": container main exited with code 1", "the limit of 1"], ""),
        ("late", ["1 pending (SchedulingGated)", " of 1 s"], ""),
        ("index", [": 1 of 2 (1), 1 failure", ": container main exited with code 1"], ""),
    ] {
        let answer = explained(&bed, name).await;
        let state = answer["state"].as_str().unwrap_or_default();
        assert!(state.starts_with("Failed: "), "{name}: {answer:#}");
        assert!(facts.iter().all(|fact| state.contains(fact)), "{name}: {answer:#}");
        let yaml = answer["remedy"]["yaml"].as_str().unwrap_or_default();
        assert!(yaml.contains(remedy), "{name}: {answer:#}");
    }
    for name in ["crashed", "evicted", "index"] {
        let answer = explained(&bed, name).await;
        let end = &answer["ends"]["last"][0];
        let said = said(&bed, name).await;
        let reported = &said[0].ends.last[0];
        assert_eq!(
            (&end["pod"], &end["node"]),
            (&json!(reported.pod), &json!(reported.node)),
            "{name}"
        );
        assert_eq!(end["cause"], said[0].ends.cause, "{name}");
    }
    bed.stop().await;
}
