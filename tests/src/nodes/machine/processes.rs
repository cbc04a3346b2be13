//! The processes of a pod: what they do, signals of the runtime, and time without a kubelet.

use jiff::Timestamp;

use super::super::pod::PodView;
use super::super::processes::{Processes, Signal};
use super::super::script::{End, OnTerm};
use super::{PodMachine, Stage};

impl PodMachine {
    /// What the processes of its main containers do.
    pub(in super::super) fn processes(&self) -> Processes {
        match (self.stage, self.exited) {
            (Stage::Running { .. }, _) => Processes::Run,
            (Stage::Stopping { .. }, _) => Processes::End,
            (_, Some(code)) => Processes::Exited(code),
            (_, None) => Processes::None,
        }
    }

    /// The runtime sends a signal to the processes.
    pub(in super::super) fn signal(&mut self, signal: Signal, now: Timestamp) {
        match (self.stage, signal, self.act.on_term) {
            (Stage::Running { .. }, Signal::Term, OnTerm::Exit { code, after }) => {
                self.stage = Stage::Stopping { dies: now + after, code };
            }
            (Stage::Running { .. } | Stage::Stopping { .. }, Signal::Kill, _) => {
                self.stage = Stage::Stopping { dies: now, code: 137 };
            }
            _ => {}
        }
    }

    /// Lets time pass without a kubelet: processes end, and nothing else happens. Returns when the
    /// next of them ends.
    pub(in super::super) fn pass(&mut self, pod: &PodView, now: Timestamp) -> Option<Timestamp> {
        let ends = |machine: &Self| match machine.stage {
            Stage::Running { ends, .. } => {
                ends.filter(|_| matches!(machine.act.end, End::Exit { .. }))
            }
            Stage::Stopping { dies, .. } => Some(dies),
            _ => None,
        };
        if ends(self).is_some_and(|at| at <= now) {
            match self.stage {
                Stage::Running { .. } => self.end_run(pod, now),
                _ => while self.step(pod, now) {},
            }
        }
        ends(self)
    }

    /// A kubelet that has started finds a pod that has ended in the API.
    pub(in super::super) fn adopt(&mut self, pod: &PodView, now: Timestamp) {
        if self.ended() && pod.ended.is_some() {
            self.unwritten = false;
        }
        self.observe(pod, now);
    }
}
