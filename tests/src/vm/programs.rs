//! What of ours runs inside a machine, as static files: the image's libc is older than that of the
//! machine that builds.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::error::LabError;
use crate::paths::workspace_root;

/// Names a static agent that was built elsewhere; then none is built.
pub const AGENT_ENV: &str = "EPILOGUE_LAB_AGENT";

/// The agent, built if it is not there.
pub async fn agent() -> Result<PathBuf, LabError> {
    if let Some(given) = std::env::var_os(AGENT_ENV) {
        return Ok(given.into());
    }
    build(&["build", "--package", "epilogue-agent"], "bin", "epilogue-agent").await
}

/// Programs with the agent's tests of these names (`agent/tests/NAME`), in their order.
pub async fn agent_tests(names: &[&str]) -> Result<Vec<PathBuf>, LabError> {
    let mut built = Vec::new();
    for name in names {
        let test = ["test", "--no-run", "--package", "epilogue-agent", "--test", name];
        built.push(build(&test, "test", name).await?);
    }
    Ok(built)
}

/// The executable of this kind and name.
async fn build(arguments: &[&str], kind: &str, name: &str) -> Result<PathBuf, LabError> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let failed = |source| LabError::Spawn { program: "cargo".into(), source };
    let child = Command::new(&cargo)
        .args(arguments)
        .args(["--quiet", "--target", &target, "--message-format=json-render-diagnostics"])
        .current_dir(workspace_root())
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        // Half the time to the disk of a machine that is emulated.
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let output = child.map_err(failed)?.wait_with_output().await.map_err(failed)?;
    if !output.status.success() {
        return Err(LabError::Cargo(output.status));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(executable(&said, kind, name).expect("cargo must name what it was asked for"))
}

/// Tests bring the package's program with them, in no order.
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
