//! Tests pods that their node lost: DisruptionTarget comes before they are counted. ([F8])

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::builders::{
    JobBuilder, PodBuilder, ago, api, failed, job, now, pod, sync, sync_with, uid,
};
use crate::checks::fake_api::{FakeApi, Trace};
use crate::job::{FaultKind, NodeBoots, NodeFault, Step, mark_fault_patch};

fn ignoring() -> JobBuilder {
    let pattern = json!({"type": "DisruptionTarget", "status": "True"});
    let rules = json!([{"action": "Ignore", "onPodConditions": [pattern]}]);
    job().spec("backoffLimit", 0).failure_policy(rules)
}

/// A container that started 600 s ago and ended.
fn ended(name: &str, code: i32, reason: &str, seconds_ago: i64) -> Value {
    json!({"name": name, "restartCount": 0, "state": {"terminated": {
        "exitCode": code, "reason": reason, "startedAt": ago(600).to_string(),
        "finishedAt": ago(seconds_ago).to_string(),
    }}})
}

/// As the kubelet shows a container that the runtime has no more.
fn gone(name: &str) -> Value {
    json!({"name": name, "restartCount": 1, "state": {"terminated": {
        "exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": null, "finishedAt": null,
        "message": "The container could not be located when the pod was terminated",
    }}})
}

/// As containerd shows a container that ran when the machine went down.
fn cut(name: &str) -> Value {
    ended(name, 255, "Unknown", 2)
}

fn failed_pod(containers: &[Value]) -> PodBuilder {
    pod("p", "Failed").on_node().created(610).with(|pod| {
        pod["status"]["containerStatuses"] = containers.into();
    })
}

fn booted() -> NodeBoots {
    NodeBoots::Booted { shown: ago(3), from: "boot-1".into(), to: "boot-2".into() }
}

fn cluster(pod: PodBuilder, boots: Option<NodeBoots>) -> FakeApi {
    let mut api = api(ignoring(), vec![pod]);
    api.memory.boots = boots.into_iter().map(|boots| (uid("p"), boots)).collect();
    api
}

fn is_marked(api: &FakeApi) -> bool {
    api.pods[&uid("p")].has_condition(DISRUPTION_TARGET)
}

fn marks(trace: &Trace) -> bool {
    trace.steps.iter().any(|(step, _)| matches!(step, Step::MarkFault(_)))
}

#[test]
fn a_pod_that_its_node_lost_in_a_boot_is_a_disruption_target_before_it_is_counted() {
    let table = [
        vec![cut("main")],
        vec![gone("main")],
        vec![cut("main"), ended("done", 0, "Completed", 300)],
        vec![ended("main", 143, "Error", 40)],
        vec![ended("main", 137, "Error", 60), cut("other")],
    ];
    for containers in table {
        let mut api = cluster(failed_pod(&containers), Some(booted()));
        let first = sync(&mut api);
        assert!(is_marked(&api), "{containers:?}");
        assert_eq!((first.writes.len(), first.patches, first.create_calls), (0, 0, 0));
        let second = sync(&mut api);
        assert_eq!((second.failed, second.created.len()), (0, 1), "{containers:?}: replaced");
        assert_eq!(second.conditions, Vec::<String>::new(), "{containers:?}");
    }
}

/// It started after the pod ended, as where it ran on the machine that went down.
#[test]
fn a_controller_that_saw_no_boot_judges_by_what_is_left_of_the_containers() {
    for containers in [[cut("main")], [gone("main")]] {
        let mut api = cluster(failed_pod(&containers), None);
        sync(&mut api);
        assert!(is_marked(&api), "{containers:?}");
    }
    let mut api = cluster(failed_pod(&[ended("main", 143, "Error", 40)]), None);
    assert_eq!(sync(&mut api).conditions, failed("BackoffLimitExceeded"));
}

#[test]
fn a_container_that_failed_before_the_boot_counts() {
    let own = || ended("main", 1, "Error", 60);
    let out_of_memory = || ended("main", 137, "OOMKilled", 60);
    let killed_long_ago = || ended("main", 137, "Error", 1200);
    let table = [
        vec![own()],
        vec![own(), cut("other")],
        vec![gone("other"), out_of_memory()],
        vec![out_of_memory()],
        vec![ended("main", 255, "Error", 60)],
        vec![killed_long_ago(), cut("other")],
        vec![],
    ];
    for containers in table {
        let mut api = cluster(failed_pod(&containers), Some(booted()));
        let effects = sync(&mut api);
        assert!(!is_marked(&api), "{containers:?}");
        assert_eq!(effects.conditions, failed("BackoffLimitExceeded"), "{containers:?}");
    }
}

