//! Tests that each pod is counted once: uncounted UIDs, finalizers, counters.

use super::builders::{
    Effects, JobBuilder, PodBuilder, api, complete, conditions, failed, job, listed, outage, pod,
    pods, sync, sync_with, uid,
};
use epilogue_common::outcome::{Failure, FailureKind};
use k8s_openapi::api::batch::v1::JobStatus;

use crate::job::status_plan::finished;
use crate::job::{MetricEvent, Step};

/// Counters and lists of each write.
fn writes(effects: &Effects) -> Vec<(i32, i32, usize, usize)> {
    let of = |status: &JobStatus| {
        let (succeeded, failed) = listed(status);
        (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0), succeeded, failed)
    };
    effects.writes.iter().map(of).collect()
}

fn half_counted() -> (JobBuilder, Vec<PodBuilder>) {
    let job = job()
        .size(6, 6)
        .status("succeeded", 2)
        .status("failed", 3)
        .uncounted(&["a", "e"], &["b", "f"]);
    let pods = vec![
        pod("e", "Succeeded").untracked(),
        pod("x", "Failed").untracked(),
        pod("a", "Succeeded"),
        pod("b", "Failed"),
        pod("c", "Succeeded"),
        pod("d", "Failed"),
    ];
    (job, pods)
}

/// A UID moves from the list to the counter once its finalizer is gone. ([T2], [T3], [T4], [T12])
#[test]
fn uids_move_from_the_lists_into_the_counters_once_the_finalizer_is_gone() {
    let (job, pods) = half_counted();
    let mut api = api(job, pods);
    let effects = sync(&mut api);
    assert_eq!(writes(&effects), [(3, 4, 2, 2), (5, 6, 0, 0)]);
    assert_eq!(effects.patches, 4);
    assert!(sync(&mut api).writes.is_empty(), "all is counted");
}

/// Pods whose finalizer removal is not seen yet are left alone. ([E2])
#[test]
fn pods_whose_finalizer_we_removed_are_left_alone() {
    let (job, mut all) = half_counted();
    all.extend([pod("g", "Succeeded"), pod("h", "Failed")]);
    let mut api = api(job, all);
    api.memory.removed_finalizers.extend(["c", "d", "g", "h"].map(uid));
    let effects = sync_with(&mut api, &|_, _| None);
    assert_eq!(writes(&effects), [(3, 4, 1, 1), (4, 5, 0, 0)]);
    assert_eq!(effects.patches, 2, "of a and b");
}

/// A write that fails stops the patches; a patch that fails is repeated. ([T9], [T13])
#[test]
fn a_write_that_fails_stops_everything_behind_it() {
    let (job, pods) = half_counted();
    let fresh = || api(job.clone(), pods.clone());
    let mut first = fresh();
    let effects =
        sync_with(&mut first, &|step, _| matches!(step, Step::WriteStatus(_)).then(outage));
    assert_eq!((effects.patches, effects.is_err), (0, true));
    assert!(first.memory.removed_finalizers.is_empty(), "nothing is awaited");

    let mut patches = fresh();
    let effects =
        sync_with(&mut patches, &|step, _| matches!(step, Step::RemoveFinalizer(_)).then(outage));
    assert_eq!((writes(&effects), effects.is_err), (vec![(3, 4, 2, 2)], true));
    assert!(patches.memory.removed_finalizers.is_empty());

    let mut one = fresh();
    let effects = sync_with(&mut one, &|step, call| {
        (matches!(step, Step::RemoveFinalizer(_)) && call == 0).then(outage)
    });
    assert_eq!(writes(&effects), [(3, 4, 2, 2), (4, 6, 1, 0)]);
    assert!(effects.is_err, "the patch that failed is repeated");
    assert_eq!(sync(&mut one).patches, 1);
    assert_eq!(writes(&sync_with(&mut one, &|_, _| None)), []);
    assert_eq!((one.job.status.succeeded, one.job.status.failed), (Some(5), Some(6)));
}

