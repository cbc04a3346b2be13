//! Judges single steps: each action when it is issued, each write when the API accepts it, the
//! release of the lock.

use std::mem;
use std::time::Duration;

use agent_core::pod::{Owner, PodUid, PodView, RestartPolicy};
use agent_core::protocol::action::{Action, ActionId, PodRef, Purpose};
use agent_core::shutdown::Mode;
use epilogue_common::names::node::TERMINATED_AT;
use serde_json::Value;

use super::api::Stored;
use super::kubelet_facts::works;
use super::logind::Stage;
use super::merge::forbidden;
use super::promises;
use super::sinks::Issued;
use super::situations::{Met, is_check};
use super::wire::Verb;
use super::world::{World, name_of};

/// More calls about one pod than any seed should need.
const CALLS_MAX: u32 = 400;
/// How long the agent may not know the state of its kubelet.
const NEWS: Duration = Duration::from_secs(3);
/// How long a drained record may be repeated.
const DRAINED_LASTS: Duration = Duration::from_millis(1_100);
/// A pod that ended this long before an announcement, by any clock, does not belong to the
/// shutdown.
pub(super) const ENDED_LONG_BEFORE: Duration = Duration::from_secs(12);
/// From when on after its end a shutdown that goes on does not keep the agent from evictions: what
/// logind grants may be more than it says.
const LONG_OVER: Duration = Duration::from_secs(30);
/// How early the agent may release the lock without a reason.
const EARLY: Duration = Duration::from_millis(50);

impl World {
    pub(super) fn mode(&self) -> Option<Mode> {
        let status = self.process.as_ref()?.agent.status();
        status
            .shutdown
            .as_ref()
            .filter(|shutdown| !shutdown.cancelled)
            .map(|shutdown| shutdown.mode)
            .or(status.mode)
    }

    /// Judges an action when it is issued.
    pub(super) fn judge_action(&mut self, id: ActionId, action: &Action) {
        let asks = matches!(action, Action::InspectPod(_) | Action::ListRuntimePods);
        if !is_check(action) && !asks {
            self.ledger.recent_actions += 1;
        }
        match action {
            Action::PatchStatus { pod, purpose: Purpose::Mark, .. } => {
                self.ledger.marking.insert(id, pod.uid.clone());
            }
            Action::PatchStatus { pod, purpose: Purpose::Fail, .. } => {
                self.ledger.failing.insert(id, pod.uid.clone());
            }
            _ => {}
        }
        self.judge_pressure_action(action);
        if let Action::PatchStatus { body, .. } = action {
            let what = forbidden(body);
            let words = || format!("a status patch holds {what:?}: {body}");
            self.judge(Met::StatusPatch, what.is_some(), words);
        }
        match action {
            Action::PatchStatus { pod, purpose, .. } => {
                let ends = !matches!(purpose, Purpose::Clear | Purpose::Cause);
                self.judge_target(pod, ends);
            }
            Action::PatchPod { pod, .. } => self.judge_kill(pod, true),
            Action::DeletePod { pod, grace_seconds, .. } => {
                self.judge_kill(pod, true);
                let words = || format!("{} is deleted without a grace", pod.name);
                self.judge(Met::Deletion, *grace_seconds == 0, words);
            }
            Action::StopPod { pod, .. } => {
                self.judge_kill(pod, false);
                self.judge_stop(pod);
            }
            Action::Announce(text) if text.starts_with("drained") => {
                // A repeated record is of the same check, which is valid for a second.
                let now = self.now();
                let first = *self.ledger.drained_records.entry(text.clone()).or_insert(now);
                if now == first || now > first + DRAINED_LASTS {
                    self.judge_drained();
                }
            }
            _ => {}
        }
    }

    /// Judges which pod an action touches.
    fn judge_target(&mut self, pod: &PodRef, ends: bool) {
        let Some(nature) = self.ledger.natures.get(&pod.uid).cloned() else {
            return self.violate(&format!("{} is not a pod of this node", pod.name));
        };
        let count = self.ledger.calls.entry(pod.uid.clone()).or_default();
        *count += 1;
        let storm = *count == CALLS_MAX;
        let words = || format!("storm: {CALLS_MAX} calls about {}", pod.name);
        self.judge(Met::CallAboutPod, storm, words);
        if nature.is_static {
            self.violate(&format!("static pod {} is touched", pod.name));
        }
        if nature.is_own {
            self.violate(&format!("the agent's own pod {} is touched", pod.name));
        }
        let mode = self.mode();
        // The agent may mark a deleted pod like any other.
        let deleted = self.ledger.reported.get(&pod.uid).is_some_and(PodView::is_terminating);
        let evicted = self.victim(&pod.uid).is_some();
        let excluded = nature.view.owner == Owner::DaemonSet && !deleted && !evicted;
        if ends && excluded && matches!(mode, Some(Mode::Replace | Mode::Substitute)) {
            self.violate(&format!("DaemonSet pod {} is touched", pod.name));
        }
        if !self.behaviour.settings.enforce {
            self.violate(&format!("{} is touched by an agent that only observes", pod.name));
        }
    }

