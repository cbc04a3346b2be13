//! Rules about the pure crates: their allowed dependencies, and what their clippy.toml must ban.

use std::path::Path;
use std::process::Command;

use lab::paths::workspace_root;
use serde_json::Value;

/// The crates that decide without IO, with their directories.
pub(crate) const PURE_CRATES: [(&str, &str); 3] = [
    ("epilogue-common", "common"),
    ("controller-core", "controller/core"),
    ("agent-core", "agent/core"),
];

/// Allowed dependencies of a pure crate: data, text, collections, time as a value.
const ALLOWED: [&str; 15] = [
    "bitflags",
    "epilogue-common",
    "hashbrown",
    "indexmap",
    "itertools",
    "jiff",
    "k8s-openapi",
    "prost",
    "regex-lite",
    "semver",
    "serde",
    "serde_json",
    "serde_path_to_error",
    "smallvec",
    "thiserror",
];

/// What the clippy.toml of a pure crate must ban; it may ban more.
const BANS: [&str; 25] = [
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::time::Instant::elapsed",
    "std::time::SystemTime::elapsed",
    "jiff::Timestamp::now",
    "jiff::Zoned::now",
    "jiff::tz::TimeZone::system",
    "std::env::var",
    "std::env::var_os",
    "std::env::vars",
    "std::env::args",
    "std::env::current_dir",
    "std::fs::read",
    "std::fs::read_to_string",
    "std::fs::write",
    "std::fs::File",
    "std::fs::OpenOptions",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::process::Command",
    "std::process::exit",
    "std::thread::sleep",
    "std::thread::spawn",
    "std::hash::RandomState",
];

/// Systems on which users run `kubectl epilogue`, and no agent or controller.
pub(crate) const CLI_TARGETS: [&str; 3] =
    ["x86_64-apple-darwin", "aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// Crates that build on Linux only, or on Unix only.
const NOT_PORTABLE: [&str; 6] = ["inotify", "libsystemd", "nix", "procfs", "procfs-core", "zbus"];

/// What the pure part of a command must not name: its reading and printing are in the files above.
const IO: [&str; 12] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::time::Instant",
    "SystemTime",
    "Timestamp::now",
    "anstream",
    "kube::",
    "print!",
    "tokio",
];

/// What a file of rules in `controller/cli` names of the outside world.
pub(crate) fn io_in_rules(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text: Vec<&str> = lines.collect();
    let text = text.join("\n");
    let named = IO.iter().filter(|name| text.contains(**name));
    named.map(|name| format!("names {name}")).collect()
}

/// The crates of `kubectl epilogue` on a system that do not build there, from
/// `cargo tree --prefix none`.
pub(crate) fn not_portable(tree: &str) -> Vec<String> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let mut found: Vec<String> =
        names.filter(|name| NOT_PORTABLE.contains(name)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

/// The crates of `kubectl epilogue` on a system, one a line. Cargo may have to download some that
/// nothing here is built from.
pub(crate) fn tree_of_the_command_line(target: &str) -> String {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", "kubectl-epilogue"])
        .args(["--edges", "normal", "--prefix", "none", "--target", target])
        .current_dir(workspace_root())
        .output()
        .expect("cargo must be startable");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The output of `cargo metadata --no-deps` for the workspace.
pub(crate) fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo must be startable");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata must be JSON")
}

