//! Tests properties of random Jobs and pods: sets of indexes behave as sets, a plan is made without
//! panic, and the three checks hold.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, ago, api, check, job, pod, sync_with, uid};
use crate::checks::fake_api::FakeApi;
use crate::job::{BackoffRecord, IndexSet, Memory};

/// How many cases proptest tries by default.
const USUAL_CASES: u32 = 256;

/// The same cases each time. No regression file is written: failures become tables.
/// `PROPTEST_CASES` and `PROPTEST_RNG_SEED` give more and other cases.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(36),
        fixed @ RngSeed::Fixed(_) => fixed,
    };
    let asked = if default.cases == USUAL_CASES { cases } else { default.cases };
    ProptestConfig { cases: asked, rng_seed, failure_persistence: None, ..default }
}

fn model(set: &IndexSet, bound: u32) -> BTreeSet<u32> {
    (0..bound).filter(|index| set.contains(*index)).collect()
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn index_sets_are_sets(
        left in prop::collection::btree_set(0_u32..40, 0..40),
        right in prop::collection::btree_set(0_u32..40, 0..40),
        bound in 0_u32..45,
        count in 0_usize..45,
    ) {
        let (a, b) = (IndexSet::collect(left.clone()), IndexSet::collect(right.clone()));
        prop_assert_eq!(model(&a, 45), left.clone());
        prop_assert_eq!(a.len() as usize, left.len());
        let both: BTreeSet<u32> = left.union(&right).copied().collect();
        prop_assert_eq!(&a.union(&b), &IndexSet::collect(both.clone()));
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).len() as usize, both.len());
        let common = left.intersection(&right).count();
        prop_assert_eq!(a.intersection_size(&b) as usize, common);
        let clipped: BTreeSet<u32> = left.range(..bound).copied().collect();
        prop_assert_eq!(model(&IndexSet::parse(&a.to_string(), bound), 45), clipped);
        let missing: Vec<u32> =
            (0..bound).filter(|it| !left.contains(it) && !right.contains(it)).take(count).collect();
        prop_assert_eq!(a.lowest_missing(bound, count, |it| b.contains(it)), missing);
    }

    #[test]
    fn any_text_is_some_set_below_its_bound(text in "[0-9,x-]{0,24}", bound in 0_u32..1000) {
        let set = IndexSet::parse(&text, bound);
        prop_assert!(!set.contains(bound));
        prop_assert_eq!(model(&set, bound).len(), set.len() as usize);
        prop_assert_eq!(IndexSet::parse(&set.to_string(), bound), set);
    }
}

/// The parts of a random API. A failure prints them, to build a table from.
#[derive(Clone, Debug)]
struct Sample {
    job: Value,
    pods: Vec<Value>,
    awaits: bool,
    backoff: Option<(u32, i64)>,
    cap: usize,
}

fn maybe(values: Vec<Value>) -> impl Strategy<Value = Option<Value>> {
    prop::option::of(select(values))
}

fn numbers(values: &[i64]) -> Vec<Value> {
    values.iter().copied().map(Value::from).collect()
}

prop_compose! {
    fn spec()(
        indexed in any::<bool>(),
        parallelism in select(vec![0, 1, 2, 3, 5]),
        completions in select(vec![None, Some(0), Some(1), Some(2), Some(3), Some(5)]),
        backoff_limit in maybe(numbers(&[0, 1, 2, 6])),
        per_index in maybe(numbers(&[0, 1, 2])),
        max_failed in maybe(numbers(&[0, 1, 3])),
        deadline in maybe(numbers(&[0, 5, 50, 500])),
        suspend in prop::bool::weighted(0.2),
        replacement in maybe(vec!["Failed".into(), "TerminatingOrFailed".into()]),
        policy in prop::option::of(prop::collection::vec(rule(), 0..3)),
        success in prop::option::of(prop::collection::vec(success_rule(), 0..3)),
        restart in select(vec!["Never", "OnFailure"]),
    ) -> Value {
        let mut spec = json!({"parallelism": parallelism, "completions": completions,
                              "suspend": suspend});
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        spec["completionMode"] = mode.into();
        let fields = [
            ("backoffLimit", backoff_limit),
            ("activeDeadlineSeconds", deadline),
            ("podReplacementPolicy", replacement),
            ("podFailurePolicy", policy.map(|rules| json!({"rules": rules}))),
            ("backoffLimitPerIndex", per_index.filter(|_| indexed)),
            ("maxFailedIndexes", max_failed.filter(|_| indexed)),
            ("successPolicy", success.filter(|_| indexed).map(|rules| json!({"rules": rules}))),
        ];
        for (field, value) in fields {
            spec[field] = value.unwrap_or(Value::Null);
        }
        spec["restartPolicy"] = restart.into();
        spec
    }
}

