//! Judges deleted pods that no kubelet terminates.

use std::time::Duration;

use agent_core::agent::Enforcement;
use agent_core::pod::{PodUid, PodView};
use jiff::SignedDuration;

use super::api::Stored;
use super::kubelet::Health;
use super::kubelet_facts::Place;
use super::situations::Met;
use super::world::World;
use crate::controller::agenda::Moment;

/// After this many reverts, the phase is not the agent's to write.
const WRITES_MAX: u32 = 3;
/// How long after a change the agent may not know the state of the kubelet.
const NEWS: Duration = Duration::from_secs(3);
/// How old the runtime's last answer may be when the agent decides by it.
const JUST: Duration = Duration::from_millis(100);
/// How long after the kubelet died, or hung, its deleted pods must be Failed.
const DEAD_FOR: Duration = Duration::from_secs(130);
const HUNG_FOR: Duration = Duration::from_secs(400);
/// The additional time after their grace.
const OVERDUE: SignedDuration = SignedDuration::from_secs(100);

impl World {
    /// Whether a `Failed` was written for a pod that hung.
    pub(super) fn is_of_stuck(before: &Stored, body: &serde_json::Value, shutdown: bool) -> bool {
        !shutdown && before.deletion().is_some() && body["status"]["reason"] != "Evicted"
    }

    /// Judges such a phase when the API accepts it.
    pub(super) fn judge_stuck(&mut self, before: &Stored, after: &Stored) {
        let name = before.name().to_owned();
        let uid = before.uid().clone();
        self.stats.unstuck += 1;
        let features = &self.behaviour.settings.features;
        let (enforced, hanging) =
            (features.stuck_pods == Enforcement::Enforce, features.fail_hanging_starts);
        let words = || format!("{name} hangs and is failed by an agent that only observes");
        self.judge(Met::StuckFailed, !enforced, words);
        let settled = self.now() > self.ledger.pressure.kubelet_changed_at + NEWS;
        if self.kubelet.health == Health::Live && settled {
            self.met(Met::StuckUnderKubelet);
            if !hanging {
                self.violate(&format!("{name} hangs and is failed alongside a live kubelet"));
            } else if self.runtime.ended_well(&uid) {
                self.violate(&format!("{name} succeeded and is failed alongside its kubelet"));
            }
        }
        if !self.ledger.deleted.contains(&uid) {
            let marked = after.is_disrupted() && !before.is_disrupted();
            let words = || format!("{name} was deleted by others and is called disrupted");
            self.judge(Met::StuckOfOthers, marked, words);
        }
    }

    /// Whether the agent may stop the empty sandbox of a deleted pod: if no kubelet does, as far as
    /// it can know, or if the operator lets it bar a start that hangs.
    pub(super) fn may_sweep(&self, uid: &PodUid) -> bool {
        let settled = self.now() > self.ledger.pressure.kubelet_changed_at + NEWS;
        let deleted = self.ledger.reported.get(uid).is_some_and(PodView::is_terminating);
        let first = self.runtime.sandboxes.get(uid).and_then(|it| it.containers.first());
        let just_started = first.is_some_and(|first| self.now() < first.began + JUST);
        let empty = self.runtime.running(uid) == 0 || just_started;
        let bars = self.behaviour.settings.features.fail_hanging_starts;
        let alone = !(self.kubelet.is_live() && settled);
        self.ledger.shutdown.is_none() && deleted && empty && (alone || bars)
    }

    /// Judges a start that hung and goes on: nothing may start behind a phase of the agent's.
    pub(super) fn judge_start(&mut self, uid: &PodUid) {
        let Some(stored) = self.api.pods.get(uid) else { return };
        if stored.deletion().is_none() {
            return;
        }
        let written = self.ledger.pressure.unstuck.contains_key(uid);
        let (name, behind) = (stored.name().to_owned(), stored.is_terminal() && written);
        let words = || format!("{name} starts behind the phase Failed");
        self.judge(Met::LateStart, behind, words);
    }

    /// Judges how often the API has accepted such a phase, also of a pod that has it already.
    pub(super) fn judge_stuck_again(&mut self, before: &Stored) {
        let name = before.name().to_owned();
        let writes = self.ledger.pressure.unstuck.entry(before.uid().clone()).or_default();
        *writes += 1;
        let most = WRITES_MAX * u32::try_from(self.runs).unwrap_or(u32::MAX);
        if *writes > most {
            self.violate(&format!("{name} is failed again and again"));
        }
    }

    /// Checks the state of a deleted pod at the end.
    pub(super) fn check_stuck_end(&mut self, uid: &PodUid, stored: &Stored) {
        let settings = &self.behaviour.settings;
        let able = self.process.is_some()
            && settings.enforce
            && settings.runtime
            && settings.features.stuck_pods == Enforcement::Enforce
            && self.runtime.answers
            && self.behaviour.forbidden.is_none();
        let gone_for = self.now().saturating_sub(self.ledger.pressure.kubelet_changed_at);
        let lost = match self.kubelet.health {
            Health::Live => false,
            // Whoever answers in its place may be the kubelet.
            Health::Dead if self.kubelet.place == Place::Taken => false,
            Health::Dead => gone_for > DEAD_FOR,
            Health::Hung | Health::Stuck => gone_for > HUNG_FOR,
        };
        let details = stored.view().details;
        let reported = details.resource_claims || details.persistent_volumes;
        let overdue = stored.deleted_at().is_some_and(|at| self.api.clock > at + OVERDUE);
        let quiet = self.runtime.running(uid) == 0 && !self.runtime.ended_well(uid);
        let excluded = self.ledger.is_static(uid) || self.is_own(uid) || reported;
        if able && lost && overdue && quiet && !excluded {
            let words = || format!("{} was deleted, nothing of it runs: not Failed", stored.name());
            self.judge(Met::StuckAtEnd, !stored.is_terminal(), words);
        }
    }

    pub(super) fn kubelet_changed(&mut self) {
        let now: Moment = self.now();
        self.ledger.pressure.kubelet_changed_at = now;
    }
}
