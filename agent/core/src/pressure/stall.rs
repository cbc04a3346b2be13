//! Detects a shortage of memory from the stalls of pods (PSI), long before a threshold is crossed.
//! Also finds pods that stall at their own limits.
//!
//! The kernel counts a stall for every cgroup above the one that stalls. A pod that thrashes within
//! its own limit therefore makes the node seem short of memory. So the stalls of such pods are
//! separated before the rest is judged.

use std::time::Duration;

use serde::Serialize;

use super::observe::{Observation, Psi};
use crate::pod::PodUid;

/// A cgroup that stalls for memory uses at least this percentage of its limit.
const AT_LIMIT_PERCENT: u64 = 95;

/// With at least this percentage of memory available, stalls have another cause than memory.
const AVAILABLE_PERCENT_MAX: u64 = 10;

/// Limits from which stalls count as the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StallConfig {
    /// Stall of all tasks together, in ms of each second.
    pub full_ms_per_second: u64,
}

impl Default for StallConfig {
    /// A tenth of the time. With less than a tenth of the memory available a machine feels stuck at
    /// this point, well before the kernel kills.
    fn default() -> Self {
        Self { full_ms_per_second: 100 }
    }
}

/// Stalls at one moment, as the kernel reports them.
#[derive(Clone, Debug, PartialEq)]
pub struct StallSample {
    /// Time of the sample, on the monotonic clock.
    pub at: Duration,
    /// `memory.pressure` of the cgroup that holds all pods.
    pub all_pods: Psi,
    /// `memory.available`.
    pub available: Observation,
    /// Stalls of each pod.
    pub pods: Vec<PodStall>,
}

/// Stalls of one pod, as the kernel reports them.
#[derive(Clone, Debug, PartialEq)]
pub struct PodStall {
    /// The pod.
    pub uid: PodUid,
    /// Its `memory.pressure`.
    pub psi: Psi,
    /// `memory.current` and `memory.max` of the pod's cgroup closest to its limit; `None` if none
    /// of its cgroups has a limit.
    pub limit: Option<(u64, u64)>,
}

/// Result of comparing two samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Stall {
    /// No significant stall.
    None,
    /// Pods at their own limits: no shortage of the node.
    OwnLimits(Vec<PodUid>),
    /// The node: its pods wait for memory, and none is free.
    Node {
        /// Time in which all tasks of pods waited, in ms of each second.
        full_ms_per_second: u64,
        /// Available memory, in bytes.
        available: u64,
    },
}

/// Judges the stalls between two samples.
pub fn judge(before: &StallSample, after: &StallSample, config: StallConfig) -> Stall {
    let elapsed = after.at.saturating_sub(before.at);
    let rate = |before: &Psi, after: &Psi| full_rate(before, after, elapsed);
    let all = rate(&before.all_pods, &after.all_pods);
    if all < config.full_ms_per_second {
        return Stall::None;
    }
    let stalling = after.pods.iter().filter(|pod| {
        let before = before.pods.iter().find(|other| other.uid == pod.uid);
        before.is_some_and(|before| rate(&before.psi, &pod.psi) >= config.full_ms_per_second)
    });
    let (limited, others): (Vec<_>, Vec<_>) = stalling.partition(|pod| pod.is_at_limit());
    let Observation { available, capacity } = after.available;
    let is_short =
        u128::from(available) * 100 < u128::from(capacity) * u128::from(AVAILABLE_PERCENT_MAX);
    if is_short && (limited.is_empty() || !others.is_empty()) {
        return Stall::Node { full_ms_per_second: all, available };
    }
    if limited.is_empty() {
        return Stall::None;
    }
    Stall::OwnLimits(limited.into_iter().map(|pod| pod.uid.clone()).collect())
}

/// Counts free swap as available: memory is not exhausted before swap is.
pub fn with_swap(mut sample: StallSample, swap: Option<Observation>) -> StallSample {
    if let Some(swap) = swap {
        let memory = &mut sample.available;
        memory.available = memory.available.saturating_add(swap.available);
        memory.capacity = memory.capacity.saturating_add(swap.capacity);
    }
    sample
}

/// Time in which all tasks of the pods waited for memory between two samples, in ms of each second.
pub fn rate(before: &StallSample, after: &StallSample) -> u64 {
    full_rate(&before.all_pods, &after.all_pods, after.at.saturating_sub(before.at))
}

