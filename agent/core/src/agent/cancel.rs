//! Reverts the writes of a cancelled shutdown: everything untrue on a node that lives on,
//! conditions first.

use std::collections::{BTreeMap, BTreeSet};

use epilogue_common::announcement::Announcement;
use epilogue_common::outcome::Outcome;
use jiff::Timestamp;

use super::Agent;
use super::calls::{Part, Task, Verb};
use crate::pod::{Disruption, PodUid, PodView};
use crate::protocol::action::{PodRef, Purpose};
use crate::protocol::journal::{Intent, Record};
use crate::termination::attempt::Follow;
use crate::termination::correction::Correction;
use crate::termination::patches::{self, stands};
use crate::termination::progress::Terminator;

/// A condition to remove.
#[derive(Debug)]
struct Revocation {
    correction: Correction,
    /// When the condition was set; this time identifies it as the agent's own.
    at: Timestamp,
}

/// All conditions to remove, and those already removed.
#[derive(Debug, Default)]
pub(super) struct RevokedMarks {
    pods: BTreeMap<PodUid, Revocation>,
    /// Removed marks, because a mark whose response was lost may still arrive late.
    revoked: BTreeMap<PodUid, (PodRef, Timestamp)>,
    /// Pods that stay marked: the cancelled shutdown has stopped them.
    kept: BTreeSet<PodUid>,
    /// Whether marks of an unknown shutdown were searched since the API last showed a condition.
    sought: bool,
}

impl RevokedMarks {
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether the pod's condition is being removed.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// Whether the pod's condition was removed, is to be removed, or stays.
    fn knows(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid) || self.revoked.contains_key(uid) || self.kept.contains(uid)
    }

    /// Keeps the pod's condition. If the pod runs anyway, a runtime check finds it.
    /// (`own_marks_survivors.rs`)
    pub(super) fn keep(&mut self, uid: PodUid) {
        self.kept.insert(uid);
    }

    /// Whether the pod's condition stays, because the cancelled shutdown has stopped the pod.
    pub(super) fn keeps(&self, uid: &PodUid) -> bool {
        self.kept.contains(uid)
    }

    /// Removes the condition that was set on the pod at `at`. The agent reads the pod first: the
    /// cached state may be older than the mark.
    pub(super) fn add(&mut self, pod: PodRef, at: Timestamp) {
        self.pods.insert(pod.uid.clone(), Revocation { correction: Correction::new(pod), at });
    }

    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.revoked.remove(uid);
        self.kept.remove(uid);
    }

    /// Returns the conditions that still stand; a new shutdown takes them over.
    pub(super) fn hand_over(&mut self) -> BTreeMap<PodUid, (PodRef, Timestamp)> {
        self.revoked.clear();
        let pods = std::mem::take(&mut self.pods);
        pods.into_iter().map(|(uid, it)| (uid, (it.correction.pod, it.at))).collect()
    }

    fn done(&mut self, uid: &PodUid) {
        if let Some(revocation) = self.pods.remove(uid) {
            self.revoked.insert(uid.clone(), (revocation.correction.pod, revocation.at));
        }
    }
}

impl Agent {
    /// Cancels the shutdown and reverts everything, whatever is under way.
    ///
    /// DIVERGES(upstream): the agent reverts at once, while pods terminate. Upstream notices a
    /// cancel only after all pods have terminated. ([SD10])
    pub(super) fn cancel(&mut self, why: &str) {
        if self.shutdown.is_none() {
            return;
        }
        self.logind.take_anew(self.clock.monotonic());
        self.report_cancelled(why);
        self.leave_shutdown();
        self.status.cancelled();
        self.restore_node();
    }

    /// Ends the cancelled shutdown and schedules the removal of its marks.
    pub(super) fn leave_shutdown(&mut self) {
        let Some(shutdown) = self.shutdown.take() else { return };
        // Actions that the shell has not fetched yet are dropped.
        self.calls.retract_shutdown();
        for (uid, termination) in shutdown.terminations {
            if !termination.mark.was_sent() {
                continue;
            }
            // Pods that the runtime has stopped and that cannot run again are disrupted for good.
            let stopped = termination.terminator == Terminator::Stop
                && (termination.end.is_done()
                    || self.calls.has(&Task::Pod(Part::Shutdown, Verb::Stop, uid.clone())))
                && self.pods.get(&uid).is_some_and(PodView::cannot_run_again);
            if stopped {
                self.revoked_marks.keep(uid);
            } else {
                self.revoked_marks.add(termination.pod, termination.marked_at);
            }
        }
        for (pod, at) in shutdown.carried.into_values() {
            self.revoked_marks.add(pod, at);
        }
    }

    /// Announces the node as idle, so that it accepts pods again.
    pub(super) fn restore_node(&mut self) {
        self.node.announce(&Announcement::Idle);
        let tainted = self.node.view.as_ref().is_some_and(|view| view.tainted);
        if tainted || self.node.wants_taint() {
            self.node.taint(false);
        }
    }

