//! Tests what our controller makes of a node that ends without an agent; needs `--all`.

use lab::node_table::{Case, Outcome, Replaced, Scenario};

use crate::shutdowns::{self, are_reported, no_mark_is_left};

fn play(scenario: Scenario, judge: fn(&Outcome)) {
    shutdowns::play(module_path!(), Case::of(scenario, false, None), judge);
}

/// The kubelet lives, and terminates what the Eviction API deletes: a pod that handles SIGTERM, and
/// one that ignores it for its whole grace period. With the policy `Failed` neither is replaced
/// before its end, and neither costs its Job a failure.
#[test]
fn drained_pods_are_replaced_after_their_end_and_cost_no_job_a_failure() {
    play(Scenario::Drained, |outcome| {
        let of_jobs = ["job-obeys", "job-leaves", "job-stubborn", "job-mesh", "job-own"];
        are_reported(outcome, &of_jobs);
        for role in ["job-obeys", "job-stubborn", "job-own"] {
            let row = outcome.row(role);
            let evicted = Some(("True".to_owned(), "EvictionByEvictionAPI".to_owned()));
            assert_eq!(row.seen.disruption, evicted, "{row:?}");
            let replaced = row.job.as_ref().map(|job| &job.replaced[..]);
            assert!(matches!(replaced, Some([Replaced::After(_)])), "{row:?}");
        }
    });
}

/// The kubelet calls the Jobs' pods Failed without a cause. The controller adds it before it
/// counts. It leaves bare pods alone.
#[test]
fn power_cut_costs_no_job_a_failure() {
    play(Scenario::PowerCut, |outcome| {
        are_reported(outcome, &["job-obeys", "job-leaves", "job-stubborn"]);
        no_mark_is_left(outcome);
        let never = outcome.row("never");
        assert!(never.seen.phase == "Failed" && never.seen.disruption.is_none(), "{never:?}");
    });
}