/// The API, this controller and the pod's node lost power at once, and the node's clock is two
/// hours off after its boot. Whether a boot was seen depends on who was first.
#[test]
fn no_clock_of_a_node_has_a_say_about_what_it_lost() {
    for seconds_ago in [-7200, 7200] {
        for boots in [None, Some(booted())] {
            let mut api = cluster(failed_pod(&[ended("main", 255, "Unknown", seconds_ago)]), boots);
            sync(&mut api);
            assert!(is_marked(&api), "{seconds_ago}");
            let effects = sync(&mut api);
            assert_eq!((effects.failed, effects.created.len()), (0, 1), "{seconds_ago}");
        }
    }
}

#[test]
fn a_container_that_a_signal_ended_after_the_boot_counts() {
    let boots = NodeBoots::Booted { shown: ago(100), from: "a".into(), to: "b".into() };
    let mut api = cluster(failed_pod(&[ended("main", 137, "Error", 60)]), Some(boots));
    assert_eq!(sync(&mut api).conditions, failed("BackoffLimitExceeded"));
}

/// What a sidecar does decides no phase, and what an init container does decides it alone.
#[test]
fn sidecars_have_no_say_and_init_containers_have() {
    let with_init = |policy: Value, init: Value, regular: Value| {
        failed_pod(&[regular]).with(|pod| {
            pod["spec"]["initContainers"] = json!([{"name": "first", "restartPolicy": policy}]);
            pod["status"]["initContainerStatuses"] = json!([init]);
        })
    };
    let waits = || {
        let state = json!({"waiting": {"reason": "PodInitializing"}});
        json!({"name": "main", "restartCount": 0, "state": state})
    };
    let always = || json!("Always");
    let table = [
        (with_init(always(), ended("first", 1, "Error", 60), cut("main")), true),
        (with_init(always(), cut("first"), ended("main", 1, "Error", 60)), false),
        (with_init(Value::Null, cut("first"), waits()), true),
        (with_init(Value::Null, ended("first", 1, "Error", 60), gone("main")), false),
    ];
    for (case, (pod, expected)) in table.into_iter().enumerate() {
        let mut api = cluster(pod, Some(booted()));
        sync(&mut api);
        assert_eq!(is_marked(&api), expected, "case {case}");
    }
}

/// Another cause stands in the pod's reason, or is its deletion.
#[test]
fn a_pod_with_another_cause_is_not_lost() {
    let because = |reason: &str| {
        failed_pod(&[gone("main")]).with(|pod| pod["status"]["reason"] = reason.into())
    };
    let table = [
        because("Evicted"),
        because("DeadlineExceeded"),
        failed_pod(&[gone("main")]).terminating(),
    ];
    for (case, pod) in table.into_iter().enumerate() {
        let mut api = cluster(pod, Some(booted()));
        let effects = sync(&mut api);
        assert_eq!(effects.conditions, failed("BackoffLimitExceeded"), "case {case}");
        assert!(!marks(&effects.trace), "case {case}");
    }
}

/// The kubelet writes its pods and its node independently.
#[test]
fn a_lost_pod_waits_for_the_boot_that_its_node_is_yet_to_show() {
    let mut api = cluster(failed_pod(&[cut("main")]), Some(NodeBoots::Same));
    for _ in 0..3 {
        let effects = sync(&mut api);
        assert_eq!((effects.failed, effects.create_calls, effects.is_err), (0, 0, false));
        assert_eq!(effects.requeue_seconds, Some(1));
        api.now += SignedDuration::from_secs(4);
    }
    assert!(!is_marked(&api));
    let mut boots_late = api.clone();
    boots_late.memory.boots.insert(uid("p"), booted());
    sync(&mut boots_late);
    assert!(is_marked(&boots_late));

    api.now += SignedDuration::from_secs(3);
    let effects = sync(&mut api);
    assert_eq!((effects.failed, effects.conditions), (1, failed("BackoffLimitExceeded")));
    assert!(!is_marked(&api), "the node runs in its old boot: the pod was lost otherwise");
}

