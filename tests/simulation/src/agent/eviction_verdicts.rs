//! Judges evictions: which pods, when, in which order, and whether the pressure ends.

use std::time::Duration;

use agent_core::agent::Enforcement;
use agent_core::pod::{PodUid, PodView};
use agent_core::pressure::signal::Signal;
use agent_core::protocol::action::{Action, Line, Notice, PodRef, Purpose};
use epilogue_common::names::node_condition;
use serde_json::Value;

use super::api::Stored;
use super::kubelet::Health;
use super::kubelet_evictions::CRITICAL;
use super::logind::Stage;
use super::pressure_ledger::Victim;
use super::promises;
use super::situations::Met;
use super::world::{World, name_of};
use crate::controller::agenda::Moment;

/// How long after a reported shortage the agent may act on it. A sample may take 8 s, and the
/// figures of the pods as long again.
const SHORTAGE_LASTS: Duration = Duration::from_secs(30);
/// The longest time for which a victim of a hard threshold delays the next one.
const HARD_WAIT: Duration = Duration::from_secs(10);
/// How long a mark may stand on a live pod: an agent that finds the mark of an earlier run waits a
/// minute.
const MARK_LASTS: Duration = Duration::from_mins(2);
/// How long after its end a stall may still be reported.
const STALL_LASTS: Duration = Duration::from_mins(1);

/// How the message of a node-pressure victim begins. ([EV13])
const LOW: &str = "The node was low on resource: ";

/// The resource that an eviction's message names; `None` if the message names a limit of the pod.
fn resource_of(message: &str) -> Option<&str> {
    message.strip_prefix(LOW)?.split_once(". ").map(|(resource, _)| resource)
}

fn mark_of(body: &Value) -> Option<&str> {
    let conditions = body["status"]["conditions"].as_array()?;
    let mark = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget")?;
    mark["message"].as_str().filter(|_| mark["status"] == "True")
}

impl World {
    pub(super) fn is_critical(&self, uid: &PodUid) -> bool {
        let nature = self.ledger.natures.get(uid);
        nature.is_some_and(|n| n.is_static || n.is_own || n.view.priority >= CRITICAL)
    }

    pub(super) fn victim(&self, uid: &PodUid) -> Option<&Victim> {
        self.ledger.pressure.victims.get(uid)
    }

    pub(super) fn is_own_limit_victim(&self, uid: &PodUid) -> bool {
        self.victim(uid).is_some_and(|victim| victim.own_limit)
    }

    /// Judges the pressure side of an action when it is issued.
    pub(super) fn judge_pressure_action(&mut self, action: &Action) {
        match action {
            Action::PatchStatus { pod, purpose: Purpose::Mark, body } => {
                let message = mark_of(body).unwrap_or_default().to_owned();
                // A victim that went down with its node gets the shutdown's mark, or that of a lost
                // node, from the agent of the next boot.
                let goes_down = self.logind.announcements > 0 || self.ledger.system_stopped;
                let of_shutdown = message == promises::SHUTDOWN_MESSAGE && goes_down;
                let of_boot = self.boot > 1 && message == promises::LOST_MESSAGE;
                // A mark may come before the end that shows a victim of its own limit.
                let beyond = self.is_beyond_own(&pod.uid) || self.is_own_limit_victim(&pod.uid);
                if resource_of(&message).is_some() {
                    self.choose(pod, &message);
                } else if beyond && !of_shutdown && !of_boot {
                    self.violate(&format!("{} exceeds its own limit and is marked", pod.name));
                }
            }
            Action::PatchStatus { pod, purpose: Purpose::Fail, body }
                if body["status"]["reason"] == "Evicted" =>
            {
                self.choose(pod, body["status"]["message"].as_str().unwrap_or_default());
            }
            Action::EmitEvent(notice) if notice.reason == "Evicted" => {
                self.judge_evicted_event(notice);
            }
            Action::EmitEvent(Notice {
                reason: "EvictionLeftToKubelet", pod: Some(pod), ..
            }) => {
                self.ledger.pressure.left_to_kubelet.insert(pod.uid.clone());
            }
            Action::DeletePod { pod, .. }
            | Action::StopPod { pod, .. }
            | Action::PatchPod { pod, .. } => self.infer_own_limit(pod),
            Action::Log(Line { text, pod: Some(pod), .. }) => self.note_words(pod, text),
            Action::SetNodeCondition { kind, stands: true, .. } => self.judge_stall(kind),
            Action::Measure | Action::MeasurePods { .. } => {
                self.ledger.pressure.recent_samples += 1;
            }
            _ => {}
        }
    }

