//! Explains why a container died: collects reports of OOM kills and writes the condition.
//!
//! The reports come from the kernel, systemd-oomd and the runtime. A Job's policy can match the
//! condition `epilogue.dev/OOMKilled`. If a child process was killed while its container lived on,
//! the agent only reports and counts it. The agent reports a kill once no other witness can add to
//! it. The condition does not wait for that.

mod condition;
mod kills;
mod late;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::names::oom_reason::NODE_OUT_OF_MEMORY;
use epilogue_common::outcome::Failure;

use super::calls::{Answer, Part, Verb};
use super::facts::{Facts, News};
use super::notices::{CHILD_OOM_KILLED, OOM_KILLED, OOMD_KILLED};
use super::out::Out;
use super::status::OomStatus;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::PodRef;
use crate::protocol::event::RuntimeState;
use crate::protocol::pressure::{OomConstraint, OomKill, OomdKill};
use condition::{Conditions, OomCondition};
use kills::{Inspect, Kill, Place, SAME_KILL};
use late::Late;

/// Limit of containers whose kills are remembered; a node has some hundred.
const PLACES_MAX: usize = 4_096;
/// After this, a killed pod that the API does not show does not belong to this node.
const UNKNOWN_FOR: Duration = Duration::from_mins(1);
/// How long an observed kill may explain a later status of the pod.
const REMEMBERED_FOR: Duration = Duration::from_mins(10);
/// The shortest time between reports about child processes of one container.
const CHILDREN_REPORTED_EVERY: Duration = Duration::from_mins(1);
/// Limit of kills by systemd-oomd whose pods are not known yet.
const OOMD_WAITING_MAX: usize = 256;

/// What is known of kills.
#[derive(Clone, Debug, Default)]
pub(super) struct Oom {
    /// The latest kill of each container.
    kills: BTreeMap<Place, Kill>,
    children: BTreeMap<Place, Children>,
    oomd: Vec<(OomdKill, Duration)>,
    conditions: Conditions,
    late: Late,
    counted: OomStatus,
}

/// Child processes of one container that were killed.
#[derive(Clone, Debug, Default)]
struct Children {
    reported_at: Option<Duration>,
    unreported: u32,
    /// The message about the last one.
    message: String,
}

impl Oom {
    fn pod_gone(&mut self, uid: &PodUid) {
        self.kills.retain(|(pod, _), _| pod != uid);
        self.children.retain(|(pod, _), _| pod != uid);
        self.conditions.pod_gone(uid);
        self.late.pod_gone(uid);
    }

    pub(super) fn status(&self) -> OomStatus {
        OomStatus {
            oom_conditions_won: self.conditions.won,
            oom_conditions_lost: self.conditions.lost,
            oom_conditions_pending: self.conditions.pending(),
            ..self.counted.clone()
        }
    }
}

impl Oom {
    /// Takes a witness's report of a kill.
    pub(super) fn killed(&mut self, kill: OomKill, facts: &Facts, out: &mut Out) {
        if !facts.settings.features.oom_causes {
            return;
        }
        let place = (kill.pod.clone(), kill.container_id.clone());
        if let Some(known) = self.kills.get_mut(&place)
            && known.is_seen_by(&kill)
        {
            known.hear(kill);
            return;
        }
        // A container ends once: whoever reports that end again, or does not know what has become
        // of it, adds to the same kill.
        if let Some(known) = self.kills.get_mut(&place)
            && known.has_ended_container()
            && kill.container_lives != Some(true)
        {
            known.hear(kill);
            return;
        }
        let known = self.kills.get(&place);
        // Reports may overtake each other: this child was killed before its container ended.
        if kill.container_lives == Some(true) && known.is_some_and(Kill::has_ended_container) {
            self.counted.oom_kills.entry(kill.constraint).or_default().lived_on += 1;
            return;
        }
        let mut kill = Kill::new(kill, facts.clock.now());
        if let Some(known) = known {
            kill.take_cause_of(known);
        }
        // A new kill settles the previous one.
        self.report_kill(&place, facts, out);
        if self.kills.len() < PLACES_MAX || self.kills.contains_key(&place) {
            self.kills.insert(place, kill);
        }
    }

