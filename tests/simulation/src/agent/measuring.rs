//! Models the agent's samples of the node: true when taken, and sometimes failing, slow, old or
//! incomplete.

use std::collections::BTreeMap;

use agent_core::pod::PodUid;
use agent_core::pressure::observe::Observation;
use agent_core::pressure::signal::Signal;
use agent_core::pressure::stall::{PodStall, StallSample};
use agent_core::pressure::usage::{DiskLayout, DiskUsage};
use agent_core::pressure::watch::Measured;
use agent_core::protocol::action::ActionId;
use agent_core::protocol::event::ActionResult;
use agent_core::protocol::pressure::{ContainerFigures, PodFigures, Resource, Sample};
use epilogue_common::outcome::{Failure, FailureKind};

use super::situations::Met;
use super::world::World;

/// The signals of a node where everything lies on one disk.
const SIGNALS: [Signal; 7] = [
    Signal::MemoryAvailable,
    Signal::AllocatableMemoryAvailable,
    Signal::NodefsAvailable,
    Signal::NodefsInodesFree,
    Signal::ImagefsAvailable,
    Signal::ImagefsInodesFree,
    Signal::PidAvailable,
];

impl World {
    fn chance(&mut self, per_mille: u32) -> bool {
        !self.ledger.settling && self.random.per_mille(per_mille)
    }

    pub(super) fn measure(&mut self, id: ActionId) {
        let (low, high) = self.behaviour.strain.sample_ms;
        let pause = self.random.millis(low, high);
        if self.chance(self.behaviour.strain.failing_samples) {
            self.met(Met::SampleFails);
            let failure = Failure::new(FailureKind::Other, "cannot read /proc/meminfo");
            return self.finish_after(pause, id, ActionResult::Measured(Err(failure)));
        }
        let fresh = self.sample();
        self.note_stall_of_sample(&fresh);
        let old = self.last_sample.replace(fresh.clone());
        let stale = self.chance(self.behaviour.strain.stale_samples);
        if stale && old.is_some() {
            self.met(Met::SampleIsOld);
        }
        let sample = old.filter(|_| stale).unwrap_or(fresh);
        self.finish_after(pause, id, ActionResult::Measured(Ok(Box::new(sample))));
    }

    fn sample(&mut self) -> Sample {
        let at = self.clocks().monotonic;
        let mut signals = BTreeMap::new();
        let mut unreadable = Vec::new();
        let used = self.used();
        for signal in SIGNALS {
            if self.chance(self.behaviour.strain.missing_signals) {
                self.met(Met::SignalMissing);
                unreadable.push(format!("{signal} cannot be read"));
            } else {
                signals.insert(signal, Measured { observation: self.left_of(signal, used), at });
            }
        }
        let psi = self.behaviour.strain.psi;
        Sample {
            signals,
            swap: Some(Observation { available: 0, capacity: 0 }),
            layout: Some(DiskLayout::Single),
            stall: psi.then(|| self.stalls()),
            io: psi.then(|| self.kernel.psi(self.kernel.io, self.now())),
            unreadable,
        }
    }

    /// A sample may show a shortage that is over before the kernel's next tick.
    fn note_stall_of_sample(&mut self, sample: &Sample) {
        let Some(stall) = &sample.stall else { return };
        let Observation { available, capacity } = stall.available;
        if self.kernel.all_pods.rate > 0 && available < capacity / 10 {
            self.ledger.memory_stalled_at = Some(self.now());
        }
    }

    fn stalls(&self) -> StallSample {
        let pods = self.kernel.pods.iter().filter(|(uid, _)| self.runtime.running(uid) > 0);
        let pods = pods.map(|(uid, waited)| {
            let limit = self.scripts.get(uid).and_then(|script| script.needs.memory_limit);
            let limit = limit.map(|limit| (self.use_of(uid).memory.min(limit), limit));
            PodStall { uid: uid.clone(), psi: self.kernel.psi(*waited, self.now()), limit }
        });
        StallSample {
            at: self.clocks().monotonic,
            all_pods: self.kernel.psi(self.kernel.all_pods, self.now()),
            available: self.left(Signal::MemoryAvailable),
            pods: pods.collect(),
        }
    }

    pub(super) fn measure_pods(&mut self, id: ActionId, of: Resource, pods: &[PodUid]) {
        let (low, high) = self.behaviour.strain.sample_ms;
        let pause = self.random.millis(low, high);
        if self.chance(self.behaviour.strain.failing_samples) {
            let failure = Failure::new(FailureKind::Other, "cannot read the cgroups");
            return self.finish_after(pause, id, ActionResult::Figures(Err(failure)));
        }
        let mut figures = BTreeMap::new();
        for uid in pods {
            let missing = self.chance(self.behaviour.strain.missing_pods);
            if missing {
                self.met(Met::PodMissing);
            } else if self.runtime.is_up(uid) {
                figures.insert(uid.clone(), self.figures(uid, of));
            }
        }
        self.finish_after(pause, id, ActionResult::Figures(Ok(figures)));
    }

    fn figures(&self, uid: &PodUid, of: Resource) -> PodFigures {
        let used = self.use_of(uid);
        let needs = self.scripts.get(uid).map(|script| script.needs.clone()).unwrap_or_default();
        let in_volume = needs.volume_limit.is_some();
        let disk = DiskUsage {
            rootfs: if in_volume { 0 } else { used.disk },
            logs: 0,
            volumes: if in_volume { used.disk } else { 0 },
        };
        let first = ContainerFigures {
            name: "main-0".into(),
            memory: (of == Resource::Memory).then_some(used.memory),
            rootfs: (of == Resource::Disk).then_some(disk.rootfs),
            logs: (of == Resource::Disk).then_some(0),
        };
        PodFigures {
            memory: (of == Resource::Memory).then_some(used.memory),
            tasks: (of == Resource::Pids).then_some(used.tasks),
            disk: (of == Resource::Disk).then_some(disk),
            inodes: (of == Resource::Disk).then(DiskUsage::default),
            containers: vec![first],
            empty_dirs: if in_volume && of == Resource::Disk {
                vec![("scratch".into(), used.disk)]
            } else {
                Vec::new()
            },
        }
    }
}
