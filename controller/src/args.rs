//! Parses the command line of the controller, and checks that its values are consistent.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use controller_core::batching::Batching;
use controller_core::job::Settings;
use controller_core::workqueue::FailureDelay;
use epilogue_common::names::lease;
use epilogue_runtime::client::ClientOptions;
use epilogue_runtime::lease::{Annotations, LeaseOptions};
use epilogue_runtime::rate_limit::RateLimit;
use epilogue_runtime::telemetry::{LogFilter, LogFormat};
use jiff::SignedDuration;

use controller_core::go_duration::GoDuration;

use crate::admin_args::{AdminArgs, AdminConfig};
use crate::args_error::ArgsError;
use crate::podgc::args::{PodGcArgs, PodGcConfig};

/// More workers only wait for each other.
const SYNCS_MAX: usize = 1000;

/// Each is a series of a metric.
const EXTERNAL_MAX: usize = 50;

/// The API's limit of `spec.managedBy`.
const MANAGED_BY_MAX: usize = 63;

/// Runs batch/v1 Jobs whose `spec.managedBy` is epilogue.dev/job-controller.
#[derive(Clone, Debug, Parser)]
#[command(name = "epilogue-controller", version, about)]
pub struct Args {
    /// Kubeconfig file. Without it: the pod's service account, or the file that kubectl uses.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Whether the controller acts: enforce, or observe, which runs no Job and writes events and
    /// its lease, and nothing else. It limits --pod-gc to observe.
    #[arg(long, value_name = "MODE", value_enum, env = "EPILOGUE_MODE", default_value = "observe")]
    mode: Mode,
    /// Also run Jobs without managedBy; kube-controller-manager must then run with
    /// --controllers=*,-job-controller.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    manage_all_jobs: bool,
    /// Other values of managedBy, separated by commas, that
    /// job_controller_jobs_by_external_controller_total counts by name; all others are "other".
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    external_job_controllers: Vec<String>,
    /// Watch only the Jobs and pods of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Number of Jobs that are synced concurrently. A sync that has waited 0.5s for an answer of
    /// the API does not count; of those at most 512 go on at once, and of one namespace a part. As
    /// many more, less one, are of namespaces that have no other sync in progress.
    #[arg(long, value_name = "N", default_value_t = 5)]
    concurrent_job_syncs: usize,
    /// Delay each sync that a change of a pod or a status causes by this long;
    /// kube-controller-manager uses 1s. Without it the delay is at most 1s, and 0 where waiting
    /// saves no write.
    #[arg(long, value_name = "DURATION")]
    sync_job_batch_period: Option<GoDuration>,
    /// Backoff before new pods after the first failure; doubled with each further failure.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    default_job_pod_failure_backoff: GoDuration,
    /// Maximum backoff before new pods after failures.
    #[arg(long, value_name = "DURATION", default_value = "10m0s")]
    max_job_pod_failure_backoff: GoDuration,
    /// Minimum backoff that a Job's annotations can set; without it 1s, or
    /// --default-job-pod-failure-backoff if that is shorter.
    #[arg(long, value_name = "DURATION")]
    min_job_pod_failure_backoff: Option<GoDuration>,
    /// Backoff before a failed sync is retried; doubled with each consecutive failure.
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    default_job_api_backoff: GoDuration,
    /// Maximum backoff before a failed sync is retried; without a connection it is 5s.
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    max_job_api_backoff: GoDuration,
    /// Maximum number of finished pods that one sync counts.
    #[arg(long, value_name = "N", default_value_t = 500)]
    max_uncounted_pods: usize,
    /// Maximum number of pods that one sync creates, or deletes as excess.
    #[arg(long, value_name = "N", default_value_t = 500)]
    max_pod_create_delete_per_sync: usize,
    /// How long a sync waits for the watch to show a pod's deletion before it goes on
    /// without.
    #[arg(long, value_name = "DURATION", default_value = "5m0s")]
    expectations_timeout: GoDuration,
    /// Work only while holding the lease, so that only one of several replicas works.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    leader_elect: bool,
    /// Name of the lease.
    #[arg(long, value_name = "NAME", default_value = "epilogue-controller")]
    leader_elect_resource_name: String,
    /// Namespace of the lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    leader_elect_resource_namespace: String,
    /// How long other candidates wait after the leader's last renewal.
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    leader_elect_lease_duration: GoDuration,
    /// How long the leader keeps working without a successful renewal.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    leader_elect_renew_deadline: GoDuration,
    /// Time between two attempts to acquire or renew the lease.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    leader_elect_retry_period: GoDuration,
    #[command(flatten)]
    admin: AdminArgs,
    /// Maximum requests to the API server per second, next to a quarter as many for events and
    /// --pod-gc-qps; 0 leaves the limit to the server.
    #[arg(long, value_name = "QPS", default_value_t = 0.0)]
    kube_api_qps: f64,
    /// Burst of requests to the API server beyond --kube-api-qps.
    #[arg(long, value_name = "N", default_value_t = 0)]
    kube_api_burst: u32,
    /// Whether a pod that its kubelet rejected for a reason of the node, such as OutOfcpu, becomes
    /// a disruption target before it is counted.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    rejected_pods_disruption_target: bool,
    /// Whether a pod whose containers its node lost, as in a boot, becomes a disruption target
    /// before it is counted.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    lost_pods_disruption_target: bool,
    /// Log format: json, or text for people.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    log_format: LogFormat,
    /// Log filter: a level, or target=level, separated by commas.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log_level: LogFilter,
    /// Verify each plan before it is carried out, and log violations.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    check_plans: bool,
    #[command(flatten)]
    pod_gc: PodGcArgs,
}