    pub(super) fn oomd_killed(&mut self, kill: OomdKill, facts: &Facts, out: &mut Out) {
        if !facts.settings.features.oom_causes {
            return;
        }
        if kill.pod.is_none() {
            let text = format!("systemd-oomd killed {}: {}", kill.cgroup, kill.reason);
            out.calls.log(true, None, text);
        } else if self.oomd.len() < OOMD_WAITING_MAX {
            self.oomd.push((kill, facts.clock.monotonic()));
        }
    }

    /// Takes an answer about a pod.
    pub(super) fn answered(
        &mut self,
        uid: &PodUid,
        answer: Answer<'_>,
        facts: &Facts,
        out: &mut Out,
    ) {
        match answer {
            Answer::Written(result, _) => self.was_written(uid, result, facts, out),
            Answer::Runtime(result) => self.was_inspected(uid, result, facts),
            Answer::Read(_) => {}
        }
    }

    /// Writes the conditions that are due.
    pub(super) fn advance(&mut self, news: &[News], facts: &Facts, out: &mut Out) {
        for news in news {
            if let News::PodGone(uid) = news {
                self.pod_gone(uid);
            }
        }
        if !facts.settings.features.oom_causes {
            return;
        }
        self.decide_kills(facts, out);
        // What is not being decided any more may be a kill that only the status shows.
        if self.find_late(facts) {
            self.decide_kills(facts, out);
        }
        self.decide_oomd(facts, out);
        self.send_conditions(facts, out);
        self.report_kills(facts, out);
    }

    /// Decides about each kill as soon as the necessary facts are known.
    fn decide_kills(&mut self, facts: &Facts, out: &mut Out) {
        let open: Vec<Place> = self
            .kills
            .iter()
            .filter(|(_, kill)| !kill.decided)
            .map(|(place, _)| place.clone())
            .collect();
        for place in open {
            let Some(pod) = facts.pods.get(&place.0).cloned() else {
                let at = self.kills.get(&place).map(|kill| kill.heard_at);
                if at.is_none_or(|at| facts.clock.reached(at + UNKNOWN_FOR)) {
                    self.kills.remove(&place);
                }
                continue;
            };
            self.ask_runtime(&place, &pod, facts, out);
            let Some(kill) = self.kills.get_mut(&place) else { continue };
            if kill.waits_until().is_some_and(|until| !facts.clock.reached(until)) {
                continue;
            }
            kill.decided = true;
            // Where it is unknown whether the container lives, a condition might be untrue. Where
            // the container did its work all the same, it would be.
            if kill.what.container_lives == Some(false) && !kill.exited_well {
                let cause = self.cause(&place, &pod, facts);
                self.want_condition(&pod, cause, facts);
            }
        }
    }

    fn ask_runtime(&mut self, place: &Place, pod: &PodView, facts: &Facts, out: &mut Out) {
        let Some(kill) = self.kills.get_mut(place) else { return };
        kill.name_by(pod);
        let due = kill.asks_at().is_some_and(|at| facts.clock.reached(at));
        if facts.settings.runtime && due && out.calls.has_room_to_inspect() {
            kill.inspect = Inspect::Asked;
            out.calls.ask_runtime(Part::Oom, Verb::Inspect, PodRef::of(pod));
        }
    }

