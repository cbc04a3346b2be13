//! Draws Jobs, each with a script of its pods, and what must become of it.

use std::ops::RangeInclusive;

use lab::nodes::SCRIPT_ANNOTATION;
use serde_json::{Value, json};
use simulation::controller::Random;

use super::memory::PLAN;

/// A drawn Job.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) name: String,
    pub(super) job: Value,
    pub(super) expect: Expectation,
}

/// What the status must say at the end.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    /// The type of the terminal condition, and its reason if it has one of its own.
    pub(super) ends: (&'static str, Option<&'static str>),
    pub(super) succeeded: i64,
    pub(super) failed: RangeInclusive<i64>,
    /// Ranges of `completedIndexes` and `failedIndexes`, for an Indexed Job.
    pub(super) indexes: Option<(String, String)>,
}

/// How the names of Jobs begin that users suspend and resume amid faults.
pub(super) const SUSPENDED: &str = "suspended";
/// How the names of Jobs begin whose pods users delete.
pub(super) const DELETED: &str = "deleted";
/// How the names of Jobs begin that users delete.
pub(super) const REMOVED: &str = "removed";

const COMPLETE: (&str, Option<&str>) = ("Complete", None);

/// What makes the numbers of a run less than exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exactness {
    /// Each pod runs once, as its script says.
    Exact,
    /// More pods than needed may start, because a reply was lost or two replicas worked.
    MorePods,
    /// Pods may fail that their scripts let succeed, too.
    LostPods,
    /// The same, because a restore shows pods again that were stopped since.
    Restored,
    /// The same, and pods run long enough that a shutdown ends some.
    Shutdown,
    /// The same, and a restore may undo marks of pods that end.
    ShutdownRestored,
    /// The same, and pods use so much memory that some are evicted.
    Shortage,
}

impl Exactness {
    /// Whether pods may fail that their scripts let succeed.
    fn is_lossy(self) -> bool {
        !matches!(self, Self::Exact | Self::MorePods)
    }

    /// Whether a node shuts down.
    fn shuts_down(self) -> bool {
        matches!(self, Self::Shutdown | Self::ShutdownRestored)
    }
}

/// What pods do at SIGTERM.
const ON_TERM: [&str; 6] = [
    "",
    "on-term=143 after=2s",
    "on-term=143 after=8s",
    "on-term=ignore",
    "on-term=7",
    "on-term=0",
];

