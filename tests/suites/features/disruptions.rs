//! Tests what the controller measures of disruptions: `epilogue_disruption_seconds`, against what
//! the test did and against the audit log of the API server.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{self, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::audit::WITNESSED;
use lab::bed::{JobBuilder, SOON, job};
use lab::controller::{Controller, Setup};
use lab::{Cluster, Namespace, audit, eventually};
use serde_json::{Value, json};

use super::bed;

const METRICS: &str = "--metrics-bind-address=127.0.0.1:0";
/// What an agent writes at a shutdown, and what a kubelet does.
const SHUTDOWN: &str = "Pod was terminated in response to imminent node shutdown.";

/// One of many pods that hang, and whose disruptions count for nothing.
fn crowd(pods: usize) -> JobBuilder {
    let ignore = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    job("crowd")
        .spec("parallelism", pods)
        .spec("completions", 100_000)
        .spec("podFailurePolicy", json!({"rules": [ignore]}))
        .script("hang")
}

fn marked() -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "message": SHUTDOWN,
                           "reason": "TerminationByKubelet", "lastTransitionTime": now}]})
}

/// The number at a series of the metric; 0 without one.
fn value(page: &str, kind: &str, phase: &str) -> f64 {
    let series =
        format!(r#"epilogue_disruption_seconds_{kind}{{phase="{phase}",source="shutdown"}} "#);
    let found = page.lines().find_map(|line| line.strip_prefix(&series));
    found.map_or(0.0, |value| value.trim().parse().expect("a number"))
}

/// Whether this many disruptions have come to each phase.
fn is_counted(page: &str, count: f64, phases: &[&str]) -> bool {
    phases.iter().all(|phase| (value(page, "count", phase) - count).abs() < 0.5)
}

/// An agent of the announced end of the machine: marks, then phases, then pods elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_phase_of_twenty_disruptions_is_measured() {
    const PODS: usize = 20;
    const PHASES: [&str; 6] = ["notice", "marked", "ended", "reported", "replaced", "running"];
    let bed = bed(&[METRICS]).await;
    bed.create(crowd(PODS)).await;
    bed.reaches("crowd", SOON, |state| state.ready == Some(20)).await;
    let (pods, params) = (bed.api::<Pod>(), PatchParams::default());
    let all = bed.pods("crowd").await;
    let ends_at = (Timestamp::now() + SignedDuration::from_secs(120)).to_string();
    for pod in &all {
        let name = pod.metadata.name.as_deref().expect("a name");
        let metadata = json!({"annotations": {"epilogue.dev/ends-at": ends_at}});
        let mark = Patch::Strategic(json!({"metadata": metadata, "status": marked()}));
        pods.patch_status(name, &params, &mark).await.expect("the mark");
    }
    let is_marked = async || bed.metrics().await;
    let page = |page: &String| is_counted(page, 20.0, &["notice", "marked"]);
    let seen = eventually("the marks are measured", SOON, is_marked, page).await;
    assert!(is_counted(&seen, 0.0, &["ended", "reported", "replaced", "running"]), "{seen}");
    // So much work is lost at least.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for pod in &all {
        let name = pod.metadata.name.as_deref().expect("a name");
        // The proof that nothing of it runs, whatever its status shows.
        let proof = json!({"annotations": {"epilogue.dev/terminated-at": ends_at}});
        let failed = Patch::Strategic(json!({"metadata": proof, "status": {"phase": "Failed"}}));
        pods.patch_status(name, &params, &failed).await.expect("the phase");
    }
    let ends = |page: &String| is_counted(page, 20.0, &PHASES);
    let page = eventually("each phase is measured", SOON, async || bed.metrics().await, ends).await;
    let mean = |phase: &str| value(&page, "sum", phase) / 20.0;
    assert!((100.0..=120.0).contains(&mean("notice")), "{page}");
    assert!(mean("marked") < 0.001, "no node announces anything here: {page}");
    assert!(mean("reported") >= 2.0 && mean("ended") <= mean("reported"), "{page}");
    assert!(mean("reported") <= mean("replaced"), "{page}");
    assert!(mean("replaced") <= mean("running") && mean("running") < 30.0, "{page}");
    let lost = r#"epilogue_disruption_lost_work_seconds_total{source="shutdown"} "#;
    let lost = page.lines().find_map(|line| line.strip_prefix(lost)).expect("lost work");
    assert!(lost.trim().parse::<f64>().expect("a number") >= 20.0, "{page}");
    bed.stop().await;
}

