//! Tests Workloads and PodGroups in the state: whom they concern, and that no Job is synced before
//! they are known.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::job::JobGroups;
use crate::view::{PodGroup, Workload};

fn workload(name: &str, version: u64, (kind, of): (&str, &str), size: i32) -> Arc<Workload> {
    let owner = if kind == "Job" { "uid-a" } else { "uid-p" };
    let group = if kind == "Job" { "batch" } else { "jobset.x-k8s.io" };
    let workload = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                     "resourceVersion": version.to_string(),
                     "ownerReferences": [{"kind": kind, "name": of, "uid": owner,
                                          "apiVersion": "v1", "controller": true}]},
        "spec": {"controllerRef": {"apiGroup": group, "kind": kind, "name": of},
                 "podGroupTemplates": [
                     {"name": "t", "schedulingPolicy": {"gang": {"minCount": size}}}]},
    });
    Arc::new(Workload::read(&workload.to_string()).expect("must be a Workload"))
}

fn pod_group(name: &str, version: u64, owner: &str) -> Arc<PodGroup> {
    let group = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                     "resourceVersion": version.to_string(),
                     "ownerReferences": [{"kind": "Job", "name": "a", "uid": owner,
                                          "apiVersion": "batch/v1", "controller": true}]},
        "spec": {"workloadRef": {"workloadName": "w"}, "schedulingPolicy": {"basic": {}}},
    });
    Arc::new(PodGroup::read(&group.to_string()).expect("must be a PodGroup"))
}

/// A Job that follows the Workload of its parent.
fn follower(version: u64) -> Job {
    let job = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a",
                     "resourceVersion": version.to_string(),
                     "annotations": {"scheduling.k8s.io/group-template-name": "t"},
                     "ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2",
                                          "kind": "JobSet", "name": "p", "uid": "uid-p",
                                          "controller": true}]},
        "spec": {"managedBy": "epilogue.dev/job-controller",
                 "selector": {"matchLabels": {"job": "a"}}},
    });
    WireJob::parse(job).and_then(WireJob::view).expect("must be a Job")
}

impl Cluster {
    fn lists_groups(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for event in [
            Event::Workload(WatchEvent::ListBegins),
            Event::PodGroup(WatchEvent::ListBegins),
            Event::Workload(WatchEvent::ListEnds("10".to_owned())),
            Event::PodGroup(WatchEvent::ListEnds("10".to_owned())),
        ] {
            entries.extend(self.handle(event).entries);
        }
        entries
    }

    fn shows_workload(&mut self, workload: Arc<Workload>) -> Vec<Entry> {
        self.handle(Event::Workload(WatchEvent::Shown(workload))).entries
    }

    fn groups(&self) -> JobGroups {
        self.snapshot().groups.expect("they are served")
    }
}

fn synced() -> Entry {
    Entry::Job(key(), None)
}

#[test]
fn no_job_is_synced_before_its_groups_are_known() {
    let mut cluster = cluster();
    assert_eq!(cluster.0.serve_groups(true, &quiet()), []);
    assert!(cluster.0.input(&key(), &quiet()).is_none());
    assert_eq!(cluster.lists_groups(), [synced()], "all that waited");
    assert_eq!(cluster.groups(), JobGroups::default());
    // Another replica may have made some: both are listed again.
    cluster.handle(Event::Workload(WatchEvent::ListBegins));
    cluster.0.expect_groups();
    cluster.handle(Event::Workload(WatchEvent::ListEnds("11".to_owned())));
    cluster.handle(Event::PodGroup(WatchEvent::ListBegins));
    cluster.handle(Event::PodGroup(WatchEvent::ListEnds("11".to_owned())));
    assert!(cluster.0.input(&key(), &quiet()).is_none(), "a list began before");
    assert_eq!(cluster.lists_groups(), [synced()]);
    assert_eq!(cluster.0.serve_groups(false, &quiet()), [synced()]);
    assert!(cluster.snapshot().groups.is_none());
}

