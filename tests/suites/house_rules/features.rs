//! Dependencies have the same features in programs and in tests, so that cargo compiles each once.

use std::collections::BTreeMap;
use std::process::Command;

use lab::paths::workspace_root;

/// Crates and their features, as `cargo tree` lists them. Procedural macros are left out: they are
/// compiled for the host in any case.
pub(crate) fn tree(edges: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--workspace", "--prefix=none", "--format={p} {f}", "--edges", edges])
        .current_dir(workspace_root())
        .output()
        .expect("cargo must start");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Crates of `programs` that have other features in `tests`.
pub(crate) fn differences(programs: &str, tests: &str) -> Vec<String> {
    let (programs, tests) = (by_crate(programs), by_crate(tests));
    let differs = |name: &&str| tests.get(*name).is_some_and(|found| *found != programs[*name]);
    let differing = programs.keys().copied().filter(differs);
    differing.map(|name| format!("{name}: {:?} and {:?}", programs[name], tests[name])).collect()
}

/// `tokio v1.2.3 fs,net (*)` by its name and version; one crate may be there with several.
fn by_crate(tree: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut crates: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in tree.lines() {
        let line = line.trim_end_matches(" (*)").trim_end();
        let name_end = line.match_indices(' ').nth(1).map_or(line.len(), |(at, _)| at);
        let (name, features) = line.split_at(name_end);
        let known = crates.entry(name).or_default();
        if !known.contains(&features) {
            known.push(features);
        }
    }
    for features in crates.values_mut() {
        features.sort_unstable();
    }
    crates
}

#[test]
fn a_crate_with_other_features_in_tests_is_found() {
    let programs = "a v1.0.0 x\nb v2.0.0 (/w/b)\na v1.0.0 x (*)\n";
    assert!(differences(programs, "a v1.0.0 x\nc v1.0.0 y\n").is_empty());
    let found = differences(programs, "a v1.0.0 x,y\n");
    assert_eq!(found, ["a v1.0.0: [\" x\"] and [\" x,y\"]"]);
}
