//! Names what a real node may run: releases of Debian, with Debian's container runtime or the
//! newest one, and versions of the kubelet. Pure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::kubernetes::Version;

/// The system of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum System {
    /// Debian 12, bookworm: systemd 252, containerd 1.6.
    #[serde(rename = "debian-12")]
    Debian12,
    /// Debian 13, trixie: systemd 257, containerd 1.7.
    #[serde(rename = "debian-13")]
    Debian13,
    /// Debian's unstable release: the newest systemd, containerd 2.
    #[serde(rename = "debian-sid")]
    DebianSid,
    /// Debian 13 with containerd and runc from the modules of `tests/node/runtime`.
    #[serde(rename = "newest-runtime")]
    NewestRuntime,
}

/// The system of a machine, and its kubelet. The control plane has the kubelet's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The system.
    pub system: System,
    /// The version of kubelet and control plane.
    pub kubernetes: Version,
}

/// A text that names no system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown system {found:?}: expected one of {}", System::ALL.map(System::name).join(", "))]
pub struct UnknownSystem {
    found: String,
}

impl System {
    /// All systems.
    pub const ALL: [Self; 4] =
        [Self::Debian12, Self::Debian13, Self::DebianSid, Self::NewestRuntime];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debian12 => "debian-12",
            Self::Debian13 => "debian-13",
            Self::DebianSid => "debian-sid",
            Self::NewestRuntime => "newest-runtime",
        }
    }

    /// Debian's name of the release.
    pub(super) fn suite(self) -> &'static str {
        match self {
            Self::Debian12 => "bookworm",
            Self::Debian13 | Self::NewestRuntime => "trixie",
            Self::DebianSid => "sid",
        }
    }

    /// Whether containerd and runc are not those of Debian.
    pub(super) fn has_own_runtime(self) -> bool {
        self == Self::NewestRuntime
    }

    /// Whether its systemd can restart all of user space without the kernel (254 and newer).
    pub fn has_soft_reboot(self) -> bool {
        self != Self::Debian12
    }
}

impl Platform {
    /// What the suite `node` runs on.
    pub const DEFAULT: Self = Self { system: System::Debian12, kubernetes: Version::NODE };

    /// Those of the matrix: each system with the newest kubelet, and each older kubelet that it has
    /// on the default system.
    pub fn all() -> Vec<Self> {
        let newest = System::ALL.map(|system| Self { system, ..Self::DEFAULT });
        let older = Version::KNOWN.into_iter().rev().filter(|version| version.has_kubelet());
        let older = older.map(|kubernetes| Self { kubernetes, ..Self::DEFAULT });
        newest.into_iter().chain(older.filter(|platform| *platform != Self::DEFAULT)).collect()
    }

    /// The kind of a cached artefact that depends on the system, the kubelet, or both. The default
    /// has none of these in its name.
    pub(super) fn kind(self, what: &str, of_system: bool, of_kubelet: bool) -> String {
        let mut kind = what.to_owned();
        if of_kubelet && self.kubernetes != Version::NODE {
            kind = format!("{}-{kind}", self.kubernetes.minor());
        }
        if of_system && self.system != System::Debian12 {
            kind = format!("{}-{kind}", self.system.name());
        }
        kind
    }
}

impl fmt::Display for System {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Debian12 => "Debian 12",
            Self::Debian13 => "Debian 13",
            Self::DebianSid => "Debian sid",
            Self::NewestRuntime => "Debian 13, newest runtime",
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, Kubernetes {}", self.system, self.kubernetes)
    }
}

impl FromStr for System {
    type Err = UnknownSystem;

    fn from_str(text: &str) -> Result<Self, UnknownSystem> {
        let found = Self::ALL.into_iter().find(|system| system.name() == text);
        found.ok_or_else(|| UnknownSystem { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_each_system_and_each_kubelet_once() {
        let all: Vec<String> = Platform::all().iter().map(ToString::to_string).collect();
        let newest = Version::NODE;
        assert_eq!(all[0], format!("Debian 12, Kubernetes {newest}"));
        assert_eq!(all[3], format!("Debian 13, newest runtime, Kubernetes {newest}"));
        let older: Vec<&str> = all[4..].iter().map(String::as_str).collect();
        let expected = ["1.36.3", "1.35.4", "1.34.4"];
        assert_eq!(older, expected.map(|version| format!("Debian 12, Kubernetes {version}")));
    }

    #[test]
    fn a_system_is_named_as_it_is_printed() {
        for system in System::ALL {
            assert_eq!(system.name().parse(), Ok(system));
            assert_eq!(serde_json::json!(system), system.name());
        }
        let error = "trixie".parse::<System>().expect_err("unknown").to_string();
        assert!(error.contains("\"trixie\": expected one of debian-12, debian-13"), "{error}");
    }

    #[test]
    fn artefacts_of_other_platforms_are_of_other_kinds() {
        let old = Platform { kubernetes: "1.34".parse().expect("known"), ..Platform::DEFAULT };
        let other = Platform { system: System::Debian13, ..old };
        assert_eq!(Platform::DEFAULT.kind("booted", true, true), "booted");
        assert_eq!(old.kind("image", true, false), "image");
        assert_eq!(other.kind("booted", true, true), "debian-13-1.34-booted");
    }
}