/// Whether the controller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Reports what it would do.
    Observe,
    /// Acts.
    Enforce,
}

/// The configuration that the arguments give.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the controller acts.
    pub(crate) enforce: bool,
    pub(crate) client: ClientOptions,
    pub(crate) namespace: Option<String>,
    pub(crate) external_job_controllers: Vec<String>,
    pub(crate) settings: Settings,
    pub(crate) batching: Batching,
    pub(crate) api_backoff: FailureDelay,
    pub(crate) workers: usize,
    pub(crate) lease: Option<LeaseOptions>,
    pub(crate) admin: AdminConfig,
    pub(crate) check_plans: bool,
    pub(crate) pod_gc: PodGcConfig,
}

impl Args {
    /// The format of log lines.
    pub fn log_format(&self) -> LogFormat {
        self.log_format
    }

    /// Which log lines are written.
    pub fn log_level(&self) -> &LogFilter {
        &self.log_level
    }

    /// Returns the configuration, or why the arguments are invalid.
    pub fn config(self) -> Result<Config, ArgsError> {
        self.check_backoffs()?;
        self.check_limits()?;
        self.check_external()?;
        let bucket = self.bucket()?;
        let user_agent = concat!("epilogue-controller/", env!("CARGO_PKG_VERSION")).to_owned();
        // A request that sleeps holds what others need; the workqueue waits instead.
        let rate_limit = RateLimit { bucket, retries_max: 0, ..RateLimit::default() };
        let lease = self.leader_elect.then(|| self.lease());
        if let Some(lease) = &lease {
            lease.validate()?;
        }
        let backoff = |duration: GoDuration| signed(duration.0);
        let enforce = self.mode == Mode::Enforce;
        Ok(Config {
            enforce,
            settings: Settings {
                manage_all_jobs: self.manage_all_jobs,
                default_job_pod_failure_backoff: backoff(self.default_job_pod_failure_backoff),
                max_job_pod_failure_backoff: backoff(self.max_job_pod_failure_backoff),
                min_job_pod_failure_backoff: backoff(self.min_backoff()),
                max_uncounted_pods: self.max_uncounted_pods,
                max_pod_create_delete_per_sync: self.max_pod_create_delete_per_sync,
                expectations_timeout: backoff(self.expectations_timeout),
                rejected_disruption_target: self.rejected_pods_disruption_target,
                lost_disruption_target: self.lost_pods_disruption_target,
                ..Settings::default()
            },
            batching: match self.sync_job_batch_period {
                Some(period) => Batching::Fixed(period.0),
                None => Batching::Adaptive,
            },
            api_backoff: FailureDelay {
                base: self.default_job_api_backoff.0,
                max: self.max_job_api_backoff.0,
            },
            workers: self.concurrent_job_syncs,
            lease,
            namespace: self.namespace,
            external_job_controllers: self.external_job_controllers,
            admin: self.admin.config(),
            check_plans: self.check_plans,
            pod_gc: self.pod_gc.config(enforce)?,
            client: ClientOptions { kubeconfig: self.kubeconfig, user_agent, rate_limit },
        })
    }

