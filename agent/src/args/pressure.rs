//! Defines the flags of `run` for the work outside of shutdowns: the node's pressure, the causes of
//! OOM kills, and deleted pods that no kubelet terminates.

use std::time::Duration;

use agent_core::agent::{Enforcement, Features};
use agent_core::pressure::signal::Signal;
use agent_core::pressure::stall::StallConfig;
use agent_core::pressure::thresholds::{Threshold, ThresholdError, ThresholdFlags};
use agent_core::pressure::watch::EvictionConfig;
use agent_core::termination::hanging::StuckTimes;
use agent_core::time_span::TimeSpan;
use clap::{ArgAction, ValueEnum, value_parser};
use thiserror::Error;

/// The default hard thresholds. Each lies before the kubelet's default, so that the agent evicts
/// first: it has the condition acknowledged before the pod terminates. A victim with 1 s of grace
/// gives back 50Mi and 2 % in time; of inodes 1 %. The kubelet has no default for tasks, and a node
/// without tasks cannot start what would help. Images have no threshold: at 15 % left, its own
/// threshold, the kubelet deletes unused ones. Until then no pod has to go for them. ([EV21],
/// [EV30])
const HARD: &str =
    "memory.available<150Mi,nodefs.available<12%,nodefs.inodesFree<6%,pid.available<5%";
/// ms in a second.
const STALL_MS_MAX: u64 = 1_000;
/// One check of the kubelet takes up to a second.
const STUCK_AFTER_MIN: Duration = Duration::from_secs(1);
const STUCK_AFTER_MAX: Duration = Duration::from_hours(24);

/// The flags for the work outside of shutdowns.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Outside of shutdowns")]
pub struct PressureArgs {
    /// What to do when the node runs short of memory, disk or tasks: evict pods before the kubelet
    /// has to, only report which, or do not check. While the kubelet itself evicts, the agent does
    /// not.
    #[arg(long, value_name = "MODE", default_value = "observe")]
    pressure: Mode,
    /// Thresholds at which the agent evicts a pod with 1s of grace, as for the kubelet. The default
    /// lies before the kubelet's own, as it must: where the kubelet acts first, the agent only
    /// observes. Empty for none.
    #[arg(long, value_name = "SIGNAL<VALUE,...", default_value = HARD)]
    eviction_hard: String,
    /// Thresholds that must stay crossed for some time before the agent evicts a pod, as for the
    /// kubelet: memory.available<500Mi.
    #[arg(long, value_name = "SIGNAL<VALUE,...", default_value = "")]
    eviction_soft: String,
    /// That time, for each soft threshold: memory.available=1m30s.
    #[arg(long, value_name = "SIGNAL=DURATION,...", default_value = "")]
    eviction_soft_grace_period: String,
    /// How much more than a threshold must be available before a shortage counts as over:
    /// memory.available=50Mi.
    #[arg(long, value_name = "SIGNAL=VALUE,...", default_value = "")]
    eviction_minimum_reclaim: String,
    /// Maximum grace in seconds for a pod that a soft threshold evicts. Without it, or with 0 or
    /// less, the pod's own grace applies.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_hyphen_values = true)]
    eviction_max_pod_grace_period: i64,
    /// How long the node's condition still reports a shortage after a threshold was last crossed.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    eviction_pressure_transition_period: TimeSpan,
    /// Milliseconds per second in which all tasks of pods wait for memory, from which on the node
    /// counts as stalled; 0 for never.
    #[arg(long, value_name = "MS", default_value_t = StallConfig::default().full_ms_per_second,
          value_parser = value_parser!(u64).range(..=STALL_MS_MAX))]
    pressure_stall_threshold: u64,
    /// Report each pod of which the kernel killed a process for memory, and why: condition
    /// epilogue.dev/OOMKilled, which a Job's podFailurePolicy can match.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    oom_causes: bool,
    /// What follows for a pod that the kernel killed because the node had no memory left, not
    /// because of the pod's own limit: the condition alone, or also DisruptionTarget.
    #[arg(long, value_name = "POLICY", default_value = "tell")]
    node_oom: NodeOom,
    /// What to do with deleted pods that a dead or hung kubelet does not terminate, and with pods
    /// that lost their sandbox and that their kubelet neither starts again nor reports, once the
    /// runtime proves that nothing of them runs: write Failed, only report which, or do not check.
    #[arg(long, value_name = "MODE", default_value = "enforce")]
    stuck_pods: Mode,
    /// How long a kubelet must be dead before the agent fails its deleted pods. A live kubelet gets
    /// this time after the pods' grace; a hung one gets five times that.
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    stuck_after: TimeSpan,
    /// What to do with deleted pods of Jobs that hang under a live kubelet, as in an image pull.
    /// The kubelet reverts Failed until its call returns; by then a Job has counted the pod.
    #[arg(long, value_name = "POLICY", default_value = "leave")]
    hanging_starts: HangingStarts,
}

