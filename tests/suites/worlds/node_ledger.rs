//! Judges the shutdown of a node from the API's log and from what the processes on the node did.
//! Nothing of the code under test takes part.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use lab::nodes::processes::Processes;
use model_api::{Access, Kind, Verb};
use serde_json::Value;

use super::backup::Restore;
use super::host::{AGENT, Deed};
use super::ledger::{has_written, invalid};
use super::plots::{condition, is_terminal};
use super::shutdown::Story;

/// An agent may release its lock this long before logind's time is over, whatever is unreported.
const RESERVE: SignedDuration = SignedDuration::from_secs(2);
/// How long after a cancel, or after a restore that follows it, marks may remain.
const CLEARED_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// The taint of a node that shuts down.
pub(super) const TAINT: &str = "epilogue.dev/shutting-down";

/// What is known of a pod of the node.
#[derive(Clone, Debug, Default)]
struct Pod {
    name: String,
    processes: Processes,
    /// Its processes had to end after the announcement, and it was not deleted before.
    is_ended_by_shutdown: bool,
    /// Its deletion was asked for before the announcement, or by another than the agent.
    is_unwanted: bool,
    /// Null if the API has no such pod.
    object: Value,
    is_gone: bool,
    /// A restore of etcd has undone its mark, or its end.
    has_lost_mark: bool,
    has_lost_end: bool,
}

/// What the verdicts met, so that a suite can require it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// Pods that the shutdown ended and the API shows as Failed.
    pub(super) failed: usize,
    /// Those that the agent itself reported.
    pub(super) failed_by_agent: usize,
    /// Those that it failed before the announcement, because users had deleted them.
    pub(super) failed_stuck: usize,
    /// Marks that the agent cleared.
    pub(super) cleared: usize,
    /// Marks and ends that a restore undid.
    pub(super) undone: [usize; 2],
    /// Marks that the agent set again after that, and ends that were reported again.
    pub(super) again: [usize; 2],
    /// Pods whose mark a restore undid, and that their kubelet then failed without one.
    pub(super) excused: usize,
}

/// The violations of a shutdown. Without faults every end is reported before the machine goes off.
pub(super) fn judge(
    story: &Story,
    log: &[Access],
    restores: &[Restore],
    is_calm: bool,
) -> (Vec<String>, Met) {
    let mut ledger = Ledger {
        story,
        pods: BTreeMap::new(),
        has_released: false,
        is_off: false,
        is_cleared: false,
        restored: None,
        taints: Value::Null,
        met: Met::default(),
        violations: story.stuck.iter().map(|pod| format!("{pod} is stuck")).collect(),
    };
    let mut deeds = story.deeds.iter().peekable();
    let mut saved = BTreeMap::new();
    for (number, access) in log.iter().enumerate() {
        while let Some(deed) = deeds.next_if(|deed| deed.calls <= number) {
            ledger.pass(deed.at, is_calm);
            ledger.deed(deed);
        }
        ledger.pass(access.at, is_calm);
        if restores.iter().any(|it| it.taken == number) {
            saved.insert(number, (ledger.pods.clone(), ledger.taints.clone()));
        }
        if let Some(it) = restores.iter().find(|it| it.restored == number) {
            let (pods, taints) = &saved[&it.taken];
            ledger.restore(pods, taints.clone(), access.at);
        }
        ledger.access(access);
    }
    (ledger.violations, ledger.met)
}

struct Ledger<'a> {
    story: &'a Story,
    pods: BTreeMap<String, Pod>,
    has_released: bool,
    is_off: bool,
    is_cleared: bool,
    /// When a restore last brought marks back that were cleared, maybe.
    restored: Option<Timestamp>,
    taints: Value,
    met: Met,
    violations: Vec<String>,
}