    fn check_backoffs(&self) -> Result<(), ArgsError> {
        let pairs = [
            (
                ("min-job-pod-failure-backoff", self.min_backoff()),
                ("default-job-pod-failure-backoff", self.default_job_pod_failure_backoff),
            ),
            (
                ("default-job-pod-failure-backoff", self.default_job_pod_failure_backoff),
                ("max-job-pod-failure-backoff", self.max_job_pod_failure_backoff),
            ),
            (
                ("default-job-api-backoff", self.default_job_api_backoff),
                ("max-job-api-backoff", self.max_job_api_backoff),
            ),
        ];
        for ((base_flag, base), (max_flag, max)) in pairs {
            if base > max {
                return Err(ArgsError::BaseAboveMax { base_flag, base, max_flag, max });
            }
        }
        if self.default_job_api_backoff.0.is_zero() {
            return Err(ArgsError::Zero("default-job-api-backoff", "1s"));
        }
        if self.expectations_timeout.0.is_zero() {
            return Err(ArgsError::Zero("expectations-timeout", "5m0s"));
        }
        Ok(())
    }

    /// `--min-job-pod-failure-backoff`.
    fn min_backoff(&self) -> GoDuration {
        let default = GoDuration(Duration::from_secs(1)).min(self.default_job_pod_failure_backoff);
        self.min_job_pod_failure_backoff.unwrap_or(default)
    }

    fn check_limits(&self) -> Result<(), ArgsError> {
        // The API's limit of a Job's parallelism.
        let pods_max = 100_000;
        let numbers = [
            ("concurrent-job-syncs", self.concurrent_job_syncs, SYNCS_MAX),
            ("max-uncounted-pods", self.max_uncounted_pods, pods_max),
            ("max-pod-create-delete-per-sync", self.max_pod_create_delete_per_sync, pods_max),
        ];
        for (flag, value, max) in numbers {
            if value == 0 || value > max {
                return Err(ArgsError::Bounds { flag, value, min: 1, max });
            }
        }
        Ok(())
    }

    fn check_external(&self) -> Result<(), ArgsError> {
        let names = &self.external_job_controllers;
        if names.len() > EXTERNAL_MAX {
            let (flag, value) = ("external-job-controllers", names.len());
            return Err(ArgsError::Bounds { flag, value, min: 1, max: EXTERNAL_MAX });
        }
        match names.iter().find(|name| !can_be_managed_by(name)) {
            Some(name) => Err(ArgsError::ExternalController(name.clone())),
            None => Ok(()),
        }
    }

    fn bucket(&self) -> Result<Option<(f64, u32)>, ArgsError> {
        let rate = self.kube_api_qps;
        if !rate.is_finite() || rate < 0.0 {
            return Err(ArgsError::Rate(rate));
        }
        match (rate > 0.0, self.kube_api_burst) {
            (false, 0) => Ok(None),
            (false, _) => Err(ArgsError::BurstWithoutRate),
            (true, burst) => Ok(Some((rate, burst.max(1)))),
        }
    }

    fn lease(&self) -> LeaseOptions {
        LeaseOptions {
            name: self.leader_elect_resource_name.clone(),
            namespace: self.leader_elect_resource_namespace.clone(),
            duration: self.leader_elect_lease_duration.0,
            renew_deadline: self.leader_elect_renew_deadline.0,
            retry_period: self.leader_elect_retry_period.0,
            annotations: self.annotations(),
        }
    }

