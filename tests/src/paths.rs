//! Where the laboratory keeps its things: everything is below `target/lab`.

use std::path::{Path, PathBuf};

/// The directory of all labs, `target/lab`.
#[derive(Clone, Debug)]
pub struct LabDir(PathBuf);

impl LabDir {
    /// That of this workspace. Follows `CARGO_TARGET_DIR`.
    pub fn of_workspace() -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
            || workspace_root().join("target"),
            |configured| workspace_root().join(configured),
        );
        Self(target.join("lab"))
    }

    /// Any other, for tests of the laboratory itself.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where built programs that cargo does not build lie.
    pub fn bin(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// The one binary that holds etcd and the Kubernetes programs.
    pub fn control_plane_binary(&self) -> PathBuf {
        self.bin().join("control-plane")
    }

    /// A real logind for the agent's tests, unpacked.
    pub fn elogind(&self) -> PathBuf {
        self.0.join("elogind")
    }

    /// Images of machines and what belongs to them.
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// The state directories, one per lab.
    pub fn runs(&self) -> PathBuf {
        self.0.join("run")
    }
}

/// The root of the checkout that this program was built from.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the lab's package must lie inside the workspace")
        .to_owned()
}
