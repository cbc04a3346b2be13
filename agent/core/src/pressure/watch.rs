//! Decides when to act on a shortage: after the threshold's grace, with measurements newer than the
//! last victim, one victim at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::message::Shortage;
use super::observe::Observation;
pub use super::observe::{Measured, Measurements};
use super::signal::Signal;
use super::thresholds::Threshold;

/// How long a victim of a hard threshold delays the next one for memory, at most. Its grace is 1 s;
/// if memory is still short after this wait, the kernel may kill.
const HARD_WAIT_MAX: Duration = Duration::from_secs(10);
/// The same for disks and tasks. As in upstream, 10 s are for the termination and 30 s for the
/// release of resources. A runtime is slow at such a time, and another victim makes it slower.
/// ([EV25])
const HARD_WAIT_MAX_AT_EASE: Duration = Duration::from_secs(40);
/// How long a victim of a soft threshold delays the next one beyond its grace, at most.
const SOFT_WAIT_MAX: Duration = Duration::from_secs(30);
/// The same including the grace, which the pod's author chooses; at most an hour of it counts.
const SOFT_HOLD_MAX: Duration = Duration::from_secs(3_600 + 30);
/// How long the files of a terminated pod delay the next victim for a disk, at most. The kubelet
/// removes them only after the pod has terminated. ([EV25])
const CLEANUP_MAX: Duration = Duration::from_secs(30);
/// The same for volumes in memory, which a kubelet unmounts within a second or two. Other pods may
/// take more memory meanwhile.
const UNMOUNT_MAX: Duration = Duration::from_secs(3);
/// Grace of a victim of a hard threshold. ([EV27])
const HARD_GRACE_SECONDS: u32 = 1;

/// Configuration of evictions.
#[derive(Clone, Debug, Default)]
pub struct EvictionConfig {
    /// Thresholds, in the order in which the agent acts on them.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after its threshold was last crossed.
    pub transition: Duration,
    /// Maximum grace of a victim of a soft threshold; `None` leaves the pod's own grace.
    pub soft_grace_seconds_max: Option<u32>,
}

/// A shortage for which a pod terminates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// The signal of the shortage.
    pub signal: Signal,
    /// The crossed threshold; for a stall, the first configured one of the signal, if any.
    pub threshold: Option<Threshold>,
    /// The threshold in units.
    pub limit: Option<u64>,
    /// Available amount.
    pub available: u64,
    /// For a stall, the time that pods wait, in ms of each second.
    pub stalled: Option<u64>,
}

/// State between two checks.
#[derive(Clone, Debug)]
pub struct Watch {
    config: EvictionConfig,
    /// When each crossed threshold was first seen crossed, by position.
    crossed_since: BTreeMap<usize, Duration>,
    /// The next victim needs a measurement later than this, by signal.
    acted_on: BTreeMap<Signal, Duration>,
    /// End of the wait for the removal of the last victim's files.
    cleaned_until: Option<Duration>,
    /// End of the wait for the unmount of the last victim's volumes in memory.
    unmounted_until: Option<Duration>,
}

/// How long a victim that is still terminating delays the next one.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    hard: bool,
    /// Until when it delays the next one for memory.
    memory_until: Duration,
    /// Until when it delays the next one for other signals.
    until: Duration,
}

impl Cause {
    /// Figures for the message; `None` without a threshold.
    pub fn shortage(&self) -> Option<Shortage> {
        Some(Shortage { threshold: self.limit?, available: self.available })
    }

    /// Whether the shortage is urgent: a hard threshold is crossed, or pods already wait.
    pub fn is_hard(&self) -> bool {
        let soft = self.threshold.is_some_and(|threshold| threshold.grace.is_some());
        self.stalled.is_some() || !soft
    }