    /// Notes which pod the agent says it evicts, because a mark may have to wait for its turn.
    fn note_words(&mut self, pod: &PodRef, text: &str) {
        let now = self.now();
        if text.starts_with("is evicted for") {
            self.judge_choice_in_outage(pod, text);
        }
        let said = &mut self.ledger.pressure.said;
        if text.starts_with("is evicted for") {
            said.insert(pod.uid.clone(), (now, text.to_owned()));
        } else if text.starts_with("it is not evicted")
            || text.starts_with("its eviction is given up")
        {
            said.remove(&pod.uid);
            // Later it may be chosen for another reason.
            let victims = &mut self.ledger.pressure.victims;
            victims.retain(|uid, victim| *uid != pod.uid || victim.killed_at.is_some());
        }
    }

    /// While the API is out of reach, another victim is not faster, so the first one stays. Only a
    /// hard threshold does not wait for the victim of a soft one.
    fn judge_choice_in_outage(&mut self, pod: &PodRef, text: &str) {
        let of_node = |text: &str| text.contains('<') || text.contains("pods wait");
        let soft = |text: &str| text.split_once('<').is_some_and(|it| it.1.contains(" for "));
        let Some((at, length)) = self.behaviour.outage.filter(|_| of_node(text)) else { return };
        if !self.is_dark() {
            return;
        }
        let waits = |(uid, (said, words)): &(&PodUid, &(Moment, String))| {
            let ended = self.api.pods.get(*uid).is_none_or(Stored::is_terminal);
            let killed = self.victim(uid).is_some_and(|victim| victim.killed_at.is_some());
            let first = **uid != pod.uid && *said >= at && *said < at + length;
            first && of_node(words) && !ended && !killed && (soft(text) || !soft(words))
        };
        let other = self.ledger.pressure.said.iter().find(waits);
        let other = other.map(|(uid, _)| name_of(uid).to_owned());
        let words = || format!("{} is chosen while {other:?} waits for the API", pod.name);
        self.judge(Met::VictimInOutage, other.is_some(), words);
    }

    fn is_beyond_own(&mut self, uid: &PodUid) -> bool {
        self.note_beyond_own();
        self.ledger.pressure.beyond_own.contains(uid)
    }

    /// Only its end shows that a pod is a victim of its own limit.
    fn infer_own_limit(&mut self, pod: &PodRef) {
        let deleted = self.ledger.reported.get(&pod.uid).is_some_and(PodView::is_terminating);
        let beyond = self.is_beyond_own(&pod.uid);
        if self.ledger.shutdown.is_none() && !deleted && beyond {
            return self.choose(pod, "");
        }
        // A condition of another client stays, so that no mark shows the choice. The pod's end may
        // have taken it away, unknown to the agent.
        let stored = self.api.pods.get(&pod.uid);
        let stands = stored.is_some_and(|stored| stored.is_disrupted() && !stored.is_ours());
        let known = self.ledger.reported.get(&pod.uid).and_then(|view| view.disruption.as_ref());
        let known = known.is_some_and(|it| it.stands && it.reason != promises::REASON);
        // A shutdown takes over what was chosen before it.
        let announced = self.ledger.shutdown.as_ref().map(|it| it.reported_at);
        let own = |at: &Moment| announced.is_none_or(|announced| announced <= *at);
        let said = self.ledger.pressure.said.get(&pod.uid);
        let said = said.filter(|(at, _)| (stands || known) && !deleted && own(at));
        let Some((_, said)) = said else { return };
        let resource = match said {
            said if said.contains("memory") => "memory",
            said if said.contains("pid") => "pids",
            _ => "ephemeral-storage",
        };
        self.met(Met::ForeignVictim);
        self.choose(pod, &format!("{LOW}{resource}. "));
    }