prop_compose! {
    fn rule()(
        action in select(vec!["FailJob", "FailIndex", "Ignore", "Count", "Unheard"]),
        condition in any::<bool>(),
        operator in select(vec!["In", "NotIn", "Near"]),
    ) -> Value {
        if condition {
            json!({"action": action,
                   "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
        } else {
            json!({"action": action, "onExitCodes": {"operator": operator, "values": [5]}})
        }
    }
}

prop_compose! {
    fn success_rule()(
        indexes in maybe(vec!["0".into(), "0-2".into(), "1,3".into(), "x".into()]),
        count in maybe(numbers(&[1, 2])),
    ) -> Value {
        let mut rule = json!({});
        if let Some(indexes) = indexes { rule["succeededIndexes"] = indexes; }
        if let Some(count) = count { rule["succeededCount"] = count; }
        rule
    }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

prop_compose! {
    /// Parts of a status that the API would have let through.
    fn status()(
        counters in (0_i64..4, 0_i64..4),
        ends in prop::collection::vec(select(vec![0, 1, 2]), 5),
        listed in subsequence(NAMES.to_vec(), 0..4),
        split in 0_usize..4,
        started in prop::option::of(0_i64..60),
        condition in maybe(vec![
            json!(["FailureTarget", "True"]),
            json!(["FailureTarget", "False"]),
            json!(["SuccessCriteriaMet", "True"]),
            json!(["Suspended", "True"]),
            json!(["Suspended", "False"]),
            json!(["Failed", "False"]),
        ]),
    ) -> Value {
        let (succeeded, failed) = listed.split_at(split.min(listed.len()));
        json!({"counters": [counters.0, counters.1], "ends": ends, "succeeded": succeeded,
               "failed": failed, "started": started, "condition": condition})
    }
}

prop_compose! {
    fn one_pod()(
        phase in select(vec!["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
        index in maybe(["0", "1", "2", "3", "7", "x"].map(Value::from).to_vec()),
        failures in (0_u32..4, 0_u32..3),
        deleted in prop::bool::weighted(0.25),
        node in any::<bool>(),
        tracked in prop::bool::weighted(0.85),
        owner in select(vec!["ours", "ours", "ours", "ours", "none", "unselected", "other"]),
        condition in select(vec!["Ready", "DisruptionTarget", "PodScheduled"]),
        ended in prop::option::of((select(vec![0, 1, 5]), 0_i64..60)),
        restarts in 0_u32..3,
    ) -> Value {
        json!({"phase": phase, "index": index, "failures": [failures.0, failures.1],
               "deleted": deleted, "node": node, "tracked": tracked, "owner": owner,
               "condition": condition, "ended": ended, "restarts": restarts})
    }
}

prop_compose! {
    fn sample()(
        spec in spec(),
        status in status(),
        deleting in prop::bool::weighted(0.15),
        pods in prop::collection::vec(one_pod(), 0..6),
        awaits in prop::bool::weighted(0.15),
        backoff in prop::option::of((0_u32..4, 0_i64..30)),
        cap in select(vec![1, 2, 500]),
    ) -> Sample {
        let job = json!({"spec": spec, "status": status, "deleting": deleting});
        Sample { job, pods, awaits, backoff, cap }
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn build_job(sample: &Value) -> JobBuilder {
    let mut spec = sample["spec"].clone();
    let restart = spec["restartPolicy"].take();
    let mut built = job();
    for (field, value) in spec.as_object().into_iter().flatten() {
        if !value.is_null() || field == "completions" {
            built = built.spec(field, value.clone());
        }
    }
    let status = &sample["status"];
    let condition = texts(&status["condition"]);
    let starts = status["started"].as_i64();
    built = built
        .with(|job| job["spec"]["template"]["spec"]["restartPolicy"] = restart)
        .uncounted(&texts(&status["succeeded"]), &texts(&status["failed"]))
        .status("failed", status["counters"][1].clone());
    if let [kind, value] = condition[..] {
        built = built.condition_is(kind, value, "Stored", "m");
    }
    if let Some(seconds) = starts {
        built = built.started(seconds);
    }
    if sample["deleting"] == true {
        built = built.deleting();
    }
    if spec["completionMode"] != "Indexed" {
        return built.status("succeeded", status["counters"][0].clone());
    }
    let bound = spec["completions"].as_u64().unwrap_or(0);
    let ends = status["ends"].as_array().into_iter().flatten().zip(0_u32..);
    let of = |end: u64| {
        let all = ends.clone().filter(|(it, index)| **it == end && u64::from(*index) < bound);
        IndexSet::collect(all.map(|(_, index)| index)).to_string()
    };
    let built = built.completed(&of(1));
    let limited = !spec["backoffLimitPerIndex"].is_null();
    if limited { built.status("failedIndexes", of(2)) } else { built }
}

fn build_pod(name: &str, sample: &Value) -> PodBuilder {
    let number = |value: &Value| value.as_u64().unwrap_or(0) as u32;
    let mut built = pod(name, sample["phase"].as_str().unwrap_or_default())
        .failures(number(&sample["failures"][0]))
        .ignored_failures(number(&sample["failures"][1]))
        .restarts(number(&sample["restarts"]))
        .condition(sample["condition"].as_str().unwrap_or_default());
    if let Some(index) = sample["index"].as_str() {
        built = built.index(index);
    }
    if let (Some(code), Some(seconds)) = (sample["ended"][0].as_i64(), sample["ended"][1].as_i64())
    {
        built = built.ended(code as i32, seconds);
    }
    // A pod with restarts runs on a node.
    if sample["node"] == true || sample["restarts"] != 0 {
        built = built.on_node();
    }
    if sample["tracked"] == false {
        built = built.untracked();
    }
    match sample["owner"].as_str() {
        Some("none") => built = built.orphan(),
        Some("unselected") => built = built.unselected(),
        Some("other") => {
            built = built.with(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "x".into());
        }
        _ => {}
    }
    // A deleted pod that nothing holds no longer exists.
    let held = sample["tracked"] == true && sample["owner"] != "none";
    let lives =
        sample["node"] == true && sample["phase"] != "Succeeded" && sample["phase"] != "Failed";
    if sample["deleted"] == true && (held || lives) {
        built = built.terminating();
    }
    built
}

impl Sample {
    fn api(&self) -> FakeApi {
        let pods = NAMES.iter().zip(&self.pods).map(|(name, pod)| build_pod(name, pod)).collect();
        let mut api = api(build_job(&self.job), pods);
        api.memory.backoff = self.backoff.map(|(failures, seconds)| BackoffRecord {
            failures,
            last_failure: Some(ago(seconds)).filter(|_| failures > 0),
            ..BackoffRecord::default()
        });
        if self.awaits {
            api.memory.expectations.deleted.insert(uid("unseen"));
            api.memory.expectations.since = Some(api.now);
        }
        api.settings.max_uncounted_pods = self.cap;
        api
    }
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn any_plan_passes_the_checks(sample in sample()) {
        let mut api = sample.api();
        check(&api);
        api.counts_max = SignedDuration::from_mins(1);
        check(&api);
    }

    /// Whatever calls fail, the API refuses nothing and no counter exceeds its pods. In the end the
    /// outcome is the same as without faults.
    #[test]
    fn faults_only_cost_time(sample in sample(), faults in any::<u64>()) {
        let mut api = sample.api();
        let mut random = faults | 1;
        for _ in 0..6 {
            let state = std::cell::Cell::new(random);
            sync_with(&mut api, &|_, call| {
                let mut bits = state.get() ^ (call as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                bits ^= bits << 13;
                bits ^= bits >> 7;
                bits ^= bits << 17;
                state.set(bits);
                bits.is_multiple_of(3).then(super::builders::outage)
            });
            random = state.get();
            prop_assert!(api.refused.is_empty(), "{:?}", api.refused);
        }
        api.memory = Memory::default();
        check(&api);
    }
}