#[test]
fn a_job_has_the_objects_that_it_controls() {
    let mut cluster = cluster();
    cluster.0.serve_groups(true, &quiet());
    cluster.lists_groups();
    assert_eq!(cluster.shows_workload(workload("w", 11, ("Job", "a"), 1)), [], "it made it");
    cluster.shows_workload(workload("other", 12, ("Job", "b"), 1));
    for group in [pod_group("g", 13, "uid-a"), pod_group("h", 14, "uid-b")] {
        cluster.handle(Event::PodGroup(WatchEvent::Shown(group)));
    }
    let names = |cluster: &Cluster| {
        let groups = cluster.groups();
        let workloads = groups.workloads.iter().map(|it| it.key.1.to_string());
        workloads.chain(groups.pod_groups.iter().map(|it| it.key.1.to_string())).collect()
    };
    let expected: Vec<String> = vec!["w".to_owned(), "g".to_owned()];
    assert_eq!(expected, names(&cluster));
    cluster.handle(Event::PodGroup(WatchEvent::Gone(pod_group("g", 15, "uid-a"))));
    let lists = [WatchEvent::ListBegins, WatchEvent::ListEnds("16".to_owned())];
    for event in lists {
        cluster.handle(Event::Workload(event));
    }
    let left: Vec<String> = names(&cluster);
    assert_eq!(left, Vec::<String>::new(), "a list lacks one, and the other is deleted");
}

#[test]
fn jobs_follow_the_workload_of_their_parent() {
    let mut cluster = cluster();
    cluster.0.serve_groups(true, &quiet());
    cluster.lists_groups();
    cluster.jobs(WatchEvent::Shown(follower(11)));
    let of_parent = |version, size| workload("w", version, ("JobSet", "p"), size);
    assert_eq!(cluster.shows_workload(of_parent(12, 2)), [synced()]);
    assert_eq!(cluster.groups().of_parent, Some(of_parent(12, 2)));
    assert_eq!(cluster.shows_workload(of_parent(13, 2)), [], "nothing that concerns the Job");
    assert_eq!(cluster.shows_workload(of_parent(14, 3)), [synced()]);
    let others = workload("o", 15, ("JobSet", "q"), 1);
    assert_eq!(cluster.shows_workload(others), []);
    let gone = Event::Workload(WatchEvent::Gone(of_parent(16, 3)));
    assert_eq!(cluster.handle(gone).entries, [synced()]);
    assert_eq!(cluster.groups().of_parent, None);
}

/// A sync before the watch shows what the last one made would take the Job for one without a
/// group.
#[test]
fn a_sync_waits_until_the_watches_show_what_was_made() {
    let mut cluster = cluster();
    cluster.0.serve_groups(true, &quiet());
    cluster.lists_groups();
    let job = Job::clone(&cluster.snapshot().job);
    cluster.remember(&job, MemoryUpdate::WorkloadWritten(Version(11)));
    cluster.remember(&job, MemoryUpdate::PodGroupWritten(Version(12)));
    let snapshot = cluster.snapshot();
    let (awaited, seen) = (snapshot.memory.awaited(), snapshot.seen);
    assert!(!seen.covers(&awaited), "{seen:?}");
    assert_eq!(cluster.0.await_versions(key(), awaited), []);
    assert_eq!(cluster.shows_workload(workload("w", 11, ("Job", "a"), 1)), []);
    let shown = Event::PodGroup(WatchEvent::Shown(pod_group("g", 12, "uid-a")));
    assert_eq!(cluster.handle(shown).entries, [synced()]);
    let snapshot = cluster.snapshot();
    assert!(snapshot.seen.covers(&snapshot.memory.awaited()));
    // Nothing is awaited from an API that serves none any more.
    cluster.remember(&job, MemoryUpdate::PodGroupWritten(Version(20)));
    cluster.0.serve_groups(false, &quiet());
    let snapshot = cluster.snapshot();
    assert!(snapshot.seen.covers(&snapshot.memory.awaited()));
}

#[test]
fn a_job_that_asks_for_a_group_asks_whether_the_api_serves_any() {
    let mut cluster = cluster();
    let asks =
        |cluster: &mut Cluster, job: Job| cluster.jobs(WatchEvent::Shown(job)).asks_for_group;
    assert!(!asks(&mut cluster, job("uid-a", 11, &json!({}))));
    assert!(asks(&mut cluster, follower(12)));
    cluster.0.serve_groups(true, &quiet());
    assert!(!asks(&mut cluster, follower(13)), "it is known");
}