    /// By these, `kubectl epilogue` knows how the leader runs.
    fn annotations(&self) -> Annotations {
        [
            (lease::VERSION, Some(env!("CARGO_PKG_VERSION").to_owned())),
            (lease::MANAGE_ALL_JOBS, Some(self.manage_all_jobs.to_string())),
            (lease::WATCH_NAMESPACE, self.namespace.clone()),
            (lease::MODE, self.pod_gc.mode(self.mode == Mode::Enforce)),
            (lease::RUNS_JOBS, Some((self.mode == Mode::Enforce).to_string())),
            // Known once the API has been asked.
            (lease::GANG_SCHEDULING, None),
        ]
        .into()
    }
}

/// Whether the API takes it as `spec.managedBy`: a domain, a slash and a path.
fn can_be_managed_by(name: &str) -> bool {
    let is_alphanumeric = |part: &str| {
        let ends = [part.chars().next(), part.chars().next_back()];
        ends.iter().all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
    };
    let consists_of = |part: &str, more: &str| {
        part.chars().all(|char| char.is_ascii_alphanumeric() || more.contains(char))
    };
    let Some((domain, path)) = name.split_once('/') else { return false };
    let is_domain =
        domain.split('.').all(|label| is_alphanumeric(label) && consists_of(label, "-"))
            && !domain.contains(char::is_uppercase);
    let is_path = !path.is_empty() && consists_of(path, "/%!$&'()*+,;=:@-._~");
    name.len() <= MANAGED_BY_MAX && is_domain && is_path
}

