//! Rolls what strains the node outside of shutdowns: its capacity, which pods exhaust it, how well
//! it is measured, what hangs, and the agent's settings for it.

use std::time::Duration;

use agent_core::agent::{Enforcement, Features};
use agent_core::pressure::stall::StallConfig;
use agent_core::pressure::thresholds::ThresholdFlags;
use agent_core::pressure::watch::EvictionConfig;

use super::kubelet::Health;
use crate::controller::random::Random;

/// 2²⁰ bytes.
pub(super) const MI: u64 = 1 << 20;

/// How rough the strain of a seed is. Chances are per mille.
#[derive(Clone, Debug, Default)]
pub(super) struct Strain {
    /// Whether pods exhaust the node.
    pub(super) presses: bool,
    /// Whether pods hang while they start, and are deleted.
    pub(super) hangs: bool,
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Bytes on the only disk, and its inodes.
    pub(super) disk: u64,
    pub(super) inodes: u64,
    pub(super) tasks: u64,
    /// Whether the kernel measures stalls.
    pub(super) psi: bool,
    pub(super) lost_triggers: u32,
    pub(super) failing_samples: u32,
    pub(super) missing_signals: u32,
    pub(super) stale_samples: u32,
    pub(super) missing_pods: u32,
    pub(super) sample_ms: (u32, u32),
    /// How many of the witnesses of a kill report nothing.
    pub(super) lost_witnesses: u32,
    /// How many witnesses do not know what was short.
    pub(super) vague_witnesses: u32,
    /// Whether the kernel's log is readable.
    pub(super) kernel_log: bool,
    /// The kubelet's own thresholds: memory, disk, tasks.
    pub(super) kubelet_limits: Option<(u64, u64, u64)>,
    /// Whether it enforces limits of local storage.
    pub(super) kubelet_limits_storage: bool,
    /// How long its conditions last.
    pub(super) kubelet_transition: Duration,
    /// When and how the kubelet goes for good.
    pub(super) deserted: Option<(Duration, Health)>,
    /// When a hung kubelet wakes.
    pub(super) wakes_at: Option<Duration>,
    /// From when on the runtime never answers.
    pub(super) runtime_dies: Option<Duration>,
    /// When disks stall.
    pub(super) io_stalls: Option<(Duration, Duration)>,
}

impl Strain {
    /// The same node without any strain.
    pub(super) fn without_any(self) -> Self {
        let strain = Self { presses: false, hangs: false, deserted: None, wakes_at: None, ..self };
        Self { runtime_dies: None, io_stalls: None, ..strain }
    }

    /// Whether the seed has any strain.
    pub(super) fn is_there(&self) -> bool {
        self.presses || self.hangs
    }

    /// How long a strained node is observed after its last fault: a kubelet that hangs gets five
    /// minutes to wake.
    pub(super) fn lasts(&self) -> Duration {
        match self.deserted {
            Some((_, Health::Hung)) => Duration::from_secs(520),
            _ => Duration::from_secs(200),
        }
    }

    pub(super) fn roll(random: &mut Random, rough: bool) -> Self {
        let presses = random.percent(35);
        let hangs = random.percent(20);
        let mut rate = |from: &[u32]| {
            if rough && random.percent(25) { *random.pick(from) } else { 0 }
        };
        let strain = Self {
            presses,
            hangs,
            lost_triggers: rate(&[100, 500, 1_000]),
            failing_samples: rate(&[50, 300]),
            missing_signals: rate(&[50, 300]),
            stale_samples: rate(&[50, 300]),
            missing_pods: rate(&[50, 300]),
            lost_witnesses: rate(&[200, 700]),
            vague_witnesses: rate(&[200, 1_000]),
            ..Self::default()
        };
        let second = |random: &mut Random, low: u32, high: u32| random.millis(low, high);
        let deserted = (hangs && random.percent(55)).then(|| {
            (
                second(random, 5_000, 60_000),
                *random.pick(&[Health::Dead, Health::Dead, Health::Hung]),
            )
        });
        let hung = deserted.is_some_and(|(_, health)| health == Health::Hung);
        let io_from = second(random, 5_000, 60_000);
        Self {
            memory: *random.pick(&[4_096, 8_192, 16_384]) * MI,
            disk: *random.pick(&[40_960, 102_400]) * MI,
            inodes: 1_000_000,
            tasks: *random.pick(&[2_048, 4_096]),
            psi: !rough || random.percent(80),
            sample_ms: if rough && random.percent(20) { (200, 8_000) } else { (1, 30) },
            kernel_log: random.percent(50),
            kubelet_limits: random
                .percent(75)
                .then(|| *random.pick(&[(100 * MI, 2_048 * MI, 0), (100 * MI, 4_096 * MI, 64)])),
            kubelet_limits_storage: random.percent(50),
            kubelet_transition: *random.pick(&[
                Duration::from_secs(20),
                Duration::from_mins(1),
                Duration::from_mins(5),
            ]),
            deserted,
            // Before or after the agent takes it for lost.
            wakes_at: (hung && random.percent(80)).then(|| second(random, 200_000, 500_000)),
            runtime_dies: (hangs && rough && random.percent(15))
                .then(|| second(random, 5_000, 80_000)),
            io_stalls: random
                .percent(30)
                .then(|| (io_from, io_from + second(random, 2_000, 40_000))),
            ..strain
        }
    }
}

/// The agent's settings; in a seed without strain it may still observe.
pub(super) fn features(random: &mut Random, strain: &Strain) -> Features {
    let mut enforcement = |enforce: u32| match random.below(100) as u32 {
        chance if chance < enforce => Enforcement::Enforce,
        chance if chance < 90 => Enforcement::Observe,
        _ => Enforcement::Off,
    };
    let pressure = enforcement(if strain.presses { 75 } else { 20 });
    let stuck_pods = enforcement(75);
    let transition =
        *random.pick(&[Duration::ZERO, Duration::from_secs(20), Duration::from_mins(5)]);
    Features {
        pressure,
        eviction: EvictionConfig {
            thresholds: thresholds(random).thresholds().expect("they must be thresholds"),
            transition,
            soft_grace_seconds_max: *random.pick(&[None, Some(5), Some(30)]),
        },
        stalls: StallConfig::default(),
        oom_causes: random.percent(85),
        node_oom_disrupts: random.percent(40),
        stuck_pods,
        fail_hanging_starts: random.percent(70),
        ..Features::default()
    }
}

fn thresholds(random: &mut Random) -> ThresholdFlags {
    let text = |text: &str| Some(text.to_owned());
    let hard = *random.pick(&[
        "memory.available<500Mi,nodefs.available<10Gi,pid.available<200",
        "memory.available<10%,nodefs.available<15%,nodefs.inodesFree<5%,pid.available<10%",
        "memory.available<300Mi",
        // Behind the kubelet's own thresholds.
        "memory.available<60Mi,nodefs.available<1Gi",
    ]);
    let (soft, soft_grace) = match random.below(3) {
        0 => (text("memory.available<1Gi"), text("memory.available=5s")),
        1 => (
            text("memory.available<1500Mi,nodefs.available<20%"),
            text("memory.available=30s,nodefs.available=10s"),
        ),
        _ => (None, None),
    };
    let minimum_reclaim = random.percent(30).then(|| "memory.available=200Mi".to_owned());
    ThresholdFlags { hard: text(hard), soft, soft_grace, minimum_reclaim }
}
