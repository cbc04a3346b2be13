//! Rolls what a seed is about: which faults, which settings, which Jobs. Many seeds leave most
//! faults out, so that strict checks apply and a failing seed is easy to read.

use std::time::Duration;

use controller_core::job::Settings;
use controller_core::podgc;
use controller_core::view::{Job, JobKey, WireJob};
use epilogue_common::names::MANAGED_BY;
use epilogue_common::names::job_option::{FINISHED_PODS_KEPT, FORCE_FAIL_AFTER};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::random::Random;
use super::world::World;

/// How rough a seed is. Chances are per mille.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    pub(super) lost_replies: u32,
    pub(super) refusals: u32,
    pub(super) quota: u32,
    pub(super) slow_calls: u32,
    pub(super) watch_stalls: u32,
    pub(super) watch_breaks: u32,
    pub(super) coalesces: bool,
    pub(super) crashes: u32,
    pub(super) second_leaders: u32,
    pub(super) node_losses: u32,
    pub(super) shutdowns: u32,
    /// Changes of the namespace's `force-fail-after`.
    pub(super) policy_changes: u32,
    pub(super) disruptions: u32,
    pub(super) foreign_writes: u32,
    /// Maximum number of milliseconds between two actions of users; zero disables them.
    pub(super) users: u32,
    /// Pods that fail, per mille.
    pub(super) failures: u32,
    /// Pods that run for many minutes, per mille.
    pub(super) long_pods: u32,
    pub(super) skew_seconds: i32,
    pub(super) is_limited: bool,
    pub(super) workers: usize,
    pub(super) jobs: usize,
    pub(super) quiet_after: Duration,
    pub(super) settings: Settings,
    /// The settings of our pod GC; without, that of kube-controller-manager runs.
    pub(super) pod_gc: Option<podgc::Settings>,
    /// `force-fail-after` of the namespace at first.
    pub(super) force_fail_after: Option<SignedDuration>,
}

impl Behaviour {
    pub(super) fn roll(random: &mut Random) -> Self {
        let quiet_after = random.millis(20_000, 400_000);
        Self {
            lost_replies: rate(random, 35, &[10, 40, 150]),
            refusals: rate(random, 45, &[10, 50, 200]),
            quota: rate(random, 15, &[100, 400]),
            slow_calls: rate(random, 40, &[20, 150]),
            watch_stalls: rate(random, 50, &[10, 50, 300]),
            watch_breaks: rate(random, 40, &[5, 40]),
            coalesces: random.percent(40),
            crashes: rate(random, 35, &[300, 900]),
            second_leaders: rate(random, 25, &[200, 600]),
            node_losses: rate(random, 50, &[100, 300, 600]),
            shutdowns: rate(random, 50, &[100, 300, 600]),
            policy_changes: rate(random, 30, &[20, 200]),
            disruptions: rate(random, 50, &[200, 500]),
            foreign_writes: rate(random, 40, &[100, 600]),
            users: rate(random, 60, &[3_000, 30_000]),
            failures: *random.pick(&[0, 150, 400, 800]),
            long_pods: rate(random, 40, &[200, 600]),
            skew_seconds: rate(random, 25, &[2, 60, 3_600]) as i32,
            is_limited: random.percent(20),
            workers: 1 + random.below(3),
            jobs: 1 + random.below(3),
            quiet_after,
            settings: settings(random),
            pod_gc: pod_gc(random),
            force_fail_after: random.percent(20).then_some(SignedDuration::from_secs(60)),
        }
    }

    /// Whether the API serves Workloads and PodGroups: in a third of the seeds, without a throw of
    /// the dice, so that the others stay as they are.
    pub(super) fn serves_groups(&self) -> bool {
        self.quiet_after.as_millis().is_multiple_of(3)
    }

    /// Whether pod GC deletes finished pods in excess of its own limits.
    pub(super) fn tidies(&self) -> bool {
        let limits = |it: &podgc::Settings| it.finished_max.or(it.failed_per_owner_max).is_some();
        self.pod_gc.as_ref().is_some_and(limits)
    }

    /// Whether anything breaks on its own.
    pub(super) fn has_chaos(&self) -> bool {
        self.crashes
            + self.second_leaders
            + self.node_losses
            + self.shutdowns
            + self.policy_changes
            + self.disruptions
            + self.foreign_writes
            > 0
    }
}

/// One of these chances in this percentage of the seeds; otherwise zero.
fn rate(random: &mut Random, percent: u32, from: &[u32]) -> u32 {
    if random.percent(percent) { *random.pick(from) } else { 0 }
}

fn settings(random: &mut Random) -> Settings {
    let small = |random: &mut Random| if random.percent(20) { 1 + random.below(4) } else { 500 };
    Settings {
        default_job_pod_failure_backoff: SignedDuration::from_secs(*random.pick(&[1, 10])),
        max_job_pod_failure_backoff: SignedDuration::from_secs(*random.pick(&[20, 600])),
        max_uncounted_pods: small(random),
        max_pod_create_delete_per_sync: small(random),
        ..Settings::default()
    }
}

