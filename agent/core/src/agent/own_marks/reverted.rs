//! Counts acknowledged writes that another writer reverts. The module of each write handles the
//! consequences for the pod. ([API13], [ST8])

use std::collections::BTreeMap;

use super::super::calls::{Task, Verb};
use super::super::facts::Facts;
use super::super::out::Out;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::{PodRef, Purpose};
use crate::protocol::event::ActionResult;
use crate::termination::patches::is_ours;

/// Writes whose revert would show: the last one per pod of the node.
#[derive(Clone, Debug, Default)]
pub(super) struct RevertedWrites {
    writes: BTreeMap<PodUid, Written>,
}

#[derive(Clone, Debug)]
struct Written {
    purpose: Purpose,
    /// Whether the API has shown the write: earlier states do not prove a revert.
    shown: bool,
}

impl RevertedWrites {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.writes.remove(uid);
    }

    /// Records a finished write, if it is acknowledged.
    pub(super) fn note_written(&mut self, task: &Task, result: &ActionResult, facts: &Facts) {
        let ActionResult::Patched(Ok(_)) = result else { return };
        let (uid, purpose) = match task {
            Task::Pod(_, Verb::Patch(purpose @ (Purpose::Fail | Purpose::Clear)), uid) => {
                (uid, *purpose)
            }
            Task::Pod(_, Verb::Patch(Purpose::Mark), uid) => {
                self.writes.remove(uid);
                return;
            }
            _ => return,
        };
        // The watch may have been faster than the response.
        let Some(pod) = facts.pods.get(uid) else { return };
        let written = Written { purpose, shown: is_shown(pod, purpose) };
        self.writes.insert(uid.clone(), written);
    }

    /// Compares the pod's state in the API with what was written.
    pub(super) fn see(&mut self, pod: &PodView, out: &mut Out) {
        let Some(written) = self.writes.get_mut(&pod.uid) else { return };
        if is_shown(pod, written.purpose) {
            written.shown = true;
            return;
        }
        if !written.shown {
            return;
        }
        let purpose = written.purpose;
        self.writes.remove(&pod.uid);
        *out.status.reverted.entry(purpose).or_default() += 1;
        let text = match purpose {
            Purpose::Clear => "its condition that was taken back is there again",
            _ => "its phase Failed was taken back by the kubelet",
        };
        let pod: PodRef = PodRef::of(pod);
        out.calls.log(true, Some(&pod), text);
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