    /// Whether no shutdown is known, or one that should have ended the machine long ago.
    pub(super) fn is_shutdown_over(&self) -> bool {
        self.ledger.shutdown.as_ref().is_none_or(|it| self.now() > it.end + LONG_OVER)
    }

    /// Judges an attempt to terminate a pod: through a kubelet that sees the deletion or the
    /// deadline, or without a kubelet.
    fn judge_kill(&mut self, pod: &PodRef, by_kubelet: bool) {
        self.judge_target(pod, true);
        let evicted = self.judge_eviction(pod, !by_kubelet);
        if evicted && self.is_shutdown_over() {
            return;
        }
        let swept = !by_kubelet && self.may_sweep(&pod.uid);
        let outside = self.ledger.shutdown.is_none();
        if swept {
            self.met(Met::SweptSandbox);
        }
        let words = || format!("{} is terminated outside of a shutdown", pod.name);
        self.judge(Met::KillIssued, outside && !swept, words);
        // If the lock is gone and nothing shows that the kubelet works, the agent may assume that
        // it does nothing. ([AP16])
        let seen = self.ledger.reported_kubelet.as_ref();
        let armed = seen.is_some_and(|(_, facts)| facts.lock_armed == Some(true) && works(facts));
        let at_work = self.ledger.reported_not_ready && self.kubelet.graceful.is_killing();
        let armed =
            armed && seen.is_some_and(|(since, _)| self.now().saturating_sub(*since) > NEWS);
        // From there the agent does not go back, whatever the kubelet shows later.
        let killing = self
            .ledger
            .shutdown
            .as_mut()
            .is_some_and(|shutdown| mem::replace(&mut shutdown.killing, true));
        if self.logind.stage != Stage::Idle && by_kubelet && !killing {
            let words =
                || format!("{} is terminated alongside a kubelet that terminates it", pod.name);
            self.judge(Met::FirstKill, armed || at_work, words);
        }
    }

    /// Stopping through the runtime requires a dead kubelet.
    fn judge_stop(&mut self, pod: &PodRef) {
        if self.victim(&pod.uid).is_none() && !self.may_sweep(&pod.uid) {
            let words = || format!("{} is stopped under a live kubelet", pod.name);
            // Nothing is stopped for a kubelet's absence of some seconds.
            let wrong = self.is_known_live() || self.kubelet_comes_back_soon();
            self.judge(Met::StopIssued, wrong, words);
        }
    }

    pub(super) fn is_known_live(&self) -> bool {
        let seen = self.ledger.reported_kubelet.as_ref();
        let reported_pods = seen
            .is_some_and(|(since, facts)| works(facts) && self.now().saturating_sub(*since) > NEWS);
        reported_pods && self.kubelet.is_live()
    }

    /// Judges the drained record: does really nothing run?
    fn judge_drained(&mut self) {
        let natures = &self.ledger.natures;
        let running: Vec<&str> = natures
            .iter()
            .filter(|(_, n)| !n.is_static && !n.is_own && n.view.owner != Owner::DaemonSet)
            .filter(|(uid, _)| self.runtime.running(uid) > 0)
            .map(|(uid, _)| name_of(uid))
            .collect();
        let (wrong, running) = (!running.is_empty(), running.join(", "));
        self.judge(Met::Drained, wrong, || format!("drained while {running} run"));
    }

    /// Judges how many calls are under way.
    pub(super) fn judge_in_flight(&mut self) {
        let Some(process) = &self.process else { return };
        let calls = process.in_flight.values().filter(|is_call| **is_call).count();
        let most = self.behaviour.settings.in_flight_max;
        // The announcement has absolute priority, so it and the taint may exceed the limit.
        // ([AP21])
        if calls >= most {
            let words = || format!("{calls} calls under way, {most} allowed");
            self.judge(Met::WindowFull, calls > most + 2, words);
        }
    }