/// A Job of many pods goes on next to one that was cut.
#[test]
fn no_other_pod_waits_for_the_boot_of_a_lost_one() {
    let job = ignoring().spec("parallelism", 3).spec("completions", 4);
    let mut api = api(job, vec![failed_pod(&[cut("main")]), pod("done", "Succeeded").on_node()]);
    api.memory.boots = [(uid("p"), NodeBoots::Same)].into();
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.failed, effects.is_err), (1, 0, false));
    assert_eq!(effects.created.len(), 2, "the lost pod keeps its place");
    assert_eq!(effects.requeue_seconds, Some(1));
    assert!(!is_marked(&api));
    api.memory.boots.insert(uid("p"), booted());
    for _ in 0..3 {
        sync(&mut api);
    }
    assert!(is_marked(&api));
    assert_eq!(sync(&mut api).failed, 0);
}

#[test]
fn without_the_flag_a_lost_pod_counts_as_upstream_counts_it() {
    for boots in [None, Some(NodeBoots::Same), Some(booted())] {
        let mut api = cluster(failed_pod(&[cut("main")]), boots);
        api.settings.lost_disruption_target = false;
        assert_eq!(sync(&mut api).conditions, failed("BackoffLimitExceeded"));
        assert!(!is_marked(&api));
    }
}

#[test]
fn a_refusal_of_the_mark_lets_a_lost_pod_count_as_it_is() {
    let mut api = cluster(failed_pod(&[cut("main")]), Some(booted()));
    let refuse = |step: &Step, _| {
        let refused = || Failure::new(FailureKind::Forbidden, "no such right");
        matches!(step, Step::MarkFault(_)).then(refused)
    };
    let first = sync_with(&mut api, &refuse);
    let text = "FailedDisruptionTarget: Pod p does not get DisruptionTarget (the pod's containers \
                ended with the boot of their node (boot boot-1 then, boot-2 now)): no such right";
    assert_eq!(first.events(), [text]);
    assert_eq!(sync_with(&mut api, &refuse).conditions, failed("BackoffLimitExceeded"));
}

#[test]
fn the_patch_of_a_lost_pod_names_both_boots() {
    let condition = |boots| {
        let pod = std::sync::Arc::new(failed_pod(&[cut("main")]).build());
        let fault = NodeFault { pod, kind: FaultKind::Lost(boots) };
        mark_fault_patch(&fault, now())["status"]["conditions"][0].clone()
    };
    let known = condition(Some(booted()));
    assert_eq!(known["reason"], "LostByNode");
    let text = "the pod's containers ended with the boot of their node (boot boot-1 then, boot-2 \
                now)";
    assert_eq!(known["message"], text);
    let unknown = condition(None);
    let text = "the node lost the pod's containers; how they ended is not known";
    assert_eq!((&unknown["reason"], &unknown["message"]), (&json!("LostByNode"), &json!(text)));
}

/// A Job that wants fewer pods deletes none that has failed: it is counted first.
#[test]
fn a_pod_that_waits_for_the_boot_of_its_node_is_not_deleted() {
    let table = [
        ("suspended", ignoring().spec("suspend", true)),
        ("scaled down", ignoring().spec("parallelism", 0)),
    ];
    for (case, job) in table {
        let mut waits = api(job, vec![failed_pod(&[cut("main")])]);
        waits.memory.boots = [(uid("p"), NodeBoots::Same)].into();
        let first = sync(&mut waits);
        assert_eq!((first.deleted.len(), first.failed, first.requeue_seconds), (0, 0, Some(1)));
        let mut booted = waits.clone();
        booted.memory.boots.insert(uid("p"), self::booted());
        for _ in 0..3 {
            sync(&mut booted);
        }
        assert!(is_marked(&booted), "{case}");
        let last = sync(&mut booted);
        assert_eq!((last.active, last.failed, last.deleted.len()), (0, 0, 0), "{case}");
        waits.now += SignedDuration::from_secs(15);
        assert_eq!(sync(&mut waits).failed, 1, "{case}: no boot came");
    }
}

#[test]
fn a_pod_that_waits_for_the_boot_of_its_node_takes_no_place_from_a_live_one() {
    let running = pod("runs", "Running").on_node();
    let mut api = api(ignoring(), vec![failed_pod(&[cut("main")]), running]);
    api.memory.boots = [(uid("p"), NodeBoots::Same)].into();
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.create_calls, effects.active), (0, 0, 2));
}
