//! P5: the last word, the journal's summary, and the lock. (spec/node-agent.md §9.4)

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::announcement::Announcement;
use epilogue_common::outcome::Failure;

use super::Agent;
use super::left::{number, words};
use super::notices::{COMPLETE, UNREPORTED};
use super::outbox::Task;
use super::run::{KUBELET_GONE, Run};
use crate::ending::attempt::Attempt;
use crate::ending::progress::Ending;
use crate::pod::{Owner, PodSource, PodUid, PodView};
use crate::protocol::action::{Action, PodRef};
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::Record;
use crate::shutdown::budget::Step;

/// So long a farewell is tried on one proof.
const FAREWELL_LASTS: Duration = Duration::from_secs(1);

/// How far the release has come.
#[derive(Debug)]
pub(super) enum Release {
    /// The lock is held: reports are awaited.
    Holding,
    /// The runtime is asked whether anything runs.
    Looking(BTreeMap<PodUid, (PodRef, Attempt)>),
    /// The farewell is on its way since then, on CLOCK_MONOTONIC.
    Parting(Duration),
    /// The summary is on its way to the disk.
    Closing(u64),
    /// The lock is being released.
    Unlocking,
    /// There is no lock any more; what comes late is still recorded.
    Released,
}

impl Run {
    /// Whether there is nothing left that holding the lock would be good for.
    fn is_settled(&self) -> bool {
        let open = |ending: &Ending| {
            ending.is_awaited() || ending.is_unacknowledged() || ending.end.is_in_flight()
        };
        self.step > Step::Intent && !self.endings.values().any(open)
    }

    fn time_is_over(&self, now: Duration) -> bool {
        self.elapsed(now) >= self.ends.end
    }
}

impl Agent {
    pub(super) fn release_on(&mut self) {
        let now = self.clock.monotonic();
        // Each state may be over at once; none is entered twice.
        loop {
            let Some(run) = &self.run else { return };
            let over = self.clock.reached(run.at(run.ends.end));
            let before = std::mem::discriminant(&run.release);
            match &run.release {
                Release::Holding => self.leave_holding(over),
                // Somebody came, or is to be ended in another way than before.
                Release::Looking(_) if !over && !self.is_at_rest() => self.hold_on(),
                Release::Looking(_) => self.look(over),
                Release::Parting(_) if over || (self.node.is_settled() && self.is_at_rest()) => {
                    self.close_run();
                }
                // Somebody came, or the look is too old: something may have been started since.
                Release::Parting(since)
                    if !self.is_at_rest() || self.clock.reached(*since + FAREWELL_LASTS) =>
                {
                    self.hold_on();
                    self.announce_run();
                }
                // Somebody came, or a kubelet came back to the pods that nobody was to end.
                Release::Closing(_) if !over && !self.is_at_rest() => self.reopen(),
                Release::Closing(mark) => {
                    let late = run.at(run.ends.end + run.margin / 2);
                    let settled = self.writer.is_durable(*mark) || self.writer.is_refused();
                    if settled || self.clock.reached(late) {
                        self.unlock();
                    }
                }
                Release::Unlocking if !self.logind.may_hold() => self.released(now),
                // A lock that was being taken when the shutdown came goes too.
                Release::Unlocking => self.release_lock(),
                Release::Parting(_) | Release::Released => return,
            }
            let Some(run) = &self.run else { return };
            if std::mem::discriminant(&run.release) == before {
                return;
            }
        }
    }

    /// Whether nothing is left to wait for, and then the way to the release.
    ///
    /// DIVERGES(upstream): what is waited for are the API's acknowledgements. The reference waits
    /// for containers and volumes, and reports that are under way then are lost. (W2)
    fn leave_holding(&mut self, over: bool) {
        let settled = self.is_at_rest() && self.node.is_settled();
        if !over && !settled {
            return;
        }
        self.say_outcome();
        if over || !self.settings.runtime {
            self.close_run();
            return;
        }
        let looks = self.all_that_should_have_ended();
        let Some(run) = &mut self.run else { return };
        run.release = Release::Looking(looks);
    }

    fn is_at_rest(&self) -> bool {
        let Some(run) = &self.run else { return true };
        // What the plan has not begun yet is not settled either.
        let begun = run.kills_over || run.found.mode == crate::shutdown::Mode::Assist;
        let unmounts = self.kubelet.lives() && run.endings.values().any(|ending| ending.unmounts);
        run.is_settled()
            && !unmounts
            && self.pods.is_listed()
            && begun
            && !self.is_kubelet_awaited()
    }

    /// Whether nobody is there to end the pods, and it may be for a moment only: a kubelet that
    /// restarts is back within seconds, and ends what it finds. (§9.6)
    fn is_kubelet_awaited(&self) -> bool {
        let Some(run) = &self.run else { return false };
        let left = run.endings.values().any(|ending| !ending.reported);
        let ends_pods = self.settings.bands.is_some() && !run.resumed;
        let may_return = run.found.marks_only && ends_pods && left;
        let gone_since = self.kubelet.gone_since.filter(|_| may_return);
        gone_since.is_some_and(|at| !self.clock.reached(at + KUBELET_GONE))
    }

    /// The release is not carried out yet, and is for nothing any more.
    fn reopen(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.release = Release::Holding;
        run.step = Step::Intent;
        run.unreported_at_release = None;
        run.left_at_release.clear();
        self.outbox.say(false, None, "the lock is held on: there is something to wait for again");
    }

    fn hold_on(&mut self) {
        if let Some(run) = &mut self.run {
            run.release = Release::Holding;
        }
    }

