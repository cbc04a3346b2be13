//! Names what is wrong with the command line, and what to give instead.

use controller_core::go_duration::GoDuration;
use epilogue_runtime::lease::LeaseError;
use thiserror::Error;

/// Why the arguments are invalid.
#[derive(Debug, Error)]
pub enum ArgsError {
    /// A base is above its maximum.
    #[error(
        "--{base_flag} {base} is longer than --{max_flag} {max}; lower the first or raise the \
         second"
    )]
    BaseAboveMax {
        base_flag: &'static str,
        base: GoDuration,
        max_flag: &'static str,
        max: GoDuration,
    },
    /// A duration that must not be zero is zero.
    #[error("--{0} must be longer than 0; the default is {1}")]
    Zero(&'static str, &'static str),
    /// A number is out of bounds.
    #[error("invalid --{flag} {value}: expected {min} to {max}")]
    Bounds { flag: &'static str, value: usize, min: usize, max: usize },
    /// A name that no Job can have.
    #[error(
        "invalid --external-job-controllers: {0:?} cannot be the managedBy of a Job; expected a \
         domain and a path of at most 63 characters together, such as example.com/controller"
    )]
    ExternalController(String),
    /// The rate is not a positive number.
    #[error(
        "invalid --kube-api-qps {0}: expected a number of requests per second, such as 50, or 0 \
         for no limit"
    )]
    Rate(f64),
    /// The quarantine is too short.
    #[error("--pod-gc-quarantine {0} is too short; give at least 1s, the default is 40s")]
    Quarantine(GoDuration),
    /// The rate of pod GC is not a positive number.
    #[error("invalid --pod-gc-qps {0}: expected a number of requests per second, such as 200")]
    PodGcRate(f64),
    /// A burst is given without a rate.
    #[error("--kube-api-burst has no effect without --kube-api-qps; give both or neither")]
    BurstWithoutRate,
    /// The lease's options are inconsistent.
    #[error("{0}")]
    Lease(#[from] LeaseError),
}
