//! Models the controllers that replace what has ended, and a scheduler whose picture of the node is
//! some seconds old: in a shutdown it binds the replacements to the node that goes down.

use std::time::Duration;

use agent_core::pod::Owner;
use agent_core::shutdown::Mode;

use super::api::Stored;
use super::logind::Stage;
use super::situations::Met;
use super::world::{Life, World};

/// More replacements than any seed needs.
const REPLACEMENTS_MAX: u32 = 200;

impl World {
    /// A pod's controller makes a new one when the pod has ended, or its object is gone.
    pub(super) fn replace(&mut self, ended: &Stored) {
        let uid = ended.uid();
        let owned = self.ledger.natures.get(uid).is_some_and(|nature| {
            !nature.is_static && !nature.is_own && nature.view.owner != Owner::None
        });
        let due = owned && self.on && self.logind.stage != Stage::Idle && !self.ledger.settling;
        let first = due && self.ledger.replaced.insert(uid.clone());
        let many = self.ledger.replaced.len() > REPLACEMENTS_MAX as usize;
        if !first || many || !self.replaced_random.percent(70) {
            return;
        }
        let sees_late = self.replaced_random.millis(0, 3_000);
        let pause = self.replaced_random.millis(100, 1_000);
        let ended = ended.clone();
        self.after(pause, Life::Boot(self.boot), move |w| w.schedule(&ended, sees_late));
    }

    fn schedule(&mut self, ended: &Stored, sees_late: Duration) {
        let node = &self.api.node;
        let tainted = node.tainted && self.now() >= self.ledger.tainted_at + sees_late;
        let mut view = ended.view();
        let stays = view.owner == Owner::DaemonSet;
        view.details.tolerates_shutdown |= stays && self.replaced_random.percent(50);
        if !self.on || (tainted && !view.details.tolerates_shutdown) {
            return;
        }
        // The scheduler has other nodes.
        if stays || self.replaced_random.percent(60) {
            self.met(Met::Replacement);
            self.bind_replacement(&view);
        }
    }

    pub(super) fn taint_seen(&mut self) {
        let now = self.now();
        self.ledger.node_tainted(self.api.node.tainted, now);
    }

    /// Judges a phase that the agent wrote: a pod that came after the announcement and never ran
    /// has lost nothing by a dead kubelet, and its controller would replace it again and again.
    pub(super) fn judge_newcomer(&mut self, before: &Stored) {
        let Some(shutdown) = &self.ledger.shutdown else { return };
        let late = shutdown.heard && !shutdown.pods.contains(before.uid());
        let replaced = self.ledger.replacements.contains(before.uid());
        let view = before.view();
        let substitute = self.mode() == Some(Mode::Substitute);
        if late && replaced && substitute && !view.has_run && !view.is_terminating() {
            self.violate(&format!("{} came, never ran, and is failed", before.name()));
        }
    }
}
