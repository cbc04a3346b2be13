//! Tests that nothing is left of what the watches showed, once the API has gone back to an earlier
//! version, and that nothing is decided before all is listed again.

use super::*;

/// All lists of an API that has gone back: a Job and a pod of it at these versions.
fn listed(cluster: &mut Cluster, job_version: u64, pods: Vec<WirePod>, end: u64) -> Vec<Entry> {
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs(WatchEvent::Shown(job("uid-a", job_version, &json!({}))));
    let mut entries = cluster.jobs_end(end).entries;
    assert!(entries.is_empty(), "pods are missing: {entries:?}");
    assert!(cluster.0.input(&key(), &quiet()).is_none(), "a Job of today, pods of the past");
    cluster.pods_begin();
    for pod in pods {
        cluster.pod_shown(pod);
    }
    entries.extend(cluster.pods_end(end).entries);
    entries
}

/// A Job whose pods have changed since version 50 in ways that a sync remembers.
fn with_memories() -> Cluster {
    let mut cluster = cluster();
    cluster.pod_shown(pod("counted", 40, "Succeeded"));
    cluster.pod_shown(pod("deleted", 41, "Running"));
    let job_a = cluster.snapshot().job;
    cluster.remember(&job_a, MemoryUpdate::RemovingFinalizer(vec!["counted".into()]));
    cluster.remember(&job_a, MemoryUpdate::Deleting(vec!["deleted".into()]));
    cluster.remember(&job_a, MemoryUpdate::JobWritten(Version(120)));
    cluster.remember(&job_a, created(130));
    cluster.remember(&job_a, MemoryUpdate::Finished);
    cluster.jobs(WatchEvent::UpTo("120".to_owned()));
    cluster.pods(WatchEvent::UpTo("120".to_owned()));
    cluster
}

#[test]
fn nothing_is_remembered_of_what_a_restored_api_has_not_seen() {
    let mut cluster = with_memories();
    assert_ne!(memory(&cluster), Memory::default());
    let reaction = cluster.jobs(WatchEvent::Restored);
    assert!(reaction.relist && reaction.entries.is_empty(), "{reaction:?}");
    assert!(cluster.0.input(&key(), &quiet()).is_none());

    let pods = vec![pod("counted", 40, "Succeeded"), pod("deleted", 41, "Running")];
    let entries = listed(&mut cluster, 10, pods, 50);
    assert!(entries.contains(&at_once()), "{entries:?}");
    let snapshot = cluster.snapshot();
    assert_eq!(snapshot.memory, Memory::default());
    let seen = Versions { jobs: Version(50), pods: Version(50), ..Versions::default() };
    assert_eq!(snapshot.seen, seen);
    assert_eq!(snapshot.pods.len(), 2);
    assert!(snapshot.pods.iter().all(|pod| pod.tracked));
    cluster.remember(&snapshot.job, created(60));
    assert_eq!(memory(&cluster).awaited().pods, Version(60), "versions count on from here");
}

#[test]
fn pods_that_a_restored_api_does_not_have_are_gone() {
    let mut cluster = with_memories();
    cluster.pods(WatchEvent::Restored);
    listed(&mut cluster, 10, vec![], 50);
    assert!(cluster.snapshot().pods.is_empty());
}

#[test]
fn a_watch_whose_list_is_awaited_asks_for_no_second_one() {
    let mut cluster = with_memories();
    assert!(cluster.jobs(WatchEvent::Restored).relist);
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({}))));
    cluster.jobs_end(50);
    assert!(!cluster.pods(WatchEvent::Restored).relist);
    cluster.pods_begin();
    assert!(cluster.pods_end(50).entries.contains(&at_once()), "the Jobs are still known");
    assert!(cluster.jobs(WatchEvent::Restored).relist, "another time");
}

