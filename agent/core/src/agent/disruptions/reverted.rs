//! Counts acknowledged writes that another writer reverts. The module of each write handles the
//! consequences for the pod. ([API13], [ST8])

use super::super::calls::{Task, Verb};
use super::super::facts::Facts;
use super::super::out::Out;
use super::{Disruptions, PodDisruption};
use crate::pod::PodView;
use crate::protocol::action::{PodRef, Purpose};
use crate::protocol::event::ActionResult;
use crate::termination::patches::is_ours;

/// A write whose revert would show: the last one of its pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    purpose: Purpose,
    /// Whether the API has shown the write: earlier states do not prove a revert.
    shown: bool,
}

impl Disruptions {
    /// Records a finished write, if it is acknowledged.
    pub(in super::super) fn note_written(
        &mut self,
        task: &Task,
        result: &ActionResult,
        facts: &Facts,
    ) {
        let (Task::Pod(_, Verb::Patch(purpose), uid), ActionResult::Patched(Ok(_))) =
            (task, result)
        else {
            return;
        };
        match purpose {
            Purpose::Mark => {
                if let Some(entry) = self.get_mut(uid) {
                    entry.history.written = None;
                }
            }
            Purpose::Fail | Purpose::Clear => {
                // The watch may have been faster than the response.
                let Some(pod) = facts.pods.get(uid) else { return };
                let written = Written { purpose: *purpose, shown: is_shown(pod, *purpose) };
                self.entry(PodRef::of(pod)).history.written = Some(written);
            }
            Purpose::Cause => {}
        }
    }
}

impl PodDisruption {
    /// Compares the pod's state in the API with what was written.
    pub(super) fn note_reverted(&mut self, pod: &PodView, out: &mut Out) {
        let Some(written) = &mut self.history.written else { return };
        if is_shown(pod, written.purpose) {
            written.shown = true;
            return;
        }
        if !written.shown {
            return;
        }
        let purpose = written.purpose;
        self.history.written = None;
        *out.status.reverted.entry(purpose).or_default() += 1;
        let text = match purpose {
            Purpose::Clear => "its condition that was taken back is there again",
            _ => "its phase Failed was taken back by the kubelet",
        };
        out.calls.log(true, Some(&self.pod), text);
    }
}

fn is_shown(pod: &PodView, purpose: Purpose) -> bool {
    if purpose != Purpose::Clear {
        return pod.is_terminal();
    }
    // A pod that terminates may rightly bear a condition again.
    let back = pod.disruption.as_ref().is_some_and(|it| it.since.is_some_and(|at| is_ours(it, at)));
    !back || pod.is_terminal() || pod.is_to_end()
}
