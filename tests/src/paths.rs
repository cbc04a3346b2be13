//! Where the laboratory keeps its things: what belongs to one checkout below `target/lab`, what
//! all checkouts of this machine share in a cache.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::binary::GoProgram;
use crate::error::LabError;
use crate::kubernetes::Version;

/// Names the shared cache's directory.
pub const CACHE_ENV: &str = "EPILOGUE_LAB_CACHE";

/// The directory of all labs of a checkout, `target/lab`, and the cache.
#[derive(Clone, Debug)]
pub struct LabDir {
    root: PathBuf,
    cache: PathBuf,
}

impl LabDir {
    /// That of this workspace. Follows `CARGO_TARGET_DIR`.
    pub fn of_workspace() -> Self {
        let root = target_dir().join("lab");
        let cache = cache_of(|name| std::env::var_os(name), &root);
        Self { root, cache }
    }

    /// Any other, for tests of the laboratory itself.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let root = path.into();
        Self { cache: root.join("cache"), root }
    }

    /// What all checkouts of this machine share: `$EPILOGUE_LAB_CACHE`, else
    /// `$XDG_CACHE_HOME/epilogue-lab`, else `~/.cache/epilogue-lab`. Create directories in it by
    /// [`create_private`].
    pub fn cache(&self) -> PathBuf {
        self.cache.clone()
    }

    /// Where built programs that cargo does not build lie.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// A program of upstream's for a lab of this version, once built by [`crate::binary::ensure`].
    pub fn go_program(&self, program: GoProgram, version: Version) -> PathBuf {
        self.bin().join(format!("{}-{}", program.name(), version.minor()))
    }

    /// A real logind for the agent's tests, unpacked.
    pub fn elogind(&self) -> PathBuf {
        self.root.join("elogind")
    }

    /// The checker of alerts, unpacked.
    pub fn promtool(&self) -> PathBuf {
        self.root.join("promtool")
    }

    /// The library that runc is built with, unpacked.
    pub fn libseccomp(&self) -> PathBuf {
        self.root.join("libseccomp")
    }

    /// The sources and programs of earlier commits, for tests of upgrades.
    pub fn former(&self) -> PathBuf {
        self.root.join("former")
    }

    /// Images of machines and what belongs to them.
    pub fn images(&self) -> PathBuf {
        self.cache.join("images")
    }

    /// The state directories, one per lab.
    pub fn runs(&self) -> PathBuf {
        self.root.join("run")
    }
}

/// Names the directory of our programs that `cargo lab test` runs: a build that another command
/// makes meanwhile changes nothing there.
pub const PROGRAMS_ENV: &str = "EPILOGUE_LAB_PROGRAMS";

/// The debug build of one of our programs.
pub fn program(name: &str) -> PathBuf {
    let dir = std::env::var_os(PROGRAMS_ENV).map(PathBuf::from);
    dir.unwrap_or_else(|| target_dir().join("debug")).join(name)
}

/// The release build of one of our programs.
pub fn release_program(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// The target that programs which ship are built for: this machine's.
#[cfg(target_arch = "x86_64")]
pub const HOST: &str = "x86_64-unknown-linux-gnu";
/// The target that programs which ship are built for: this machine's.
#[cfg(target_arch = "aarch64")]
pub const HOST: &str = "aarch64-unknown-linux-gnu";

/// The build of one of our programs as it ships for every node.
pub fn small_program(name: &str) -> PathBuf {
    target_dir().join(HOST).join("small").join(name)
}

pub(crate) fn target_dir() -> PathBuf {
    let configured = std::env::var_os("CARGO_TARGET_DIR");
    workspace_root().join(configured.unwrap_or_else(|| "target".into()))
}

/// The root of the checkout that this program was built from.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the lab's package must lie inside the workspace")
        .to_owned()
}

/// Creates a directory that only its owner can enter, and those above it that are missing.
pub fn create_private(directory: &Path) -> Result<(), LabError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    created.map_err(LabError::file("create", directory))
}

/// The cache by the environment. Pure. Without a home it belongs to the checkout.
fn cache_of(variable: impl Fn(&str) -> Option<OsString>, root: &Path) -> PathBuf {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = path(CACHE_ENV) {
        return workspace_root().join(named);
    }
    // A relative one is to be ignored, by the XDG specification.
    let of_user = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let of_user = of_user.or_else(|| path("HOME").map(|home| home.join(".cache")));
    of_user.map_or_else(|| root.join("cache"), |cache| cache.join("epilogue-lab"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_follows_the_environment_and_ends_in_the_checkout() {
        let cache = |variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
            cache_of(|name| value(name).map(|(_, value)| value.into()), Path::new("/t/lab"))
        };
        let all = [(CACHE_ENV, "/c"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(cache(&all), Path::new("/c"));
        assert_eq!(cache(&all[1..]), Path::new("/x/epilogue-lab"));
        assert_eq!(cache(&all[2..]), Path::new("/h/.cache/epilogue-lab"));
        assert_eq!(cache(&[]), Path::new("/t/lab/cache"));
        let odd = [(CACHE_ENV, ""), ("XDG_CACHE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(cache(&odd), Path::new("/h/.cache/epilogue-lab"));
    }

    #[test]
    fn private_directory_admits_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let inner = dir.path().join("a/b");
        create_private(&inner).expect("must be creatable");
        create_private(&inner).expect("it may be there");
        for path in [&inner, &dir.path().join("a")] {
            let mode = path.metadata().expect("must be there").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", path.display());
        }
    }
}
