//! Tests the state with hand-written events.

mod boots;
mod disruptions;
mod groups;
mod restored;
mod strays;

use super::*;
use crate::job::{Expectations, Memory};
use crate::orphans::FormerJob;
use crate::view::WireJob;
use epilogue_common::watch_event::{Controller, Unreadable};
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("must be a time")
}

fn quiet() -> Now {
    Now { time: now(), elapsed: Moment::ZERO, has_backlog: false, is_limited: false }
}

fn key() -> JobKey {
    JobKey::new("default", "a")
}

fn job(uid: &str, version: u64, status: &Value) -> Job {
    let job = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": uid,
                     "resourceVersion": version.to_string(), "generation": 1},
        "spec": {"managedBy": "epilogue.dev/job-controller",
                 "selector": {"matchLabels": {"job": "a"}}},
        "status": status,
    });
    WireJob::parse(job).and_then(WireJob::view).expect("must be a Job")
}

fn pod(uid: &str, version: u64, phase: &str) -> WirePod {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a",
                       "controller": true});
    let pod = json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid,
                     "resourceVersion": version.to_string(), "labels": {"job": "a"},
                     "finalizers": ["batch.kubernetes.io/job-tracking"],
                     "ownerReferences": [owner]},
        "status": {"phase": phase},
    });
    serde_json::from_value(pod).expect("must be a pod")
}

fn created(version: u64) -> MemoryUpdate {
    MemoryUpdate::Created(Version(version))
}

/// A state that is not busy, driven by one call for each event.
#[derive(Default)]
struct Cluster(ClusterState);

impl Cluster {
    fn handle(&mut self, event: Event) -> Reaction {
        let now = quiet();
        self.0.handle(event, &now)
    }

    fn jobs(&mut self, event: WatchEvent<Job>) -> Reaction {
        self.handle(Event::Job(event.map(Arc::new)))
    }

    fn pods(&mut self, event: WatchEvent<WirePod>) -> Reaction {
        let now = quiet();
        self.0.handle_pod(event, &now)
    }

    fn jobs_end(&mut self, version: u64) -> Reaction {
        self.jobs(WatchEvent::ListEnds(version.to_string()))
    }

    fn job_gone(&mut self, version: u64) -> Reaction {
        self.jobs(WatchEvent::Gone(job("uid-a", version, &json!({}))))
    }

    fn job_unreadable(&mut self, name: &str) {
        let job = Unreadable {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            ..Unreadable::default()
        };
        self.jobs(WatchEvent::Unreadable(Box::new(job)));
    }

    fn pods_begin(&mut self) {
        self.pods(WatchEvent::ListBegins);
    }

    fn pods_end(&mut self, version: u64) -> Reaction {
        self.pods(WatchEvent::ListEnds(version.to_string()))
    }

    fn pod_shown(&mut self, pod: WirePod) -> Reaction {
        self.pods(WatchEvent::Shown(pod))
    }

    fn snapshot(&self) -> Snapshot {
        self.0.input(&key(), &quiet()).expect("must be there")
    }

    fn remember(&mut self, job: &Job, change: MemoryUpdate) {
        self.0.remember(job, change, now());
    }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({}))));
    cluster.jobs_end(10);
    cluster.pods_begin();
    cluster.pods_end(10);
    cluster
}

fn at_once() -> Entry {
    Entry::Job(key(), None)
}

fn batched(millis: u64) -> Entry {
    Entry::Job(key(), Some(Duration::from_millis(millis)))
}

fn memory(cluster: &Cluster) -> Memory {
    cluster.snapshot().memory
}

#[test]
fn a_created_pod_is_awaited_until_the_watch_has_come_as_far() {
    let mut cluster = cluster();
    let job = cluster.snapshot().job;
    cluster.remember(&job, created(12));
    let is_awaited = |cluster: &Cluster| {
        let Snapshot { memory, seen, .. } = cluster.snapshot();
        memory.awaited().pods > seen.pods
    };
    cluster.pod_shown(pod("another", 11, "Pending"));
    assert!(is_awaited(&cluster));
    cluster.pod_shown(pod("created", 12, "Pending"));
    assert!(!is_awaited(&cluster));
    cluster.remember(&job, created(12));
    assert!(!is_awaited(&cluster), "the reply came after the event");
}

