//! The end of one victim, by the one protocol: condemned, told, stopped, verified, Failed,
//! acknowledged. (spec/node-agent.md §2.9, §7.9; design §4)

use std::time::Duration;

use super::super::Agent;
use super::super::kills::{DELETE, PATCH_PODS};
use super::super::marks::{PATCH_STATUS, reference};
use super::super::notices::{EVICTED, EVICTION_FAILED, EVICTION_SLOW};
use super::super::outbox::{EvictStep, Task};
use super::stance::Stance;
use crate::ending::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::ending::progress::{Ending, Way};
use crate::ending::{patches, patience};
use crate::pod::{Disruption, PodView, TERMINATION_BY_KUBELET};
use crate::pressure::message::Told;
use crate::pressure::watch::Cause;
use crate::protocol::action::{Action, Notice, Purpose, Reach};

/// The grace of a pod that exceeds its own limit. (§2.8)
const OWN_LIMIT_GRACE_SECONDS: u32 = 1;
/// The API's time to take the mark, for a hard threshold: by then another pod may be quicker.
const MARK_HARD: Duration = Duration::from_secs(5);
/// The same for a soft one.
const MARK_SOFT: Duration = Duration::from_secs(30);
/// The time beyond its grace to stop or delete a victim. After it one that nothing has reached
/// lives on and must not bear our mark; one that was told to stop is told of.
const END_MARGIN: Duration = Duration::from_secs(30);
/// So long nothing is started of a pod that was seen to be stopped: a kubelet needs more.
const PROOF_LASTS: Duration = Duration::from_millis(500);

/// Why a pod is to end.
#[derive(Debug)]
pub(super) struct Why {
    /// The signal's name in metrics.
    pub(super) signal: &'static str,
    /// The node's shortage; none for a limit of the pod's own.
    pub(super) cause: Option<Cause>,
    pub(super) told: Told,
}

/// A pod that is ending.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) ending: Ending,
    pub(super) signal: &'static str,
    pub(super) cause: Option<Cause>,
    told: Told,
    pub(super) chosen_at: Duration,
    /// After this the mark is given up.
    mark_until: Duration,
    /// After this the end is given up; set when it is first asked for.
    end_until: Option<Duration>,
    /// Somebody else ended it before us.
    by_others: bool,
    /// It has volumes in memory.
    memory_volumes: bool,
    /// It was looked at once more because the watch did not show the mark.
    mark_sought: bool,
    /// The API has nothing of it any more.
    pub(super) gone: bool,
    /// Why its end cannot be brought about.
    pub(super) refused: Option<String>,
    /// A stop may have reached it. From then on its end is ours, however late it comes: the mark
    /// stays.
    pub(super) was_stopped: bool,
    /// It was told of that it runs on after that.
    told_late: bool,
}

/// What becomes of a victim in one round.
enum Fate {
    /// It is not at its end.
    GoesOn,
    /// The API shows its end, or nothing of it.
    Over,
    /// We cannot end it.
    GivenUp(String),
    /// It is not to be ended any more, and nothing was sent.
    Dropped,
}

impl Victim {
    pub(super) fn pace(&self) -> Pace {
        let salt = salt(&self.ending.pod.uid.0);
        let latest =
            if self.ending.mark.is_open() { Some(self.mark_until) } else { self.end_until };
        // One that resists is stopped for ever, but not in haste.
        let wait_max = if self.told_late { WAIT_MAX } else { WAIT_MAX_HASTE };
        Pace { wait_max, latest, salt }
    }

    fn is_shown_as_ours(&self, pod: &PodView) -> bool {
        let ours = |disruption| patches::is_ours(disruption, self.ending.marked_at);
        pod.disruption.as_ref().is_some_and(ours)
    }
}

impl Agent {
    /// Begins the end of a pod.
    pub(super) fn condemn(&mut self, pod: &PodView, way: Way, why: Why) {
        let now = self.clock.now();
        let wishes = self.evictions.watch.wishes();
        let (grace_seconds, patience) = match &why.cause {
            Some(cause) => {
                let grace = cause.grace_seconds(pod.grace_seconds, wishes.soft_grace_seconds_max);
                (grace, if cause.is_hard() { MARK_HARD } else { MARK_SOFT })
            }
            None => (OWN_LIMIT_GRACE_SECONDS, MARK_HARD),
        };
        let mut ending = Ending::new(reference(pod), way, now.wall);
        ending.grace_seconds = grace_seconds;
        if let Some(cause) = &why.cause {
            ending.mark = Attempt::wanted();
            let watch = &mut self.evictions.watch;
            watch.victim_chosen(pod.uid.clone(), cause, grace_seconds, now.monotonic);
            self.evictions.forget_causes();
        }
        let cause = why.cause.map_or_else(|| why.signal.to_owned(), |cause| cause.to_string());
        let text = format!("is evicted for {cause}: {}, grace {grace_seconds} s", by(way));
        self.outbox.say(true, Some(&ending.pod), text);
        let victim = Victim {
            ending,
            signal: why.signal,
            cause: why.cause,
            told: why.told,
            chosen_at: now.monotonic,
            mark_until: now.monotonic + patience,
            end_until: None,
            by_others: false,
            memory_volumes: pod.details.memory_volumes,
            mark_sought: false,
            gone: false,
            refused: None,
            was_stopped: false,
            told_late: false,
        };
        self.evictions.victims.insert(pod.uid.clone(), victim);
    }

