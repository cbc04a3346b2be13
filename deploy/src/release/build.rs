//! Builds the static programs of one platform, with the list of their dependencies inside.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::{output, show};
use super::error::ReleaseError;
use super::platform::Platform;
use super::source::Source;
use super::tools::{Tools, path_with};

/// The programs, and the profile of each: that of `deploy/image/build`.
pub(super) const PROGRAMS: [(&str, &str); 3] = [
    ("epilogue-agent", "small"),
    ("epilogue-controller", "release"),
    ("kubectl-epilogue", "release"),
];

/// Refuses a platform whose standard library is missing.
fn require(platform: &Platform) -> Result<(), ReleaseError> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", platform.target]);
    let directory = output(&mut rustc, "see https://rustup.rs")?;
    if Path::new(directory.trim()).is_dir() {
        return Ok(());
    }
    Err(ReleaseError::NotInstalled(platform.target, platform.needs))
}

/// Builds the programs, and returns the directory that has all of them.
pub(super) fn programs(
    source: &Source,
    tools: &Tools,
    platform: &Platform,
) -> Result<PathBuf, ReleaseError> {
    require(platform)?;
    let together = source.target.join("programs").join(platform.arch);
    std::fs::create_dir_all(&together).map_err(ReleaseError::file(&together))?;
    let path = path_with(tools.cargo_auditable()?);
    for (program, profile) in PROGRAMS {
        let mut cargo = cargo(source, platform, program, profile);
        cargo.env("PATH", &path);
        show(&mut cargo, "see https://rustup.rs")?;
        let built = source.target.join(platform.target).join(profile).join(program);
        let copied = together.join(program);
        std::fs::copy(&built, &copied).map_err(ReleaseError::file(&built))?;
        refuse_interpreter(&copied)?;
    }
    Ok(together)
}

/// Builds one program, which then names the commit.
fn cargo(source: &Source, platform: &Platform, program: &str, profile: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["auditable", "build", "--locked", "--bins", "--package", program])
        .args(["--profile", profile, "--target", platform.target, "--target-dir"])
        .arg(&source.target)
        .current_dir(&source.directory)
        .env("RUSTFLAGS", flags(source))
        .env("EPILOGUE_REVISION", &source.commit)
        .envs(platform.environment());
    for profile in ["RELEASE", "SMALL"] {
        cargo.env(format!("CARGO_PROFILE_{profile}_DEBUG"), "0");
        cargo.env(format!("CARGO_PROFILE_{profile}_STRIP"), "symbols");
    }
    cargo
}

/// Keeps paths of this machine out of the programs.
fn flags(source: &Source) -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo = std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
    // Generated code is in cargo's own directory.
    let directories =
        [(&source.directory, "/epilogue"), (&source.target, "/target"), (&cargo.into(), "/cargo")];
    let flags =
        directories.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
    flags.join(" ")
}

/// A static program has no interpreter that loads libraries.
fn refuse_interpreter(program: &Path) -> Result<(), ReleaseError> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--program-headers", "--wide"]).arg(program);
    let headers = output(&mut readelf, "Debian's package binutils")?;
    if headers.contains("INTERP") {
        return Err(ReleaseError::NotStatic(program.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::platform::ALL;

    #[test]
    fn the_programs_know_the_commit_of_the_release() {
        let commit = "0123456789abcdef0123456789abcdef01234567".to_owned();
        let source = Source {
            directory: "/source".into(),
            target: "/target".into(),
            version: "1.2.3".to_owned(),
            notes: String::new(),
            commit: commit.clone(),
            epoch: "1700000000".to_owned(),
        };
        for (program, profile) in PROGRAMS {
            let cargo = cargo(&source, &ALL[0], program, profile);
            let set = cargo.get_envs().find(|(name, _)| *name == "EPILOGUE_REVISION");
            assert_eq!(set.and_then(|(_, value)| value), Some(commit.as_ref()), "{program}");
        }
    }
}
