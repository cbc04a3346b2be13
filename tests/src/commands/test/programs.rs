//! Finds the test programs that cargo built, and the tests in each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use lab::cargo::cargo;
use serde_json::Value;
use tokio::process::Command;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    /// The package's name.
    pub(super) package: String,
    /// The target's name.
    pub(super) target: String,
    /// Whether it holds the unit tests of a library or a program.
    pub(super) is_unit: bool,
    /// The executable.
    pub(super) path: PathBuf,
    /// The package's directory, which tests run in.
    pub(super) dir: PathBuf,
}

/// A package's manifest and its name.
type Names = BTreeMap<PathBuf, String>;

/// Builds with these arguments of `cargo build`, and returns the test programs among the results.
pub(super) async fn build(arguments: &[String], names: &Names) -> anyhow::Result<Vec<Program>> {
    let child = cargo()
        .arg("build")
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn();
    let output = child.context("start cargo")?.wait_with_output().await.context("run cargo")?;
    ensure!(output.status.success(), "the tests were not built; cargo's errors are above");
    let mut programs = read_messages(&String::from_utf8_lossy(&output.stdout), names);
    programs.sort();
    Ok(programs)
}

/// The test programs in cargo's messages, one JSON value a line.
fn read_messages(messages: &str, names: &Names) -> Vec<Program> {
    let values = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    values.filter_map(|message| program(&message, names)).collect()
}

fn program(message: &Value, names: &Names) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    Some(Program {
        package: names.get(manifest)?.clone(),
        target: message["target"]["name"].as_str()?.to_owned(),
        is_unit: message["target"]["kind"][0] != "test",
        path: message["executable"].as_str()?.into(),
        dir: manifest.parent()?.to_owned(),
    })
}

/// The packages of the workspace, from the output of `cargo metadata --no-deps`.
pub(super) fn package_names(metadata: &Value) -> Names {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| {
            let manifest = package["manifest_path"].as_str()?;
            Some((manifest.into(), package["name"].as_str()?.to_owned()))
        })
        .collect()
}

/// The names of a program's tests.
pub(super) async fn list(program: &Program) -> anyhow::Result<Vec<String>> {
    let name = program.path.display();
    let output = Command::new(&program.path)
        .args(["--list", "--format=terse"])
        .current_dir(&program.dir)
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("start {name}"))?;
    if !output.status.success() {
        bail!("{name} --list: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(read_list(&String::from_utf8_lossy(&output.stdout)))
}

fn read_list(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The output of `cargo metadata` for the workspace.
pub(super) async fn metadata() -> anyhow::Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("start cargo")?;
    ensure!(output.status.success(), "cargo metadata ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("read cargo metadata")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn test_programs_are_distinguished_from_libraries_and_programs() {
        let message = |test: bool, kind: &str, executable: Option<&str>| {
            json!({"reason": "compiler-artifact", "manifest_path": "/w/agent/Cargo.toml",
                   "target": {"name": "host", "kind": [kind]}, "profile": {"test": test},
                   "executable": executable})
            .to_string()
        };
        let messages = [
            "no JSON".to_owned(),
            message(false, "bin", Some("/t/agent")),
            message(true, "lib", Some("/t/unit")),
            message(true, "test", Some("/t/host")),
            message(false, "lib", None),
        ]
        .join("\n");
        let names = Names::from([("/w/agent/Cargo.toml".into(), "epilogue-agent".to_owned())]);
        let found = read_messages(&messages, &names);
        let seen: Vec<(&str, bool)> =
            found.iter().map(|it| (it.path.to_str().unwrap_or_default(), it.is_unit)).collect();
        assert_eq!(seen, [("/t/unit", true), ("/t/host", false)]);
        assert_eq!(found[0].dir, Path::new("/w/agent"));
        assert_eq!(found[0].package, "epilogue-agent");
    }

    #[test]
    fn only_tests_are_listed() {
        assert_eq!(read_list("a::b: test\nc: benchmark\n\n2 tests\n"), ["a::b"]);
    }
}