/// An account whose writes the API server audits, as it does those of our programs.
struct Writer {
    pods: Api<Pod>,
    accounts: Api<ServiceAccount>,
    name: String,
}

impl Writer {
    async fn create(cluster: &Cluster, namespace: &str) -> Self {
        let admin = cluster.admin_client().await.expect("a client");
        let account = json!({"metadata": {"name": namespace}});
        let rule = json!({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]});
        let role = json!({"metadata": {"name": "writer"}, "rules": [rule]});
        let binding = json!({
            "metadata": {"name": "writer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer"},
            "subjects": [{"kind": "ServiceAccount", "name": namespace, "namespace": WITNESSED}],
        });
        let params = PostParams::default();
        let apply = PatchParams::apply("lab");
        let home = json!({"apiVersion": "v1", "kind": "Namespace",
                          "metadata": {"name": WITNESSED}});
        let homes: Api<v1::Namespace> = Api::all(admin.clone());
        homes.patch(WITNESSED, &apply, &Patch::Apply(home)).await.expect("the namespace");
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), WITNESSED);
        let account = serde_json::from_value(account).expect("an account");
        accounts.create(&params, &account).await.expect("the account");
        let role: Role = serde_json::from_value(role).expect("a role");
        Api::namespaced(admin.clone(), namespace).create(&params, &role).await.expect("the role");
        let binding: RoleBinding = serde_json::from_value(binding).expect("a binding");
        let bindings = Api::namespaced(admin.clone(), namespace);
        bindings.create(&params, &binding).await.expect("the binding");
        let user = format!("system:serviceaccount:{WITNESSED}:{namespace}");
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
            "user": user, "resourceAttributes": {"namespace": namespace, "verb": "patch",
                                                 "resource": "pods", "subresource": "status"}}}))
        .expect("a review");
        let may = async || {
            let asked = Api::all(admin.clone()).create(&params, &review).await.expect("an answer");
            asked.status.is_some_and(|status| status.allowed)
        };
        eventually("the account may write", SOON, may, |may| *may).await;
        let client = cluster.service_account_client(WITNESSED, namespace).await.expect("a client");
        let pods = Api::namespaced(client, namespace);
        Self { pods, accounts, name: namespace.to_owned() }
    }

    /// Writes a status of these pods; the audit log shows its name.
    async fn write(&self, names: &[String], what: &str, status: &Value) {
        let params = PatchParams { field_manager: Some(what.to_owned()), ..<_>::default() };
        let patch = Patch::Strategic(json!({"status": status}));
        let writes = stream::iter(names).map(async |name| {
            self.pods.patch_status(name, &params, &patch).await.expect("the status is written");
        });
        writes.buffer_unordered(2).collect::<Vec<()>>().await;
    }

    async fn finish(self) {
        let params = DeleteParams::default();
        self.accounts.delete(&self.name, &params).await.expect("the account goes");
    }
}

