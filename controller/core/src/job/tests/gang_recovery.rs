//! Tests what becomes of a gang that loses a member: with `disruptionMode: all` the group starts
//! anew once, and each pod counts as what it is.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::json;

use super::builders::{
    Effects, JobBuilder, PodBuilder, api, check, job, outage, pod, sync, sync_with,
};
use crate::checks::fake_api::FakeApi;
use crate::job::{JobGroups, Step};
use crate::view::{Deletion, Phase, PodGroup, Uid};

fn group(mode: &str, min_count: i32) -> JobGroups {
    let mut disruption_mode = json!({});
    disruption_mode[mode] = json!({});
    let group = json!({
        "metadata": {"namespace": "ns", "name": "g", "uid": "uid-g", "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid",
             "controller": true}]},
        "spec": {"workloadRef": {"workloadName": "w"}, "disruptionMode": disruption_mode,
                 "schedulingPolicy": {"gang": {"minCount": min_count}}},
    });
    let workload = json!({
        "metadata": {"namespace": "ns", "name": "w", "uid": "uid-w", "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid",
             "controller": true}]},
        "spec": {"controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "j"},
                 "podGroupTemplates": [{"name": "t", "schedulingPolicy": {
                     "gang": {"minCount": min_count}}}]},
    });
    JobGroups {
        workloads: vec![Arc::new(
            crate::view::Workload::read(&workload.to_string()).expect("a Workload"),
        )],
        of_parent: None,
        pod_groups: vec![Arc::new(PodGroup::read(&group.to_string()).expect("a PodGroup"))],
    }
}

/// An Indexed Job of a gang whose group is disrupted as a whole.
fn gang(size: i32) -> JobBuilder {
    let scheduling = json!({"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}});
    job().size(size, size).indexed().started(50).spec("scheduling", scheduling)
}

/// A member of an attempt that runs.
fn member(index: u32, attempt: u32) -> PodBuilder {
    pod(&format!("{index}-{attempt}"), "Running").index(index).on_node().with(|pod| {
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        pod["metadata"]["annotations"]["epilogue.dev/gang-attempt"] = attempt.to_string().into();
    })
}

/// With DisruptionTarget, for this reason and for so many seconds.
fn target(pod: PodBuilder, reason: &str, seconds: i64) -> PodBuilder {
    let since = super::builders::ago(seconds).to_string();
    pod.with(|pod| {
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
            "reason": reason, "lastTransitionTime": since}]);
    })
}

/// A member that its node killed.
fn lost(index: u32, attempt: u32) -> PodBuilder {
    target(member(index, attempt), "TerminationByKubelet", 3)
        .with(|pod| pod["status"]["phase"] = "Failed".into())
        .ended(143, 2)
}

fn stage(job: JobBuilder, pods: Vec<PodBuilder>) -> FakeApi {
    let size = job.clone().build().spec.parallelism;
    let mut api = api(job, pods);
    api.groups = Some(group("all", size));
    api.settings.default_job_pod_failure_backoff = SignedDuration::ZERO;
    api
}

/// The attempts and indexes of the pods that were created.
fn created(effects: &Effects) -> Vec<(Option<u32>, Option<u32>)> {
    let of = |draft: &crate::job::PodDraft| {
        (draft.index, draft.group.as_ref().and_then(|group| group.attempt))
    };
    effects.created.iter().map(of).collect()
}

/// The kubelet ends the pods that are being deleted.
fn kubelet_ends_them(api: &mut FakeApi) {
    let ending: Vec<Uid> =
        api.pods.values().filter(|pod| pod.is_terminating()).map(|pod| pod.uid.clone()).collect();
    for uid in ending {
        api.touch(&uid, |pod| pod.phase = Phase::Failed);
        if api.pods.get(&uid).is_some_and(|pod| !pod.tracked) {
            api.pods.remove(&uid);
        }
    }
}

