//! The versions of Kubernetes that the laboratory builds, and which features each version has.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::not_run::Reason;

/// Names the version that the suites run on, set by `cargo lab test`.
pub const KUBERNETES_ENV: &str = "EPILOGUE_LAB_KUBERNETES";

/// A release of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    minor: u16,
    patch: u16,
}

/// A feature that some version lacks and a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A program kube-controller-manager of the version itself, for its Job controller.
    OwnControllerManager,
    /// `MutatingAdmissionPolicy` in `admissionregistration.k8s.io/v1`, on by default.
    MutatingPolicies,
    /// Workloads and PodGroups in `scheduling.k8s.io/v1beta1`, behind feature gates.
    GangScheduling,
}

/// A text that names no version of the laboratory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown Kubernetes version {found:?}: expected one of {}, such as 1.33", known())]
pub struct UnknownVersion {
    found: String,
}

const fn release(minor: u16, patch: u16) -> Version {
    Version { minor, patch }
}

impl Version {
    /// Those that can be built, oldest first. Each has a `go.mod` that pins it.
    pub const KNOWN: [Self; 6] = [
        release(32, 13),
        release(33, 13),
        release(34, 4),
        release(35, 4),
        release(36, 3),
        Self::NODE,
    ];

    /// The version that everything runs on unless a command names another one.
    pub const DEFAULT: Self = Self::NODE;

    /// The kubelet's version in the virtual machine of the suites. The record
    /// `tests/node/upstream.json` says that its tests held with this one.
    pub const NODE: Self = release(37, 2);

    /// The version that `cargo lab test` runs the suites on; by hand, the default.
    ///
    /// # Panics
    ///
    /// If the variable names no known version.
    pub fn of_tests() -> Self {
        let Ok(text) = std::env::var(KUBERNETES_ENV) else { return Self::DEFAULT };
        text.parse().unwrap_or_else(|error| panic!("{KUBERNETES_ENV}: {error}"))
    }

    /// The version in an answer to `GET /version`, such as `v1.36.3` or `v1.33.5-gke.100`.
    pub fn of_server(git_version: &str) -> Option<Self> {
        let mut parts = git_version.strip_prefix("v1.")?.split(['.', '-', '+']);
        Some(release(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Without the patch, such as `1.36`.
    pub fn minor(self) -> String {
        format!("1.{}", self.minor)
    }

    /// Whether the version is older than this minor version.
    pub(crate) fn is_before(self, minor: u16) -> bool {
        self.minor < minor
    }

    /// Whether a real node can have the version's own kubelet: upstream supports those since 1.34.
    pub(crate) fn has_kubelet(self) -> bool {
        self.minor > 33
    }

    /// Whether the version has the feature.
    pub fn has(self, feature: Feature) -> bool {
        match feature {
            Feature::OwnControllerManager => self.minor > 32,
            Feature::MutatingPolicies => self.minor > 35,
            Feature::GangScheduling => self.minor > 36,
        }
    }

    /// The file that pins the version's modules, relative to `tests/control-plane`. The checksums
    /// lie next to it.
    pub(crate) fn go_mod(self) -> PathBuf {
        if self == Self::NODE {
            return "go.mod".into();
        }
        PathBuf::from(format!("versions/{}/go.mod", self.minor()))
    }

    /// Flags of the linker that make `/version` and the kubelet report the release.
    pub(crate) fn linker_flags(self) -> String {
        let Self { minor, .. } = self;
        format!(
            "-s -w -X k8s.io/component-base/version.gitVersion=v{self} \
             -X k8s.io/component-base/version.gitMajor=1 \
             -X k8s.io/component-base/version.gitMinor={minor}"
        )
    }
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 3] =
        [Self::OwnControllerManager, Self::MutatingPolicies, Self::GangScheduling];

    /// Why a test that needs the feature does not run where it is missing.
    pub fn reason(self) -> &'static str {
        match self {
            Self::OwnControllerManager => {
                "the Go module proxy lacks modules of kube-controller-manager 1.32"
            }
            Self::MutatingPolicies => "MutatingAdmissionPolicy is in v1 from 1.36 on",
            Self::GangScheduling => "scheduling.k8s.io/v1beta1 has Workloads from 1.37 on",
        }
    }

    /// What that means for the version, in a sentence.
    pub(crate) fn consequence(self) -> &'static str {
        match self {
            Self::OwnControllerManager => "That of the next version runs there.",
            Self::MutatingPolicies => "The tests of `deploy/policy/opt-in` do not run there.",
            Self::GangScheduling => "The tests of gang scheduling do not run there.",
        }
    }

    /// Whether the version of the tests lacks the feature. If so, says that the test is not run.
    pub fn is_missing(self) -> bool {
        let missing = !Version::of_tests().has(self);
        if missing {
            println!("not run: [{}] {}", Reason::Version(self).code(), self.reason());
        }
        missing
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = UnknownVersion;

    /// `1.33` or `1.33.13`.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let is_named = |it: &Self| it.minor() == text || it.to_string() == text;
        let found = Self::KNOWN.into_iter().find(is_named);
        found.ok_or_else(|| UnknownVersion { found: text.to_owned() })
    }
}

fn known() -> String {
    Version::KNOWN.map(|version| version.to_string()).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::workspace_root;

    #[test]
    fn a_version_is_named_by_its_minor_or_in_full() {
        assert_eq!("1.33".parse(), Ok(release(33, 13)));
        assert_eq!("1.33.13".parse(), Ok(release(33, 13)));
        for bad in ["1.33.1", "1.3", "v1.33", "33", ""] {
            let error = bad.parse::<Version>().expect_err(bad).to_string();
            assert!(
                error.contains("1.32.13, 1.33.13") && error.contains("such as 1.33"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_server_s_version_is_read_with_what_its_vendor_added() {
        assert_eq!(Version::of_server("v1.36.3"), Some(release(36, 3)));
        assert_eq!(Version::of_server("v1.33.5-gke.100"), Some(release(33, 5)));
        assert_eq!(Version::of_server("v1.34.0+k3s1"), Some(release(34, 0)));
        assert_eq!(Version::of_server("v2.0.0"), None);
    }

    #[test]
    fn each_version_is_pinned_by_a_go_mod_with_checksums() {
        let module = workspace_root().join("tests/control-plane");
        for version in Version::KNOWN {
            let go_mod = module.join(version.go_mod());
            let text = std::fs::read_to_string(&go_mod).expect("the version's go.mod");
            let line = format!("\tk8s.io/kubernetes v{version}\n");
            assert!(text.contains(&line), "{}: {line}", go_mod.display());
            let sums = std::fs::read_to_string(go_mod.with_extension("sum")).expect("its go.sum");
            assert!(sums.contains(&format!("k8s.io/kubernetes v{version} h1:")), "{version}");
        }
    }
}
