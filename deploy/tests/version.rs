//! Checks that every file names the version of `Cargo.toml`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use epilogue_deploy::version::{FILES, MARKS, differing, named, of_workspace, with_version};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_file_names_the_version_of_the_workspace() {
    let version = of_workspace(&root()).expect("a version");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let found = differing(&root()).expect("must be readable");
    let files: Vec<&PathBuf> = found.iter().map(|(path, _)| path).collect();
    assert!(files.is_empty(), "run `cargo lab docs`: {files:?}");
}

#[test]
fn another_version_is_found_and_set_in_each_file() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let copy = |file: &str, text: &str| {
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("must be creatable");
        fs::write(path, text).expect("must be writable");
    };
    copy("Cargo.toml", "[workspace.package]\nversion = \"7.8.9-rc.1\"\n");
    for (file, _) in FILES {
        copy(file, &text(file));
    }
    let found = differing(directory.path()).expect("must be readable");
    assert_eq!(found.len(), FILES.len());
    for ((path, right), (file, marks)) in found.iter().zip(FILES) {
        assert!(path.ends_with(file));
        let marks = [&MARKS, marks].concat();
        let versions = named(right, &marks);
        assert!(versions.iter().all(|version| *version == "7.8.9-rc.1"), "{file}");
        let back = with_version(right, &marks, env!("CARGO_PKG_VERSION"));
        assert_eq!(back, text(file), "only the version changes");
    }
    let chart = &found[1].1;
    assert!(chart.contains("\nversion: 7.8.9-rc.1\nappVersion: 7.8.9-rc.1\n"), "{chart}");
}

#[test]
fn an_invalid_version_of_the_workspace_is_an_error() {
    let directory = tempfile::tempdir().expect("must be creatable");
    for version in ["", "1.2", "1.2.3-beta", "v1.2.3"] {
        let manifest = format!("[workspace.package]\nversion = \"{version}\"\n");
        fs::write(directory.path().join("Cargo.toml"), manifest).expect("must be writable");
        let error = of_workspace(directory.path()).expect_err("must be refused").to_string();
        assert!(error.contains("expected MAJOR.MINOR.PATCH"), "{error}");
    }
}

/// A file outside of the list would keep an old version for ever.
#[test]
fn no_other_file_repeats_the_version() {
    let output = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output();
    let output = output.expect("git must be installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("must be text");
    let files: Vec<&str> = listed.split_terminator('\0').collect();
    assert!(files.len() > 300, "{}", files.len());
    let unlisted = files.iter().filter(|file| FILES.iter().all(|(known, _)| known != *file));
    for file in unlisted {
        // Links and removed files have no text of their own.
        let Ok(text) = fs::read_to_string(root().join(file)) else { continue };
        assert_eq!(named(&text, &MARKS), [""; 0], "{file}: add it to FILES");
    }
}
