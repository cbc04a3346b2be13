//! JobSets, by the real JobSet controller with its webhooks. Our controller runs their child Jobs.

use kube::api::{Api, DynamicObject, PostParams};
use lab::bed::{Bed, JobState, SOON, is_active};
use lab::eventually;
use lab::neighbour::Neighbour;
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::{Stage, change, conditions, create, objects};
use crate::recipes;

pub(super) const JOB_SET: Neighbour = Neighbour {
    name: "jobset",
    module: "sigs.k8s.io/jobset",
    package: "sigs.k8s.io/jobset",
    certifies: false,
};

const ARGUMENTS: [&str; 3] =
    ["--manage-all-jobs", "--check-plans", "--default-job-pod-failure-backoff=10ms"];

/// Its configuration on loopback, where it is alone.
pub(super) fn configuration() -> Value {
    json!({
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": false},
        "leaderElection": {"leaderElect": false},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    })
}

/// The JobSets of a test's namespace.
struct Sets {
    api: Api<DynamicObject>,
}

impl Sets {
    fn of(bed: &Bed, manifest: &Value) -> Self {
        Self { api: objects(bed.client(), manifest, Some(bed.namespace())) }
    }

    /// Waits until a JobSet has this condition, `type reason`.
    async fn has(&self, name: &str, condition: &str) -> DynamicObject {
        let get = async || self.api.get(name).await.expect("the JobSet");
        let has = |set: &DynamicObject| conditions(set).iter().any(|it| it == condition);
        eventually(&format!("{name} is {condition}"), SOON, get, has).await
    }

    /// Waits until a JobSet fails with this reason, after so many restarts; the rule of this name
    /// has failed its child `broken`.
    async fn fails_by(&self, bed: &Bed, name: &str, reason: &str, rule: &str, restarted: u64) {
        let set = self.has(name, &format!("Failed {reason}")).await;
        assert_eq!(restarts(&set), restarted);
        let broken = bed.conditions(&format!("{name}-broken-0")).await;
        let says = format!("Failed=True PodFailurePolicy_{rule}: ");
        assert!(broken.iter().any(|it| it.starts_with(&says)), "{broken:?}");
    }

    /// How often the JobSet has restarted its Jobs.
    async fn restarts(&self, name: &str) -> u64 {
        restarts(&self.api.get(name).await.expect("the JobSet"))
    }
}

fn restarts(set: &DynamicObject) -> u64 {
    set.data["status"]["restarts"].as_u64().unwrap_or(0)
}

/// Some replicated Jobs, each with the script of its pods, which never fail for a disruption.
fn job_set(name: &str, managed_by: &Value, jobs: &[(&str, &str)]) -> Value {
    let group = |(group, script): &(&str, &str)| {
        let mut template = recipes::only("job-set")["spec"]["replicatedJobs"][0].clone();
        template["name"] = (*group).into();
        template["replicas"] = 1.into();
        let job = &mut template["template"]["spec"];
        job["managedBy"] = managed_by.clone();
        job["template"]["metadata"] = json!({"annotations": script_of(script)});
        template
    };
    let groups: Vec<Value> = jobs.iter().map(group).collect();
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": groups},
    })
}

fn script_of(script: &str) -> Value {
    json!({lab::nodes::SCRIPT_ANNOTATION: script})
}

fn ours() -> Value {
    "epilogue.dev/job-controller".into()
}

/// All at once, each with its own JobSets: with `managedBy` in the child template, and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_job_sets_end_as_they_must_and_count_each_pod_once() {
    let stage = Stage::start(&JOB_SET, &configuration(), &ARGUMENTS).await;
    let ledger = Ledger::of(&stage.bed);
    tokio::join!(
        Box::pin(recipe(&stage.bed, &ledger)),
        Box::pin(fails_at_the_limit(&stage.bed, &ledger, "limited", ours())),
        Box::pin(fails_at_the_limit(&stage.bed, &ledger, "limited-default", Value::Null)),
        Box::pin(fails_by_its_policy(&stage.bed, "policy", ours())),
        Box::pin(fails_by_its_policy(&stage.bed, "policy-default", Value::Null)),
        Box::pin(fails_by_the_name_of_a_rule(&stage.bed)),
        Box::pin(restarts_by_the_name_of_a_rule(&stage.bed)),
        Box::pin(succeeds_by_its_policy(&stage.bed, "success", ours())),
        Box::pin(succeeds_by_its_policy(&stage.bed, "success-default", Value::Null)),
    );
    ledger.each_pod_counts_at_most_once();
    stage.stop().await;
}