    /// Goes on with each victim.
    pub(super) fn victims_on(&mut self) {
        let uids: Vec<_> = self.evictions.victims.keys().cloned().collect();
        for uid in uids {
            let Some(mut victim) = self.evictions.victims.remove(&uid) else { continue };
            let pod = self.pods.get(&uid).filter(|pod| !pod.is_terminal() && !victim.gone).cloned();
            let fate = pod.map_or(Fate::Over, |pod| self.go_on(&mut victim, &pod));
            match fate {
                Fate::GoesOn => drop(self.evictions.victims.insert(uid, victim)),
                Fate::Over => self.victim_is_over(&victim),
                Fate::GivenUp(why) => self.give_victim_up(&victim, &why),
                Fate::Dropped => self.drop_victim(&victim),
            }
        }
    }

    /// After a shutdown that did not happen: what is known of the victims is of before it.
    pub(super) fn take_up_victims(&mut self) {
        self.evictions.forget_causes();
        for victim in self.evictions.victims.values_mut() {
            victim.ending.read.want_again();
            victim.ending.proven_at = None;
        }
    }

    fn victim_is_over(&mut self, victim: &Victim) {
        let now = self.clock.monotonic();
        let Ending { pod, end, .. } = &victim.ending;
        self.evictions.watch.victim_ended(&pod.uid, now);
        if victim.cause.is_none_or(|cause| cause.signal.node_condition() == "DiskPressure") {
            self.evictions.watch.files_go(now);
        }
        if victim.memory_volumes && victim.ending.way == Way::Stop {
            self.evictions.watch.pages_go(now);
        }
        self.evictions.forget_causes();
        self.evictions.stale.victim_ended(pod.uid.clone(), now);
        self.evictions.stalls.begin_anew(now);
        // Nobody to choose again, though the watch may lag, and a kubelet may take back the phase
        // for a moment. (§7.6)
        self.evictions.choices.refuse(pod.uid.clone(), now);
        if victim.gone {
            self.pods.gone(&pod.uid);
        }
        if victim.by_others || !end.was_sent() {
            self.outbox.say(false, Some(pod), "the victim has ended by itself or by others");
            return;
        }
        let took = now.saturating_sub(victim.chosen_at);
        let count = self.status.pressure.evictions.entry(victim.signal).or_default();
        (count.done, count.took) = (count.done + 1, Some(took));
        let text = format!("the victim has ended, after {} ms", took.as_millis());
        self.outbox.say(false, Some(pod), text);
    }

    fn drop_victim(&mut self, victim: &Victim) {
        let now = self.clock.monotonic();
        let pod = &victim.ending.pod;
        self.evictions.watch.victim_ended(&pod.uid, now);
        self.evictions.forget_causes();
        let text = "it is not evicted: what it was chosen for is not ours to act on any more";
        self.outbox.say(false, Some(pod), text);
    }

    /// A mark that may have arrived is taken back at once: the pod lives on. (ST7)
    ///
    /// DIVERGES(upstream): the reference never takes one back; nothing it has marked can live on,
    /// since it marks with the phase.
    fn give_victim_up(&mut self, victim: &Victim, why: &str) {
        let now = self.clock.monotonic();
        let Ending { pod, mark, marked_at, .. } = &victim.ending;
        self.evictions.watch.victim_ended(&pod.uid, now);
        self.evictions.forget_causes();
        self.evictions.choices.refuse(pod.uid.clone(), now);
        self.status.pressure.evictions.entry(victim.signal).or_default().given_up += 1;
        let text = format!("its eviction is given up: {why}");
        self.outbox.say(true, Some(pod), text);
        if mark.was_sent() {
            self.evictions.stale.is_seen_to(pod.uid.clone(), *marked_at);
            self.clears.add(pod.clone(), *marked_at);
        }
        let text = format!("It was to be evicted, and is not: {why}. {}", victim.told.message);
        self.tell_pod(pod.clone(), EVICTION_FAILED, text.trim_end());
    }