impl Plot {
    /// The n-th Job. Where pods may be lost, the Job outlives it.
    pub(super) fn draw(random: &mut Random, number: usize, exactness: Exactness) -> Self {
        let of_all = [
            succeed, retry, indexed, ignored, exhaust, exhaust, fail_job, per_index, criterion,
            suspended, deleted, removed,
        ];
        let of_lossy = [succeed, indexed, ignored];
        let of_restored = [succeed, retry, indexed, exhaust, suspended, deleted, removed];
        let choices = match exactness {
            Exactness::Restored => &of_restored[..],
            Exactness::ShutdownRestored => &of_lossy[..2],
            _ if exactness.is_lossy() => &of_lossy,
            _ => &of_all,
        };
        let (kind, mut spec, mut script, mut expect) = random.pick(choices)(random);
        // Failures by index and a policy need `Never`; the model of memory restarts nothing.
        let may_restart = !matches!(kind, "fail-job" | "ignored" | "per-index");
        let may_restart = may_restart && exactness != Exactness::Shortage;
        let restarts = may_restart && random.percent(50);
        if exactness.shuts_down() || exactness == Exactness::Shortage {
            let is_long = random.percent(40);
            let seconds = if is_long { random.between(90, 240) } else { random.between(5, 60) };
            let on_term = random.pick(&ON_TERM);
            script = format!("succeed after={seconds}s {on_term}");
            if restarts && random.percent(40) {
                script = format!("fail exit=1 after=8s on-term=7 times=1; {script}");
            }
        }
        match kind {
            "retry" | "indexed" if restarts => expect.failed = 0..=0,
            // The pod that runs is deleted then.
            "exhaust" if restarts => expect.failed = 1..=1,
            _ => {}
        }
        let must_fit = matches!(kind, "ignored" | "exhaust") && exactness != Exactness::Shortage;
        // The restarts of one pod more than needed could reach a limit.
        let may_exceed = restarts && kind == "retry" && exactness != Exactness::Exact;
        if exactness.is_lossy() && !must_fit || may_exceed {
            spec["backoffLimit"] = 50.into();
        }
        if random.percent(40) && spec.get("podFailurePolicy").is_none() {
            spec["podReplacementPolicy"] = "Failed".into();
        }
        spec["template"] = json!({
            "metadata": {"annotations": {SCRIPT_ANNOTATION: script}},
            "spec": {
                "restartPolicy": if restarts { "OnFailure" } else { "Never" },
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        if exactness.shuts_down() && random.percent(40) {
            spec["template"]["spec"]["priorityClassName"] = "system-cluster-critical".into();
            spec["template"]["spec"]["priority"] = 2_000_000_000.into();
        }
        if exactness == Exactness::Shortage {
            use_memory(random, kind, &mut spec["template"]);
        }
        let name = format!("{kind}-{number}");
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec,
        });
        Self { name, job, expect }
    }

    /// Whether a user may delete the Job.
    pub(super) fn may_go(&self) -> bool {
        self.name.starts_with(REMOVED)
    }

    /// What is wrong with the Job at the end.
    /// The kernel has killed so many of its pods.
    pub(super) fn problems(&self, job: &Value, exactness: Exactness, killed: i64) -> Vec<String> {
        let (name, status, expect) = (&self.name, &job["status"], &self.expect);
        let mut problems = Vec::new();
        let (kind, reason) = expect.ends;
        let ended = condition(job, kind);
        if ended.is_none_or(|it| reason.is_some_and(|reason| it["reason"] != reason)) {
            problems.push(format!("{name} does not end as scripted, {:?}: {status}", expect.ends));
        }
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        let (succeeded, failed) = (count("succeeded"), count("failed"));
        let more = exactness != Exactness::Exact && expect.indexes.is_none() && kind == "Complete";
        if succeeded != expect.succeeded && !(more && succeeded > expect.succeeded) {
            problems.push(format!(
                "{name} counts {succeeded} pods as succeeded, the script says {}",
                expect.succeeded
            ));
        }
        let fits = match exactness {
            Exactness::Exact => expect.failed.contains(&failed),
            // A pod that would have failed may be deleted as excess first.
            Exactness::MorePods if kind == "Complete" => failed <= *expect.failed.end(),
            Exactness::MorePods | Exactness::Restored if kind == "Failed" => {
                failed >= *expect.failed.start()
            }
            _ => !name.starts_with("ignored") || failed <= killed,
        };
        if !fits {
            let expected = &expect.failed;
            problems.push(format!(
                "{name} counts {failed} pods as failed, the script says {expected:?}"
            ));
        }
        if let Some((completed, lost)) = &expect.indexes {
            let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
            let found = (text("completedIndexes"), text("failedIndexes"));
            if found != (completed.clone(), lost.clone()) {
                problems.push(format!(
                    "{name} has the indexes {found:?}, the script says {:?}",
                    (completed, lost)
                ));
            }
        }
        problems
    }
}

/// Draws how much memory pods ask for and use, and their priority.
fn use_memory(random: &mut Random, kind: &str, template: &mut Value) {
    let is_limited = kind != "ignored" && random.percent(30);
    let peak = if random.percent(30) { random.between(20, 200) } else { random.between(300, 1000) };
    let rise = random.between(5, 30);
    let limit = is_limited.then(|| random.between(100, 500));
    let plan = json!({"peak": peak, "rise": rise, "limit": limit}).to_string();
    template["metadata"]["annotations"][PLAN] = plan.into();
    let container = &mut template["spec"]["containers"][0];
    if let Some(limit) = limit {
        container["resources"]["limits"]["memory"] = format!("{limit}Mi").into();
    }
    if random.percent(50) {
        let request = limit.unwrap_or(random.between(50, 800));
        container["resources"]["requests"]["memory"] = format!("{request}Mi").into();
    }
    if random.percent(30) {
        template["spec"]["priorityClassName"] = "high".into();
        template["spec"]["priority"] = 1_000.into();
    }
}

/// The condition of this type, if it is true.
pub(super) fn condition<'a>(job: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut all = job["status"]["conditions"].as_array()?.iter();
    all.find(|it| it["type"] == kind && it["status"] == "True")
}