    /// Applies the runtime's response to all waiting kills of the pod.
    fn was_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
    ) {
        let ends = |pod: &PodView| pod.is_to_end() || pod.is_disrupted();
        let ends = facts.pods.get(uid).is_some_and(ends);
        for ((pod, _), kill) in &mut self.kills {
            if pod == uid && kill.inspect == Inspect::Asked {
                kill.inspected(result.as_ref().ok(), ends, facts.clock.monotonic());
            }
        }
    }

    fn cause(&self, place: &Place, pod: &PodView, facts: &Facts) -> OomCondition {
        let kill = self.kills.get(place).expect("a kill that is decided about must be known");
        let reason = words::reason(kill, pod);
        let text = || words::disruption(kill.container.as_deref(), place.1.as_deref());
        // A guess is no reason to call it a disruption, which would be retried without end. Nor is
        // a container that may be a sidecar, without which the pod goes on.
        let by_node = kill.what.constraint == OomConstraint::Node;
        let known = kill.container.is_some() || pod.sidecars.is_empty();
        let disrupts = facts.settings.features.node_oom_disrupts && by_node && known;
        OomCondition {
            reason,
            message: words::message(kill, pod),
            disruption: disrupts.then(text),
            victim: kill.container.clone(),
            at: kill.wall,
        }
    }

    /// Reports the kills to which no other witness can add.
    fn report_kills(&mut self, facts: &Facts, out: &mut Out) {
        let settled: Vec<Place> = self
            .kills
            .iter()
            .filter(|(_, kill)| kill.decided && !kill.reported)
            .filter(|(_, kill)| facts.clock.reached(kill.heard_at + SAME_KILL))
            .map(|(place, _)| place.clone())
            .collect();
        for place in settled {
            self.report_kill(&place, facts, out);
        }
        self.report_children(facts, out);
        let now = facts.clock.monotonic();
        self.kills.retain(|_, kill| !kill.reported || now < kill.heard_at + REMEMBERED_FOR);
        self.children.retain(|_, children| {
            let quiet = children.reported_at.is_some_and(|at| now >= at + CHILDREN_REPORTED_EVERY);
            children.unreported > 0 || !quiet
        });
    }

    fn report_kill(&mut self, place: &Place, facts: &Facts, out: &mut Out) {
        let Some(kill) = self.kills.get_mut(place).filter(|kill| !kill.reported) else {
            return;
        };
        kill.reported = true;
        let tally = self.counted.oom_kills.entry(kill.what.constraint).or_default();
        match kill.what.container_lives {
            Some(false) if !kill.exited_well => tally.ended += 1,
            Some(_) => tally.lived_on += 1,
            None => tally.unknown += 1,
        }
        let Some(pod) = facts.pods.get(&place.0) else { return };
        kill.name_by(pod);
        let message = words::message(kill, pod);
        let pod = PodRef::of(pod);
        match kill.what.container_lives {
            Some(true) => {
                let children = self.children.entry(place.clone()).or_default();
                children.unreported += 1;
                children.message = message;
            }
            Some(false) if kill.exited_well => {
                let text = format!("{message} The container then exited with 0.");
                out.warn_of_pod(pod, CHILD_OOM_KILLED, &text);
            }
            Some(false) => out.warn_of_pod(pod, OOM_KILLED, &message),
            None => {
                let text = format!("{message} It is not known whether that ended the container.");
                out.warn_of_pod(pod, OOM_KILLED, &text);
            }
        }
    }

    fn report_children(&mut self, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        for ((uid, _), children) in &mut self.children {
            let next = children.reported_at.map(|at| at + CHILDREN_REPORTED_EVERY);
            if children.unreported == 0 || next.is_some_and(|next| !facts.clock.reached(next)) {
                continue;
            }
            let count = std::mem::take(&mut children.unreported);
            children.reported_at = Some(now);
            let Some(pod) = facts.pods.get(uid) else { continue };
            let lives = "The container still runs.";
            let message = match count {
                1 => format!("{} {lives}", children.message),
                _ => format!("{} {lives} It was the last of {count}.", children.message),
            };
            out.warn_of_pod(PodRef::of(pod), CHILD_OOM_KILLED, &message);
        }
    }

    fn decide_oomd(&mut self, facts: &Facts, out: &mut Out) {
        for (kill, at) in std::mem::take(&mut self.oomd) {
            let pod = kill.pod.as_ref().and_then(|uid| facts.pods.get(uid)).cloned();
            let Some(pod) = pod else {
                if !facts.clock.reached(at + UNKNOWN_FOR) {
                    self.oomd.push((kill, at));
                }
                continue;
            };
            let ids = pod.details.container_ids.iter();
            let named = ids.clone().find(|(_, id)| Some(id) == kill.container_id.as_ref());
            let name = named.map(|(name, _)| name.as_str());
            let message = words::by_oomd(&kill, name);
            let known = name.is_some() || kill.container_id.is_none() || pod.sidecars.is_empty();
            let disrupts = facts.settings.features.node_oom_disrupts && known;
            let cause = OomCondition {
                reason: NODE_OUT_OF_MEMORY,
                message: message.clone(),
                disruption: disrupts.then(|| message.clone()),
                victim: name.map(ToOwned::to_owned),
                at: facts.clock.now().wall,
            };
            self.counted.oomd_kills += 1;
            self.want_condition(&pod, cause, facts);
            out.warn_of_pod(PodRef::of(&pod), OOMD_KILLED, &message);
        }
    }
}
