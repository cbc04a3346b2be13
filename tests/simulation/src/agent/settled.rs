//! Judges over time: what must be tidy again after a cancelled shutdown, how long the agent holds
//! the lock, and the state at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::agent::Enforcement;
use agent_core::pod::{PodUid, RestartPolicy};
use agent_core::shutdown::Mode;
use epilogue_common::names::node_condition::GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS;
use serde_json::Value;

use super::api::Stored;
use super::kubelet::{Health, Stage as Worker};
use super::logind::Stage;
use super::promises;
use super::scenario::Behaviour;
use super::situations::Met;
use super::world::{Life, World, name_of};

/// How long next to a live kubelet until the agent must have ended a pod without a sandbox.
const ENDS_ABANDONED: Duration = Duration::from_secs(150);
/// How long before a boot a pod must have started to be surely older, whatever the clocks.
const RAN_BEFORE: Duration = Duration::from_secs(30);
/// How long after its first list the agent may need to mark what its node has lost.
const TELLS_LOST: Duration = Duration::from_secs(3);
/// How often the checks run.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How many checks in a row may find something untidy.
const UNTIDY_MAX: u32 = 35;
/// Less than the minute after which proof of life alone, without a journal, finds a mark.
const UNTIDY_MAX_ROUGH: u32 = 50;
/// The same with an API that does not accept every fourth call: several retries in a row fail, and
/// the wait between them grows to 30 s.
const UNTIDY_MAX_REFUSED: u32 = 200;
/// How long after its deadline the lock may be released.
const LATE: Duration = Duration::from_millis(60);
/// How long after the last report the agent may hold the lock.
const NEEDLESS: Duration = Duration::from_millis(2_500);
/// How long after the announcement the agent may contest the refusal of a mark: it cannot know
/// whether the API refuses everything.
const CONTESTS: Duration = Duration::from_secs(8);
/// Maximum number of actions in the last stretch of a settled world.
const REST_ACTIONS_MAX: u32 = 20;
/// Maximum number of samples in that stretch: a settled node may still be short of something.
const REST_SAMPLES_MAX: u32 = 800;
const REST: Duration = Duration::from_mins(1);

impl World {
    /// Checks the world once.
    pub(super) fn inspect(&mut self) {
        self.inspect_lock();
        self.inspect_mode();
        self.inspect_tidiness();
        if self.now() + REST <= self.behaviour.ends_at {
            self.ledger.recent_actions = 0;
            self.ledger.pressure.recent_samples = 0;
        }
        self.after(CHECK_EVERY, Life::World, World::inspect);
    }

    fn inspect_lock(&mut self) {
        let held = self.logind.agent_lock.is_some() && self.logind.agent_lock == self.agent_run();
        let now = self.now();
        let thawed = self.ledger.thawed_at.is_some_and(|at| now < at + CHECK_EVERY);
        let unreported = self.unreported(true);
        let strict = self.behaviour.strict;
        let mode = self.mode();
        let terminating =
            self.ledger.reported.values().any(|pod| pod.is_terminating() && !pod.is_terminal());
        // A kubelet that is back restarts what the agent stopped in its place.
        let back = mode == Some(Mode::Substitute) && self.kubelet.health == Health::Live;
        let others_end = terminating || back || self.behaviour.settings.priority_groups.is_none();
        let Some(shutdown) = &mut self.ledger.shutdown else { return };
        if !held || self.ledger.frozen_at.is_some() || thawed || !shutdown.heard || shutdown.blamed
        {
            return;
        }
        if self.logind.stage == Stage::Delayed && now + CHECK_EVERY > shutdown.latest {
            let late = now.saturating_sub(shutdown.latest);
            shutdown.blamed = late > LATE;
            let words = || format!("{mode:?}: lock held {late:?} after its deadline");
            self.judge(Met::LockNearDeadline, late > LATE, words);
            if late > LATE {
                return;
            }
        }
        let (volume_left, of_volumes) = (self.is_volume_left(), self.volumes_may_hold());
        let Some(shutdown) = &mut self.ledger.shutdown else { return };
        let refused = now < self.wire.refused_until + CHECK_EVERY;
        let contested =
            self.behaviour.refusing.protects_marks() && now < shutdown.reported_at + CONTESTS;
        if !unreported.is_empty() || others_end || refused || contested || volume_left {
            shutdown.needless_since = None;
            return;
        }
        let since = *shutdown.needless_since.get_or_insert(now);
        if strict {
            let needless = now.saturating_sub(since) > NEEDLESS + of_volumes;
            shutdown.blamed |= needless;
            let words = || format!("{mode:?}: lock held for nothing");
            self.judge(Met::LockWithoutNeed, needless, words);
        }
    }