    /// Time between SIGTERM and SIGKILL of a victim with the grace `own`. ([EV27])
    ///
    /// DIVERGES(upstream): without a maximum, a soft threshold leaves the pod its own grace.
    /// Upstream's default of 0 makes it 1 s, contrary to upstream's documentation.
    pub fn grace_seconds(&self, own: Option<u32>, soft_max: Option<u32>) -> u32 {
        if self.is_hard() {
            return HARD_GRACE_SECONDS;
        }
        let own = own.unwrap_or(30);
        soft_max.map_or(own, |max| own.min(max)).max(1)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let available = self.signal.quantity(self.available);
        match (self.stalled, self.threshold) {
            (Some(ms), _) => write!(formatter, "pods wait for memory {ms} ms of each second")?,
            (None, Some(threshold)) => write!(formatter, "{threshold}")?,
            (None, None) => write!(formatter, "{}", self.signal)?,
        }
        write!(formatter, ", {available} left")
    }
}

impl Watch {
    /// Starts without any crossed threshold.
    pub fn new(config: EvictionConfig) -> Self {
        Self {
            config,
            crossed_since: BTreeMap::new(),
            acted_on: BTreeMap::new(),
            cleaned_until: None,
            unmounted_until: None,
        }
    }

    /// Judges new measurements. Returns the shortages for which to terminate a pod, in order; one
    /// pod at a time: `holds` are those of the victims that are still terminating.
    pub fn check(&mut self, measured: &Measurements, holds: &[Hold], now: Duration) -> Vec<Cause> {
        let crossed = self.crossed(measured);
        self.crossed_since.retain(|position, _| crossed.contains(position));
        for position in &crossed {
            self.crossed_since.entry(*position).or_insert(now);
        }
        if !self.crossed_now().any(|threshold| is_on_disk(threshold.signal)) {
            self.cleaned_until = None;
        }
        if !self.crossed_now().any(|threshold| is_memory(threshold.signal)) {
            self.unmounted_until = None;
        }
        self.causes(measured, holds, now)
    }

    /// Records that a victim of the cause was chosen; returns how long it delays the next one.
    pub fn victim_chosen(&mut self, cause: &Cause, grace_seconds: u32, now: Duration) -> Hold {
        let hard = cause.is_hard();
        let soft = SOFT_WAIT_MAX.saturating_add(Duration::from_secs(u64::from(grace_seconds)));
        let soft = soft.min(SOFT_HOLD_MAX);
        let (memory, others) =
            if hard { (HARD_WAIT_MAX, HARD_WAIT_MAX_AT_EASE) } else { (soft, soft) };
        self.acted_on.insert(cause.signal, now);
        Hold { hard, memory_until: now.saturating_add(memory), until: now.saturating_add(others) }
    }

    /// The victim is terminal or gone. One that has delayed the next for long enough does not delay
    /// it any more.
    pub fn victim_ended(&mut self, hold: Hold, now: Duration) {
        if now < hold.until {
            // A pod releases its resources only after it has terminated.
            self.acted_on.values_mut().for_each(|at| *at = now);
        }
    }

    /// A pod that may have files on the disk has terminated; it releases their space only when they
    /// are removed.
    pub fn files_are_deleted(&mut self, now: Duration) {
        self.cleaned_until = Some(now.saturating_add(CLEANUP_MAX));
    }

    /// A pod with volumes in memory has terminated; it releases their memory only at the unmount.
    pub fn memory_is_freed(&mut self, now: Duration) {
        self.unmounted_until = Some(now.saturating_add(UNMOUNT_MAX));
    }

    /// Judges a stall: all tasks of pods wait for memory `full_ms` of each second, before a
    /// threshold reports it. The cause carries the threshold that applies, crossed or not. ([EV28],
    /// [EV13])
    pub fn stalled(
        &self,
        full_ms: u64,
        memory: &Measured,
        holds: &[Hold],
        now: Duration,
    ) -> Option<Cause> {
        let signal = Signal::MemoryAvailable;
        let new = self.acted_on.get(&signal).is_none_or(|at| memory.at > *at);
        let goes = self.unmounted_until.is_some_and(|at| now < at);
        if !new || goes || is_held_up(holds, signal, true, now) {
            return None;
        }
        let mut thresholds = self.config.thresholds.iter();
        let threshold = thresholds.find(|threshold| threshold.signal == signal).copied();
        let Observation { available, capacity } = memory.observation;
        Some(Cause {
            signal,
            threshold,
            limit: threshold.map(|threshold| threshold.limit.units(capacity)),
            available,
            stalled: Some(full_ms),
        })
    }