/// Whether the agent acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Does not check.
    Off,
    /// Reports what it would do.
    Observe,
    /// Acts.
    Enforce,
}

/// What follows from an OOM kill for lack of the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NodeOom {
    /// Sets the pod's condition.
    Tell,
    /// Also sets DisruptionTarget: a Job may retry without counting a failure.
    Disrupt,
}

/// What happens to pods that hang in their start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HangingStarts {
    /// Leaves them.
    Leave,
    /// Fails them.
    Fail,
}

/// Why the flags are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PressureArgsError {
    /// The thresholds are invalid.
    #[error(transparent)]
    Thresholds(#[from] ThresholdError),
    /// The transition period is infinite.
    #[error(
        "invalid --eviction-pressure-transition-period: expected a finite duration, such as 5m"
    )]
    Transition,
    /// The time is out of range.
    #[error("invalid --stuck-after: expected 1s to 1d, such as 1m")]
    StuckAfter,
    /// The grace is longer than any pod's.
    #[error(
        "--eviction-max-pod-grace-period {0} is too long; give seconds, at most {max}",
        max = u32::MAX
    )]
    MaxGrace(i64),
}

impl PressureArgs {
    /// Builds the configuration, and lists flags that are probably not meant.
    pub fn features(self) -> Result<(Features, Vec<String>), PressureArgsError> {
        let flags = ThresholdFlags {
            hard: Some(self.eviction_hard),
            soft: Some(self.eviction_soft),
            soft_grace: Some(self.eviction_soft_grace_period),
            minimum_reclaim: Some(self.eviction_minimum_reclaim),
        };
        let given = flags.thresholds()?;
        if self.eviction_pressure_transition_period == TimeSpan::INFINITY {
            return Err(PressureArgsError::Transition);
        }
        let stuck_after = self.stuck_after.duration();
        if !(STUCK_AFTER_MIN..=STUCK_AFTER_MAX).contains(&stuck_after) {
            return Err(PressureArgsError::StuckAfter);
        }
        let grace = self.eviction_max_pod_grace_period;
        let soft_grace_seconds_max = u32::try_from(grace.max(0))
            .map(|seconds| Some(seconds).filter(|seconds| *seconds > 0))
            .map_err(|_| PressureArgsError::MaxGrace(grace))?;
        let mut doubts = unused(&flags, &given);
        if grace < 0 {
            doubts.push(format!(
                "--eviction-max-pod-grace-period={grace} gives pods their own grace period here; a \
                 kubelet gives them 1s for the same value"
            ));
        }
        if self.pressure == Mode::Enforce && given.is_empty() {
            doubts.push(
                "--pressure=enforce without thresholds evicts only pods that exceed limits of \
                 their own; give --eviction-hard or --eviction-soft"
                    .to_owned(),
            );
        }
        let full_ms_per_second = match self.pressure_stall_threshold {
            0 => u64::MAX,
            given => given,
        };
        let features = Features {
            pressure: self.pressure.into(),
            eviction: EvictionConfig {
                thresholds: with_allocatable(given),
                transition: self.eviction_pressure_transition_period.duration(),
                soft_grace_seconds_max,
            },
            stalls: StallConfig { full_ms_per_second },
            oom_causes: self.oom_causes,
            node_oom_disrupts: self.node_oom == NodeOom::Disrupt,
            stuck_pods: self.stuck_pods.into(),
            fail_hanging_starts: self.hanging_starts == HangingStarts::Fail,
            stuck_times: StuckTimes::after(stuck_after),
        };
        Ok((features, doubts))
    }
}

