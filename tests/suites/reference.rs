//! Compares our controller with upstream: both run the same scenarios on one API, and must end in
//! the same status with the same pods created. The scenarios are a table, and random Jobs. These
//! run with gang scheduling, so that both must make the same Workloads and PodGroups, too.
//!
//! Replay random Jobs with `EPILOGUE_REFERENCE_SEED=17 cargo lab test reference`, or `1-500`.

mod changes;
mod gangs;
mod random;
mod scenarios;
mod seen;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use lab::kubernetes::{Feature, Version};
use lab::seeds;
use scenarios::Scenario;
use seen::Seen;
use stage::Stage;

/// A Job whose pods fail at once, with a code that its policy ignores.
const LOOP: &str = "ignored-loop";
/// A Job of two indexes, one after the other.
const WAITING: &str = "waiting-index";
/// Upstream's backoff creates pods after 0, 10 and 30 s; without backoff there is one a second.
const LOOP_LASTS: Duration = Duration::from_secs(33);

/// Random Jobs of a run, and how many of them run at once.
const SEEDS: u64 = 40;
const AT_ONCE: usize = 40;
/// How random Jobs end, each at least once.
const ENDS: [&str; 7] = [
    "in progress",
    "Complete CompletionsReached",
    "Complete SuccessPolicy",
    "Failed BackoffLimitExceeded",
    "Failed FailedIndexes",
    "Failed MaxFailedIndexesExceeded",
    "Failed PodFailurePolicy",
];
/// A machine that was busy at the wrong moment may make a difference, but hardly every time.
const RUNS: u32 = 3;

/// What our controller brought about, and the differences, for human readers.
async fn compared(stage: &Stage, scenario: Scenario) -> (Seen, Option<String>) {
    let name = &scenario.name;
    let (ours, theirs) =
        tokio::join!(stage.ours().run(&scenario), stage.reference().run(&scenario));
    println!("{name}: {:.1} s, reference {:.1} s", ours.took_s, theirs.took_s);
    let took_s = (ours.took_s, theirs.took_s);
    let early = took_s.0 < scenario.takes_s.0 || took_s.1 < scenario.takes_s.1;
    let early = early.then(|| format!("took {took_s:?} s, and {:?} are awaited", scenario.takes_s));
    let difference = ours.seen.difference(&theirs.seen).or(early);
    (ours.seen, difference.map(|text| format!("{name}:\n{text}")))
}

/// The differences of those that differ, by name.
async fn differences(stage: &Stage, scenarios: Vec<Scenario>) -> BTreeMap<String, String> {
    let run = async |scenario: Scenario| {
        let name = scenario.name.clone();
        Some((name, Box::pin(compared(stage, scenario)).await.1?))
    };
    join_all(scenarios.into_iter().map(run)).await.into_iter().flatten().collect()
}

fn text(different: &BTreeMap<String, String>) -> String {
    different.values().flat_map(|each| ["\n", each.as_str()]).collect()
}

/// Runs the Job of a seed until both controllers agree; returns what it came to with us, and the
/// last difference if they never did.
async fn random(stage: &Stage, seed: u64) -> (Seen, Option<String>) {
    for run in 1.. {
        // Every fourth Job is changed while its pods run on.
        let draw = if seed.is_multiple_of(4) { changes::scenario } else { random::scenario };
        let scenario = gangs::with_scheduling(seed, draw(seed, run));
        let job = format!("{}\n{:?}", scenario.job.clone().raw(), scenario.steps);
        let (seen, difference) = Box::pin(compared(stage, scenario)).await;
        match difference {
            Some(text) if run < RUNS => println!("differs, is repeated: {text}\n{job}"),
            difference => {
                return (seen, difference.map(|text| format!("{text}\n{job}\n")));
            }
        }
    }
    unreachable!("the last run returns")
}

/// When the second pod of a Job comes whose first index waits, in seconds: with us, with upstream.
async fn next_pods(stage: &Stage) -> [i64; 2] {
    let next = async |side: &stage::Side| {
        let made = side.pods_made(WAITING, scenarios::waiting_index(), LOOP_LASTS).await;
        *made.get(1).unwrap_or_else(|| panic!("one pod: {made:?}"))
    };
    tokio::join!(next(stage.ours()), next(stage.reference())).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_controllers_bring_the_same_about() {
    if Feature::OwnControllerManager.is_missing() {
        return;
    }
    let stage = Stage::start().await;
    let (mut different, [our_next, their_next], ours, theirs) = tokio::join!(
        differences(&stage, scenarios::all()),
        next_pods(&stage),
        stage.ours().pods_made(LOOP, scenarios::ignored_loop(), LOOP_LASTS),
        stage.reference().pods_made(LOOP, scenarios::ignored_loop(), LOOP_LASTS),
    );
    stage.stop().await;
    for _ in 1..RUNS {
        let mut again = scenarios::all();
        again.retain(|scenario| different.contains_key(&scenario.name));
        if !again.is_empty() {
            println!("differ, and are repeated: {}", text(&different));
            let stage = Stage::start().await;
            different = differences(&stage, again).await;
            stage.stop().await;
        }
    }
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), text(&different));
    // Upstream lets an index that waits block those behind it. ([I11])
    assert!(our_next < 9 && their_next >= 9, "the second pod after {our_next} and {their_next} s");
    // The exact number at the very end depends on timing.
    let waits = ours.len() >= 2 && ours.len() <= theirs.len() + 2;
    assert!(waits, "pods of a loop after {ours:?} s, with upstream after {theirs:?} s");
    // Ignored failures count for the backoff of 10 s and 20 s. ([D1], [D2], [P5], [S15])
    let [0, second, rest @ ..] = &theirs[..] else { panic!("upstream made {theirs:?}") };
    let doubles = rest.first().is_none_or(|third| third - second >= 19);
    assert!(*second >= 9 && doubles && rest.len() < 2, "upstream made pods after {theirs:?} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_jobs_end_alike_under_both_controllers() {
    if Feature::OwnControllerManager.is_missing() {
        return;
    }
    let stage = Stage::with_gangs().await;
    let asked = seeds::asked_for("EPILOGUE_REFERENCE_SEED");
    let all: Vec<u64> = asked.clone().unwrap_or(1..=SEEDS).collect();
    let (mut ends, mut different) = (BTreeMap::<String, u32>::new(), Vec::new());
    let mut grouped = BTreeSet::new();
    for some in all.chunks(AT_ONCE) {
        for (seen, difference) in join_all(some.iter().map(|seed| random(&stage, *seed))).await {
            *ends.entry(seen.end()).or_default() += 1;
            grouped.extend(seen.grouped());
            different.extend(difference);
        }
    }
    stage.stop().await;
    println!("{ends:#?}");
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
    let lacks = |end: &&&str| !ends.contains_key(**end);
    let missing: Vec<_> = ENDS.iter().filter(lacks).collect();
    assert!(asked.is_some() || missing.is_empty(), "no Job ended by {missing:?}");
    let has_gangs = asked.is_none() && Version::of_tests().has(Feature::GangScheduling);
    let missing: Vec<_> = gangs::PARTS.iter().filter(|part| !grouped.contains(*part)).collect();
    assert!(!has_gangs || missing.is_empty(), "no PodGroup has {missing:?}");
}