/// Dependencies of pure crates that are not allowed; dev-dependencies are free.
pub(crate) fn foreign_dependencies(metadata: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (name, _) in PURE_CRATES {
        let packages = metadata["packages"].as_array().expect("metadata must list packages");
        let package = packages.iter().find(|package| package["name"] == name);
        let Some(package) = package else {
            found.push(format!("{name} is not in the workspace"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let dependency_name = dependency["name"].as_str().unwrap_or_default();
            if dependency["kind"] != "dev" && !ALLOWED.contains(&dependency_name) {
                found.push(format!("{name} depends on {dependency_name}"));
            }
        }
    }
    found
}

pub(crate) fn missing_bans(clippy_toml: &str) -> Vec<String> {
    let lines = clippy_toml.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let text: String = lines.collect::<Vec<_>>().join("\n");
    BANS.iter()
        .filter(|ban| !text.contains(&format!("\"{ban}\"")))
        .map(|ban| format!("{ban} is not banned"))
        .collect()
}

/// Crates below a pure crate's directory without a clippy.toml. Clippy reads the nearest one above,
/// so foreign bans would apply to them.
pub(crate) fn caught_by_a_ban(
    manifest_dirs: &[String],
    has_own: impl Fn(&str) -> bool,
) -> Vec<String> {
    let below_pure = |dir: &str| {
        PURE_CRATES
            .iter()
            .any(|(_, pure)| dir.strip_prefix(pure).is_some_and(|rest| rest.starts_with('/')))
    };
    let caught = manifest_dirs.iter().filter(|dir| below_pure(dir) && !has_own(dir));
    caught.map(|dir| format!("{dir} has no clippy.toml of its own")).collect()
}

/// The directories of all packages, relative to the workspace's root.
pub(crate) fn manifest_dirs(metadata: &Value) -> Vec<String> {
    let root = workspace_root();
    let packages = metadata["packages"].as_array().expect("metadata must list packages");
    let manifests = packages.iter().filter_map(|package| package["manifest_path"].as_str());
    manifests
        .filter_map(|path| Path::new(path).parent()?.strip_prefix(&root).ok())
        .map(|dir| dir.to_string_lossy().into_owned())
        .collect()
}

pub(crate) fn lifted_bans(text: &str) -> Vec<String> {
    ["disallowed_methods", "disallowed_types", "disallowed_macros"]
        .into_iter()
        .filter(|lint| text.contains(&format!("clippy::{lint}")))
        .map(|lint| format!("sets clippy::{lint}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_in_a_rule_and_a_crate_of_linux_are_found() {
        let text = "// std::fs in a comment\nuse std::fs::read;\nlet now = Timestamp::now();";
        assert_eq!(io_in_rules(text), ["names std::fs", "names Timestamp::now"]);
        let tree = "kubectl-epilogue v0.1.0 (/x)\nprocfs v0.18.0\nserde v1.0.0\nprocfs v0.18.0 (*)";
        assert_eq!(not_portable(tree), ["procfs"]);
    }
    use serde_json::json;

    #[test]
    fn a_foreign_dependency_is_found_unless_only_tests_use_it() {
        let depends = |name: &str, kind: Value| json!({"name": name, "kind": kind});
        let metadata = json!({"packages": [
            {"name": "epilogue-common", "dependencies": [
                depends("jiff", Value::Null), depends("proptest", "dev".into()),
            ]},
            {"name": "agent-core", "dependencies": [
                depends("tokio", Value::Null), depends("cc", "build".into()),
            ]},
        ]});
        assert_eq!(
            foreign_dependencies(&metadata),
            [
                "controller-core is not in the workspace",
                "agent-core depends on tokio",
                "agent-core depends on cc",
            ]
        );
    }

    #[test]
    fn a_ban_that_is_missing_or_commented_out_is_found() {
        let all = BANS.map(|ban| format!("{{ path = \"{ban}\" }},")).join("\n");
        assert!(missing_bans(&all).is_empty());
        let one_out = all.replacen("{ path", "# { path", 1);
        assert_eq!(missing_bans(&one_out), ["std::time::Instant::now is not banned"]);
        assert_eq!(missing_bans("").len(), BANS.len());
    }

    #[test]
    fn a_crate_below_a_pure_one_is_found() {
        let dirs = ["common", "common/runtime", "commonplace"].map(String::from);
        assert_eq!(caught_by_a_ban(&dirs, |_| false).len(), 1);
        assert!(caught_by_a_ban(&dirs, |dir| dir == "common/runtime").is_empty());
    }

    #[test]
    fn a_lifted_ban_is_found() {
        assert_eq!(lifted_bans("#![allow(clippy::disallowed_methods)]").len(), 1);
        assert!(lifted_bans("//! Nothing.").is_empty());
    }
}