    fn judge_evicted_event(&mut self, notice: &Notice) {
        let Some(pod) = notice.pod.clone() else { return };
        self.choose(&pod, &notice.message);
        let run = self.agent_run();
        let Some(victim) = self.ledger.pressure.victims.get_mut(&pod.uid) else { return };
        victim.events += 1;
        let (again, same) = (victim.events > 1, Some(victim.run) == run);
        let words = || format!("{} is reported as evicted twice", pod.name);
        self.judge(Met::EvictedEvent, again && same, words);
    }

    /// The agent's action shows that it has chosen a victim.
    fn choose(&mut self, pod: &PodRef, message: &str) {
        let run = self.agent_run().unwrap_or_default();
        if self.victim(&pod.uid).is_some_and(|victim| victim.run == run) {
            return;
        }
        let resource = resource_of(message).map(str::to_owned);
        let now = self.now();
        let before = self.victim(&pod.uid).cloned();
        let pressure = &self.ledger.pressure;
        let is_of = |signal: &Signal| Some(promises::resource(*signal).0) == resource.as_deref();
        let fresh = |at: &Moment| now.saturating_sub(*at) < SHORTAGE_LASTS;
        let mut reported = pressure.reported_short.iter();
        let short = reported.any(|(signal, at)| is_of(signal) && fresh(at));
        // "memory.available<1Gi for 5s, 4 left" is soft; a mark may belong to another client.
        let line = pressure.said.get(&pod.uid).and_then(|(_, line)| line.split(',').next());
        let soft = line.and_then(|line| line.split_once('<')).map(|(_, it)| it.contains(" for "));
        let hard = soft.map_or_else(|| self.is_hard(message), |soft| !soft);
        let of_node = resource.is_some();
        self.judge_choice(pod, of_node);
        // The next run of the agent terminates the victims of an earlier run.
        if of_node && before.is_none() {
            let words = || format!("{} is evicted, and nothing is short: {message}", pod.name);
            self.judge(Met::NodeVictim, !short, words);
        }
        if let Some(resource) = resource.filter(|_| before.is_none()) {
            self.judge_alongside_kubelet(pod, &resource);
        }
        if of_node && !self.runtime.sandboxes.contains_key(&pod.uid) {
            self.violate(&format!("{} never ran and is evicted", pod.name));
        }
        if !of_node {
            let beyond = self.ledger.pressure.beyond_own.contains(&pod.uid);
            let words = || format!("{} is evicted for a limit that it keeps", pod.name);
            self.judge(Met::OwnLimitVictim, !beyond, words);
        }
        self.stats.evictions += 1;
        let victim = Victim {
            run,
            chosen_at: self.ledger.pressure.said.get(&pod.uid).map_or(now, |(at, _)| *at),
            own_limit: !of_node,
            hard,
            killed_at: None,
            events: 0,
        };
        self.ledger.pressure.victims.insert(pod.uid.clone(), victim);
    }

    /// Whether the message names a hard threshold, or a stall, which is as urgent.
    fn is_hard(&self, message: &str) -> bool {
        let Some((_, rest)) = message.split_once("Threshold quantity: ") else { return true };
        let quantity = rest.split(", ").next().unwrap_or_default();
        let resource = resource_of(message).unwrap_or_default();
        let thresholds = &self.behaviour.settings.features.eviction.thresholds;
        let mut named = thresholds.iter().filter(|threshold| {
            let units = promises::amount(threshold.limit, self.left(threshold.signal).capacity);
            let named = threshold.signal.quantity(units).to_string() == quantity;
            named && promises::resource(threshold.signal).0 == resource
        });
        named.clone().next().is_none() || named.any(|threshold| threshold.grace.is_none())
    }

