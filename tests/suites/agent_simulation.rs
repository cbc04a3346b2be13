//! Runs the simulation of the agent on its node over many seeds, and proves that its checks fail if
//! the agent is broken.

use ::simulation::agent::{self, Counts, Options, SITUATIONS, Sabotage, Stage};

/// Fixed, so that a failure is a change of the code. `cargo lab sim --agent --seeds N` runs more.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=1_600;

/// Seeds that failed once; `true` marks a node without strain.
const KEPT: &[(u64, bool)] = &[
    // The kubelet died at the signal, was back at once, and the lock was gone.
    (501_130, true),
    // The checks mistook a check that found no shutdown for one from before the signal.
    (502_823, true),
    // The wall clock jumped, the agent restarted, and it reported live pods as lost.
    (3_386, false),
    (6_098, false),
    // The agent repeated a drained record that the API had refused, after a pod had come.
    (9_250, false),
    (1_698, false),
    (8_719, false),
    (8_813, false),
    // A protected pod got every test of a verb in doubt, and the node's other pods no mark.
    (103_761, false),
    // A vague second report of a container's end replaced the cause that the kernel's log had.
    (201_846, false),
    // Reports about children that were killed overtook that about the end of their container.
    (2_019_499, false),
    (2_002_847, false),
    // A container was stopped after a kill of which no witness saw the outcome.
    (4_015_162, false),
    // The rights came after the time to stop pods, and before the end of that for reports.
    (2_023_646, false),
    // The agent and the kubelet wrote Failed at the same time.
    (2_031_226, false),
    // The removal of a mark was under way as the next shutdown began.
    (1_037_700, false),
    // The runtime was silent at a cancel, and the agent was restarted before it answered.
    (2_030_548, false),
    // The API was away after a cancel, and the next attempt came late.
    (2_035_895, false),
    // A frozen agent heard of a shutdown and of its kubelet's return at once.
    (4_001_891, false),
    // A mark that a recovery after a boot had settled was found to stand only a decision later.
    (5_002_349, false),
    // The API refused the deletion of a pod, which a user deleted later.
    (5_002_578, false),
    // The kubelet heard of a deletion minutes later, and counted its grace from then.
    (5_009_608, false),
    // A pod started after its mark, just before the machine was off.
    (5_017_266, false),
    // A pod that the agent had never seen ran when the node was announced as drained.
    (3_028_526, false),
    (1_035_545, false),
    // The log about a child arrived after two witnesses had seen the end of its container.
    (3_015_361, false),
    // A second shutdown took a mark over, and the agent was restarted after it was cancelled.
    (9_111_925, false),
    // A child was killed for memory just before the kubelet's SIGKILL.
    (9_128_882, false),
    // A mark was refused when the runtime reported that its pod had ended before the shutdown.
    (9_105_540, false),
    // A kubelet restarted a pod whose deletion was refused, as its Failed was on the way.
    (9_665_178, false),
    // A refusal was on its way back as the API granted the same for another pod.
    (9_667_811, false),
    // The kubelet came back and reported a pod just after the lock was released.
    (9_667_855, false),
    // All witnesses of a kill were lost, and a limit of the pod was the only one.
    (10_087_538, false),
    // A preempted pod had ended, unknown to the agent, and its condition was gone with its end.
    (12_067_104, false),
    // A shutdown stopped a pod whose eviction had been dropped before.
    (12_006_966, false),
    // A victim took its own grace of ten minutes after its deadline.
    (12_036_862, false),
    // The mark of a victim of an earlier run was not accepted, and it was given up.
    (12_081_552, false),
    // Pods whose images were being pulled were evicted one after the other, and freed nothing.
    (13_011_423, false),
];

/// Seeds that run once per action of the agent, which is killed after it: by turns without other
/// faults, and without strain.
const CRASHED_SEEDS: std::ops::RangeInclusive<u64> = 1..=36;

/// Seeds with all faults, but no strain, that run once per stage of the agent, which is killed in it.
const STAGED_SEEDS: std::ops::RangeInclusive<u64> = 1..=80;

/// Each situation must be met as often: what judges it could not fail otherwise.
const MET_LEAST: u32 = 3;

/// More crash points of one seed would only repeat.
const CRASHES_MAX: u64 = 45;

/// The checks must catch a broken agent within this many seeds.
const CATCH_WITHIN: u64 = 150;

/// The same for a mistake that only a rare node shows.
const CATCH_RARE_WITHIN: u64 = 1_200;

/// Whether a situation needs a run in which the agent is killed after one of its actions.
fn is_kill(words: &str) -> bool {
    words.starts_with("killed after")
}

/// Whether it needs one in which the agent is killed in a stage.
fn is_stage(words: &str) -> bool {
    words.starts_with("killed in stage")
}

