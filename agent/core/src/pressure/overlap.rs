//! Checks whether the kubelet's own thresholds apply before ours. Then only the kubelet acts,
//! because two evictors of one shortage terminate too many pods. ([EV29])

use super::signal::Signal;
use super::thresholds::{Limit, Threshold, limit};
use crate::protocol::node::KubeletEviction;

/// Thresholds of a kubelet without a configured value. ([EV21])
const DEFAULTS: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// The highest of the kubelet's thresholds for a signal, in units of a resource with this capacity.
/// The defaults apply if the kubelet does not report its thresholds.
fn kubelets(signal: Signal, kubelet: Option<&KubeletEviction>, capacity: u64) -> Option<u64> {
    let own = same_as(signal);
    let units = |name: &str, value: &str| {
        let signal: Signal = name.parse().ok()?;
        match limit(value).filter(|_| own.contains(&signal))? {
            Limit::Part(0 | 1_000_000) => None,
            limit => Some(limit.units(capacity)),
        }
    };
    let Some(kubelet) = kubelet else {
        return DEFAULTS.iter().filter_map(|(name, value)| units(name, value)).max();
    };
    let all = kubelet.hard.iter().chain(&kubelet.soft);
    all.filter_map(|(name, value)| units(name, value)).max()
}

/// The signals whose thresholds the kubelet uses for this one. ([EV2], [EV6])
fn same_as(signal: Signal) -> &'static [Signal] {
    use Signal::{
        AllocatableMemoryAvailable, ContainerfsAvailable, ContainerfsInodesFree, ImagefsAvailable,
        ImagefsInodesFree, MemoryAvailable, NodefsAvailable, NodefsInodesFree, PidAvailable,
    };
    match signal {
        MemoryAvailable => &[MemoryAvailable],
        AllocatableMemoryAvailable => &[AllocatableMemoryAvailable, MemoryAvailable],
        NodefsAvailable => &[NodefsAvailable],
        NodefsInodesFree => &[NodefsInodesFree],
        ImagefsAvailable => &[ImagefsAvailable],
        ImagefsInodesFree => &[ImagefsInodesFree],
        ContainerfsAvailable => &[ContainerfsAvailable, NodefsAvailable, ImagefsAvailable],
        ContainerfsInodesFree => &[ContainerfsInodesFree, NodefsInodesFree, ImagefsInodesFree],
        PidAvailable => &[PidAvailable],
    }
}

/// Whether any of our thresholds for a signal is not strictly above all of the kubelet's.
pub fn overlaps(
    signal: Signal,
    ours: &[Threshold],
    kubelet: Option<&KubeletEviction>,
    capacity: u64,
) -> bool {
    let Some(theirs) = kubelets(signal, kubelet, capacity) else { return false };
    let of_signal = ours.iter().filter(|threshold| threshold.signal == signal);
    of_signal.into_iter().any(|threshold| threshold.limit.units(capacity) <= theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::thresholds::ThresholdFlags;

    fn kubelet(hard: &[(&str, &str)], soft: &[(&str, &str)]) -> KubeletEviction {
        let owned = |list: &[(&str, &str)]| {
            list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        KubeletEviction { hard: owned(hard), soft: owned(soft), local_storage_limits: true }
    }

    fn overlap(ours: &str, kubelet: Option<&KubeletEviction>) -> bool {
        let flags = ThresholdFlags { hard: Some(ours.into()), ..ThresholdFlags::default() };
        let ours = flags.thresholds().expect("must be thresholds");
        overlaps(ours[0].signal, &ours, kubelet, 1 << 30)
    }

    #[test]
    fn only_a_threshold_strictly_before_all_of_the_kubelets_is_ours() {
        let hard = kubelet(&[("memory.available", "100Mi"), ("nodefs.available", "10%")], &[]);
        let soft = kubelet(&[], &[("memory.available", "20%")]);
        let off = kubelet(&[("memory.available", "0%"), ("nodefs.available", "100%")], &[]);
        let junk = kubelet(&[("memory.available", "much"), ("moon.available", "1")], &[]);
        let table = [
            ("memory.available<100Mi", Some(&hard), true),
            ("memory.available<101Mi", Some(&hard), false),
            ("memory.available<9%", Some(&hard), true),
            ("memory.available<10%", Some(&hard), false), // 102.4Mi
            ("memory.available<20%", Some(&soft), true),
            ("memory.available<21%", Some(&soft), false),
            ("nodefs.available<10%", Some(&hard), true),
            ("nodefs.available<11%", Some(&hard), false),
            ("imagefs.available<1%", Some(&hard), false),
            ("pid.available<1", Some(&hard), false),
            ("memory.available<1Mi", Some(&off), false),
            ("nodefs.available<1Mi", Some(&off), false),
            ("memory.available<1Mi", Some(&junk), false),
            // signals with the threshold of another signal
            ("allocatableMemory.available<100Mi", Some(&hard), true),
            ("containerfs.available<10%", Some(&hard), true),
            ("containerfs.available<11%", Some(&hard), false),
            // no answer: the kubelet's defaults
            ("memory.available<100Mi", None, true),
            ("memory.available<101Mi", None, false),
            ("imagefs.available<15%", None, true),
            ("pid.available<1", None, false),
        ];
        for (ours, kubelet, expected) in table {
            assert_eq!(overlap(ours, kubelet), expected, "{ours} alongside {kubelet:?}");
        }
    }
}