    /// The thresholds that are crossed, or were crossed and are not over yet.
    pub fn crossed_now(&self) -> impl Iterator<Item = &Threshold> {
        self.crossed_since.keys().map(|position| &self.config.thresholds[*position])
    }

    /// The configuration.
    pub fn config(&self) -> &EvictionConfig {
        &self.config
    }

    /// Finds thresholds that are crossed, or were crossed and still lack the minimum reclaim. A
    /// signal without a measurement keeps its state.
    fn crossed(&self, measured: &Measurements) -> Vec<usize> {
        let is_crossed = |position: &usize| {
            let threshold = &self.config.thresholds[*position];
            let before = self.crossed_since.contains_key(position);
            measured.get(&threshold.signal).map_or(before, |measured| {
                let Observation { available, capacity } = measured.observation;
                threshold.is_met(available, capacity, before)
            })
        };
        (0..self.config.thresholds.len()).filter(is_crossed).collect()
    }

    fn causes(&self, measured: &Measurements, holds: &[Hold], now: Duration) -> Vec<Cause> {
        let due = self.crossed_since.iter().filter_map(|(position, since)| {
            let threshold = self.config.thresholds[*position];
            let lasted = now.saturating_sub(*since);
            let is_due = threshold.grace.is_none_or(|grace| lasted >= grace);
            let measured = measured.get(&threshold.signal)?;
            let is_new = self.acted_on.get(&threshold.signal).is_none_or(|at| measured.at > *at);
            let goes = if is_memory(threshold.signal) {
                self.unmounted_until
            } else {
                self.cleaned_until.filter(|_| is_on_disk(threshold.signal))
            };
            let hard = threshold.grace.is_none();
            let held_up =
                is_held_up(holds, threshold.signal, hard, now) || goes.is_some_and(|at| now < at);
            (is_due && is_new && !held_up).then(|| {
                let Observation { available, capacity } = measured.observation;
                Cause {
                    signal: threshold.signal,
                    threshold: Some(threshold),
                    limit: Some(threshold.limit.units(capacity)),
                    available,
                    stalled: None,
                }
            })
        });
        due.collect()
    }
}

/// Allows one victim at a time. A slow victim of a soft threshold never delays one of a hard
/// threshold.
///
/// DIVERGES(upstream): upstream waits for a victim without a limit, in a soft eviction for the
/// pod's whole grace, whatever else runs short.
fn is_held_up(holds: &[Hold], signal: Signal, hard: bool, now: Duration) -> bool {
    let holds_up = |hold: &Hold| {
        let until = if is_memory(signal) { hold.memory_until } else { hold.until };
        now < until && (hold.hard || !hard)
    };
    holds.iter().any(holds_up)
}

/// Whether the signal is about bytes or inodes.
fn is_on_disk(signal: Signal) -> bool {
    signal.node_condition() == "DiskPressure"
}

