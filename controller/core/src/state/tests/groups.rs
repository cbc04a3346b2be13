//! Tests Workloads and PodGroups in the state: whom they concern, and that no Job is synced before
//! they are known.

use super::*;
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

    fn groups(&self) -> crate::job::JobGroups {
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
    assert_eq!(cluster.groups(), crate::job::JobGroups::default());
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