#[test]
fn a_gang_that_loses_a_member_starts_anew_once() {
    let mut api = stage(gang(3), vec![lost(0, 0), member(1, 0), member(2, 0)]);
    let effects = sync(&mut api);
    assert_eq!(effects.deleted, ["1-0", "2-0"]);
    assert_eq!((effects.created.len(), effects.failed), (0, 0), "the lost pod counts later");
    let events = effects.events();
    let expected = "PodGroupDisrupted: Pod 0-0 of PodGroup g is lost (TerminationByKubelet): 2 \
                    other pods of the group end, too, as its disruptionMode is all; the group \
                    starts anew";
    assert!(events.iter().any(|it| it == expected), "{events:?}");
    let effects = sync(&mut api);
    assert_eq!(created(&effects), [(Some(0), Some(1)), (Some(1), Some(1)), (Some(2), Some(1))]);
    assert_eq!((effects.failed, effects.deleted.len()), (1, 0), "the lost pod, and no other");
    kubelet_ends_them(&mut api);
    for _ in 0..3 {
        let effects = sync(&mut api);
        assert_eq!((effects.failed, effects.created.len(), effects.deleted.len()), (1, 0, 0));
    }
    let mut active: Vec<u32> =
        api.pods.values().filter(|pod| pod.is_active()).map(|pod| pod.attempt).collect();
    active.sort_unstable();
    assert_eq!(active, [1, 1, 1]);
}

/// The old pods are dead before a new one is made, and the new ones come together.
#[test]
fn where_only_failed_pods_are_replaced_the_whole_old_group_is_dead_first() {
    let mut api = stage(gang(3).replaces_failed(), vec![lost(0, 0), member(1, 0), member(2, 0)]);
    assert_eq!(sync(&mut api).deleted.len(), 2);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.failed, effects.terminating), (0, 0, 2));
    // One of the two is gone.
    let first = api.pods.values().find(|pod| pod.is_terminating()).expect("one").uid.clone();
    api.pods.remove(&first);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.failed, effects.terminating), (0, 0, 1));
    kubelet_ends_them(&mut api);
    let effects = sync(&mut api);
    assert_eq!(created(&effects), [(Some(0), Some(1)), (Some(1), Some(1)), (Some(2), Some(1))]);
    assert_eq!((effects.failed, effects.terminating), (1, 0));
}

/// A pod that is being evicted is as good as gone: the others save their work meanwhile.
#[test]
fn a_member_that_is_evicted_ends_the_others_at_once() {
    for replaces_failed in [false, true] {
        let job = if replaces_failed { gang(2).replaces_failed() } else { gang(2) };
        let evicted = target(member(0, 0).terminating(), "EvictionByEvictionAPI", 1);
        let mut api = stage(job, vec![evicted, member(1, 0)]);
        assert_eq!(sync(&mut api).deleted, ["1-0"]);
        let effects = sync(&mut api);
        assert_eq!(effects.created.len(), if replaces_failed { 0 } else { 2 });
        kubelet_ends_them(&mut api);
        let effects = sync(&mut api);
        assert_eq!(effects.created.len(), if replaces_failed { 2 } else { 0 });
        assert_eq!(effects.failed, 1);
    }
}

/// A member may end its work while it is evicted. What was deleted for it still dies first.
#[test]
fn a_member_that_succeeds_after_all_leaves_the_others_to_die_first() {
    let evicted = target(member(0, 0).terminating(), "EvictionByEvictionAPI", 1);
    let marked = target(member(1, 0), "TerminationByKubelet", 1);
    let mut api = stage(gang(3).replaces_failed(), vec![evicted, marked, member(2, 0)]);
    assert_eq!(sync(&mut api).deleted, ["1-0", "2-0"]);
    api.touch(&Uid::from("uid-0-0"), |pod| pod.phase = Phase::Succeeded);
    api.touch(&Uid::from("uid-1-0"), |pod| pod.phase = Phase::Failed);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.completed_indexes.as_str()), (0, "0"));
    kubelet_ends_them(&mut api);
    assert_eq!(created(&sync(&mut api)), [(Some(1), Some(1)), (Some(2), Some(1))]);
}

