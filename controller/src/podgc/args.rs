//! Parses the flags of pod GC and of disruption, and checks that their values are consistent.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use controller_core::go_duration::GoDuration;
use controller_core::podgc::{KeptFor, Mode, Settings, StaleReset};
use jiff::SignedDuration;

use crate::args_error::ArgsError;

/// Upstream's default of `--terminated-pod-gc-threshold`.
const FINISHED_MAX: i64 = 12_500;
/// More concurrent calls only queue up in the API server.
const CALLS_MAX: usize = 50;

/// Shortest quarantine of a missing node.
const QUARANTINE_MIN: Duration = Duration::from_secs(1);

/// The flags of pod GC and of disruption.
#[derive(Clone, Debug, Args)]
pub(crate) struct PodGcArgs {
    /// Fail and delete pods that no kubelet can terminate any more: alongside
    /// kube-controller-manager's pod GC, or instead of it, if that runs with
    /// --controllers=*,-pod-garbage-collector-controller. With observe, write nothing, neither
    /// conditions nor deletions nor taints, and report by events and metrics what would be
    /// written.
    #[arg(long, value_name = "MODE", value_enum, default_value = "alongside")]
    pod_gc: ModeArg,
    /// How long a node must be gone before its pods are failed and deleted.
    #[arg(long, value_name = "DURATION", default_value = "40s")]
    pod_gc_quarantine: GoDuration,
    /// Number of pods that are checked and written concurrently. Where the API server is busy, more
    /// workers gain nothing and delay other clients.
    #[arg(long, value_name = "N", default_value_t = 5)]
    concurrent_pod_gc_syncs: usize,
    /// Maximum requests to the API server per second for pod GC and disruption, apart from those
    /// for Jobs.
    #[arg(long, value_name = "QPS", default_value_t = 200.0)]
    pod_gc_qps: f64,
    /// Burst of requests beyond --pod-gc-qps.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pod_gc_burst: u32,
    /// Set DisruptionTarget on a pod that is failed because of its node's out-of-service taint.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    out_of_service_disruption_target: bool,
    /// Also set DisruptionTarget on a pod that was deleted before it had a node.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    unscheduled_disruption_target: bool,
    /// Delete finished pods of the cluster beyond this many; 0 for no limit. Default: 12500 with
    /// --pod-gc=instead, otherwise no limit, because kube-controller-manager enforces its own.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    terminated_pod_gc_threshold: Option<i64>,
    /// Delete finished pods after a time by reason or phase, such as Evicted=1h,Failed=24h.
    #[arg(long, value_name = "REASON=DURATION", value_delimiter = ',', value_parser = kept_for)]
    finished_pod_ttl: Vec<(String, SignedDuration)>,
    /// Keep at most this many failed pods per owner, and delete the others.
    #[arg(long, value_name = "N")]
    failed_pods_kept_per_owner: Option<usize>,
    /// Which leftover DisruptionTarget conditions are reset: none, those with the reason
    /// TerminationByKubelet, or also those that kube-controller-manager resets.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "epilogue")]
    stale_disruption_reset: StaleArg,
    /// Minimum age of a leftover condition before it is reset.
    #[arg(long, value_name = "DURATION", default_value = "2m0s")]
    stale_disruption_timeout: GoDuration,
    /// Set DisruptionTarget on the pods of a node that shuts down, where its agent did not.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    node_shutdown_marks: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArg {
    Off,
    Observe,
    Alongside,
    Instead,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StaleArg {
    Off,
    Epilogue,
    All,
}

/// The configuration that the flags give.
#[derive(Clone, Debug)]
pub(crate) struct PodGcConfig {
    pub(crate) settings: Settings,
    pub(crate) workers: usize,
    /// Requests per second, and the burst.
    pub(crate) bucket: (f64, u32),
}

impl PodGcArgs {
    /// What pod GC does; a controller that observes limits it.
    fn limited(&self, enforce: bool) -> ModeArg {
        match self.pod_gc {
            ModeArg::Alongside | ModeArg::Instead if !enforce => ModeArg::Observe,
            given => given,
        }
    }

    /// The value of `--pod-gc`, as limited by the mode.
    pub(crate) fn mode(&self, enforce: bool) -> Option<String> {
        self.limited(enforce).to_possible_value().map(|value| value.get_name().to_owned())
    }

