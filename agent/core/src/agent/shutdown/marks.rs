//! Decides which pods a shutdown covers and sends P1, the marks in order of value. ([AP5], [AP6])

use super::super::calls::Verb;
use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::mode::Detected;
use super::super::out::Out;
use super::super::pod_steps::Why;
use super::super::writer::Recorded;
use super::Shutdown;
use super::run::scope;
use crate::pod::{Owner, PodUid, PodView};
use crate::protocol::action::PodRef;
use crate::protocol::ending::Source;
use crate::protocol::journal::Record;
use crate::shutdown::Mode;
use crate::shutdown::candidates::{
    BarePods, Scope, excluded, is_ended_by_us, mark_reason, pre_mark,
};
use crate::termination::attempt::Attempt;
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

/// Whether a pod that came after the announcement would come again if the agent terminated it.
///
/// DIVERGES(upstream): a deleted pod that tolerates the taint would be bound to this node again and
/// deleted again, for as long as logind grants. The kubelet's shutdown does not delete. ([W10]) In
/// place of a dead kubelet, a pod that never ran loses nothing: its controller would replace it at
/// once, and a scheduler that has not seen the taint would bind the next one here.
fn comes_again(pod: &PodView, terminator: Terminator) -> bool {
    match terminator {
        Terminator::Delete => pod.details.tolerates_shutdown,
        Terminator::Stop => !pod.has_run && !pod.is_terminating(),
        Terminator::Kubelet | Terminator::Deadline | Terminator::None => false,
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
        termination.end.by,
        Terminator::Kubelet | Terminator::Delete | Terminator::Deadline
    );
    // A phase of ours that the API has not acknowledged may have met the kubelet's.
    let open = !termination.is_reported() && !termination.report.write.is_done();
    by_kubelet && open && pod.is_terminal() && pod.running_since.is_some()
}

/// Whether a deleted, terminal pod still has persistent volumes on the node. The kubelet deletes
/// the object with a grace of 0 only after it has unmounted them. Until then no other node may
/// attach them. If this node goes down first, that takes six minutes.
fn unmounts(pod: &PodView) -> bool {
    let last = pod.deletion_grace_seconds.is_none_or(|grace| grace == 0);
    pod.details.persistent_volumes && !last
}

impl Shutdown {
    /// Adds all pods of the node to the shutdown, in order of their marks' value.
    pub(super) fn enlist_all(&mut self, facts: &Facts, disruptions: &mut Disruptions) {
        let pods: Vec<PodView> = facts.pods.iter().cloned().collect();
        if facts.pods.is_listed() {
            let uids = pods.iter().map(|pod| pod.uid.clone());
            self.present.get_or_insert_with(|| uids.collect());
        }
        let by_value = pre_mark(&pods, &scope(self.mode.found, facts));
        for pod in &pods {
            self.enlist(pod, facts, disruptions);
        }
        let mut order: Vec<PodUid> = by_value.into_iter().map(|mark| mark.uid).collect();
        let uids = disruptions.covered().map(|termination| &termination.pod.uid);
        let rest: Vec<_> = uids.filter(|uid| !order.contains(uid)).cloned().collect();
        order.extend(rest);
        self.order = order;
    }

    /// Whether the pod came after the announcement.
    pub(super) fn came_late(&self, uid: &PodUid) -> bool {
        self.present.as_ref().is_some_and(|present| !present.contains(uid))
    }