/// What ends a pod without a disruption of the group: one pod is replaced, in the attempt of the
/// others.
#[test]
fn what_is_no_disruption_of_the_group_replaces_one_member() {
    let failed = || member(0, 4).with(|pod| pod["status"]["phase"] = "Failed".into()).ended(1, 90);
    let rows = [
        ("its program failed", failed()),
        ("a user deleted it", member(0, 4).terminating()),
        (
            "no node had it",
            target(member(0, 4), "TerminationByKubelet", 3).with(|pod| {
                pod["status"]["phase"] = "Failed".into();
                pod["spec"] = json!({"schedulingGroup": {"podGroupName": "g"}});
            }),
        ),
        (
            "it is of another group",
            lost(0, 4).with(|pod| pod["spec"]["schedulingGroup"]["podGroupName"] = "h".into()),
        ),
    ];
    for (what, pod) in rows {
        let mut api = stage(gang(2), vec![pod, member(1, 4)]);
        let effects = sync(&mut api);
        assert_eq!((effects.deleted.len(), effects.failed), (0, 1), "{what}");
        assert_eq!(created(&effects), [(Some(0), Some(4))], "{what}");
    }
    for mode in ["single", "other"] {
        let mut api = stage(gang(2), vec![lost(0, 0), member(1, 0)]);
        api.groups = Some(group(mode, 2));
        let effects = sync(&mut api);
        assert_eq!((effects.deleted.len(), effects.failed), (0, 1), "{mode}");
        assert_eq!(created(&effects), [(Some(0), None)], "{mode}");
    }
}

/// A lost member stays in the API as a failed pod. It ends no pod that came after it.
#[test]
fn a_loss_that_is_over_ends_no_pod_again() {
    let mut counted = stage(
        gang(2).status("failed", 1),
        vec![lost(0, 0).untracked(), member(0, 1), member(1, 1)],
    );
    let mut uncounted = stage(gang(2), vec![lost(0, 0), member(0, 1), member(1, 1)]);
    for api in [&mut counted, &mut uncounted] {
        let effects = sync(api);
        assert_eq!((effects.deleted.len(), effects.created.len(), effects.failed), (0, 0, 1));
    }
    // The next loss is one of the next attempt.
    let mut api = stage(gang(2), vec![lost(0, 0).untracked(), lost(1, 1), member(0, 1)]);
    assert_eq!(sync(&mut api).deleted, ["0-1"]);
    assert_eq!(created(&sync(&mut api)), [(Some(0), Some(2)), (Some(1), Some(2))]);
}

/// Another disruption ends them: they count by it.
#[test]
fn a_member_that_is_a_target_itself_counts_as_disrupted() {
    let marked = target(member(1, 0), "TerminationByKubelet", 1);
    let mut api = stage(gang(3), vec![lost(0, 0), marked, member(2, 0)]);
    let effects = sync(&mut api);
    assert_eq!(effects.deleted, ["1-0", "2-0"]);
    assert_eq!(effects.patches, 1, "the finalizer of the other alone is removed");
    sync(&mut api);
    kubelet_ends_them(&mut api);
    let effects = sync(&mut api);
    assert_eq!(effects.failed, 2);
}

/// The scheduler preempts such a group whole. It has the time for it, then we end the rest.
#[test]
fn of_a_preempted_group_the_scheduler_ends_the_others() {
    let preempted = |seconds| target(member(0, 0).terminating(), "PreemptionByScheduler", seconds);
    let mut api = stage(gang(2), vec![preempted(3), member(1, 0)]);
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.created.len(), effects.failed), (0, 0, 0));
    assert_eq!(effects.requeue_seconds, Some(7));
    let other = Uid::from("uid-1-0");
    let mut preempts = api.clone();
    preempts.touch(&other, |pod| {
        let gone = target(member(1, 0).terminating(), "PreemptionByScheduler", 0).build();
        (pod.deletion, pod.conditions, pod.gc) = (gone.deletion, gone.conditions, gone.gc);
    });
    let effects = sync(&mut preempts);
    assert_eq!((effects.created.len(), effects.failed), (2, 2), "each counts");
    api.now = api.now.checked_add(SignedDuration::from_secs(7)).expect("in range");
    assert_eq!(sync(&mut api).deleted, ["1-0"]);
}

/// The scheduler may die in between, and the grace of the pod that it preempted may be long.
#[test]
fn the_rest_of_a_preempted_group_ends_in_time_also_while_the_first_pod_terminates() {
    let preempted = target(member(0, 0).terminating(), "PreemptionByScheduler", 3);
    let mut api = stage(gang(2).replaces_failed(), vec![preempted, member(1, 0)]);
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.requeue_seconds), (0, Some(7)));
    api.now = api.now.checked_add(SignedDuration::from_secs(7)).expect("in range");
    assert_eq!(sync(&mut api).deleted, ["1-0"]);
}

