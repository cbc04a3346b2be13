//! Decides which pods a shutdown covers and sends P1, the marks in order of value. ([AP5], [AP6])

use epilogue_common::outcome::Outcome;

use super::Agent;
use super::calls::Part;
use super::mode::Detected;
use super::notices::POD_MARKED;
use super::shutdown::Recorded;
use crate::pod::{Owner, PodUid, PodView};
use crate::protocol::action::{PodRef, Purpose};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::Mode;
use crate::shutdown::candidates::{
    BarePods, Scope, excluded, is_ended_by_us, mark_reason, pre_mark,
};
use crate::termination::attempt::{Attempt, Follow, REPEATABLE};
use crate::termination::patches;
use crate::termination::progress::{PATCH_STATUS, PodTermination, Terminator};

/// Which component terminates the pod.
fn terminator(pod: &PodView, scope: &Scope, found: Detected, kubelet_lives: bool) -> Terminator {
    if found.marks_only || excluded(pod, scope).is_some() {
        let kubelet = kubelet_lives && pod.is_terminating();
        return if kubelet { Terminator::Kubelet } else { Terminator::None };
    }
    match found.mode {
        Mode::Assist => Terminator::Kubelet,
        Mode::Substitute => Terminator::Stop,
        Mode::Replace if is_ended_by_us(pod, scope) => {
            let bare = pod.owner == Owner::None && !pod.is_terminating();
            let lever = bare && scope.bare_pods == BarePods::DeadlineLever;
            if lever { Terminator::Deadline } else { Terminator::Delete }
        }
        Mode::Replace if pod.is_terminating() => Terminator::Kubelet,
        Mode::Replace | Mode::Observe => Terminator::None,
    }
}

/// Whether the kubelet's terminal phase is not its final report: containers still run in it.
///
/// The kubelet collects the statuses of many pods at once and sends them one by one. Only then does
/// it check whether containers may run. So a status from the start of a tear-down goes out as
/// Failed, even if the pod exited with 0. The true status follows with the next pass, up to 10 s
/// later. ([SD17])
fn more_is_to_come(termination: &PodTermination, pod: &PodView) -> bool {
    let by_kubelet = matches!(
        termination.terminator,
        Terminator::Kubelet | Terminator::Delete | Terminator::Deadline
    );
    let open = !termination.reported && !termination.fail.was_sent();
    by_kubelet && open && pod.is_terminal() && pod.running_since.is_some()
}

/// Whether a deleted, terminal pod still has persistent volumes on the node. The kubelet deletes
/// the object with a grace of 0 only after it has unmounted them. Until then no other node may
/// attach them. If this node goes down first, that takes six minutes.
fn unmounts(pod: &PodView) -> bool {
    let last = pod.deletion_grace_seconds.is_none_or(|grace| grace == 0);
    pod.details.persistent_volumes && !last
}

impl Agent {
    /// Adds all pods of the node to the shutdown, in order of their marks' value.
    pub(super) fn enlist_all(&mut self) {
        let pods: Vec<PodView> = self.pods.iter().cloned().collect();
        let Some(shutdown) = &self.shutdown else { return };
        let by_value = pre_mark(&pods, &self.scope(shutdown.found));
        for pod in &pods {
            self.enlist(pod);
        }
        let Some(shutdown) = &mut self.shutdown else { return };
        let mut order: Vec<PodUid> = by_value.into_iter().map(|mark| mark.uid).collect();
        shutdown.enlisted = self.pods.is_listed();
        let rest: Vec<_> =
            shutdown.terminations.keys().filter(|uid| !order.contains(uid)).cloned().collect();
        order.extend(rest);
        shutdown.order = order;
    }

