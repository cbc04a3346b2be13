//! Whether the node is short of memory by what its pods wait for (PSI), long before a threshold
//! is crossed; and whose own limit it is where the node is not.
//!
//! The kernel counts a stall for every cgroup above the one that stalls. A pod that thrashes
//! within a limit of its own therefore looks, from above, like a node without memory; so the
//! stalls of such pods are told apart before anything is made of the rest.

use std::time::Duration;

use serde::Serialize;

use super::observe::{Observation, Psi};
use crate::pod::PodUid;

/// Of its limit a cgroup that stalls for want of memory has at least this much, in percent.
const AT_LIMIT_PERCENT: u64 = 95;

/// When stalls count as the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StallConfig {
    /// The stall of all tasks together, in ms of each second.
    pub full_ms_per_second: u64,
    /// With at least this part of all memory available stalls are not for want of memory, in
    /// percent.
    pub available_percent_max: u64,
}

impl Default for StallConfig {
    /// A tenth of the time, with less than a tenth of the memory left: what makes a machine feel
    /// stuck, well before the kernel kills.
    fn default() -> Self {
        Self { full_ms_per_second: 100, available_percent_max: 10 }
    }
}

/// What the kernel says of stalls at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct StallSample {
    /// On the monotonic clock.
    pub at: Duration,
    /// `memory.pressure` of the cgroup that holds all pods.
    pub all_pods: Psi,
    /// `memory.available`.
    pub available: Observation,
    /// The pods.
    pub pods: Vec<PodStall>,
}

/// What the kernel says of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodStall {
    /// The pod.
    pub uid: PodUid,
    /// Its `memory.pressure`.
    pub psi: Psi,
    /// `memory.current` and `memory.max` of the cgroup of it that is closest to its limit; none
    /// where nothing of it is limited.
    pub limit: Option<(u64, u64)>,
}

/// What stalls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Stall {
    /// Nothing worth a word.
    None,
    /// Pods, each at a limit of its own: not the node's shortage.
    OwnLimits(Vec<PodUid>),
    /// The node: pods wait for memory that nobody has.
    Node {
        /// ms of each second in which all tasks of pods waited.
        full_ms_per_second: u64,
        /// Bytes left.
        available: u64,
    },
}

/// Judges what happened between two samples.
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
    let is_short = u128::from(available) * 100
        < u128::from(capacity) * u128::from(config.available_percent_max);
    if is_short && (limited.is_empty() || !others.is_empty()) {
        return Stall::Node { full_ms_per_second: all, available };
    }
    if limited.is_empty() {
        return Stall::None;
    }
    Stall::OwnLimits(limited.into_iter().map(|pod| pod.uid.clone()).collect())
}

/// With swap, memory is not at its end before swap is: what of it is free counts as available.
pub fn with_swap(mut sample: StallSample, swap: Option<Observation>) -> StallSample {
    if let Some(swap) = swap {
        let memory = &mut sample.available;
        memory.available = memory.available.saturating_add(swap.available);
        memory.capacity = memory.capacity.saturating_add(swap.capacity);
    }
    sample
}

/// ms of each second in which all tasks of the pods waited for memory between two samples.
pub fn rate(before: &StallSample, after: &StallSample) -> u64 {
    full_rate(&before.all_pods, &after.all_pods, after.at.saturating_sub(before.at))
}

/// ms of each second in which all tasks waited for disks, over 10 s.
pub fn io_rate(io: &Psi) -> u64 {
    let percent = io.full.avg10;
    // What is no share of a time is none.
    if !(0.0..=100.0).contains(&percent) {
        return 0;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = (percent * 10.0).round() as u64;
    rate
}

/// From this on the node stalls for its disks: half of the time, since disks that are busy are
/// nothing unusual.
pub const IO_FULL_MS_PER_SECOND: u64 = 500;

impl PodStall {
    fn is_at_limit(&self) -> bool {
        self.limit.is_some_and(|(current, max)| {
            u128::from(current) * 100 >= u128::from(max) * u128::from(AT_LIMIT_PERCENT)
        })
    }
}

/// ms of each second in which all tasks stalled; none in no time.
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
        let stall = |ms: u64| observe::Stall { avg10: 0.0, avg60: 0.0, total: ms * 1_000 };
        Psi { some: stall(full_ms * 2), full: stall(full_ms) }
    }

    /// name, full stall in ms, current and max in percent of a limit
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
            let stall = observe::Stall { avg10, avg60: 0.0, total: 0 };
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
