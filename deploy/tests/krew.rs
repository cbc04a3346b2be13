//! Checks that the krew manifest has the form that krew accepts, and the checksums of its archives.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use epilogue_deploy::krew;
use serde_json::{Value, json};

const PLATFORMS: [(&str, &str); 4] =
    [("linux", "amd64"), ("linux", "arm64"), ("darwin", "amd64"), ("darwin", "arm64")];

/// A directory with a small archive for each platform.
fn archives() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("must be creatable");
    for (os, arch) in PLATFORMS {
        let path = directory.path().join(krew::archive(os, arch));
        fs::write(path, format!("an archive for {os} on {arch}")).expect("must be writable");
    }
    directory
}

fn platforms(manifest: &Value) -> Vec<Value> {
    manifest["spec"]["platforms"].as_array().cloned().expect("must be a list")
}

/// The version in Cargo.toml, read apart from cargo.
fn version() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let text = fs::read_to_string(root).expect("must be readable");
    let version = text.lines().find_map(|line| line.strip_prefix("version = \""));
    version.expect("must have a version").trim_end_matches('"').to_owned()
}

#[test]
fn the_manifest_has_the_form_that_krew_accepts() {
    let directory = archives();
    let manifest = krew::manifest(directory.path()).expect("must be made");
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"], json!({"name": "epilogue"}));
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], format!("v{}", version()));
    let short = spec["shortDescription"].as_str().expect("must be text");
    assert!((1..=50).contains(&short.len()) && !short.ends_with('.'), "{short}");
    assert!(spec["description"].as_str().is_some_and(|text| !text.is_empty()));
    assert!(spec["homepage"].as_str().is_some_and(|uri| uri.starts_with("https://")));
    let mut selected = Vec::new();
    for platform in platforms(&manifest) {
        let labels = &platform["selector"]["matchLabels"];
        let (os, arch) = (labels["os"].as_str(), labels["arch"].as_str());
        let (os, arch) = os.zip(arch).expect("must select os and arch");
        let program = "kubectl-epilogue";
        assert_eq!(platform["bin"], program);
        let files = json!([{"from": program, "to": "."}, {"from": "LICENSE", "to": "."}]);
        assert_eq!(platform["files"], files);
        let fields: BTreeSet<&str> =
            platform.as_object().expect("must have fields").keys().map(String::as_str).collect();
        assert_eq!(fields, BTreeSet::from(["bin", "files", "selector", "sha256", "uri"]));
        selected.push((os.to_owned(), arch.to_owned()));
    }
    assert_eq!(selected, PLATFORMS.map(|(os, arch)| (os.to_owned(), arch.to_owned())));
}

#[test]
fn each_checksum_is_that_of_the_archive_behind_the_address() {
    let directory = archives();
    let manifest = krew::manifest(directory.path()).expect("must be made");
    let mut checksums = BTreeSet::new();
    for platform in platforms(&manifest) {
        let uri = platform["uri"].as_str().expect("must be text");
        let beginning =
            format!("{}/v{}/kubectl-epilogue-v{}-", krew::RELEASES, version(), version());
        assert!(uri.starts_with(&beginning), "{uri}");
        let labels = &platform["selector"]["matchLabels"];
        let of = |label: &str| labels[label].as_str().expect("must be text");
        assert!(uri.ends_with(&format!("-{}-{}.tar.gz", of("os"), of("arch"))), "{uri}");
        let (_, name) = uri.rsplit_once('/').expect("must have a file name");
        let sum = Command::new("sha256sum").arg(directory.path().join(name)).output();
        let sum = String::from_utf8(sum.expect("coreutils must be installed").stdout);
        let sum = sum.expect("must be text");
        assert_eq!(platform["sha256"].as_str(), sum.split(' ').next(), "{name}");
        checksums.insert(sum);
    }
    assert_eq!(checksums.len(), PLATFORMS.len());
}

#[test]
fn the_template_names_no_version_and_no_checksum() {
    let text = fs::read_to_string(krew::template()).expect("must be readable");
    for field in ["version:", "uri:", "sha256:", &version()] {
        assert!(!text.contains(field), "{field}");
    }
}

#[test]
fn the_program_prints_the_manifest_and_names_an_archive_that_is_missing() {
    let directory = archives();
    let run = || {
        let program = env!("CARGO_BIN_EXE_krew-manifest");
        Command::new(program).arg(directory.path()).output().expect("must be startable")
    };
    let output = run();
    assert!(output.status.success(), "{output:?}");
    let printed: Value = serde_yaml_ng::from_slice(&output.stdout).expect("must be YAML");
    assert_eq!(printed, krew::manifest(directory.path()).expect("must be made"));
    let missing = krew::archive("darwin", "arm64");
    fs::remove_file(directory.path().join(&missing)).expect("must be removable");
    let output = run();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(&missing), "{error}");
}