    /// Adds a pod to the shutdown, or updates its state there. Pods that appear during a shutdown
    /// are part of it like any other.
    pub(super) fn enlist(&mut self, pod: &PodView) {
        let now = self.clock.now().wall;
        let lives = self.kubelet.lives();
        let Some(shutdown) = &self.shutdown else { return };
        let scope = self.scope(shutdown.found);
        let terminator = terminator(pod, &scope, shutdown.found, lives);
        let is_excluded = excluded(pod, &scope).is_some();
        let wanted = mark_reason(pod, &scope).is_some();
        let Some(shutdown) = &mut self.shutdown else { return };
        let known = shutdown.terminations.get(&pod.uid);
        let exited = known.is_some_and(|termination| termination.had_exited);
        // DIVERGES(upstream): a deleted pod would be bound to this node again and deleted again,
        // for as long as logind grants. The kubelet's shutdown does not delete. ([W10])
        let late = known.is_none() && shutdown.enlisted && terminator == Terminator::Delete;
        let comes_again = known.map_or(late && pod.details.tolerates_shutdown, |e| e.comes_again);
        let terminator = if exited || comes_again { Terminator::None } else { terminator };
        let wanted = wanted && !exited && (!comes_again || pod.cannot_run_again());
        if lives && known.is_some_and(|termination| more_is_to_come(termination, pod)) {
            shutdown.progress = true;
            return;
        }
        let known = known.is_some();
        if !known && is_excluded && !wanted {
            return;
        }
        // A mark of the previous shutdown is repeated unchanged, with its own time.
        let carried_at = shutdown.carried.get(&pod.uid).map(|(_, at)| *at);
        let carried = carried_at.is_some();
        let marked_at = carried_at.unwrap_or(now);
        let termination = shutdown
            .terminations
            .entry(pod.uid.clone())
            .or_insert_with(|| PodTermination::new(PodRef::of(pod), terminator, marked_at));
        if !known {
            shutdown.order.push(pod.uid.clone());
            if carried {
                // A write of the previous shutdown may still be under way: the agent reads first.
                termination.mark = Attempt::wanted();
                termination.read = Attempt::wanted();
            }
        }
        termination.had_run = pod.has_run;
        termination.comes_again = comes_again;
        if terminator == Terminator::Stop && wanted && !carried && pod.cannot_run_again() {
            termination.exit_check.want();
        }
        // A kubelet that died after our deletion does not carry it out. A kubelet that came back
        // starts pods that we stopped, and has to terminate them itself.
        let back = termination.terminator == Terminator::Stop
            && !termination.end.is_in_flight()
            && !termination.fail.is_done();
        if termination.terminator != terminator
            && (!termination.end.was_sent() || terminator == Terminator::Stop || back)
        {
            termination.terminator = terminator;
            termination.end = Attempt::default();
            termination.fail.drop_it();
        }
        if pod.is_terminal() {
            shutdown.progress |= !termination.reported;
            termination.seen_terminal = true;
            termination.acknowledge();
            termination.unmounts = shutdown.found.mode == Mode::Replace && unmounts(pod);
        } else if pod.is_disrupted() && !carried {
            settle_mark(termination, pod);
        } else if wanted {
            termination.mark.want();
        }
    }

    /// Handles a pod of the shutdown that was terminal, or got Failed from us, and is not terminal
    /// any more: another writer reverted the phase.
    pub(super) fn sees_reversal(&mut self, pod: &PodView) {
        let Some(shutdown) = &mut self.shutdown else { return };
        let Some(termination) = shutdown.terminations.get_mut(&pod.uid) else { return };
        if !termination.seen_terminal || pod.is_terminal() || !termination.fail.is_done() {
            return;
        }
        termination.reported = false;
        termination.seen_terminal = false;
    }