/// The API's words on a refused release are an event, once for all pods of a sync.
#[test]
fn a_refused_finalizer_patch_is_reported() {
    use epilogue_common::outcome::{Failure, FailureKind};
    let effects = |kind: FailureKind| {
        let (job, pods) = half_counted();
        let mut api = api(job, pods);
        let refused = || Failure::new(kind, "admission webhook denied the request: no");
        let refused = |step: &Step, _| matches!(step, Step::RemoveFinalizer(_)).then(refused);
        sync_with(&mut api, &refused).events()
    };
    for kind in [FailureKind::Forbidden, FailureKind::Invalid, FailureKind::ServerError] {
        let reported: Vec<String> = effects(kind);
        let reported: Vec<&String> =
            reported.iter().filter(|it| it.contains("FailedRelease")).collect();
        let [event] = reported[..] else { panic!("{kind:?}: {reported:?}") };
        assert!(event.contains("admission webhook denied the request: no"), "{event}");
    }
    for kind in [FailureKind::Conflict, FailureKind::NotFound, FailureKind::Unknown] {
        let reported = effects(kind);
        assert!(!reported.iter().any(|it| it.contains("FailedRelease")), "{kind:?}: {reported:?}");
    }
}

/// A webhook that alters the counts holds up its Job, and no pod is lost to it. ([T9])
#[test]
fn counts_that_admission_alters_release_no_pod() {
    for admission in [
        (|status| status.uncounted_terminated_pods = None) as fn(&mut JobStatus),
        |status| status.succeeded = None,
        |status| status.failed = Some(77),
    ] {
        let (job, pods) = half_counted();
        let mut api = api(job, pods);
        api.admission = admission;
        let effects = sync_with(&mut api, &|_, _| None);
        assert_eq!((effects.patches, effects.is_err), (0, true));
        assert!(effects.events().iter().any(|it| it.contains("StatusAltered")));
    }
    let (job, pods) = (job().indexed().size(2, 2), vec![pod("a", "Succeeded").index(0)]);
    let mut api = api(job, pods);
    api.admission = |status| status.completed_indexes = None;
    let effects = sync_with(&mut api, &|_, _| None);
    assert_eq!((effects.patches, effects.is_err), (0, true));
    api.admission = |_| {};
    assert_eq!(sync_with(&mut api, &|_, _| None).patches, 1, "the pod is still there to count");
}

/// The next sync makes up for a second write that failed. ([T3], [T14])
#[test]
fn a_lost_second_write_is_repaired_by_the_next_sync() {
    let (job, pods) = half_counted();
    let mut api = api(job, pods);
    let count = std::cell::Cell::new(0);
    let effects = sync_with(&mut api, &|step, _| {
        let is_write = matches!(step, Step::WriteStatus(_));
        count.set(count.get() + i32::from(is_write));
        (is_write && count.get() == 2).then(outage)
    });
    assert!(effects.is_err);
    let effects = sync(&mut api);
    assert_eq!((writes(&effects), effects.patches), (vec![(5, 6, 0, 0)], 0));
}

/// A finalizer patch that finds no pod counts as done. ([T11])
#[test]
fn a_pod_that_is_gone_is_counted_all_the_same() {
    let gone = || {
        let kind = FailureKind::NotFound;
        Failure::new(kind, "gone")
    };
    let mut api = api(job().size(2, 2), pods("Succeeded", 2));
    let effects =
        sync_with(&mut api, &|step, _| matches!(step, Step::RemoveFinalizer(_)).then(gone));
    assert_eq!((effects.succeeded, effects.is_err), (2, false));
    assert_eq!(effects.conditions, complete("CompletionsReached"));
}