    /// Returns the configuration, or why the flags are invalid.
    /// A controller that observes writes nothing, so without pod GC it has no rule left.
    pub(crate) fn config(self, enforce: bool) -> Result<PodGcConfig, ArgsError> {
        let workers = self.concurrent_pod_gc_syncs;
        if workers == 0 || workers > CALLS_MAX {
            let flag = "concurrent-pod-gc-syncs";
            return Err(ArgsError::Bounds { flag, value: workers, min: 1, max: CALLS_MAX });
        }
        if !self.pod_gc_qps.is_finite() || self.pod_gc_qps <= 0.0 {
            return Err(ArgsError::PodGcRate(self.pod_gc_qps));
        }
        // The API is asked this often for a node that it has and the watch does not show.
        if self.pod_gc_quarantine.0 < QUARANTINE_MIN {
            return Err(ArgsError::Quarantine(self.pod_gc_quarantine));
        }
        let mode = match self.limited(enforce) {
            ModeArg::Off => Mode::Off,
            ModeArg::Observe => Mode::Observe,
            ModeArg::Alongside => Mode::Alongside,
            ModeArg::Instead => Mode::Instead,
        };
        let idle = !enforce && mode == Mode::Off;
        let threshold = self.terminated_pod_gc_threshold;
        let threshold = threshold.or((mode == Mode::Instead).then_some(FINISHED_MAX));
        let settings = Settings {
            mode,
            quarantine: signed(self.pod_gc_quarantine),
            out_of_service_target: self.out_of_service_disruption_target,
            unscheduled_target: self.unscheduled_disruption_target,
            finished_max: threshold.filter(|max| *max > 0).and_then(|max| max.try_into().ok()),
            kept_for: KeptFor::new(self.finished_pod_ttl),
            failed_per_owner_max: self.failed_pods_kept_per_owner,
            stale_reset: match self.stale_disruption_reset {
                _ if idle => StaleReset::Off,
                StaleArg::Off => StaleReset::Off,
                StaleArg::Epilogue => StaleReset::Epilogue,
                StaleArg::All => StaleReset::All,
            },
            stale_after: signed(self.stale_disruption_timeout),
            marks: self.node_shutdown_marks && !idle,
        };
        Ok(PodGcConfig { settings, workers, bucket: (self.pod_gc_qps, self.pod_gc_burst.max(1)) })
    }
}

/// Parses `REASON=DURATION`.
fn kept_for(text: &str) -> Result<(String, SignedDuration), String> {
    let (reason, kept) =
        text.split_once('=').ok_or("expected REASON=DURATION, such as Evicted=1h")?;
    let kept: GoDuration = kept.parse().map_err(|error| format!("{error}"))?;
    Ok((reason.to_owned(), signed(kept)))
}

/// A duration beyond the signed range becomes the maximum.
fn signed(duration: GoDuration) -> SignedDuration {
    SignedDuration::try_from(duration.0).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: PodGcArgs,
    }

    fn config(args: &[&str]) -> Result<PodGcConfig, String> {
        let args = ["program"].iter().chain(args);
        let program = Program::try_parse_from(args).map_err(|error| error.to_string())?;
        program.args.config(true).map_err(|error| error.to_string())
    }

    fn settings(args: &[&str]) -> Settings {
        config(args).expect("must be valid").settings
    }

    #[test]
    fn without_flags_pods_are_ended_and_finished_ones_left_to_others() {
        assert_eq!(settings(&[]), Settings::default());
        assert_eq!(settings(&[]).finished_max, None);
    }

    #[test]
    fn instead_of_upstream_its_threshold_holds_unless_another_is_given() {
        assert_eq!(settings(&["--pod-gc=instead"]).finished_max, Some(12_500));
        let given = |threshold: &str| settings(&["--pod-gc=instead", threshold]).finished_max;
        assert_eq!(given("--terminated-pod-gc-threshold=7"), Some(7));
        assert_eq!(given("--terminated-pod-gc-threshold=0"), None);
        assert_eq!(given("--terminated-pod-gc-threshold=-1"), None);
    }

    #[test]
    fn times_by_reason_are_read_in_one_flag() {
        let kept_for = settings(&["--finished-pod-ttl=Evicted=1h,Failed=24h"]).kept_for;
        assert_eq!(kept_for.of(Some("Evicted"), "Failed"), Some(SignedDuration::from_hours(1)));
        assert_eq!(kept_for.of(Some("Other"), "Failed"), Some(SignedDuration::from_hours(24)));
        assert_eq!(kept_for.of(None, "Succeeded"), None);
        let error = config(&["--finished-pod-ttl=Evicted"]).expect_err("must be refused");
        assert!(error.contains("Evicted=1h"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_remedy() {
        for (flag, words) in [
            ("--concurrent-pod-gc-syncs=0", "expected 1 to 50"),
            ("--concurrent-pod-gc-syncs=51", "1 to 50"),
            ("--pod-gc-qps=0", "invalid --pod-gc-qps 0: expected"),
            ("--pod-gc-quarantine=0", "at least 1s"),
            ("--pod-gc=maybe", "alongside"),
        ] {
            let error = config(&[flag]).expect_err("must be refused");
            assert!(error.contains(words), "{error}");
        }
    }
}