/// The recipe: a disruption restarts a pod, a failure the whole set, and a suspension nothing.
async fn recipe(bed: &Bed, ledger: &Ledger) {
    const NAME: &str = "training";
    const CHILDREN: [&str; 2] = ["training-workers-0", "training-workers-1"];
    let mut manifest = recipes::only("job-set");
    let pods = &mut manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"];
    pods["metadata"] = json!({"annotations": script_of("hang")});
    let sets = Sets::of(bed, &manifest);
    create(&sets.api, &manifest).await;
    all_run(bed, &CHILDREN).await;

    let first = bed.pods(CHILDREN[0]).await;
    recipes::evict(bed, recipes::name(&first[0])).await;
    let see = |pods: &[k8s_openapi::api::core::v1::Pod]| {
        pods.iter().filter(|pod| first.iter().all(|it| it.metadata.uid != pod.metadata.uid)).count()
    };
    bed.pods_reach(CHILDREN[0], see, |new| *new == 1).await;
    all_run(bed, &CHILDREN).await;
    assert_eq!((bed.state(CHILDREN[0]).await.failed, sets.restarts(NAME).await), (0, 0));

    let killed = bed.pods(CHILDREN[1]).await.remove(0);
    bed.delete_pod(recipes::name(&killed)).await;
    let restarted = async || sets.restarts(NAME).await;
    eventually("the JobSet restarts", SOON, restarted, |restarts| *restarts == 1).await;
    let again = async || CHILDREN.map(|name| ledger.jobs(name).len());
    eventually("all children are there again", SOON, again, |lives| *lives == [2, 2]).await;
    all_run(bed, &CHILDREN).await;

    change(&sets.api, NAME, json!({"spec": {"suspend": true}})).await;
    for child in CHILDREN {
        bed.reaches(child, SOON, |state| state.conditions == ["Suspended"]).await;
        bed.pods_reach(child, |pods| pods.iter().filter(|it| is_active(it)).count(), |it| *it == 0)
            .await;
    }
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"] =
        json!({"annotations": script_of("succeed")});
    let resumed = json!({"suspend": false, "replicatedJobs": manifest["spec"]["replicatedJobs"]});
    change(&sets.api, NAME, json!({"spec": resumed})).await;
    let set = sets.has(NAME, "Completed AllJobsCompleted").await;
    assert_eq!(restarts(&set), 1, "the suspension restarts nothing");
    for child in CHILDREN {
        let state = bed.state(child).await;
        assert_eq!(state.conditions.last().map(String::as_str), Some("Complete"), "{child}");
        assert_eq!((state.succeeded, state.failed), (2, 0), "{child}");
        ledger.no_attempt_overlaps(child);
    }
    let lost = ledger.jobs(CHILDREN[1]);
    assert_eq!(lost[0].state.conditions.last().map(String::as_str), Some("Failed"));
    assert!(lost[0].state.failed >= 1, "{lost:?}");
    let disrupted = ledger.pods(&ledger.jobs(CHILDREN[0])[0]);
    assert_eq!(disrupted.iter().filter(|pod| pod.disrupted).count(), 1, "{disrupted:?}");
}

/// Waits until both pods of each Job are ready.
async fn all_run(bed: &Bed, jobs: &[&str]) {
    for job in jobs {
        let see = |pods: &[k8s_openapi::api::core::v1::Pod]| {
            pods.iter().filter(|pod| is_active(pod)).count()
        };
        bed.pods_reach(job, see, |active| *active == 2).await;
        bed.reaches(job, SOON, |state| state.ready == Some(2)).await;
    }
}

/// Each attempt fails: the JobSet makes as many as it may, and each child counts a failure of its
/// own.
async fn fails_at_the_limit(bed: &Bed, ledger: &Ledger, name: &str, managed_by: Value) {
    let mut manifest = job_set(name, &managed_by, &[("workers", "index=0: fail; hang")]);
    manifest["spec"]["failurePolicy"] =
        json!({"maxRestarts": 2, "restartStrategy": "BlockingRecreate"});
    let sets = Sets::of(bed, &manifest);
    create(&sets.api, &manifest).await;
    let set = sets.has(name, "Failed ReachedMaxRestarts").await;
    assert_eq!(restarts(&set), 2);
    let child = format!("{name}-workers-0");
    let attempts = ledger.jobs(&child);
    assert_eq!(attempts.len(), 3, "{attempts:?}");
    for attempt in &attempts {
        assert_eq!(attempt.state.conditions, ["FailureTarget", "Failed"], "{attempt:?}");
        let failed = ledger.pods(attempt).iter().filter(|pod| pod.phase == "Failed").count();
        assert!((1..=2).contains(&failed), "{attempt:?}");
        assert!(attempt.state.failed >= 1 && attempt.state.succeeded == 0, "{attempt:?}");
    }
    ledger.no_attempt_overlaps(&child);
}

