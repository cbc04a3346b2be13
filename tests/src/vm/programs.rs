//! Builds our programs for a machine: ordinary builds if its libc is not older than that of this
//! machine, otherwise static ones.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use super::kit::Kit;
use crate::cargo::cargo;
use crate::error::LabError;

/// Names a static agent that was built elsewhere; then no agent is built.
pub const AGENT_ENV: &str = "EPILOGUE_LAB_AGENT";

/// The libc where a program will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// That of this machine or a newer one.
    Ours,
    /// None, or an older one.
    None,
}

impl Libc {
    /// The libc of a kit's image, compared to this machine.
    pub fn of(kit: &Kit) -> Result<Self, LabError> {
        let theirs = kit.packages()?.into_iter().find(|(name, _)| name == "libc6");
        let theirs = theirs.and_then(|(_, version)| libc_version(&version));
        let said = std::process::Command::new("ldd").arg("--version").output();
        // An unknown libc counts as another one.
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let ours =
            said.ok().and_then(|said| libc_version(said.lines().next()?.split(' ').next_back()?));
        Ok(if ours.is_some() && ours <= theirs { Self::Ours } else { Self::None })
    }
}

/// Parses the GNU libc's versions, such as `2.36` or the package's `2.36-9+deb12u14`.
fn libc_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The agent, built if missing.
pub async fn agent(libc: Libc) -> Result<PathBuf, LabError> {
    if let Some(given) = std::env::var_os(AGENT_ENV) {
        return Ok(given.into());
    }
    build(libc, &["build", "--workspace", "--bin", "epilogue-agent"], "bin", "epilogue-agent").await
}

/// Programs with the agent's tests of these names (`agent/tests/NAME`), in their order.
pub async fn agent_tests(libc: Libc, names: &[&str]) -> Result<Vec<PathBuf>, LabError> {
    let mut built = Vec::new();
    for name in names {
        let test = ["test", "--no-run", "--workspace", "--test", name];
        built.push(build(libc, &test, "test", name).await?);
    }
    Ok(built)
}

/// The executable of this kind and name.
async fn build(
    libc: Libc,
    arguments: &[&str],
    kind: &str,
    name: &str,
) -> Result<PathBuf, LabError> {
    let failed = |source| LabError::Spawn { program: "cargo".into(), source };
    let mut command = cargo();
    command.args(arguments).args(["--quiet", "--message-format=json-render-diagnostics"]);
    if libc == Libc::None {
        command
            .args(["--target", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            // It halves the time to write the disk of an emulated machine.
            .env("CARGO_PROFILE_DEV_STRIP", "symbols");
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let output = child.map_err(failed)?.wait_with_output().await.map_err(failed)?;
    if !output.status.success() {
        return Err(LabError::Cargo(output.status));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(executable(&said, kind, name).expect("cargo must name what it was asked for"))
}

/// Tests bring the package's program with them, in any order.
fn executable(said: &str, kind: &str, name: &str) -> Option<PathBuf> {
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut wanted = lines.filter(|line| {
        let of = &line["target"];
        let kinds = of["kind"].as_array();
        of["name"] == name && kinds.is_some_and(|kinds| kinds.iter().any(|one| one == kind))
    });
    wanted.find_map(|line| line["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_libc_are_compared_as_numbers() {
        assert_eq!(libc_version("2.36-9+deb12u14"), Some((2, 36)));
        assert_eq!(libc_version("2.41"), Some((2, 41)));
        assert!(libc_version("2.9") < libc_version("2.36"));
        assert_eq!(libc_version("musl"), None);
    }

    #[test]
    fn executable_is_the_one_that_was_asked_for() {
        let line = |kind: &str, name: &str, path: &str| {
            format!(
                "{{\"target\":{{\"kind\":[\"{kind}\"],\"name\":\"{name}\"}},\"executable\":{path}}}\n"
            )
        };
        let lib = line("lib", "agent", "null");
        let (test, bin) = (line("test", "oom", "\"/t/oom\""), line("bin", "agent", "\"/t/agent\""));
        for said in [format!("no JSON\n{lib}{test}{bin}"), format!("{lib}{bin}{test}")] {
            assert_eq!(executable(&said, "test", "oom"), Some("/t/oom".into()));
            assert_eq!(executable(&said, "bin", "agent"), Some("/t/agent".into()));
            assert_eq!(executable(&said, "lib", "agent"), None);
        }
    }
}