impl Ledger<'_> {
    /// The time goes on to `now`: the lock may have been released, and the machine off.
    fn pass(&mut self, now: Timestamp, is_calm: bool) {
        let Story { released, crashed, due, off, cancelled, .. } = self.story;
        if let Some(at) = released.filter(|at| *at < now && !self.has_released) {
            self.has_released = true;
            if crashed.is_none() && at + RESERVE < *due {
                self.check_reports(at, "the lock is released");
            }
        }
        if let Some((at, _)) = off.filter(|(at, _)| *at < now && !self.is_off) {
            self.is_off = true;
            if is_calm {
                self.check_reports(at, "the machine goes off");
            }
        }
        let since = cancelled.map(|at| self.restored.map_or(at, |restored| restored.max(at)));
        if since.is_some_and(|at| at + CLEARED_WITHIN < now) && !self.is_cleared {
            self.is_cleared = true;
            self.check_cleared();
        }
    }

    /// Each pod that has run here must be reported.
    fn check_reports(&mut self, at: Timestamp, what: &str) {
        // Who ended by itself under a dead kubelet, or with success, is not the agent's to report.
        let is_excused = |pod: &Pod| match pod.processes {
            Processes::None => true,
            Processes::Exited(code) if self.story.kubelet.is_gone() => {
                code == 0 || !pod.is_ended_by_shutdown
            }
            _ => false,
        };
        let is_unreported = |pod: &&Pod| !pod.is_gone && !is_excused(pod) && is_live(&pod.object);
        let names: Vec<_> = self.pods.values().filter(is_unreported).map(|it| &it.name).collect();
        if !names.is_empty() {
            let Story { kubelet, due, .. } = self.story;
            let text = format!("{at} {what}, due {due}, {kubelet:?}, with {names:?} unreported");
            self.violations.push(text);
        }
    }

    /// The API goes back to what a backup has. The node does not.
    fn restore(&mut self, backup: &BTreeMap<String, Pod>, taints: Value, at: Timestamp) {
        (self.taints, self.restored, self.is_cleared) = (taints, Some(at), false);
        for (uid, pod) in &mut self.pods {
            let before = backup.get(uid).cloned().unwrap_or_default();
            let was = std::mem::replace(&mut pod.object, before.object);
            pod.is_unwanted = before.is_unwanted;
            if pod.object.is_null() {
                continue;
            }
            let is_marked = |pod: &Value| condition(pod, "DisruptionTarget").is_some();
            let loses_mark = is_marked(&was) && !is_marked(&pod.object);
            let loses_end = is_terminal(&was) && !is_terminal(&pod.object);
            pod.has_lost_mark |= loses_mark;
            pod.has_lost_end |= loses_end;
            self.met.undone[0] += usize::from(loses_mark);
            self.met.undone[1] += usize::from(loses_end);
        }
    }

    fn deed(&mut self, deed: &Deed) {
        let pod = self.pods.entry(deed.uid.clone()).or_default();
        pod.is_gone = deed.now.is_none();
        let Some(now) = deed.now else { return };
        pod.processes = now;
        let is_in_time = deed.at >= self.story.announced && self.story.cancelled.is_none();
        if now == Processes::End && is_in_time && !pod.is_unwanted {
            pod.is_ended_by_shutdown = true;
        }
    }

    fn access(&mut self, access: &Access) {
        if !has_written(access) {
            let is_agents = access.agent.starts_with(AGENT);
            self.violations.extend(invalid(access).filter(|_| is_agents));
            return;
        }
        let object = &*access.answer;
        match access.kind {
            Kind::Node if object["metadata"]["name"] == self.story.node.as_str() => {
                self.taints = object["spec"]["taints"].clone();
            }
            Kind::Pod if object["spec"]["nodeName"] == self.story.node.as_str() => {
                self.pod(access, object);
            }
            _ => {}
        }
    }

    fn pod(&mut self, access: &Access, object: &Value) {
        let (at, is_agents) = (access.at, access.agent.starts_with(AGENT));
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let pod = self.pods.entry(uid.to_owned()).or_default();
        object["metadata"]["name"].as_str().unwrap_or_default().clone_into(&mut pod.name);
        if access.verb == Verb::Delete && (!is_agents || at < self.story.announced) {
            pod.is_unwanted |= !pod.is_ended_by_shutdown;
        }
        let was_disrupted = condition(&pod.object, "DisruptionTarget").is_some();
        let is_disrupted = condition(object, "DisruptionTarget").is_some();
        let was_terminal = is_terminal(&pod.object);
        pod.object = object.clone();
        let is_marked_again = is_agents && pod.has_lost_mark && !was_disrupted && is_disrupted;
        let ends_again = pod.has_lost_end && !was_terminal && is_terminal(object);
        self.met.again[0] += usize::from(is_marked_again);
        self.met.again[1] += usize::from(ends_again);
        pod.has_lost_mark &= !is_disrupted;
        pod.has_lost_end &= !is_terminal(object);
        let pod = pod.clone();
        let mut found = Vec::new();
        self.met.cleared += usize::from(is_agents && was_disrupted && !is_disrupted);
        let runs = matches!(pod.processes, Processes::Run | Processes::End) && !self.is_off;
        if !was_terminal && is_terminal(object) {
            if runs {
                found.push("has ended in the API while its container runs");
            }
            let fails = object["status"]["phase"] == "Failed";
            if fails && pod.is_ended_by_shutdown && !is_disrupted {
                // Its kubelet need not wait for the agent to mark it again.
                if pod.has_lost_mark && !is_agents {
                    self.met.excused += 1;
                } else {
                    found.push("is Failed by the shutdown without DisruptionTarget");
                }
            }
            self.met.failed += usize::from(fails && pod.is_ended_by_shutdown);
            self.met.failed_by_agent += usize::from(fails && is_agents);
            let is_stuck = pod.is_unwanted && at < self.story.announced;
            self.met.failed_stuck += usize::from(fails && is_agents && is_stuck);
        }
        let name = &pod.name;
        self.violations.extend(found.into_iter().map(|it| format!("{at} {name} {it}")));
    }

    /// After a cancel nothing may remain on what lives.
    fn check_cleared(&mut self) {
        for pod in self.pods.values().filter(|pod| !pod.is_gone) {
            let is_deleting = pod.object["metadata"].get("deletionTimestamp").is_some();
            let is_marked = condition(&pod.object, "DisruptionTarget").is_some();
            if is_marked && !is_deleting && !is_terminal(&pod.object) {
                self.violations.push(format!("{} lives and keeps its mark", pod.name));
            }
        }
        let mut taints = self.taints.as_array().into_iter().flatten();
        if taints.any(|taint| taint["key"] == TAINT) {
            self.violations.push(format!("{} keeps its taint", self.story.node));
        }
    }
}

/// Whether the API has the pod, and shows no end of it.
fn is_live(pod: &Value) -> bool {
    !pod.is_null() && !is_terminal(pod)
}
