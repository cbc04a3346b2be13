//! Tests that pods without a controller cost the Jobs of their namespace little, and that each Job
//! gets those that its selector matches.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::job::{self, ClaimKind, SyncInput, plan_pods};
use crate::view::MATCHES;

/// Of a tenant who means harm, scaled down.
const PODS: usize = 300;
const JOBS: usize = 40;
const ROUNDS: usize = 20;

fn stray(number: usize, version: u64, labels: &Value, phase: &str) -> WirePod {
    let uid = format!("stray-{number:05}");
    let pod = json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid,
                     "resourceVersion": version.to_string(), "labels": labels},
        "status": {"phase": phase},
    });
    serde_json::from_value(pod).expect("must be a pod")
}

fn selecting(number: usize, version: u64, selector: &Value) -> Job {
    let name = format!("j-{number}");
    let job = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                     "resourceVersion": version.to_string(), "generation": 1},
        "spec": {"managedBy": "epilogue.dev/job-controller", "manualSelector": true,
                 "selector": selector},
    });
    WireJob::parse(job).and_then(WireJob::view).expect("must be a Job")
}

fn named(number: usize) -> JobKey {
    JobKey::new("default", format!("j-{number}"))
}

/// How often a selector is applied to a pod meanwhile.
fn matches(work: impl FnOnce()) -> usize {
    MATCHES.set(0);
    work();
    MATCHES.get()
}

impl Cluster {
    /// The pods that a sync of this Job adopts.
    fn adopted(&mut self, number: usize) -> Vec<String> {
        let snapshot = self.0.take_input(&named(number), &quiet()).expect("must be there");
        let plan = plan_pods(&SyncInput {
            job: &snapshot.job,
            pods: &snapshot.pods,
            groups: None,
            memory: &snapshot.memory,
            seen: snapshot.seen,
            now: now(),
            settings: &job::Settings::default(),
            counts_max: snapshot.counts_max,
        });
        assert_eq!(plan.skip, None);
        let adopted = plan.claims.iter().filter(|claim| claim.kind == ClaimKind::Adopt);
        adopted.map(|claim| claim.pod.name.to_string()).collect()
    }
}

/// Jobs with these selectors, and pods without a controller.
fn crowded(selector: impl Fn(usize) -> Value) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.jobs(WatchEvent::ListBegins);
    for number in 0..JOBS {
        cluster.jobs(WatchEvent::Shown(selecting(number, 1, &selector(number))));
    }
    cluster.jobs_end(1);
    cluster.pods_begin();
    for number in 0..PODS {
        let labels = json!({"app": "web", "tier": "front", "of": number.to_string()});
        cluster.pod_shown(stray(number, 10, &labels, "Running"));
    }
    cluster.pods_end(10);
    cluster
}

#[test]
fn a_pod_is_matched_with_no_job_whose_label_it_lacks() {
    let own = |number: usize| json!({"matchLabels": {"job": format!("j-{number}"), "app": "web"}});
    let mut cluster = Cluster::default();
    let building = matches(|| cluster = crowded(own));
    assert!(building <= PODS, "{PODS} pods, {JOBS} Jobs: {building}");
}

#[test]
fn the_matches_of_syncs_do_not_grow_with_the_pods_without_a_controller() {
    // Each label of the selector is one of each pod, so that no index tells them apart.
    let all_but = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
        {"key": "tier", "operator": "NotIn", "values": ["front"]}]});
    let mut cluster = crowded(|_| all_but.clone());
    let sync_all = |cluster: &mut Cluster| {
        (0..JOBS).for_each(|number| assert!(cluster.adopted(number).is_empty()));
    };
    let first = matches(|| sync_all(&mut cluster));
    assert!(first <= PODS * JOBS, "each Job with each pod once: {first}");
    let later = matches(|| (0..ROUNDS).for_each(|_| sync_all(&mut cluster)));
    assert_eq!(later, 0, "nothing has changed");

    let labels = json!({"app": "web", "tier": "back"});
    let event = matches(|| drop(cluster.pod_shown(stray(7, 20, &labels, "Running"))));
    assert!(event <= JOBS, "each Job is asked whether it may adopt the pod: {event}");
    let after = matches(|| {
        let one = |number| assert_eq!(cluster.adopted(number), ["stray-00007"]);
        (0..JOBS).for_each(one);
    });
    assert!(after <= 2 * JOBS, "of all pods one has other labels: {after}");
    let states = matches(|| {
        for version in 21..40 {
            cluster.pod_shown(stray(7, version, &labels, "Pending"));
        }
        assert_eq!(cluster.adopted(0), ["stray-00007"]);
    });
    assert!(states <= 1, "the labels stay: {states}");
}