    /// Every pod that was here, but those of DaemonSets, static ones and our own.
    fn all_that_should_have_ended(&self) -> BTreeMap<PodUid, (PodRef, Attempt)> {
        let own = |uid: &PodUid| self.settings.own_pod.as_ref() == Some(uid);
        let stays = |uid: &PodUid| {
            own(uid)
                || self.pods.get(uid).is_some_and(|pod| {
                    pod.owner == Owner::DaemonSet || pod.source == PodSource::Static
                })
        };
        let cached = self.pods.iter().map(super::marks::reference);
        let endings = self.run.iter().flat_map(|run| run.endings.values());
        let ended = endings.map(|ending| ending.pod.clone());
        let all = cached.chain(ended).filter(|pod| !stays(&pod.uid));
        all.map(|pod| (pod.uid.clone(), (pod, Attempt::wanted()))).collect()
    }

    fn look(&mut self, over: bool) {
        let lives = self.kubelet.lives();
        let Some(run) = &mut self.run else { return };
        let Release::Looking(looks) = &mut run.release else { return };
        // What a kubelet that lives still takes to run, it starts again as soon as it looks.
        let returns = |pod: &PodView| {
            let ends = pod.is_terminal() || pod.is_to_end() || pod.cannot_run_again();
            lives && !ends && pod.running_since.is_some()
        };
        let returning = run.found.mode == crate::shutdown::Mode::Replace
            && looks.keys().any(|uid| self.pods.get(uid).is_some_and(returns));
        let unproven = looks.values().any(|(_, look)| look.is_given_up());
        if over || unproven || returning {
            self.close_run();
            return;
        }
        if looks.values().all(|(_, look)| look.is_done()) {
            run.release = Release::Parting(self.clock.monotonic());
            let boot_id = self.settings.boot_id.clone();
            let at = self.clock.now().wall;
            self.node.announce(&Announcement::Drained { boot_id, at });
            self.outbox.say(false, None, "nothing runs any more: the node says farewell");
            self.write_node();
            return;
        }
        for (uid, (pod, look)) in looks {
            if look.is_due(&self.clock) && self.outbox.has_room_to_inspect() {
                look.sent();
                self.outbox.send(Task::Inspect(uid.clone()), Action::InspectPod(pod.clone()));
            }
        }
    }

    /// Takes a look's result, if it belongs to the farewell.
    pub(super) fn farewell_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) -> bool {
        let Some(run) = &mut self.run else { return false };
        let Release::Looking(looks) = &mut run.release else { return false };
        let Some((pod, look)) = looks.get_mut(uid) else { return false };
        let has_run = self.pods.get(uid).is_none_or(|pod| pod.has_run);
        let proven = result.as_ref().is_ok_and(|state| state.proves_end(has_run));
        if proven {
            look.done();
        } else {
            look.give_up();
            self.outbox.say(false, Some(pod), "it may still run: there is no farewell");
        }
        true
    }

    /// The summary goes to the disk before the lock goes.
    fn close_run(&mut self) {
        let left = self.run.as_ref().map(|run| self.left_behind(run)).unwrap_or_default();
        let Some(run) = &mut self.run else { return };
        run.left_at_release = left;
        let unreported: Vec<_> = run
            .endings
            .iter()
            .filter(|(_, ending)| ending.is_awaited() || ending.is_unacknowledged())
            .map(|(uid, _)| uid.clone())
            .collect();
        run.unreported_at_release = Some(unreported.len());
        let mark = self.writer.append([Record::Released { unreported }]);
        run.release = Release::Closing(mark);
        run.step = Step::Release;
        self.node.drop_farewell();
        self.write_journal();
    }

    fn unlock(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.release = Release::Unlocking;
        self.release_lock();
    }

    fn released(&mut self, now: Duration) {
        let Some(run) = &mut self.run else { return };
        run.release = Release::Released;
        run.released_after = Some(run.elapsed(now));
        let unreported = run.unreported_at_release.unwrap_or_default();
        let mut text = format!(
            "released after {} ms of {} ms granted; {} pods, the end of {unreported} is not in \
             the API",
            run.elapsed(now).as_millis(),
            run.granted.as_millis(),
            run.endings.len(),
        );
        if !run.left_at_release.is_empty() {
            text += "; left to end with the machine: ";
            text += &words(&run.left_at_release);
        }
        let unmounts = run.endings.values().filter(|ending| ending.unmounts).count();
        if unmounts > 0 {
            text += "; volumes are still mounted, of pods: ";
            text += &unmounts.to_string();
        }
        if !self.pods.is_listed() {
            text += "; the API has never shown which pods the node has";
        }
        let left = unreported + number(&run.left_at_release);
        let complete = left == 0 && self.pods.is_listed();
        let (warning, reason) = if complete { (false, COMPLETE) } else { (true, UNREPORTED) };
        self.outbox.say(warning, None, text.clone());
        self.tell(warning, reason, text);
    }

    fn say_outcome(&mut self) {
        let now = self.clock.monotonic();
        let Some(run) = &self.run else { return };
        let count = |which: fn(&Ending) -> bool| {
            run.endings.values().filter(|ending| which(ending)).count()
        };
        let text = format!(
            "{}: {} of {} pods have ended in the API, {} awaited, {} writes unacknowledged",
            if run.time_is_over(now) { "the time is over" } else { "all is done" },
            count(|ending| ending.reported),
            run.endings.len(),
            count(Ending::is_awaited),
            count(Ending::is_unacknowledged),
        );
        let warning = run.time_is_over(now);
        self.outbox.say(warning, None, text);
    }
}