#[test]
fn a_list_that_had_begun_before_is_not_the_one_that_is_awaited() {
    let mut cluster = with_memories();
    cluster.pods_begin();
    cluster.pod_shown(pod("counted", 40, "Succeeded"));
    assert!(cluster.jobs(WatchEvent::Restored).relist);
    // The rest of the list lacks what was shown before.
    cluster.pod_shown(pod("deleted", 41, "Running"));
    cluster.pods_end(50);
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({}))));
    assert!(cluster.jobs_end(50).entries.is_empty());
    assert!(cluster.0.input(&key(), &quiet()).is_none(), "a pod would be created again");
    let pods = vec![pod("counted", 40, "Succeeded"), pod("deleted", 41, "Running")];
    cluster.pods_begin();
    for pod in pods {
        cluster.pod_shown(pod);
    }
    assert!(cluster.pods_end(51).entries.contains(&at_once()));
    assert_eq!(cluster.snapshot().pods.len(), 2);
}

#[test]
fn an_older_version_than_a_watch_has_shown_is_one_of_a_restored_api() {
    let older: [fn(&mut Cluster) -> Reaction; 4] = [
        |cluster| cluster.jobs(WatchEvent::Shown(job("uid-a", 9, &json!({})))),
        |cluster| cluster.pod_shown(pod("counted", 39, "Running")),
        |cluster| cluster.jobs_end(119),
        |cluster| cluster.pods_end(119),
    ];
    for (number, show) in older.into_iter().enumerate() {
        let mut cluster = with_memories();
        if number > 1 {
            cluster.jobs(WatchEvent::ListBegins);
            cluster.pods_begin();
        }
        assert!(show(&mut cluster).relist, "{number}");
        assert!(cluster.0.input(&key(), &quiet()).is_none(), "{number}");
        listed(&mut cluster, 10, vec![pod("counted", 39, "Running")], 50);
        assert_eq!(memory(&cluster), Memory::default(), "{number}");
    }
    // The same version, a namesake, and versions that are no numbers are none.
    let same: [fn(&mut Cluster) -> Reaction; 4] = [
        |cluster| cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({})))),
        |cluster| cluster.jobs(WatchEvent::Shown(job("uid-b", 9, &json!({})))),
        |cluster| cluster.pod_shown(pod("counted", 40, "Succeeded")),
        |cluster| cluster.pods(WatchEvent::ListEnds("opaque".to_owned())),
    ];
    for (number, show) in same.into_iter().enumerate() {
        assert!(!show(&mut with_memories()).relist, "{number}");
    }
}

#[test]
fn no_finalizer_goes_while_lists_are_awaited() {
    let mut cluster = with_memories();
    let one = Orphans::Pod("ns".into(), "counted".into());
    cluster.job_gone(121);
    assert_eq!(cluster.0.orphans(&one, false).len(), 1);
    cluster.pods(WatchEvent::Restored);
    cluster.pods_begin();
    cluster.pod_shown(pod("counted", 40, "Succeeded"));
    cluster.pods_end(50);
    assert!(cluster.0.orphans(&one, false).is_empty(), "its Job is not listed yet");
}

#[test]
fn pod_gc_deletes_a_pod_again_that_a_restored_api_still_has() {
    let mut cluster = Cluster(ClusterState::new(Batching::default(), Some(Settings::default())));
    let unscheduled = || {
        let mut pod = pod("unscheduled", 40, "Pending");
        pod.metadata.deletion_timestamp = Some(now().into());
        pod
    };
    cluster.pods_begin();
    cluster.pod_shown(unscheduled());
    cluster.pods_end(100);
    let uid = Uid::from("unscheduled");
    let is_done = |cluster: &Cluster| matches!(cluster.0.verdict(&uid, now()), Verdict::Do(_));
    assert!(is_done(&cluster));
    cluster.0.pod_deleted(&uid);
    assert!(!is_done(&cluster));

    cluster.pods(WatchEvent::Restored);
    cluster.pods_begin();
    cluster.pod_shown(unscheduled());
    cluster.pods_end(50);
    assert!(!is_done(&cluster), "nodes are not listed yet");
    cluster.jobs(WatchEvent::ListBegins);
    cluster.jobs_end(50);
    cluster.handle(Event::Node(WatchEvent::ListBegins));
    cluster.handle(Event::Namespace(WatchEvent::ListBegins));
    cluster.handle(Event::Node(WatchEvent::ListEnds("50".to_owned())));
    let entries = cluster.handle(Event::Namespace(WatchEvent::ListEnds("50".to_owned()))).entries;
    assert!(is_done(&cluster));
    assert!(entries.iter().any(|entry| matches!(entry, Entry::Check(_))), "{entries:?}");
}
