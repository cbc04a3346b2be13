//! Rolls what a pod's containers use over their life: constant, growing, leaking, oscillating
//! around a threshold, or just below a limit of their own.

use std::time::Duration;

use agent_core::pod::{Asks, ContainerAsks};

use super::strain::{MI, Strain};
use crate::controller::random::Random;

/// How the use of one resource changes with a container's age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Appetite {
    /// Uses nothing.
    #[default]
    Nothing,
    /// Always the same.
    Steady(u64),
    /// Grows up to a maximum.
    Grows { from: u64, per_second: u64, most: u64 },
    /// Low and high in turn, each for a while.
    Flaps { low: u64, high: u64, each: Duration },
}

impl Appetite {
    pub(super) fn at(self, age: Duration) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Steady(amount) => amount,
            Self::Grows { from, per_second, most } => {
                let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                let grown = per_second.saturating_mul(millis) / 1_000;
                from.saturating_add(grown).min(most)
            }
            Self::Flaps { low, high, each } => {
                let turn = age.as_millis() / each.as_millis().max(1);
                if turn.is_multiple_of(2) { low } else { high }
            }
        }
    }
}

/// What the first container of a pod uses and may use; the others do not count.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    pub(super) memory: Appetite,
    pub(super) memory_request: u64,
    pub(super) memory_limit: Option<u64>,
    /// Whether the limit is the pod's, and not the container's.
    pub(super) pod_limit: bool,
    /// Whether the kernel first kills a child, and the container survives that.
    pub(super) children: bool,
    /// Whether it waits for memory at its limit.
    pub(super) thrashes: bool,
    pub(super) tasks: Appetite,
    pub(super) disk: Appetite,
    pub(super) storage_request: u64,
    pub(super) storage_limit: Option<u64>,
    /// The limit of the volume that holds all of its disk use.
    pub(super) volume_limit: Option<u64>,
}

impl Needs {
    /// Rolls the needs of any pod of a strained node.
    pub(super) fn roll(random: &mut Random, strain: &Strain) -> Self {
        if !strain.presses {
            return Self::default();
        }
        let mut needs = Self {
            memory: Appetite::Steady(*random.pick(&[20, 60, 150, 300]) * MI),
            memory_request: *random.pick(&[0, 50, 200]) * MI,
            tasks: Appetite::Steady(*random.pick(&[2, 10, 40])),
            disk: Appetite::Steady(*random.pick(&[10, 100, 1_000]) * MI),
            storage_request: *random.pick(&[0, 0, 500]) * MI,
            ..Self::default()
        };
        match random.below(20) {
            0..4 => needs.hog_memory(random, strain),
            4 => needs.flap(random, strain),
            5 | 6 => needs.reach_limit(random),
            7 => needs.hog_disk(random, strain),
            8 => {
                let most = strain.tasks * 2;
                let per_second = *random.pick(&[50, 300, 2_000]);
                needs.tasks = Appetite::Grows { from: 10, per_second, most };
            }
            9 => needs.fill_own_disk(random),
            _ => {}
        }
        needs
    }

    fn hog_memory(&mut self, random: &mut Random, strain: &Strain) {
        let per_second = *random.pick(&[10, 40, 120, 400, 1_500]) * MI;
        let from = *random.pick(&[50, 300]) * MI;
        // Some stop just before the node is exhausted.
        let least = *random.pick(&[600, 800, 1_200]) * MI;
        let most = if random.percent(40) { strain.memory - least } else { strain.memory * 2 };
        self.memory = Appetite::Grows { from, per_second, most };
        self.children = random.percent(15);
    }

    fn flap(&mut self, random: &mut Random, strain: &Strain) {
        // Around the usual thresholds.
        let high = strain.memory.saturating_sub(*random.pick(&[700, 1_100, 1_600]) * MI);
        let each = random.millis(300, 20_000);
        self.memory = Appetite::Flaps { low: 100 * MI, high, each };
    }

    fn reach_limit(&mut self, random: &mut Random) {
        let limit = *random.pick(&[128, 256, 512]) * MI;
        self.memory_limit = Some(limit);
        self.memory_request = limit / 2;
        self.pod_limit = random.percent(20);
        self.children = random.percent(40);
        self.thrashes = random.percent(40);
        let most = if self.thrashes { limit / 100 * 99 } else { limit * 2 };
        let per_second = *random.pick(&[5, 30, 200]) * MI;
        self.memory = Appetite::Grows { from: 20 * MI, per_second, most };
    }

    fn hog_disk(&mut self, random: &mut Random, strain: &Strain) {
        let per_second = *random.pick(&[200, 1_000, 3_000]) * MI;
        let most = if random.percent(40) { strain.disk / 100 * 82 } else { strain.disk * 2 };
        self.disk = Appetite::Grows { from: 100 * MI, per_second, most };
    }

    fn fill_own_disk(&mut self, random: &mut Random) {
        let limit = *random.pick(&[200, 1_000]) * MI;
        if random.percent(50) {
            self.volume_limit = Some(limit);
        } else {
            self.storage_limit = Some(limit);
        }
        self.disk = Appetite::Grows { from: 10 * MI, per_second: 20 * MI, most: limit * 2 };
    }

    /// Whether it exceeds a limit of local storage that was set on it.
    pub(super) fn exceeds_own(&self, disk: u64) -> bool {
        self.storage_limit.or(self.volume_limit).is_some_and(|limit| disk > limit)
    }

    /// The requests and limits that the API shows.
    pub(super) fn asks(&self, containers: &[String]) -> Asks {
        let first = |name: &String, number: usize| {
            let zero = ContainerAsks { name: name.clone(), ..ContainerAsks::default() };
            if number > 0 {
                // Only one container has a limit, so the pod as a whole has no limit.
                return zero;
            }
            ContainerAsks {
                memory: self.memory_request,
                memory_limit: self.memory_limit.filter(|_| !self.pod_limit),
                storage: self.storage_request,
                storage_limit: self.storage_limit,
                ..zero
            }
        };
        let volumes = self.volume_limit.map(|limit| ("scratch".to_owned(), limit));
        Asks {
            memory: self.memory_request,
            memory_of_pod: self.pod_limit,
            memory_limit: self.memory_limit.filter(|_| self.pod_limit),
            storage: self.storage_request,
            containers: containers.iter().enumerate().map(|(n, name)| first(name, n)).collect(),
            empty_dirs: volumes.into_iter().collect(),
        }
    }
}
