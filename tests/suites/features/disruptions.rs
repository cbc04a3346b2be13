//! Tests what the controller measures of disruptions: `epilogue_disruption_seconds`, against what
//! the test did and against the audit log of the API server.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{self, Node, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::audit::WITNESSED;
use lab::bed::{JobBuilder, SOON, job};
use lab::controller::{Controller, Setup};
use lab::{Cluster, Namespace, audit, eventually};
use serde::de::DeserializeOwned;
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

/// The current second, as the API writes it.
fn second() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn marked() -> Value {
    json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "message": SHUTDOWN,
                           "reason": "TerminationByKubelet", "lastTransitionTime": second()}]})
}

/// Failed, its container ended at this time.
fn ended(at: &str) -> Value {
    let state = json!({"terminated": {"exitCode": 143, "startedAt": at, "finishedAt": at}});
    json!({"phase": "Failed", "containerStatuses": [{"name": "main", "image": "", "imageID": "",
           "ready": false, "restartCount": 0, "state": state}]})
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
    let gap = |kind: &str| {
        let series = format!(r#"epilogue_disruption_gap_seconds_{kind}{{source="shutdown"}} "#);
        let value = page.lines().find_map(|line| line.strip_prefix(&series)).expect("gaps");
        value.trim().parse::<f64>().expect("a number")
    };
    assert!((gap("count") - 20.0).abs() < 0.5, "{page}");
    let between = mean("running") - mean("ended");
    assert!((gap("sum") / 20.0 - between).abs() < 0.001, "{page}");
    let lost = r#"epilogue_disruption_lost_work_seconds_total{source="shutdown"} "#;
    let lost = page.lines().find_map(|line| line.strip_prefix(lost)).expect("lost work");
    assert!(lost.trim().parse::<f64>().expect("a number") >= 20.0, "{page}");
    bed.stop().await;
}

/// An account whose writes the API server audits, as it does those of our programs; and a node.
struct Writer {
    admin: kube::Client,
    pods: Api<Pod>,
    nodes: Api<Node>,
    /// The name of the account, of its rights and of the node.
    name: String,
}

/// Lets an account write the status of the pods of a namespace, and of nodes.
async fn grant(admin: &kube::Client, name: &str) {
    fn read<T: DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).expect("an object of its kind")
    }
    let params = PostParams::default();
    let rule = |resource| json!([{"apiGroups": [""], "resources": [resource], "verbs": ["patch"]}]);
    let role: Role = read(json!({"metadata": {"name": "writer"}, "rules": rule("pods/status")}));
    Api::namespaced(admin.clone(), name).create(&params, &role).await.expect("the role");
    let role: ClusterRole =
        read(json!({"metadata": {"name": name}, "rules": rule("nodes/status")}));
    Api::all(admin.clone()).create(&params, &role).await.expect("the role");
    let binding = |kind, role| {
        json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": WITNESSED}],
        })
    };
    let of_pods: RoleBinding = read(binding("Role", "writer"));
    Api::namespaced(admin.clone(), name).create(&params, &of_pods).await.expect("the binding");
    let of_nodes: ClusterRoleBinding = read(binding("ClusterRole", name));
    Api::all(admin.clone()).create(&params, &of_nodes).await.expect("the binding");
    let user = format!("system:serviceaccount:{WITNESSED}:{name}");
    for resource in ["pods", "nodes"] {
        let attributes = json!({"namespace": if resource == "pods" { name } else { "" },
                                "verb": "patch", "resource": resource, "subresource": "status"});
        let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
        let review: SubjectAccessReview = read(review);
        let may = async || {
            let asked = Api::all(admin.clone()).create(&params, &review).await.expect("an answer");
            asked.status.is_some_and(|status| status.allowed)
        };
        eventually("the account may write", SOON, may, |may| *may).await;
    }
}

