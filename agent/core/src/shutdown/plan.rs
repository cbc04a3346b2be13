//! Plans the kills: each priority group's share of the remaining time, and each pod's grace within
//! that share. ([SD13], [SD14], [AP12])

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::priority_groups::{PriorityGroup, PriorityGroups};
use crate::pod::{PodUid, PodView};

/// With a smaller share a priority group cannot terminate before the next begins. All groups then
/// terminate together. ([AP12])
const SHARE_MIN: Duration = Duration::from_secs(1);
/// Zero would remove the pod from the API while it runs. ([API8], [SD14])
const GRACE_SECONDS_MIN: u32 = 1;

/// Pods that terminate together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Priority of the group; the lowest one if several groups are merged.
    pub priority: i32,
    /// How long the stage may take.
    pub share_ms: u64,
    /// Its pods.
    pub stops: Vec<Stop>,
}

/// Termination of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// The pod.
    pub uid: PodUid,
    /// Time between SIGTERM and SIGKILL.
    pub grace_seconds: u32,
}

/// Whether every priority group gets its whole period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Fit {
    /// Every group gets its whole period.
    Whole,
    /// All groups get less, in proportion.
    Scaled,
    /// The time is so short that all groups terminate together.
    Together,
}

/// Which pods are killed when, within the remaining time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TerminationPlan {
    /// Whether the time suffices.
    pub fit: Fit,
    /// Stages in their order; each has at least one pod.
    pub stages: Vec<Stage>,
}

impl TerminationPlan {
    /// Plans the terminations within `left`. A caller may plan again, for the remaining priority
    /// groups.
    ///
    /// Only priority groups with pods share the time ([SD13]), weighted by their periods. No group
    /// gets more than its period: a larger delay is no reason to wait longer.
    ///
    /// DIVERGES(upstream): priority groups that do not fit into the delay share it. Upstream does
    /// not start its graceful shutdown then, and pods stop without one. ([SD5])
    pub fn new(priority_groups: &PriorityGroups, pods: &[&PodView], left: Duration) -> Self {
        let mut occupied = priority_groups.assign(pods);
        occupied.retain(|(_, pods)| !pods.is_empty());
        let wanted: Duration = occupied.iter().map(|(group, _)| period(*group)).sum();
        if wanted <= left {
            return Self { fit: Fit::Whole, stages: staged(occupied, period) };
        }
        let share = |group: PriorityGroup| scaled(period(group), left, wanted);
        let too_short =
            |group: PriorityGroup| period(group) >= SHARE_MIN && share(group) < SHARE_MIN;
        if occupied.len() > 1 && occupied.iter().any(|(group, _)| too_short(*group)) {
            return Self { fit: Fit::Together, stages: together(occupied, left) };
        }
        Self { fit: Fit::Scaled, stages: staged(occupied, share) }
    }
}

impl TerminationPlan {
    /// By when the containers of each pod end at the latest, if the first stage begins `from`.
    pub fn ends(self, from: Duration) -> BTreeMap<PodUid, Duration> {
        let mut ends = BTreeMap::new();
        let mut begins = from;
        for stage in self.stages {
            for Stop { uid, grace_seconds } in stage.stops {
                ends.insert(uid, begins.saturating_add(Duration::from_secs(grace_seconds.into())));
            }
            begins = begins.saturating_add(Duration::from_millis(stage.share_ms));
        }
        ends
    }
}

fn period(group: PriorityGroup) -> Duration {
    Duration::from_secs(group.period_seconds)
}

