//! The tools of a release, each in one version. They are built where they are missing.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::show;
use super::error::ReleaseError;

/// Names the directory of the tools, for a machine with several checkouts.
pub const TOOLS_ENV: &str = "EPILOGUE_RELEASE_TOOLS";

const CARGO_AUDITABLE: &str = "0.7.7";
const CARGO_CYCLONEDX: &str = "0.5.9";
/// The packages of the modules in `deploy/tools`, which have the versions.
const CRANE: &str = "github.com/google/go-containerregistry/cmd/crane";
const COSIGN: &str = "github.com/sigstore/cosign/v3/cmd/cosign";

const RUST: &str = "see https://rustup.rs";
const GO: &str = "see https://go.dev/dl";

/// Where the tools are, and their sources.
#[derive(Clone, Debug)]
pub struct Tools {
    directory: PathBuf,
    modules: PathBuf,
}

impl Tools {
    /// The tools of a checkout.
    pub fn of(root: &Path) -> Self {
        let directory = env::var_os(TOOLS_ENV).unwrap_or_else(|| "target/release-tools".into());
        Self { directory: root.join(directory), modules: root.join("deploy/tools") }
    }

    /// The directory that has `cargo auditable`.
    pub fn cargo_auditable(&self) -> Result<PathBuf, ReleaseError> {
        self.crate_of_cargo("cargo-auditable", CARGO_AUDITABLE)
    }

    /// The directory that has `cargo cyclonedx`.
    pub fn cargo_cyclonedx(&self) -> Result<PathBuf, ReleaseError> {
        self.crate_of_cargo("cargo-cyclonedx", CARGO_CYCLONEDX)
    }

    /// The program that pushes images.
    pub fn crane(&self) -> Result<PathBuf, ReleaseError> {
        self.go_program("crane", CRANE)
    }

    /// The program that signs.
    pub fn cosign(&self) -> Result<PathBuf, ReleaseError> {
        self.go_program("cosign", COSIGN)
    }

    fn crate_of_cargo(&self, name: &str, version: &str) -> Result<PathBuf, ReleaseError> {
        let root = self.directory.join(format!("{name}-{version}"));
        let directory = root.join("bin");
        if !directory.join(name).exists() {
            // Without optimisation: each runs for seconds, and compiles in a third of the time.
            let mut cargo = Command::new("cargo");
            cargo
                .args(["install", "--quiet", "--locked", "--debug", "--version", version, name])
                .arg("--root")
                .arg(&root)
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .env("CARGO_TARGET_DIR", self.directory.join("build"));
            show(&mut cargo, RUST)?;
        }
        Ok(directory)
    }

    fn go_program(&self, module: &str, package: &str) -> Result<PathBuf, ReleaseError> {
        let program = self.directory.join("bin").join(module);
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-ldflags", "-s -w", "-gcflags=all=-l", "-o"])
            .arg(&program)
            .arg(package)
            .current_dir(self.modules.join(module))
            // Each process of the compiler takes one core, and a gibibyte before it collects.
            .envs([("CGO_ENABLED", "0"), ("GOMAXPROCS", "1")])
            .envs([("GOGC", "off"), ("GOMEMLIMIT", "1GiB")]);
        show(&mut go, GO)?;
        Ok(program)
    }
}

/// The variable `PATH` with this directory before the others.
pub(super) fn path_with(directory: PathBuf) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(directory).chain(env::split_paths(&path));
    env::join_paths(all).unwrap_or(path)
}
