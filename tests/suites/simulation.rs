//! Runs the simulation of the whole controller over many seeds, and proves that its checks fail if
//! the controller is broken.

use ::simulation::controller::{self, Ended, Options, Sabotage};

/// Fixed, so that a failure is a change of the code. `cargo lab sim --seed N --count N` runs more.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=2_000;

/// Seeds that failed in an earlier form of the simulation, before a bug was fixed: a terminating pod that was taken from its Job; pods
/// that the previous process had counted; a relabelled pod of a Job in deletion; `succeeded`, which
/// the API does not let decrease. Since nodes and pod GC are simulated, they draw other random numbers
/// and are seeds like all others.
const REGRESSIONS: [u64; 4] = [3_187, 2_725, 807, 447];

type CountOf = fn(&Ended) -> u64;

/// What pod GC can rest on, each with the number of pods that it failed for it. `NodeRebooted` is
/// not among them: no seed has met it yet.
const EVIDENCE: [(&str, CountOf); 4] = [
    ("NeverScheduled", |ended| ended.never_scheduled),
    ("NodeGone", |ended| ended.node_gone),
    ("OutOfService", |ended| ended.out_of_service),
    ("ForceFail", |ended| ended.force_failed),
];

/// The checks must catch a broken controller within this many seeds.
const CATCH_WITHIN: u64 = 300;

#[test]
fn every_seed_settles_without_a_violation() {
    let (mut failures, mut ended) = (Vec::new(), Vec::new());
    for seed in SEEDS.chain(REGRESSIONS) {
        let report = controller::run(seed, Options::default());
        ended.push(report.stats.ended);
        if !report.violations.is_empty() {
            failures.push(controller::failure(seed, &report));
        }
    }
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures.concat());
    // Otherwise the rules on pod GC would hold for want of cases.
    for (evidence, of) in EVIDENCE {
        let pods: u64 = ended.iter().map(of).sum();
        assert!(pods >= 5, "pod GC fails {pods} pods with the evidence {evidence}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..=20 {
        let options = Options { trace: true, ..Options::default() };
        let (first, again) = (controller::run(seed, options), controller::run(seed, options));
        let same = first.trace.iter().zip(&again.trace).take_while(|(a, b)| a == b).count();
        assert_eq!(first.trace.get(same), again.trace.get(same), "seed {seed}, line {same}");
        assert_eq!(first.stats, again.stats, "seed {seed}");
    }
}

/// The first seed in which the checks notice a mistake.
fn caught(sabotage: Sabotage) -> Option<(u64, String)> {
    (1..=CATCH_WITHIN).find_map(|seed| {
        let report = controller::run(seed, Options { sabotage: Some(sabotage), trace: false });
        report.violations.into_iter().next().map(|violation| (seed, violation))
    })
}

#[test]
fn a_controller_that_counts_again_after_a_lost_reply_is_caught() {
    let (_, violation) = caught(Sabotage::CountAgain).expect("must be caught");
    let texts = ["moves without its UIDs", "is not the number of indexes"];
    assert!(texts.iter().any(|text| violation.contains(text)), "{violation}");
}

#[test]
fn a_controller_that_releases_before_it_lists_is_caught() {
    let (_, violation) = caught(Sabotage::ReleaseFirst).expect("must be caught");
    assert!(violation.contains("loses its finalizer"), "{violation}");
}

#[test]
fn a_controller_that_does_not_wait_for_its_pods_is_caught() {
    let (_, violation) = caught(Sabotage::ForgetCreations).expect("must be caught");
    assert!(violation.contains("live pods") || violation.contains("active pods"), "{violation}");
}

#[test]
fn a_controller_that_forgets_what_it_released_and_wrote_is_caught() {
    caught(Sabotage::ForgetReleases).expect("must be caught");
}

#[test]
fn a_controller_that_does_not_hear_of_pods_that_end_is_caught() {
    let (_, violation) = caught(Sabotage::MissEvents).expect("must be caught");
    assert!(violation.contains("not settled"), "{violation}");
}

#[test]
fn a_pod_gc_that_trusts_its_watch_of_nodes_is_caught() {
    let (_, violation) = caught(Sabotage::TrustWatch).expect("must be caught");
    assert!(violation.contains("whose kubelet is alive"), "{violation}");
}

#[test]
fn a_pod_gc_that_overwrites_what_came_in_between_is_caught() {
    let (_, violation) = caught(Sabotage::ForgetVersion).expect("must be caught");
    assert!(violation.contains("pod GC"), "{violation}");
}

#[test]
fn a_pod_gc_that_takes_silence_for_the_end_is_caught() {
    let (_, violation) = caught(Sabotage::EndSilent).expect("must be caught");
    assert!(violation.contains("which runs"), "{violation}");
}