/// Whether a pod has ended, as the API shows it.
pub(super) fn is_terminal(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// The name of a plot, the spec without its template, the script, and the expectation.
type Drawn = (&'static str, Value, String, Expectation);

pub(super) fn complete(succeeded: i32, failed: i32) -> Expectation {
    let failed = i64::from(failed);
    let succeeded = i64::from(succeeded);
    Expectation { ends: COMPLETE, succeeded, failed: failed..=failed, indexes: None }
}

/// Indexes of a status: `1,2` for two, `0-3` for more.
pub(super) fn range(first: i32, last: i32) -> String {
    match last - first {
        0 => format!("{first}"),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    }
}

fn succeed(random: &mut Random) -> Drawn {
    let (completions, parallelism) = (random.between(1, 6), random.between(1, 4));
    let spec = json!({"completions": completions, "parallelism": parallelism});
    let script = format!("succeed after={}s", random.between(1, 20));
    ("succeed", spec, script, complete(completions, 0))
}

fn retry(random: &mut Random) -> Drawn {
    let (completions, failures) = (random.between(1, 4), random.between(1, 3));
    let spec = json!({"completions": completions, "parallelism": 2, "backoffLimit": 6});
    let script = format!("fail exit=1 after=1s times={failures}; succeed after=2s");
    ("retry", spec, script, complete(completions, failures))
}

fn indexed(random: &mut Random) -> Drawn {
    let (completions, failures) = (random.between(2, 6), random.between(0, 2));
    let spec = json!({
        "completions": completions,
        "parallelism": random.between(1, 4),
        "completionMode": "Indexed",
    });
    let script = format!(
        "index=0: fail exit=1 after=1s times={failures}; succeed after={}s",
        random.between(1, 10)
    );
    let indexes = Some((range(0, completions - 1), String::new()));
    ("indexed", spec, script, Expectation { indexes, ..complete(completions, failures) })
}

fn ignored(random: &mut Random) -> Drawn {
    let (completions, losses) = (random.between(1, 3), random.between(1, 3));
    let spec = json!({
        "completions": completions,
        "parallelism": 2,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [
            {"action": "Ignore",
             "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]},
    });
    let script = format!("disrupt after=2s times={losses}; succeed after=3s");
    ("ignored", spec, script, complete(completions, 0))
}

fn exhaust(random: &mut Random) -> Drawn {
    let limit = random.between(0, 2);
    let spec = json!({"completions": 3, "parallelism": 1, "backoffLimit": limit});
    let failed = i64::from(limit + 1);
    let expect = Expectation {
        ends: ("Failed", Some("BackoffLimitExceeded")),
        succeeded: 0,
        failed: failed..=failed,
        indexes: None,
    };
    ("exhaust", spec, "fail exit=1 after=1s".to_owned(), expect)
}

fn fail_job(random: &mut Random) -> Drawn {
    let parallelism = random.between(1, 3);
    let spec = json!({
        "completions": 4,
        "parallelism": parallelism,
        "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        ]},
    });
    let expect = Expectation {
        ends: ("Failed", Some("PodFailurePolicy")),
        succeeded: 0,
        failed: 1..=i64::from(parallelism),
        indexes: None,
    };
    ("fail-job", spec, "fail exit=42 after=3s".to_owned(), expect)
}

fn per_index(random: &mut Random) -> Drawn {
    let (completions, limit) = (random.between(2, 5), random.between(0, 1));
    let spec = json!({
        "completions": completions,
        "parallelism": random.between(1, 3),
        "completionMode": "Indexed",
        "backoffLimitPerIndex": limit,
    });
    let failed = i64::from(limit + 1);
    let expect = Expectation {
        ends: ("Failed", Some("FailedIndexes")),
        succeeded: i64::from(completions - 1),
        failed: failed..=failed,
        indexes: Some((range(1, completions - 1), "0".to_owned())),
    };
    ("per-index", spec, "index=0: fail exit=1 after=1s; succeed after=1s".to_owned(), expect)
}

fn criterion(random: &mut Random) -> Drawn {
    let completions = random.between(2, 5);
    let spec = json!({
        "completions": completions,
        "parallelism": completions,
        "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    });
    let expect = Expectation {
        ends: ("Complete", Some("SuccessPolicy")),
        succeeded: 1,
        // The others are terminated, and may count as failed.
        failed: 0..=i64::from(completions - 1),
        indexes: Some(("0".to_owned(), String::new())),
    };
    ("criterion", spec, "index=0: succeed after=2s; succeed after=3600s".to_owned(), expect)
}

fn suspended(random: &mut Random) -> Drawn {
    let completions = random.between(2, 5);
    let spec = json!({
        "completions": completions,
        "parallelism": random.between(1, 3),
    });
    let script = format!("succeed after={}s", random.between(5, 30));
    (SUSPENDED, spec, script, complete(completions, 0))
}

fn deleted(random: &mut Random) -> Drawn {
    let completions = random.between(1, 3);
    let spec = json!({"completions": completions, "parallelism": 2, "backoffLimit": 50});
    let expect = Expectation { failed: 0..=50, ..complete(completions, 0) };
    (DELETED, spec, "succeed after=20s".to_owned(), expect)
}

fn removed(random: &mut Random) -> Drawn {
    let (_, spec, _, expect) = succeed(random);
    (REMOVED, spec, "succeed after=30s".to_owned(), expect)
}