    /// Leftovers that the agent should have taken back while no shutdown is under way.
    fn untidy(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (uid, stored) in &self.api.pods {
            let worker = self.kubelet.workers.get(uid);
            let dying = worker.is_some_and(|w| matches!(w.stage, Worker::Terminating { .. }));
            // The runtime carries out a stop that began before the cancel: the mark states why the
            // pod ends.
            let dying = dying || self.is_being_stopped(uid);
            // Its sidecars run until a kubelet stops them, and do not make it live.
            let over = promises::had_its_only_run(&stored.view())
                && self.runtime.all_ended_at(uid).is_some();
            let runs = self.runtime.running(uid) > 0;
            let lives = runs && !over && stored.deletion().is_none();
            let lever = stored.active_deadline.is_some();
            // Only the runtime tells which of them a stop without an answer has reached.
            let known = self.runtime.answers;
            if lives && known && !dying && !lever && !stored.is_terminal() && stored.is_marked() {
                found.push(format!("{} lives and is marked", stored.name()));
            }
        }
        found.extend(self.untidy_notices());
        if self.api.node.shows(GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS) {
            found.push("the node's condition says that it is shutting down".into());
        }
        if self.api.node.announced.as_deref().is_some_and(|text| text != "idle") {
            found.push(format!("the node is announced as {:?}", self.api.node.announced));
        }
        let observes = !self.behaviour.settings.enforce || self.mode() == Some(Mode::Observe);
        if self.logind.agent_lock != self.agent_run() && !observes {
            found.push("the lock is not held".into());
        }
        found
    }

    fn inspect_tidiness(&mut self) {
        let process = self.process.as_ref();
        let able = process.is_some_and(|process| process.subscribed && !process.stop_requested)
            && self.ledger.frozen_at.is_none()
            && !self.is_dark()
            && !self.logind.down
            && self.logind.stage == Stage::Idle;
        if !able || self.behaviour.forbidden.is_some() || self.behaviour.read_only_disk {
            self.ledger.untidy = 0;
            return;
        }
        let found = self.untidy();
        if found.is_empty() && self.ledger.untidy > 0 {
            self.met(Met::TidiedUp);
        }
        self.ledger.untidy = if found.is_empty() { 0 } else { self.ledger.untidy + 1 };
        let Behaviour { strict, lost_requests, lost_replies, refusals, .. } = self.behaviour;
        let refused = lost_requests + lost_replies + refusals >= 250;
        let most = match (strict, refused) {
            (true, _) => UNTIDY_MAX,
            (false, false) => UNTIDY_MAX_ROUGH,
            (false, true) => UNTIDY_MAX_REFUSED,
        };
        if self.ledger.untidy == most {
            self.violate(&format!("not tidied up in {most} s: {}", found.join(", ")));
        }
    }

    /// Checks the state at the end.
    pub(super) fn check_end(&mut self) {
        if !self.over {
            return;
        }
        let since = self.now().saturating_sub(REST * 2);
        let kills = self.ledger.kills.iter().any(|kill| kill.at > since);
        let victims = self.ledger.pressure.victims.values().any(|v| v.chosen_at > since);
        let rests = !kills && !victims;
        if rests {
            let count = self.ledger.recent_actions;
            let words = || format!("no rest: {count} actions in the last {REST:?}");
            self.judge(Met::EndInRest, count > REST_ACTIONS_MAX, words);
        }
        if self.ledger.pressure.recent_samples > REST_SAMPLES_MAX {
            let count = self.ledger.pressure.recent_samples;
            self.violate(&format!("no rest: {count} checks in the last {REST:?}"));
        }
        self.check_pressure_end();
        let uids: Vec<PodUid> = self.ledger.last.keys().cloned().collect();
        for uid in uids {
            self.check_pod(&uid);
        }
        let settled = self.on && self.process.is_some() && self.logind.stage == Stage::Idle;
        if settled && self.behaviour.forbidden.is_none() && !self.behaviour.read_only_disk {
            self.met(Met::EndSettled);
            // With marks that only the runtime explains, the journal waits for the runtime.
            if !self.disk.records.is_empty() && self.runtime.answers {
                let records = self.disk.records.len();
                let status = self.process.as_ref().map(|process| process.agent.status());
                let left = status.map(|s| {
                    (s.shutdown.is_some(), s.mark_removals_pending, s.boot_recovery_pending)
                });
                let words = "shutdown, revoked marks, boot recovery";
                self.violate(&format!(
                    "the journal is open at the end, {records} records; {words}: {left:?}"
                ));
            }
            for what in self.untidy() {
                self.violate(&format!("at the end {what}"));
            }
        }
    }

