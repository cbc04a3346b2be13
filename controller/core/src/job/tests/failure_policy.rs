//! Tests `spec.podFailurePolicy`. (KEP-3329)

use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, api, failed, job, message, pod, pods, sync};
use crate::job::{MetricEvent, SideEffect};

fn on_exit(action: &str, container: Option<&str>, operator: &str, codes: &[i32]) -> Value {
    let mut rule = json!({"action": action,
                          "onExitCodes": {"operator": operator, "values": codes}});
    if let Some(name) = container {
        rule["onExitCodes"]["containerName"] = name.into();
    }
    rule
}

fn on_condition(action: &str, kind: &str, status: Option<&str>) -> Value {
    let mut pattern = json!({"type": kind});
    if let Some(status) = status {
        pattern["status"] = status.into();
    }
    json!({"action": action, "onPodConditions": [pattern]})
}

fn with_rules(rules: &[Value]) -> JobBuilder {
    job().size(1, 1).failure_policy(json!(rules))
}

fn exit(code: i32) -> PodBuilder {
    pod("p", "Failed").container("containerStatuses", "main", code)
}

fn disrupted(status: &str) -> PodBuilder {
    pod("p", "Failed").with(|pod| {
        pod["status"]["conditions"] = json!([
            {"type": "PodScheduled", "status": "True"},
            {"type": "DisruptionTarget", "status": status},
        ]);
    })
}

/// The first matching rule decides; FailJob's message names the match. ([F2], [F3], [F4], [F6])
#[test]
fn the_first_rule_that_matches_and_can_be_acted_on_wins() {
    let fail = |operator: &str, codes: &[i32]| on_exit("FailJob", None, operator, codes);
    let named = |name: &str| on_exit("FailJob", Some(name), "In", &[5]);
    let init = |code: i32| pod("p", "Failed").container("initContainerStatuses", "init", code);
    let by_code = |container: &str, code: i32, rule: usize| {
        Some(format!(
            "Container {container} for pod ns/p failed with exit code {code} matching FailJob \
             rule at index {rule}"
        ))
    };
    let by_condition = |kind: &str, rule: usize| {
        Some(format!("Pod ns/p has condition {kind} matching FailJob rule at index {rule}"))
    };
    let target = |status| on_condition("FailJob", "DisruptionTarget", status);
    for (row, (rules, pod, expected)) in [
        (vec![fail("In", &[5, 6])], exit(5), by_code("main", 5, 0)),
        (vec![fail("In", &[5, 6])], exit(7), None),
        (vec![fail("In", &[0])], exit(0), None),
        (vec![fail("NotIn", &[5])], exit(0), None),
        (vec![fail("NotIn", &[5])], exit(5), None),
        (vec![fail("NotIn", &[5])], exit(6), by_code("main", 6, 0)),
        (vec![fail("In", &[-1])], exit(-1), by_code("main", -1, 0)),
        (vec![fail("Near", &[5])], exit(5), None),
        (vec![named("main")], exit(5), by_code("main", 5, 0)),
        (vec![named("other")], exit(5), None),
        (vec![fail("In", &[5])], init(5), by_code("init", 5, 0)),
        // Regular containers are checked before init containers.
        (
            vec![fail("In", &[5])],
            init(5).container("containerStatuses", "main", 5),
            by_code("main", 5, 0),
        ),
        (
            vec![fail("In", &[5])],
            init(5).container("containerStatuses", "main", 6),
            by_code("init", 5, 0),
        ),
        (vec![on_exit("Ignore", None, "In", &[5]), fail("In", &[5])], exit(5), None),
        (
            vec![on_exit("Explode", None, "In", &[5]), fail("In", &[5])],
            exit(5),
            by_code("main", 5, 1),
        ),
        (vec![target(None)], disrupted("True"), by_condition("DisruptionTarget", 0)),
        (vec![target(Some("True"))], disrupted("True"), by_condition("DisruptionTarget", 0)),
        (vec![target(None)], disrupted("False"), None),
        (vec![target(Some("False"))], disrupted("False"), by_condition("DisruptionTarget", 0)),
        (vec![target(None)], exit(5), None),
        (vec![], exit(5), None),
    ]
    .into_iter()
    .enumerate()
    {
        let mut api = api(with_rules(&rules), vec![pod]);
        let effects = sync(&mut api);
        match expected {
            Some(reported) => {
                assert_eq!(effects.conditions, failed("PodFailurePolicy"), "row {row}");
                let said = message(&api, "FailureTarget");
                assert!(said.starts_with(&format!("{reported}; pod p")), "row {row}: {said}");
                assert_eq!(message(&api, "Failed"), said, "row {row}");
                assert_eq!(effects.failed, 1, "row {row}");
            }
            None => assert!(effects.conditions.is_empty(), "row {row}: {:?}", effects.conditions),
        }
    }
}

