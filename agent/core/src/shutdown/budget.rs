//! Divides the delay that logind grants among the steps of a shutdown, reports before priority
//! groups. Also computes the wanted delay. ([AP11], [AP15])

use std::time::Duration;

use serde::Serialize;

use super::priority_groups::PriorityGroups;
use crate::time_span::TimeSpan;

/// Time for the reports beyond the kubelet's or our own periods. ([AP15])
pub const FLUSH_MARGIN: Duration = Duration::from_secs(10);
/// Assumed delay while logind has not reported it: systemd's default. ([AP11])
pub const GRANTED_DEFAULT: Duration = Duration::from_secs(5);

const INTENT_MAX: Duration = Duration::from_millis(150);
const PRE_MARK_MAX: Duration = Duration::from_secs(2);
const FLUSH_MIN: Duration = Duration::from_millis(1_400);
const FLUSH_MAX: Duration = Duration::from_secs(10);
const MARGIN_MIN: Duration = Duration::from_millis(250);
const MARGIN_MAX: Duration = Duration::from_secs(1);
/// Prevents overflow of a sum if logind grants an infinite delay.
const GRANTED_MAX: Duration = Duration::from_hours(168);

/// Duration of each step of a shutdown. The sum is the delay that logind granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// P0: writes the intent to the journal.
    pub intent: Duration,
    /// P1: sets `DisruptionTarget` on the pre-mark set.
    pub pre_mark: Duration,
    /// P2: terminates the priority groups.
    pub kill: Duration,
    /// P3 and P4: waits until every report is acknowledged.
    pub flush: Duration,
    /// P4, the end of `flush`: writes in place of missing reports.
    pub last_writes: Duration,
    /// Reserve before logind's own timer.
    pub margin: Duration,
}

/// End of each step, counted from the receipt of the signal on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timetable {
    /// P0 ends.
    pub intent: Duration,
    /// P1 ends.
    pub pre_mark: Duration,
    /// P2 ends.
    pub kill: Duration,
    /// P4 begins.
    pub last_writes: Duration,
    /// The only deadline: P4 ends and the agent releases the lock.
    pub end: Duration,
}

/// A step of a shutdown. ([AP11])
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Step {
    /// P0.
    Intent,
    /// P1.
    PreMark,
    /// P2.
    Kill,
    /// P3.
    Flush,
    /// P4.
    LastWrites,
    /// P5.
    Release,
}

impl Budget {
    /// Divides the delay that logind grants.
    ///
    /// A short delay reduces the priority groups' step first, then the reports' reserve. The mark
    /// reports a pod that the system stops; nothing else reports it.
    pub fn of(granted: Duration) -> Self {
        let granted = granted.min(GRANTED_MAX);
        let mut left = granted;
        let mut take = |wanted: Duration| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        let margin = take((granted / 20).clamp(MARGIN_MIN, MARGIN_MAX));
        let intent = take(INTENT_MAX);
        let pre_mark = take((granted / 5).min(PRE_MARK_MAX));
        let flush = take((granted * 3 / 20).clamp(FLUSH_MIN, FLUSH_MAX));
        Self { intent, pre_mark, kill: left, flush, last_writes: flush / 5, margin }
    }

    /// Computes the end of each step.
    pub fn timetable(&self) -> Timetable {
        let pre_mark = self.intent + self.pre_mark;
        let kill = pre_mark + self.kill;
        let end = kill + self.flush;
        let last_writes = end.saturating_sub(self.last_writes);
        Timetable { intent: self.intent, pre_mark, kill, last_writes, end }
    }
}

/// The delay in whole seconds that gives every priority group its period and the reports their
/// reserve.
///
/// From a sum of 36 s on, the steps around the priority groups take more than the flush margin. So
/// the function also tests the budget itself. ([AP15])
pub fn wanted_delay(
    priority_groups: Option<&PriorityGroups>,
    kubelet_period: Option<Duration>,
) -> Duration {
    let kubelet =
        kubelet_period.map_or(Duration::ZERO, |period| period.saturating_add(FLUSH_MARGIN));
    let Some(priority_groups) = priority_groups else { return kubelet };
    let period = priority_groups.period();
    enough_for(period).max(period + FLUSH_MARGIN).max(kubelet)
}

/// The smallest delay in whole seconds that leaves the priority groups this period. A longer delay
/// never leaves them less, so the range can be halved; each decision of the agent asks.
fn enough_for(period: Duration) -> Duration {
    let overhead_max = (INTENT_MAX + PRE_MARK_MAX + FLUSH_MAX + MARGIN_MAX).as_secs() + 1;
    let (mut least, mut enough) = (period.as_secs(), period.as_secs() + overhead_max);
    while least < enough {
        let between = least.midpoint(enough);
        if Budget::of(Duration::from_secs(between)).kill >= period {
            enough = between;
        } else {
            least = between + 1;
        }
    }
    Duration::from_secs(enough)
}