/// The clock of the scheduler may be ahead of ours, a little or by far.
#[test]
fn the_clock_of_the_scheduler_delays_the_end_of_a_group_by_its_time_alone() {
    for (ahead, wait) in [(4, Some(10)), (3_600, None)] {
        let preempted = target(member(0, 0).terminating(), "PreemptionByScheduler", -ahead);
        let mut api = stage(gang(2), vec![preempted, member(1, 0)]);
        let effects = sync(&mut api);
        assert_eq!(effects.deleted.len(), usize::from(wait.is_none()), "{ahead} s ahead");
        assert_eq!(effects.requeue_seconds, wait, "{ahead} s ahead");
    }
}

/// A pod whose node may soon show a boot is left until that is known, and nothing turns in a loop.
#[test]
fn a_member_that_awaits_the_boot_of_its_node_is_left() {
    let api = stage(gang(2), vec![lost(0, 0), member(1, 0)]);
    let recovery = api.plan().facts.recovery.expect("a member is lost");
    let open = [Arc::clone(&recovery.left[0])];
    assert_eq!((recovery.victims(&open), recovery.due_in()), (None, None));
    assert_eq!(recovery.victims(&[]).map(|victims| victims.len()), Some(1));
}

/// Whatever fails, and wherever the process dies, the loss is not forgotten.
#[test]
fn a_lost_member_is_not_counted_while_its_group_lives_on() {
    let pods = || vec![lost(0, 0), member(1, 0), member(2, 0)];
    let mut api = stage(gang(3), pods());
    let effects = sync_with(&mut api, &|step, _| match step {
        Step::Delete(pod, _) if &*pod.name == "2-0" => Some(outage()),
        _ => None,
    });
    assert_eq!((effects.is_err, effects.failed, effects.created.len()), (true, 0, 0));
    let effects = sync(&mut api);
    assert_eq!((effects.failed, effects.created.len()), (0, 0), "{:?}", effects.deleted);
    for _ in 0..4 {
        sync(&mut api);
    }
    assert_eq!(
        (api.job.status.failed, api.pods.values().filter(|it| it.is_active()).count()),
        (Some(1), 3)
    );

    for after_calls in 0..8 {
        let mut api = stage(gang(3), pods());
        api.sync_with(&|_, _| None, Some(crate::checks::fake_api::Crash { after_calls }));
        for _ in 0..6 {
            api.show_own_writes();
            api.sync();
        }
        let active = api.pods.values().filter(|it| it.is_active());
        let attempts: Vec<u32> = active.map(|pod| pod.attempt).collect();
        assert_eq!((attempts, api.job.status.failed), (vec![1; 3], Some(1)), "{after_calls}");
    }
}

/// A Job that goes no further replaces no group.
#[test]
fn a_job_that_ends_or_is_suspended_counts_the_lost_pod_at_once() {
    let pods = || vec![lost(0, 0), member(1, 0)];
    let mut api = stage(gang(2).suspended(), pods());
    let effects = sync(&mut api);
    assert_eq!((effects.deleted, effects.failed), (vec!["1-0".to_owned()], 1));
    let mut api = stage(gang(2).spec("backoffLimit", 0), pods());
    let effects = sync(&mut api);
    assert_eq!(effects.deleted, ["1-0"]);
    assert!(effects.failed >= 1, "{effects:?}");
    let mut api = stage(gang(2).deleting(), pods());
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.created.len(), effects.failed), (0, 0, 1));
}

/// With `backoffLimitPerIndex`: the pod that has the number of failures ends with its group.
#[test]
fn an_index_keeps_its_failures_when_its_group_starts_anew() {
    let running = |failures| vec![member(1, 0).failures(failures)];
    // An earlier pod of the index, which is counted.
    let failed = |failures| {
        vec![member(1, 0).failures(failures).untracked().ended(1, 90).with(|pod| {
            pod["status"]["phase"] = "Failed".into();
            pod["metadata"]["name"] = "f".into();
            pod["metadata"]["uid"] = "uid-f".into();
        })]
    };
    // Another finalizer holds it.
    let deleted = |failures| failed(failures).pop().map(PodBuilder::terminating).into_iter();
    let at_once = || gang(3).spec("backoffLimitPerIndex", 2).status("failed", 1);
    let dead_first = || at_once().replaces_failed();
    let rows = [
        (at_once(), running(1), 1, "the pod that ends shows it"),
        (dead_first(), [running(1), failed(0)].concat(), 1, "the pod that failed shows it"),
        (dead_first(), running(1), 0, "no pod shows it"),
        (at_once(), [running(2), failed(0)].concat(), 2, "the greatest number counts"),
        (at_once(), running(0).into_iter().chain(deleted(1)).collect(), 1, "it was deleted"),
        (at_once(), [running(0), failed(2)].concat(), 0, "the index was taken away and is new"),
    ];
    for (job, pods, failures, what) in rows {
        let mut api = stage(job, [vec![lost(0, 0), member(2, 0)], pods].concat());
        assert_eq!(sync(&mut api).deleted, ["1-0", "2-0"], "{what}");
        if api.job.replaces_failed_only() {
            kubelet_ends_them(&mut api);
        }
        let effects = sync(&mut api);
        let counted = |draft: &crate::job::PodDraft| draft.failures.map(|it| it.counted);
        let counts: Vec<_> = effects.created.iter().map(counted).collect();
        assert_eq!(counts, [Some(1), Some(failures), Some(0)], "{what}");
    }
}

