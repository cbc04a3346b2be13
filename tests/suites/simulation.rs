//! Runs the simulation of the whole controller over many seeds, and proves that its checks fail if
//! the controller is broken.

use ::simulation::controller::{self, Counts, Options, SITUATIONS, Sabotage};

/// Fixed, so that a failure is a change of the code. `cargo lab sim --seeds N` runs more.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=2_000;

/// Each situation must be met as often: what judges it could not fail otherwise.
const MET_LEAST: u32 = 3;

/// The checks must catch a broken controller within this many seeds.
const CATCH_WITHIN: u64 = 3_000;

#[test]
fn every_seed_settles_without_a_violation() {
    let (mut failures, mut met) = (Vec::new(), Counts::default());
    for seed in SEEDS {
        let report = controller::run(seed, Options::default());
        met += report.stats.met;
        if !report.violations.is_empty() {
            failures.push(controller::failure(seed, &report));
        }
    }
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures.concat());
    let (table, rare) = met.table(&SITUATIONS, |_| true, MET_LEAST);
    println!("{table}");
    assert!(rare.is_empty(), "met fewer than {MET_LEAST} times: {rare:#?}");
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

/// A mistake has to lead to a violation with one of these texts.
fn assert_caught(sabotage: Sabotage, texts: &[&str]) {
    let seeds = 1..=CATCH_WITHIN;
    let caught = seeds.flat_map(|seed| {
        controller::run(seed, Options { sabotage: Some(sabotage), trace: false }).violations
    });
    let is_expected = |violation: &String| texts.iter().any(|text| violation.contains(text));
    assert!(caught.into_iter().any(|it| is_expected(&it)), "{sabotage:?} is not caught: {texts:?}");
}

macro_rules! caught {
    ($($name:ident: $sabotage:ident by $($text:literal),+;)*) => {$(
        #[test]
        fn $name() {
            assert_caught(Sabotage::$sabotage, &[$($text),+]);
        }
    )*};
}

caught! {
    a_controller_that_counts_again_after_a_lost_reply_is_caught:
        CountAgain by "moves without its UIDs", "is not the number of indexes";
    a_controller_that_releases_before_it_lists_is_caught:
        ReleaseFirst by "loses its finalizer";
    a_controller_that_does_not_wait_for_its_pods_is_caught:
        ForgetCreations by "live pods", "active pods";
    a_controller_that_forgets_creations_without_a_reply_is_caught:
        ForgetDoubts by "live pods";
    a_controller_that_forgets_what_it_released_and_wrote_is_caught:
        ForgetReleases by "";
    a_controller_that_does_not_hear_of_pods_that_end_is_caught:
        MissEvents by "not settled";
    a_controller_that_leaves_the_other_pods_of_a_lost_gang_is_caught:
        SpareGroup by "is counted while";
    a_pod_gc_that_trusts_its_watch_of_nodes_is_caught:
        TrustWatch by "whose kubelet is alive";
    a_pod_gc_that_overwrites_what_came_in_between_is_caught:
        ForgetVersion by "pod GC overwrites the end";
    a_pod_gc_that_takes_silence_for_the_end_is_caught:
        EndSilent by "which runs";
    a_pod_gc_that_marks_pods_of_any_node_is_caught:
        MarkAnyone by "whose node does not shut down";
    a_pod_gc_that_resets_a_condition_in_a_shutdown_is_caught:
        ClearAtOnce by "by a shutdown without its condition";
    a_pod_gc_that_leaves_conditions_of_a_cancelled_shutdown_is_caught:
        KeepMarks by "is marked for no shutdown";
    a_pod_gc_that_leaves_taints_of_an_agent_that_is_gone_is_caught:
        KeepTaints by "keeps its taint";
    a_pod_gc_that_removes_the_taint_of_a_node_that_shuts_down_is_caught:
        UntaintEarly by "which shuts down";
    a_pod_gc_that_fails_pods_without_consent_is_caught:
        KeepConsent by "no owner accepts";
}