/// The pods that wait are made to run, until there are so many of them; returns their names.
async fn run_all(admin: &Api<Pod>, writer: &Writer, count: usize, what: &str) -> Vec<String> {
    let mut run: Vec<String> = Vec::new();
    let pending = ListParams::default().fields("status.phase=Pending");
    for _ in 0..3_000 {
        let new = admin.list_metadata(&pending).await.expect("the pods").items;
        let new: Vec<String> = new.into_iter().filter_map(|pod| pod.metadata.name).collect();
        writer.write(&new, what, &json!({"phase": "Running"})).await;
        run.extend(new);
        if run.len() == count {
            return run;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} of {count} pods are there", run.len());
}

/// When the API server answered the requests of a namespace that contain these words, in seconds
/// since a time.
fn answered(log: &str, words: [&str; 2], since: Timestamp) -> Vec<f64> {
    let of = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    let mut times: Vec<f64> = of
        .filter_map(|line| {
            let entry: Value = serde_json::from_str(line).ok()?;
            let code = entry["responseStatus"]["code"].as_u64()?;
            assert!(code < 300, "{line}");
            let at: Timestamp = entry["stageTimestamp"].as_str()?.parse().ok()?;
            Some(at.duration_since(since).as_secs_f64())
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The witness is another program, with its own view of the order. Sums do not ask which pod took
/// the place of which, and one slow event among a thousand changes little in a mean.
/// An error of the measurement shows in every round, and a slow machine in some: two must agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mean_of_a_thousand_disruptions_is_that_of_the_audit_log() {
    // The seventh failure of a place waits.
    const PODS: usize = 200;
    const ROUNDS: usize = 5;
    const ALL: usize = PODS * ROUNDS;
    const EACH: f64 = 200.0;
    let cluster = Cluster::of_tests("features").expect("the suite's cluster");
    let namespace = Namespace::create(&cluster).await.expect("a namespace");
    let name = namespace.name().to_owned();
    let setup = Setup::debug(&cluster.files(&name)).namespace(&name).argument(METRICS);
    let mut controller = Controller::start(&cluster, &setup).await.expect("our controller");
    let writer = Writer::create(&cluster, &name).await;
    let admin = cluster.admin_client().await.expect("a client");
    let (jobs, pods) =
        (Api::<Job>::namespaced(admin.clone(), &name), Api::namespaced(admin, &name));
    let since = Timestamp::now();
    jobs.create(&PostParams::default(), &crowd(PODS).build()).await.expect("the Job");
    let mut running = run_all(&pods, &writer, PODS, "begin").await;
    let phases = ["marked", "ended", "reported", "replaced", "running"];
    let mut pages = vec![String::new()];
    for _ in 0..ROUNDS {
        writer.write(&running, "mark", &marked()).await;
        writer.write(&running, "fail", &json!({"phase": "Failed"})).await;
        running = run_all(&pods, &writer, PODS, "run").await;
        let observe = async || controller.metrics().await.expect("the metrics");
        let count = (0..pages.len()).fold(0.0, |sum, _| sum + EACH);
        let all = |page: &String| is_counted(page, count, &phases);
        pages.push(eventually("each phase is measured", SOON, observe, all).await);
    }
    let log = audit::entries(&cluster);
    let of_pods = format!("/namespaces/{name}/pods");
    let times = |what: &str| answered(&log, [&of_pods, &format!("fieldManager={what}\"")], since);
    let created = answered(&log, [&of_pods, r#""verb":"create""#], since);
    let marks = times("mark");
    for (phase, ends) in [
        ("reported", times("fail")),
        ("replaced", created.get(PODS..).unwrap_or_default().to_vec()),
        ("running", times("run")),
    ] {
        assert_eq!((ends.len(), marks.len()), (ALL, ALL), "{phase}");
        let rounds = marks.chunks(PODS).zip(ends.chunks(PODS)).zip(pages.windows(2));
        let mut differences: Vec<f64> = rounds
            .map(|((marks, ends), pages)| {
                let audited = ends.iter().sum::<f64>() - marks.iter().sum::<f64>();
                let sum = |page: &String| value(page, "sum", phase);
                (sum(&pages[1]) - sum(&pages[0]) - audited) / EACH
            })
            .collect();
        println!("{phase}: measured less audited, seconds, by round: {differences:.3?}");
        differences.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
        assert!(differences[1].abs() <= 0.05, "{phase}: {differences:?}");
    }
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    writer.finish().await;
    namespace.finish().await.expect("the namespace goes");
}