    /// Adds a pod to the shutdown, or updates its state there. Pods that appear during a shutdown
    /// are part of it like any other.
    pub(super) fn enlist(&mut self, pod: &PodView, facts: &Facts, disruptions: &mut Disruptions) {
        let now = facts.clock.now().wall;
        let lives = facts.kubelet.lives();
        let scope = scope(self.mode.found, facts);
        // systemd stops the kubelet: its report is not awaited.
        let reports = lives && self.origin.source() != Source::Systemd;
        let terminator = terminator(pod, &scope, self.mode.found, reports);
        let wanted = mark_reason(pod, &scope).is_some();
        let entry = disruptions.get(&pod.uid);
        let known = entry.and_then(|entry| entry.shutdown.as_ref());
        let exited = entry.is_some_and(|entry| entry.had_exited);
        let is_left = self.came_late(&pod.uid) && comes_again(pod, terminator);
        let terminator = match (exited, is_left) {
            // Its kubelet came back, and reports how the pod had ended.
            (true, _) if lives => Terminator::Kubelet,
            (false, false) => terminator,
            _ => Terminator::None,
        };
        let wanted = wanted && !exited && (!is_left || pod.ends_with_its_sandbox());
        if lives && known.is_some_and(|termination| more_is_to_come(termination, pod)) {
            self.work.progress = true;
            return;
        }
        let known = known.is_some();
        if !known && excluded(pod, &scope).is_some() && !wanted {
            return;
        }
        // A mark of the previous shutdown is repeated unchanged, with its own time.
        let entry = disruptions.entry(PodRef::of(pod));
        let carried_at = entry.taken_over();
        let (carried, marked_at) = (carried_at.is_some(), carried_at.unwrap_or(now));
        let termination = entry
            .shutdown
            .get_or_insert_with(|| PodTermination::new(PodRef::of(pod), terminator, marked_at));
        if !known {
            self.order.push(pod.uid.clone());
            if carried {
                // A write of the previous shutdown may still be under way: the agent reads first.
                termination.mark.write = Attempt::wanted();
                termination.read = Attempt::wanted();
            }
        }
        (termination.mark.had_run, termination.end.is_deleted) =
            (pod.has_run, pod.is_terminating());
        if terminator == Terminator::Stop && wanted && !carried && pod.ends_with_its_sandbox() {
            termination.mark.exit_check.want();
        }
        // A kubelet that died after our deletion does not carry it out. A kubelet that came back
        // starts pods that we stopped, and has to terminate them itself.
        let back = termination.end.by == Terminator::Stop
            && !termination.end.call.is_in_flight()
            && !termination.report.write.is_done();
        if termination.end.by != terminator
            && (!termination.end.call.may_have_applied() || terminator == Terminator::Stop || back)
        {
            termination.end.by = terminator;
            termination.end.call = Attempt::default();
            termination.report.write.drop_it();
        }
        if pod.is_terminal() {
            self.work.progress |= !termination.is_reported();
            termination.show(self.mode.found.mode == Mode::Replace && unmounts(pod));
        } else if pod.is_disrupted() && !carried {
            settle_mark(termination, pod);
        } else if wanted {
            want_mark(&mut termination.mark.write);
        }
    }

    /// Takes a new state of the pod. Gives a record that a pod which was marked before it had run
    /// has started: after a boot no clock says so for sure.
    pub(super) fn see_pod(
        &mut self,
        pod: &PodView,
        facts: &Facts,
        disruptions: &mut Disruptions,
    ) -> Option<Record> {
        let entry = disruptions.get_mut(&pod.uid);
        let recorded = entry.as_ref().is_some_and(|entry| entry.recorded.is_some());
        let known = entry.and_then(|entry| entry.shutdown.as_mut());
        let had_not_run = known.as_ref().is_some_and(|it| !it.mark.had_run && recorded);
        let listed = known.is_some();
        // A phase that the API showed, or that it took from us, was reverted by another writer.
        if let Some(termination) = known.filter(|_| !pod.is_terminal()) {
            termination.was_reverted();
        }
        if listed || !self.is_released() {
            self.enlist(pod, facts, disruptions);
        }
        let started = disruptions.covering(&pod.uid).filter(|it| had_not_run && it.mark.had_run);
        started.map(PodTermination::mark_intent)
    }

    /// A restore of etcd may have undone what the API had acknowledged: that is due again.
    pub(super) fn restored(facts: &Facts, disruptions: &mut Disruptions) {
        let now = facts.clock.now().wall;
        for termination in disruptions.covered_mut() {
            if let Some(pod) = facts.pods.get(&termination.pod.uid) {
                termination.repeat_undone(pod, now);
            }
        }
    }

