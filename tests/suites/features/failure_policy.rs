//! Tests podFailurePolicy: the effect of each action, by exit codes and by conditions, and the
//! messages of the Job's conditions. (KEP-3329)

use lab::bed::{SOON, job};
use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

fn on_exit(action: &str, operator: &str, codes: &[i32]) -> Value {
    json!({"action": action, "onExitCodes": {"operator": operator, "values": codes}})
}

fn on_disruption(action: &str) -> Value {
    json!({"action": action, "onPodConditions": [{"type": "DisruptionTarget"}]})
}

fn policy(rules: &[Value]) -> Value {
    json!({"rules": rules})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_job_by_exit_code_ends_the_other_pods_and_then_the_job() {
    let bed = bed(&[]).await;
    let rules = [on_exit("FailJob", "In", &[1]), on_exit("FailJob", "NotIn", &[2, 3])];
    bed.create(
        job("code")
            .indexed(2)
            .spec("podFailurePolicy", policy(&rules))
            .script("index=0: fail exit=42 after=1s; hang on-term=143 after=2s"),
    )
    .await;
    let state = bed.reaches("code", SOON, |state| !state.conditions.is_empty()).await;
    assert_eq!(state.conditions, ["FailureTarget"], "not Failed while a pod ends");
    let state = bed.finished("code", SOON).await;
    assert_eq!((state.failed, state.active, state.terminating), (2, 0, Some(0)));
    let pods = bed.pods_with("batch.kubernetes.io/job-completion-index=0").await;
    let pod = pods[0].metadata.name.as_deref().expect("a pod has a name");
    let words = format!(
        "PodFailurePolicy: Container main for pod {}/{pod} failed with exit code 42 matching \
         FailJob rule at index 1",
        bed.namespace()
    );
    let facts = ["; pod ", " (index 0) on ", ": container main exited with code 42"];
    bed.failed_saying("code", &words, &facts).await;
    bed.events_say("code", &words).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_job_by_condition_names_the_condition_and_the_rule() {
    let bed = bed(&[]).await;
    let rules = [on_exit("Ignore", "In", &[1]), on_disruption("FailJob")];
    let evicted = |name| job(name).spec("podFailurePolicy", policy(&rules)).script("disrupt");
    let names = json!({"epilogue.dev/pod-failure-policy-names": ",Evicted"});
    bed.create(evicted("named").metadata("annotations", names)).await;
    bed.create(evicted("evicted")).await;
    for (job, reason, named) in
        [("evicted", "PodFailurePolicy", ""), ("named", "PodFailurePolicy_Evicted", " (Evicted)")]
    {
        let state = bed.finished(job, SOON).await;
        assert_eq!((state.succeeded, state.failed), (0, 1));
        let pods = bed.pods(job).await;
        assert_eq!(pods.len(), 1);
        let words = format!(
            "{reason}: Pod {}/{} has condition DisruptionTarget matching FailJob rule at index \
             1{named}",
            bed.namespace(),
            pods[0].metadata.name.as_deref().expect("a pod has a name")
        );
        let pod = format!("; pod {job}-");
        bed.failed_saying(job, &words, &[&pod, " was disrupted ("]).await;
        bed.events_say(job, &words).await;
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_init_container_s_exit_code_counts_too() {
    let bed = bed(&[]).await;
    let rules = [json!({"action": "FailJob", "onExitCodes":
        {"containerName": "prepare", "operator": "In", "values": [7]}})];
    bed.create(
        job("init")
            .spec("podFailurePolicy", policy(&rules))
            .pod("initContainers", json!([{"name": "prepare", "image": "none"}]))
            .script("init exit=7"),
    )
    .await;
    bed.finished("init", SOON).await;
    let conditions = bed.conditions("init").await;
    let words = " failed with exit code 7 matching FailJob rule at index 0; pod init-";
    assert!(
        conditions[0].contains("Container prepare for pod ") && conditions[0].contains(words),
        "{conditions:?}"
    );
    bed.stop().await;
}

/// With the default backoff, of which upstream takes 10 s and then 20 s here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ignored_disruption_costs_no_time() {
    // One wait alone is longer than the bound below.
    let bed = bed(&["--default-job-pod-failure-backoff=10s"]).await;
    bed.create(
        job("spot")
            .spec("backoffLimit", 0)
            .spec("podFailurePolicy", policy(&[on_disruption("Ignore")]))
            .script("disrupt times=2; succeed"),
    )
    .await;
    let state = bed.finished("spot", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed), (1, 0));
    bed.pods_are_released("spot", 3).await;
    let job = bed.job("spot").await;
    let created = job.metadata.creation_timestamp.expect("a Job was created").0;
    let status = job.status.expect("a Job that is complete has a status");
    let completed = status.completion_time.expect("it is complete").0;
    let took = completed.duration_since(created).as_secs();
    assert!(took <= 8, "{took} s, as if there were a backoff");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn count_counts_what_a_later_rule_would_ignore() {
    let bed = bed(&[NO_BACKOFF]).await;
    let rules = [on_exit("Count", "In", &[3]), on_exit("Ignore", "NotIn", &[9])];
    bed.create(
        job("counted")
            .spec("backoffLimit", 0)
            .spec("podFailurePolicy", policy(&rules))
            .script("fail exit=4 times=1; fail exit=3"),
    )
    .await;
    let state = bed.finished("counted", SOON).await;
    assert_eq!(state.failed, 1, "exit code 4 is ignored, 3 is not");
    bed.pods_are_released("counted", 2).await;
    let words = "BackoffLimitExceeded: Job has reached the specified backoff limit";
    let facts = [": 1 failure of 0 allowed; pod counted-", ": container main exited with code 3"];
    bed.failed_saying("counted", words, &facts).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_index_ends_its_index_and_no_other() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(
        job("index")
            .indexed(3)
            .spec("backoffLimitPerIndex", 3)
            .spec("podFailurePolicy", policy(&[on_exit("FailIndex", "In", &[42])]))
            .script("index=1: fail exit=42; index=2: fail exit=1 times=1; succeed"),
    )
    .await;
    let state = bed.finished("index", SOON).await;
    assert_eq!(state.completed_indexes, "0,2");
    assert_eq!(state.failed_indexes.as_deref(), Some("1"));
    assert_eq!((state.succeeded, state.failed), (2, 2));
    bed.pods_are_released("index", 4).await;
    let words = "FailedIndexes: Job has failed indexes";
    let facts = [": 1 of 3 (1), 2 failures (2 ExitCode)"];
    bed.failed_saying("index", words, &facts).await;
    bed.stop().await;
}
