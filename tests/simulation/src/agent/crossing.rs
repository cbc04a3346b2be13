//! Models what crosses the agent's calls: pods that end by themselves while a call about them is on
//! the wire, and conditions that other clients set.

use std::time::Duration;

use agent_core::pod::PodUid;
use serde_json::json;

use super::logind::Stage;
use super::situations::Met;
use super::wire::Verb;
use super::world::{Life, World};
use crate::controller::random::Random;

/// How many writes are crossed after a cancel, in a rough seed with several calls at once. Per
/// mille.
const CANCELLED: u32 = 600;

/// What crosses the calls of a seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crossing {
    /// How many calls about a pod take long, while the pod ends. Per mille.
    ends: u32,
    /// How many pods get a `DisruptionTarget` of the scheduler. Percent.
    preemptions: u32,
}

impl Crossing {
    pub(super) fn roll(random: &mut Random, strict: bool) -> Self {
        Self {
            ends: if !strict && random.percent(50) { *random.pick(&[150, 500]) } else { 0 },
            preemptions: if random.percent(30) { 25 } else { 0 },
        }
    }
}

impl World {
    /// How much longer a call about the pod takes, because the pod ends meanwhile.
    pub(super) fn cross(&mut self, verb: Verb, about: Option<&PodUid>) -> Duration {
        let Some(uid) = about.filter(|_| !self.ledger.settling).cloned() else {
            return Duration::ZERO;
        };
        // Few writes come after a cancel. A pod that ends during the read before them gets none.
        let cancelled = self.cancelled_at.is_some() && self.logind.stage == Stage::Idle;
        let several = !self.behaviour.strict && self.behaviour.settings.in_flight_max > 1;
        let cleans_up = cancelled && verb == Verb::PatchStatus && several;
        let chance = if cleans_up { CANCELLED } else { self.behaviour.crossing.ends };
        if chance == 0 || !self.cross_random.per_mille(chance) {
            return Duration::ZERO;
        }
        let code = *self.cross_random.pick(&[0, 1]);
        let pause = self.cross_random.millis(0, 150);
        self.after(pause, Life::Boot(self.boot), move |w| w.end_by_itself(&uid, code));
        // A kubelet may take a second to see an end.
        let (least, most) = if cleans_up { (700, 1_900) } else { (200, 700) };
        self.cross_random.millis(least, most)
    }

    fn end_by_itself(&mut self, uid: &PodUid, code: i32) {
        let containers = self.runtime.sandboxes.get(uid).map(|it| it.containers.as_slice());
        let killable = containers.unwrap_or_default().iter().enumerate();
        let killable = killable.filter(|(_, container)| !container.is_unkillable());
        let runs: Vec<_> = killable.map(|(number, container)| (number, container.run)).collect();
        for (number, run) in runs {
            self.exit(uid, number, run, code);
        }
    }

    /// The scheduler may preempt the pod some time.
    pub(super) fn plan_preemption(&mut self, uid: &PodUid) {
        let percent = self.behaviour.crossing.preemptions;
        if percent == 0 || !self.cross_random.percent(percent) {
            return;
        }
        let deletes = self.cross_random.percent(50);
        let pause = self.cross_random.millis(1_000, 60_000);
        let uid = uid.clone();
        self.after(pause, Life::World, move |w| w.preempt(&uid, deletes));
    }

    fn preempt(&mut self, uid: &PodUid, deletes: bool) {
        let Some(stored) = self.api.pods.get(uid) else { return };
        let name = stored.name().to_owned();
        if stored.is_terminal() || stored.is_disrupted() || self.ledger.is_static(uid) {
            return;
        }
        self.met(Met::Preemption);
        self.log(|_| format!("scheduler preempts {name}, deletes {deletes}"));
        let at = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let body = json!({"metadata": {"uid": uid.0}, "status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "preempting to accommodate a higher priority pod",
            "lastTransitionTime": at,
        }]}});
        let _refused = self.api.patch_status(&name, &body);
        if deletes {
            let _refused = self.api.delete(&name, uid, 30);
        }
    }
}