/// Expects the runs to have met each of these situations, and prints how often.
fn expect_met(met: &Counts, wanted: impl Fn(&str) -> bool) {
    let (table, rare) = met.table(&SITUATIONS, wanted, MET_LEAST);
    println!("{table}");
    assert!(rare.is_empty(), "met fewer than {MET_LEAST} times: {rare:#?}");
}

#[test]
fn every_seed_ends_without_a_violation() {
    let (mut failures, mut met) = (Vec::new(), Counts::default());
    for seed in SEEDS {
        let options = Options::default();
        let report = agent::run(seed, options);
        met += report.stats.met;
        if !report.violations.is_empty() {
            failures.push(agent::failure(seed, options, &report));
        }
    }
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures.concat());
    expect_met(&met, |words| !is_kill(words) && !is_stage(words));
}

#[test]
fn a_seed_that_failed_once_ends_without_a_violation() {
    for &(seed, unstrained) in KEPT {
        let options = Options { unstrained, ..Options::default() };
        let report = agent::run(seed, options);
        assert!(report.violations.is_empty(), "{}", agent::failure(seed, options, &report));
    }
}

#[test]
fn an_agent_killed_after_any_action_violates_nothing() {
    let (mut failures, mut met) = (Vec::new(), Counts::default());
    for seed in CRASHED_SEEDS {
        let strict = seed % 2 == 1;
        let whole = Options { strict, unstrained: !strict, ..Options::default() };
        let actions = agent::run(seed, whole).stats.actions.min(CRASHES_MAX);
        for count in 1..=actions {
            let options = Options { crash_after: Some(count), ..whole };
            let report = agent::run(seed, options);
            met += report.stats.met;
            if !report.violations.is_empty() {
                failures.push(agent::failure(seed, options, &report));
            }
        }
    }
    assert!(failures.is_empty(), "{} runs failed:\n{}", failures.len(), failures.concat());
    expect_met(&met, is_kill);
}

#[test]
fn an_agent_killed_in_any_stage_violates_nothing() {
    let (mut failures, mut met) = (Vec::new(), Counts::default());
    for (seed, stage) in STAGED_SEEDS.flat_map(|seed| Stage::ALL.map(|stage| (seed, stage))) {
        let crash_in = Some(stage);
        let options = Options { crash_in, unstrained: true, ..Options::default() };
        let report = agent::run(seed, options);
        met += report.stats.met;
        if !report.violations.is_empty() {
            failures.push(agent::failure(seed, options, &report));
        }
    }
    assert!(failures.is_empty(), "{} runs failed:\n{}", failures.len(), failures.concat());
    expect_met(&met, is_stage);
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..=20 {
        let options = Options { trace: true, ..Options::default() };
        let (first, again) = (agent::run(seed, options), agent::run(seed, options));
        let same = first.trace.iter().zip(&again.trace).take_while(|(a, b)| a == b).count();
        assert_eq!(first.trace.get(same), again.trace.get(same), "seed {seed}, line {same}");
        assert_eq!(first.stats, again.stats, "seed {seed}");
    }
}

/// Expects the checks to notice the mistake, with these words, in one of the seeds.
fn caught(sabotage: Sabotage, words: &str) {
    caught_within(CATCH_WITHIN, sabotage, words);
}

fn caught_within(seeds: u64, sabotage: Sabotage, words: &str) {
    let mut others = Vec::new();
    let found = (1..=seeds).find(|&seed| {
        let options = Options { sabotage: Some(sabotage), ..Options::default() };
        let violations = agent::run(seed, options).violations;
        let found = violations.iter().any(|violation| violation.contains(words));
        others.extend(violations.into_iter().take(1));
        found
    });
    others.truncate(20);
    println!("{sabotage:?} is caught by {words:?} in seed {found:?}");
    assert!(found.is_some(), "{sabotage:?} is not caught by {words:?}, but by: {others:#?}");
}

#[test]
fn an_agent_that_does_not_hear_of_acknowledgements_is_caught() {
    caught(Sabotage::DropAcks, "");
}

#[test]
fn an_agent_that_releases_its_lock_at_once_is_caught() {
    caught(Sabotage::ReleaseAtOnce, "early, unreported");
}

#[test]
fn an_agent_that_never_releases_its_lock_is_caught() {
    caught(Sabotage::NeverRelease, "after its deadline");
}

#[test]
fn an_agent_that_says_failed_before_the_stop_is_caught() {
    caught(Sabotage::FailFirst, "of its containers run");
}

#[test]
fn an_agent_that_never_revokes_is_caught() {
    caught(Sabotage::NeverRevoke, "lives and is marked");
}

#[test]
fn an_agent_that_never_marks_is_caught() {
    caught(Sabotage::NeverMark, "is deleted before it is marked");
}

