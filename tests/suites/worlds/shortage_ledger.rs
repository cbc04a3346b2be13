//! Judges evictions for lack of memory, and what is said of OOM kills, from the API's log and from
//! what the node was like. Nothing of the code under test takes part.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use lab::nodes::processes::Processes;
use model_api::{Access, Kind};
use serde_json::Value;

use super::host::{AGENT, Deed};
use super::ledger::{has_written, invalid};
use super::memory::{Cause, MIB, Snapshot};
use super::plots::{condition, is_terminal};
use super::shortage::{Pressure, Story};

/// The agent's threshold, and the condition that it sets.
pub(super) const THRESHOLD: u64 = 150 * MIB;
/// Stalls of pods are a cause, too, and begin before the threshold.
const SHORT: u64 = 200 * MIB;
/// How long before a mark the agent may have measured.
const MEASURED_WITHIN: SignedDuration = SignedDuration::from_secs(4);
/// The same amid faults: a request may be repeated, or come late.
const MEASURED_WITHIN_FAULTS: SignedDuration = SignedDuration::from_secs(40);
/// How long the node may be short of memory.
const SHORT_MAX: SignedDuration = SignedDuration::from_secs(8);
/// A kill so long before a crash of the agent may not be explained.
const UNEXPLAINED: SignedDuration = SignedDuration::from_mins(1);
/// So soon after its start an agent watches.
const STARTED_WITHIN: SignedDuration = SignedDuration::from_secs(20);
/// What the agent says of OOM kills.
pub(super) const OOM_KILLED: &str = "epilogue.dev/OOMKilled";
/// The reason of evictions.
const EVICTED: &str = "TerminationByKubelet";
/// Pods of this priority or a higher one are critical.
const CRITICAL: i64 = 2_000_000_000;

/// What is known of a pod of the node.
#[derive(Clone, Debug, Default)]
struct Pod {
    processes: Processes,
    object: Value,
    is_gone: bool,
    is_marked: bool,
    /// Its processes had to end while it was marked.
    is_evicted: bool,
}

/// What the verdicts met, so that a suite can require it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// Pods that were marked for an eviction.
    pub(super) marked: usize,
    /// Those that ended then as Failed.
    pub(super) evicted: usize,
    /// Marks at which another pod was next in rank, by the priority or by the request.
    pub(super) ranked: usize,
    /// Pods that the kernel killed at a limit, or for the node, and that say so.
    pub(super) explained: [usize; 2],
}

/// The violations on a node that ran short of memory.
pub(super) fn judge(story: &Story, log: &[Access], is_calm: bool) -> (Vec<String>, Met) {
    let mut ledger = Ledger {
        story,
        is_calm,
        pods: BTreeMap::new(),
        forbidden: BTreeSet::new(),
        met: Met::default(),
        violations: Vec::new(),
    };
    let mut deeds = story.deeds.iter().peekable();
    for (number, access) in log.iter().enumerate() {
        while let Some(deed) = deeds.next_if(|deed| deed.calls <= number) {
            ledger.deed(deed);
        }
        ledger.access(access);
    }
    ledger.check_kills();
    if is_calm && story.pressure == Pressure::Enforce {
        ledger.check_node();
    }
    (ledger.violations, ledger.met)
}

struct Ledger<'a> {
    story: &'a Story,
    is_calm: bool,
    pods: BTreeMap<String, Pod>,
    /// The names of pods of which the agent was forbidden to write something.
    forbidden: BTreeSet<String>,
    met: Met,
    violations: Vec<String>,
}