    /// Sends P1, and later the marks that are still open.
    pub(super) fn send_marks(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        let may_end = shutdown.may_end(&self.clock);
        let checks_over = self.clock.reached(shutdown.at(shutdown.ends.pre_mark / 2));
        for uid in &self.refusals.in_turn(&[PATCH_STATUS], shutdown.order.iter()) {
            let Some(termination) = shutdown.terminations.get_mut(uid) else { continue };
            if termination.reported
                || termination.read.is_open()
                || !termination.mark.is_due(&self.clock)
            {
                continue;
            }
            // The agent first checks whether the pod had already exited, for half of the time for
            // marks.
            if termination.exit_check.is_open() && may_end && !checks_over {
                continue;
            }
            if !self.calls.has_room() {
                break;
            }
            let Some(pod) = self.pods.get(uid) else {
                termination.acknowledge();
                continue;
            };
            // A pod that is no longer terminated comes back with the node. ([AP5])
            let ends = may_end || termination.end.was_sent() || pod.is_terminating();
            if self.refusals.forbids(PATCH_STATUS) || !(ends || pod.cannot_run_again()) {
                termination.mark.give_up();
                continue;
            }
            let known =
                shutdown.recorded.get(uid).filter(|known| known.at == termination.marked_at);
            let recorded = known.copied().unwrap_or_else(|| Recorded {
                at: termination.marked_at,
                since: self.clock.monotonic(),
                until: self.writer.append([termination.mark_intent()]),
            });
            shutdown.recorded.insert(uid.clone(), recorded);
            // After a loss of power, a mark that is not on the disk has no known origin. If the
            // disk is too slow, or no time is left, the agent sends the mark anyway. A mark that is
            // not sent explains nothing.
            let waits = may_end
                && !self.writer.is_durable(recorded.until)
                && !self.writer.is_refused()
                && !self.clock.reached(recorded.since + shutdown.ends.intent);
            if waits {
                continue;
            }
            if !self.refusals.may_ask(PATCH_STATUS, &self.clock) {
                break;
            }
            let body = patches::mark(pod, termination.marked_at);
            termination.mark.sent();
            self.calls.patch(Part::Shutdown, Purpose::Mark, &termination.pod, body);
        }
    }

    /// Records that the API has a pod's mark. If the agent does not terminate the pod, this is what
    /// it reports.
    pub(super) fn note_mark(&mut self, uid: &PodUid) {
        self.writer.append([Record::acknowledged(uid, Intent::Mark)]);
        let Some((termination, _)) = self.termination(uid) else { return };
        let reports = matches!(termination.terminator, Terminator::Kubelet | Terminator::None);
        if reports && !std::mem::replace(&mut termination.event_sent, true) {
            let pod = termination.pod.clone();
            self.emit_pod_event(pod, POD_MARKED, "DisruptionTarget set: the node shuts down.");
        }
    }

    /// Reads pods again whose writes met a conflict.
    pub(super) fn send_reads(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        for (uid, termination) in &mut shutdown.terminations {
            // A removal by the previous shutdown that is still under way would be newer than the
            // read.
            if !(shutdown.carried.contains_key(uid) && self.calls.is_busy_with(uid)) {
                let read = &mut termination.read;
                self.calls.read(Part::Shutdown, &termination.pod, read, &self.clock);
            }
        }
    }

    pub(super) fn read_finished(&mut self, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        let now = self.clock.monotonic();
        let Some(shutdown) = &mut self.shutdown else { return };
        let pace = shutdown.pace(uid);
        let Some(termination) = shutdown.terminations.get_mut(uid) else { return };
        match termination.read.settle(result, now, pace, REPEATABLE) {
            Follow::Gone => termination.acknowledge(),
            Follow::Done => {
                let Ok(Some(pod)) = result else { return termination.acknowledge() };
                if let Some((_, at)) = shutdown.carried.remove(uid)
                    && pod.disruption.as_ref().is_some_and(|d| patches::is_ours(d, at))
                {
                    termination.mark = Attempt::done_before();
                }
                self.enlist(pod);
            }
            Follow::Reread | Follow::Retry | Follow::Refused => {}
        }
    }
}

/// Settles a mark that the API shows, ours or another writer's.
fn settle_mark(termination: &mut PodTermination, pod: &PodView) {
    if termination.mark.is_done() || termination.mark.is_in_flight() {
        return;
    }
    let ours = |disruption| patches::is_ours(disruption, termination.marked_at);
    let sent = termination.mark.was_sent() && pod.disruption.as_ref().is_some_and(ours);
    termination.mark = if sent { Attempt::done_before() } else { Attempt::done_by_others() };
}
