//! Defines identity and age of an API object as newtypes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// `metadata.uid`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Uid(Arc<str>);

impl Uid {
    /// The text of the UID.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.0.as_ref().to_owned()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// `metadata.resourceVersion` as the number that the API lets clients compare from 1.35 on.
///
/// A version that is not a number reads as zero, which never blocks anything ([Z2], [Z3]).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version(pub u64);

impl Version {
    /// Reads the API's text.
    pub fn parse(text: &str) -> Self {
        let canonical = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        Self(if canonical { text.parse().unwrap_or(0) } else { 0 })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_decimal_versions_compare() {
        assert!(Version::parse("99") < Version::parse("100"));
        for odd in ["", "0", "007", "1a", "-1", "99999999999999999999999"] {
            assert_eq!(Version::parse(odd), Version(0), "{odd:?}");
        }
    }
}
