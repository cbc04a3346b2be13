//! Parses priority groups, validated as in the kubelet: which pods terminate together, and how long
//! each group may take. ([SD1], [SD2], [SD12])

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::pod::PodView;
use crate::time_span::TimeSpan;

/// Pods of at least this priority are critical: `system-cluster-critical`.
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// With more priority groups, each would get less than a second of any realistic delay.
const PRIORITY_GROUPS_MAX: usize = 100;
/// A day; logind's own delay is minutes.
const PERIOD_SECONDS_MAX: u64 = 86_400;

/// The pods from this priority up to the next group's, and their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PriorityGroup {
    /// The group's lowest priority; the lowest group also takes all pods below it.
    pub priority: i32,
    /// How long the group may take.
    pub period_seconds: u64,
}

impl PriorityGroup {
    /// One group of all pods; none without any time.
    pub fn of_all(period: Duration) -> Vec<Self> {
        let period_seconds = period.as_secs();
        (period_seconds > 0).then_some(Self { priority: 0, period_seconds }).into_iter().collect()
    }
}

/// At least one priority group, by ascending priority, each priority once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct PriorityGroups(Vec<PriorityGroup>);

/// The priority group flags, as given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityGroupFlags {
    /// `--shutdown-grace-period`: the time of all pods together.
    pub total: Option<TimeSpan>,
    /// `--shutdown-grace-period-critical-pods`: the part of the total for critical pods.
    pub critical: Option<TimeSpan>,
    /// `--shutdown-grace-period-by-pod-priority`: `priority=seconds,…`.
    pub by_priority: Option<String>,
}

/// Why the flags do not define valid priority groups.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PriorityGroupsError {
    /// A period is above zero and below a second.
    #[error("--{flag}={value} is shorter than a second; give 0 or at least 1s")]
    BelowSecond {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: TimeSpan,
    },
    /// A period is longer than any shutdown.
    #[error("--{flag}={value} is too long; give at most 86400s")]
    TooLong {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: TimeSpan,
    },
    /// The part for critical pods exceeds the total.
    #[error(
        "--shutdown-grace-period-critical-pods={critical} is a part of \
         --shutdown-grace-period={total} and must not be longer; lower the first or raise the \
         second"
    )]
    CriticalAboveTotal {
        /// The part for critical pods.
        critical: TimeSpan,
        /// The total.
        total: TimeSpan,
    },
    /// Both the list and a duration are given.
    #[error(
        "--shutdown-grace-period-by-pod-priority takes the place of --shutdown-grace-period and \
         --shutdown-grace-period-critical-pods; give either the list or the durations"
    )]
    ListAndDurations,
    /// An entry of the list has invalid syntax.
    #[error(
        "invalid --shutdown-grace-period-by-pod-priority {0:?}: expected priority=seconds, \
         separated by commas, such as 0=20,2000000000=10"
    )]
    Entry(String),
    /// A priority appears twice.
    #[error(
        "invalid --shutdown-grace-period-by-pod-priority: expected each priority once, got {0} \
         twice"
    )]
    Twice(i32),
    /// The list is too long.
    #[error("--shutdown-grace-period-by-pod-priority has {0} entries; give at most 100")]
    TooMany(usize),
    /// No entry of the list has any time.
    #[error(
        "--shutdown-grace-period-by-pod-priority gives no priority group any time; give one at \
         least 1 second, or --shutdown-grace-period=0 to terminate no pods"
    )]
    NoTime,
}

impl PriorityGroupFlags {
    /// Default total and critical period: the values of Kubernetes' own examples.
    pub const DEFAULT: (TimeSpan, TimeSpan) = (TimeSpan::from_secs(30), TimeSpan::from_secs(10));

