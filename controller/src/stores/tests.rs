//! The stores, fed by hand.

use super::*;
use controller_core::job::WrittenPod;
use controller_core::orphans::FormerJob;
use controller_core::pace::Change;
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

fn created(uid: &str, version: u64) -> Recollection {
    let (uid, name, version) = (uid.into(), uid.into(), Version(version));
    Recollection::Created(WrittenPod { uid, name, version })
}

fn stores() -> Stores {
    let stores = Stores::default();
    stores.jobs_begin();
    stores.job_shown(job("uid-a", 10, &json!({})), now());
    stores.jobs_end(Version(10), now());
    stores.pods_begin();
    stores.pods_end(Version(10));
    stores
}

fn memory(stores: &Stores) -> Memory {
    stores.snapshot(&key()).expect("must be there").memory
}

fn triggers(reaction: &Reaction) -> Vec<Trigger> {
    reaction.entries.iter().map(|entry| entry.trigger.clone()).collect()
}

#[test]
fn a_created_pod_is_expected_until_it_is_seen_whichever_comes_first() {
    let stores = stores();
    let job = stores.snapshot(&key()).expect("must be there").job;
    stores.remember(&job, created("reply-first", 11), now());
    assert_eq!(memory(&stores).expectations.created.len(), 1);
    stores.pod_shown(pod("reply-first", 11, "Pending"));
    assert!(memory(&stores).expectations.created.is_empty());

    stores.pod_shown(pod("event-first", 12, "Pending"));
    stores.remember(&job, created("event-first", 12), now());
    assert!(memory(&stores).expectations.created.is_empty());
    assert_eq!(memory(&stores).written.pods, Version(12));
}

#[test]
fn a_list_tells_of_what_was_deleted_while_the_watch_was_broken() {
    let stores = stores();
    stores.pod_shown(pod("kept", 11, "Running"));
    stores.pod_shown(pod("lost", 12, "Running"));
    stores.pods_begin();
    assert!(triggers(&stores.pod_shown(pod("kept", 11, "Running"))).is_empty());
    let reaction = stores.pods_end(Version(20));
    assert_eq!(triggers(&reaction), [Trigger::Batch(key(), Change::Ended)]);
    let snapshot = stores.snapshot(&key()).expect("must be there");
    assert_eq!(snapshot.pods.len(), 1);
    assert_eq!(snapshot.seen.pods, Version(20));
}

#[test]
fn a_pod_that_came_and_went_unseen_is_expected_no_longer_after_a_list() {
    let stores = stores();
    let job = stores.snapshot(&key()).expect("must be there").job;
    stores.remember(&job, created("before", 11), now());
    stores.pods_begin();
    stores.remember(&job, created("during", 12), now());
    stores.pods_end(Version(11));
    let expected: Vec<Uid> = memory(&stores).expectations.created.into_iter().collect();
    assert_eq!(expected, [Uid::from("during")], "the list may have been made before it");
}

#[test]
fn objects_of_a_list_say_nothing_of_how_far_the_watch_has_come() {
    let stores = stores();
    stores.pods_begin();
    stores.pod_shown(pod("late", 30, "Running"));
    assert_eq!(stores.snapshot(&key()).expect("must be there").seen.pods, Version(10));
    stores.pods_end(Version(31));
    assert_eq!(stores.snapshot(&key()).expect("must be there").seen.pods, Version(31));
    stores.pods_seen(Version(40));
    assert_eq!(stores.snapshot(&key()).expect("must be there").seen.pods, Version(40));
}

#[test]
fn a_stale_sync_comes_again_as_soon_as_the_watches_have_caught_up() {
    let stores = stores();
    let written = Versions { jobs: Version(15), pods: Version(12) };
    assert!(stores.await_versions(key(), written).entries.is_empty());
    assert!(stores.pods_seen(Version(12)).entries.is_empty());
    assert_eq!(triggers(&stores.jobs_seen(Version(16))), [Trigger::Sync(key())]);
    assert!(stores.jobs_seen(Version(17)).entries.is_empty(), "once");
    let caught_up = stores.await_versions(key(), written);
    assert_eq!(triggers(&caught_up), [Trigger::Sync(key())], "in between, too");
}

