//! Reads a Lease: whether its holder is alive.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::times::MARGIN;

/// Namespace and name of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseName {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaseSeen {
    pub(super) holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    pub(super) renew_time: Option<Timestamp>,
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => {
                Err("expected NAMESPACE/NAME, such as epilogue-system/epilogue-controller"
                    .to_owned())
            }
        }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

impl LeaseSeen {
    /// Whether its holder is alive now, give or take the difference of clocks.
    pub(super) fn is_alive(&self, now: Timestamp) -> bool {
        let lasts = SignedDuration::from_secs(self.lease_duration_seconds.unwrap_or(0));
        let held = self.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty());
        let lasts = lasts.saturating_add(MARGIN);
        held && self.renew_time.is_some_and(|renewed| now.duration_since(renewed) <= lasts)
    }
}