    /// Judges a status patch that the API has accepted.
    pub(super) fn judge_status(
        &mut self,
        purpose: Purpose,
        before: &Stored,
        after: &Stored,
        body: &Value,
        issued: Issued,
    ) {
        let name = before.name().to_owned();
        if before.is_terminal() && after.phase() != before.phase() {
            self.violate(&format!("{name} had ended as {:?}, and is rewritten", before.phase()));
        }
        if after.is_terminal() && !before.is_terminal() {
            self.judge_failed(before, after, body, issued);
            self.judge_newcomer(before);
        }
        let known =
            self.ledger.reported_terminal.get(before.uid()).is_some_and(|at| *at < issued.at);
        if after.is_disrupted() && !before.is_disrupted() && before.is_terminal() {
            if known {
                self.violate(&format!("{name} gets DisruptionTarget after its end"));
            }
            self.stats.crossed += 1;
        }
        if purpose == Purpose::Cause {
            self.judge_oom_condition(before, after);
        }
        if purpose == Purpose::Fail && Self::is_of_stuck(before, body, issued.in_shutdown) {
            self.judge_stuck_again(before);
        }
        if after.is_marked() {
            let words = || format!("{name} is marked without any shutdown");
            let none = self.logind.announcements == 0 && !self.ledger.system_stopped;
            self.judge(Met::MarkArrives, none, words);
        }
        if purpose == Purpose::Mark && after.is_marked() && !before.is_marked() {
            self.judge_first_mark(before, issued);
        }
        if purpose == Purpose::Clear {
            let foreign = before.is_disrupted() && !before.is_ours();
            let words = || format!("{name}: a foreign DisruptionTarget is cleared");
            self.judge(Met::ClearArrives, foreign, words);
            if before.is_terminal() && known {
                self.violate(&format!("{name}: DisruptionTarget is cleared after its end"));
            }
        }
    }

    /// In place of a kubelet known to be dead, the agent asks the runtime before it sets the mark.
    fn judge_first_mark(&mut self, pod: &Stored, issued: Issued) {
        let reported_at = self.ledger.shutdown.as_ref().map(|shutdown| shutdown.reported_at);
        let ended_at = self.runtime.all_ended_at(pod.uid());
        let (Some(reported_at), Some(ended_at)) = (reported_at, ended_at) else { return };
        // Ends carry the node's clock, which may have been set since.
        let agree = self.wall_offset.is_zero();
        // An attempt whose outcome is in doubt may stand already, so the agent completes it. The
        // first one comes before the runtime is asked where the kubelet shuts down by itself.
        let failed = self.ledger.mark_failed.contains(pod.uid());
        let first = !(failed && self.ledger.kubelet_was_armed);
        let asks = issued.mode == Some(Mode::Substitute) && self.runtime.answers && agree && first;
        let in_time = issued.at < reported_at + Duration::from_millis(100);
        // A pod whose containers start again has not ended: it waits for its next start, which the
        // shutdown takes from it.
        let ends = promises::had_its_only_run(&pod.view());
        if asks && ends && in_time && ended_at + ENDED_LONG_BEFORE < reported_at {
            let name = pod.name().to_owned();
            self.violate(&format!("{name} is called disrupted, and had ended long before"));
        }
    }

    fn judge_failed(&mut self, before: &Stored, after: &Stored, body: &Value, issued: Issued) {
        let name = before.name().to_owned();
        let running = self.runtime.running(before.uid());
        let words = || format!("{name} is Failed while {running} of its containers run");
        self.judge(Met::FailArrives, running > 0, words);
        let stuck = Self::is_of_stuck(before, body, issued.in_shutdown);
        if stuck {
            self.judge_stuck(before, after);
        }
        let own_limit = self.is_own_limit_victim(before.uid());
        if !stuck && !own_limit {
            let words = || format!("{name} is Failed without DisruptionTarget");
            self.judge(Met::FailInShutdown, !after.is_disrupted(), words);
        }
        self.judge_abandoned(before, body);
        let ready = after.condition("Ready").is_some_and(|ready| ready["status"] == "False");
        if !ready {
            self.violate(&format!("{name} is Failed and Ready"));
        }
        if body["metadata"]["annotations"].get(TERMINATED_AT).is_none() {
            self.violate(&format!(
                "{name} is Failed without the annotation that nothing of it runs"
            ));
        }
        let view = before.view();
        let ends = view.restarts_in_place != RestartPolicy::Always;
        if ends {
            let well = self.runtime.ended_well(before.uid());
            let words = || format!("{name} is Failed, and all its containers ended with 0");
            self.judge(Met::FailOfOnce, well, words);
        }
    }

