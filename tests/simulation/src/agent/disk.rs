//! Models the agent's journal on the disk. Synced records survive. A write under way when the
//! process or the machine ends may or may not survive.

use std::time::Duration;

use agent_core::protocol::action::ActionId;
use agent_core::protocol::event::ActionResult;
use agent_core::protocol::journal::Record;
use epilogue_common::outcome::{Failure, FailureKind};

use super::situations::Met;
use super::world::{Life, World};

/// The journal's file.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) records: Vec<Record>,
    /// Appended and not yet synced, with the write that appended it.
    pending: Vec<(ActionId, Vec<Record>)>,
}

impl World {
    pub(super) fn append(&mut self, id: ActionId, records: Vec<Record>) {
        let Some(run) = self.agent_run() else { return };
        if self.behaviour.read_only_disk {
            self.met(Met::ReadOnlyDisk);
            let failure = Failure::new(FailureKind::Other, "read-only file system");
            self.finish_after(Duration::from_millis(1), id, ActionResult::Done(Err(failure)));
            return;
        }
        self.disk.pending.push((id, records));
        let (low, high) = self.behaviour.sync_ms;
        let pause = self.random.millis(low, high);
        self.after(pause, Life::Agent(run), move |w| {
            w.sync_up_to(id);
            w.finish(id, ActionResult::Done(Ok(())));
        });
    }

    /// A sync includes everything appended earlier.
    fn sync_up_to(&mut self, id: ActionId) {
        let Some(last) = self.disk.pending.iter().position(|(pending, _)| *pending == id) else {
            return;
        };
        for (_, records) in self.disk.pending.drain(..=last) {
            self.disk.records.extend(records);
        }
    }

    pub(super) fn close_journal(&mut self, id: ActionId) {
        self.disk.pending.clear();
        self.disk.records.clear();
        self.finish_after(Duration::from_millis(2), id, ActionResult::Done(Ok(())));
    }

    /// The process has ended: a prefix of the unsynced records may survive.
    pub(super) fn lose_unsynced(&mut self) {
        let pending = std::mem::take(&mut self.disk.pending);
        for record in pending.into_iter().flat_map(|(_, records)| records) {
            if self.random.percent(50) {
                self.met(Met::UnsyncedLost);
                return;
            }
            self.disk.records.push(record);
        }
    }
}