/// A sync accounts for 500 pods at most. ([T6])
#[test]
fn a_sync_accounts_for_500_pods_at_most() {
    let mut all: Vec<PodBuilder> =
        (0..500).map(|number| pod(&format!("a{number:03}"), "Succeeded")).collect();
    all.push(pod("b", "Failed"));
    let job = job().size(500, 500).uncounted(&[], &["a", "b"]);
    let mut api = api(job, all);
    let effects = sync_with(&mut api, &|_, _| None);
    assert_eq!(writes(&effects), [(0, 1, 499, 1), (499, 1, 0, 1)]);
    assert_eq!(effects.patches, 499, "b is not reached");
    assert_eq!(effects.conditions, ["SuccessCriteriaMet/CompletionsReached"], "cut off");
    let effects = sync_with(&mut api, &|_, _| None);
    assert_eq!((effects.succeeded, effects.failed), (500, 2));
    assert_eq!(effects.conditions, complete("CompletionsReached"));
}

/// The cap at limit − 1, limit and limit + 1; no end in a sync that was cut off. ([T6], [C3])
#[test]
fn the_terminal_condition_waits_for_the_last_round() {
    for (count, patches, ends) in [(4, 4, true), (5, 5, false), (6, 5, false)] {
        let all = pods("Succeeded", count);
        let mut api = api(job().size(1, count as i32), all);
        api.settings.max_uncounted_pods = 5;
        let effects = sync(&mut api);
        assert_eq!(effects.patches, patches, "{count}");
        assert_eq!(effects.conditions.len(), if ends { 2 } else { 1 }, "{count}");
        sync(&mut api);
        let last = sync(&mut api);
        assert_eq!(last.conditions, complete("CompletionsReached"), "{count}");
        assert_eq!(last.succeeded as usize, count);
    }
}

/// An Indexed Job counts all successes at once, and spreads only the patches. ([T18])
#[test]
fn an_indexed_job_counts_all_successes_in_its_first_round() {
    let all = (0..7).map(|index| pod(&format!("p{index}"), "Succeeded").index(index)).collect();
    let mut api = api(job().size(7, 7).indexed(), all);
    api.settings.max_uncounted_pods = 5;
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.patches), (7, 5));
    assert_eq!(effects.completed_indexes, "0-6");
    let effects = sync(&mut api);
    assert_eq!((effects.patches, effects.conditions), (2, complete("CompletionsReached")));
}

/// A pod that was counted as failed stays failed. ([T4])
#[test]
fn a_pod_that_was_listed_as_failed_is_not_counted_as_succeeded() {
    let job = job().size(2, 2).uncounted(&[], &["a", "b"]).condition(
        "FailureTarget",
        "BackoffLimitExceeded",
        "m",
    );
    let mut api = api(job, vec![pod("a", "Succeeded"), pod("b", "Failed")]);
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.failed, effects.patches), (0, 2, 2));
    assert_eq!(effects.conditions, failed("BackoffLimitExceeded"));
}

/// Counters are written while the end waits for a terminating pod. ([C3])
#[test]
fn counters_are_written_while_the_end_waits_for_a_terminating_pod() {
    let job = job().size(2, 2).condition("SuccessCriteriaMet", "CompletionsReached", "m");
    let all = vec![pod("s", "Succeeded"), pod("t", "Running").terminating().untracked()];
    let mut api = api(job, all);
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.terminating), (1, 1));
    assert_eq!(effects.conditions, ["SuccessCriteriaMet/CompletionsReached"]);
    api.pods.remove(&uid("t"));
    assert_eq!(sync(&mut api).conditions, complete("CompletionsReached"));
}