#[test]
fn an_agent_that_writes_the_drained_record_too_early_is_caught() {
    caught(Sabotage::DrainedFirst, "drained while");
}

#[test]
fn an_agent_that_leaves_its_taint_is_caught() {
    caught(Sabotage::KeepTaint, "the node is tainted");
}

#[test]
fn an_agent_that_stops_under_a_live_kubelet_is_caught() {
    caught(Sabotage::StopForDelete, "is stopped under a live kubelet");
}

#[test]
fn an_agent_without_a_journal_is_caught() {
    caught(Sabotage::NoJournal, "lives and is marked");
}

#[test]
fn an_agent_that_evicts_before_it_marks_is_caught() {
    caught(Sabotage::NeverMarkVictims, "is evicted before it is marked");
}

#[test]
fn an_agent_that_says_failed_of_a_running_victim_is_caught() {
    caught(Sabotage::FailVictimFirst, "of its containers run");
}

#[test]
fn an_agent_that_calls_a_pods_own_limit_a_disruption_is_caught() {
    caught(Sabotage::MarkOwnLimits, "exceeds its own limit and is marked");
}

#[test]
fn an_agent_that_evicts_critical_pods_is_caught() {
    caught(Sabotage::EvictCritical, "is terminated outside of a shutdown");
}

#[test]
fn an_agent_that_acts_where_it_should_only_say_is_caught() {
    caught(Sabotage::ActInObservation, "is evicted by an agent that only observes");
}

#[test]
fn an_agent_that_evicts_two_at_once_is_caught() {
    caught(Sabotage::EvictTwo, "are two victims at once");
}

#[test]
fn an_agent_that_evicts_alongside_the_kubelet_is_caught() {
    caught_within(CATCH_RARE_WITHIN, Sabotage::IgnorePressure, "is evicted while the kubelet says");
}

#[test]
fn an_agent_that_stops_what_its_kubelet_starts_again_is_caught() {
    caught(Sabotage::StopVictims, "may run again and is stopped under a live kubelet");
}

#[test]
fn an_agent_that_does_not_see_pressure_is_caught() {
    caught_within(CATCH_RARE_WITHIN, Sabotage::BlindToPressure, "the pressure has lasted for");
}

#[test]
fn an_agent_that_sees_pressure_where_there_is_none_is_caught() {
    caught(Sabotage::SeePressure, "and nothing is short");
}

#[test]
fn an_agent_that_marks_and_does_not_evict_is_caught() {
    caught(Sabotage::KeepVictims, "lives on and is marked at the end");
}

#[test]
fn an_agent_that_leaves_a_stalls_condition_is_caught() {
    caught(Sabotage::KeepStall, "is never removed");
}

#[test]
fn an_agent_that_takes_a_childs_kill_for_the_containers_is_caught() {
    caught(Sabotage::MournChildren, "is reported as killed for memory, and was not");
}

#[test]
fn an_agent_that_mistakes_limits_for_the_node_is_caught() {
    caught(Sabotage::BlameWrongly, "is reported as killed for");
}

#[test]
fn an_agent_that_says_nothing_of_kills_is_caught() {
    caught(Sabotage::KeepSilent, "was killed for memory, and no condition reports it");
}

#[test]
fn an_agent_that_fails_pods_that_run_is_caught() {
    caught(Sabotage::FailBlindly, "of its containers run");
}

#[test]
fn an_agent_that_fails_a_pod_again_and_again_is_caught() {
    caught(Sabotage::FailOften, "is failed again and again");
}

#[test]
fn an_agent_that_leaves_deleted_pods_is_caught() {
    caught(Sabotage::NeverUnstick, "nothing of it runs: not Failed");
}

#[test]
fn an_agent_that_takes_one_refusal_for_all_is_caught() {
    caught(Sabotage::StopAtRefusal, "early, unreported");
}

#[test]
fn an_agent_that_takes_a_sidecar_for_a_pod_that_starts_again_is_caught() {
    for words in [
        "is Failed, and all its containers ended with 0",
        "was lost with the machine, and its end does not say so",
    ] {
        caught_within(CATCH_RARE_WITHIN, Sabotage::TrustRestarts, words);
    }
}

#[test]
fn an_agent_that_leaves_pods_without_a_sandbox_is_caught() {
    caught(Sabotage::LeaveAbandoned, "has lost its sandbox");
}

#[test]
fn an_agent_that_knows_of_no_volume_in_use_is_caught() {
    caught(Sabotage::LeaveVolumes, "lock released under volumes of ended pods");
}

#[test]
fn an_agent_that_hears_no_notice_is_caught() {
    caught(Sabotage::IgnoreNotices, "the node is tainted: false");
}