/// A duration beyond the signed range becomes the maximum.
fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn config(args: &[&str]) -> Result<Config, String> {
        let args = ["epilogue-controller"].iter().chain(args);
        let args = Args::try_parse_from(args).map_err(|error| error.to_string())?;
        args.config().map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_arguments_the_defaults_of_the_core_hold() {
        let config = config(&[]).expect("must be valid");
        assert!(!config.enforce, "it only observes");
        assert_eq!(config.settings, Settings::default());
        assert_eq!(config.batching, Batching::Adaptive);
        let (base, max) = (Duration::from_secs(1), Duration::from_mins(1));
        assert_eq!(config.api_backoff, FailureDelay { base, max });
        assert_eq!((config.workers, config.client.rate_limit.bucket), (5, None));
        assert_eq!(config.lease.map(|lease| lease.name).as_deref(), Some("epilogue-controller"));
        let AdminConfig { metrics, probes, scrapers, .. } = &config.admin;
        let admin = [metrics, probes, scrapers].map(ToString::to_string);
        assert_eq!(admin, ["127.0.0.1:8080", "0", "0"], "no port is open to other machines");
    }

    #[test]
    fn given_values_arrive() {
        let config = config(&[
            "--manage-all-jobs",
            "--sync-job-batch-period=250ms",
            "--max-job-pod-failure-backoff=1h0m0s",
            "--kube-api-qps=20",
            "--kube-api-burst=30",
            "--leader-elect=true",
            "--leader-elect-resource-namespace=jobs",
        ])
        .expect("must be valid");
        assert!(config.settings.manage_all_jobs);
        assert_eq!(config.batching, Batching::Fixed(Duration::from_millis(250)));
        let hour = SignedDuration::from_hours(1);
        assert_eq!(config.settings.max_job_pod_failure_backoff, hour);
        assert_eq!(config.client.rate_limit.bucket, Some((20.0, 30)));
        let lease = config.lease.expect("must be there");
        let expected = LeaseOptions::new("jobs", "epilogue-controller");
        assert_eq!(lease, LeaseOptions { annotations: lease.annotations.clone(), ..expected });
    }

    #[test]
    fn names_of_other_controllers_are_those_that_the_api_takes() {
        let given = config(&["--external-job-controllers=example.com/a,b.example.com/c/d"]);
        let names = given.expect("must be valid").external_job_controllers;
        assert_eq!(names, ["example.com/a", "b.example.com/c/d"]);
        let long = format!("example.com/{}", "a".repeat(52));
        for bad in ["a", "/a", "a/", "A.com/a", "a..b/c", "-a.com/b", "a b.com/c", &long] {
            assert!(!can_be_managed_by(bad), "{bad}");
        }
        assert!(can_be_managed_by(&long[..MANAGED_BY_MAX]));
        let many: Vec<String> = (0..=EXTERNAL_MAX).map(|number| format!("a.b/{number}")).collect();
        let error = config(&[&format!("--external-job-controllers={}", many.join(","))]);
        assert!(error.expect_err("too many").contains("51: expected 1 to 50"));
    }

    #[test]
    fn the_lease_tells_how_the_leader_runs() {
        let said = |args: &[&str]| {
            let lease = config(args).expect("must be valid").lease.expect("must be there");
            let text = |name: &str| lease.annotations.get(name).unwrap_or_default();
            [lease::MANAGE_ALL_JOBS, lease::WATCH_NAMESPACE, lease::MODE].map(text)
        };
        assert_eq!(said(&["--mode=enforce"]), ["false", "", "alongside"]);
        let args = ["--mode=enforce", "--manage-all-jobs", "--namespace=work", "--pod-gc=observe"];
        assert_eq!(said(&args), ["true", "work", "observe"]);
    }

    #[test]
    fn a_controller_that_observes_says_that_it_runs_no_job_and_limits_pod_gc() {
        let said = |args: &[&str]| {
            let lease = config(args).expect("must be valid").lease.expect("must be there");
            let text = |name: &str| lease.annotations.get(name).unwrap_or_default();
            [lease::RUNS_JOBS, lease::MODE].map(text)
        };
        assert_eq!(said(&[]), ["false", "observe"]);
        assert_eq!(said(&["--pod-gc=instead"]), ["false", "observe"]);
        assert_eq!(said(&["--pod-gc=off"]), ["false", "off"]);
        assert_eq!(said(&["--mode=enforce"]), ["true", "alongside"]);
        let off = config(&["--pod-gc=off"]).expect("must be valid");
        assert!(off.pod_gc.settings.is_idle(), "no rule is left that could write");
    }

    #[test]
    fn what_does_not_go_together_names_the_flag_and_the_remedy() {
        let table: [(&[&str], &[&str]); 14] = [
            (
                &["--external-job-controllers=example.com/a,kueue"],
                &["--external-job-controllers: \"kueue\"", "example.com/controller"],
            ),
            (&["--external-job-controllers="], &["--external-job-controllers: \"\""]),
            (
                &["--min-job-pod-failure-backoff=11s"],
                &["--min-job-pod-failure-backoff 11s", "--default-job-pod-failure-backoff 10s"],
            ),
            (&["--default-job-api-backoff=2m"], &["--max-job-api-backoff 1m0s", "lower"]),
            (&["--max-job-pod-failure-backoff=1s"], &["--default-job-pod-failure-backoff 10s"]),
            (&["--default-job-api-backoff=0"], &["longer than 0", "1s"]),
            (
                &["--concurrent-job-syncs=0"],
                &["invalid --concurrent-job-syncs 0: expected 1 to 1000"],
            ),
            (&["--max-uncounted-pods=100001"], &["1 to 100000"]),
            (
                &["--kube-api-qps=-1"],
                &["invalid --kube-api-qps -1: expected", "such as 50, or 0 for no"],
            ),
            (&["--kube-api-burst=5"], &["--kube-api-qps"]),
            (&["--sync-job-batch-period=1"], &["--sync-job-batch-period", "500ms"]),
            (&["--leader-elect-lease-duration=1s"], &["--leader-elect-lease-duration"]),
            (&["--mode=off"], &["--mode", "observe, enforce"]),
            (&["--otlp-endpoint="], &["unexpected argument '--otlp-endpoint'"]),
        ];
        let short = config(&["--default-job-pod-failure-backoff=10ms"]).expect("must be valid");
        assert_eq!(short.settings.min_job_pod_failure_backoff, SignedDuration::from_millis(10));
        assert!(config(&["--leader-elect=false"]).is_ok_and(|config| config.lease.is_none()));
        for (args, words) in table {
            let error = config(args).expect_err("must be refused");
            for word in words {
                assert!(error.contains(word), "{args:?}: {error}");
            }
        }
    }
}