/// `period · left / wanted`, where `wanted` is not zero.
fn scaled(period: Duration, left: Duration, wanted: Duration) -> Duration {
    let millis = period.as_millis() * left.as_millis() / wanted.as_millis();
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn staged(
    occupied: Vec<(PriorityGroup, Vec<&PodView>)>,
    share: impl Fn(PriorityGroup) -> Duration,
) -> Vec<Stage> {
    let stage =
        |(group, pods): (PriorityGroup, Vec<&PodView>)| stage(group.priority, &pods, share(group));
    occupied.into_iter().map(stage).collect()
}

fn together(occupied: Vec<(PriorityGroup, Vec<&PodView>)>, left: Duration) -> Vec<Stage> {
    let lowest = occupied.first().map_or(0, |(group, _)| group.priority);
    let pods: Vec<_> = occupied.into_iter().flat_map(|(_, pods)| pods).collect();
    vec![stage(lowest, &pods, left)]
}

fn stage(priority: i32, pods: &[&PodView], share: Duration) -> Stage {
    let stop = |pod: &&PodView| Stop { uid: pod.uid.clone(), grace_seconds: grace(pod, share) };
    let share_ms = u64::try_from(share.as_millis()).unwrap_or(u64::MAX);
    Stage { priority, share_ms, stops: pods.iter().map(stop).collect() }
}

/// The minimum of the share, the pod's own grace and the grace of its deletion. A grace only
/// becomes shorter, never longer. ([SD14])
fn grace(pod: &PodView, share: Duration) -> u32 {
    let share_seconds = u32::try_from(share.as_secs()).unwrap_or(u32::MAX);
    [pod.grace_seconds, pod.deletion_grace_seconds]
        .into_iter()
        .flatten()
        .fold(share_seconds, u32::min)
        .max(GRACE_SECONDS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::shutdown::priority_groups::PriorityGroupFlags;

    fn priority_groups(list: &str) -> PriorityGroups {
        let flags =
            PriorityGroupFlags { by_priority: Some(list.into()), ..PriorityGroupFlags::default() };
        flags.priority_groups().expect("must be priority groups").expect("must be on")
    }

    /// `fit: priority@share_ms[name=grace …] …`
    fn printed(plan: &TerminationPlan) -> String {
        let stages = plan.stages.iter().map(|stage| {
            let stops = stage.stops.iter().map(|stop| {
                format!("{}={}", stop.uid.0.trim_start_matches("uid-"), stop.grace_seconds)
            });
            let stops: Vec<_> = stops.collect();
            format!(" {}@{}[{}]", stage.priority, stage.share_ms, stops.join(" "))
        });
        format!("{:?}:{}", plan.fit, stages.collect::<String>())
    }

    fn planned(list: &str, pods: &[PodView], left_ms: u64) -> String {
        let pods: Vec<_> = pods.iter().collect();
        printed(&TerminationPlan::new(
            &priority_groups(list),
            &pods,
            Duration::from_millis(left_ms),
        ))
    }

    const TWO: &str = "0=20,2000000000=10";

    #[test]
    fn a_pods_grace_is_the_least_of_its_own_and_its_priority_groups() {
        let table = [
            // The smaller of group period and own grace. ([SD14])
            (pod("a").grace(None), "Whole: 0@20000[a=20]"),
            (pod("a").grace(2), "Whole: 0@20000[a=2]"),
            (pod("a").grace(1_000), "Whole: 0@20000[a=20]"),
            (pod("a").grace(None).priority(2_000_000_000), "Whole: 2000000000@10000[a=10]"),
            // Never 0, and never more than the grace of the deletion. ([SD14], [API8])
            (pod("a").grace(0), "Whole: 0@20000[a=1]"),
            (pod("a").grace(600).deleting(600), "Whole: 0@20000[a=20]"),
            (pod("a").grace(600).deleting(5), "Whole: 0@20000[a=5]"),
            (pod("a").grace(600).deleting(0), "Whole: 0@20000[a=1]"),
        ];
        for (pod, expected) in table {
            assert_eq!(planned(TWO, &[pod], 30_000), expected);
        }
        // A group without time still gives 1 s. ([SD14])
        let critical = pod("a").priority(2_000_000_000);
        assert_eq!(planned("0=30,2000000000=0", &[critical], 30_000), "Whole: 2000000000@0[a=1]");
    }

    #[test]
    fn priority_groups_end_one_after_the_other_and_empty_ones_cost_nothing() {
        let pods = [pod("high").priority(9), pod("low").priority(-3), pod("mid").priority(4)];
        // Ascending, and empty groups take no time. ([SD13])
        let expected = "Whole: 0@30000[low=30] 4@30000[mid=30] 9@30000[high=30]";
        assert_eq!(planned("0=30,2=30,4=30,5=30,9=30", &pods, 90_000), expected);
        assert_eq!(planned(TWO, &[], 0), "Whole:");
    }

    #[test]
    fn less_time_than_configured_is_shared_by_weight() {
        let both = [pod("a").grace(60), pod("c").grace(60).priority(2_000_000_000)];
        let table = [
            // a larger delay changes nothing
            (90_000, "Whole: 0@20000[a=20] 2000000000@10000[c=10]"),
            (30_000, "Whole: 0@20000[a=20] 2000000000@10000[c=10]"),
            // Shared by weight. ([AP12])
            (15_000, "Scaled: 0@10000[a=10] 2000000000@5000[c=5]"),
            (3_000, "Scaled: 0@2000[a=2] 2000000000@1000[c=1]"),
            // A share below 1 s: all groups together. ([AP12])
            (2_999, "Together: 0@2999[a=2 c=2]"),
            (2_200, "Together: 0@2200[a=2 c=2]"),
            (500, "Together: 0@500[a=1 c=1]"),
            (0, "Together: 0@0[a=1 c=1]"),
        ];
        for (left_ms, expected) in table {
            assert_eq!(planned(TWO, &both, left_ms), expected, "{left_ms}");
        }
        // Only priority groups with pods share the time.
        assert_eq!(planned(TWO, &both[..1], 15_000), "Scaled: 0@15000[a=15]");
        assert_eq!(planned(TWO, &both[..1], 400), "Scaled: 0@400[a=1]");
        // A period of zero is the operator's choice and does not merge the groups.
        assert_eq!(
            planned("0=30,2000000000=0", &both, 15_000),
            "Scaled: 0@15000[a=15] 2000000000@0[c=1]"
        );
    }
}