    /// Finds marks of a shutdown whose journal is lost. A condition like ours on a pod that has run
    /// since this boot, while logind is calm, has no other source. No kubelet shows it before the
    /// end. ([ST7]) After a boot the pod may run again long after the first list. So this check
    /// runs whenever the API shows such a condition.
    pub(super) fn find_forgotten_marks(&mut self) {
        let ready = self.logind.is_calm() && self.journaled.is_none() && self.pods.is_listed();
        if !ready || std::mem::replace(&mut self.revoked_marks.sought, true) {
            return;
        }
        let Some(boot) = self.surely_after_boot() else { return };
        // A start in the future proves only that the clock was set since.
        let now = self.clock.now().wall;
        let lives = |pod: &&PodView| {
            // If the runtime can tell whether such a pod was stopped, the agent asks it.
            // (`own_marks_survivors.rs`)
            if self.settings.runtime && pod.cannot_run_again() {
                return false;
            }
            let since = pod.running_since.filter(|since| *since <= now);
            let explained =
                self.boot_recovery.knows(&pod.uid) || self.revoked_marks.knows(&pod.uid);
            since.is_some_and(|since| since > boot) && !explained
        };
        let stale: Vec<_> = self
            .pods
            .iter()
            .filter(lives)
            .filter_map(|pod| {
                // Other messages do not belong to a shutdown. (`eviction/own_marks_stale.rs`,
                // `own_marks_survivors.rs`)
                let ours =
                    |disruption: &&Disruption| disruption.message == patches::SHUTDOWN_MESSAGE;
                let at = pod.disruption.as_ref().filter(ours)?.since?;
                stands(pod, at).then(|| (PodRef::of(pod), at))
            })
            .collect();
        for (pod, at) in stale {
            self.calls.log(true, Some(&pod), "a condition of a forgotten shutdown is taken back");
            self.revoked_marks.add(pod, at);
        }
    }

    /// Requests a new search if the API shows a condition that may belong to a forgotten shutdown.
    pub(super) fn sees_condition(&mut self, pod: &PodView) {
        let at = pod.disruption.as_ref().and_then(|disruption| disruption.since);
        if at.is_some_and(|at| stands(pod, at)) {
            self.revoked_marks.sought = false;
        }
    }

    /// Advances the removal of conditions; after the last one the journal is closed.
    pub(super) fn advance_revocations(&mut self) {
        let now = self.clock.now();
        let mut settled = Vec::new();
        for (uid, Revocation { correction, at }) in &mut self.revoked_marks.pods {
            // A write of the shutdown may still be under way. It must finish first, or a read
            // misses it.
            if correction.is_in_flight() || self.calls.is_busy_with(uid) {
                continue;
            }
            if !self.calls.has_room() {
                break;
            }
            if correction.read.is_open() {
                let Correction { pod, read, .. } = correction;
                self.calls.read(Part::Revocation, pod, read, &self.clock);
                continue;
            }
            let Some(pod) = self.pods.get(uid).filter(|pod| stands(pod, *at)) else {
                settled.push(uid.clone());
                continue;
            };
            if correction.patch.is_due(&self.clock) {
                if !correction.patch.was_sent() {
                    let intent = Record::intent(&correction.pod, Intent::Clear, now.wall);
                    self.writer.append([intent]);
                }
                correction.patch.sent();
                let body = patches::clear(pod, now.wall);
                self.calls.patch(Part::Revocation, Purpose::Clear, &correction.pod, body);
            }
        }
        for uid in settled {
            self.revoked_marks.done(&uid);
        }
        self.close_journal();
    }

    fn close_journal(&mut self) {
        let busy = self.shutdown.is_some() || self.journaled.is_some();
        if !busy && self.revoked_marks.pods.is_empty() && self.boot_recovery.is_empty() {
            self.writer.close();
        }
    }

    pub(super) fn revocation_read(&mut self, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        let now = self.clock.monotonic();
        let Some(revocation) = self.revoked_marks.pods.get_mut(uid) else { return };
        let correction = &mut revocation.correction;
        if correction.read.is_in_flight() && correction.was_read(result, now) == Follow::Gone {
            self.revoked_marks.pod_gone(uid);
        }
    }

    pub(super) fn revocation_finished(&mut self, uid: &PodUid, result: &Outcome<()>) {
        let now = self.clock.monotonic();
        let Some(revocation) = self.revoked_marks.pods.get_mut(uid) else { return };
        let correction = &mut revocation.correction;
        // The answer may be that of an earlier removal.
        if !correction.patch.is_in_flight() {
            return;
        }
        match correction.was_patched(result, now) {
            Follow::Done => {
                self.writer.append([Record::acknowledged(uid, Intent::Clear)]);
                self.revoked_marks.done(uid);
            }
            Follow::Gone => self.revoked_marks.pod_gone(uid),
            Follow::Reread | Follow::Retry => {}
            Follow::Refused => {
                let text = "its condition cannot be taken back";
                self.calls.log_refusal(&correction.pod, text, result);
                self.revoked_marks.done(uid);
            }
        }
    }

    /// Removes a mark again that arrived after its removal. ([ST8])
    pub(super) fn revoke_again(&mut self, pod: &PodView) {
        let Some((pod_ref, at)) = self.revoked_marks.revoked.get(&pod.uid) else { return };
        if pod.is_terminal() {
            self.revoked_marks.revoked.remove(&pod.uid);
        } else if stands(pod, *at) && self.shutdown.is_none() {
            let (pod_ref, at) = (pod_ref.clone(), *at);
            self.revoked_marks.revoked.remove(&pod.uid);
            self.revoked_marks.add(pod_ref, at);
        }
    }
}
