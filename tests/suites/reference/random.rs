//! Draws a Job and what its pods do, by seed, so that both controllers must bring the same about.
//!
//! An outcome must not hang on who is faster by a second. So the pods of a Job either run one after
//! the other, or all at once and then end in a drawn order, [`APART`] from each other. No more than
//! two of them fail, so that upstream's backoff stays below half a minute. And where a policy may
//! ignore it, only pods that run in turn are disrupted: we replace them at once.

use std::fmt::Write as _;

use lab::bed::{JobBuilder, job};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::scenarios::{End, Scenario, Step};

/// The time between the ends of two pods, in milliseconds. Upstream acts up to a second late.
const APART: u32 = 5_000;
/// How much longer than its first attempt the second attempt of a pod runs. It may begin when
/// another pod ends, and then ends between two others.
const RETRY_LONGER: u32 = 1_000;
/// The same where its container restarts, which may end the Job: both controllers see it restarted.
const RESTART_LONGER: u32 = 4_000;
/// The exit codes of pods that fail.
const CODES: [i32; 3] = [1, 2, 42];
/// The most pods of a Job that fail.
const FAILURES_MAX: usize = 2;

struct Draw {
    random: StdRng,
    completions: u32,
    is_indexed: bool,
    /// Whether one pod runs after the other.
    in_turn: bool,
    per_index: bool,
    restarts: bool,
    has_policy: bool,
}

/// The scenario of a seed. `run` keeps the names of several runs apart.
pub(crate) fn scenario(seed: u64, run: u32) -> Scenario {
    let mut random = StdRng::seed_from_u64(seed);
    let is_indexed = random.random_bool(0.8);
    let in_turn = !is_indexed || random.random_bool(0.25);
    let per_index = is_indexed && random.random_bool(0.4);
    let restarts = !per_index && random.random_bool(0.2);
    let has_policy = !restarts && random.random_bool(0.5);
    let completions = random.random_range(1..=4);
    let mut draw =
        Draw { random, completions, is_indexed, in_turn, per_index, restarts, has_policy };
    let name = format!("random-{seed}-{run}");
    let suspended = draw.chance(6);
    let job = draw.job(&name).spec("suspend", suspended);
    let suspended = suspended.then(|| {
        let waits = Step::Reaches(|state| state.conditions == ["Suspended"]);
        [waits, Step::Change(json!({"suspend": false}))]
    });
    let steps = suspended.into_iter().flatten().collect();
    Scenario { name, job, steps, end: End::Finished, takes_s: (0., 0.) }
}

impl Draw {
    fn chance(&mut self, of: u32) -> bool {
        self.random.random_ratio(1, of)
    }

    fn job(&mut self, name: &str) -> JobBuilder {
        let parallelism = if self.in_turn { 1 } else { self.completions };
        let mut job = job(name)
            .spec("completions", self.completions)
            .spec("parallelism", parallelism)
            .spec("completionMode", if self.is_indexed { "Indexed" } else { "NonIndexed" })
            .pod("restartPolicy", if self.restarts { "OnFailure" } else { "Never" });
        if self.per_index {
            job = job.spec("backoffLimitPerIndex", u32::from(self.chance(3)));
            if self.chance(2) {
                job = job.spec("maxFailedIndexes", self.random.random_range(0..self.completions));
            }
        } else if self.chance(2) {
            job = job.spec("backoffLimit", self.random.random_range(0..=1));
        }
        if self.has_policy {
            job = job.spec("podFailurePolicy", self.failure_policy());
        }
        if self.is_indexed && self.chance(3) {
            job = job.spec("successPolicy", self.success_policy());
        }
        if self.chance(3) {
            let fails_only = self.has_policy || self.chance(2);
            let policy = if fails_only { "Failed" } else { "TerminatingOrFailed" };
            job = job.spec("podReplacementPolicy", policy);
        }
        job.script(&self.script())
    }

    /// Up to three rules.
    fn failure_policy(&mut self) -> Value {
        let count = self.random.random_range(1..=3);
        let rules: Vec<Value> = (0..count).map(|_| self.rule()).collect();
        json!({"rules": rules})
    }

    fn rule(&mut self) -> Value {
        let mut actions = vec!["Ignore", "Count", "FailJob"];
        actions.extend(self.per_index.then_some("FailIndex"));
        let action = *actions.choose(&mut self.random).expect("there are some");
        if self.chance(3) {
            return json!({"action": action, "onPodConditions": [{"type": "DisruptionTarget"}]});
        }
        let mut codes = CODES;
        codes.shuffle(&mut self.random);
        let values = &mut codes[..self.random.random_range(1..=2)];
        values.sort_unstable();
        let operator = if self.chance(3) { "NotIn" } else { "In" };
        let mut requirement = json!({"operator": operator, "values": values});
        if self.chance(2) {
            requirement["containerName"] = "main".into();
        }
        json!({"action": action, "onExitCodes": requirement})
    }

    fn success_policy(&mut self) -> Value {
        let last = self.completions - 1;
        let first = self.random.random_range(0..=last);
        let indexes =
            json!(if first == last { format!("{first}") } else { format!("{first}-{last}") });
        let count = json!(self.random.random_range(1..=self.completions - first));
        let rule = match self.random.random_range(0..3) {
            0 => json!({"succeededIndexes": indexes}),
            1 => json!({"succeededCount": count}),
            _ => json!({"succeededIndexes": indexes, "succeededCount": count}),
        };
        json!({"rules": [rule]})
    }

    /// What each pod does, and when it ends.
    fn script(&mut self) -> String {
        let mut order: Vec<u32> = (0..self.completions).collect();
        order.shuffle(&mut self.random);
        let most = FAILURES_MAX.min(order.len());
        let failing = if self.chance(8) { 0 } else { self.random.random_range(1..=most) };
        if !self.is_indexed {
            // The attempts come one after the other, so the first ones fail.
            let failures: String = (0..failing).map(|_| self.failure(0) + " times=1; ").collect();
            let after = if self.restarts { RESTART_LONGER } else { 0 };
            return format!("{failures}succeed after={after}ms");
        }
        let mut script = String::new();
        let fails: Vec<u32> = order.choose_multiple(&mut self.random, failing).copied().collect();
        for (place, index) in (0..).zip(order) {
            let mut after = if self.in_turn { 0 } else { 500 + place * APART };
            if fails.contains(&index) {
                let failure = self.failure(after);
                let _ = write!(script, "index={index}: {failure} times=1; ");
                after += if self.restarts { RESTART_LONGER } else { RETRY_LONGER };
            }
            let _ = write!(script, "index={index}: succeed after={after}ms on-term=143; ");
        }
        script.trim_end_matches("; ").to_owned()
    }

    fn failure(&mut self, after: u32) -> String {
        if !self.restarts && (self.in_turn || !self.has_policy) && self.chance(3) {
            return format!("disrupt after={after}ms on-term=143");
        }
        let code = CODES.choose(&mut self.random).expect("there are some");
        format!("fail exit={code} after={after}ms on-term=143")
    }
}