/// A rule names a reason of our condition `Failed`, and the JobSet fails at once.
async fn fails_by_its_policy(bed: &Bed, name: &str, managed_by: Value) {
    let jobs = [("broken", "fail exit=42"), ("others", "hang")];
    let mut manifest = job_set(name, &managed_by, &jobs);
    let exit = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let rules = &mut manifest["spec"]["replicatedJobs"][0]["template"]["spec"];
    rules["podFailurePolicy"] = json!({"rules": [exit]});
    let rule = json!({"name": "broken", "action": "FailJobSet",
                      "onJobFailureReasons": ["PodFailurePolicy"]});
    manifest["spec"]["failurePolicy"] = json!({"maxRestarts": 5, "rules": [rule]});
    let sets = Sets::of(bed, &manifest);
    create(&sets.api, &manifest).await;
    let set = sets.has(name, "Failed FailJobSetFailurePolicyAction").await;
    assert_eq!(restarts(&set), 0);
    let broken = bed.conditions(&format!("{name}-broken-0")).await;
    assert!(broken.iter().any(|it| it.starts_with("Failed=True PodFailurePolicy")), "{broken:?}");
    no_pod_is_left(bed, &format!("{name}-others-0")).await;
}

/// The JobSet fails at once where the rule `BadInput` fails a child, with the exit code 42. The
/// other rule is for the exit code 43.
fn with_named_rules(name: &str, script: &str) -> Value {
    let mut manifest = job_set(name, &ours(), &[("broken", script), ("others", "hang")]);
    let on_exit =
        |code| json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [code]}});
    let child = &mut manifest["spec"]["replicatedJobs"][0]["template"];
    child["metadata"]["annotations"] =
        json!({"epilogue.dev/pod-failure-policy-names": "Retry,BadInput"});
    child["spec"]["podFailurePolicy"] = json!({"rules": [on_exit(43), on_exit(42)]});
    let unnamed = json!({"name": "unnamed", "action": "FailJobSet",
                         "onJobFailureReasons": ["PodFailurePolicy"],
                         "targetReplicatedJobs": ["broken"]});
    let bad_input = json!({"name": "badInput", "action": "FailJobSet",
                           "onJobFailureMessagePatterns": [r"rule at index [0-9]+ \(BadInput\)"]});
    manifest["spec"]["failurePolicy"] = json!({"maxRestarts": 1, "rules": [unnamed, bad_input]});
    manifest
}

/// JobSet's webhook takes no reason that names a rule, so a rule of JobSet matches the message.
async fn fails_by_the_name_of_a_rule(bed: &Bed) {
    let mut manifest = with_named_rules("bad-input", "fail exit=42");
    let sets = Sets::of(bed, &manifest);
    create(&sets.api, &manifest).await;
    sets.fails_by(bed, "bad-input", "FailJobSetFailurePolicyAction", "BadInput", 0).await;
    no_pod_is_left(bed, "bad-input-others-0").await;

    manifest["metadata"]["name"] = "refused".into();
    manifest["spec"]["failurePolicy"]["rules"][1] = json!({"name": "badInput", "action": "FailJobSet",
               "onJobFailureReasons": ["PodFailurePolicy_BadInput"]});
    let refused: DynamicObject = serde_json::from_value(manifest).expect("an object");
    let refusal = sets.api.create(&PostParams::default(), &refused).await;
    let refusal = refusal.expect_err("the webhook refuses it").to_string();
    assert!(refusal.contains("'PodFailurePolicy_BadInput' in failure policy is not"), "{refusal}");
}

/// Neither rule of JobSet matches: one asks for another name, one for the reason without a name.
async fn restarts_by_the_name_of_a_rule(bed: &Bed) {
    let manifest = with_named_rules("retry", "fail exit=43");
    let sets = Sets::of(bed, &manifest);
    create(&sets.api, &manifest).await;
    sets.fails_by(bed, "retry", "ReachedMaxRestarts", "Retry", 1).await;
}

/// One group decides; the JobSet deletes what still runs.
async fn succeeds_by_its_policy(bed: &Bed, name: &str, managed_by: Value) {
    let jobs = [("leader", "succeed"), ("workers", "hang")];
    let mut manifest = job_set(name, &managed_by, &jobs);
    manifest["spec"]["successPolicy"] =
        json!({"operator": "All", "targetReplicatedJobs": ["leader"]});
    let sets = Sets::of(bed, &manifest);
    create(&sets.api, &manifest).await;
    sets.has(name, "Completed AllJobsCompleted").await;
    let state: JobState = bed.state(&format!("{name}-leader-0")).await;
    assert_eq!((state.succeeded, state.failed), (2, 0));
    no_pod_is_left(bed, &format!("{name}-workers-0")).await;
}

async fn no_pod_is_left(bed: &Bed, job: &str) {
    bed.pods_reach(job, <[_]>::len, |count| *count == 0).await;
}
