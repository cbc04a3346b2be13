//! Draws what a user does to a Job whose pods run on: other sizes, suspensions, deleted pods. After
//! each change both controllers must come to rest in the same state.

use lab::bed::job;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use super::scenarios::{End, Scenario, Step};

/// What follows a deleted pod: upstream's backoff, twice as long for each of them in a row.
const DELETIONS_MAX: u32 = 2;
const COMPLETIONS: u32 = 5;

struct Draw {
    random: StdRng,
    is_indexed: bool,
    /// Whether `completions` change with `parallelism`, so that indexes come and go.
    is_elastic: bool,
    parallelism: u32,
    deleted: u32,
    steps: Vec<Step>,
}

/// The scenario of a seed. `run` keeps the names of several runs apart.
pub(crate) fn scenario(seed: u64, run: u32) -> Scenario {
    let mut random = StdRng::seed_from_u64(seed);
    let is_indexed = random.random_bool(0.7);
    let is_elastic = is_indexed && random.random_bool(0.5);
    let parallelism = random.random_range(1..=4);
    // Where indexes wait for others, we go on with the next ones, and upstream does not.
    let per_index = is_elastic && random.random_bool(0.4);
    let policy = ["Failed", "TerminatingOrFailed"][random.random_range(0..2)];
    let mut draw =
        Draw { random, is_indexed, is_elastic, parallelism, deleted: 0, steps: Vec::new() };
    let name = format!("changes-{seed}-{run}");
    let mut job = job(&name)
        .spec("completionMode", if is_indexed { "Indexed" } else { "NonIndexed" })
        .spec("parallelism", parallelism)
        .spec("completions", if is_elastic { parallelism } else { COMPLETIONS })
        .spec("podReplacementPolicy", policy)
        .script("hang on-term=143 after=300ms");
    if per_index {
        job = job.spec("backoffLimitPerIndex", 6);
    }
    draw.settles();
    for _ in 0..draw.random.random_range(2..=4) {
        draw.change();
    }
    Scenario { name, job, steps: draw.steps, end: End::Now, takes_s: (0., 0.) }
}

impl Draw {
    fn settles(&mut self) {
        self.steps.push(Step::Settles { ready: self.parallelism, failed: self.deleted });
    }

    fn change(&mut self) {
        match self.random.random_range(0..4) {
            0 => {
                self.steps.push(Step::Change(json!({"suspend": true})));
                self.steps.push(Step::Settles { ready: 0, failed: self.deleted });
                self.steps.push(Step::Change(json!({"suspend": false})));
            }
            1 if self.parallelism > 0 && self.deleted < DELETIONS_MAX => {
                self.steps.push(Step::DeletePod);
                self.deleted += 1;
            }
            _ => {
                // Which of several equal indexes goes hangs on their ages.
                let least = match (self.is_indexed, self.is_elastic) {
                    (_, true) => 1,
                    (true, false) => self.parallelism,
                    (false, false) => 0,
                };
                self.parallelism = self.random.random_range(least..=4);
                let mut change = json!({"parallelism": self.parallelism});
                if self.is_elastic {
                    change["completions"] = self.parallelism.into();
                }
                self.steps.push(Step::Change(change));
            }
        }
        self.settles();
    }
}