#[test]
fn a_list_shows_what_was_deleted_while_the_watch_was_broken() {
    let mut cluster = cluster();
    cluster.pod_shown(pod("kept", 11, "Running"));
    cluster.pod_shown(pod("lost", 12, "Running"));
    cluster.pods_begin();
    assert!(cluster.pod_shown(pod("kept", 11, "Running")).entries.is_empty());
    let reaction = cluster.pods_end(20);
    assert_eq!(reaction.entries, [batched(20)]);
    let snapshot = cluster.snapshot();
    assert_eq!(snapshot.pods.len(), 1);
    assert_eq!(snapshot.seen.pods, Version(20));
}

#[test]
fn objects_of_a_list_say_nothing_of_how_far_the_watch_has_come() {
    let mut cluster = cluster();
    cluster.pods_begin();
    cluster.pod_shown(pod("late", 30, "Running"));
    assert_eq!(cluster.snapshot().seen.pods, Version(10));
    cluster.pods_end(31);
    assert_eq!(cluster.snapshot().seen.pods, Version(31));
    cluster.pods(WatchEvent::UpTo("40".to_owned()));
    assert_eq!(cluster.snapshot().seen.pods, Version(40));
}

#[test]
fn a_stale_sync_comes_again_as_soon_as_the_watches_have_caught_up() {
    let mut cluster = cluster();
    let written = Versions { jobs: Version(15), pods: Version(12), ..Versions::default() };
    assert!(cluster.0.await_versions(key(), written).is_empty());
    assert!(cluster.pods(WatchEvent::UpTo("12".to_owned())).entries.is_empty());
    assert_eq!(cluster.jobs(WatchEvent::UpTo("16".to_owned())).entries, [at_once()]);
    assert!(cluster.jobs(WatchEvent::UpTo("17".to_owned())).entries.is_empty(), "once");
    let caught_up = cluster.0.await_versions(key(), written);
    assert_eq!(caught_up, [at_once()], "in between, too");
}

/// Jobs and pods may be in different etcds, whose versions do not compare.
#[test]
fn what_was_counted_before_the_pods_were_listed_awaits_no_version_of_theirs() {
    let counted = |count: i32| json!({"succeeded": count});
    let awaited = |cluster: &Cluster| memory(cluster).awaited().pods;
    let mut cluster = Cluster::default();
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 1_000, &counted(1))));
    cluster.jobs_end(1_000);
    cluster.pods_begin();
    cluster.pods_end(10);
    assert_eq!(awaited(&cluster), Version(0), "the first lists");

    cluster.jobs(WatchEvent::Shown(job("uid-a", 1_010, &counted(2))));
    assert_eq!(awaited(&cluster), Version(1_010), "another process counts");
    cluster.0.expect_pods();
    assert_eq!(awaited(&cluster), Version(0), "as a leader lists them");
    cluster.jobs(WatchEvent::Shown(job("uid-a", 1_020, &counted(3))));
    assert_eq!(awaited(&cluster), Version(1_020), "while they are listed");

    let mut cluster = Cluster::default();
    cluster.pods_begin();
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 1_000, &counted(1))));
    cluster.jobs_end(1_000);
    cluster.pods_end(10);
    assert_eq!(awaited(&cluster), Version(1_000), "the pods may be older than the Job");
}

#[test]
fn memory_ends_with_the_job_and_with_its_end() {
    let mut cluster = cluster();
    let job_a = cluster.snapshot().job;
    cluster.remember(&job_a, MemoryUpdate::JobWritten(Version(11)));
    let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    cluster.jobs(WatchEvent::Shown(job("uid-a", 12, &complete)));
    assert_eq!(memory(&cluster), Memory::default());
    cluster.remember(&job_a, MemoryUpdate::Finished);
    assert_eq!(memory(&cluster), Memory::default(), "nothing is kept for a finished Job");

    cluster.job_gone(13);
    assert!(cluster.0.input(&key(), &quiet()).is_none());
    cluster.remember(&job_a, MemoryUpdate::Finished);
    cluster.jobs(WatchEvent::Shown(job("uid-b", 14, &json!({}))));
    assert_eq!(memory(&cluster), Memory::default(), "a namesake begins anew");
}

#[test]
fn pods_that_are_seen_before_their_finished_job_lose_their_finalizer() {
    let mut cluster = Cluster::default();
    assert!(cluster.pod_shown(pod("p", 5, "Failed")).entries.is_empty());
    let finished = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let entries = cluster.jobs(WatchEvent::Shown(job("uid-a", 6, &finished))).entries;
    let check = Entry::Orphans(Orphans::Pod("default".into(), "p".into()), None);
    assert_eq!(entries, [check, at_once()]);
}