    /// One step with one victim.
    fn go_on(&mut self, victim: &mut Victim, pod: &PodView) -> Fate {
        if self.outbox.is_busy_with(&pod.uid) {
            return Fate::GoesOn;
        }
        if let Some(why) = victim.refused.take() {
            return Fate::GivenUp(why);
        }
        if victim.ending.read.is_open() {
            if victim.ending.read.is_due(&self.clock) && self.outbox.has_room() {
                victim.ending.read.sent();
                let action = Action::ReadPod(victim.ending.pod.clone());
                self.outbox.send(Task::Evict(EvictStep::Read, pod.uid.clone()), action);
            }
            return Fate::GoesOn;
        }
        if let Some(fate) = self.mark_victim(victim, pod) {
            return fate;
        }
        let is_ours = victim.ending.way != Way::Stop || victim.ending.end.was_sent();
        if !is_ours && pod.is_to_end() {
            // The kubelet ends it for somebody else, with our mark.
            victim.ending.end = Attempt::done_by_others();
            victim.ending.told = true;
            victim.by_others = true;
        }
        if !std::mem::replace(&mut victim.ending.told, true) {
            self.tell_evicted(victim);
        }
        match victim.ending.way {
            Way::Stop => self.stop_victim(victim, pod),
            _ => self.delete_victim(victim, pod),
        }
    }

    /// Sends the mark, and answers with nothing when it stands. Nothing of the pod is stopped
    /// before the API has it.
    fn mark_victim(&mut self, victim: &mut Victim, pod: &PodView) -> Option<Fate> {
        let ours = victim.is_shown_as_ours(pod);
        let ending = &mut victim.ending;
        if !ending.mark.is_wanted() || ending.mark.is_done() {
            return None;
        }
        let sent = ending.mark.was_sent();
        if sent && ours {
            ending.mark = Attempt::done_before();
            return None;
        }
        if pod.is_to_end() && !sent {
            // What others have begun has its own reason, and its own end.
            ending.mark.drop_it();
            ending.end = Attempt::done_by_others();
            ending.told = true;
            victim.by_others = true;
            return None;
        }
        if !sent && self.stance() != Stance::Enforce {
            return Some(Fate::Dropped);
        }
        let foreign = |disruption: &Disruption| {
            disruption.stands && disruption.reason != TERMINATION_BY_KUBELET
        };
        if pod.disruption.as_ref().is_some_and(foreign) && !sent {
            // Another's reason says more than ours.
            ending.mark = Attempt::done_by_others();
            return None;
        }
        if self.refusals.forbids(PATCH_STATUS) {
            return Some(Fate::GivenUp("the API forbids its mark".to_owned()));
        }
        if ending.mark.is_given_up() {
            return Some(Fate::GivenUp("the API refuses its mark".to_owned()));
        }
        if self.clock.reached(victim.mark_until) {
            return Some(Fate::GivenUp("the API does not take its mark in time".to_owned()));
        }
        if ending.mark.is_due(&self.clock) && self.outbox.has_room() {
            ending.mark.sent();
            let body = patches::pressed(pod, ending.marked_at, &victim.told.message);
            let action =
                Action::PatchStatus { pod: ending.pod.clone(), purpose: Purpose::Mark, body };
            self.outbox.send(Task::Evict(EvictStep::Mark, pod.uid.clone()), action);
        }
        Some(Fate::GoesOn)
    }

    /// Its end will be that of our stop, and is not to count as its own failure: nothing is taken
    /// back. The next victim has long been chosen, if there had to be one.
    fn tell_stubborn(&mut self, victim: &Victim) {
        let pod = &victim.ending.pod;
        let seconds = end_time(victim.ending.grace_seconds).as_secs();
        let text = format!(
            "it was stopped and still runs, after {seconds} s; it is stopped again and again"
        );
        self.outbox.say(true, Some(pod), text);
        let text = format!(
            "It was stopped, and still runs after {seconds} s: see the container runtime's log. \
             {}",
            victim.told.message
        );
        self.tell_pod(pod.clone(), EVICTION_SLOW, text.trim_end());
    }

    fn tell_evicted(&mut self, victim: &Victim) {
        let Told { message, annotations } = victim.told.clone();
        let pod = Some(victim.ending.pod.clone());
        self.tell_all(Notice { pod, warning: true, reason: EVICTED, message, annotations });
    }

