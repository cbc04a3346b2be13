//! Tests the names of the rules of a podFailurePolicy. (KEP-4443)

use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, api, failed, job, message, pod, sync};
use crate::job::{MetricEvent, RuleNames, SideEffect};

const NAMES: &str = "epilogue.dev/pod-failure-policy-names";

/// Rules with these names, an empty one for none. The rule at index N fails the Job for the exit
/// code 10 + N.
fn with_rules(names: &[&str], annotation: Option<&str>) -> JobBuilder {
    let rule = |(index, name): (usize, &&str)| {
        let codes = [index + 10];
        let mut rule =
            json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": codes}});
        if !name.is_empty() {
            rule["name"] = (*name).into();
        }
        rule
    };
    let rules: Vec<Value> = names.iter().enumerate().map(rule).collect();
    let job = job().size(1, 1).failure_policy(rules.into());
    annotation.into_iter().fold(job, annotated)
}

fn annotated(job: JobBuilder, names: &str) -> JobBuilder {
    let mut annotations = json!({});
    annotations[NAMES] = names.into();
    job.meta("annotations", annotations)
}

/// A pod that the rule at this index matches.
fn matched_by(rule: i32) -> PodBuilder {
    pod("p", "Failed").container("containerStatuses", "main", rule + 10)
}

#[test]
fn a_reason_names_the_rule_by_its_field_else_by_the_annotation_else_by_its_index() {
    for (names, annotation, rule, reason, named) in [
        (["", ""], None, 1, "PodFailurePolicy", ""),
        (["Exit10", ""], None, 0, "PodFailurePolicy_Exit10", " (Exit10)"),
        (["Exit10", ""], None, 1, "PodFailurePolicy_1", ""),
        (["a:b,c_", ""], None, 0, "PodFailurePolicy_a:b,c_", " (a:b,c_)"),
        (["", ""], Some("Exit10,Exit11"), 1, "PodFailurePolicy_Exit11", " (Exit11)"),
        (["", ""], Some("Exit10"), 1, "PodFailurePolicy_1", ""),
        (["", ""], Some(",Exit11"), 0, "PodFailurePolicy_0", ""),
        (["", ""], Some(""), 1, "PodFailurePolicy_1", ""),
        (["", ""], Some("0,1"), 1, "PodFailurePolicy_1", " (1)"),
        (["Exit10", ""], Some("A,B"), 0, "PodFailurePolicy_Exit10", " (Exit10)"),
        (["Exit10", ""], Some("A,B"), 1, "PodFailurePolicy_1", ""),
        // No API takes this name, nor this reason.
        (["no name", ""], None, 0, "PodFailurePolicy_0", ""),
    ] {
        let mut api = api(with_rules(&names, annotation), vec![matched_by(rule)]);
        let effects = sync(&mut api);
        let row = format!("{names:?} {annotation:?} {rule}");
        assert_eq!(effects.conditions, failed(reason), "{row}");
        let said = message(&api, "Failed");
        let words = format!("matching FailJob rule at index {rule}{named}; pod p");
        assert!(said.contains(&words), "{row}: {said}");
        assert_eq!(message(&api, "FailureTarget"), said, "{row}");
        let event = format!("{reason}: Container main for pod ns/p failed with exit code ");
        let events = effects.events();
        assert!(events.iter().any(|it| it.starts_with(&event)), "{row}: {events:?}");
        assert!(!events.iter().any(|it| it.starts_with("Invalid")), "{row}: {events:?}");
        let counted = |it: &SideEffect| {
            matches!(it, SideEffect::Count(MetricEvent::JobFinished { succeeded: false, .. }))
        };
        assert!(effects.trace.side_effects.iter().any(counted), "{row}");
    }
}

#[test]
fn a_stored_reason_stays_when_its_name_goes() {
    let stored =
        with_rules(&["", ""], None).condition("FailureTarget", "PodFailurePolicy_Exit10", "first");
    let mut api = api(stored, vec![matched_by(1)]);
    assert_eq!(sync(&mut api).conditions, failed("PodFailurePolicy_Exit10"));
    assert_eq!(message(&api, "Failed"), "first");
}

/// Other reasons stay, and so does what counts ignored failures.
#[test]
fn only_a_rule_that_fails_the_job_is_named() {
    let job = with_rules(&["A", "B"], None).spec("backoffLimit", 0);
    let effects = sync(&mut api(job, vec![matched_by(7)]));
    assert_eq!(effects.conditions, failed("BackoffLimitExceeded"));
}

#[test]
fn names_that_are_wrong_are_left_out_and_reported_once() {
    let long = "n".repeat(112);
    let cut = format!("\"{}\"", "n".repeat(64));
    let many = ",".repeat(20);
    for (names, problem, remedy) in [
        ("Exit-10", "\"Exit-10\" is not a name", "give names in the order of the rules"),
        ("Exit10, Exit11", "\" Exit11\" is not a name", "give names in the order"),
        ("Exit10:", "\"Exit10:\" is not a name", "no : at the end"),
        (&long, &format!("{cut} is not a name"), "at most 111 characters"),
        ("A,A", "\"A\" names two rules", "give each rule a name of its own"),
        ("1,A", "\"1\" names the rule at index 0", "give a number only to the rule at that"),
        ("00,A", "\"00\" names the rule at index 0", "give a number only to the rule at that"),
        ("A,,B", "there are more names than rules, 3 and 2", "give at most one name for each rule"),
        (&many, "21 names are more than 20", "give a name for each rule"),
    ] {
        let mut api = api(with_rules(&["", ""], Some(names)), vec![matched_by(1)]);
        let effects = sync(&mut api);
        assert_eq!(effects.conditions, failed("PodFailurePolicy"), "{names}");
        let events = effects.events();
        let reported = events.iter().find(|it| it.starts_with("InvalidAnnotation")).expect(names);
        let words = format!("{NAMES}: {problem}, and all names are left out; ");
        assert!(reported.contains(&words) && reported.contains(remedy), "{reported}");
        assert!(sync(&mut api).events().is_empty(), "{names}");
    }
    let without = annotated(job(), "A");
    let events = sync(&mut api(without, vec![])).events();
    assert!(
        events.iter().any(|it| it.contains("there are more names than rules, 1 and 0")),
        "{events:?}"
    );
}

/// The longest reason has 128 characters, and 20 such names are read whole.
#[test]
fn the_longest_names_are_read() {
    let names: Vec<String> = (0..20).map(|index| format!("{index:n>111}")).collect();
    let rules = [""; 20];
    let mut api = api(with_rules(&rules, Some(&names.join(","))), vec![matched_by(19)]);
    let reason = format!("PodFailurePolicy_{}", names[19]);
    assert_eq!(reason.len(), 128);
    assert_eq!(sync(&mut api).conditions, failed(&reason));
    assert!(RuleNames::parse("a,b").is_ok_and(|names| names.exceed(2).is_none()));
}
