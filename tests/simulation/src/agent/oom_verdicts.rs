//! Judges what the agent reports of OOM kills.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::pressure::OomConstraint;
use epilogue_common::names::oom_reason::{CONTAINER_LIMIT, NODE_OUT_OF_MEMORY};
use epilogue_common::names::pod_condition::OOM_KILLED;

use super::api::Stored;
use super::kernel::Kill;
use super::situations::Met;
use super::world::World;

/// How long the agent has for its condition.
const SAID_WITHIN: Duration = Duration::from_secs(20);

/// The reason that the agent must report for a kill.
fn reason_of(kill: &Kill) -> &'static str {
    match kill.constraint {
        OomConstraint::Node => NODE_OUT_OF_MEMORY,
        _ => CONTAINER_LIMIT,
    }
}

impl World {
    fn deadly(&self, uid: &PodUid) -> Vec<Kill> {
        let kills = self.ledger.kills.iter().filter(|kill| kill.uid == *uid && !kill.lives);
        kills.cloned().collect()
    }

    /// Judges a condition when the API accepts it.
    pub(super) fn judge_oom_condition(&mut self, before: &Stored, after: &Stored) {
        let name = before.name().to_owned();
        let uid = before.uid().clone();
        let kills = self.deadly(&uid);
        if !self.behaviour.settings.features.oom_causes {
            self.violate(&format!("{name}: a cause is reported, which is turned off"));
        }
        let timeless = after
            .condition(OOM_KILLED)
            .is_none_or(|cause| cause["lastTransitionTime"].as_str().is_none());
        if timeless {
            self.violate(&format!("{name}: a cause without its time"));
        }
        let says = after.condition(OOM_KILLED).is_some_and(|cause| cause["status"] == "True");
        if says {
            let words = || format!("{name} is reported as killed for memory, and was not");
            self.judge(Met::CauseArrives, kills.is_empty(), words);
        }
        if after.is_disrupted() && !before.is_disrupted() {
            let by_node = kills.iter().any(|kill| kill.constraint == OomConstraint::Node);
            let wrong = !by_node || !self.behaviour.settings.features.node_oom_disrupts;
            let words = || format!("{name} died of memory and is called disrupted");
            self.judge(Met::CauseDisrupts, wrong, words);
        }
    }

    /// Checks what is reported of a pod at the end.
    pub(super) fn check_oom_end(&mut self, uid: &PodUid, stored: &Stored, gone: bool) {
        let kills = self.deadly(uid);
        let reported: Vec<&Kill> = kills.iter().filter(|kill| kill.reported_at.is_some()).collect();
        let cause = stored.condition(OOM_KILLED);
        let reason = cause.and_then(|cause| cause["reason"].as_str()).map(str::to_owned);
        let right: BTreeSet<&str> = kills.iter().map(reason_of).collect();
        let name = stored.name().to_owned();
        if let Some(reason) = &reason
            && kills.last().is_some_and(|kill| kill.reported_at.is_some())
        {
            let wrong = !right.contains(reason.as_str());
            let words = || format!("{name} is reported as killed for {reason}, not for {right:?}");
            self.judge(Met::CauseRight, wrong, words);
        }
        let settings = &self.behaviour.settings;
        let able = settings.enforce && settings.features.oom_causes && self.behaviour.strict;
        let now = self.now();
        let due = reported.iter().any(|kill| {
            let reported_at = kill.reported_at.unwrap_or_default();
            reported_at + SAID_WITHIN < now
        });
        let undisturbed = self.stats.crashes == 0 && self.stats.power_offs == 0 && !gone;
        let excluded = self.ledger.is_static(uid) || self.is_own(uid);
        if able && due && undisturbed && !excluded {
            let words = || format!("{name} was killed for memory, and no condition reports it");
            self.judge(Met::CauseDue, reason.is_none(), words);
        }
    }
}