impl Writer {
    async fn create(cluster: &Cluster, name: &str) -> Self {
        let admin = cluster.admin_client().await.expect("a client");
        let apply = PatchParams::apply("lab");
        let home = json!({"apiVersion": "v1", "kind": "Namespace",
                          "metadata": {"name": WITNESSED}});
        let homes: Api<v1::Namespace> = Api::all(admin.clone());
        homes.patch(WITNESSED, &apply, &Patch::Apply(home)).await.expect("the namespace");
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), WITNESSED);
        let account = serde_json::from_value(json!({"metadata": {"name": name}}));
        let (account, params) = (account.expect("an account"), PostParams::default());
        accounts.create(&params, &account).await.expect("the account");
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
        Api::<Node>::all(admin.clone()).create(&params, &node).await.expect("the node");
        grant(&admin, name).await;
        let client = cluster.service_account_client(WITNESSED, name).await.expect("a client");
        let (pods, nodes) = (Api::namespaced(client.clone(), name), Api::all(client));
        Self { admin, pods, nodes, name: name.to_owned() }
    }

    /// Says as a kubelet that the node shuts down, or that it does not.
    async fn announce(&self, shuts_down: bool) {
        let (what, status, message) = if shuts_down {
            ("announce", "False", "node is shutting down")
        } else {
            ("withdraw", "True", "kubelet is posting ready status")
        };
        let ready = json!({"type": "Ready", "status": status, "message": message,
                           "lastTransitionTime": second()});
        let params = PatchParams { field_manager: Some(what.to_owned()), ..<_>::default() };
        let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
        self.nodes.patch_status(&self.name, &params, &patch).await.expect("the node's status");
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
        let (name, params) = (&self.name, DeleteParams::default());
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), WITNESSED);
        accounts.delete(name, &params).await.expect("the account goes");
        let bindings: Api<ClusterRoleBinding> = Api::all(self.admin.clone());
        bindings.delete(name, &params).await.expect("the binding goes");
        let roles: Api<ClusterRole> = Api::all(self.admin.clone());
        roles.delete(name, &params).await.expect("the role goes");
        let nodes: Api<Node> = Api::all(self.admin);
        nodes.delete(name, &params).await.expect("the node goes");
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