#[test]
fn a_namesake_inherits_no_expectation() {
    // Upstream drops those of the name since 1.37; ours belong to the UID. ([H4], [E1])
    let mut cluster = cluster();
    let job_a = cluster.snapshot().job;
    cluster.remember(&job_a, created(11));
    cluster.remember(&job_a, MemoryUpdate::Deleting(vec!["deleted".into()]));
    cluster.job_gone(12);
    cluster.jobs(WatchEvent::Shown(job("uid-b", 13, &json!({}))));
    assert_eq!(memory(&cluster).expectations, Expectations::default());
    cluster.remember(&job_a, MemoryUpdate::Deleting(vec!["late".into()]));
    assert_eq!(memory(&cluster).expectations, Expectations::default(), "a late reply of the first");
}

#[test]
fn a_namesake_in_a_list_is_the_deletion_of_the_first_one() {
    let mut cluster = cluster();
    cluster.jobs(WatchEvent::ListBegins);
    let reaction = cluster.jobs(WatchEvent::Shown(job("uid-b", 20, &json!({}))));
    let former = FormerJob::of(&job("uid-a", 10, &json!({})));
    let expected = [at_once(), Entry::Orphans(Orphans::OfJob(former), None), at_once()];
    assert_eq!(reaction.entries, expected);
    assert!(cluster.jobs_end(20).entries.is_empty());
}

#[test]
fn a_job_that_cannot_be_read_is_left_alone_with_its_pods() {
    let mut cluster = cluster();
    cluster.pod_shown(pod("pod", 11, "Failed"));
    let one = Orphans::Pod("ns".into(), "pod".into());
    cluster.job_unreadable("other");
    cluster.job_gone(12);
    assert_eq!(cluster.0.orphans(&one, false).len(), 1);
    cluster.job_unreadable("a");
    assert!(cluster.0.orphans(&one, false).is_empty());
    assert!(cluster.0.input(&key(), &quiet()).is_none());
    cluster.jobs(WatchEvent::Shown(job("uid-a", 13, &json!({}))));
    assert!(cluster.0.input(&key(), &quiet()).is_some(), "until it can be read");
}

/// A deletion in foreground waits for the finalizers of its pods.
#[test]
fn the_pods_of_a_job_that_cannot_be_read_are_freed_once_it_is_being_deleted() {
    let unreadable = |managed_by: Option<&str>, deleting| {
        let odd = Unreadable {
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: "uid-a".to_owned(),
            version: "12".to_owned(),
            managed_by: managed_by.map(str::to_owned),
            deleting,
            ..Unreadable::default()
        };
        WatchEvent::Unreadable(Box::new(odd))
    };
    let ours = Some("epilogue.dev/job-controller");
    for (managed_by, deleting, freed) in
        [(ours, true, true), (ours, false, false), (None, true, false), (Some("x/y"), true, false)]
    {
        let mut cluster = cluster();
        cluster.pod_shown(pod("p", 11, "Running"));
        let pod_of = Orphans::Pod("default".into(), "p".into());
        let reaction = cluster.jobs(unreadable(managed_by, deleting));
        let is_queued = reaction.entries.contains(&Entry::Orphans(pod_of.clone(), None));
        let found = !cluster.0.orphans(&pod_of, false).is_empty();
        assert_eq!((is_queued, found), (freed, freed), "{managed_by:?} {deleting}");
        assert!(cluster.0.input(&key(), &quiet()).is_none());
        // The API still has the Job, which proves nothing then.
        assert!(cluster.0.knows(&key(), &"uid-a".into()), "{managed_by:?} {deleting}");
        cluster.jobs(WatchEvent::Shown(job("uid-a", 13, &json!({}))));
        assert!(cluster.0.input(&key(), &quiet()).is_some(), "it can be read again");
        assert!(cluster.0.orphans(&pod_of, false).is_empty());
        cluster.jobs(unreadable(managed_by, deleting));
        cluster.job_gone(14);
        assert!(!cluster.0.knows(&key(), &"uid-a".into()));
    }
}

