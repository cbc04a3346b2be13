//! Holds the model of the API against the real one: both get the same random requests, and have to
//! give the same answers, versions in the same order, and the same events to watches.
//!
//! Replay a seed with `EPILOGUE_MODEL_SEED=17`; ask for a number of requests with
//! `EPILOGUE_MODEL_REQUESTS=10000`.

mod admission;
mod comparison;
mod expired;
mod generator;
mod jobs;
mod known;
mod normal;
mod pods;
mod run;
mod side;

use std::time::Duration;

use lab::Cluster;
use model_api::Flaw;
use tokio::time::Instant;

use run::play;

/// Requests of one seed, besides those that begin and end it.
const REQUESTS: usize = 250;
/// Seeds that run at once, each in a namespace of its own.
const AT_ONCE: u64 = 3;
/// Seeds of each run, if no number of requests is asked for.
const SEEDS: u64 = 6;
/// How long new seeds begin in the longer run.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);
/// Seeds within which a changed model must be found.
const SEEDS_OF_A_FLAW: u64 = 12;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: expected a number")))
}

fn cluster() -> Cluster {
    Cluster::of_tests("model_api").expect("the suite's cluster")
}

/// Plays so many seeds, or those that begin in time.
async fn plays(seeds: Option<u64>) {
    let begun = Instant::now();
    let mut seed = 0;
    let goes_on = |seed: u64| match seeds {
        Some(seeds) => seed < seeds,
        None => begun.elapsed() < BEGINS_WITHIN,
    };
    while goes_on(seed) {
        let cluster = &cluster();
        let runs = (0..AT_ONCE).map(|more| play(cluster, seed + more, REQUESTS, None));
        for outcome in futures::future::join_all(runs).await {
            outcome.unwrap_or_else(|difference| panic!("{difference}"));
        }
        seed += AT_ONCE;
    }
    println!("{seed} seeds, {} requests each, took {:?}", REQUESTS, begun.elapsed());
}

#[tokio::test]
async fn random_requests_get_the_same_answers_from_the_model_as_from_the_api() {
    if let Some(seed) = number("EPILOGUE_MODEL_SEED") {
        let outcome = play(&cluster(), seed, REQUESTS, None).await;
        return outcome.unwrap_or_else(|difference| panic!("{difference}"));
    }
    let asked_for = number("EPILOGUE_MODEL_REQUESTS").map(|it| it.div_ceil(REQUESTS as u64));
    plays(Some(asked_for.unwrap_or(SEEDS))).await;
}

#[tokio::test]
async fn rare_random_requests_get_the_same_answers_for_half_a_minute() {
    plays(None).await;
}

#[tokio::test]
async fn a_model_that_is_changed_in_one_rule_is_found() {
    let cluster = cluster();
    for flaw in Flaw::ALL {
        let mut found = None;
        for seed in 0..SEEDS_OF_A_FLAW {
            if let Err(difference) = play(&cluster, seed, REQUESTS, Some(flaw)).await {
                found = Some(difference);
                break;
            }
        }
        let found = found.unwrap_or_else(|| panic!("{flaw:?} is not found"));
        println!("{flaw:?}: {}", found.lines().next().unwrap_or_default());
    }
}