/// Time in which all tasks waited for disks, in ms of each second, averaged over 10 s.
pub fn io_rate(io: &Psi) -> u64 {
    let percent = io.full.avg10;
    // A value outside of 0 to 100 percent is invalid and counts as no stall.
    if !(0.0..=100.0).contains(&percent) {
        return 0;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = (percent * 10.0).round() as u64;
    rate
}

/// From this value on the node stalls for its disks. It is half of the time, because busy disks are
/// normal.
pub const IO_FULL_MS_PER_SECOND: u64 = 500;

impl PodStall {
    fn is_at_limit(&self) -> bool {
        self.limit.is_some_and(|(current, max)| {
            u128::from(current) * 100 >= u128::from(max) * u128::from(AT_LIMIT_PERCENT)
        })
    }
}

/// Time in which all tasks stalled, in ms of each second; 0 if no time has elapsed.
fn full_rate(before: &Psi, after: &Psi, elapsed: Duration) -> u64 {
    let stalled_micros = u128::from(after.full.total.saturating_sub(before.full.total));
    let rate = (stalled_micros * 1_000).checked_div(elapsed.as_micros()).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::observe;

    const GI: u64 = 1 << 30;

    fn psi(full_ms: u64) -> Psi {
        let stall = |ms: u64| observe::Stall { avg10: 0.0, total: ms * 1_000 };
        Psi { some: stall(full_ms * 2), full: stall(full_ms) }
    }

    /// name, full stall in ms, `memory.current` in percent of the limit
    type Pod = (&'static str, u64, Option<u64>);

    fn sample(at_ms: u64, full_ms: u64, available: u64, pods: &[Pod]) -> StallSample {
        let pod = |(name, full_ms, percent): &Pod| PodStall {
            uid: PodUid((*name).into()),
            psi: psi(*full_ms),
            limit: percent.map(|percent| (percent * GI / 100, GI)),
        };
        StallSample {
            at: Duration::from_millis(at_ms),
            all_pods: psi(full_ms),
            available: Observation { available, capacity: 100 * GI },
            pods: pods.iter().map(pod).collect(),
        }
    }

    fn judged(full_ms: u64, available_gi: u64, pods: &[Pod]) -> Stall {
        let quiet: Vec<_> = pods.iter().map(|(name, _, percent)| (*name, 0, *percent)).collect();
        let before = sample(1_000, 0, available_gi * GI, &quiet);
        let after = sample(1_500, full_ms, available_gi * GI, pods);
        judge(&before, &after, StallConfig::default())
    }

    fn node(full_ms_per_second: u64, available_gi: u64) -> Stall {
        Stall::Node { full_ms_per_second, available: available_gi * GI }
    }

    fn own(names: &[&str]) -> Stall {
        Stall::OwnLimits(names.iter().map(|name| PodUid((*name).into())).collect())
    }

    #[test]
    fn a_pod_at_its_own_limit_is_not_taken_for_a_node_without_memory() {
        let table = [
            // 49 ms of 500: below a tenth
            (judged(49, 1, &[("a", 49, None)]), Stall::None),
            (judged(50, 1, &[("a", 50, None)]), node(100, 1)),
            // enough memory: it waits for something else
            (judged(250, 10, &[("a", 250, None)]), Stall::None),
            (judged(250, 9, &[("a", 250, None)]), node(500, 9)),
            // one at its limit
            (judged(250, 1, &[("a", 250, Some(96))]), own(&["a"])),
            (judged(250, 50, &[("a", 250, Some(100)), ("b", 0, None)]), own(&["a"])),
            // below its limit
            (judged(250, 1, &[("a", 250, Some(94))]), node(500, 1)),
            // one at its limit, and others that stall too
            (judged(250, 1, &[("a", 250, Some(100)), ("b", 60, None)]), node(500, 1)),
            (judged(250, 50, &[("a", 250, Some(100)), ("b", 60, None)]), own(&["a"])),
            // no pod by itself, all together
            (judged(60, 1, &[("a", 30, None), ("b", 30, Some(100))]), node(120, 1)),
        ];
        for (row, (judged, expected)) in table.into_iter().enumerate() {
            assert_eq!(judged, expected, "row {row}");
        }
    }

    #[test]
    fn free_swap_counts_as_memory_where_there_is_swap() {
        let judged = |swap| {
            let samples = [(1_000, 0), (1_500, 250)]
                .map(|(at, full)| with_swap(sample(at, full, 5 * GI, &[]), swap));
            judge(&samples[0], &samples[1], StallConfig::default())
        };
        let swap = |available, capacity| Some(Observation { available, capacity });
        assert_eq!(judged(None), node(500, 5));
        assert_eq!(judged(swap(0, 0)), node(500, 5));
        assert_eq!(judged(swap(0, 100 * GI)), node(500, 5));
        assert_eq!(judged(swap(50 * GI, 100 * GI)), Stall::None);
    }

    #[test]
    fn the_share_of_time_for_disks_is_any_number_without_a_panic() {
        let io = |avg10| {
            let stall = observe::Stall { avg10, total: 0 };
            io_rate(&Psi { some: stall, full: stall })
        };
        let rates = [0.0, 49.99, 100.0, -1.0, 1e300, f64::NAN].map(io);
        assert_eq!(rates, [0, 500, 1_000, 0, 0, 0]);
    }

    #[test]
    fn counters_that_go_back_or_no_time_are_no_stall() {
        let sample = |at, full| sample(at, full, GI, &[]);
        let judged = |before, after| judge(&before, &after, StallConfig::default());
        assert_eq!(judged(sample(0, 900), sample(1_000, 0)), Stall::None);
        assert_eq!(judged(sample(1_000, 0), sample(1_000, 900)), Stall::None);
        assert_eq!(judged(sample(2_000, 0), sample(1_000, 900)), Stall::None);
    }
}