    /// Judges a deletion when the API accepts it.
    pub(super) fn judge_delete(&mut self, uid: &PodUid) {
        let Some(stored) = self.api.pods.get(uid) else { return };
        let name = stored.name().to_owned();
        let (ended, phase) = (stored.is_terminal(), stored.phase());
        let first = !ended && stored.deletion().is_none();
        let unmarked = first && !stored.is_disrupted();
        // The version that a deletion names is older than the end of its pod.
        if ended && self.runtime.running(uid) > 0 {
            return self.violate(&format!("{name} runs, is {phase:?}, and is deleted"));
        }
        let excused = self.behaviour.forbidden == Some(Verb::PatchStatus)
            || self.ledger.mark_failed.contains(uid)
            || self.is_own_limit_victim(uid)
            || self.ledger.marking.values().any(|marking| marking == uid);
        if first && !excused {
            let words = || format!("{name} is deleted before it is marked");
            self.judge(Met::FirstDeletion, unmarked, words);
        }
        // A mark that is on the wire with the deletion may get lost.
        if unmarked {
            self.ledger.mark_failed.insert(uid.clone());
        }
        self.ledger.deleted.insert(uid.clone());
    }

    /// Judges a pod's end as the API shows it.
    pub(super) fn judge_terminal(&mut self, uid: &PodUid, before: &Stored, after: &Stored) {
        let name = before.name().to_owned();
        let excused = self.behaviour.forbidden == Some(Verb::PatchStatus)
            || self.ledger.mark_failed.contains(uid)
            || self.is_own_limit_victim(uid)
            || before.deletion().is_none()
            || self.scripts.get(uid).is_some_and(|script| script.pull.is_some());
        if self.ledger.deleted.contains(uid) && !excused {
            let silent = !after.is_disrupted();
            let was_sticky = silent && before.is_disrupted();
            self.stats.sticky += u64::from(was_sticky);
            if before.view().has_run {
                let words = || {
                    format!("{name} was terminated by the agent, and its status does not say so")
                };
                self.judge(Met::EndOfDeleted, silent && !was_sticky, words);
            }
        }
        if after.is_disrupted() && !before.is_disrupted() && !self.ledger.kubelet_was_armed {
            self.stats.sticky += 1;
        }
    }

    /// Judges a pod's object when it goes. ([API8])
    pub(super) fn judge_gone(&mut self, uid: &PodUid, stored: &Stored) {
        let name = stored.name().to_owned();
        if self.ledger.deleted.contains(uid) {
            let runs = self.runtime.running(uid) > 0;
            let words = || format!("{name} is gone from the API and runs");
            self.judge(Met::GoneAfterDeletion, runs, words);
        }
    }

    /// Judges a pod that ran when the machine powered off.
    pub(super) fn judge_cut(&mut self, uid: &PodUid, marked: bool, elapsed: Option<Duration>) {
        let Some(nature) = self.ledger.natures.get(uid) else { return };
        let known = self
            .ledger
            .shutdown
            .as_ref()
            .is_some_and(|shutdown| shutdown.heard && shutdown.pods.contains(uid));
        let reported_pods = self.ledger.reported.get(uid).is_some_and(|view| view.has_run);
        let candidate = promises::lasts_one_sandbox(&nature.view)
            && !nature.is_static
            && nature.view.owner != Owner::DaemonSet
            && nature.view.priority <= self.behaviour.settings.priority_max;
        let acts =
            self.behaviour.settings.enforce && self.behaviour.settings.priority_groups.is_some();
        let time = elapsed.is_some_and(|elapsed| elapsed > Duration::from_millis(2_500));
        let quick = self.behaviour.settings.in_flight_max >= 4;
        let may = self.may_be_marked(uid, self.now());
        if self.behaviour.strict
            && known
            && reported_pods
            && candidate
            && acts
            && time
            && quick
            && may
        {
            let words = || format!("{} goes down with the machine unmarked", name_of(uid));
            self.judge(Met::CutPod, !marked, words);
        }
    }