impl From<Mode> for Enforcement {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Observe => Self::Observe,
            Mode::Enforce => Self::Enforce,
        }
    }
}

/// The pods together may reach their common limit while the node has memory left. So the node's
/// hard memory threshold holds for the pods' memory too. ([EV2])
fn with_allocatable(mut thresholds: Vec<Threshold>) -> Vec<Threshold> {
    let theirs = Signal::AllocatableMemoryAvailable;
    let is_hard = |threshold: &Threshold| threshold.grace.is_none();
    let node = |threshold: &Threshold| threshold.signal == Signal::MemoryAvailable;
    let found = thresholds.iter().position(|threshold| is_hard(threshold) && node(threshold));
    let given = thresholds.iter().any(|threshold| is_hard(threshold) && threshold.signal == theirs);
    if let Some(position) = found.filter(|_| !given) {
        let copy = Threshold { signal: theirs, ..thresholds[position] };
        let after = thresholds.iter().rposition(node).map_or(0, |last| last + 1);
        thresholds.insert(after, copy);
    }
    thresholds
}

/// Grace periods and reclaims of signals that have no matching threshold.
fn unused(flags: &ThresholdFlags, thresholds: &[Threshold]) -> Vec<String> {
    let entries = |list: &Option<String>| -> Vec<String> {
        let names = list.iter().flat_map(|list| list.split(','));
        let names = names.filter_map(|entry| entry.split_once('='));
        names.map(|(name, _)| name.trim().to_owned()).collect()
    };
    let mut doubts = Vec::new();
    let mut check = |flag: &str, list: &Option<String>, wanted: &str, soft_only: bool| {
        for name in entries(list) {
            let fits = |threshold: &&Threshold| threshold.grace.is_some() || !soft_only;
            if !thresholds.iter().filter(fits).any(|threshold| threshold.signal.name() == name) {
                doubts.push(format!("--{flag} has {name}, which has no threshold by {wanted}"));
            }
        }
    };
    check("eviction-soft-grace-period", &flags.soft_grace, "--eviction-soft", true);
    let either = "--eviction-hard or --eviction-soft";
    check("eviction-minimum-reclaim", &flags.minimum_reclaim, either, false);
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PressureArgs,
    }

    fn features(flags: &[&str]) -> Result<(Features, Vec<String>), String> {
        let line = Line::try_parse_from(["run"].iter().chain(flags));
        let args = line.map_err(|error| error.to_string())?.args;
        args.features().map_err(|error| error.to_string())
    }

    fn thresholds(features: &Features) -> String {
        let words: Vec<_> = features.eviction.thresholds.iter().map(ToString::to_string).collect();
        words.join(" ")
    }

    #[test]
    fn without_flags_pressure_is_watched_and_stuck_pods_end() {
        let (features, doubts) = features(&[]).expect("must be valid");
        assert_eq!(features.pressure, Enforcement::Observe);
        assert_eq!(features.stuck_pods, Enforcement::Enforce);
        assert!(features.oom_causes && !features.node_oom_disrupts);
        assert!(!features.fail_hanging_starts);
        assert_eq!(features.stuck_times, StuckTimes::default());
        assert_eq!(
            thresholds(&features),
            "memory.available<150Mi allocatableMemory.available<150Mi nodefs.available<12% \
             nodefs.inodesFree<6% pid.available<5%"
        );
        assert_eq!(features.eviction.transition, Duration::from_mins(5));
        assert_eq!(features.eviction.soft_grace_seconds_max, None);
        assert_eq!(features.stalls, StallConfig::default());
        assert!(doubts.is_empty(), "{doubts:?}");
    }

    #[test]
    fn given_values_arrive() {
        let (features, doubts) = features(&[
            "--pressure=enforce",
            "--eviction-hard=memory.available<1Gi,allocatableMemory.available<1%",
            "--eviction-soft=memory.available<2Gi",
            "--eviction-soft-grace-period=memory.available=90s",
            "--eviction-minimum-reclaim=memory.available=100Mi",
            "--eviction-max-pod-grace-period=60",
            "--eviction-pressure-transition-period=30s",
            "--pressure-stall-threshold=0",
            "--oom-causes=false",
            "--node-oom=disrupt",
            "--stuck-pods=off",
            "--stuck-after=30s",
            "--hanging-starts=fail",
        ])
        .expect("must be valid");
        assert_eq!(
            thresholds(&features),
            "memory.available<1Gi memory.available<2Gi for 90s allocatableMemory.available<1%"
        );
        assert_eq!(features.pressure, Enforcement::Enforce);
        assert_eq!(features.stuck_pods, Enforcement::Off);
        assert_eq!(features.eviction.soft_grace_seconds_max, Some(60));
        assert_eq!(features.eviction.transition, Duration::from_secs(30));
        assert_eq!(features.stalls.full_ms_per_second, u64::MAX);
        assert!(!features.oom_causes && features.node_oom_disrupts);
        assert!(features.fail_hanging_starts);
        assert_eq!(features.stuck_times.dead, Duration::from_secs(30));
        assert_eq!(features.stuck_times.margin, Duration::from_secs(5));
        assert!(doubts.is_empty(), "{doubts:?}");
    }

    #[test]
    fn the_pods_limit_follows_the_hard_threshold_alone() {
        let (features, _) = features(&[
            "--eviction-hard=",
            "--eviction-soft=memory.available<2Gi",
            "--eviction-soft-grace-period=memory.available=90s",
        ])
        .expect("must be valid");
        assert_eq!(thresholds(&features), "memory.available<2Gi for 90s");
    }

    #[test]
    fn what_may_not_be_meant_is_reported() {
        let table: [(&[&str], &str); 4] = [
            (&["--eviction-max-pod-grace-period=-1"], "a kubelet gives them 1s"),
            (&["--pressure=enforce", "--eviction-hard="], "without thresholds"),
            (&["--eviction-soft-grace-period=nodefs.available=1m"], "by --eviction-soft"),
            (&["--eviction-minimum-reclaim=containerfs.available=1Gi"], "containerfs.available"),
        ];
        for (flags, expected) in table {
            let (_, doubts) = features(flags).expect("must be valid");
            assert_eq!(doubts.len(), 1, "{doubts:?}");
            assert!(doubts[0].contains(expected), "{doubts:?}");
        }
    }

    #[test]
    fn what_means_nothing_names_the_flag_and_the_remedy() {
        let table: [(&[&str], &[&str]); 11] = [
            (&["--pressure=on"], &["--pressure", "observe"]),
            (&["--eviction-hard=memory<1Gi"], &["--eviction-hard", "memory.available"]),
            (&["--eviction-soft=pid.available<9"], &["--eviction-soft-grace-period"]),
            (&["--eviction-minimum-reclaim=pid.available=x"], &["--eviction-minimum-reclaim"]),
            (&["--eviction-max-pod-grace-period=4294967296"], &["--eviction-max-pod-grace-period"]),
            (&["--eviction-pressure-transition-period=infinity"], &["a finite duration", "5m"]),
            (&["--pressure-stall-threshold=1001"], &["--pressure-stall-threshold", "1000"]),
            (&["--node-oom=ignore"], &["--node-oom", "disrupt"]),
            (&["--hanging-starts=delete"], &["--hanging-starts", "leave"]),
            (&["--stuck-after=0"], &["--stuck-after", "1m"]),
            (&["--stuck-after=infinity"], &["--stuck-after", "1m"]),
        ];
        for (flags, words) in table {
            let error = features(flags).expect_err("must be refused");
            for word in words {
                assert!(error.contains(word), "{flags:?}: {error}");
            }
        }
    }
}
