//! Tests the cache with hand-written events.

use super::*;
use controller_core::batching::Change;
use controller_core::job::{Expectations, WrittenPod};
use controller_core::orphans::FormerJob;
use controller_core::view::WireJob;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("must be a time")
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

fn created(uid: &str, version: u64) -> MemoryUpdate {
    let (uid, name, version) = (uid.into(), uid.into(), Version(version));
    MemoryUpdate::Created(WrittenPod { uid, name, version })
}

fn cache() -> Cache {
    let cache = Cache::default();
    cache.jobs_begin();
    cache.job_shown(job("uid-a", 10, &json!({})), now());
    cache.jobs_end(Version(10), now());
    cache.pods_begin();
    cache.pods_end(Version(10));
    cache
}

fn memory(cache: &Cache) -> Memory {
    cache.snapshot(&key()).expect("must be there").memory
}

fn enqueues(reaction: &Reaction) -> Vec<Enqueue> {
    reaction.entries.iter().map(|entry| entry.enqueue.clone()).collect()
}

#[test]
fn a_created_pod_is_expected_until_it_is_seen_whichever_comes_first() {
    let cache = cache();
    let job = cache.snapshot(&key()).expect("must be there").job;
    cache.remember(&job, created("reply-first", 11), now());
    assert_eq!(memory(&cache).expectations.created.len(), 1);
    cache.pod_shown(pod("reply-first", 11, "Pending"));
    assert!(memory(&cache).expectations.created.is_empty());

    cache.pod_shown(pod("event-first", 12, "Pending"));
    cache.remember(&job, created("event-first", 12), now());
    assert!(memory(&cache).expectations.created.is_empty());
    assert_eq!(memory(&cache).written.pods, Version(12));
}

#[test]
fn a_list_shows_what_was_deleted_while_the_watch_was_broken() {
    let cache = cache();
    cache.pod_shown(pod("kept", 11, "Running"));
    cache.pod_shown(pod("lost", 12, "Running"));
    cache.pods_begin();
    assert!(enqueues(&cache.pod_shown(pod("kept", 11, "Running"))).is_empty());
    let reaction = cache.pods_end(Version(20));
    assert_eq!(enqueues(&reaction), [Enqueue::Batch(key(), Change::Ended)]);
    let snapshot = cache.snapshot(&key()).expect("must be there");
    assert_eq!(snapshot.pods.len(), 1);
    assert_eq!(snapshot.seen.pods, Version(20));
}

#[test]
fn a_pod_that_came_and_went_unseen_is_expected_no_longer_after_a_list() {
    let cache = cache();
    let job = cache.snapshot(&key()).expect("must be there").job;
    cache.remember(&job, created("before", 11), now());
    cache.pods_begin();
    cache.remember(&job, created("during", 12), now());
    cache.pods_end(Version(11));
    let expected: Vec<Uid> = memory(&cache).expectations.created.into_iter().collect();
    assert_eq!(expected, [Uid::from("during")], "the list may have been made before it");
}

#[test]
fn objects_of_a_list_say_nothing_of_how_far_the_watch_has_come() {
    let cache = cache();
    cache.pods_begin();
    cache.pod_shown(pod("late", 30, "Running"));
    assert_eq!(cache.snapshot(&key()).expect("must be there").seen.pods, Version(10));
    cache.pods_end(Version(31));
    assert_eq!(cache.snapshot(&key()).expect("must be there").seen.pods, Version(31));
    cache.pods_seen(Version(40));
    assert_eq!(cache.snapshot(&key()).expect("must be there").seen.pods, Version(40));
}

#[test]
fn a_stale_sync_comes_again_as_soon_as_the_watches_have_caught_up() {
    let cache = cache();
    let written = Versions { jobs: Version(15), pods: Version(12) };
    assert!(cache.await_versions(key(), written).entries.is_empty());
    assert!(cache.pods_seen(Version(12)).entries.is_empty());
    assert_eq!(enqueues(&cache.jobs_seen(Version(16))), [Enqueue::Sync(key())]);
    assert!(cache.jobs_seen(Version(17)).entries.is_empty(), "once");
    let caught_up = cache.await_versions(key(), written);
    assert_eq!(enqueues(&caught_up), [Enqueue::Sync(key())], "in between, too");
}

#[test]
fn memory_ends_with_the_job_and_with_its_end() {
    let cache = cache();
    let job_a = cache.snapshot(&key()).expect("must be there").job;
    cache.remember(&job_a, MemoryUpdate::JobWritten(Version(11)), now());
    let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    cache.job_shown(job("uid-a", 12, &complete), now());
    assert_eq!(memory(&cache), Memory::default());
    cache.remember(&job_a, MemoryUpdate::Finished, now());
    assert_eq!(memory(&cache), Memory::default(), "nothing is kept for a finished Job");

    cache.job_gone(&key(), Version(13), now());
    assert!(cache.snapshot(&key()).is_none());
    cache.remember(&job_a, MemoryUpdate::Finished, now());
    cache.job_shown(job("uid-b", 14, &json!({})), now());
    assert_eq!(memory(&cache), Memory::default(), "a namesake begins anew");
}

