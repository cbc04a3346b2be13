//! Tests pods that their kubelet rejected: DisruptionTarget comes before they are counted. ([F7])

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;
use serde_json::json;

use super::builders::{
    JobBuilder, PodBuilder, ago, api, conditions, failed, job, now, outage, pod, sync, sync_with,
    uid,
};
use crate::checks::fake_api::FakeApi;
use crate::job::{FaultKind, NodeFault, Step, mark_fault_patch};

fn ignoring() -> JobBuilder {
    let pattern = json!({"type": "DisruptionTarget", "status": "True"});
    let rules = json!([{"action": "Ignore", "onPodConditions": [pattern]}]);
    job().spec("backoffLimit", 0).failure_policy(rules)
}

fn rejected(reason: &str) -> PodBuilder {
    pod("p", "Failed").on_node().with(|pod| pod["status"]["reason"] = reason.into())
}

/// A rejected pod whose status shows that it ran before its kubelet started again.
fn ran_before(reason: &str) -> PodBuilder {
    rejected(reason).with(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "main", "restartCount": 0,
            "state": {"running": {"startedAt": ago(50).to_string()}},
        }]);
    })
}

fn marks(step: &Step) -> bool {
    matches!(step, Step::MarkFault(_))
}

fn is_marked(api: &FakeApi) -> bool {
    api.pods[&uid("p")].has_condition(DISRUPTION_TARGET)
}

#[test]
fn a_pod_that_its_kubelet_rejected_is_a_disruption_target_before_it_is_counted() {
    for reason in [
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfephemeral-storage",
        "OutOfexample.com/gpu",
        "NodeAffinity",
        "NodePorts",
        "NodeShutdown",
        "TaintToleration",
        "TopologyAffinityError",
        "VolumeAttachmentLimitExceeded",
        "InvalidNodeInfo",
    ] {
        let mut api = api(ignoring(), vec![rejected(reason)]);
        let first = sync(&mut api);
        assert!(is_marked(&api), "{reason}");
        assert_eq!((first.writes.len(), first.patches, first.create_calls), (0, 0, 0), "{reason}");
        let second = sync(&mut api);
        assert_eq!((second.failed, second.created.len()), (0, 1), "{reason}: replaced");
        assert_eq!(second.conditions, Vec::<String>::new(), "{reason}");
    }
}

/// These would meet the same answer again, or are no rejection.
#[test]
fn a_pod_that_failed_by_itself_is_no_disruption_target() {
    for reason in [
        "",
        "Error",
        "Evicted",
        "DeadlineExceeded",
        "Terminated",
        "SysctlForbidden",
        "AppArmor",
        "PodOSNotSupported",
        "SMTAlignmentError",
        "outofcpu",
    ] {
        let mut api = api(ignoring(), vec![rejected(reason)]);
        let effects = sync(&mut api);
        assert!(!is_marked(&api), "{reason}");
        assert_eq!(effects.conditions, failed("BackoffLimitExceeded"), "{reason}");
    }
    let mut succeeded = api(
        ignoring(),
        vec![pod("p", "Succeeded").with(|pod| pod["status"]["reason"] = "OutOfcpu".into())],
    );
    sync(&mut succeeded);
    assert!(!is_marked(&succeeded));
}

#[test]
fn without_the_flag_a_rejected_pod_counts_as_upstream_counts_it() {
    let mut api = api(ignoring(), vec![rejected("OutOfcpu")]);
    api.settings.rejected_disruption_target = false;
    assert_eq!(sync(&mut api).conditions, failed("BackoffLimitExceeded"));
    assert!(!is_marked(&api));
}

/// A listed pod is counted already, and one with the condition needs no write.
#[test]
fn each_rejected_pod_is_marked_once() {
    let listed = ignoring().uncounted(&[], &["p"]);
    let marked = rejected("OutOfcpu").condition(DISRUPTION_TARGET);
    for (job, pod) in [
        (listed, rejected("OutOfcpu")),
        (ignoring(), marked),
        (ignoring(), rejected("OutOfcpu").untracked()),
    ] {
        let effects = sync(&mut api(job, vec![pod]));
        assert!(!effects.trace.steps.iter().any(|(step, _)| marks(step)));
    }
}