    /// Whether the operator has set one of them.
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// The priority groups; `None` for a total of zero, which disables termination. ([SD1], [SD2])
    pub fn priority_groups(&self) -> Result<Option<PriorityGroups>, PriorityGroupsError> {
        if let Some(list) = &self.by_priority {
            if self.total.is_some() || self.critical.is_some() {
                return Err(PriorityGroupsError::ListAndDurations);
            }
            return parse_list(list).map(Some);
        }
        let (total, critical) = match (self.total, self.critical) {
            (None, None) => Self::DEFAULT,
            (total, critical) => {
                (total.unwrap_or(Self::DEFAULT.0), critical.unwrap_or(TimeSpan::from_secs(0)))
            }
        };
        derive(total, critical)
    }
}

fn derive(
    total: TimeSpan,
    critical: TimeSpan,
) -> Result<Option<PriorityGroups>, PriorityGroupsError> {
    check("shutdown-grace-period", total)?;
    check("shutdown-grace-period-critical-pods", critical)?;
    if critical > total {
        return Err(PriorityGroupsError::CriticalAboveTotal { critical, total });
    }
    if total.duration().is_zero() {
        return Ok(None);
    }
    // Upstream truncates the difference, not its parts.
    let regular = total.duration().saturating_sub(critical.duration()).as_secs();
    Ok(Some(PriorityGroups(vec![
        PriorityGroup { priority: 0, period_seconds: regular },
        PriorityGroup {
            priority: CRITICAL_PRIORITY,
            period_seconds: critical.duration().as_secs(),
        },
    ])))
}

fn check(flag: &'static str, value: TimeSpan) -> Result<(), PriorityGroupsError> {
    let duration = value.duration();
    if !duration.is_zero() && duration < Duration::from_secs(1) {
        return Err(PriorityGroupsError::BelowSecond { flag, value });
    }
    if duration > Duration::from_secs(PERIOD_SECONDS_MAX) {
        return Err(PriorityGroupsError::TooLong { flag, value });
    }
    Ok(())
}

/// The kubelet accepts a duplicate priority and a negative period. Both are mistakes, so they are
/// errors here.
fn parse_list(list: &str) -> Result<PriorityGroups, PriorityGroupsError> {
    let mut priority_groups = list.split(',').map(parse_entry).collect::<Result<Vec<_>, _>>()?;
    if priority_groups.len() > PRIORITY_GROUPS_MAX {
        return Err(PriorityGroupsError::TooMany(priority_groups.len()));
    }
    priority_groups.sort_by_key(|group| group.priority);
    if let Some(pair) = priority_groups.windows(2).find(|pair| pair[0].priority == pair[1].priority)
    {
        return Err(PriorityGroupsError::Twice(pair[0].priority));
    }
    if priority_groups.iter().all(|group| group.period_seconds == 0) {
        return Err(PriorityGroupsError::NoTime);
    }
    Ok(PriorityGroups(priority_groups))
}

fn parse_entry(entry: &str) -> Result<PriorityGroup, PriorityGroupsError> {
    let bad = || PriorityGroupsError::Entry(entry.trim().to_owned());
    let (priority, seconds) = entry.split_once('=').ok_or_else(bad)?;
    let priority = priority.trim().parse().map_err(|_| bad())?;
    let period_seconds: u64 = seconds.trim().parse().map_err(|_| bad())?;
    if period_seconds > PERIOD_SECONDS_MAX {
        return Err(PriorityGroupsError::TooLong {
            flag: "shutdown-grace-period-by-pod-priority",
            value: TimeSpan::from_secs(period_seconds),
        });
    }
    Ok(PriorityGroup { priority, period_seconds })
}

impl PriorityGroups {
    /// The groups of a kubelet, which takes what the flags refuse: of two with the same priority,
    /// the longer one counts. `None` if they give no time, or are more than the flags may give.
    pub fn of_kubelet(groups: &[PriorityGroup]) -> Option<Self> {
        if groups.len() > PRIORITY_GROUPS_MAX {
            return None;
        }
        let mut by_priority = BTreeMap::<i32, u64>::new();
        for group in groups {
            let period = by_priority.entry(group.priority).or_default();
            *period = group.period_seconds.min(PERIOD_SECONDS_MAX).max(*period);
        }
        let groups = by_priority.into_iter();
        let groups =
            groups.map(|(priority, period_seconds)| PriorityGroup { priority, period_seconds });
        let groups = Self(groups.collect());
        (!groups.period().is_zero()).then_some(groups)
    }