/// A change of one of few objects.
#[derive(Clone, Debug)]
enum Step {
    Stray { number: usize, labels: usize, is_owned: bool, is_deleted: bool },
    StrayGone(usize),
    Job { number: usize, selector: usize },
    JobGone(usize),
    Sync(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6_usize, 0..5_usize, prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(number, labels, is_owned, is_deleted)| {
                Step::Stray { number, labels, is_owned, is_deleted }
            }),
        2 => (0..6_usize).prop_map(Step::StrayGone),
        3 => (0..3_usize, 0..7_usize).prop_map(|(number, selector)| Step::Job { number, selector }),
        1 => (0..3_usize).prop_map(Step::JobGone),
        8 => (0..3_usize).prop_map(Step::Sync),
    ]
}

fn labels(number: usize) -> Value {
    [
        json!({}),
        json!({"a": "1"}),
        json!({"a": "2", "b": "x"}),
        json!({"b": "y"}),
        json!({"a": "1", "b": "x", "batch.kubernetes.io/job-completion-index": "3"}),
    ][number]
        .clone()
}

fn selector(number: usize) -> Value {
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    [
        json!({"matchLabels": {"a": "1"}}),
        json!({"matchLabels": {"a": "2", "b": "x"}}),
        expression("a", "In", &["1", "2"]),
        expression("b", "NotIn", &["y"]),
        expression("a", "DoesNotExist", &[]),
        json!({}),
        json!({"matchLabels": {"batch.kubernetes.io/job-completion-index": "3"}}),
    ][number]
        .clone()
}

proptest! {
    /// Whatever happens, a sync is shown the pods that it may adopt, and an event of a pod wakes
    /// the Jobs that may adopt it.
    #[test]
    fn each_job_is_offered_the_pods_that_its_selector_matches(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut cluster = Cluster::default();
        cluster.jobs_end(1);
        cluster.pods_end(1);
        let mut pods: BTreeMap<usize, (WirePod, bool, bool)> = BTreeMap::new();
        let mut jobs: BTreeMap<usize, Job> = BTreeMap::new();
        for (version, step) in (10_u64..).zip(steps) {
            match step {
                Step::Stray { number, labels: chosen, is_owned, is_deleted } => {
                    let mut pod = stray(number, version, &labels(chosen), "Running");
                    if is_owned {
                        pod.metadata.owner_references = super::pod("x", 1, "Running")
                            .metadata.owner_references;
                    }
                    if is_deleted {
                        pod.metadata.deletion_timestamp =
                            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
                    }
                    let before = pods.insert(number, (pod.clone(), is_owned, is_deleted));
                    let is_offered = !is_owned && !is_deleted
                        && before.is_none_or(|(old, was_owned, _)| {
                            was_owned || old.metadata.labels != pod.metadata.labels
                        });
                    let shown = pod.clone().view(&mut Interner::default());
                    let entries = cluster.pod_shown(pod).entries;
                    for job in jobs.values().filter(|_| is_offered) {
                        let is_woken = entries.iter()
                            .any(|entry| matches!(entry, Entry::Job(key, _) if *key == job.key));
                        let matches = !shown.labels.is_empty() || shown.index_label.is_some();
                        let matches = matches && shown.matches(&job.spec.selector);
                        prop_assert_eq!(is_woken, matches, "{} {:?}", job.key, entries);
                    }
                }
                Step::StrayGone(number) => {
                    if let Some((pod, ..)) = pods.remove(&number) {
                        cluster.pods(WatchEvent::Gone(pod));
                    }
                }
                Step::Job { number, selector: chosen } => {
                    let job = selecting(number, version, &selector(chosen));
                    jobs.insert(number, job.clone());
                    cluster.jobs(WatchEvent::Shown(job));
                }
                Step::JobGone(number) => {
                    if let Some(job) = jobs.remove(&number) {
                        cluster.jobs(WatchEvent::Gone(job));
                    }
                }
                Step::Sync(number) => {
                    let Some(job) = jobs.get(&number) else { continue };
                    let views = pods.values().filter(|(_, is_owned, is_deleted)| {
                        !is_owned && !is_deleted
                    });
                    let views = views.map(|(pod, ..)| pod.clone().view(&mut Interner::default()));
                    let expected: Vec<String> = views
                        .filter(|pod| pod.matches(&job.spec.selector))
                        .map(|pod| pod.name.to_string())
                        .collect();
                    prop_assert_eq!(cluster.adopted(number), expected);
                }
            }
        }
    }
}