#[test]
fn a_namesake_inherits_no_expectation() {
    // Upstream drops those of the name since 1.37; ours belong to the UID. ([H4], [E1])
    let cache = cache();
    let job_a = cache.snapshot(&key()).expect("must be there").job;
    cache.remember(&job_a, created("unseen", 11), now());
    cache.remember(&job_a, MemoryUpdate::Deleting(vec!["deleted".into()]), now());
    cache.job_gone(&key(), Version(12), now());
    cache.job_shown(job("uid-b", 13, &json!({})), now());
    assert_eq!(memory(&cache).expectations, Expectations::default());
    cache.remember(&job_a, created("late", 14), now());
    assert_eq!(memory(&cache).expectations, Expectations::default(), "a late reply of the first");
}

#[test]
fn a_namesake_in_a_list_is_the_deletion_of_the_first_one() {
    let cache = cache();
    cache.jobs_begin();
    let reaction = cache.job_shown(job("uid-b", 20, &json!({})), now());
    let former = FormerJob::of(&job("uid-a", 10, &json!({})));
    let expected =
        [Enqueue::Sync(key()), Enqueue::Orphans(Orphans::OfJob(former)), Enqueue::Sync(key())];
    assert_eq!(enqueues(&reaction), expected);
    assert!(enqueues(&cache.jobs_end(Version(20), now())).is_empty());
}

#[test]
fn a_job_that_cannot_be_read_is_left_alone_with_its_pods() {
    let cache = cache();
    cache.pod_shown(pod("pod", 11, "Failed"));
    let one = Orphans::Pod("ns".into(), "pod".into());
    cache.job_unreadable(&JobKey::new("default", "other"), Version::default());
    cache.job_gone(&key(), Version(12), now());
    assert_eq!(cache.orphans(&one, false).len(), 1);
    cache.job_unreadable(&key(), Version::default());
    assert!(cache.orphans(&one, false).is_empty());
    assert!(cache.snapshot(&key()).is_none());
    cache.job_shown(job("uid-a", 13, &json!({})), now());
    assert!(cache.snapshot(&key()).is_some(), "until it can be read");
}

#[test]
fn a_job_rests_while_one_of_its_pods_cannot_be_read() {
    let cache = cache();
    let unreadable = |version| {
        let owner = Some(Uid::from("uid-a"));
        cache.pod_unreadable("odd".into(), owner, Version(version)).1
    };
    let reported = unreadable(11).expect("its Job must be known");
    assert_eq!(reported.key, key());
    assert!(cache.snapshot(&key()).is_none());
    let reaction = cache.pod_shown(pod("odd", 12, "Failed"));
    assert!(enqueues(&reaction).contains(&Enqueue::Sync(key())), "{reaction:?}");
    assert_eq!(cache.snapshot(&key()).expect("must go on").pods.len(), 1);

    unreadable(13);
    cache.pods_begin();
    unreadable(13);
    assert!(enqueues(&cache.pods_end(Version(13))).is_empty(), "it is still there");
    assert!(cache.snapshot(&key()).is_none());
    let reaction = cache.pod_gone(&"odd".into(), Version(14));
    assert!(enqueues(&reaction).contains(&Enqueue::Sync(key())), "{reaction:?}");

    unreadable(15);
    cache.pods_begin();
    assert_eq!(enqueues(&cache.pods_end(Version(20))), [Enqueue::Sync(key())]);
    assert!(cache.snapshot(&key()).expect("must go on").pods.is_empty());
}

#[test]
fn the_pods_of_a_former_job_are_found_by_owner_and_by_selector() {
    let cache = cache();
    cache.pod_shown(pod("owned", 11, "Failed"));
    let mut stray = pod("stray", 12, "Failed");
    stray.metadata.owner_references = None;
    cache.pod_shown(stray);
    let former = Orphans::OfJob(FormerJob::of(&job("uid-a", 10, &json!({}))));
    assert_eq!(cache.orphans(&former, false).len(), 1, "a running Job keeps its own");
    cache.job_gone(&key(), Version(13), now());
    assert_eq!(cache.orphans(&former, false).len(), 2);
}

#[test]
fn facts_of_a_batch_are_those_after_the_event() {
    let cache = cache();
    let reaction = cache.pod_shown(pod("pod", 11, "Running"));
    let (_, counts) = reaction.entries[0].facts.clone().expect("must have facts");
    assert_eq!(counts.active, 1);
    let reaction = cache.pod_shown(pod("pod", 12, "Succeeded"));
    let (_, counts) = reaction.entries[0].facts.clone().expect("must have facts");
    assert_eq!((counts.active, counts.tracked_succeeded), (0, 1));
    assert_eq!(reaction.tracked_terminal, ["add"]);
}
