//! Tests resets of a stale DisruptionTarget, and the pods of a node that shuts down.

use serde_json::{Value, json};

use crate::podgc::tests::{Fixture, announces, at, boot, deleted, node, phase, pod, ready, target};
use crate::podgc::{Settings, StaleReset};

const KUBELET: &str = "TerminationByKubelet";
const RESET: &str = "a: DisruptionTarget=False/-";

fn all() -> Fixture {
    Fixture::new(Settings { stale_reset: StaleReset::All, ..Settings::default() }, &["n"])
}

#[test]
fn a_condition_whose_pod_was_not_deleted_is_reset_after_two_minutes() {
    let mut fixture = all();
    fixture.pod(&target(pod("a"), "True", "EvictionByEvictionAPI", 0));
    assert!(fixture.pass(119).is_empty());
    assert_eq!(fixture.pass(1), [format!("{RESET} (pod was not deleted)")]);
}

#[test]
fn a_condition_without_a_time_is_reset_at_once() {
    let mut fixture = all();
    let mut pod = target(pod("a"), "True", "PreemptionByScheduler", 0);
    pod["status"]["conditions"][2]["lastTransitionTime"] = json!(null);
    fixture.pod(&pod);
    assert_eq!(fixture.pass(0).len(), 1);
}

#[test]
fn deleted_pods_terminal_pods_and_conditions_that_are_false_keep_theirs() {
    let reason = "DeletionByTaintManager";
    let mut fixture = all();
    fixture.pod(&deleted(target(pod("deleted"), "True", reason, 0), 0));
    fixture.pod(&phase(target(pod("failed"), "True", reason, 0), "Failed"));
    fixture.pod(&phase(target(pod("succeeded"), "True", reason, 0), "Succeeded"));
    fixture.pod(&target(pod("false"), "False", reason, 0));
    fixture.pod(&pod("none"));
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn by_default_only_conditions_with_the_kubelets_reason_are_reset() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&target(pod("a"), "True", "DeletionByTaintManager", 0));
    assert!(fixture.pass(3600).is_empty());
    fixture.pod(&target(pod("a"), "True", KUBELET, 3600));
    assert_eq!(fixture.pass(120), [format!("{RESET} (node did not shut down)")]);
    let off = Settings { stale_reset: StaleReset::Off, ..Settings::default() };
    let mut fixture = Fixture::new(off, &["n"]);
    fixture.pod(&target(pod("a"), "True", KUBELET, 0));
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn the_kubelet_s_reason_stays_while_it_may_be_true() {
    let shutting = format!("shutting-down;boot=boot-1;since={}", at(-5));
    let drained = format!("drained;boot=boot-1;at={}", at(-5));
    let mut ending = target(pod("a"), "True", KUBELET, 0);
    ending["spec"]["activeDeadlineSeconds"] = 1.into();
    ending["status"]["startTime"] = at(-1).into();
    let marked = target(pod("a"), "True", KUBELET, 0);
    let table = [
        (announces(node("n"), &shutting), &marked),
        (announces(node("n"), &drained), &marked),
        (ready(node("n"), "False", "node is shutting down", 0), &marked),
        (ready(node("n"), "Unknown", "", 0), &marked),
        (node("n"), &ending),
    ];
    for (node, pod) in table {
        let mut fixture = Fixture::of_one_node();
        fixture.node(&node);
        fixture.pod(pod);
        assert!(fixture.pass(24 * 3600).is_empty(), "{node}");
    }
}

/// The watch of nodes is behind: the API already shows the next shutdown, or the node's silence.
#[test]
fn nothing_is_reset_before_a_live_read_shows_that_the_node_is_up() {
    for now in [shutting_down(100), ready(node("n"), "Unknown", "", 100)] {
        let mut fixture = Fixture::of_one_node();
        fixture.pod(&target(pod("a"), "True", KUBELET, 0));
        fixture.live.insert("n".to_owned(), now.clone());
        assert!(fixture.pass(3600).is_empty(), "{now}");
        fixture.live.insert("n".to_owned(), node("n"));
        assert_eq!(fixture.pass(30), [format!("{RESET} (node did not shut down)")]);
    }
}

#[test]
fn a_node_that_is_back_has_two_minutes_to_report_the_pods_that_did_not_survive() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&target(pod("a"), "True", KUBELET, 0));
    fixture.node(&ready(node("n"), "Unknown", "", 40));
    fixture.pass(600);
    fixture.node(&announces(ready(boot(node("n"), "boot-2"), "True", "", 600), "idle"));
    assert!(fixture.pass(119).is_empty());
    assert_eq!(fixture.pass(1), [format!("{RESET} (node did not shut down)")]);
}

#[test]
fn a_node_that_was_back_so_soon_that_it_was_ready_all_the_time_has_them_too() {
    let shutting = format!("shutting-down;boot=boot-1;since={}", at(0));
    let mut fixture = Fixture::of_one_node();
    fixture.node(&announces(node("n"), &shutting));
    fixture.pod(&target(pod("a"), "True", KUBELET, 0));
    fixture.pass(145);
    fixture.node(&announces(node("n"), "idle"));
    assert!(fixture.pass(119).is_empty());
    assert_eq!(fixture.pass(1).len(), 1);
}