fn is_memory(signal: Signal) -> bool {
    signal.node_condition() == "MemoryPressure"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PodUid;
    use crate::pressure::thresholds::ThresholdFlags;

    /// A watch with the victims of its causes.
    struct Tested {
        watch: Watch,
        victims: BTreeMap<PodUid, Hold>,
    }

    impl Tested {
        fn holds(&self) -> Vec<Hold> {
            self.victims.values().copied().collect()
        }

        fn check(&mut self, measured: &Measurements, now: Duration) -> Vec<Cause> {
            self.watch.check(measured, &self.holds(), now)
        }

        fn stalled(&self, full_ms: u64, memory: &Measured, now: Duration) -> Option<Cause> {
            self.watch.stalled(full_ms, memory, &self.holds(), now)
        }

        fn victim_chosen(&mut self, uid: PodUid, cause: &Cause, grace: u32, now: Duration) {
            self.victims.insert(uid, self.watch.victim_chosen(cause, grace, now));
        }

        fn victim_ended(&mut self, uid: &PodUid, now: Duration) {
            let hold = self.victims.remove(uid).expect("must be a victim");
            self.watch.victim_ended(hold, now);
        }

        fn files_are_deleted(&mut self, now: Duration) {
            self.watch.files_are_deleted(now);
        }

        fn memory_is_freed(&mut self, now: Duration) {
            self.watch.memory_is_freed(now);
        }
    }

    fn watch(hard: &str, soft: &str, graces: &str, reclaim: &str) -> Tested {
        let some = |text: &str| Some(text.to_owned());
        let flags = ThresholdFlags {
            hard: some(hard),
            soft: some(soft),
            soft_grace: some(graces),
            minimum_reclaim: some(reclaim),
        };
        let watch = Watch::new(EvictionConfig {
            thresholds: flags.thresholds().expect("must be thresholds"),
            transition: Duration::from_mins(5),
            soft_grace_seconds_max: None,
        });
        Tested { watch, victims: BTreeMap::new() }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn measured(at: u64, values: &[(Signal, u64)]) -> Measurements {
        let value = |(signal, available): &(Signal, u64)| {
            let observation = Observation { available: *available, capacity: 1_000 };
            (*signal, Measured { observation, at: seconds(at) })
        };
        values.iter().map(value).collect()
    }

    /// Prints the threshold for which a pod has to terminate.
    fn cause(watch: &mut Tested, at: u64, values: &[(Signal, u64)]) -> String {
        let causes = watch.check(&measured(at, values), seconds(at));
        let threshold = causes.first().and_then(|cause| cause.threshold);
        threshold.map_or_else(String::new, |threshold| threshold.to_string())
    }

    const MEMORY: Signal = Signal::MemoryAvailable;
    const DISK: Signal = Signal::NodefsAvailable;
    const PIDS: Signal = Signal::PidAvailable;

    #[test]
    fn a_hard_threshold_is_acted_on_at_once_and_a_soft_one_after_its_grace() {
        let mut watch =
            watch("memory.available<100", "memory.available<300", "memory.available=30s", "");
        assert_eq!(cause(&mut watch, 0, &[(MEMORY, 300)]), "", "strictly less");
        assert_eq!(cause(&mut watch, 10, &[(MEMORY, 299)]), "");
        assert_eq!(cause(&mut watch, 39, &[(MEMORY, 100)]), "");
        assert_eq!(cause(&mut watch, 40, &[(MEMORY, 200)]), "memory.available<300 for 30s");
        assert_eq!(cause(&mut watch, 41, &[(MEMORY, 99)]), "memory.available<100");
        assert_eq!(cause(&mut watch, 42, &[(MEMORY, 400)]), "");
        assert_eq!(cause(&mut watch, 43, &[(MEMORY, 200)]), "", "the grace begins anew");
    }

    #[test]
    fn memory_goes_before_the_rest() {
        // Memory first, then a fixed order. ([EV22])
        let hard = "pid.available<10,nodefs.available<10,memory.available<10";
        let all = [(PIDS, 1), (DISK, 1), (MEMORY, 1)];
        assert_eq!(cause(&mut watch(hard, "", "", ""), 0, &all), "memory.available<10");
        assert_eq!(cause(&mut watch(hard, "", "", ""), 0, &all[..2]), "nodefs.available<10");
    }

    #[test]
    fn a_shortage_is_over_only_with_the_minimum_reclaim() {
        // Threshold plus minimum reclaim. ([EV23])
        let mut watch = watch("memory.available<100", "", "", "memory.available=50");
        assert_eq!(cause(&mut watch, 0, &[(MEMORY, 120)]), "");
        assert_eq!(cause(&mut watch, 1, &[(MEMORY, 99)]), "memory.available<100");
        assert_eq!(cause(&mut watch, 2, &[(MEMORY, 149)]), "memory.available<100");
        assert_eq!(cause(&mut watch, 3, &[(MEMORY, 150)]), "");
        assert_eq!(cause(&mut watch, 4, &[(MEMORY, 149)]), "");
    }

    #[test]
    fn the_next_victim_waits_for_the_last_ones_end_and_a_new_measurement() {
        // One pod at a time, and newer figures for the next. ([EV25])
        let mut watch = watch("memory.available<100", "", "", "");
        let low = measured(5, &[(MEMORY, 9)]);
        let first = watch.check(&low, seconds(5)).first().copied().expect("must be one");
        watch.victim_chosen(PodUid("a".into()), &first, 1, seconds(5));
        assert_eq!(cause(&mut watch, 6, &[(MEMORY, 9)]), "", "it is still ending");
        watch.victim_ended(&PodUid("a".into()), seconds(7));
        assert_eq!(watch.check(&measured(7, &[(MEMORY, 9)]), seconds(8)), [], "old figures");
        assert_eq!(cause(&mut watch, 8, &[(MEMORY, 9)]), "memory.available<100");
    }

    #[test]
    fn the_next_victim_for_a_disk_waits_until_the_last_ones_files_are_gone() {
        // The clean-up may take 30 s. ([EV25])
        let mut watch = watch("nodefs.available<100,memory.available<100", "", "", "");
        let cause_of = |watch: &mut Tested, at| {
            watch.check(&measured(at, &[(DISK, 9)]), seconds(at)).first().copied()
        };
        let first = cause_of(&mut watch, 5).expect("must be one");
        watch.victim_chosen(PodUid("a".into()), &first, 1, seconds(5));
        watch.victim_ended(&PodUid("a".into()), seconds(7));
        watch.files_are_deleted(seconds(7));
        assert_eq!(cause(&mut watch, 8, &[(DISK, 9)]), "", "they are still there");
        assert_eq!(cause(&mut watch, 9, &[(DISK, 9), (MEMORY, 9)]), "memory.available<100");
        assert_eq!(cause(&mut watch, 36, &[(DISK, 9), (MEMORY, 100)]), "");
        assert_eq!(cause(&mut watch, 37, &[(DISK, 9)]), "nodefs.available<100", "not for ever");
        watch.files_are_deleted(seconds(37));
        assert_eq!(cause(&mut watch, 38, &[(DISK, 100)]), "");
        assert_eq!(cause(&mut watch, 39, &[(DISK, 9)]), "nodefs.available<100", "a new shortage");
    }

    #[test]
    fn the_next_victim_for_memory_waits_until_volumes_in_memory_are_unmounted() {
        let mut watch = watch("memory.available<100,pid.available<10", "", "", "");
        let low = measured(5, &[(MEMORY, 9)]);
        let first = watch.check(&low, seconds(5)).first().copied().expect("must be one");
        watch.victim_chosen(PodUid("a".into()), &first, 1, seconds(5));
        watch.victim_ended(&PodUid("a".into()), seconds(6));
        watch.memory_is_freed(seconds(6));
        assert_eq!(cause(&mut watch, 8, &[(MEMORY, 9)]), "");
        assert_eq!(cause(&mut watch, 8, &[(MEMORY, 9), (PIDS, 1)]), "pid.available<10");
        let sample = measured(8, &[(MEMORY, 9)])[&MEMORY];
        assert_eq!(watch.stalled(500, &sample, seconds(8)), None);
        assert_eq!(cause(&mut watch, 9, &[(MEMORY, 9)]), "memory.available<100", "not for long");
    }

    #[test]
    fn a_victim_of_a_slow_runtime_holds_up_memory_less_long_than_disks_and_tasks() {
        let mut watch = watch("pid.available<10,memory.available<100", "", "", "");
        let few = measured(0, &[(PIDS, 1)]);
        let first = watch.check(&few, seconds(0)).first().copied().expect("must be one");
        watch.victim_chosen(PodUid("a".into()), &first, 1, seconds(0));
        assert_eq!(cause(&mut watch, 9, &[(PIDS, 1), (MEMORY, 9)]), "");
        assert_eq!(cause(&mut watch, 10, &[(PIDS, 1), (MEMORY, 9)]), "memory.available<100");
        assert_eq!(cause(&mut watch, 39, &[(PIDS, 1)]), "");
        assert_eq!(cause(&mut watch, 40, &[(PIDS, 1)]), "pid.available<10");
    }

    #[test]
    fn one_stubborn_victim_never_blocks_the_next() {
        let soft = "memory.available<300";
        let mut watch = watch("nodefs.available<50", soft, "memory.available=0s", "");
        let both = [(MEMORY, 200), (DISK, 100)];
        let first =
            watch.check(&measured(0, &both), seconds(0)).first().copied().expect("must be one");
        assert_eq!(first.signal, MEMORY);
        watch.victim_chosen(PodUid("a".into()), &first, 3_600, seconds(0));
        assert_eq!(cause(&mut watch, 1, &both), "");
        let full = [(MEMORY, 200), (DISK, 49)];
        let second =
            watch.check(&measured(2, &full), seconds(2)).first().copied().expect("must be one");
        assert_eq!(second.signal, DISK, "a hard one does not wait for a soft one");
        watch.victim_chosen(PodUid("b".into()), &second, 1, seconds(2));
        assert_eq!(cause(&mut watch, 41, &full), "");
        assert_eq!(cause(&mut watch, 42, &full), "nodefs.available<50", "nor for ever for another");
        assert_eq!(cause(&mut watch, 3_629, &both), "");
        assert_eq!(cause(&mut watch, 3_630, &both), "memory.available<300 for 0s");
        watch.victim_chosen(PodUid("c".into()), &first, u32::MAX, seconds(3_630));
        assert_eq!(cause(&mut watch, 7_259, &both), "");
        assert_eq!(cause(&mut watch, 7_260, &both), "memory.available<300 for 0s");
    }

    #[test]
    fn what_was_not_measured_keeps_its_state_and_leads_to_nothing() {
        // A signal without an observation is skipped. ([EV7])
        let mut watch = watch("memory.available<100", "", "", "");
        assert_eq!(cause(&mut watch, 0, &[]), "");
        assert_eq!(cause(&mut watch, 1, &[(MEMORY, 9)]), "memory.available<100");
        assert_eq!(watch.check(&measured(2, &[]), seconds(2)), []);
    }

    #[test]
    fn the_grace_of_a_victim_depends_on_the_threshold() {
        // 1 s for a hard threshold, the pod's own grace or the maximum for a soft one. ([EV27])
        let cause = |hard: &str, soft: &str| {
            let mut watch = watch(hard, soft, "memory.available=0s", "");
            watch
                .check(&measured(0, &[(MEMORY, 1)]), seconds(0))
                .first()
                .copied()
                .expect("must be one")
        };
        let hard = cause("memory.available<10", "");
        let soft = cause("", "memory.available<10");
        assert_eq!(hard.grace_seconds(Some(600), Some(60)), 1);
        assert_eq!(soft.grace_seconds(Some(600), Some(60)), 60);
        assert_eq!(soft.grace_seconds(Some(5), Some(60)), 5);
        assert_eq!(soft.grace_seconds(Some(600), None), 600);
        assert_eq!(soft.grace_seconds(Some(0), Some(0)), 1);
        assert_eq!(soft.shortage(), Some(Shortage { threshold: 10, available: 1 }));
    }

    #[test]
    fn a_stall_is_a_hard_cause_and_names_the_threshold_that_applies() {
        let sample = |at| measured(at, &[(MEMORY, 500)])[&MEMORY];
        let none = watch("", "", "", "");
        let cause = none.stalled(300, &sample(1), seconds(1)).expect("must be one");
        assert_eq!((cause.shortage(), cause.is_hard(), cause.available), (None, true, 500));
        let mut watch = watch("", "memory.available<20%", "memory.available=1h", "");
        let cause = watch.stalled(300, &sample(1), seconds(1)).expect("must be one");
        assert_eq!(cause.shortage(), Some(Shortage { threshold: 200, available: 500 }));
        assert_eq!(cause.grace_seconds(Some(600), None), 1);
        watch.victim_chosen(PodUid("a".into()), &cause, 1, seconds(1));
        assert_eq!(watch.stalled(300, &sample(2), seconds(2)), None, "one at a time");
        watch.victim_ended(&PodUid("a".into()), seconds(3));
        assert_eq!(watch.stalled(300, &sample(3), seconds(3)), None, "old figures");
        assert!(watch.stalled(300, &sample(4), seconds(4)).is_some());
    }
}
