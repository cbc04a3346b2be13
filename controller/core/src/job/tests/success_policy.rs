//! Tests `spec.successPolicy`. ([C11])

use serde_json::{Value, json};

use super::builders::{JobBuilder, api, complete, failed, job, message, pod, sync};

fn rule(indexes: Option<&str>, count: Option<i32>) -> Value {
    let mut rule = json!({});
    if let Some(indexes) = indexes {
        rule["succeededIndexes"] = indexes.into();
    }
    if let Some(count) = count {
        rule["succeededCount"] = count.into();
    }
    rule
}

fn with_rules(rules: &[Value]) -> JobBuilder {
    job().size(3, 10).indexed().spec("successPolicy", json!({"rules": rules}))
}

#[test]
fn the_first_rule_that_is_met_ends_the_job() {
    let indexes = |text| rule(Some(text), None);
    let count = |count| rule(None, Some(count));
    let both = |text, count| rule(Some(text), Some(count));
    for (rules, completed, met) in [
        (vec![count(1)], "", None),
        (vec![count(2)], "3", None),
        (vec![count(2)], "3,5", Some(0)),
        (vec![count(2)], "3,5,7", Some(0)),
        (vec![indexes("0,2")], "0,1", None),
        (vec![indexes("0,2")], "0-2", Some(0)),
        (vec![both("3-6", 2)], "0-2,6,7", None),
        (vec![both("3-6", 2)], "0-2,4-7", Some(0)),
        (vec![both("3-6", 1)], "3", Some(0)),
        (vec![both("3-6", 4)], "3-6", Some(0)),
        (vec![indexes("")], "0-5", None),
        (vec![indexes("x")], "0-5", None),
        (vec![indexes("10")], "0-9", None),
        (vec![indexes("x"), count(3)], "0-2", Some(1)),
        (vec![indexes("5"), indexes("1"), count(1)], "1", Some(1)),
        (vec![rule(None, None)], "0-5", None),
    ] {
        let mut api = api(with_rules(&rules).size(0, 10).completed(completed), vec![]);
        let effects = sync(&mut api);
        let row = format!("{rules:?} with {completed}");
        match met {
            // All ten indexes are complete without any rule.
            None if completed == "0-9" => {
                assert_eq!(effects.conditions, complete("CompletionsReached"), "{row}");
            }
            None => assert!(effects.conditions.is_empty(), "{row}"),
            Some(position) => {
                assert_eq!(effects.conditions, complete("SuccessPolicy"), "{row}");
                let reported = format!("Matched rules at index {position}");
                assert_eq!(message(&api, "Complete"), reported, "{row}");
            }
        }
    }
}

#[test]
fn pods_that_run_when_the_job_succeeds_are_deleted_and_not_counted() {
    let all = vec![
        pod("s", "Succeeded").index(0),
        pod("r", "Running").index(1).on_node().ready(),
        pod("p", "Pending").index(2),
    ];
    let effects = sync(&mut api(with_rules(&[rule(Some("0"), None)]), all));
    assert_eq!((effects.deleted.len(), effects.patches, effects.failed), (2, 3, 0));
    assert_eq!((effects.active, effects.ready, effects.terminating), (0, 0, 2));
    assert_eq!(effects.conditions, ["SuccessCriteriaMet/SuccessPolicy"]);
}

/// Failure is decided first, but a stored condition stands. ([C7], [C8])
#[test]
fn failure_wins_within_a_sync_and_what_is_stored_wins_over_both() {
    let met = || with_rules(&[rule(None, Some(1))]).size(0, 10).completed("3");
    let pods =
        || vec![pod("f", "Failed").index(0).failures(9).container("containerStatuses", "main", 5)];
    let success = |job: JobBuilder| job.condition("SuccessCriteriaMet", "SuccessPolicy", "stored");
    let limit = |job: JobBuilder| job.spec("backoffLimit", 0);
    let policy = |job: JobBuilder| {
        job.failure_policy(json!([
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [5]}}
        ]))
    };
    let per_index = |job: JobBuilder| {
        job.spec("backoffLimitPerIndex", 0)
            .spec("maxFailedIndexes", 0)
            .status("failedIndexes", "")
            .spec("backoffLimit", 99)
    };
    for (job, conditions) in [
        (limit(met()), failed("BackoffLimitExceeded")),
        (policy(met()), failed("PodFailurePolicy")),
        (per_index(met()), failed("MaxFailedIndexesExceeded")),
        (success(limit(met())), complete("SuccessPolicy")),
        (success(policy(met())), complete("SuccessPolicy")),
        (success(per_index(met())), complete("SuccessPolicy")),
        (met().condition("FailureTarget", "R", "m"), failed("R")),
    ] {
        let effects = sync(&mut api(job, pods()));
        assert_eq!(effects.conditions, conditions);
        assert_eq!(effects.failed, 1, "{conditions:?}");
    }
}

#[test]
fn a_success_policy_of_a_job_without_indexes_is_ignored() {
    let job = job().size(0, 5).spec("successPolicy", json!({"rules": [rule(None, Some(1))]}));
    let effects = sync(&mut api(job, vec![pod("s", "Succeeded")]));
    assert!(effects.conditions.is_empty());
}