impl Ledger<'_> {
    fn deed(&mut self, deed: &Deed) {
        let is_killed = self.story.history.kills.iter().any(|kill| kill.uid == deed.uid);
        let pod = self.pods.entry(deed.uid.clone()).or_default();
        let Some(now) = deed.now else { return pod.is_gone = true };
        let was = std::mem::replace(&mut pod.processes, now);
        let is_deleted = pod.object["metadata"].get("deletionTimestamp").is_some();
        pod.is_evicted |= was == Processes::Run && pod.is_marked && !is_killed;
        let is_asked = is_deleted || pod.is_marked || is_killed;
        if (was, now) == (Processes::Run, Processes::End) && !is_asked {
            let name = &pod.object["metadata"]["name"];
            self.violations.push(format!("{} {name} is stopped without its mark", deed.at));
        }
    }

    fn access(&mut self, access: &Access) {
        if !has_written(access) {
            let is_agents = access.agent.starts_with(AGENT);
            self.violations.extend(invalid(access).filter(|_| is_agents));
            if access.code == 403 && is_agents {
                self.forbidden.insert(access.name.clone());
            }
            return;
        }
        let object = &*access.answer;
        if access.kind == Kind::Pod && object["spec"]["nodeName"] == self.story.node.as_str() {
            self.pod(access, object);
        }
    }

    fn pod(&mut self, access: &Access, object: &Value) {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let before = self.pods.get(uid).cloned().unwrap_or_default();
        let mark = condition(object, "DisruptionTarget");
        let is_marked = mark.is_some_and(|it| it["reason"] == EVICTED);
        if is_marked && !before.is_marked && access.agent.starts_with(AGENT) {
            self.mark(access.at, uid, object);
        }
        let runs = matches!(before.processes, Processes::Run | Processes::End);
        if !is_terminal(&before.object) && is_terminal(object) {
            let name = &object["metadata"]["name"];
            if runs {
                let text = "has ended in the API while its container runs";
                self.violations.push(format!("{} {name} {text}", access.at));
            }
            let fails = object["status"]["phase"] == "Failed";
            if before.is_evicted && fails && mark.is_none() {
                let text = "is Failed by an eviction without DisruptionTarget";
                self.violations.push(format!("{} {name} {text}", access.at));
            }
            self.met.evicted += usize::from(before.is_evicted && fails);
        }
        let pod = self.pods.entry(uid.to_owned()).or_default();
        pod.object = object.clone();
        pod.is_marked = is_marked;
    }

    /// The agent has chosen a pod: memory was short at some moment since it measured.
    fn mark(&mut self, at: Timestamp, uid: &str, object: &Value) {
        self.met.marked += 1;
        let name = &object["metadata"]["name"];
        if self.story.pressure != Pressure::Enforce {
            let mode = self.story.pressure;
            self.violations.push(format!("{at} {name} is evicted, although pressure is {mode:?}"));
            return;
        }
        let within = if self.is_calm { MEASURED_WITHIN } else { MEASURED_WITHIN_FAULTS };
        let is_recent = |it: &&Snapshot| it.at <= at && it.at + within >= at;
        let recent: Vec<_> = self.story.history.snapshots.iter().filter(is_recent).collect();
        if recent.iter().all(|it| it.available >= SHORT) {
            self.violations.push(format!("{at} {name} is evicted, although memory is not short"));
            return;
        }
        // Amid faults the agent may have given up a pod that comes first, by calls that were lost.
        if self.is_calm {
            self.check_rank(at, uid, object, &recent);
        }
    }

    /// No other pod came before it at some moment. Whoever could not be chosen does not count.
    fn check_rank(&mut self, at: Timestamp, uid: &str, object: &Value, recent: &[&Snapshot]) {
        let may_be = |pod: &Pod| {
            let is_deleted = pod.object["metadata"].get("deletionTimestamp").is_some();
            let is_over = is_terminal(&pod.object) || is_deleted || pod.is_marked || pod.is_gone;
            !is_over && pod.processes == Processes::Run && priority(&pod.object) < CRITICAL
        };
        let others: Vec<_> =
            self.pods.iter().filter(|(other, pod)| *other != uid && may_be(pod)).collect();
        let rank = |snapshot: &Snapshot, uid: &str, object: &Value| {
            let used = snapshot.used.get(uid).copied()?;
            let request = request(object);
            let excess = i128::from(used) - i128::from(request);
            Some((Reverse(used > request), priority(object), Reverse(excess)))
        };
        let is_first = |snapshot: &&Snapshot| {
            let own = rank(snapshot, uid, object);
            let before = |(other, pod): &(&String, &Pod)| {
                own.zip(rank(snapshot, other, &pod.object)).is_some_and(|(own, it)| it < own)
            };
            own.is_some() && !others.iter().any(before)
        };
        if !recent.iter().any(is_first) {
            let name = &object["metadata"]["name"];
            self.violations.push(format!("{at} {name} is evicted, although another comes first"));
        }
        let used = |uid: &str| recent.last().and_then(|it| it.used.get(uid)).copied();
        let is_larger = others.iter().any(|(other, _)| used(other) > used(uid));
        self.met.ranked += usize::from(is_larger);
    }

    /// Each pod that the kernel killed says why, and no other one says that it was.
    fn check_kills(&mut self) {
        let mut killed = BTreeSet::new();
        for kill in &self.story.history.kills {
            killed.insert(kill.uid.as_str());
            let Some(pod) = self.pods.get(&kill.uid) else { continue };
            let is_excused = self.story.crashed.is_some_and(|(crashed, started)| {
                kill.at + UNEXPLAINED > crashed && kill.at < started + STARTED_WITHIN
            });
            let is_deleted = pod.object["metadata"].get("deletionTimestamp").is_some();
            if is_excused || is_deleted || self.forbidden.contains(&kill.name) {
                continue;
            }
            let wanted = match kill.cause {
                Cause::Limit => "ContainerLimit",
                Cause::Node => "NodeOutOfMemory",
            };
            let said = condition(&pod.object, OOM_KILLED).map(|it| it["reason"].clone());
            if said == Some(wanted.into()) {
                self.met.explained[usize::from(kill.cause == Cause::Node)] += 1;
            } else {
                let (at, name, said) = (kill.at, &kill.name, said.unwrap_or_default());
                let text = format!("{at} {name} was killed, {wanted}, and says {said}");
                self.violations.push(text);
            }
        }
        for (uid, pod) in &self.pods {
            let says = condition(&pod.object, OOM_KILLED).is_some();
            if says && !killed.contains(uid.as_str()) {
                let name = &pod.object["metadata"]["name"];
                self.violations.push(format!("{name} was not killed, and says so"));
            }
        }
    }

    /// The agent is faster than the kernel, and the shortage is soon over.
    fn check_node(&mut self) {
        let history = &self.story.history;
        for kill in history.kills.iter().filter(|kill| kill.cause == Cause::Node) {
            let text = format!("{} {} is killed: no memory is left", kill.at, kill.name);
            self.violations.push(text);
        }
        let mut since = None;
        for snapshot in &history.snapshots {
            if snapshot.available >= THRESHOLD {
                since = None;
            } else if *since.get_or_insert(snapshot.at) + SHORT_MAX < snapshot.at {
                self.violations.push(format!("{} the node stays short of memory", snapshot.at));
                return;
            }
        }
    }
}

fn priority(pod: &Value) -> i64 {
    pod["spec"]["priority"].as_i64().unwrap_or(0)
}

/// What a pod asks for, in bytes.
fn request(pod: &Value) -> u64 {
    let text = pod["spec"]["containers"][0]["resources"]["requests"]["memory"].as_str();
    let mebibytes = text.and_then(|text| text.strip_suffix("Mi")?.parse::<u64>().ok());
    mebibytes.unwrap_or(0) * MIB
}
