//! Explores small scopes exhaustively: every order of calls, watch events, kubelets and a few
//! faults, for the state and the plans that ship. Proves that the verdicts can fail.

use ::simulation::small_scopes::{
    self, ENDINGS, Faults, JobKind, LEADERS, LOSSES, Limits, ONE, POLICIES, Sabotage, Scope, TWO,
};

/// Explores scopes, prints how many states each has, and compares.
fn assert_hold(scopes: &[Scope]) {
    let mut problems = Vec::new();
    for scope in scopes {
        let report = small_scopes::explore(scope, Limits::default());
        println!("{}: {} states, {} at rest", scope.name, report.states, report.settled);
        match &report.violation {
            Some(violation) => problems.push(small_scopes::failure(scope, violation)),
            None if report.states != scope.states => {
                let (name, expected) = (scope.name, scope.states);
                let found = report.states;
                problems.push(format!("scope {name}: {found} states, expected {expected}\n"));
            }
            None => {}
        }
    }
    assert!(problems.is_empty(), "{}", problems.concat());
}

#[test]
fn two_leaders_count_each_pod_once_and_the_job_ends() {
    assert_hold(LEADERS);
}

#[test]
fn crashes_and_lost_replies_lose_no_pod_and_the_job_ends() {
    assert_hold(LOSSES);
}

#[test]
fn however_pods_end_each_counts_once_and_the_job_ends() {
    assert_hold(ENDINGS);
}

#[test]
fn each_policy_holds_in_any_order_and_the_job_ends() {
    assert_hold(POLICIES);
}

/// Otherwise states that differ would be taken for one, and what follows from one would be missed.
#[test]
fn the_number_of_states_does_not_depend_on_the_order() {
    let depth_first = Limits { waiting_max: 1, ..Limits::default() };
    for scope in [LEADERS, LOSSES, ENDINGS, POLICIES].into_iter().flatten() {
        if scope.states < 30_000 {
            let report = small_scopes::explore(scope, depth_first);
            assert_eq!(report.states, scope.states, "{}", scope.name);
        }
    }
}

/// A mistake has to lead to a violation with this text, by a path that begins at the start.
fn assert_caught(sabotage: Sabotage, scope: Scope, text: &str) {
    let scope = Scope { sabotage: Some(sabotage), ..scope };
    let report = small_scopes::explore(&scope, Limits::default());
    let violation = report.violation.expect("the mistake must be caught");
    println!("{}", small_scopes::failure(&scope, &violation));
    assert!(violation.problem.contains(text), "{sabotage:?}: {}", violation.problem);
    assert!(!violation.path.is_empty(), "{sabotage:?} needs no action");
}

macro_rules! caught {
    ($($name:ident: $sabotage:ident in $scope:expr, by $text:literal;)*) => {$(
        #[test]
        fn $name() {
            assert_caught(Sabotage::$sabotage, $scope, $text);
        }
    )*};
}

const LOST: Faults = Faults { lost_replies: 1, ..Faults::NONE };
const CRASH: Faults = Faults { crashes: 1, ..LOST };
const LATE: Faults = Faults { late_watches: 1, ..Faults::NONE };
const ENDS: Faults = Faults { endings: 1, ..Faults::NONE };

caught! {
    a_release_before_the_status_lists_the_pod_is_caught:
        ReleaseFirst in ONE, by "loses its finalizer and is not counted";
    a_sync_that_does_not_await_its_own_writes_is_caught:
        ForgetCreations in Scope { faults: LATE, ..TWO }, by "live pods";
    a_count_from_a_stale_watch_is_caught:
        ForgetReleases in Scope { faults: LATE, ..TWO }, by "counted";
    a_status_that_overwrites_the_other_leader_is_caught:
        OverwriteStatus in Scope { second_leader: 1, ..TWO }, by "does not follow the UIDs";
    a_replacement_of_a_terminating_pod_is_caught:
        ReplaceTerminating in Scope { kind: JobKind::ReplacesFailed, faults: ENDS, ..ONE },
        by "live pods of 1 at once";
    a_count_of_a_pod_that_was_not_released_is_caught:
        BelieveReleases in Scope { faults: LOST, ..ONE }, by "is counted and has its finalizer";
    a_controller_that_does_not_hear_of_ends_is_caught:
        MissEnds in ONE, by "nothing more happens";
    a_deletion_that_ignores_a_restored_finalizer_is_caught:
        DeleteBlindly in Scope { second_leader: 1, faults: CRASH, ..ONE },
        by "was deleted as excess and counts as failed";
    a_failed_phase_over_a_running_container_is_caught:
        FailStarted in Scope { kind: JobKind::PendingTimeout, ..ONE },
        by "is called Failed while its container runs";
}