/// Maximum time that Assist holds its lock: the kubelet's sum of periods plus the flush margin.
/// Other lock holders wait too. ([AP13])
pub fn assist_hold_max(kubelet_period: Duration, granted: TimeSpan) -> Duration {
    kubelet_period.saturating_add(FLUSH_MARGIN).min(Budget::of(granted.duration()).timetable().end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::priority_groups::PriorityGroupFlags;

    fn millis(duration: Duration) -> u128 {
        duration.as_millis()
    }

    fn priority_groups(list: &str) -> PriorityGroups {
        let flags =
            PriorityGroupFlags { by_priority: Some(list.into()), ..PriorityGroupFlags::default() };
        flags.priority_groups().expect("must be priority groups").expect("must be on")
    }

    #[test]
    fn enough_is_the_smallest_delay_that_leaves_the_period() {
        let leaves = |seconds, period| Budget::of(Duration::from_secs(seconds)).kill >= period;
        for millis in (0..200_000).step_by(250) {
            let period = Duration::from_millis(millis);
            let enough = enough_for(period).as_secs();
            assert!(leaves(enough, period), "{period:?}");
            assert!(enough == 0 || !leaves(enough - 1, period), "{period:?}");
        }
    }

    #[test]
    fn the_delay_is_cut_into_steps_with_the_reserve_kept() {
        // granted, then intent, pre-mark, kill, flush, last writes, margin in ms
        let table: [(u64, [u128; 6]); 8] = [
            // 5 s, systemd's default, and more. ([AP11])
            (5_000, [150, 1_000, 2_200, 1_400, 280, 250]),
            (30_000, [150, 2_000, 22_350, 4_500, 900, 1_000]),
            (40_000, [150, 2_000, 30_850, 6_000, 1_200, 1_000]),
            (600_000, [150, 2_000, 586_850, 10_000, 2_000, 1_000]),
            // Less than the steps need: killing gives way first. ([AP11])
            (2_000, [150, 400, 0, 1_200, 240, 250]),
            (1_000, [150, 200, 0, 400, 80, 250]),
            (100, [0, 0, 0, 0, 0, 100]),
            (0, [0, 0, 0, 0, 0, 0]),
        ];
        for (granted, expected) in table {
            let budget = Budget::of(Duration::from_millis(granted));
            let Budget { intent, pre_mark, kill, flush, last_writes, margin } = budget;
            let got = [intent, pre_mark, kill, flush, last_writes, margin].map(millis);
            assert_eq!(got, expected, "{granted}");
        }
    }

    #[test]
    fn the_steps_together_are_what_is_granted() {
        for granted in (0..120_000).step_by(77).map(Duration::from_millis) {
            let budget = Budget::of(granted);
            let timetable = budget.timetable();
            assert_eq!(timetable.end + budget.margin, granted);
            assert!(timetable.last_writes >= timetable.kill);
        }
        let endless = Budget::of(TimeSpan::INFINITY.duration());
        assert_eq!(endless.flush, FLUSH_MAX);
    }

    #[test]
    fn the_wanted_delay_is_enough_for_its_own_priority_groups() {
        // The larger of the kubelet's sum and ours, and what the steps need. ([AP15])
        let table = [
            ("0=20,2000000000=10", None, 40),
            ("0=20,2000000000=10", Some(120), 130),
            ("0=1", None, 11),
            ("0=35", None, 45),
            ("0=36", None, 47),
            ("0=60", None, 74),
            ("0=300,2000000000=60", None, 374),
        ];
        for (list, kubelet, expected) in table {
            let wanted =
                wanted_delay(Some(&priority_groups(list)), kubelet.map(Duration::from_secs));
            assert_eq!(wanted.as_secs(), expected, "{list}");
        }
        for seconds in 1..700 {
            let priority_groups = priority_groups(&format!("0={seconds}"));
            let budget = Budget::of(wanted_delay(Some(&priority_groups), None));
            assert!(budget.kill >= priority_groups.period(), "{seconds}");
        }
        assert_eq!(wanted_delay(None, None), Duration::ZERO);
        assert_eq!(wanted_delay(None, Some(Duration::MAX)), Duration::MAX);
    }

    #[test]
    fn assist_holds_no_longer_than_it_needs() {
        // The kubelet's sum plus 10 s, within what is granted. ([AP13])
        let hold = |period, granted| {
            assist_hold_max(Duration::from_secs(period), TimeSpan::from_secs(granted)).as_secs()
        };
        assert_eq!(hold(30, 600), 40);
        assert_eq!(hold(30, 35), 34);
        assert_eq!(hold(u64::MAX, 35), 34);
    }
}
