//! Foresees by when the containers of each pod end in a shutdown: its mark announces that.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::super::disruptions::Disruptions;
use super::super::endings::KnownEnding;
use super::super::facts::Facts;
use super::follow::takes;
use super::run::scope;
use super::{Shutdown, Shutdowns};
use crate::pod::{PodUid, PodView};
use crate::shutdown::Mode;
use crate::shutdown::budget::{Budget, Timetable};
use crate::shutdown::candidates::excluded;
use crate::shutdown::plan::TerminationPlan;
use crate::shutdown::priority_groups::PriorityGroups;
use crate::termination::clock::Clock;
use crate::termination::progress::{PodTermination, Terminator};

/// The ends, on CLOCK_MONOTONIC.
#[derive(Clone, Debug)]
pub(in super::super) struct PodEnds {
    /// The pods that the agent or the kubelet terminates, in their priority groups.
    planned: BTreeMap<PodUid, Duration>,
    /// The end of the machine, which ends all others.
    machine: Duration,
}

impl PodEnds {
    /// By when the containers of the pod end at the latest. A pod that is deleted has its own time.
    pub(super) fn of(&self, pod: &PodView, clock: &Clock) -> Timestamp {
        let at = clock.wall_at(self.at(&pod.uid));
        pod.details.deleted_at.map_or(at, |deleted_at| deleted_at.min(at))
    }

    /// The same on CLOCK_MONOTONIC, for a pod that is not deleted.
    pub(in super::super) fn at(&self, uid: &PodUid) -> Duration {
        self.planned.get(uid).map_or(self.machine, |planned| self.machine.min(*planned))
    }

    /// Plans these groups, as if each took its whole time. One that is over early lets the next
    /// one begin, so that its pods end earlier than foreseen.
    fn plan(
        groups: Option<&PriorityGroups>,
        pods: &[&PodView],
        (from, until): (Duration, Duration),
        machine: Duration,
    ) -> Self {
        let left = until.saturating_sub(from);
        let plan = groups.map(|groups| TerminationPlan::new(groups, pods, left));
        Self { planned: plan.map(|plan| plan.ends(from)).unwrap_or_default(), machine }
    }

    /// The ends in a shutdown that is to begin at the notice of an end.
    fn foreseen(ending: &KnownEnding, takes: Duration, facts: &Facts) -> Self {
        let begins = ending.at.saturating_sub(takes).max(facts.clock.monotonic());
        let granted = ending.at.saturating_sub(begins).min(facts.wanted_delay());
        let Timetable { pre_mark, kill, .. } = Budget::of(granted).timetable();
        let scope = scope(facts.detected_for(ending.source), facts);
        let ends = |pod: &&PodView| !pod.is_terminal() && excluded(pod, &scope).is_none();
        let pods: Vec<&PodView> = facts.pods.iter().filter(ends).collect();
        let times = (begins.saturating_add(pre_mark), begins.saturating_add(kill));
        Self::plan(facts.priority_groups(), &pods, times, ending.at)
    }
}

impl Shutdowns {
    /// By when the containers of each pod end, if an end of the machine is certain.
    pub(in super::super) fn pod_ends(
        &self,
        facts: &Facts,
        disruptions: &Disruptions,
    ) -> Option<PodEnds> {
        if let Some(shutdown) = &self.current {
            return (!shutdown.is_released()).then(|| shutdown.pod_ends(facts, disruptions));
        }
        let ending = facts.endings.earliest_planned()?;
        Some(PodEnds::foreseen(ending, takes(facts), facts))
    }
}

impl Shutdown {
    /// By when the containers of each pod end in this shutdown.
    pub(super) fn pod_ends(&self, facts: &Facts, disruptions: &Disruptions) -> PodEnds {
        let assists = self.mode.found.mode == Mode::Assist;
        let groups = if assists { facts.kubelet.groups.as_ref() } else { facts.priority_groups() };
        let ends = |it: &&PodTermination| it.end.by != Terminator::None && !it.is_reported();
        let pods = disruptions.covered().filter(ends);
        let pods: Vec<&PodView> = pods.filter_map(|it| facts.pods.get(&it.pod.uid)).collect();
        let at = |elapsed| self.window.at(elapsed);
        let (ends, machine) = (&self.window.ends, at(self.window.granted));
        let times = if assists {
            (at(Duration::ZERO), machine)
        } else {
            (at(ends.pre_mark).max(facts.clock.monotonic()), at(ends.kill))
        };
        PodEnds::plan(groups, &pods, times, machine)
    }
}