/// The kubelet ends sidecars after the others, so that their codes say nothing of a failure. ([F3])
#[test]
fn a_sidecar_s_exit_code_decides_nothing_where_another_container_has_failed() {
    let ends = |code: i32, sidecar: i32| {
        exit(code).container("initContainerStatuses", "proxy", sidecar).with(|pod| {
            pod["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}]);
        })
    };
    let in_init = |pod: PodBuilder| pod.container("initContainerStatuses", "setup", 7);
    let others = on_exit("FailJob", None, "NotIn", &[42, 7]);
    let named = on_exit("FailJob", Some("proxy"), "In", &[137]);
    let ignored = on_exit("Ignore", None, "In", &[143]);
    let (fails, counts) = (failed("PodFailurePolicy"), Vec::<String>::new());
    for (row, (rules, pod, expected, failures)) in [
        (vec![others.clone()], ends(42, 143), &counts, 1),
        (vec![others.clone()], in_init(ends(0, 143)), &counts, 1),
        (vec![others], ends(0, 143), &fails, 1),
        (vec![named.clone()], ends(1, 137), &counts, 1),
        (vec![named], ends(0, 137), &fails, 1),
        (vec![ignored.clone()], ends(1, 143), &counts, 1),
        (vec![ignored], ends(0, 143), &counts, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let effects = sync(&mut api(with_rules(&rules), vec![pod]));
        assert_eq!((&effects.conditions, effects.failed), (expected, failures), "row {row}");
    }
}

/// A rule with onExitCodes never checks conditions. ([F2])
#[test]
fn exit_codes_shut_out_conditions_of_the_same_rule() {
    let mut rule = on_exit("FailJob", None, "In", &[5]);
    rule["onPodConditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let effects = sync(&mut api(with_rules(&[rule]), vec![disrupted("True")]));
    assert!(effects.conditions.is_empty());
}

/// The order of the pod's conditions decides, not that of the patterns. ([F4])
#[test]
fn the_first_condition_of_the_pod_is_reported() {
    let rule = json!({"action": "FailJob", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}, {"type": "PodScheduled", "status": "True"},
    ]});
    let mut api = api(with_rules(&[rule]), vec![disrupted("True")]);
    sync(&mut api);
    let reported = "Pod ns/p has condition PodScheduled matching FailJob rule at index 0; pod p was \
                    disrupted (no reason given)";
    assert_eq!(message(&api, "Failed"), reported);
}

/// A rule sees only pods that have ended. ([F1])
#[test]
fn a_pod_that_still_runs_triggers_no_rule() {
    let rules = [on_exit("FailJob", None, "In", &[5])];
    let running = pod("p", "Running").container("containerStatuses", "main", 5);
    let effects = sync(&mut api(with_rules(&rules), vec![running.clone()]));
    assert_eq!((effects.active, effects.conditions.len()), (1, 0));
    let effects = sync(&mut api(with_rules(&rules), vec![running.terminating()]));
    assert_eq!((effects.active, effects.failed, effects.conditions.len()), (0, 0, 0));
    assert_eq!((effects.patches, effects.created.len()), (0, 0), "a policy waits for the end");
}

/// The last status of a restarted container is not checked. ([F3])
#[test]
fn an_earlier_end_of_a_container_triggers_no_rule() {
    let restarted = pod("p", "Failed").with(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "main", "restartCount": 1, "state": {},
            "lastState": {"terminated": {"exitCode": 5}},
        }]);
    });
    let rules = [on_exit("FailJob", None, "In", &[5])];
    assert!(sync(&mut api(with_rules(&rules), vec![restarted])).conditions.is_empty());
}

