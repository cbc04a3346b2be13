//! The scripts of `.ci`: where upgrades begin, and what a run records of its steps.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::matrix::nightly;
use lab::paths::workspace_root;

use super::done;

/// Copies scripts into the `.ci` of another directory.
fn scripts(root: &Path, names: &[&str]) {
    fs::create_dir_all(root.join(".ci")).expect("must be creatable");
    for name in names {
        let (from, to) = (workspace_root().join(".ci").join(name), root.join(".ci").join(name));
        fs::copy(from, to).expect("must be copyable");
    }
}

#[test]
fn upgrades_begin_at_the_last_version_of_the_changelog() {
    let root = tempfile::tempdir().expect("a directory");
    let root = root.path();
    scripts(root, &["former"]);
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(root).args(["-c", "user.name=t", "-c", "user.email=t@t.example"]);
        done(git.args(arguments)).trim().to_owned()
    };
    let commit = |changes: &str| {
        fs::write(root.join("CHANGELOG.md"), changes).expect("must be writable");
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "A commit"]);
        git(&["rev-parse", "HEAD"])
    };
    let former = || done(&mut Command::new(root.join(".ci/former"))).trim().to_owned();
    git(&["init", "--quiet"]);
    let first = commit("## [Unreleased]\n");
    commit("## [Unreleased]\n\n- A change.\n");
    assert_eq!(former(), first, "no version: the commit before");

    let older = "## [0.1.0] - 2026-01-31\n";
    let wrote_older = commit(&format!("## [Unreleased]\n\n{older}"));
    commit(&format!("## [Unreleased]\n\n- Another.\n\n{older}"));
    assert_eq!(former(), wrote_older, "the commit that wrote its section");
    let newer = format!("## [Unreleased]\n\n## [0.2.0] - 2026-02-28\n\n{older}");
    let wrote_newer = commit(&newer);
    let tagged = commit(&newer.replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"));
    assert_eq!(former(), wrote_newer);
    git(&["tag", "v0.2.0"]);
    commit(&newer);
    assert_eq!(former(), tagged, "a tag is the version");
}

/// Runs steps, of which the second fails; returns the exit code and what the run printed.
fn steps(setting: &str) -> (Option<i32>, String) {
    let script = format!(
        "set -euo pipefail; . .ci/steps; {setting} step true; step sh -c 'exit 3'; step echo later; \
         sed 's/^/record: /' \"$results\"; finish $failed"
    );
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", &script]).current_dir(workspace_root()).output().expect("bash");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_failed_step_ends_a_run_unless_it_keeps_going_and_then_the_record_has_it() {
    let (code, text) = steps("");
    assert_eq!(code, Some(3), "{text}");
    assert!(!text.contains("── echo later") && text.contains("  true "), "{text}");

    let (code, text) = steps("keep_going=1;");
    assert_eq!(code, Some(3), "{text}");
    let record: Vec<&str> = text.lines().filter_map(|it| it.strip_prefix("record: ")).collect();
    let steps = nightly::steps(&record.join("\n")).expect("the form of the record");
    let names: Vec<_> = steps.iter().map(|step| (step.name.as_str(), step.passed)).collect();
    assert_eq!(names, [("true", true), ("sh -c exit 3", false), ("echo later", true)]);
}