    fn check_pod(&mut self, uid: &PodUid) {
        let Some((stored, gone)) = self.ledger.last.get(uid).cloned() else { return };
        let Some(nature) = self.ledger.natures.get(uid).cloned() else { return };
        let name = stored.name().to_owned();
        let never = promises::lasts_one_sandbox(&nature.view);
        let cut = self.ledger.cut.contains(uid);
        if cut && never && stored.is_terminal() && !nature.is_static && !nature.is_own {
            if stored.is_disrupted() {
                self.stats.reported += 1;
            } else {
                self.stats.untold += 1;
                self.log(|_| format!("untold    {name}"));
            }
            if self.ledger.cut_marked.contains(uid) {
                let words =
                    || format!("{name} was marked, and its terminal status does not say so");
                self.judge(Met::CutMarked, !stored.is_disrupted(), words);
            }
        }
        if !gone {
            self.check_stuck_end(uid, &stored);
            self.check_abandoned_end(uid, &stored);
        }
        self.check_oom_end(uid, &stored, gone);
        let works = self.on && self.kubelet.health == Health::Live;
        let has_time = stored.deleted_at().is_some_and(|at| at > self.api.clock);
        // The kubelet counts the grace from when it hears of the deletion.
        let worker = self.kubelet.workers.get(uid).map(|worker| &worker.stage);
        let stops =
            matches!(worker, Some(Worker::Terminating { kill_at }) if *kill_at > self.now());
        let has_time = has_time || stops;
        let stays = self.runtime.is_unkillable(uid) || !self.runtime.answers || has_time;
        if works && stored.deletion().is_some() && !stays {
            self.judge(Met::DeletedAtEnd, !gone, || {
                format!("{name} was deleted and is still there")
            });
        }
        let running = self.runtime.running(uid) > 0;
        if works && stored.is_terminal() && !nature.is_static && !stays {
            let words = || format!("{name} is {:?} and runs at the end", stored.phase());
            self.judge(Met::EndedAtEnd, running, words);
        }
    }

    /// Judges the end of a pod that the power cut: an agent that had the time has said by then that
    /// its node was lost. ([W5], [W20])
    pub(super) fn judge_lost(&mut self, before: &Stored, after: &Stored) {
        let (uid, now) = (before.uid(), self.now());
        let Some(nature) = self.ledger.natures.get(uid) else { return };
        let lost = self.ledger.cut.contains(uid)
            && promises::lasts_one_sandbox(&nature.view)
            && !nature.is_static
            && before.deletion().is_none();
        let since = before.shown().running_since;
        let long_before = since.zip(self.boot_wall).is_some_and(|(since, boot)| {
            Duration::try_from(boot.duration_since(since)).is_ok_and(|ago| ago > RAN_BEFORE)
        });
        let settings = &self.behaviour.settings;
        let able = self.behaviour.strict && settings.enforce && settings.in_flight_max >= 4;
        let has_time = self.ledger.listed_at.is_some_and(|at| at + TELLS_LOST < now);
        if lost && long_before && able && has_time && self.may_be_marked(uid, now) {
            let name = before.name().to_owned();
            let words = || format!("{name} was lost with the machine, and its end does not say so");
            self.judge(Met::LostMarked, !after.is_disrupted(), words);
        }
    }

    /// Judges the phase of a pod without a sandbox when the API accepts it.
    pub(super) fn judge_abandoned(&mut self, before: &Stored, body: &Value) {
        if body["status"]["message"] != promises::ABANDONED_MESSAGE {
            return;
        }
        let (uid, view) = (before.uid(), before.view());
        let never = RestartPolicy::Never;
        let reported = view.restarts_in_place == never && self.runtime.ended_well(uid);
        let comes_back = view.restart_policy != never || !self.runtime.has_lost_sandbox(uid);
        let name = before.name().to_owned();
        let words = || format!("{name} is Failed for its sandbox, and goes on or is reported");
        self.judge(Met::AbandonedFailed, reported || comes_back, words);
    }

    /// Checks that no pod waits for ever in a sandbox that it has lost. ([W21])
    fn check_abandoned_end(&mut self, uid: &PodUid, stored: &Stored) {
        let settings = &self.behaviour.settings;
        let able = self.on
            && self.process.is_some()
            && settings.enforce
            && settings.runtime
            && settings.features.stuck_pods == Enforcement::Enforce
            && self.runtime.answers
            && self.behaviour.forbidden.is_none()
            && !self.behaviour.refusing.protects_marks();
        let since =
            self.ledger.settling_since.map(|at| at.max(self.ledger.pressure.kubelet_changed_at));
        let works = self.kubelet.health == Health::Live
            && self.logind.stage == Stage::Idle
            && since.is_some_and(|at| self.now() > at + ENDS_ABANDONED);
        let view = stored.view();
        let lost = view.restart_policy == RestartPolicy::Never
            && stored.deletion().is_none()
            && !self.ledger.is_static(uid)
            && !self.is_own(uid)
            && self.runtime.has_lost_sandbox(uid);
        if able && works && lost {
            let words = || {
                format!(
                    "{} has lost its sandbox, and is {:?} at the end",
                    stored.name(),
                    stored.phase()
                )
            };
            self.judge(Met::SandboxLost, !stored.is_terminal(), words);
        }
    }

    /// Describes each pod's end.
    pub(super) fn ends(&self) -> BTreeMap<String, String> {
        let ends = self.ledger.last.iter().map(|(uid, (stored, gone))| {
            let mark = if stored.is_disrupted() { " marked" } else { "" };
            let gone = if *gone { " gone" } else { "" };
            (name_of(uid).to_owned(), format!("{:?}{mark}{gone}", stored.phase()))
        });
        ends.collect()
    }
}
