//! Runs P5: the drained record, the journal's summary, and the release of the lock. ([AP13])

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::announcement::Announcement;
use epilogue_common::outcome::Failure;

use super::Agent;
use super::calls::{Part, Verb};
use super::left::{number, words};
use super::notices::{COMPLETE, UNREPORTED};
use super::shutdown::{KUBELET_GONE, Release};
use crate::pod::{Owner, PodSource, PodUid, PodView};
use crate::protocol::action::PodRef;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::Record;
use crate::shutdown::budget::Step;
use crate::termination::attempt::Attempt;
use crate::termination::progress::PodTermination;

/// How long a drained record is retried on one proof.
const DRAINED_LASTS: Duration = Duration::from_secs(1);

impl Agent {
    pub(super) fn advance_release(&mut self) {
        let now = self.clock.monotonic();
        // Each state may end at once; the loop does not enter a state twice.
        loop {
            let Some(shutdown) = &self.shutdown else { return };
            let over = self.clock.reached(shutdown.at(shutdown.ends.end));
            let before = std::mem::discriminant(&shutdown.release);
            match &shutdown.release {
                Release::Holding => self.leave_holding(over),
                // A new pod has appeared, or a pod has to be terminated in another way than before.
                Release::Inspecting(_) if !over && !self.is_at_rest() => self.hold_on(),
                Release::Inspecting(_) => self.inspect_all(over),
                Release::Drained(_) if over || (self.node.is_settled() && self.is_at_rest()) => {
                    self.close_shutdown();
                }
                // A new pod has appeared, or the check is too old: a container may have started
                // since.
                Release::Drained(since)
                    if !self.is_at_rest() || self.clock.reached(*since + DRAINED_LASTS) =>
                {
                    self.hold_on();
                    self.announce_shutdown();
                }
                // A new pod has appeared, or a kubelet has come back to pods without a terminator.
                Release::Closing(_) if !over && !self.is_at_rest() => self.reopen(),
                Release::Closing(mark) => {
                    let late = shutdown.at(shutdown.ends.end + shutdown.margin / 2);
                    let settled = self.writer.is_durable(*mark) || self.writer.is_refused();
                    if settled || self.clock.reached(late) {
                        self.unlock();
                    }
                }
                Release::Unlocking if !self.logind.may_hold() => self.released(now),
                // A lock that was being taken when the shutdown came is released too.
                Release::Unlocking => self.release_lock(),
                Release::Drained(_) | Release::Released => return,
            }
            let Some(shutdown) = &self.shutdown else { return };
            if std::mem::discriminant(&shutdown.release) == before {
                return;
            }
        }
    }

    /// Leaves `Holding` if there is nothing left to wait for.
    ///
    /// DIVERGES(upstream): the agent waits for the API's acknowledgements. Upstream waits for
    /// containers and volumes, and loses reports that are under way then. ([W2])
    fn leave_holding(&mut self, over: bool) {
        let settled = self.is_at_rest() && self.node.is_settled();
        if !over && !settled {
            return;
        }
        self.log_outcome();
        if over || !self.settings.runtime {
            self.close_shutdown();
            return;
        }
        let inspections = self.all_that_should_have_ended();
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.release = Release::Inspecting(inspections);
    }

    fn is_at_rest(&self) -> bool {
        let Some(shutdown) = &self.shutdown else { return true };
        // Work that the plan has not begun yet is not settled either.
        let begun = shutdown.deletions_over || shutdown.found.mode == crate::shutdown::Mode::Assist;
        let unmounts = self.kubelet.lives()
            && shutdown.terminations.values().any(|termination| termination.unmounts);
        shutdown.is_settled()
            && !unmounts
            && self.pods.is_listed()
            && begun
            && !self.is_kubelet_awaited()
    }

    /// Whether no component can terminate the pods, perhaps only for a moment. A kubelet that
    /// restarts is back within seconds, and terminates what it finds. ([AP16])
    fn is_kubelet_awaited(&self) -> bool {
        let Some(shutdown) = &self.shutdown else { return false };
        let left = shutdown.terminations.values().any(|termination| !termination.reported);
        let ends_pods = self.settings.priority_groups.is_some() && !shutdown.resumed;
        let may_return = shutdown.found.marks_only && ends_pods && left;
        let gone_since = self.kubelet.gone_since.filter(|_| may_return);
        gone_since.is_some_and(|at| !self.clock.reached(at + KUBELET_GONE))
    }

    /// Returns to `Holding`: the lock is not released yet, and there is work again.
    fn reopen(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.release = Release::Holding;
        shutdown.step = Step::Intent;
        shutdown.unreported_at_release = None;
        shutdown.left_at_release.clear();
        self.calls.log(false, None, "the lock is held on: there is something to wait for again");
    }