#[test]
fn a_pod_that_runs_again_after_a_boot_is_reset_at_once() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&target(pod("a"), "True", KUBELET, 0));
    fixture.pass(50);
    fixture.node(&announces(boot(node("n"), "boot-2"), "idle"));
    assert!(fixture.pass(5).is_empty(), "its status is older than the boot");
    let mut runs = target(pod("a"), "True", KUBELET, 0);
    runs["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = at(54).into();
    fixture.pod(&runs);
    assert_eq!(fixture.pass(0), [format!("{RESET} (pod runs again)")]);

    // A controller that did not see the boot has the announcement of the agent from before it.
    let before = format!("shutting-down;boot=boot-0;since={}", at(0));
    let mut fixture = Fixture::of_one_node();
    fixture.node(&announces(node("n"), &before));
    fixture.pod(&runs);
    assert_eq!(fixture.pass(0).len(), 1);
}

fn shutting_down(second: i64) -> Value {
    announces(node("n"), &format!("shutting-down;boot=boot-1;since={}", at(second)))
}

const MARKED: &str = "a: DisruptionTarget=True/TerminationByKubelet (node shuts down)";

#[test]
fn the_pods_of_a_node_that_shuts_down_are_marked_when_its_agent_had_its_time() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&shutting_down(0));
    assert!(fixture.pass(2).is_empty());
    assert_eq!(fixture.pass(1), [MARKED]);

    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&shutting_down(0));
    fixture.pass(1);
    fixture.pod(&target(pod("a"), "True", KUBELET, 1));
    assert!(fixture.pass(60).is_empty(), "the agent was faster");
}

#[test]
fn a_kubelet_that_says_that_it_shuts_down_is_believed_too() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&ready(node("n"), "False", "container x; node is shutting down", 0));
    assert_eq!(fixture.pass(3), [MARKED]);
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&ready(node("n"), "False", "runtime is down", 0));
    assert!(fixture.pass(60).is_empty());
}

#[test]
fn only_pods_that_cannot_survive_are_marked() {
    let mut always = pod("always");
    always["spec"]["restartPolicy"] = "Always".into();
    let mut ruled = pod("ruled");
    ruled["spec"]["containers"][0]["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers"}]);
    let mut mirror = pod("mirror");
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x".into();
    let mut young = pod("young");
    young["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = at(1).into();
    let mut idle = pod("idle");
    idle["status"]["containerStatuses"] = json!([]);
    let mut fixture = Fixture::of_one_node();
    for pod in [always, ruled, mirror, young, idle] {
        fixture.pod(&pod);
    }
    fixture.pod(&deleted(pod("deleted"), 0));
    fixture.pod(&phase(pod("pending"), "Pending"));
    fixture.pod(&phase(pod("failed"), "Failed"));
    fixture.pod(&target(pod("tainted"), "True", "DeletionByTaintManager", 0));
    fixture.node(&shutting_down(0));
    assert!(fixture.pass(60).is_empty());
}

/// They restart in their sandbox, which is lost with the node. ([W20])
#[test]
fn sidecars_and_containers_with_a_policy_of_their_own_do_not_survive() {
    let mut mesh = pod("a");
    mesh["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}]);
    let mut ruled = pod("a");
    ruled["spec"]["containers"][0]["restartPolicy"] = "OnFailure".into();
    ruled["spec"]["containers"][0]["restartPolicyRules"] = json!([{"action": "Restart"}]);
    for pod in [mesh, ruled] {
        let mut fixture = Fixture::of_one_node();
        fixture.pod(&pod);
        fixture.node(&shutting_down(0));
        assert_eq!(fixture.pass(3), [MARKED], "{pod}");
    }
}

#[test]
fn what_was_announced_in_another_boot_or_long_ago_marks_nothing() {
    for node in [boot(shutting_down(0), "boot-2"), shutting_down(-16 * 60)] {
        let mut fixture = Fixture::of_one_node();
        fixture.pod(&pod("a"));
        fixture.node(&node);
        assert!(fixture.pass(60).is_empty(), "{node}");
    }
    let mut fixture = Fixture::new(Settings { marks: false, ..Settings::default() }, &["n"]);
    fixture.pod(&pod("a"));
    fixture.node(&shutting_down(0));
    assert!(fixture.pass(60).is_empty());
}

#[test]
fn our_own_mark_goes_a_minute_after_the_shutdown_was_cancelled() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&shutting_down(0));
    assert_eq!(fixture.pass(3), [MARKED]);
    fixture.pod(&target(pod("a"), "True", KUBELET, 3));
    fixture.pass(10);
    fixture.node(&announces(node("n"), "idle"));
    assert!(fixture.pass(59).is_empty(), "a node that was back soon would still show the old boot");
    assert_eq!(fixture.pass(1), [format!("{RESET} (shutdown was cancelled)")]);
}
