//! Tests the optional policies by which a namespace opts in: which Jobs get `spec.managedBy` and
//! `spec.podReplacementPolicy`, and that our controller then runs them.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobBuilder, SOON, job};
use lab::kubernetes::Feature;
use lab::paths::program;
use lab::{Cluster, eventually, install};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{NO_BACKOFF, bed};

const OURS: Option<&str> = Some("epilogue.dev/job-controller");
const DEFAULT: &str = "TerminatingOrFailed";
const JOBS: &str = "epilogue.dev/jobs";
const POD_REPLACEMENT_POLICY: &str = "epilogue.dev/pod-replacement-policy";
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Job as most people write it: without `managedBy`.
fn plain(name: &str) -> JobBuilder {
    let mut job = job(name).raw();
    // Server-side apply takes a null for a value.
    job["spec"].as_object_mut().expect("a spec").remove("managedBy");
    job.into()
}

fn by(name: &str, managed_by: impl Into<Value>) -> JobBuilder {
    job(name).spec("managedBy", managed_by)
}

/// Sets the labels of the namespace; null removes one.
async fn label(bed: &Bed, labels: Value) {
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    let namespaces: Api<Namespace> = Api::all(bed.client().clone());
    let namespace = namespaces.patch(bed.namespace(), &PatchParams::default(), &patch).await;
    namespace.expect("the namespace is labelled");
}

fn fields(job: Job) -> (Option<String>, String) {
    let spec = job.spec.expect("a spec");
    (spec.managed_by, spec.pod_replacement_policy.expect("the API's default"))
}

/// `managedBy` and `podReplacementPolicy` of a Job that is created as a dry run.
async fn drafted(bed: &Bed, job: JobBuilder) -> (Option<String>, String) {
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let text = job.clone().raw().to_string();
    let answer = bed.api::<Job>().create(&params, &job.build()).await;
    fields(answer.unwrap_or_else(|error| panic!("{text}: {error}")))
}

/// The same by server-side apply.
async fn applied(bed: &Bed, job: JobBuilder) -> (Option<String>, String) {
    let name = job.clone().raw()["metadata"]["name"].as_str().expect("a name").to_owned();
    let mut params = PatchParams::apply("a-user");
    params.dry_run = true;
    let patch = Patch::Apply(job.raw());
    fields(bed.api::<Job>().patch(&name, &params, &patch).await.expect("the Job is applied"))
}

/// Installs the policies, and waits until the API server uses them in this namespace.
async fn opted_in(bed: &Bed, labels: Value, expected: (Option<&str>, &str)) {
    install::apply_opt_in_policies(bed.client()).await.expect("the policies are installed");
    label(bed, labels).await;
    let draft = async || drafted(bed, plain("draft")).await;
    let holds = |(by, policy): &(Option<String>, String)| (by.as_deref(), &**policy) == expected;
    eventually("the policies hold", SOON, draft, holds).await;
}

