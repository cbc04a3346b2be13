//! Draws Jobs whose pods fail more than six times in a slot: whatever makes them fail, and whatever
//! their policy and annotations say, they may not go on at once.

use lab::nodes::SCRIPT_ANNOTATION;
use serde_json::{Value, json};
use simulation::controller::Random;

use super::plots::{Exactness, Expectation, Plot, complete, range};

pub(super) const BACKOFF_BASE: &str = "epilogue.dev/backoff-base";
pub(super) const BACKOFF_MAX: &str = "epilogue.dev/backoff-max";
pub(super) const DISRUPTION_LIMIT: &str = "epilogue.dev/disruption-limit";
pub(super) const PENDING_TIMEOUT: &str = "epilogue.dev/pending-timeout";
/// The condition of a pod that did not start in time.
pub(super) const TIMED_OUT: &str = "epilogue.dev/PendingTimeout";
/// The exit codes of a failure with a rule of its own, of one that fails the index, of one that
/// fails the Job, and of one without any rule.
const EXITS: [i32; 4] = [3, 42, 43, 7];
/// So often pods fail that must exceed a limit.
const BEYOND_LIMIT: i32 = 9;

/// Why a pod fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Exit,
    Disruption,
    /// Its kubelet rejects it for a reason of the node.
    Rejection,
    /// Its kubelet rejects it for a reason of its own, which no rule can match.
    Refusal,
    /// It never starts.
    Pending,
}

const CAUSES: [Cause; 5] =
    [Cause::Exit, Cause::Disruption, Cause::Rejection, Cause::Refusal, Cause::Pending];

/// Which pods fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    OneSlot,
    TwoSlots,
    /// The first of two indexes with a limit of their own.
    OneIndex,
    BothIndexes,
}

/// How the Job ends after all failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finale {
    Completes,
    /// A rule fails the index.
    FailIndex,
    /// A rule fails the Job.
    FailJob,
    /// One failure more exceeds the limit of the Job, or of its index.
    Exceeds,
}

/// The podFailurePolicy of a Job.
#[derive(Clone, Debug, Default)]
struct Rules {
    all: Vec<Value>,
    ignores: Vec<Cause>,
}

impl Shape {
    fn is_per_index(self) -> bool {
        matches!(self, Self::OneIndex | Self::BothIndexes)
    }

    fn completions(self) -> i32 {
        if self == Self::OneSlot { 1 } else { 2 }
    }
}

impl Rules {
    /// For each of these signs none, or one that ignores or counts what has it.
    fn draw(random: &mut Random) -> Self {
        let mut rules = Self::default();
        let disrupted: &[Cause] = &[Cause::Disruption, Cause::Rejection];
        for (sign, causes) in [
            (exits_with(EXITS[0]), &[Cause::Exit][..]),
            (has_condition("DisruptionTarget"), disrupted),
            (has_condition(TIMED_OUT), &[Cause::Pending]),
        ] {
            match random.below(5) {
                0 | 1 => {}
                2 | 3 => {
                    rules.ignores.extend(causes);
                    rules.add(random, sign, "Ignore");
                }
                _ => rules.add(random, sign, "Count"),
            }
        }
        rules
    }

    /// Adds a rule anywhere: no pod has two signs.
    fn add(&mut self, random: &mut Random, mut sign: Value, action: &str) {
        sign["action"] = action.into();
        self.all.insert(random.below(self.all.len() + 1), sign);
    }
}

fn exits_with(code: i32) -> Value {
    json!({"onExitCodes": {"operator": "In", "values": [code]}})
}

fn has_condition(kind: &str) -> Value {
    json!({"onPodConditions": [{"type": kind, "status": "True"}]})
}