    /// Through the runtime, and then the phase: the object stays, as a kubelet's eviction leaves
    /// it. (§7.9, third row)
    fn stop_victim(&mut self, victim: &mut Victim, pod: &PodView) -> Fate {
        let now = self.clock.monotonic();
        let ending = &mut victim.ending;
        if ending.end.is_done() {
            if ending.fail.is_open() || ending.inspect.is_open() {
                self.fail_victim(victim, pod);
            }
            return Fate::GoesOn;
        }
        let late = victim.end_until.is_some_and(|at| self.clock.reached(at));
        if ending.end.is_given_up() || late && !victim.was_stopped {
            return Fate::GivenUp("the container runtime does not stop it".to_owned());
        }
        if late && !std::mem::replace(&mut victim.told_late, true) {
            self.tell_stubborn(victim);
        }
        let ending = &mut victim.ending;
        ending.end.want();
        if ending.end.is_due(&self.clock) {
            victim.end_until.get_or_insert(now + end_time(ending.grace_seconds));
            // What a stop of the containers does not reach, one that was only created, goes with
            // the sandbox.
            let reach = if ending.end.was_sent() { Reach::Pod } else { Reach::Containers };
            ending.end.sent();
            let action = Action::StopPod {
                pod: ending.pod.clone(),
                grace_seconds: ending.grace_seconds,
                sidecars: pod.sidecars.clone(),
                reach,
                patience: patience::at_ease(ending.end.failures()),
            };
            self.outbox.send(Task::Evict(EvictStep::Stop, pod.uid.clone()), action);
        }
        Fate::GoesOn
    }

    /// Writes the phase of a pod of which nothing runs, by a proof that is fresh.
    fn fail_victim(&mut self, victim: &mut Victim, pod: &PodView) {
        let now = self.clock.now();
        let ending = &mut victim.ending;
        let fresh = ending.proven_at.is_some_and(|at| now.monotonic < at + PROOF_LASTS);
        if !fresh && !ending.inspect.is_open() && ending.fail.is_due(&self.clock) {
            ending.inspect.want_again();
        }
        if ending.inspect.is_open() {
            if ending.inspect.is_due(&self.clock) && self.outbox.has_room_to_inspect() {
                ending.inspect.sent();
                let action = Action::InspectPod(ending.pod.clone());
                self.outbox.send(Task::Evict(EvictStep::Inspect, pod.uid.clone()), action);
            }
            return;
        }
        // What somebody has deleted meanwhile the kubelet tears down and reports.
        if self.refusals.forbids(PATCH_STATUS) || pod.is_to_end() {
            ending.fail.give_up();
            return;
        }
        // A phase without its reason would be counted as the pod's own failure.
        let marked = victim.cause.is_none() || pod.is_disrupted();
        if !marked && !std::mem::replace(&mut victim.mark_sought, true) {
            victim.ending.read.want_again();
            return;
        }
        let ending = &mut victim.ending;
        if !marked {
            let text =
                "its mark was taken away by others; its end is left to the kubelet to report";
            self.outbox.say(true, Some(&ending.pod), text);
            ending.fail.give_up();
            return;
        }
        if ending.fail.is_due(&self.clock) && self.outbox.has_room() {
            ending.fail.sent();
            let body = patches::evicted(pod, now.wall, &victim.told.message);
            let action =
                Action::PatchStatus { pod: ending.pod.clone(), purpose: Purpose::Fail, body };
            self.outbox.send(Task::Evict(EvictStep::Fail, pod.uid.clone()), action);
        }
    }

    /// Through the API: the kubelet kills and reports. (§7.7, §7.8)
    fn delete_victim(&mut self, victim: &mut Victim, pod: &PodView) -> Fate {
        let now = self.clock.monotonic();
        let ending = &mut victim.ending;
        let lever = ending.way == Way::Deadline;
        let deleted = pod.deletion_grace_seconds.is_some_and(|it| it <= ending.grace_seconds);
        if deleted || lever && pod.is_to_end() {
            if !ending.end.is_done() {
                victim.by_others = !ending.end.was_sent();
                ending.end.done();
            }
            return Fate::GoesOn;
        }
        if ending.end.is_done() {
            return Fate::GoesOn;
        }
        let verb = if lever { PATCH_PODS } else { DELETE };
        if self.refusals.forbids(verb) {
            return Fate::GivenUp(format!("the API forbids `{verb}`"));
        }
        if ending.end.is_given_up() || victim.end_until.is_some_and(|at| self.clock.reached(at)) {
            return Fate::GivenUp("the API does not take its end".to_owned());
        }
        ending.end.want();
        if ending.end.is_due(&self.clock) && self.outbox.has_room() {
            victim.end_until.get_or_insert(now + END_MARGIN);
            ending.end.sent();
            let target = ending.pod.clone();
            let action = if lever {
                Action::PatchPod { pod: target, body: patches::deadline(pod) }
            } else {
                Action::DeletePod { pod: target, grace_seconds: ending.grace_seconds }
            };
            self.outbox.send(Task::Evict(EvictStep::End, pod.uid.clone()), action);
        }
        Fate::GoesOn
    }
}

/// The time in which a stop through the runtime has to be proven.
fn end_time(grace_seconds: u32) -> Duration {
    Duration::from_secs(u64::from(grace_seconds)) + END_MARGIN
}

fn by(way: Way) -> &'static str {
    match way {
        Way::Stop => "through the runtime",
        Way::Deadline => "by its deadline",
        _ => "by deletion",
    }
}