#[test]
fn memory_ends_with_the_job_and_with_its_end() {
    let stores = stores();
    let job_a = stores.snapshot(&key()).expect("must be there").job;
    stores.remember(&job_a, Recollection::JobWritten(Version(11)), now());
    let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    stores.job_shown(job("uid-a", 12, &complete), now());
    assert_eq!(memory(&stores), Memory::default());
    stores.remember(&job_a, Recollection::Finished, now());
    assert_eq!(memory(&stores), Memory::default(), "nothing is kept for a finished Job");

    stores.job_gone(&key(), Version(13), now());
    assert!(stores.snapshot(&key()).is_none());
    stores.remember(&job_a, Recollection::Finished, now());
    stores.job_shown(job("uid-b", 14, &json!({})), now());
    assert_eq!(memory(&stores), Memory::default(), "a namesake begins anew");
}

#[test]
fn a_namesake_in_a_list_is_the_deletion_of_the_first_one() {
    let stores = stores();
    stores.jobs_begin();
    let reaction = stores.job_shown(job("uid-b", 20, &json!({})), now());
    let former = FormerJob::of(&job("uid-a", 10, &json!({})));
    let expected =
        [Trigger::Sync(key()), Trigger::Orphans(Orphans::OfJob(former)), Trigger::Sync(key())];
    assert_eq!(triggers(&reaction), expected);
    assert!(triggers(&stores.jobs_end(Version(20), now())).is_empty());
}

#[test]
fn a_job_that_cannot_be_read_is_left_alone_with_its_pods() {
    let stores = stores();
    stores.pod_shown(pod("pod", 11, "Failed"));
    let one = Orphans::Pod("ns".into(), "pod".into());
    stores.job_unreadable(&JobKey::new("default", "other"), Version::default());
    stores.job_gone(&key(), Version(12), now());
    assert_eq!(stores.orphans(&one, false).len(), 1);
    stores.job_unreadable(&key(), Version::default());
    assert!(stores.orphans(&one, false).is_empty());
    assert!(stores.snapshot(&key()).is_none());
    stores.job_shown(job("uid-a", 13, &json!({})), now());
    assert!(stores.snapshot(&key()).is_some(), "until it can be read");
}

#[test]
fn a_job_rests_while_one_of_its_pods_cannot_be_read() {
    let stores = stores();
    let unreadable = |version| {
        let owner = Some(Uid::from("uid-a"));
        stores.pod_unreadable("odd".into(), owner, Version(version)).1
    };
    let told = unreadable(11).expect("its Job must be known");
    assert_eq!(told.key, key());
    assert!(stores.snapshot(&key()).is_none());
    let reaction = stores.pod_shown(pod("odd", 12, "Failed"));
    assert!(triggers(&reaction).contains(&Trigger::Sync(key())), "{reaction:?}");
    assert_eq!(stores.snapshot(&key()).expect("must go on").pods.len(), 1);

    unreadable(13);
    stores.pods_begin();
    unreadable(13);
    assert!(triggers(&stores.pods_end(Version(13))).is_empty(), "it is still there");
    assert!(stores.snapshot(&key()).is_none());
    let reaction = stores.pod_gone(&"odd".into(), Version(14));
    assert!(triggers(&reaction).contains(&Trigger::Sync(key())), "{reaction:?}");

    unreadable(15);
    stores.pods_begin();
    assert_eq!(triggers(&stores.pods_end(Version(20))), [Trigger::Sync(key())]);
    assert!(stores.snapshot(&key()).expect("must go on").pods.is_empty());
}

#[test]
fn the_pods_of_a_former_job_are_found_by_owner_and_by_selector() {
    let stores = stores();
    stores.pod_shown(pod("owned", 11, "Failed"));
    let mut stray = pod("stray", 12, "Failed");
    stray.metadata.owner_references = None;
    stores.pod_shown(stray);
    let former = Orphans::OfJob(FormerJob::of(&job("uid-a", 10, &json!({}))));
    assert_eq!(stores.orphans(&former, false).len(), 1, "a running Job keeps its own");
    stores.job_gone(&key(), Version(13), now());
    assert_eq!(stores.orphans(&former, false).len(), 2);
}

#[test]
fn facts_of_a_batch_are_those_after_the_event() {
    let stores = stores();
    let reaction = stores.pod_shown(pod("pod", 11, "Running"));
    let (_, counts) = reaction.entries[0].facts.clone().expect("must have facts");
    assert_eq!(counts.active, 1);
    let reaction = stores.pod_shown(pod("pod", 12, "Succeeded"));
    let (_, counts) = reaction.entries[0].facts.clone().expect("must have facts");
    assert_eq!((counts.active, counts.tracked_succeeded), (0, 1));
    assert_eq!(reaction.tracked_terminal, ["add"]);
}
