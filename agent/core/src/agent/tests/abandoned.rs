//! Tests pods that have lost their sandbox, and that no kubelet starts again or reports.

use super::driver::*;
use super::stuck::{Node, enforce, enforcing};
use crate::agent::Enforcement;
use crate::pod::tests::pod;
use crate::pod::{Phase, PodView, RestartPolicy};
use crate::protocol::event::{RuntimeContainer, RuntimeState};

/// A pod that ran before the boot, and whose container would start again in its old sandbox.
fn own_policy() -> PodView {
    pod("a").never().with(|pod| pod.restarts_in_place = RestartPolicy::OnFailure)
}

/// A pod whose container was only created when the machine went down.
fn never_started() -> PodView {
    pod("a").never().not_started()
}

fn container(name: &str, exit_code: Option<i32>) -> RuntimeContainer {
    let id = format!("c-{name}");
    let (name, finished_at, reason) = (name.to_owned(), None, String::new());
    RuntimeContainer { id, name, exited: true, exit_code, finished_at, reason }
}

/// What is left after a boot.
fn lost(containers: &[(&str, Option<i32>)]) -> RuntimeState {
    let containers = containers.iter().map(|(name, code)| container(name, *code)).collect();
    RuntimeState { containers, sandbox_ready: false, sandbox_known: true }
}

/// The pod after ten minutes next to a live kubelet.
fn after_ten_minutes(pod: PodView, state: RuntimeState) -> PodView {
    let mut node = Node::of(enforce(), &plain(), pod, state);
    node.pass(600);
    assert_eq!(node.world.lies, [""; 0], "{:#?}", node.world.log);
    node.world.pods["a"].clone()
}

#[test]
fn a_pod_that_its_kubelet_leaves_without_a_sandbox_is_ended_as_disrupted() {
    for (row, pod, state) in [
        ("own policy", own_policy(), lost(&[("main", Some(255))])),
        ("created", never_started(), lost(&[("main", None)])),
        (
            "second created",
            never_started().phase(Phase::Pending).with(|pod| {
                pod.has_run = true;
                pod.containers = vec!["first".into(), "second".into()];
            }),
            lost(&[("first", Some(255)), ("second", None)]),
        ),
        ("a container that never came to be", never_started(), lost(&[("init", Some(0))])),
    ] {
        let mut node = Node::of(enforce(), &plain(), pod, state);
        node.tick(20);
        assert_eq!(node.world.done(&["inspect"]).len(), 0, "{row}: its kubelet may still report");
        node.pass(20);
        assert_eq!(node.writes(), [""; 0], "{row}: its kubelet may still make a sandbox");
        node.pass(60);
        let ended = &node.world.pods["a"];
        assert_eq!(ended.phase, Phase::Failed, "{row}: {:#?}", node.world.log);
        assert!(ended.is_disrupted(), "{row}");
        let words = "has lost its sandbox";
        assert!(node.world.reported.iter().any(|(_, text)| text.contains(words)), "{row}");
        node.pass(600);
        assert_eq!(node.writes().len(), 1, "{row}: {:#?}", node.world.log);
    }
}

#[test]
fn what_its_kubelet_reports_or_starts_is_left_to_it() {
    let ready = |state: RuntimeState| RuntimeState { sandbox_ready: true, ..state };
    for (row, pod, state) in [
        ("it exited for good", pod("a").never(), lost(&[("main", Some(255))])),
        ("it did its work", own_policy(), lost(&[("main", Some(0))])),
        ("with its sidecar", pod("a").never().sidecar(), lost(&[("main", Some(1))])),
        ("it restarts", pod("a"), lost(&[("main", Some(255))])),
        ("it begins anew", never_started(), lost(&[])),
        ("it is unknown", own_policy(), RuntimeState::default()),
        ("it starts slowly", never_started(), ready(lost(&[("init", Some(0))]))),
        ("it waits to restart", own_policy(), ready(lost(&[("main", Some(1))]))),
        (
            "it is shown running",
            own_policy().with(|pod| {
                pod.running_since = "2026-11-21T14:16:30Z".parse().ok();
            }),
            lost(&[("main", Some(255))]),
        ),
    ] {
        let pod = after_ten_minutes(pod, state);
        assert!(!pod.is_terminal() && !pod.is_disrupted(), "{row}: {pod:?}");
    }
}

#[test]
fn an_init_container_that_was_killed_for_memory_ends_its_pod_by_its_own_fault() {
    // Its kubelet stops the pod for the reason, and reports no end for the exit code. ([W21])
    let mut state = lost(&[("init", Some(0))]);
    state.containers[0].reason = "OOMKilled".into();
    let pod = after_ten_minutes(never_started(), state);
    assert_eq!(pod.phase, Phase::Failed);
    assert!(!pod.is_disrupted());
}

#[test]
fn a_container_that_was_killed_for_memory_before_it_is_no_cause_of_the_loss() {
    let mut state = lost(&[("main", Some(137))]);
    state.containers[0].reason = "OOMKilled".into();
    let pod = after_ten_minutes(own_policy(), state);
    assert_eq!(pod.phase, Phase::Failed);
    assert!(pod.is_disrupted());
}

#[test]
fn a_kubelet_that_makes_a_sandbox_in_time_is_not_forestalled() {
    let mut node = Node::of(enforce(), &plain(), never_started(), lost(&[("main", None)]));
    node.pass(40);
    assert_eq!(node.world.done(&["inspect"]).len(), 1);
    node.world.containers("a", &[None]);
    node.pass(600);
    assert_eq!(node.phase("a"), Phase::Pending);
}

#[test]
fn a_kubelet_that_is_gone_or_a_shutdown_leaves_them_alone() {
    let state = || lost(&[("main", Some(255))]);
    let mut node = Node::of(enforce(), &dead(), own_policy(), state());
    node.pass(600);
    assert_eq!(node.writes(), [""; 0]);

    let mut node = Node::of(enforcing(Enforcement::Off, false), &plain(), own_policy(), state());
    node.pass(600);
    assert_eq!(node.world.done(&["inspect", "fail"]), [""; 0]);
}

#[test]
fn an_agent_that_observes_says_what_it_would_do_once() {
    let settings = enforcing(Enforcement::Observe, false);
    let mut node = Node::of(settings, &plain(), own_policy(), lost(&[("main", Some(255))]));
    node.pass(1_200);
    assert_eq!(node.writes(), [""; 0]);
    assert_eq!(node.reported("Would be failed"), 1, "{:#?}", node.world.logged);
}