/// The n-th Job.
pub(super) fn draw(random: &mut Random, number: usize, exactness: Exactness) -> Plot {
    if random.percent(20) {
        return unscheduled(random, number);
    }
    let shapes =
        [Shape::OneSlot, Shape::OneSlot, Shape::TwoSlots, Shape::OneIndex, Shape::BothIndexes];
    let shape = *random.pick(&shapes);
    let mut rules = Rules::draw(random);
    let failures = failures(random, shape);
    let is_ignored = |cause: &Cause| rules.ignores.contains(cause);
    let is_free =
        |cause: &Cause| matches!(cause, Cause::Disruption | Cause::Rejection) && is_ignored(cause);
    let are_free = failures.iter().all(|(cause, _)| is_free(cause));
    let counted = failures.iter().filter(|(cause, _)| !is_ignored(cause));
    let counted: i32 = counted.map(|(_, times)| times).sum();
    let finale = match (random.below(10), shape) {
        (0..=5, Shape::OneIndex | Shape::BothIndexes) => Finale::FailIndex,
        (0..=1, Shape::OneSlot) | (6, Shape::OneIndex) => Finale::FailJob,
        (2, Shape::OneSlot) | (7, Shape::OneIndex) => Finale::Exceeds,
        _ => Finale::Completes,
    };
    let last = match finale {
        Finale::Completes => "succeed after=1s".to_owned(),
        Finale::FailIndex => format!("fail exit={} after=1s", EXITS[1]),
        Finale::FailJob => format!("fail exit={} after=1s", EXITS[2]),
        Finale::Exceeds => format!("fail exit={} after=1s", EXITS[3]),
    };
    match finale {
        Finale::FailIndex => rules.add(random, exits_with(EXITS[1]), "FailIndex"),
        Finale::FailJob => rules.add(random, exits_with(EXITS[2]), "FailJob"),
        Finale::Completes | Finale::Exceeds => {}
    }
    let has_delays = shape == Shape::TwoSlots && !are_free;
    let mut annotations = backoff(random, has_delays);
    if failures.iter().any(|(cause, _)| *cause == Cause::Pending) {
        // Amid faults, a pod that can start may be late.
        let soon = ["0s", "1s", "3s"];
        let timeout = if exactness == Exactness::Exact { random.pick(&soon) } else { "40s" };
        annotations[PENDING_TIMEOUT] = timeout.into();
    }
    if !rules.ignores.is_empty() && random.percent(30) {
        annotations[DISRUPTION_LIMIT] = "50".into();
    }
    let prefix = if shape == Shape::OneIndex { "index=0: " } else { "" };
    let clauses: Vec<String> = failures
        .iter()
        .map(|(cause, times)| format!("{prefix}{} times={times}", clause(random, *cause)))
        .collect();
    let script = format!("{}; {prefix}{last}; succeed after=1s", clauses.join("; "));
    let limit = if finale == Finale::Exceeds { counted } else { 50 };
    let spec = spec(random, shape, limit, &rules.all);
    let expect = expectation(shape, finale, counted, exactness);
    plot(number, &annotations, spec, &script, expect)
}

/// What makes the pods of each slot fail, one after the other, and how often.
fn failures(random: &mut Random, shape: Shape) -> Vec<(Cause, i32)> {
    let all = if shape == Shape::TwoSlots { random.between(15, 17) } else { random.between(8, 9) };
    let (mut left, mut failures) = (all, Vec::new());
    while left > 0 {
        let is_last = failures.len() == 2 || random.percent(30);
        let times = if is_last { left } else { random.between(1, left) };
        failures.push((*random.pick(&CAUSES), times));
        left -= times;
    }
    failures
}

/// What the pod does.
fn clause(random: &mut Random, cause: Cause) -> String {
    let of_nodes = [
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfexample.com/gpu",
        "NodeAffinity",
        "NodeShutdown",
    ];
    match cause {
        Cause::Exit => format!("fail exit={} after=1s", EXITS[0]),
        Cause::Disruption => "disrupt after=1s".to_owned(),
        Cause::Rejection => format!("reject={}", random.pick(&of_nodes)),
        Cause::Refusal => format!("reject={}", random.pick(&["SysctlForbidden", "AppArmor"])),
        Cause::Pending => random.pick(&["pending", "waiting=ImagePullBackOff"]).to_string(),
    }
}

/// Annotations about the delays. These stay short enough for the world: many failures need a short
/// maximum, and so does a base of 10 s.
fn backoff(random: &mut Random, has_many: bool) -> Value {
    let base =
        *random.pick(&[None, Some("soon"), Some("0s"), Some("500ms"), Some("1s"), Some("2s")]);
    let is_slow = matches!(base, None | Some("soon"));
    let max = match base {
        _ if has_many => Some(*random.pick(&["4s", "8s"])),
        _ if is_slow => Some(*random.pick(&["0s", "8s", "20s", "1m"])),
        Some("2s") if random.percent(30) => Some(*random.pick(&["4s", "1m"])),
        _ if base != Some("2s") && random.percent(40) => Some(*random.pick(&["0s", "4s", "1m"])),
        _ => None,
    };
    let mut annotations = json!({});
    for (name, value) in [(BACKOFF_BASE, base), (BACKOFF_MAX, max)] {
        if let Some(value) = value {
            annotations[name] = value.into();
        }
    }
    annotations
}