/// By the state of the Job, pods lose the finalizer and count as failed. ([T17])
#[test]
fn each_pod_is_let_go_and_counted_as_its_job_stands() {
    let kinds = [
        ("succeeded", pod("p", "Succeeded")),
        ("failed", pod("p", "Failed").ended(1, 1)),
        ("terminating", pod("p", "Running").terminating()),
        ("active", pod("p", "Running").on_node()),
    ];
    let running = || job().size(1, 3);
    let failing = || running().condition("FailureTarget", "R", "m");
    let succeeding = || running().condition("SuccessCriteriaMet", "R", "m");
    let orf = JobBuilder::replaces_failed;
    let jobs = [
        ("running", running(), [(1, 0), (1, 1), (1, 1), (0, 0)]),
        ("running, ORF", orf(running()), [(1, 0), (1, 1), (0, 0), (0, 0)]),
        ("failing", failing(), [(1, 0), (1, 1), (1, 1), (1, 1)]),
        ("failing, ORF", orf(failing()), [(1, 0), (1, 1), (1, 1), (1, 1)]),
        ("succeeding", succeeding(), [(1, 0), (1, 1), (1, 1), (1, 0)]),
        ("succeeding, ORF", orf(succeeding()), [(1, 0), (1, 1), (1, 0), (1, 0)]),
        ("deleting", running().deleting(), [(1, 0), (1, 1), (1, 1), (1, 0)]),
        ("deleting, ORF", orf(running().deleting()), [(1, 0), (1, 1), (1, 0), (1, 0)]),
    ];
    for (state, job, expected) in jobs {
        for ((kind, pod), expected) in kinds.iter().cloned().zip(expected) {
            let effects = sync(&mut api(job.clone(), vec![pod]));
            let row = format!("{kind} pod of a Job that is {state}");
            assert_eq!((effects.patches, effects.failed), expected, "{row}");
            assert_eq!(effects.succeeded, i32::from(kind == "succeeded"), "{row}");
        }
    }
}

/// A pod whose index is out of range is released and never counted. ([T17])
#[test]
fn pods_out_of_place_are_let_go_and_not_counted() {
    let job = job().size(1, 2).indexed().condition("FailureTarget", "R", "m");
    let all = vec![
        pod("a", "Failed").index(2),
        pod("b", "Succeeded").index("x"),
        pod("c", "Running"),
        pod("d", "Failed").index(1),
    ];
    let effects = sync(&mut api(job, all));
    assert_eq!((effects.patches, effects.failed, effects.succeeded), (4, 1, 0));
}

/// Zeros are written where the API distinguishes them from absence; one write is enough. ([S20])
#[test]
fn the_first_sync_writes_and_the_second_does_not() {
    let mut api = api(job().size(0, 5), vec![]);
    let effects = sync(&mut api);
    assert_eq!(effects.writes.len(), 1);
    let status = &effects.writes[0];
    assert_eq!((status.ready, status.terminating, status.active), (Some(0), Some(0), None));
    assert!(status.uncounted_terminated_pods.is_some() && status.start_time.is_some());
    assert!(status.failed_indexes.is_none());
    assert!(sync(&mut api).writes.is_empty());
}

/// The interim and the terminal condition are two writes when pods are counted. ([C3])
#[test]
fn interim_and_terminal_condition_are_two_writes() {
    let effects = sync(&mut api(job().size(1, 1), pods("Succeeded", 1)));
    let stages: Vec<_> = effects.writes.iter().map(conditions).collect();
    assert_eq!(stages[0], ["SuccessCriteriaMet/CompletionsReached"]);
    assert_eq!(stages[1], complete("CompletionsReached"));
}

/// A failure that does not take effect yet releases no pod uncounted, not even while the Job is
/// being deleted. (found by a random Job)
#[test]
fn pods_of_a_failing_job_being_deleted_are_kept_until_they_can_be_counted() {
    let failing = job().size(1, 1).spec("backoffLimit", 0).status("failed", 1).deleting();
    let mut api = api(failing, vec![pod("r", "Running").on_node()]);
    super::builders::await_deletion(&mut api);
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.patches, effects.failed), (1, 0, 1));
    api.memory = crate::job::Memory::default();
    let effects = sync(&mut api);
    assert_eq!((effects.patches, effects.failed), (1, 2));
}