    fn judge_choice(&mut self, pod: &PodRef, of_node: bool) {
        if self.behaviour.settings.features.pressure != Enforcement::Enforce {
            self.violate(&format!("{} is evicted by an agent that only observes", pod.name));
        }
        if self.is_critical(&pod.uid) {
            self.violate(&format!("{} is critical and is evicted", pod.name));
        }
        let heard = self.ledger.shutdown.as_ref().is_some_and(|it| it.heard);
        if of_node
            && heard
            && !self.is_shutdown_over()
            && self.logind.stage == Stage::Delayed
            && self.victim(&pod.uid).is_none()
        {
            self.violate(&format!("{} is chosen in a shutdown", pod.name));
        }
    }

    /// The agent evicts no pod while the kubelet evicts for the same resource. ([EV29])
    fn judge_alongside_kubelet(&mut self, pod: &PodRef, resource: &str) {
        let condition = promises::condition_of(resource).unwrap_or_default();
        if self.ledger.pressure.reported_conditions.iter().any(|reported| reported == condition) {
            let what = format!("{} is evicted while the kubelet says {condition}", pod.name);
            self.violate(&what);
        }
    }

    /// Judges an attempt to terminate a victim; false if the pod is not a victim.
    pub(super) fn judge_eviction(&mut self, pod: &PodRef, stops: bool) -> bool {
        let Some(victim) = self.victim(&pod.uid).cloned() else { return false };
        let Some(stored) = self.api.pods.get(&pod.uid).cloned() else { return true };
        let in_shutdown = self.ledger.shutdown.is_some();
        // The empty sandbox of a pod that others deleted may be stopped, whatever it was for.
        let swept = self.runtime.running(&pod.uid) == 0 && stored.deletion().is_some();
        let marked = stored.is_disrupted() || stored.is_terminal();
        if !victim.own_limit && !in_shutdown && !swept {
            let words = || format!("{} is evicted before it is marked", pod.name);
            self.judge(Met::EvictionIssued, !marked, words);
        }
        let view = stored.view();
        let again = !promises::had_its_only_run(&view) || !view.sidecars.is_empty();
        let bars = self.may_sweep(&pod.uid);
        if stops && self.kubelet.health == Health::Live && !in_shutdown && !bars {
            let name = &pod.name;
            let words = || format!("{name} may run again and is stopped under a live kubelet");
            self.judge(Met::VictimStopped, again, words);
        }
        if victim.killed_at.is_none() {
            self.judge_one_at_a_time(pod, &victim);
            let now = self.now();
            if let Some(victim) = self.ledger.pressure.victims.get_mut(&pod.uid) {
                victim.killed_at = Some(now);
            }
        }
        true
    }

    fn judge_one_at_a_time(&mut self, pod: &PodRef, victim: &Victim) {
        let lives = |uid: &PodUid| {
            let ended = self.api.pods.get(uid).is_none_or(Stored::is_terminal);
            self.runtime.running(uid) > 0 && !ended
        };
        // The later choice waits for the earlier one, except a hard threshold for a soft one's
        // victim. The API may still accept the later deletion first.
        let waits_for = |one: &Victim, other: &Victim| {
            let (first, second) =
                if one.chosen_at < other.chosen_at { (one, other) } else { (other, one) };
            (first.hard || !second.hard) && second.chosen_at < first.chosen_at + HARD_WAIT
        };
        let victims = self.ledger.pressure.victims.iter();
        let alongside = victims
            .filter(|(uid, other)| {
                **uid != pod.uid
                    && other.run == victim.run
                    && !other.own_limit
                    && other.killed_at.is_some()
                    && waits_for(victim, other)
                    && lives(uid)
            })
            .map(|(uid, _)| uid.clone())
            .next();
        // The agent gives up a victim whose deletion is forbidden.
        // A shutdown terminates pods side by side, also those that were victims before.
        let possible = self.behaviour.forbidden.is_none()
            && self.ledger.shutdown.is_none()
            && !victim.own_limit;
        let others = self
            .ledger
            .pressure
            .victims
            .iter()
            .any(|(uid, other)| *uid != pod.uid && other.run == victim.run && !other.own_limit);
        if possible && others {
            let other = alongside.as_ref().map(name_of).unwrap_or_default();
            let words = || format!("{} and {other} are two victims at once", pod.name);
            self.judge(Met::SecondVictim, alongside.is_some(), words);
        }
    }