/// Namespace, name, owner and what it is of, each by its number.
type Shape = (usize, usize, usize, usize);

/// A change of one of few Workloads and PodGroups.
#[derive(Clone, Debug)]
enum Step {
    Workload(Shape),
    PodGroup(Shape),
    WorkloadGone(usize, usize),
    PodGroupGone(usize, usize),
    /// Both are listed again, and some of them have gone meanwhile.
    Lists(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let shape = || (0..2_usize, 0..5_usize, 0..6_usize, 0..7_usize);
    prop_oneof![
        6 => shape().prop_map(Step::Workload),
        6 => shape().prop_map(Step::PodGroup),
        1 => (0..2_usize, 0..5_usize).prop_map(|(namespace, name)| {
            Step::WorkloadGone(namespace, name)
        }),
        1 => (0..2_usize, 0..5_usize).prop_map(|(namespace, name)| {
            Step::PodGroupGone(namespace, name)
        }),
        1 => (2..5_usize).prop_map(Step::Lists),
    ]
}

/// What the Job, its parent, its predecessor or others are named by, in `controllerRef`.
fn reference(number: usize) -> Value {
    let of = |group: &str, kind: &str, name: &str| json!({"apiGroup": group, "kind": kind, "name": name});
    [
        Value::Null,
        of("batch", "Job", "a"),
        of("batch", "Job", "b"),
        of("example.com", "Job", "a"),
        of("jobset.x-k8s.io", "JobSet", "p"),
        of("jobset.x-k8s.io", "JobSet", "q"),
        of("jobset.x-k8s.io", "JobSet", "a"),
    ][number]
        .clone()
}

fn metadata((namespace, name, owner, _): Shape, version: u64) -> Value {
    let owner_references = [
        json!([]),
        json!([{"kind": "Job", "name": "a", "uid": "uid-a", "apiVersion": "batch/v1",
                "controller": true}]),
        json!([{"kind": "Job", "name": "a", "uid": "uid-b", "apiVersion": "batch/v1",
                "controller": true}]),
        json!([{"kind": "JobSet", "name": "p", "uid": "uid-p",
                "apiVersion": "jobset.x-k8s.io/v1alpha2", "controller": true}]),
        json!([{"kind": "Job", "name": "a", "uid": "uid-a", "apiVersion": "batch/v1"}]),
        json!([{"kind": "Workload", "name": "w", "uid": "uid-w",
                "apiVersion": "scheduling.k8s.io/v1beta1"},
               {"kind": "Job", "name": "a", "uid": "uid-a", "apiVersion": "batch/v1",
                "controller": true}]),
    ][owner]
        .clone();
    let namespace = ["default", "other"][namespace];
    json!({"namespace": namespace, "name": format!("n{name}"),
           "uid": format!("uid-{version}"), "resourceVersion": version.to_string(),
           "ownerReferences": owner_references})
}

fn random_workload(shape: Shape, version: u64) -> Arc<Workload> {
    let template = |name: &str| json!({"name": name, "schedulingPolicy": {"basic": {}}});
    let templates: Vec<Value> =
        ["t", "u", "v"][..shape.1 % 3].iter().map(|it| template(it)).collect();
    let spec = json!({"controllerRef": reference(shape.3), "podGroupTemplates": templates});
    let workload = json!({"metadata": metadata(shape, version), "spec": spec});
    Arc::new(Workload::read(&workload.to_string()).expect("must be a Workload"))
}

fn random_pod_group(shape: Shape, version: u64) -> Arc<PodGroup> {
    let of = json!({"workloadName": format!("n{}", shape.3), "podGroupTemplateName": "t"});
    let spec = json!({"workloadRef": of, "schedulingPolicy": {"basic": {}}});
    let group = json!({"metadata": metadata(shape, version), "spec": spec});
    Arc::new(PodGroup::read(&group.to_string()).expect("must be a PodGroup"))
}

/// The Job `a` by each of these UIDs, parents and names of templates.
fn random_jobs() -> Vec<Job> {
    let parents = (0..7).map(reference);
    let uids = ["uid-a", "uid-b", "uid-c"];
    let all = parents.flat_map(|parent| uids.map(|uid| (parent.clone(), uid)));
    let jobs = all.map(|(parent, uid)| {
        let group = parent["apiGroup"].as_str().unwrap_or_default();
        let owner = json!([{"apiVersion": format!("{group}/v1"), "kind": parent["kind"],
                            "name": parent["name"], "uid": "uid-p", "controller": true}]);
        let owners = if parent.is_null() { json!([]) } else { owner };
        let job = json!({
            "metadata": {"name": "a", "namespace": "default", "uid": uid,
                         "resourceVersion": "1", "ownerReferences": owners,
                         "annotations": {"scheduling.k8s.io/group-template-name": "t"}},
            "spec": {"managedBy": "epilogue.dev/job-controller",
                     "selector": {"matchLabels": {"job": "a"}}},
        });
        WireJob::parse(job).and_then(WireJob::view).expect("must be a Job")
    });
    jobs.collect()
}

/// What the API has of one kind.
type Stored<T> = BTreeMap<(usize, usize), Arc<T>>;

/// Some of these objects go, without an event.
fn thinned<T>(stored: &mut Stored<T>, every: usize) {
    let mut number = 0;
    stored.retain(|_, _| {
        number += 1;
        number % every != 0
    });
}

impl Cluster {
    fn takes(&mut self, step: &Step, version: u64, api: &mut (Stored<Workload>, Stored<PodGroup>)) {
        match *step {
            Step::Workload(shape) => {
                let workload = random_workload(shape, version);
                api.0.insert((shape.0, shape.1), Arc::clone(&workload));
                self.handle(Event::Workload(WatchEvent::Shown(workload)));
            }
            Step::PodGroup(shape) => {
                let group = random_pod_group(shape, version);
                api.1.insert((shape.0, shape.1), Arc::clone(&group));
                self.handle(Event::PodGroup(WatchEvent::Shown(group)));
            }
            Step::WorkloadGone(namespace, name) => {
                if let Some(workload) = api.0.remove(&(namespace, name)) {
                    self.handle(Event::Workload(WatchEvent::Gone(workload)));
                }
            }
            Step::PodGroupGone(namespace, name) => {
                if let Some(group) = api.1.remove(&(namespace, name)) {
                    self.handle(Event::PodGroup(WatchEvent::Gone(group)));
                }
            }
            Step::Lists(every) => {
                thinned(&mut api.0, every);
                thinned(&mut api.1, every);
                let ends = version.to_string();
                self.handle(Event::Workload(WatchEvent::ListBegins));
                self.handle(Event::PodGroup(WatchEvent::ListBegins));
                for workload in api.0.values() {
                    self.handle(Event::Workload(WatchEvent::Shown(Arc::clone(workload))));
                }
                for group in api.1.values() {
                    self.handle(Event::PodGroup(WatchEvent::Shown(Arc::clone(group))));
                }
                self.handle(Event::Workload(WatchEvent::ListEnds(ends.clone())));
                self.handle(Event::PodGroup(WatchEvent::ListEnds(ends)));
            }
        }
    }
}

proptest! {
    /// `explain` walks over all objects of a namespace, and the controller looks up in an index.
    #[test]
    fn a_walk_and_the_index_find_the_same_groups_of_each_job(
        steps in proptest::collection::vec(step(), 1..40)
    ) {
        let mut cluster = cluster();
        cluster.0.serve_groups(true, &quiet());
        cluster.lists_groups();
        let (jobs, mut api) = (random_jobs(), (Stored::default(), Stored::default()));
        for (version, step) in (11..).zip(steps) {
            cluster.takes(&step, version, &mut api);
        }
        for job in &jobs {
            let listed = |(namespace, _): &(usize, usize)| *namespace == 0;
            let workloads = api.0.iter().filter(|(key, _)| listed(key)).map(|(_, it)| it);
            let pod_groups = api.1.iter().filter(|(key, _)| listed(key)).map(|(_, it)| it);
            let walked = JobGroups::of(job, workloads.cloned(), pod_groups.cloned());
            prop_assert_eq!(cluster.0.groups_of(job), Some(walked));
        }
    }
}
