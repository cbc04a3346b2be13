//! Tests conditions: precedence, interim and terminal, texts.

use super::builders::{JobBuilder, ago, api, complete, failed, job, message, now, pod, pods, sync};

fn kinds(api: &crate::checks::fake_api::FakeApi) -> Vec<(String, String)> {
    let all = api.job.status.conditions.iter().flatten();
    all.map(|each| (each.type_.clone(), each.status.clone())).collect()
}

/// Both conditions of an end share reason, message and time. ([C1], [C2], [C3], [C5], [C6])
#[test]
fn both_ends_leave_the_interim_and_the_terminal_condition() {
    let ends = [
        (
            job().started(50),
            pods("Succeeded", 1),
            "SuccessCriteriaMet",
            "Complete",
            "CompletionsReached",
            "Reached expected number of succeeded pods",
        ),
        (
            job().started(50).spec("backoffLimit", 0),
            pods("Failed", 1),
            "FailureTarget",
            "Failed",
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit: 1 failure of 0 allowed; pod failed-0 failed, \
             and its status does not say why",
        ),
    ];
    for (job, pods, interim, terminal, reason, text) in ends {
        let mut api = api(job, pods);
        let effects = sync(&mut api);
        let both = vec![format!("{interim}/{reason}"), format!("{terminal}/{reason}")];
        assert_eq!(effects.conditions, both);
        for condition in api.job.status.conditions.iter().flatten() {
            assert_eq!(condition.message.as_deref(), Some(text));
            assert_eq!(condition.last_transition_time.as_ref().map(|it| it.0), Some(now()));
            assert_eq!(condition.last_probe_time.as_ref().map(|it| it.0), Some(now()));
        }
        let completed = api.job.status.completion_time.as_ref().map(|it| it.0);
        assert_eq!(completed, (terminal == "Complete").then(now));
    }
}

/// `Failed=False` becomes True in place. ([C4])
#[test]
fn a_terminal_condition_that_is_false_is_replaced() {
    let by_hand = job().spec("backoffLimit", 0).condition_is("Failed", "False", "R", "m");
    let mut api = api(by_hand, pods("Failed", 1));
    sync(&mut api);
    let found: Vec<_> = kinds(&api);
    assert_eq!(found, [("Failed".into(), "True".into()), ("FailureTarget".into(), "True".into())]);
}

/// Interim conditions that are not True decide nothing. ([C8])
#[test]
fn interim_conditions_that_are_not_true_decide_nothing() {
    for kind in ["FailureTarget", "SuccessCriteriaMet"] {
        for value in ["False", "Unknown"] {
            let by_hand = job().condition_is(kind, value, "R", "m");
            let effects = sync(&mut api(by_hand, vec![pod("a", "Running").on_node()]));
            assert_eq!((effects.deleted.len(), effects.active), (0, 1), "{kind}={value}");
        }
    }
}

/// Only a True condition finishes the Job. ([S4])
#[test]
fn only_a_true_terminal_condition_finishes() {
    for kind in ["Complete", "Failed"] {
        for value in ["False", "Unknown"] {
            let by_hand = job().condition_is(kind, value, "R", "m");
            assert_eq!(sync(&mut api(by_hand, vec![])).created.len(), 1, "{kind}={value}");
        }
        let done = job().condition(kind, "R", "m").started(50);
        let effects = sync(&mut api(done, pods("Failed", 1)));
        assert!(effects.trace.steps.is_empty() && effects.trace.plan.is_skipped(), "{kind}");
    }
}

/// Stored conditions keep reason and message, whatever else holds now. ([C8])
#[test]
fn stored_ends_keep_their_words() {
    let stored = |kind: &str| job().size(1, 1).condition(kind, "Mine", "my words");
    let mut success = api(stored("SuccessCriteriaMet"), vec![]);
    assert_eq!(sync(&mut success).conditions, complete("Mine"));
    assert_eq!(message(&success, "Complete"), "my words");
    let mut failure = api(stored("FailureTarget"), vec![]);
    assert_eq!(sync(&mut failure).conditions, failed("Mine"));
    assert_eq!(message(&failure, "Failed"), "my words");
    let times = failure.job.status.conditions.iter().flatten();
    let times: Vec<_> = times.map(|it| it.last_transition_time.clone().map(|it| it.0)).collect();
    assert_eq!(times, [Some(ago(5)), Some(now())], "the terminal one has a time of its own");
}

/// Completion needs enough successes and no active pod. ([C12])
#[test]
fn plain_completion_needs_enough_successes_and_no_active_pod() {
    let running = || vec![pod("a", "Running").on_node()];
    let row = |completions: Option<i32>, succeeded: i32| {
        job().size(0, completions).status("succeeded", succeeded)
    };
    for (job, is_complete) in [
        (row(Some(0), 0), true),
        (row(Some(1), 0), false),
        (row(Some(1), 1), true),
        (row(Some(3), 2), false),
        (row(Some(3), 3), true),
        (row(Some(3), 4), true),
        (row(None, 0), false),
        (row(None, 1), true),
    ] {
        let expected = if is_complete { complete("CompletionsReached") } else { vec![] };
        assert_eq!(sync(&mut api(job.clone(), vec![])).conditions, expected);
        // An excess pod is deleted first; a pod of a work queue may end by itself.
        let effects = sync(&mut api(job, running()));
        assert!(!effects.conditions.contains(&"Complete/CompletionsReached".to_owned()));
    }
}

/// The events of the end come only with the terminal write. ([T15])
#[test]
fn the_end_is_reported_once_it_is_stored() {
    let many = job().size(1, 1).status("succeeded", 2);
    let effects = sync(&mut api(many, vec![]));
    assert_eq!(
        effects.events(),
        [
            "TooManySucceededPods: Too many succeeded pods running after completion count reached",
            "Completed: Job completed",
        ]
    );
    let fails: fn() -> JobBuilder = || job().spec("backoffLimit", 0);
    let effects = sync(&mut api(fails(), pods("Failed", 1)));
    let reported = "BackoffLimitExceeded: Job has reached the specified backoff limit: 1 failure of \
                    0 allowed; pod failed-0 failed, and its status does not say why";
    assert_eq!(effects.events().last().map(String::as_str), Some(reported));
    let two = vec![pod("f", "Failed"), pod("t", "Running").terminating()];
    let effects = sync(&mut api(fails(), two));
    let is_end = |event: &String| event.starts_with("BackoffLimitExceeded");
    assert!(!effects.events().iter().any(is_end), "a pod still terminates");
    let mut refused = api(fails(), pods("Failed", 1));
    let effects = super::builders::sync_with(&mut refused, &|step, _| {
        matches!(step, crate::job::Step::WriteStatus(_)).then(super::builders::outage)
    });
    assert!(effects.events().is_empty() && !refused.memory.finished);
}