/// The scheduler places a gang when `minCount` of its pods are there. (W5)
#[test]
fn the_size_of_a_gang_does_not_exceed_the_pods_that_are_left() {
    let size = |api: &FakeApi| {
        let groups = api.groups.as_ref().expect("served");
        (groups.workloads[0].templates[0].min_count, groups.pod_groups[0].min_count)
    };
    // Two of four indexes are done, and one of the others is replaced.
    let failed = || member(3, 0).with(|pod| pod["status"]["phase"] = "Failed".into()).ended(1, 90);
    let job = || gang(4).completed("0,1");
    let mut api = stage(job(), vec![member(2, 0), failed()]);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), size(&api)), (1, (Some(4), Some(2))));
    check(&api);
    // The pod that is left is placed: the size stays, also as the next one succeeds.
    let replaced = api.pods.values().find(|pod| pod.node.is_none()).expect("one").uid.clone();
    api.touch(&replaced, |pod| {
        (pod.node, pod.phase) = (Some("node-1".into()), Phase::Running);
    });
    let effects = sync(&mut api);
    assert!(!effects.trace.steps.iter().any(|(step, _)| matches!(step, Step::Group(_))));
    // While nothing has to be placed, the size stays as asked.
    let mut api = stage(job(), vec![member(2, 0), member(3, 0)]);
    sync(&mut api);
    assert_eq!(size(&api), (Some(4), Some(4)));
    // A pod that awaits its node is to be placed.
    let unbound = member(3, 0).with(|pod| {
        pod["spec"] = json!({"schedulingGroup": {"podGroupName": "g"}});
        pod["status"]["phase"] = "Pending".into();
    });
    let mut api = stage(job(), vec![member(2, 0), unbound]);
    sync(&mut api);
    assert_eq!(size(&api), (Some(4), Some(2)));
    // A suspended Job has the size that it asks for.
    api.edit(|job| job.spec.suspend = true);
    sync(&mut api);
    assert_eq!(size(&api), (Some(4), Some(4)));
}

/// A creation without a reply may be carried out late, when its group has started anew.
#[test]
fn of_pods_in_excess_those_of_an_earlier_attempt_go_first() {
    let unready = member(0, 1).with(|pod| pod["status"]["phase"] = "Pending".into());
    let mut api = stage(gang(2), vec![unready, member(0, 0), member(1, 1)]);
    assert_eq!(sync(&mut api).deleted, ["0-0"]);
}

/// Whoever reads the annotation of a Job's template: the controller's own value counts.
#[test]
fn the_attempt_is_in_the_pod_whatever_its_template_says() {
    let templated = gang(1).with(|job| {
        job["spec"]["template"]["metadata"]["annotations"] =
            json!({"epilogue.dev/gang-attempt": "2147483647"});
    });
    let mut api = stage(templated, vec![]);
    let effects = sync(&mut api);
    assert_eq!(created(&effects), [(Some(0), Some(0))]);
    let pod = api.pods.values().next().expect("a pod");
    assert_eq!((pod.attempt, pod.deletion), (0, None::<Deletion>));
    // The greatest attempt is the last: nothing follows it.
    let last = i32::MAX.unsigned_abs();
    let mut api = stage(gang(2), vec![lost(0, last), member(1, last)]);
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), created(&effects)), (0, vec![(Some(0), Some(last))]));
}