fn with_ignore(name: &str) -> JobBuilder {
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    plain(name).spec("podFailurePolicy", json!({"rules": [rule]}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_sets_what_the_user_left_open_and_nothing_else() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[]).await;
    let both = json!({JOBS: "managed", POD_REPLACEMENT_POLICY: "Failed"});
    opted_in(&bed, both, (OURS, "Failed")).await;
    let explicit = |job: JobBuilder| job.spec("podReplacementPolicy", DEFAULT);
    let labelled = |key: &str, value: &str| plain("draft").metadata("labels", json!({key: value}));
    let twice = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let container = json!([{"name": "main", "image": "none", "env": twice}]);
    let manifest = explicit(plain("draft")).raw().to_string();
    let table = [
        (plain("draft"), OURS, "Failed"),
        (with_ignore("draft"), OURS, "Failed"),
        (plain("draft").pod("containers", container), OURS, "Failed"),
        (
            by("draft", "kubernetes.io/job-controller"),
            Some("kubernetes.io/job-controller"),
            "Failed",
        ),
        (by("draft", "kueue.x-k8s.io/multikueue"), Some("kueue.x-k8s.io/multikueue"), "Failed"),
        (by("draft", "example.com/other"), Some("example.com/other"), "Failed"),
        (labelled(QUEUE, "team-a"), None, "Failed"),
        (labelled(POD_REPLACEMENT_POLICY, DEFAULT), OURS, DEFAULT),
        // The API server sets its default first, so a plain creation does not show who set it.
        (explicit(plain("draft")), OURS, "Failed"),
        (
            explicit(plain("draft").metadata("annotations", json!({APPLIED: manifest}))),
            OURS,
            DEFAULT,
        ),
    ];
    for (job, managed_by, policy) in table {
        let text = job.clone().raw().to_string();
        let (by, found) = drafted(&bed, job).await;
        assert_eq!((by.as_deref(), &*found), (managed_by, policy), "{text}");
    }
    let (by, policy) = applied(&bed, explicit(plain("draft"))).await;
    assert_eq!((by.as_deref(), &*policy), (OURS, DEFAULT), "server-side apply with a value");
    let (by, policy) = applied(&bed, plain("draft")).await;
    assert_eq!((by.as_deref(), &*policy), (OURS, "Failed"), "server-side apply without one");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_label_stands_for_itself_and_without_one_nothing_is_set() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[]).await;
    opted_in(&bed, json!({JOBS: "managed"}), (OURS, DEFAULT)).await;
    let only = json!({JOBS: null, POD_REPLACEMENT_POLICY: "Failed"});
    opted_in(&bed, only, (None, "Failed")).await;
    // Other values than those of the policies.
    let strange = json!({JOBS: "true", POD_REPLACEMENT_POLICY: "Terminating"});
    opted_in(&bed, strange, (None, DEFAULT)).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_judges_the_labels_by_the_policies_of_the_cluster() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[]).await;
    let labels = json!({JOBS: "managed", POD_REPLACEMENT_POLICY: "failed"});
    opted_in(&bed, labels, (OURS, DEFAULT)).await;
    let cluster = Cluster::of_tests("features").expect("the suite's cluster");
    let output = Command::new(program("kubectl-epilogue"))
        .args(["doctor", "--output=json", "--namespace", bed.namespace(), "--kubeconfig"])
        .arg(cluster.kubeconfig_path())
        .output()
        .await
        .expect("the program must start");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let subject = format!("namespace/{}", bed.namespace());
    let found = answer["findings"].as_array().expect("findings").iter();
    let codes: Vec<&Value> = found
        .filter(|each| each["subject"] == subject.as_str())
        .map(|each| &each["code"])
        .collect();
    assert_eq!(codes, ["opt-in-value-unknown"], "the other label has its policy: {answer:#}");
    assert_eq!(answer["not_judged"], json!([]));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_an_older_job_sets_nothing() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[]).await;
    bed.create(plain("older")).await;
    let both = json!({JOBS: "managed", POD_REPLACEMENT_POLICY: "Failed"});
    opted_in(&bed, both, (OURS, "Failed")).await;
    bed.change("older", json!({"parallelism": 2})).await;
    let (by, policy) = fields(bed.job("older").await);
    assert_eq!((by, &*policy), (None, DEFAULT));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_controller_runs_the_jobs_of_the_namespace() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[NO_BACKOFF]).await;
    let both = json!({JOBS: "managed", POD_REPLACEMENT_POLICY: "Failed"});
    opted_in(&bed, both, (OURS, "Failed")).await;
    bed.create(with_ignore("disrupted").spec("backoffLimit", 0).script("disrupt times=1; succeed"))
        .await;
    let state = bed.finished("disrupted", SOON).await;
    assert_eq!(
        (state.conditions.last().map(String::as_str), state.succeeded),
        (Some("Complete"), 1)
    );

    // A second server-side apply of the same manifest leaves the field alone: it is immutable.
    let params = PatchParams::apply("a-user");
    for _ in 0..2 {
        let patch = Patch::Apply(plain("applied").raw());
        let job = bed.api::<Job>().patch("applied", &params, &patch).await;
        assert_eq!(fields(job.expect("the Job is applied")).0.as_deref(), OURS);
    }
    assert_eq!(bed.finished("applied", SOON).await.succeeded, 1);

    // Our validating policy sees the Job with its managedBy.
    let unknown = json!({"epilogue.dev/backof-max": "5m"});
    let refused = plain("refused").metadata("annotations", unknown).build();
    let refused = bed.api::<Job>().create(&PostParams::default(), &refused).await;
    let refused = refused.expect_err("the annotation is unknown").to_string();
    assert!(refused.contains("unknown epilogue.dev/backof-max"), "{refused}");
    bed.stop().await;
}