#[test]
fn a_job_rests_while_one_of_its_pods_cannot_be_read() {
    let mut cluster = cluster();
    let unreadable = |version: u64| {
        let owner = Controller { kind: "Job".into(), name: "a".into(), uid: "uid-a".into() };
        let (uid, version) = ("odd".to_owned(), version.to_string());
        let namespace = "default".to_owned();
        let odd =
            Unreadable { namespace, uid, version, owner: Some(owner), ..Unreadable::default() };
        WatchEvent::Unreadable(Box::new(odd))
    };
    let reported = cluster.pods(unreadable(11)).rests.expect("its Job must be known");
    assert_eq!(reported.key, key());
    assert!(cluster.0.input(&key(), &quiet()).is_none());
    let reaction = cluster.pod_shown(pod("odd", 12, "Failed"));
    assert!(reaction.entries.contains(&at_once()), "{reaction:?}");
    assert_eq!(cluster.snapshot().pods.len(), 1);

    cluster.pods(unreadable(13));
    cluster.pods_begin();
    cluster.pods(unreadable(13));
    assert!(cluster.pods_end(13).entries.is_empty(), "it is still there");
    assert!(cluster.0.input(&key(), &quiet()).is_none());
    let reaction = cluster.pods(WatchEvent::Gone(pod("odd", 14, "Failed")));
    assert!(reaction.entries.contains(&at_once()), "{reaction:?}");

    cluster.pods(unreadable(15));
    cluster.pods_begin();
    assert_eq!(cluster.pods_end(20).entries, [at_once()]);
    assert!(cluster.snapshot().pods.is_empty());
}

/// Who may create pods in one namespace can give them the UID of a Job in another.
#[test]
fn a_pod_of_another_namespace_neither_counts_for_a_job_nor_holds_it_up() {
    let mut cluster = cluster();
    cluster.pod_shown(pod("own", 11, "Running"));
    let mut foreign = pod("foreign", 12, "Failed");
    foreign.metadata.namespace = Some("other".to_owned());
    assert!(cluster.pod_shown(foreign).rests.is_none());
    let names = |cluster: &Cluster| -> Vec<String> {
        cluster.snapshot().pods.iter().map(|pod| pod.name.to_string()).collect()
    };
    assert_eq!(names(&cluster), ["own"]);
    let owner = Controller { kind: "Job".into(), name: "a".into(), uid: "uid-a".into() };
    let odd = Unreadable {
        namespace: "other".to_owned(),
        uid: "odd".to_owned(),
        version: "13".to_owned(),
        owner: Some(owner),
        ..Unreadable::default()
    };
    assert!(cluster.pods(WatchEvent::Unreadable(Box::new(odd))).rests.is_none());
    assert_eq!(names(&cluster), ["own"], "the Job goes on");
}

#[test]
fn the_pods_of_a_former_job_are_found_by_owner_and_by_selector() {
    let mut cluster = cluster();
    cluster.pod_shown(pod("owned", 11, "Failed"));
    let mut stray = pod("stray", 12, "Failed");
    stray.metadata.owner_references = None;
    cluster.pod_shown(stray);
    let former = Orphans::OfJob(FormerJob::of(&job("uid-a", 10, &json!({}))));
    assert_eq!(cluster.0.orphans(&former, false).len(), 1, "a running Job keeps its own");
    cluster.job_gone(13);
    assert_eq!(cluster.0.orphans(&former, false).len(), 2);
}

#[test]
fn a_batch_is_delayed_by_the_pods_after_the_event() {
    let mut cluster = cluster();
    assert_eq!(cluster.pod_shown(pod("pod", 11, "Running")).entries, [batched(1000)]);
    let reaction = cluster.pod_shown(pod("pod", 12, "Succeeded"));
    assert_eq!(reaction.entries, [batched(0)], "no other pod can end within the second");
    assert_eq!(reaction.tracked_terminal, ["add"]);
}

#[test]
fn a_batch_waits_its_second_while_jobs_wait_for_workers() {
    let mut cluster = cluster();
    for uid in ["one", "two", "three"] {
        cluster.pod_shown(pod(uid, 11, "Running"));
    }
    let mut ended = |uid: &str, has_backlog: bool| {
        let event = WatchEvent::Shown(pod(uid, 12, "Failed"));
        let now = Now { time: now(), elapsed: Moment::ZERO, has_backlog, is_limited: false };
        cluster.0.handle_pod(event, &now).entries
    };
    assert_eq!(ended("one", false), [batched(40)]);
    assert_eq!(ended("two", true), [batched(1000)]);
}