fn pod_gc(random: &mut Random) -> Option<podgc::Settings> {
    random.percent(80).then(|| podgc::Settings {
        mode: *random.pick(&[podgc::Mode::Alongside, podgc::Mode::Instead]),
        finished_max: random.percent(15).then(|| random.below(5)),
        failed_per_owner_max: random.percent(15).then(|| random.below(3)),
        ..podgc::Settings::default()
    })
}

impl World {
    /// The first Jobs.
    pub(super) fn populate(&mut self) {
        let names = ["alpha", "beta", "gamma"];
        let names = &names[..self.behaviour.jobs];
        self.names = names.iter().map(|name| JobKey::new("ns", *name)).collect();
        for key in self.names.clone() {
            self.submit(&key);
        }
    }

    /// A user creates a Job of this name, unless there is one.
    pub(super) fn submit(&mut self, key: &JobKey) {
        let fields = job_fields(&mut self.random, key);
        let job = job(fields.clone());
        if self.api.create_job(job).is_some() {
            self.say(|_| format!("user creates {key}: {}", fields["spec"]));
        }
    }
}

fn job(fields: Value) -> Job {
    let parsed = WireJob::parse(fields).and_then(WireJob::view);
    parsed.expect("a Job that the simulation makes must be a Job")
}

fn job_fields(random: &mut Random, key: &JobKey) -> Value {
    let indexed = random.percent(50);
    let size = if random.percent(10) { 25 } else { 6 };
    let policy = random.percent(35);
    let on_failure = !policy && random.percent(20);
    let completions = match random.below(20) {
        0 => Some(0),
        1..4 if !indexed => None,
        _ => Some(random.between(1, size)),
    };
    let parallelism = match random.below(20) {
        0 => 0,
        1..6 => completions.unwrap_or(3),
        _ => random.between(1, size),
    };
    let mut spec = json!({
        "managedBy": MANAGED_BY,
        "parallelism": parallelism,
        "completions": completions,
        "completionMode": if indexed { "Indexed" } else { "NonIndexed" },
        "selector": {"matchLabels": {"app": &*key.name}},
        "template": {
            "metadata": {"labels": {"app": &*key.name}},
            "spec": {
                "restartPolicy": if on_failure { "OnFailure" } else { "Never" },
                "containers": [{"name": "main"}],
            },
        },
    });
    if random.percent(70) {
        spec["backoffLimit"] = random.between(0, 6).into();
    }
    if policy || random.percent(45) {
        spec["podReplacementPolicy"] = "Failed".into();
    }
    if random.percent(8) {
        spec["activeDeadlineSeconds"] = random.between(5, 300).into();
    }
    spec["suspend"] = random.percent(8).into();
    if indexed {
        per_index(random, &mut spec, completions.unwrap_or(0));
    }
    if policy {
        spec["podFailurePolicy"] = failure_policy(random, &spec);
    }
    // Without a throw of the dice, too.
    if parallelism % 2 == 1 {
        let whole = completions.unwrap_or(0) % 2 == 0;
        let mode = if whole { json!({"all": {}}) } else { json!({"single": {}}) };
        spec["scheduling"] = json!({"schedulingPolicy": {"gang": {}}, "disruptionMode": mode});
    }
    let mut metadata = json!({"namespace": &*key.namespace, "name": &*key.name});
    if random.percent(10) {
        metadata["annotations"][FORCE_FAIL_AFTER] = (*random.pick(&["0s", "45s"])).into();
    }
    // A third of the Jobs, without a throw of the dice, so that each seed keeps its Jobs.
    if (parallelism + completions.unwrap_or(0)) % 3 == 0 {
        metadata["annotations"][FINISHED_PODS_KEPT] = (parallelism % 4).to_string().into();
    }
    json!({"metadata": metadata, "spec": spec})
}

fn per_index(random: &mut Random, spec: &mut Value, completions: i32) {
    if random.percent(50) {
        spec["backoffLimitPerIndex"] = random.between(0, 2).into();
        spec["backoffLimit"] = i32::MAX.into();
        if random.percent(40) {
            spec["maxFailedIndexes"] = random.between(0, completions).into();
        }
    }
    if completions > 0 && random.percent(20) {
        let count = random.between(1, completions);
        spec["successPolicy"] = json!({"rules": [{"succeededCount": count}]});
    }
}

fn failure_policy(random: &mut Random, spec: &Value) -> Value {
    let codes = |action: &str, values: &[i32]| {
        let operator = "In";
        json!({"action": action, "onExitCodes": {"operator": operator, "values": values}})
    };
    let mut rules = Vec::new();
    if random.percent(70) {
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
        rules.push(json!({"action": "Ignore", "onPodConditions": disrupted}));
    }
    if random.percent(40) {
        rules.push(codes("FailJob", &[42]));
    }
    if spec["backoffLimitPerIndex"].is_number() && random.percent(50) {
        rules.push(codes("FailIndex", &[13]));
    }
    if random.percent(30) {
        rules.push(codes("Count", &[7]));
    }
    if random.percent(15) {
        rules.push(codes("Ignore", &[3]));
    }
    json!({"rules": rules})
}