    /// The priority groups, by ascending priority, which is the order of termination.
    pub fn as_slice(&self) -> &[PriorityGroup] {
        &self.0
    }

    /// Sum of all priority groups' periods. ([SD3])
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.0.iter().map(|group| group.period_seconds).sum())
    }

    /// Position of the group for a priority: the highest group not above it, else the lowest.
    /// ([SD12])
    pub fn position(&self, priority: i32) -> usize {
        self.0.iter().rposition(|group| group.priority <= priority).unwrap_or(0)
    }

    /// The pods of each priority group, in the order of the groups; a group may be empty.
    pub fn assign<'a>(&self, pods: &[&'a PodView]) -> Vec<(PriorityGroup, Vec<&'a PodView>)> {
        let mut assigned: Vec<_> = self.0.iter().map(|group| (*group, Vec::new())).collect();
        for pod in pods {
            assigned[self.position(pod.priority)].1.push(*pod);
        }
        assigned
    }
}

impl fmt::Display for PriorityGroups {
    /// Prints the form of the list: `0=20,2000000000=10`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, group) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(formatter, "{comma}{}={}", group.priority, group.period_seconds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    fn durations(
        total: &str,
        critical: &str,
    ) -> Result<Option<PriorityGroups>, PriorityGroupsError> {
        let span = |text: &str| Some(text.parse().expect("must be a span"));
        PriorityGroupFlags { total: span(total), critical: span(critical), by_priority: None }
            .priority_groups()
    }

    pub(crate) fn list(text: &str) -> Result<Option<PriorityGroups>, PriorityGroupsError> {
        PriorityGroupFlags { by_priority: Some(text.into()), ..PriorityGroupFlags::default() }
            .priority_groups()
    }

    fn printed(priority_groups: Option<&PriorityGroups>) -> String {
        priority_groups.map_or_else(|| "none".into(), ToString::to_string)
    }

    #[test]
    fn two_durations_make_two_priority_groups() {
        let table = [
            // Total minus critical, and critical. ([SD2])
            ("300s", "120s", "0=180,2000000000=120"),
            ("100", "0", "0=100,2000000000=0"),
            ("0", "0", "none"),
            // The figures of upstream's own tests. ([SD2])
            ("30s", "10s", "0=20,2000000000=10"),
            ("30s", "0", "0=30,2000000000=0"),
            ("5s", "5s", "0=0,2000000000=5"),
            // Whole seconds, truncated. ([SD2])
            ("1500ms", "0", "0=1,2000000000=0"),
            ("3s", "1100ms", "0=1,2000000000=1"),
        ];
        for (total, critical, expected) in table {
            let priority_groups = durations(total, critical).expect("must be priority groups");
            assert_eq!(printed(priority_groups.as_ref()), expected, "{total} {critical}");
        }
    }

    #[test]
    fn the_kubelet_s_groups_are_taken_as_it_has_them() {
        let of = |groups: &[(i32, u64)]| {
            let groups = groups.iter();
            let groups = groups.map(|(priority, period_seconds)| PriorityGroup {
                priority: *priority,
                period_seconds: *period_seconds,
            });
            let groups: Vec<_> = groups.collect();
            printed(PriorityGroups::of_kubelet(&groups).as_ref())
        };
        assert_eq!(of(&[(2_000_000_000, 60), (0, 840)]), "0=840,2000000000=60");
        assert_eq!(of(&[(0, 5), (7, 0), (0, 9), (0, 1)]), "0=9,7=0");
        assert_eq!(of(&[(0, u64::MAX)]), "0=86400");
        for none in [&[][..], &[(0, 0), (5, 0)], &[(1, 1); 101]] {
            assert_eq!(of(none), "none");
        }
        assert_eq!(PriorityGroup::of_all(Duration::ZERO), []);
        assert_eq!(PriorityGroup::of_all(Duration::from_secs(7))[0].period_seconds, 7);
    }

    #[test]
    fn a_missing_flag_has_a_default() {
        let priority_groups =
            PriorityGroupFlags::default().priority_groups().expect("must be priority groups");
        assert_eq!(printed(priority_groups.as_ref()), "0=20,2000000000=10");
        let total = PriorityGroupFlags {
            total: Some(TimeSpan::from_secs(60)),
            ..PriorityGroupFlags::default()
        };
        assert_eq!(
            printed(total.priority_groups().expect("must be priority groups").as_ref()),
            "0=60,2000000000=0"
        );
        let critical = PriorityGroupFlags {
            critical: Some(TimeSpan::from_secs(5)),
            ..PriorityGroupFlags::default()
        };
        let priority_groups = critical.priority_groups().expect("must be priority groups");
        assert_eq!(printed(priority_groups.as_ref()), "0=25,2000000000=5");
    }

    #[test]
    fn a_list_is_sorted_by_priority() {
        for (text, expected) in [
            ("0=20,2000000000=10", "0=20,2000000000=10"),
            (" 100000=10 , 10000 = 180,0=60 ", "0=60,10000=180,100000=10"),
            ("-5=1,0=0", "-5=1,0=0"),
            ("0=1", "0=1"),
        ] {
            let priority_groups = list(text).expect("must be priority groups");
            assert_eq!(printed(priority_groups.as_ref()), expected, "{text}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_flag_and_remedy() {
        let mut both =
            PriorityGroupFlags { by_priority: Some("0=1".into()), ..PriorityGroupFlags::default() };
        both.total = Some(TimeSpan::from_secs(0));
        let table = [
            // 0 or at least 1 s; critical at most total; no list with durations. ([SD1])
            (durations("500ms", "0"), "--shutdown-grace-period=0.5s is shorter than a second"),
            (durations("2s", "1ms"), "-critical-pods=0.001s is shorter"),
            (durations("1", "100"), "lower the first or raise the second"),
            (durations("infinity", "0"), "--shutdown-grace-period=infinity is too long"),
            (both.priority_groups(), "give either the list or the durations"),
            (list(""), "-by-pod-priority \"\": expected"),
            (list("0"), "such as 0=20,2000000000=10"),
            (list("0=20s"), "-by-pod-priority \"0=20s\""),
            (list("0=-1"), "-by-pod-priority \"0=-1\""),
            (list("0=1,"), "-by-pod-priority \"\": expected"),
            (list("3000000000=1"), "invalid --shutdown-grace-period-by-pod-priority"),
            (list("0=86401"), "give at most 86400s"),
            (list("1=2,0=1,1=3"), "got 1 twice"),
            (list("0=0,5=0"), "gives no priority group any time"),
            (list(&vec!["0=1"; 101].join(",")), "has 101 entries"),
        ];
        for (result, expected) in table {
            let error = result.expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("--shutdown-grace-period"), "{error}");
        }
    }

    #[test]
    fn a_pod_belongs_to_the_highest_priority_group_not_above_it() {
        // The highest group not above the priority, else the lowest. ([SD12])
        let four = list("1=1,2=1,3=1,4=1").expect("must be priority groups").expect("must be on");
        for (priority, position) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (i32::MIN, 0), (i32::MAX, 3)]
        {
            assert_eq!(four.position(priority), position, "{priority}");
        }
        let two = durations("30", "10").expect("must be priority groups").expect("must be on");
        for (priority, position) in
            [(-10, 0), (0, 0), (1_000_000_000, 0), (1_999_999_999, 0), (2_000_000_000, 1)]
        {
            assert_eq!(two.position(priority), position, "{priority}");
        }
        let pods = [pod("a").priority(2_000_001_000), pod("b"), pod("c").priority(5)];
        let assigned = two.assign(&pods.iter().collect::<Vec<_>>());
        let names: Vec<Vec<&str>> = assigned
            .iter()
            .map(|(_, pods)| pods.iter().map(|pod| pod.name.as_str()).collect())
            .collect();
        assert_eq!(names, [vec!["b", "c"], vec!["a"]]);
        assert_eq!(two.period(), Duration::from_secs(30));
    }
}
