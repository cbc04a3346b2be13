//! Runs P5: the drained record, the journal's summary, and the release of the lock. ([AP13])

use std::time::Duration;

use epilogue_common::announcement::Announcement;
use epilogue_common::outcome::Failure;

use super::super::calls::Task;
use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::notices::{COMPLETE, UNREPORTED};
use super::super::out::Out;
use super::follow::Others;
use super::left::{left_behind, number, words};
use super::{KUBELET_GONE, Release, Shutdown};
use crate::pod::{Owner, PodSource, PodUid, PodView};
use crate::protocol::action::{Action, PodRef};
use crate::protocol::ending::Source;
use crate::protocol::event::RuntimePod;
use crate::protocol::journal::Record;
use crate::shutdown::Mode;
use crate::shutdown::budget::Step;
use crate::termination::attempt::Attempt;
use crate::termination::progress::PodTermination;

/// How long a drained record is retried on one proof.
const DRAINED_LASTS: Duration = Duration::from_secs(1);

impl Shutdown {
    /// Advances the release. Each state may end at once. Returns whether there is work again, with
    /// which the steps begin anew.
    pub(super) fn advance_release(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        others: &mut Others<'_>,
    ) -> bool {
        loop {
            let before = std::mem::discriminant(&self.release);
            let closing = matches!(self.release, Release::Closing(_));
            self.step_release(facts, out, others);
            if closing && matches!(self.release, Release::Holding) {
                return true;
            }
            if std::mem::discriminant(&self.release) == before {
                return false;
            }
        }
    }

    fn step_release(&mut self, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        let Others { node, lock, disruptions } = others;
        let over = facts.clock.reached(self.window.at(self.window.ends.end));
        match &self.release {
            Release::Holding if self.awaits_signal(facts) => {}
            Release::Holding => self.leave_holding(over, facts, out, others),
            // A new pod has appeared, or a pod has to be terminated in another way than before.
            Release::Inspecting(_) if !over && !self.is_at_rest(facts, disruptions) => {
                self.release = Release::Holding;
            }
            Release::Inspecting(_) => self.inspect_all(over, facts, out, others),
            Release::Drained(_)
                if over || (node.is_settled() && self.is_at_rest(facts, disruptions)) =>
            {
                self.summary.drained = node.is_settled();
                self.close(facts, out, others);
            }
            // A new pod has appeared, or the check is too old: a container may have started since.
            Release::Drained(since)
                if !self.is_at_rest(facts, disruptions)
                    || facts.clock.reached(*since + DRAINED_LASTS) =>
            {
                self.release = Release::Holding;
                self.announce(facts, node);
            }
            // A new pod has appeared, or a kubelet has come back to pods without a terminator.
            Release::Closing(_) if !over && !self.is_at_rest(facts, disruptions) => {
                self.reopen(out);
            }
            Release::Closing(mark) => {
                let late = self.window.at(self.window.ends.end + self.window.margin / 2);
                let settled = out.journal.is_durable(*mark) || out.journal.is_refused();
                if settled || facts.clock.reached(late) {
                    self.release = Release::Unlocking;
                    lock.release(out);
                }
            }
            Release::Unlocking if !lock.may_hold() => self.unlocked(facts, out, disruptions),
            // A lock that was being taken when the shutdown came is released too.
            Release::Unlocking => lock.release(out),
            Release::Drained(_) | Release::Released => {}
        }
    }

    /// Whether logind has yet to announce the end of which notice was given: its delay is time for
    /// what is left then. An agent that has to stop does not wait for that.
    fn awaits_signal(&self, facts: &Facts) -> bool {
        let gives_notice = self.origin.source().gives_notice();
        gives_notice && facts.settings.logind && !facts.is_preparing() && facts.stop_at.is_none()
    }

    /// Leaves `Holding` if there is nothing left to wait for.
    ///
    /// DIVERGES(upstream): the agent waits for the API's acknowledgements. Upstream waits for
    /// containers and volumes, and loses reports that are under way then. ([W2])
    fn leave_holding(&mut self, over: bool, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        let Others { node, disruptions, .. } = others;
        let settled = self.is_at_rest(facts, disruptions) && node.is_settled();
        if !over && !settled {
            self.report_volumes(facts, out, disruptions);
            return;
        }
        self.log_outcome(facts, out, disruptions);
        if over || !facts.settings.runtime || self.origin.source() == Source::Systemd {
            self.close(facts, out, others);
            return;
        }
        self.release = Release::Inspecting(Attempt::wanted());
    }

    fn is_at_rest(&self, facts: &Facts, disruptions: &Disruptions) -> bool {
        self.pods_are_at_rest(facts, disruptions) && !self.awaits_volumes(facts)
    }