    /// Notes that the API no longer has the pod.
    pub(super) fn pod_gone(&mut self, uid: &PodUid, disruptions: &mut Disruptions) {
        if let Some(termination) = disruptions.covering_mut(uid) {
            self.work.progress |= !termination.is_reported();
            termination.acknowledge();
        }
    }

    /// Sends P1, and later the marks that are still open.
    pub(super) fn send_marks(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let may_end = self.may_end(&facts.clock);
        let checks_over = facts.clock.reached(self.window.at(self.window.ends.pre_mark / 2));
        let is_due = |it: &PodTermination| !it.is_reported() && it.mark.write.is_due(&facts.clock);
        if !disruptions.covered().any(is_due) {
            return;
        }
        let pod_ends = self.pod_ends(facts, disruptions);
        for uid in &out.refusals.in_turn(&[PATCH_STATUS], self.order.iter()) {
            let Some(entry) = disruptions.get_mut(uid) else { continue };
            let Some(termination) = &mut entry.shutdown else { continue };
            if termination.is_reported()
                || termination.read.is_open()
                || !termination.mark.write.is_due(&facts.clock)
            {
                continue;
            }
            // The agent first checks whether the pod had already exited, for half of the time for
            // marks.
            if termination.mark.exit_check.is_open() && may_end && !checks_over {
                continue;
            }
            if !out.calls.has_room() {
                break;
            }
            let Some(pod) = facts.pods.get(uid) else {
                termination.acknowledge();
                continue;
            };
            // A pod that is no longer terminated comes back with the node. ([AP5])
            let ends = may_end || termination.end.call.may_have_applied() || pod.is_terminating();
            if out.refusals.forbids_for(PATCH_STATUS, uid) || !(ends || pod.ends_with_its_sandbox())
            {
                termination.mark.write.give_up();
                continue;
            }
            let known = entry.recorded.filter(|known| known.at == termination.mark.at);
            let recorded = known.unwrap_or_else(|| Recorded {
                at: termination.mark.at,
                since: facts.clock.monotonic(),
                until: out.journal.append([termination.mark_intent()]),
            });
            entry.recorded = Some(recorded);
            // After a loss of power, a mark that is not on the disk has no known origin. If the
            // disk is too slow, or no time is left, the agent sends the mark anyway. A mark that is
            // not sent explains nothing.
            if may_end && recorded.is_awaited(self.window.ends.intent, &facts.clock, &out.journal) {
                continue;
            }
            if !out.refusals.may_ask(PATCH_STATUS, &facts.clock) {
                break;
            }
            // An older admission policy knows no announced end: the condition matters more.
            let is_refused = termination.mark.write.times_invalid() > 0;
            let ends_at = (!is_refused).then(|| pod_ends.of(pod, &facts.clock));
            termination.send_mark(pod, Why::Shutdown, ends_at, out);
        }
    }
}

/// Reads pods again whose writes met a conflict.
pub(super) fn send_reads(facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
    for entry in disruptions.iter_mut() {
        let taken_over = entry.taken_over().is_some();
        let Some(termination) = &mut entry.shutdown else { continue };
        // A removal by the previous shutdown that is still under way would be newer than the read.
        if !(taken_over && out.calls.is_busy_with(&termination.pod.uid)) {
            termination.ask(Verb::Read, Why::Shutdown, &facts.clock, out);
        }
    }
}

/// Requests the mark of a pod that the API shows without one. Another writer's condition that
/// counted is gone again, or it was ours, of an earlier boot.
fn want_mark(mark: &mut Attempt) {
    if mark.is_done() && !mark.may_have_applied() {
        *mark = Attempt::default();
    }
    mark.want();
}

/// Settles a mark that the API shows, ours or another writer's.
fn settle_mark(termination: &mut PodTermination, pod: &PodView) {
    if termination.mark.write.is_done() || termination.mark.write.is_in_flight() {
        return;
    }
    let ours = |disruption| patches::is_ours(disruption, termination.mark.at);
    let sent =
        termination.mark.write.may_have_applied() && pod.disruption.as_ref().is_some_and(ours);
    termination.mark.write = if sent { Attempt::done_before() } else { Attempt::done_by_others() };
}