#[test]
fn a_refusal_of_the_mark_lets_the_pod_count_as_it_is() {
    for kind in [FailureKind::Forbidden, FailureKind::Invalid] {
        let mut api = api(ignoring(), vec![rejected("OutOfcpu")]);
        let refuse = |step: &Step, _| marks(step).then(|| Failure::new(kind, "no such right"));
        let first = sync_with(&mut api, &refuse);
        assert_eq!((first.failed, first.is_err), (0, false));
        let text = "FailedDisruptionTarget: Pod p does not get DisruptionTarget (the kubelet \
                    rejected the pod: OutOfcpu): no such right";
        assert_eq!(first.events(), [text]);
        let second = sync_with(&mut api, &refuse);
        assert_eq!((second.failed, second.conditions), (1, failed("BackoffLimitExceeded")));
    }
}

#[test]
fn a_mark_that_is_not_written_is_tried_for_a_minute() {
    let mut api = api(ignoring(), vec![rejected("OutOfcpu")]);
    let down = |step: &Step, _| marks(step).then(outage);
    for seconds in [0, 30, 29] {
        api.now += SignedDuration::from_secs(seconds);
        let effects = sync_with(&mut api, &down);
        assert_eq!((effects.failed, effects.is_err), (0, true));
    }
    api.now += SignedDuration::from_secs(1);
    let effects = sync_with(&mut api, &down);
    assert_eq!((effects.failed, effects.conditions), (1, failed("BackoffLimitExceeded")));
    assert!(conditions(&api.job.status).contains(&"Failed/BackoffLimitExceeded".to_owned()));
}

#[test]
fn a_pod_that_changed_meanwhile_is_judged_anew() {
    let mut api = api(ignoring(), vec![rejected("OutOfcpu")]);
    let conflict =
        |step: &Step, _| marks(step).then(|| Failure::new(FailureKind::Conflict, "changed"));
    let effects = sync_with(&mut api, &conflict);
    assert_eq!((effects.failed, effects.is_err, effects.events().len()), (0, false, 0));
    assert_eq!(effects.requeue_seconds, Some(1));
    sync(&mut api);
    assert!(is_marked(&api));
}

/// A kubelet that starts again may reject a pod that ran. Its containers may still end, so its
/// replacement waits while one is shown running.
#[test]
fn a_rejected_pod_that_ran_before_is_replaced_once_no_container_runs() {
    let mut api = api(ignoring().replaces_failed(), vec![ran_before("UnexpectedAdmissionError")]);
    let first = sync(&mut api);
    assert!(is_marked(&api) && first.created.is_empty());
    let shown = ran_before("UnexpectedAdmissionError").with(|pod| {
        pod["status"]["conditions"] = json!([{
            "type": DISRUPTION_TARGET, "status": "True", "reason": "RejectedByKubelet",
            "lastTransitionTime": now().to_string(),
        }]);
    });
    let mut api = super::builders::api(ignoring().replaces_failed(), vec![shown]);
    let second = sync(&mut api);
    assert_eq!((second.created.len(), second.terminating), (0, 1));
    api.now += SignedDuration::from_secs(31);
    let third = sync(&mut api);
    assert_eq!((third.created.len(), third.failed), (1, 0));
}

#[test]
fn the_patch_of_a_rejected_pod_names_its_version_and_reason() {
    let pod = std::sync::Arc::new(rejected("OutOfpods").build());
    let fault = NodeFault { pod, kind: FaultKind::Rejected };
    let patch = mark_fault_patch(&fault, now());
    assert_eq!(patch["metadata"], json!({"uid": "uid-p", "resourceVersion": "5"}));
    let condition = &patch["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!(DISRUPTION_TARGET), &json!("True"))
    );
    assert_eq!(condition["reason"], "RejectedByKubelet");
    assert_eq!(condition["message"], "the kubelet rejected the pod: OutOfpods");
    assert_eq!(patch["status"].as_object().map(serde_json::Map::len), Some(1));
}