    /// Whether the kubelet has yet to report that volumes of ended pods are no longer in use. Until
    /// then, no other node gets them: for six minutes if this one goes down first. The last part of
    /// the time belongs to the drained record. ([AP28])
    ///
    /// DIVERGES(upstream): the kubelet's shutdown waits until volumes are unmounted, not until they
    /// are unstaged and the API knows it.
    fn awaits_volumes(&self, facts: &Facts) -> bool {
        let ends_pods = !self.mode.found.marks_only && facts.kubelet.lives();
        ends_pods
            && facts.volumes.may_be_of_ended_pods(&facts.clock)
            && !facts.clock.reached(self.window.at(self.window.ends.last_writes))
    }

    fn report_volumes(&mut self, facts: &Facts, out: &mut Out, disruptions: &Disruptions) {
        if !self.summary.volumes_awaited
            && self.pods_are_at_rest(facts, disruptions)
            && self.awaits_volumes(facts)
        {
            self.summary.volumes_awaited = true;
            let text = format!("waits until volumes are not in use: {}", facts.volumes.words());
            out.calls.log(false, None, text);
        }
    }

    fn pods_are_at_rest(&self, facts: &Facts, disruptions: &Disruptions) -> bool {
        // Work that the plan has not begun yet is not settled either.
        let begun = self.work.deletions_over || self.mode.found.mode == Mode::Assist;
        let unmounts = facts.kubelet.lives()
            && disruptions.covered().any(|termination| termination.report.unmounts());
        self.is_settled(disruptions)
            && !unmounts
            && facts.pods.is_listed()
            && begun
            && !self.is_kubelet_awaited(facts, disruptions)
    }

    /// Whether no component can terminate the pods, perhaps only for a moment. A kubelet that
    /// restarts is back within seconds, and terminates what it finds. ([AP16])
    fn is_kubelet_awaited(&self, facts: &Facts, disruptions: &Disruptions) -> bool {
        let left = disruptions.covered().any(|termination| !termination.is_reported());
        let ends_pods = facts.settings.priority_groups.is_some() && !self.origin.is_resumed();
        let may_return = self.mode.found.marks_only
            && ends_pods
            && left
            && self.origin.source() != Source::Systemd;
        let gone_since = facts.kubelet.gone_since.filter(|_| may_return);
        gone_since.is_some_and(|at| !facts.clock.reached(at + KUBELET_GONE))
    }

    /// Returns to `Holding`: the lock is not released yet, and there is work again.
    fn reopen(&mut self, out: &mut Out) {
        self.release = Release::Holding;
        self.work.step = Step::Intent;
        self.summary.drained = false;
        self.summary.unreported_at_release = None;
        self.summary.left_at_release.clear();
        self.summary.volumes_at_release = None;
        out.calls.log(false, None, "the lock is held on: there is something to wait for again");
    }

    /// Asks the runtime once for all its pods, and announces the node as drained if that proves it.
    fn inspect_all(&mut self, over: bool, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        let Release::Inspecting(list) = &mut self.release else { return };
        // A live kubelet soon starts the containers of a pod that has not run, and restarts those
        // that it still considers running.
        let returns = |pod: &PodView| {
            let ends = pod.is_terminal() || pod.is_to_end() || pod.ends_with_its_sandbox();
            let due = pod.running_since.is_some() || !pod.has_run;
            !remains(&pod.uid, facts) && !ends && due
        };
        let returning = self.mode.found.mode == Mode::Replace
            && facts.kubelet.lives()
            && facts.pods.iter().any(returns);
        if over || returning || list.is_given_up() {
            self.close(facts, out, others);
            return;
        }
        if list.is_done() {
            self.release = Release::Drained(facts.clock.monotonic());
            let boot_id = facts.settings.boot_id.clone();
            let at = facts.clock.now().wall;
            others.node.announce(&Announcement::Drained { boot_id, at });
            out.calls.log(false, None, "nothing runs any more: the node is announced as drained");
            others.node.send(facts, out);
            return;
        }
        // A list that was requested before is older than what has appeared since.
        let asked = out.calls.count(|task| *task == Task::ListRuntimePods) > 0;
        if !asked && list.is_due(&facts.clock) {
            list.sent();
            out.calls.send(Task::ListRuntimePods, Action::ListRuntimePods);
        }
    }

    /// Takes the runtime's list of all pods for the drained record.
    pub(in super::super) fn runtime_pods_listed(
        &mut self,
        result: &Result<Vec<RuntimePod>, Failure>,
        facts: &Facts,
        out: &mut Out,
        disruptions: &Disruptions,
    ) {
        let Release::Inspecting(list) = &mut self.release else { return };
        if !list.is_in_flight() {
            return;
        }
        list.done();
        let obstacle = match result {
            Ok(pods) => {
                let running = may_still_run(pods, facts, disruptions);
                running.map(|pod| (Some(pod), "it may still run".to_owned()))
            }
            Err(failure) => Some((None, format!("the runtime does not list its pods ({failure})"))),
        };
        if let Some((pod, why)) = obstacle {
            self.release = Release::Inspecting(Attempt::given_up());
            let text = format!("{why}: the node is not announced as drained");
            out.calls.log(false, pod.as_ref(), text);
        }
    }