    fn hold_on(&mut self) {
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.release = Release::Holding;
        }
    }

    /// Every pod that was here, except DaemonSet pods, static pods and our own.
    fn all_that_should_have_ended(&self) -> BTreeMap<PodUid, (PodRef, Attempt)> {
        let own = |uid: &PodUid| self.settings.own_pod.as_ref() == Some(uid);
        let stays = |uid: &PodUid| {
            own(uid)
                || self.pods.get(uid).is_some_and(|pod| {
                    pod.owner == Owner::DaemonSet || pod.source == PodSource::Static
                })
        };
        let cached = self.pods.iter().map(PodRef::of);
        let terminations = self.shutdown.iter().flat_map(|shutdown| shutdown.terminations.values());
        let ended = terminations.map(|termination| termination.pod.clone());
        let all = cached.chain(ended).filter(|pod| !stays(&pod.uid));
        all.map(|pod| (pod.uid.clone(), (pod, Attempt::wanted()))).collect()
    }

    fn inspect_all(&mut self, over: bool) {
        let lives = self.kubelet.lives();
        let Some(shutdown) = &mut self.shutdown else { return };
        let Release::Inspecting(inspections) = &mut shutdown.release else { return };
        // A live kubelet soon restarts the containers that it still considers running.
        let returns = |pod: &PodView| {
            let ends = pod.is_terminal() || pod.is_to_end() || pod.cannot_run_again();
            lives && !ends && pod.running_since.is_some()
        };
        let returning = shutdown.found.mode == crate::shutdown::Mode::Replace
            && inspections.keys().any(|uid| self.pods.get(uid).is_some_and(returns));
        let unproven = inspections.values().any(|(_, inspect_all)| inspect_all.is_given_up());
        if over || unproven || returning {
            self.close_shutdown();
            return;
        }
        if inspections.values().all(|(_, inspect_all)| inspect_all.is_done()) {
            shutdown.release = Release::Drained(self.clock.monotonic());
            let boot_id = self.settings.boot_id.clone();
            let at = self.clock.now().wall;
            self.node.announce(&Announcement::Drained { boot_id, at });
            self.calls.log(false, None, "nothing runs any more: the node is announced as drained");
            self.write_node();
            return;
        }
        for (pod, inspect_all) in inspections.values_mut() {
            self.calls.inspect((Part::Drained, Verb::Inspect), pod, inspect_all, &self.clock);
        }
    }

    /// Takes the runtime's response about a pod for the drained record.
    pub(super) fn drained_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) {
        let Some(shutdown) = &mut self.shutdown else { return };
        let Release::Inspecting(inspections) = &mut shutdown.release else { return };
        let Some((pod, inspect_all)) = inspections.get_mut(uid) else { return };
        let has_run = self.pods.get(uid).is_none_or(|pod| pod.has_run);
        let proven = result.as_ref().is_ok_and(|state| state.proves_end(has_run));
        if proven {
            inspect_all.done();
        } else {
            inspect_all.give_up();
            self.calls.log(
                false,
                Some(pod),
                "it may still run: the node is not announced as drained",
            );
        }
    }

    /// Writes the summary to the disk before the lock is released.
    fn close_shutdown(&mut self) {
        let left =
            self.shutdown.as_ref().map(|shutdown| self.left_behind(shutdown)).unwrap_or_default();
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.left_at_release = left;
        let unreported: Vec<_> = shutdown
            .terminations
            .iter()
            .filter(|(_, termination)| termination.is_awaited() || termination.is_unacknowledged())
            .map(|(uid, _)| uid.clone())
            .collect();
        shutdown.unreported_at_release = Some(unreported.len());
        let mark = self.writer.append([Record::Released { unreported }]);
        shutdown.release = Release::Closing(mark);
        shutdown.step = Step::Release;
        self.node.drop_drained();
        self.write_journal();
    }

    fn unlock(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.release = Release::Unlocking;
        self.release_lock();
    }

    fn released(&mut self, now: Duration) {
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.release = Release::Released;
        shutdown.released_after = Some(shutdown.elapsed(now));
        let unreported = shutdown.unreported_at_release.unwrap_or_default();
        let mut text = format!(
            "released after {} ms of {} ms granted; {} pods, {unreported} of them are not terminal \
             in the API",
            shutdown.elapsed(now).as_millis(),
            shutdown.granted.as_millis(),
            shutdown.terminations.len(),
        );
        if !shutdown.left_at_release.is_empty() {
            text += "; left to terminate with the machine: ";
            text += &words(&shutdown.left_at_release);
        }
        let unmounts =
            shutdown.terminations.values().filter(|termination| termination.unmounts).count();
        if unmounts > 0 {
            text += "; volumes are still mounted, of pods: ";
            text += &unmounts.to_string();
        }
        if !self.pods.is_listed() {
            text += "; the API has never shown which pods the node has";
        }
        let left = unreported + number(&shutdown.left_at_release);
        let complete = left == 0 && self.pods.is_listed();
        let (warning, reason) = if complete { (false, COMPLETE) } else { (true, UNREPORTED) };
        self.calls.log(warning, None, text.clone());
        self.emit_event(warning, reason, text);
    }

    fn log_outcome(&mut self) {
        let now = self.clock.monotonic();
        let Some(shutdown) = &self.shutdown else { return };
        let count = |which: fn(&PodTermination) -> bool| {
            shutdown.terminations.values().filter(|termination| which(termination)).count()
        };
        let text = format!(
            "{}: {} of {} pods are terminal in the API, {} awaited, {} writes unacknowledged",
            if shutdown.time_is_over(now) { "the time is over" } else { "all is done" },
            count(|termination| termination.reported),
            shutdown.terminations.len(),
            count(PodTermination::is_awaited),
            count(PodTermination::is_unacknowledged),
        );
        let warning = shutdown.time_is_over(now);
        self.calls.log(warning, None, text);
    }
}