/// Ignore does not count a failure; every other action does. ([F5])
#[test]
fn ignored_failures_do_not_count_and_all_others_do() {
    for (action, counts) in [("Ignore", 0), ("Count", 1), ("FailIndex", 1), ("Unheard", 1)] {
        let rules = [on_exit(action, None, "In", &[5])];
        let job = with_rules(&rules).spec("backoffLimit", 1);
        let effects = sync(&mut api(job, vec![exit(5)]));
        assert_eq!((effects.failed, effects.patches), (counts, 1), "{action}");
    }
    let rules = [on_exit("Ignore", None, "In", &[5])];
    let limit = with_rules(&rules).spec("backoffLimit", 0);
    assert!(sync(&mut api(limit, vec![exit(5)])).conditions.is_empty());
}

/// A stored FailureTarget is not reconsidered. ([C8])
#[test]
fn a_stored_message_outlives_its_pod() {
    let rules = [on_exit("FailJob", None, "In", &[5])];
    let stored = with_rules(&rules).condition("FailureTarget", "PodFailurePolicy", "first");
    for pods in [vec![], vec![exit(5)]] {
        let mut api = api(stored.clone(), pods);
        let effects = sync(&mut api);
        assert_eq!(effects.conditions, failed("PodFailurePolicy"));
        assert_eq!(message(&api, "Failed"), "first");
    }
}

/// What it was released as is in the status; a phase that turns later says nothing. ([F6])
#[test]
fn a_pod_that_was_released_fails_no_job() {
    let rules = [on_exit("FailJob", None, "In", &[5])];
    let effects = sync(&mut api(with_rules(&rules), vec![exit(5).untracked()]));
    assert_eq!((effects.conditions.len(), effects.failed), (0, 0));
}

/// When the Job fails, the policy also judges pods that still run. ([F1], [T4])
#[test]
fn pods_that_run_when_the_job_fails_are_counted_by_the_policy() {
    let rules =
        [on_condition("Ignore", "DisruptionTarget", None), on_exit("FailJob", None, "In", &[5])];
    let ignored = pod("i", "Running").on_node().condition("DisruptionTarget");
    let counted = pod("c", "Running").on_node();
    let job = with_rules(&rules).size(3, 3);
    let effects = sync(&mut api(job, vec![exit(5), ignored, counted]));
    assert_eq!((effects.failed, effects.deleted.len(), effects.patches), (2, 2, 3));
    let handled: Vec<_> = effects
        .trace
        .side_effects
        .iter()
        .filter_map(|side_effect| match side_effect {
            SideEffect::Count(MetricEvent::FailureHandled { action, pods }) => {
                Some((*action, *pods))
            }
            _ => None,
        })
        .collect();
    assert_eq!(handled, [("FailJob", 1), ("Ignore", 1)]);
}

/// Failures that match no rule are not counted. ([M5])
#[test]
fn unmatched_failures_are_not_tallied() {
    let effects = sync(&mut api(with_rules(&[on_exit("Ignore", None, "In", &[5])]), vec![exit(6)]));
    let handled = |side_effect: &SideEffect| {
        matches!(side_effect, SideEffect::Count(MetricEvent::FailureHandled { .. }))
    };
    assert!(!effects.trace.side_effects.iter().any(handled));
    assert_eq!(effects.failed, 1);
}

/// The policy comes before the limit. ([C7])
#[test]
fn fail_job_comes_before_the_backoff_limit() {
    let rules = [on_exit("FailJob", None, "In", &[5])];
    let mut both = pods("Failed", 2);
    both.push(exit(5));
    let effects = sync(&mut api(with_rules(&rules).spec("backoffLimit", 0), both));
    assert_eq!(effects.conditions, failed("PodFailurePolicy"));
}