    /// Writes the summary to the disk before the lock is released.
    fn close(&mut self, facts: &Facts, out: &mut Out, others: &mut Others<'_>) {
        let Others { node, disruptions, .. } = others;
        self.summary.left_at_release = left_behind(self, facts, disruptions);
        let in_use = facts.volumes.may_be_of_ended_pods(&facts.clock);
        self.summary.volumes_at_release = in_use.then(|| facts.volumes.words());
        let unreported: Vec<PodUid> = disruptions
            .covered()
            .filter(|termination| termination.is_awaited() || termination.is_unacknowledged())
            .map(|termination| termination.pod.uid.clone())
            .collect();
        self.summary.unreported_at_release = Some(unreported.len());
        let mark = out.journal.append([Record::Released { unreported }]);
        self.release = Release::Closing(mark);
        self.work.step = Step::Release;
        node.drop_drained();
        out.write_journal(&facts.clock);
    }

    fn unlocked(&mut self, facts: &Facts, out: &mut Out, disruptions: &Disruptions) {
        let now = facts.clock.monotonic();
        self.release = Release::Released;
        self.summary.released_after = Some(self.window.elapsed(now));
        let unreported = self.summary.unreported_at_release.unwrap_or_default();
        let terminal = disruptions.covered().filter(|it| it.is_reported()).count();
        let left: usize = self.summary.left_at_release.values().sum();
        let mut text = format!(
            "released after {} ms of {} ms granted; of {} pods, {terminal} are terminal in the \
             API, {unreported} are not yet, {left} are left to terminate with the machine",
            self.window.elapsed(now).as_millis(),
            self.window.granted.as_millis(),
            terminal + unreported + left,
        );
        if left > 0 {
            text += ": ";
            text += &words(&self.summary.left_at_release);
        }
        let unmounts =
            disruptions.covered().filter(|termination| termination.report.unmounts()).count();
        if unmounts > 0 {
            text += "; volumes are still mounted, of pods: ";
            text += &unmounts.to_string();
        }
        if !facts.pods.is_listed() {
            text += "; the API has never shown which pods the node has";
        }
        // Without a runtime nothing can prove what the API shows.
        let proven = self.summary.drained || !facts.settings.runtime;
        if !proven {
            text += "; it is not proven that nothing runs any more";
        }
        if let Some(volumes) = &self.summary.volumes_at_release {
            text += "; volumes are in use: ";
            text += volumes;
        }
        let left = unreported + number(&self.summary.left_at_release);
        let mounted = unmounts > 0 || self.summary.volumes_at_release.is_some();
        let complete = left == 0 && facts.pods.is_listed() && proven && !mounted;
        let (warning, reason) = if complete { (false, COMPLETE) } else { (true, UNREPORTED) };
        out.announce(warning, reason, text);
    }

    fn log_outcome(&self, facts: &Facts, out: &mut Out, disruptions: &Disruptions) {
        let now = facts.clock.monotonic();
        let count = |which: fn(&PodTermination) -> bool| {
            disruptions.covered().filter(|termination| which(termination)).count()
        };
        let in_use = facts.volumes.may_be_of_ended_pods(&facts.clock);
        let why = match (self.window.is_over(now), in_use) {
            (true, _) => "the time is over",
            (false, true) => "all is done, but volumes are in use",
            (false, false) => "all is done",
        };
        let text = format!(
            "{why}: {} of {} pods are terminal in the API, {} awaited, {} writes unacknowledged",
            count(PodTermination::is_reported),
            disruptions.covered().count(),
            count(PodTermination::is_awaited),
            count(PodTermination::is_unacknowledged),
        );
        let warning = self.window.is_over(now);
        out.calls.log(warning, None, text);
    }
}

/// Whether the pod stays on a drained node: a DaemonSet's, a static one, or our own.
fn remains(uid: &PodUid, facts: &Facts) -> bool {
    let stays = |pod: &PodView| pod.owner == Owner::DaemonSet || pod.source == PodSource::Static;
    facts.is_own(uid) || facts.pods.get(uid).is_some_and(stays)
}

/// The first pod that the runtime does not prove to have ended: one that the agent has never
/// seen may run, and a runtime that does not know a pod that has run may be another one.
fn may_still_run(
    listed: &[RuntimePod],
    facts: &Facts,
    disruptions: &Disruptions,
) -> Option<PodRef> {
    let runs = |of: &&RuntimePod| of.may_run && !of.is_static && !remains(&of.pod.uid, facts);
    if let Some(running) = listed.iter().find(runs) {
        return Some(running.pod.clone());
    }
    let cached = facts.pods.iter().filter(|pod| pod.has_run).map(PodRef::of);
    let gone = disruptions.covered().map(|termination| termination.pod.clone());
    let gone = gone.filter(|pod| facts.pods.get(&pod.uid).is_none());
    let known = |uid: &PodUid| listed.iter().any(|listed| listed.pod.uid == *uid);
    cached.chain(gone).find(|pod| !remains(&pod.uid, facts) && !known(&pod.uid))
}