/// The buckets of the metric: each bound, and how many disruptions came to the phase within it.
fn buckets(page: &str, phase: &str) -> Vec<(f64, f64)> {
    let series =
        format!(r#"epilogue_disruption_seconds_bucket{{phase="{phase}",source="shutdown",le=""#);
    let of = page.lines().filter_map(|line| line.strip_prefix(&series)?.split_once("\"} "));
    let number = |text: &str| text.trim().parse().expect("a number");
    of.map(|(bound, count)| (number(bound), number(count))).collect()
}

/// What was measured between two pages less what was audited: in the mean, and the most samples by
/// which the count of a bucket differs. A sample within [`NEAR`] of a bound may be on either side.
fn differences(pages: &[String], phase: &str, audited: &[f64]) -> (f64, f64) {
    let sum = |page: &String| value(page, "sum", phase);
    let number = |is: &dyn Fn(f64) -> bool| {
        audited.iter().filter(|after| is(**after)).fold(0.0, |sum, _| sum + 1.0)
    };
    let all = number(&|_| true);
    let of_mean = (sum(&pages[1]) - sum(&pages[0]) - audited.iter().sum::<f64>()) / all;
    let before = buckets(&pages[0], phase);
    let of_bucket = buckets(&pages[1], phase).into_iter().map(|(bound, count)| {
        let before = before.iter().find(|it| it.0 >= bound).map_or(0.0, |it| it.1);
        let at_least = number(&|after| after <= bound - NEAR);
        let at_most = number(&|after| after <= bound + NEAR);
        let measured = count - before;
        (at_least - measured).max(measured - at_most)
    });
    (of_mean, of_bucket.fold(0.0, f64::max))
}

/// How far what is measured may be from what is audited, in seconds.
const NEAR: f64 = 0.05;

/// The witness is another program, with its own view of the order. All disruptions of a round have
/// one first sign, the word of their node, so that nothing depends on which pod took the place of
/// which, and one slow event among a thousand changes little in a mean.
/// An error of the measurement shows in every round, and a slow machine in some: two must agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_disruptions_took_as_long_as_the_audit_log_says() {
    // The seventh failure of a place waits.
    const PODS: usize = 200;
    const ROUNDS: usize = 5;
    const EACH: f64 = 200.0;
    const PHASES: [&str; 5] = ["marked", "ended", "reported", "replaced", "running"];
    let cluster = Cluster::of_tests("features").expect("the suite's cluster");
    let namespace = Namespace::create(&cluster).await.expect("a namespace");
    let name = namespace.name().to_owned();
    let setup = Setup::debug(&cluster.files(&name)).namespace(&name).argument(METRICS);
    let mut controller = Controller::start(&cluster, &setup).await.expect("our controller");
    let writer = Writer::create(&cluster, &name).await;
    let (jobs, pods) = (
        Api::<Job>::namespaced(writer.admin.clone(), &name),
        Api::namespaced(writer.admin.clone(), &name),
    );
    let since = Timestamp::now();
    // No kubelet ends these pods when their namespace goes.
    let crowd = crowd(PODS).pod("nodeName", &*name).pod("terminationGracePeriodSeconds", 0);
    jobs.create(&PostParams::default(), &crowd.build()).await.expect("the Job");
    let mut running = run_all(&pods, &writer, PODS, "begin").await;
    let (mut pages, mut ends) = (vec![String::new()], Vec::new());
    for _ in 0..ROUNDS {
        writer.announce(true).await;
        // Nodes and pods come by two watches.
        tokio::time::sleep(Duration::from_millis(200)).await;
        writer.write(&running, "mark", &marked()).await;
        let end = second();
        writer.write(&running, "fail", &ended(&end)).await;
        let end: Timestamp = end.parse().expect("a time");
        ends.extend([end.duration_since(since).as_secs_f64(); PODS]);
        running = run_all(&pods, &writer, PODS, "run").await;
        let observe = async || controller.metrics().await.expect("the metrics");
        let count = (0..pages.len()).fold(0.0, |sum, _| sum + EACH);
        let all = |page: &String| is_counted(page, count, &PHASES);
        pages.push(eventually("each phase is measured", SOON, observe, all).await);
        writer.announce(false).await;
    }
    let log = audit::entries(&cluster);
    let of_pods = format!("/namespaces/{name}/pods");
    let times = |what: &str| answered(&log, [&of_pods, &format!("fieldManager={what}\"")], since);
    let created = answered(&log, [&of_pods, r#""verb":"create""#], since);
    let of_node = format!("/nodes/{name}/status");
    let signs = answered(&log, [&of_node, r#"fieldManager=announce""#], since);
    let created = created.get(PODS..).unwrap_or_default().to_vec();
    let reached = [times("mark"), ends, times("fail"), created, times("run")];
    for (phase, reached) in PHASES.into_iter().zip(reached) {
        assert_eq!((reached.len(), signs.len()), (PODS * ROUNDS, ROUNDS), "{phase}");
        let rounds = reached.chunks(PODS).zip(&signs).zip(pages.windows(2));
        let differences = rounds.map(|((reached, sign), pages)| {
            // A second may have begun before the sign in it.
            let audited: Vec<f64> = reached.iter().map(|at| (at - sign).max(0.0)).collect();
            differences(pages, phase, &audited)
        });
        let (means, counts): (Vec<f64>, Vec<f64>) = differences.unzip();
        println!("{phase}: measured less audited, seconds, by round: {means:.3?}");
        println!("{phase}: samples in another bucket, by round: {counts:?}");
        let second_best = |mut all: Vec<f64>| {
            all.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
            all[1].abs()
        };
        assert!(second_best(means) <= NEAR, "{phase}");
        assert!(second_best(counts) < 0.5, "{phase}");
    }
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    writer.finish().await;
    namespace.finish().await.expect("the namespace goes");
}
