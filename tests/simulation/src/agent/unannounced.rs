//! Models a stop of the system that logind does not announce: systemd stops the agent and the
//! kubelet at once, and the machine goes. Judges that the agent has marked what ends with it.

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::ending::{Ending, Source};
use agent_core::protocol::event::Event;

use super::kubelet::Health;
use super::logind::Stage;
use super::promises;
use super::scenario::{Outcome, Shutdown};
use super::situations::Met;
use super::world::{Life, World, name_of};
use crate::controller::random::Random;

/// Within this time of its SIGTERM the agent has marked its pods, if nothing fails.
const MARKS_WITHIN: Duration = Duration::from_millis(500);

/// Turns some of the shutdowns into ones that logind does not announce. The generator is their own,
/// so that a seed stays what it was.
pub(super) fn hide(shutdowns: &mut [Shutdown], random: &mut Random) {
    for shutdown in shutdowns {
        if matches!(shutdown.outcome, Outcome::Goes | Outcome::Cut(_)) && random.percent(10) {
            shutdown.outcome = Outcome::Unannounced(random.millis(50, 8_000));
        }
    }
}

impl World {
    /// systemd stops all units: the agent gets SIGTERM and sees that the system stops. Containers
    /// end with the machine.
    pub(super) fn stop_system(&mut self, lasts: Duration) {
        if !self.on || self.logind.stage != Stage::Idle {
            return;
        }
        self.log(|_| format!("systemd   stops the system, and it is off after {lasts:?}"));
        self.stopping = Some((self.now(), self.ending_pods()));
        self.ledger.system_stopped = true;
        let stop = Ending::certain(None, None);
        self.agent_handles(Event::EndingSeen(Source::Systemd, Some(stop)));
        self.request_stop();
        let life = Life::Boot(self.boot);
        let pause = self.random.millis(0, 50);
        self.after(pause, life, |w| w.end_kubelet(Health::Dead));
        self.after(lasts, life, World::power_off);
    }

    /// The pods that the agent knows to have run, and that do not survive the machine. Empty where
    /// it need not mark them.
    fn ending_pods(&self) -> Vec<PodUid> {
        let settings = &self.behaviour.settings;
        let able = self.behaviour.strict && settings.enforce && settings.in_flight_max >= 4;
        // No agent takes the place of one that is killed now.
        let is_killed = self.options.crash_after.is_some() || self.options.crash_in.is_some();
        if !able || is_killed || self.ledger.listed_at.is_none() {
            return Vec::new();
        }
        let ends = |uid: &PodUid| {
            self.ledger.natures.get(uid).is_some_and(|nature| {
                let ours = !nature.is_static && !nature.is_own;
                ours && promises::lasts_one_sandbox(&nature.view)
            })
        };
        let known = self.ledger.reported.iter().filter(|(_, view)| view.has_run);
        known.map(|(uid, _)| uid).filter(|uid| ends(uid)).cloned().collect()
    }

    /// Judges what the agent has done by the end of such a stop: each pod that ends with it says
    /// why, so its Job does not fail by it.
    pub(super) fn judge_stopped(&mut self) {
        let Some((since, pods)) = self.stopping.take() else { return };
        if self.now() < since + MARKS_WITHIN {
            return;
        }
        for uid in pods {
            let may = self.may_be_marked(&uid, self.now());
            let Some(stored) = self.api.pods.get(&uid).filter(|_| may) else { continue };
            if !stored.is_terminal() {
                let marked = stored.is_disrupted();
                let words = || format!("{} ends with a stop of the system unmarked", name_of(&uid));
                self.judge(Met::StoppedMarked, !marked, words);
            }
        }
    }
}