    fn judge_stall(&mut self, kind: &str) {
        let at = match kind {
            node_condition::MEMORY_STALL => self.ledger.memory_stalled_at,
            node_condition::IO_STALL => self.ledger.io_stalled_at,
            _ => return,
        };
        // The condition stands for a while after its cause, and its write is repeated.
        let lasts = STALL_LASTS + self.behaviour.settings.features.eviction.transition;
        let over = at.is_none_or(|at| self.now().saturating_sub(at) > lasts);
        let words = || format!("{kind} is set, and nothing stalls");
        self.judge(Met::StallCondition, over, words);
    }

    pub(super) fn note_beyond_own(&mut self) {
        let beyond = |uid: &&PodUid| {
            let script = self.scripts.get(*uid);
            script.is_some_and(|script| script.needs.exceeds_own(self.use_of(uid).disk))
        };
        let uids: Vec<PodUid> = self.runtime.sandboxes.keys().filter(beyond).cloned().collect();
        self.ledger.pressure.beyond_own.extend(uids);
    }

    /// Live pods with a mark of pressure that are not being terminated.
    fn left_marked(&mut self) -> Vec<String> {
        let able = self.process.is_some()
            && self.kubelet.health == Health::Live
            && self.behaviour.settings.enforce
            && self.logind.stage == Stage::Idle
            && self.behaviour.forbidden.is_none();
        // A stop without an answer may still be carried out, so the mark stays until the runtime
        // answers.
        let able = able && self.runtime.answers;
        if able && !self.ledger.pressure.victims.is_empty() {
            self.met(Met::VictimsAtEnd);
        }
        let old = |uid: &PodUid| {
            let victim = self.victim(uid);
            victim.is_none_or(|victim| victim.chosen_at + MARK_LASTS < self.now())
        };
        let left = self.api.pods.iter().filter(|(uid, stored)| {
            able && self.runtime.running(uid) > 0
                && stored.deletion().is_none()
                && stored.active_deadline.is_none()
                && !stored.is_terminal()
                && stored.is_ours()
                && !stored.is_marked()
                && !self.runtime.is_doomed(uid)
                && !self.ledger.kubelet_victims.contains(*uid)
                && old(uid)
        });
        left.map(|(_, stored)| stored.name().to_owned()).collect()
    }

    /// Checks the state of pressure at the end.
    pub(super) fn check_pressure_end(&mut self) {
        for name in self.left_marked() {
            self.violate(&format!("{name} lives on and is marked at the end"));
        }
        let looks = self.behaviour.settings.features.pressure != Enforcement::Off;
        if !looks || self.process.is_none() || self.behaviour.forbidden.is_some() {
            return;
        }
        let stalls = [
            (node_condition::MEMORY_STALL, self.ledger.memory_stalled_at),
            (node_condition::IO_STALL, self.ledger.io_stalled_at),
        ];
        let lasts = STALL_LASTS * 2 + self.behaviour.settings.features.eviction.transition;
        for (kind, at) in stalls {
            let stands = self.api.node.shows(kind);
            let over = at.is_none_or(|at| at + lasts < self.now());
            if at.is_some() && over && self.logind.stage == Stage::Idle {
                self.judge(Met::StallOver, stands, || format!("{kind} is never removed"));
            }
        }
    }
}
