//! Explores small scopes exhaustively: every order of calls, watch events, kubelets and a few
//! faults, for the state and the plans that ship. Proves that the verdicts can fail.

use ::simulation::small_scopes::{
    self, ENDINGS, Ending, Faults, GANGS, JobKind, LEADERS, LOSSES, Limits, ONE, POLICIES, RARE,
    Report, Sabotage, Scope, TURNS, TWO, agent,
};

/// Explores scopes.
fn assert_hold(scopes: &[Scope]) {
    let explored = |scope| small_scopes::explore(scope, Limits::default());
    assert_as_expected(scopes.iter().map(|scope| (scope.name, scope.states, explored(scope))));
}

/// Prints how many states each scope has, by its name, and compares it with what is expected.
fn assert_as_expected(scopes: impl Iterator<Item = (&'static str, usize, Report)>) {
    let mut problems = Vec::new();
    for (name, expected, report) in scopes {
        println!("{name}: {} states, {} at rest", report.states, report.settled);
        match &report.violation {
            Some(violation) => problems.push(small_scopes::failure(name, violation)),
            None if report.states != expected => {
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
fn rare_two_leaders_and_losses_hold_in_large_scopes() {
    assert_hold(RARE);
}

#[test]
fn however_pods_end_each_counts_once_and_the_job_ends() {
    assert_hold(ENDINGS);
}

#[test]
fn a_pod_that_turns_failed_counts_as_it_was_listed_and_the_job_ends() {
    assert_hold(TURNS);
}

#[test]
fn each_policy_holds_in_any_order_and_the_job_ends() {
    assert_hold(POLICIES);
}

#[test]
fn the_pods_of_a_gang_join_its_only_group_in_any_order_and_the_job_ends() {
    assert_hold(GANGS);
}

/// Otherwise states that differ would be taken for one, and what follows from one would be missed.
#[test]
fn the_number_of_states_does_not_depend_on_the_order() {
    let depth_first = Limits { waiting_max: 1, ..Limits::default() };
    for scope in [LEADERS, LOSSES, ENDINGS, TURNS, POLICIES, GANGS].into_iter().flatten() {
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
    println!("{}", small_scopes::failure(scope.name, &violation));
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
const LATE_AND_LOST: Faults = Faults { late_watches: 1, ..LOST };
const ENDS: Faults = Faults { endings: 1, ..Faults::NONE };
const LOST_ENDS: Faults = Faults { endings: 1, ..LOST };

caught! {
    a_release_before_the_status_lists_the_pod_is_caught:
        ReleaseFirst in ONE, by "loses its finalizer and is not counted";
    a_sync_that_does_not_await_its_own_writes_is_caught:
        ForgetCreations in Scope { faults: LATE, ..TWO }, by "live pods";
    a_sync_that_forgets_a_creation_without_a_reply_is_caught:
        ForgetDoubts in Scope { faults: LATE_AND_LOST, ..ONE }, by "live pods";
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
    a_controller_that_strips_blindly_is_caught:
        StripBlindly in Scope { second_leader: 1, faults: CRASH, ..ONE },
        by "has ended, and is taken out of the count";
    a_success_that_turned_and_counts_as_a_failure_is_caught:
        BelieveTurns in Scope { faults: LOST_ENDS, endings: &[Ending::Refuse], indexed: true, ..TWO },
        by "completed its index and counts as failed";
    a_failed_phase_over_a_running_container_is_caught:
        FailStarted in Scope { kind: JobKind::PendingTimeout, ..ONE },
        by "is called Failed while its container runs";
    a_second_workload_of_a_job_is_caught:
        RenameWorkloads in Scope { kind: JobKind::Gang, faults: CRASH, ..ONE }, by "has 2 Workloads";
    a_pod_that_precedes_its_group_is_caught:
        BelieveGroups in Scope { kind: JobKind::Gang, faults: LOST, ..ONE }, by "its group is none";
}

#[test]
fn an_agent_reports_each_end_and_marks_no_live_pod_in_any_order() {
    let explored = |scope| small_scopes::explore_agent(scope, Limits::default());
    let scopes = agent::SMALL.iter();
    assert_as_expected(scopes.map(|scope| (scope.name, scope.states, explored(scope))));
}

/// A mistake of the agent has to lead to a violation with this text, by so many actions.
fn assert_agent_caught(sabotage: agent::Sabotage, scope: agent::Scope, text: &str, actions: usize) {
    let scope = agent::Scope { sabotage: Some(sabotage), ..scope };
    let report = small_scopes::explore_agent(&scope, Limits::default());
    let violation = report.violation.expect("the mistake must be caught");
    println!("{}", small_scopes::failure(scope.name, &violation));
    assert!(violation.problem.contains(text), "{sabotage:?}: {}", violation.problem);
    assert_eq!(violation.path.len(), actions, "{sabotage:?}");
}

macro_rules! agent_caught {
    ($($name:ident: $sabotage:ident in $scope:expr, by $text:literal after $actions:literal;)*) => {$(
        #[test]
        fn $name() {
            assert_agent_caught(agent::Sabotage::$sabotage, $scope, $text, $actions);
        }
    )*};
}

agent_caught! {
    an_agent_that_fails_a_running_pod_is_caught:
        FailFirst in agent::LIVES, by "is Failed while its container runs" after 4;
    an_agent_that_terminates_without_a_mark_is_caught:
        NeverMark in agent::LIVES, by "is terminated before it has DisruptionTarget" after 4;
    an_agent_that_leaves_pods_in_silence_is_caught:
        NeverEnd in agent::LIVES, by "unreported, and the agent did not say so" after 38;
    an_agent_that_releases_its_lock_early_is_caught:
        ReleaseFirst in agent::LIVES, by "the lock is released" after 3;
    a_mark_that_stays_after_a_cancel_is_caught:
        NeverClear in agent::CANCELLED, by "lives on with DisruptionTarget" after 19;
    an_agent_that_overwrites_the_mark_of_others_is_caught:
        Overwrite in agent::OTHERS_MARK, by "loses the DisruptionTarget of somebody else" after 3;
    an_agent_without_a_lock_after_a_cancel_is_caught:
        NeverLock in agent::CANCELLED, by "the agent holds no lock" after 26;
    an_agent_that_gives_an_action_twice_is_caught:
        GiveTwice in agent::LIVES, by "asked again with nothing new" after 2;
}