fn spec(random: &mut Random, shape: Shape, limit: i32, rules: &[Value]) -> Value {
    let completions = shape.completions();
    let mut spec = json!({"completions": completions, "parallelism": completions});
    if shape.is_per_index() {
        spec["completionMode"] = "Indexed".into();
        spec["backoffLimitPerIndex"] = limit.into();
    } else {
        spec["backoffLimit"] = limit.into();
    }
    if rules.is_empty() {
        let policy = random.pick(&[None, Some("Failed"), Some("TerminatingOrFailed")]);
        if let Some(policy) = *policy {
            spec["podReplacementPolicy"] = policy.into();
        }
    } else {
        spec["podFailurePolicy"] = json!({"rules": rules});
    }
    spec
}

fn expectation(shape: Shape, finale: Finale, counted: i32, exactness: Exactness) -> Expectation {
    let slots = if shape == Shape::BothIndexes { 2 } else { 1 };
    let failed = slots * (counted + i32::from(finale != Finale::Completes));
    let completions = shape.completions();
    let expect = complete(completions, failed);
    let is_indexed = shape.is_per_index();
    if finale == Finale::Completes {
        let indexes = is_indexed.then(|| (range(0, completions - 1), String::new()));
        return Expectation { indexes, ..expect };
    }
    let lost = match (finale, shape) {
        (Finale::FailJob, _) | (_, Shape::OneSlot | Shape::TwoSlots) => "",
        (_, Shape::OneIndex) => "0",
        (_, Shape::BothIndexes) => "0,1",
    };
    let completed = if shape == Shape::OneIndex { "1" } else { "" };
    let reason = match finale {
        Finale::FailJob => "PodFailurePolicy",
        _ if is_indexed => "FailedIndexes",
        _ => "BackoffLimitExceeded",
    };
    // A pod that would have failed may be deleted as excess.
    let min = if exactness == Exactness::Exact { failed } else { 1 };
    Expectation {
        ends: ("Failed", Some(reason)),
        succeeded: i64::from(shape == Shape::OneIndex),
        failed: i64::from(min)..=i64::from(failed),
        indexes: is_indexed.then(|| (completed.to_owned(), lost.to_owned())),
    }
}

/// A Job whose pods get no node, until a limit ends it.
fn unscheduled(random: &mut Random, number: usize) -> Plot {
    let mut rules = Rules::default();
    let shape = *random.pick(&[Shape::OneSlot, Shape::OneSlot, Shape::BothIndexes]);
    let mut annotations = backoff(random, false);
    annotations[PENDING_TIMEOUT] = (*random.pick(&["0s", "1s", "3s"])).into();
    let is_ignored = shape == Shape::OneSlot && random.percent(70);
    if is_ignored {
        rules.add(random, has_condition(TIMED_OUT), "Ignore");
        annotations[DISRUPTION_LIMIT] = (BEYOND_LIMIT - 1).to_string().into();
    } else if random.percent(50) {
        rules.add(random, has_condition(TIMED_OUT), "Count");
    }
    let mut spec = spec(random, shape, BEYOND_LIMIT - 1, &rules.all);
    spec["template"]["spec"]["schedulingGates"] = json!([{"name": "example.com/never"}]);
    let exact = Exactness::Exact;
    let mut expect = expectation(shape, Finale::Exceeds, BEYOND_LIMIT - 1, exact);
    if is_ignored {
        expect.ends = ("Failed", Some("DisruptionLimitExceeded"));
        expect.failed = 0..=0;
    }
    plot(number, &annotations, spec, "succeed", expect)
}

fn plot(
    number: usize,
    annotations: &Value,
    mut spec: Value,
    script: &str,
    expect: Expectation,
) -> Plot {
    spec["template"]["metadata"]["annotations"] = json!({SCRIPT_ANNOTATION: script});
    let pod = &mut spec["template"]["spec"];
    pod["restartPolicy"] = "Never".into();
    pod["containers"] = json!([{"name": "main", "image": "none"}]);
    let name = format!("braked-{number}");
    let metadata = json!({"name": name, "annotations": annotations});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec});
    Plot { name, job, expect }
}