/// The end is the same after a crash, which reads the pods anew. (seen on a real API)
///
/// A pod that counted as failed when it terminated may succeed before it is released. Simulation
/// seed 20011112.
#[test]
fn a_pod_that_lost_its_finalizer_counts_once_while_the_watch_is_behind() {
    for phase in ["Failed", "Succeeded"] {
        let ended = pod("f", phase).index(0).terminating();
        let running = pod("r", "Running").index(1).on_node();
        let job = job().size(2, 2).indexed().status("failed", 1);
        let mut api = api(job, vec![ended, running]);
        api.memory.removed_finalizers.insert(uid("f"));
        let effects = sync(&mut api);
        assert_eq!((effects.failed, effects.created_indexes()), (1, vec![0]), "{phase}");
    }
}

/// Of an Indexed Job, pods go in the order of their indexes. ([T1])
#[test]
fn pods_of_an_indexed_job_are_counted_in_the_order_of_their_indexes() {
    let ended = |name: &str, index: u32| pod(name, "Succeeded").index(index);
    let mut api =
        api(job().size(9, 9).indexed(), vec![ended("a", 3), ended("b", 1), ended("c", 2)]);
    api.settings.max_uncounted_pods = 2;
    sync(&mut api);
    let tracked = api.pods.values().filter(|pod| pod.tracked).map(|pod| pod.name.to_string());
    assert_eq!(tracked.filter(|name| name.len() == 1).collect::<Vec<_>>(), ["a"]);
}

/// The growth of the counters; of an Indexed Job, of the completed indexes. ([M4])
#[test]
fn finished_pods_are_the_growth_of_the_counters() {
    let status = |succeeded: i32, failed: i32, completed: &str| JobStatus {
        succeeded: Some(succeeded),
        failed: Some(failed),
        completed_indexes: Some(completed.to_owned()),
        ..JobStatus::default()
    };
    let (old, new) = (status(1, 2, "0"), status(2, 5, "0-2"));
    let expected =
        |succeeded| Some(MetricEvent::PodsFinished { succeeded, failed: 3, failed_indexes: None });
    let (plain, indexed) = (job().size(9, 9).build(), job().size(9, 9).indexed().build());
    assert_eq!(finished(&plain, &old, &new), expected(1));
    assert_eq!(finished(&indexed, &old, &new), expected(2));
    assert_eq!(finished(&plain, &new, &new), None);
    assert_eq!(finished(&plain, &new, &old), None, "no counter shrinks");
}

/// A policy of others reads the spec, which the status comes without.
#[test]
fn a_status_that_admission_refuses_is_sent_with_the_spec_and_so_is_each_later_one() {
    let (job, pods) = half_counted();
    let refusals = std::cell::Cell::new(0);
    let refuses = |step: &Step, _: usize| {
        matches!(step, Step::WriteStatus(_)).then(|| {
            refusals.set(refusals.get() + 1);
            Failure::new(FailureKind::Invalid, "denied: expression results in error: no such key")
        })
    };
    let mut api = api(job, pods);
    let effects = sync_with(&mut api, &refuses);
    assert!(!effects.is_err, "the status is written");
    assert!(effects.patches > 0, "what is counted is released");
    assert_eq!(refusals.get(), 1, "the second write of the sync has the spec at once");
    assert!(api.memory.status_needs_spec);
    api.edit(|job| job.spec.suspend = true);
    assert!(!sync_with(&mut api, &refuses).writes.is_empty());
    assert_eq!(refusals.get(), 1);
}

#[test]
fn a_status_whose_refusal_is_not_for_admission_to_make_is_sent_once() {
    let (job, pods) = half_counted();
    for kind in [FailureKind::Conflict, FailureKind::Unknown, FailureKind::TooManyRequests] {
        let mut api = api(job.clone(), pods.clone());
        let effects = sync_with(&mut api, &|step, _| {
            step.status().is_some().then(|| Failure::new(kind, "no"))
        });
        assert_eq!((effects.writes.len(), effects.is_err), (1, true), "{kind:?}");
    }
}
