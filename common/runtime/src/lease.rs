//! Elects a leader on a Lease, with the semantics of client-go: one candidate works, the others
//! wait until its lease expires or is released.
//!
//! A lease does not fence at the server. A process that was frozen may believe for a moment longer
//! that it leads: a [`Fence`] then holds its writes back. For one that was on its way already, the
//! resourceVersion or the UID in it keeps it harmless.

mod annotations;
mod decide;
mod elect;
mod fence;

use std::time::Duration;

use epilogue_common::outcome::Failure;
use thiserror::Error;

pub use annotations::Annotations;
pub use elect::{Identity, Leadership, acquire, try_acquire};
pub use fence::Fence;

/// Each candidate adds up to this factor of the retry period, so that candidates that start
/// together try at different times.
const JITTER: f64 = 1.2;

/// The lease, and how it is held. Times are those of `--leader-elect-…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// The Lease's name (`--leader-elect-resource-name`).
    pub name: String,
    /// Its namespace (`--leader-elect-resource-namespace`).
    pub namespace: String,
    /// How long other candidates wait after the last renewal.
    pub duration: Duration,
    /// How long the leader keeps working without a successful renewal.
    pub renew_deadline: Duration,
    /// The time between two attempts to acquire or renew.
    pub retry_period: Duration,
    /// Annotations that the leader keeps on the lease; one without a value it removes.
    pub annotations: Annotations,
}

impl LeaseOptions {
    /// Options with upstream's times: 15 s, 10 s and 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespace: namespace.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            annotations: Annotations::default(),
        }
    }

    /// Checks that the leader stops before another candidate starts.
    pub fn validate(&self) -> Result<(), LeaseError> {
        let bad = |rule| Err(LeaseError::Options(rule));
        if self.name.is_empty() {
            return bad("--leader-elect-resource-name must not be empty");
        }
        if self.namespace.is_empty() {
            return bad("--leader-elect-resource-namespace must not be empty");
        }
        if self.retry_period.is_zero() {
            return bad("--leader-elect-retry-period must be greater than zero");
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            return bad("--leader-elect-renew-deadline must be greater than 1.2 times \
                        --leader-elect-retry-period");
        }
        if self.duration <= self.renew_deadline {
            return bad("--leader-elect-lease-duration must be greater than \
                        --leader-elect-renew-deadline");
        }
        if self.duration < Duration::from_secs(1) {
            return bad("--leader-elect-lease-duration must be at least 1 s, the Lease's unit");
        }
        Ok(())
    }

    /// The time limit of one request: two must fit before the renew deadline.
    fn attempt_max(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// Why a lease was not acquired or not released.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// The options are incomplete, or would allow two leaders.
    #[error("{0}")]
    Options(&'static str),
    /// The wait for the lease was cancelled.
    #[error("shutdown was requested before the lease was acquired")]
    Cancelled,
    /// The release failed; the lease stays ours until it expires.
    #[error("cannot release the lease")]
    Release(#[source] Failure),
}

/// Why the leader must stop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Loss {
    /// The lease has another holder, or had one in between.
    #[error("the lease is held by {holder:?}")]
    Taken {
        /// The holder that the lease names.
        holder: String,
    },
    /// No renewal succeeded in time.
    #[error("the lease was not renewed for {} s", after.as_secs())]
    NotRenewed {
        /// The renew deadline.
        after: Duration,
    },
    /// The task that renews the lease is gone.
    #[error("nothing renews the lease any more")]
    Unattended,
}

/// A unique name of this process: the host's name and a random number.
pub fn unique_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "unknown" } else { host.trim() };
    format!("{host}_{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_allow_two_leaders_are_refused_by_the_flag_s_name() {
        let options = LeaseOptions::new("a", "b");
        assert!(options.validate().is_ok());
        let seconds = Duration::from_secs_f64;
        let table = [
            (15.0, 15.0, 2.0, "--leader-elect-lease-duration must be greater than"),
            (15.0, 2.4, 2.0, "--leader-elect-renew-deadline must be greater than 1.2 times"),
            (15.0, 10.0, 0.0, "--leader-elect-retry-period must be"),
            (0.9, 0.5, 0.1, "--leader-elect-lease-duration must be at least 1 s"),
        ];
        for (duration, renew, retry, message) in table {
            let options = LeaseOptions {
                duration: seconds(duration),
                renew_deadline: seconds(renew),
                retry_period: seconds(retry),
                ..options.clone()
            };
            let error = options.validate().expect_err(message).to_string();
            assert!(error.starts_with(message), "{error}");
        }
        assert!(LeaseOptions::new("", "b").validate().is_err());
        assert!(LeaseOptions::new("a", "").validate().is_err());
    }

    #[test]
    fn no_two_names_are_alike() {
        let (first, second) = (unique_name(), unique_name());
        assert_ne!(first, second);
        assert!(!first.contains(char::is_whitespace), "{first}");
    }
}
