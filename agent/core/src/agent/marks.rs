//! Who is part of the run, and P1: the marks, in order of value. (spec/node-agent.md §9.3)

use epilogue_common::outcome::Outcome;
use jiff::Timestamp;

use super::Agent;
use super::mode::Detected;
use super::notices::POD_MARKED;
use super::outbox::Task;
use super::run::Recorded;
use crate::ending::attempt::{Attempt, Verdict, verdict};
use crate::ending::patches;
use crate::ending::progress::{Ending, Way};
use crate::pod::{Owner, PodUid, PodView};
use crate::protocol::action::{Action, PodRef, Purpose};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::Mode;
use crate::shutdown::candidates::{BarePods, Scope, is_ended_by_us, mark_reason, pre_mark, spared};

pub(super) const PATCH_STATUS: &str = "patch pods/status";

/// Names a pod.
pub(super) fn reference(pod: &PodView) -> PodRef {
    PodRef { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
}

/// The record of a mark that is going to be sent.
pub(super) fn intent(ending: &Ending) -> Record {
    let intent = if ending.had_run { Intent::Mark } else { Intent::MarkBeforeStart };
    record(&ending.pod, intent, ending.marked_at)
}

/// The record of something that is going to be done to a pod.
pub(super) fn record(pod: &PodRef, intent: Intent, at: Timestamp) -> Record {
    let PodRef { namespace, name, uid } = pod.clone();
    Record::Intent { uid, namespace, name, intent, at }
}

/// Who ends the pod.
fn way(pod: &PodView, scope: &Scope, found: Detected, kubelet_lives: bool) -> Way {
    if found.marks_only || spared(pod, scope).is_some() {
        let kubelet = kubelet_lives && pod.is_terminating();
        return if kubelet { Way::Kubelet } else { Way::Nobody };
    }
    match found.mode {
        Mode::Assist => Way::Kubelet,
        Mode::Substitute => Way::Stop,
        Mode::Replace if is_ended_by_us(pod, scope) => {
            let bare = pod.owner == Owner::None && !pod.is_terminating();
            let lever = bare && scope.bare_pods == BarePods::DeadlineLever;
            if lever { Way::Deadline } else { Way::Delete }
        }
        Mode::Replace if pod.is_terminating() => Way::Kubelet,
        Mode::Replace | Mode::Observe => Way::Nobody,
    }
}

/// Whether a terminal phase is not the kubelet's last word: its containers still run in it.
///
/// The kubelet takes the statuses of many pods at once, sends them one by one, and asks only then
/// whether containers may run: so what it noted when a tear-down began goes out as Failed although
/// the pod has left with 0, and the true end follows with its next pass, up to 10 s later. (SD17)
fn more_is_to_come(ending: &Ending, pod: &PodView) -> bool {
    let by_kubelet = matches!(ending.way, Way::Kubelet | Way::Delete | Way::Deadline);
    let open = !ending.reported && !ending.fail.was_sent();
    by_kubelet && open && pod.is_terminal() && pod.running_since.is_some()
}

/// Whether a deleted pod that has ended still has persistent volumes on the node: its kubelet
/// deletes the object at last, with a grace of 0, only when they are unmounted. Until then no other
/// node may attach them, and if this one goes first, not for six minutes.
fn unmounts(pod: &PodView) -> bool {
    let last = pod.deletion_grace_seconds.is_none_or(|grace| grace == 0);
    pod.details.persistent_volumes && !last
}

impl Agent {
    /// Takes all pods of the node into the run, in order of their marks' value.
    pub(super) fn enlist_all(&mut self) {
        let pods: Vec<PodView> = self.pods.iter().cloned().collect();
        let Some(run) = &self.run else { return };
        let by_value = pre_mark(&pods, &self.scope(run.found));
        for pod in &pods {
            self.enlist(pod);
        }
        let Some(run) = &mut self.run else { return };
        let mut order: Vec<PodUid> = by_value.into_iter().map(|mark| mark.uid).collect();
        run.enlisted = self.pods.is_listed();
        let rest: Vec<_> = run.endings.keys().filter(|uid| !order.contains(uid)).cloned().collect();
        order.extend(rest);
        run.order = order;
    }

    /// Takes a pod into the run, or sees what has become of it there. Pods that appear in a run
    /// are part of it like any other.
    pub(super) fn enlist(&mut self, pod: &PodView) {
        let now = self.clock.now().wall;
        let lives = self.kubelet.lives();
        let Some(run) = &self.run else { return };
        let scope = self.scope(run.found);
        let way = way(pod, &scope, run.found, lives);
        let is_spared = spared(pod, &scope).is_some();
        let wanted = mark_reason(pod, &scope).is_some();
        let Some(run) = &mut self.run else { return };
        let known = run.endings.get(&pod.uid);
        let exited = known.is_some_and(|ending| ending.had_exited);
        // DIVERGES(upstream): deleted, it would be bound to this node again, and again be deleted,
        // for as long as logind grants. The kubelet's shutdown does not delete. (W10)
        let late = known.is_none() && run.enlisted && way == Way::Delete;
        let comes_again = known.map_or(late && pod.details.tolerates_shutdown, |e| e.comes_again);
        let way = if exited || comes_again { Way::Nobody } else { way };
        let wanted = wanted && !exited && (!comes_again || pod.cannot_run_again());
        if lives && known.is_some_and(|ending| more_is_to_come(ending, pod)) {
            run.progress = true;
            return;
        }
        let known = known.is_some();
        if !known && is_spared && !wanted {
            return;
        }
        // A mark of the run before is repeated as it was, with its own time.
        let carried_at = run.carried.get(&pod.uid).map(|(_, at)| *at);
        let carried = carried_at.is_some();
        let marked_at = carried_at.unwrap_or(now);
        let ending = run
            .endings
            .entry(pod.uid.clone())
            .or_insert_with(|| Ending::new(reference(pod), way, marked_at));
        if !known {
            run.order.push(pod.uid.clone());
            if carried {
                // A write of the run before may still be under way: look first.
                ending.mark = Attempt::wanted();
                ending.read = Attempt::wanted();
            }
        }
        ending.had_run = pod.has_run;
        ending.comes_again = comes_again;
        if way == Way::Stop && wanted && !carried && pod.cannot_run_again() {
            ending.exit_check.want();
        }
        // A kubelet that died after our deletion does not carry it out.
        // One that came back starts what we stopped, and has to end it itself.
        let back = ending.way == Way::Stop && !ending.end.is_in_flight() && !ending.fail.is_done();
        if ending.way != way && (!ending.end.was_sent() || way == Way::Stop || back) {
            ending.way = way;
            ending.end = Attempt::default();
            ending.fail.drop_it();
        }
        if pod.is_terminal() {
            run.progress |= !ending.reported;
            ending.seen_terminal = true;
            ending.acknowledge();
            ending.unmounts = run.found.mode == Mode::Replace && unmounts(pod);
        } else if pod.is_disrupted() && !carried {
            settle_mark(ending, pod);
        } else if wanted {
            ending.mark.want();
        }
    }

    /// What the API shows of a pod of the run after its terminal phase was seen or written, and is
    /// not terminal any more: somebody took it back.
    pub(super) fn sees_reversal(&mut self, pod: &PodView) {
        let Some(run) = &mut self.run else { return };
        let Some(ending) = run.endings.get_mut(&pod.uid) else { return };
        if !ending.seen_terminal || pod.is_terminal() || !ending.fail.is_done() {
            return;
        }
        ending.reported = false;
        ending.seen_terminal = false;
    }

    /// P1, and whatever is left of it later.
    pub(super) fn send_marks(&mut self) {
        let Some(run) = &mut self.run else { return };
        let may_end = run.may_end(&self.clock);
        let checks_over = self.clock.reached(run.at(run.ends.pre_mark / 2));
        for uid in &run.order {
            let Some(ending) = run.endings.get_mut(uid) else { continue };
            if ending.reported || ending.read.is_open() || !ending.mark.is_due(&self.clock) {
                continue;
            }
            // Whether it had exited before is asked first, for half of the time for marks.
            if ending.exit_check.is_open() && may_end && !checks_over {
                continue;
            }
            if !self.outbox.has_room() {
                break;
            }
            let Some(pod) = self.pods.get(uid) else {
                ending.acknowledge();
                continue;
            };
            // Whom nobody will end any more comes back with the node. (§9.1, principle 3)
            let ends = may_end || ending.end.was_sent() || pod.is_terminating();
            if self.refusals.forbids(PATCH_STATUS) || !(ends || pod.cannot_run_again()) {
                ending.mark.give_up();
                continue;
            }
            let known = run.recorded.get(uid).filter(|known| known.at == ending.marked_at);
            let recorded = known.copied().unwrap_or_else(|| Recorded {
                at: ending.marked_at,
                since: self.clock.monotonic(),
                until: self.writer.append([intent(ending)]),
            });
            run.recorded.insert(uid.clone(), recorded);
            // A mark that the disk does not have would be nobody's after a loss of power. Where
            // the disk does not follow, or no time is left, it goes without: one that is not sent
            // says nothing at all.
            let waits = may_end
                && !self.writer.is_durable(recorded.until)
                && !self.writer.is_refused()
                && !self.clock.reached(recorded.since + run.ends.intent);
            if waits {
                continue;
            }
            if !self.refusals.may_ask(PATCH_STATUS, &self.clock) {
                break;
            }
            let body = patches::mark(pod, ending.marked_at);
            let pod = ending.pod.clone();
            ending.mark.sent();
            let action = Action::PatchStatus { pod, purpose: Purpose::Mark, body };
            self.outbox.send(Task::Mark(uid.clone()), action);
        }
    }

    pub(super) fn mark_finished(&mut self, uid: &PodUid, result: &Outcome<()>) {
        self.count_patch(Purpose::Mark, result);
        let refusal = self.hear_of_right(PATCH_STATUS, uid, result);
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let pace = run.pace(uid);
        let Some(ending) = run.endings.get_mut(uid) else { return };
        let pod = ending.pod.clone();
        let Err(failure) = result else {
            ending.mark.done();
            let tell = ending.way == Way::Kubelet || ending.way == Way::Nobody;
            let tell = tell && !std::mem::replace(&mut ending.told, tell);
            self.writer.append([Record::Acknowledged { uid: uid.clone(), intent: Intent::Mark }]);
            if tell {
                let text = "Marked as disrupted: the node shuts down.";
                self.tell_pod(pod, POD_MARKED, text);
            }
            return;
        };
        match verdict(failure) {
            Verdict::Gone => {
                ending.mark.give_up();
                ending.acknowledge();
            }
            Verdict::ReadAgain => {
                ending.mark.met_change();
                ending.read.want_again();
            }
            Verdict::Skip => {
                ending.mark.give_up();
                let text = format!("the API refuses its mark, it goes without: {failure}");
                self.outbox.say(true, Some(&pod), text);
            }
            Verdict::Refused => {
                if ending.mark.refused(now, pace, refusal) {
                    let text = format!("the API refuses its mark, it goes without: {failure}");
                    self.outbox.say(true, Some(&pod), text);
                }
            }
            Verdict::Retry => ending.mark.failed(now, pace, Some(failure)),
        }
    }

    /// Looks at pods anew whose writes met a change.
    pub(super) fn send_reads(&mut self) {
        let Some(run) = &mut self.run else { return };
        for (uid, ending) in &mut run.endings {
            if !ending.read.is_due(&self.clock) {
                continue;
            }
            // A clearing of the run before, still under way, would be newer than the look.
            let carried = run.carried.contains_key(uid) && self.outbox.is_busy_with(uid);
            if carried {
                continue;
            }
            if !self.outbox.has_room() {
                return;
            }
            ending.read.sent();
            self.outbox.send(Task::Read(uid.clone()), Action::ReadPod(ending.pod.clone()));
        }
    }

    pub(super) fn read_finished(&mut self, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let pace = run.pace(uid);
        let Some(ending) = run.endings.get_mut(uid) else { return };
        match result {
            Ok(None) => {
                ending.read.done();
                ending.acknowledge();
                self.pods.gone(uid);
            }
            Ok(Some(pod)) => {
                ending.read.done();
                if let Some((_, at)) = run.carried.remove(uid)
                    && pod.disruption.as_ref().is_some_and(|d| patches::is_ours(d, at))
                {
                    ending.mark = Attempt::done_before();
                }
                let pod = (**pod).clone();
                self.pods.observe(pod.clone());
                self.enlist(&pod);
            }
            Err(failure) => match verdict(failure) {
                Verdict::Gone => {
                    ending.read.give_up();
                    ending.acknowledge();
                }
                Verdict::Skip | Verdict::Refused => ending.read.give_up(),
                Verdict::ReadAgain | Verdict::Retry => {
                    ending.read.failed(now, pace, Some(failure));
                }
            },
        }
    }
}

/// The API shows a mark, ours or another's.
fn settle_mark(ending: &mut Ending, pod: &PodView) {
    if ending.mark.is_done() || ending.mark.is_in_flight() {
        return;
    }
    let ours = |disruption| patches::is_ours(disruption, ending.marked_at);
    let sent = ending.mark.was_sent() && pod.disruption.as_ref().is_some_and(ours);
    ending.mark = if sent { Attempt::done_before() } else { Attempt::done_by_others() };
}