    /// Pods whose end the agent must see before it releases the lock. The agent tries pods that the
    /// API protects, and leaves them.
    pub(super) fn unreported(&self, protected: bool) -> Vec<String> {
        let (Some(shutdown), Some(mode)) = (&self.ledger.shutdown, self.mode()) else {
            return Vec::new();
        };
        let settings = &self.behaviour.settings;
        let seen = self.ledger.reported_kubelet.as_ref();
        let works = seen.is_some_and(|(_, facts)| works(facts));
        // Without a way to terminate pods, the agent waits for no pod.
        if settings.priority_groups.is_none() || (!settings.runtime && !works) {
            return Vec::new();
        }
        let needed = promises::times(promises::needed(settings).unwrap_or_default());
        let reported_pods =
            self.ledger.reported.values().filter(|view| shutdown.pods.contains(&view.uid));
        // A working kubelet reports more of a pod whose containers run in its final phase. ([SD17])
        let awaits_more = mode == Mode::Assist && works;
        let half = |view: &PodView| awaits_more && view.running_since.is_some();
        // The kubelet reports a pod that ended well, even if it is dead now. ([AP4])
        let reported = |view: &PodView| {
            // Nor does it report more of a pod that the agent failed by proof, with the lever.
            let ours = |stored: &Stored| stored.annotations.get(TERMINATED_AT).is_some();
            let last = |stored: &Stored| {
                !awaits_more || stored.shown().running_since.is_none() || ours(stored)
            };
            let ended = |stored: &Stored| stored.is_terminal() && last(stored);
            let ended = self.api.pods.get(&view.uid).is_none_or(ended);
            let long_before =
                self.runtime.all_ended_at(&view.uid).is_some_and(|at| at < shutdown.reported_at);
            let left =
                mode == Mode::Substitute && (self.runtime.ended_well(&view.uid) || long_before);
            // The agent does not terminate a pod that had not begun to end by then: neither by what
            // logind grants, nor by what the priority groups need.
            let last_writes = shutdown.last_writes.min(shutdown.reported_at + needed.last_writes);
            let late = mode == Mode::Replace && self.now() >= last_writes;
            ended || left || (late && !self.ledger.deleted.contains(&view.uid))
        };
        let awaited = reported_pods.filter(|view| {
            (!promises::is_terminal(view) || half(view))
                && promises::concerns(view, mode, settings)
                && (mode != Mode::Replace || promises::is_waited_for(view, settings))
                && !reported(view)
                && (protected || !self.is_protected(view, mode))
        });
        awaited.map(|view| view.name.clone()).collect()
    }

    /// Judges the release of the lock.
    pub(super) fn judge_release(&mut self) {
        let now = self.now();
        let unreported = self.unreported(false);
        let Some(shutdown) = &mut self.ledger.shutdown else { return };
        if self.logind.agent_lock.is_none() || shutdown.released {
            return;
        }
        shutdown.released = true;
        let left = shutdown.end.saturating_sub(now);
        let elapsed = now.saturating_sub(shutdown.reported_at);
        // Assist holds the lock no longer than the kubelet's sum and ten seconds. ([AP13])
        let groups = self.behaviour.groups.as_deref().unwrap_or_default();
        let sum: u64 = groups.iter().map(|(_, seconds)| seconds).sum();
        let sum = Duration::from_secs(sum) + promises::FOR_REPORTS;
        let assists = self.mode() == Some(Mode::Assist);
        // The other modes hold it no longer than their own priority groups and reports need.
        let needed = promises::needed(&self.behaviour.settings).unwrap_or_default();
        let wanted = promises::times(needed).end;
        let enough = elapsed + EARLY >= if assists { sum } else { wanted };
        // A frozen agent hears of refusals when its time to contest them is over.
        let froze = self.ledger.thawed_at.is_some_and(|at| at + elapsed > now)
            && self.wire.refused_until + elapsed > now;
        let futile = froze
            || self.behaviour.forbidden.is_some()
            || self.behaviour.settings.priority_groups.is_none();
        self.judge_volumes(futile);
        if left > EARLY && !enough && !futile {
            let (mode, names) = (self.mode(), unreported.join(", "));
            let words = || format!("{mode:?}: lock released {left:?} early, unreported: {names}");
            self.judge(Met::EarlyRelease, !unreported.is_empty(), words);
            if !self.unreported(true).is_empty() {
                self.met(Met::ProtectedAtRelease);
            }
        }
    }

    /// Judges any attempt to terminate a pod when it takes effect.
    pub(super) fn judge_end(&mut self, uid: &PodUid) {
        if self.ledger.is_static(uid) {
            let name = name_of(uid);
            self.violate(&format!("static pod {name} is terminated"));
        }
    }
}
