//! The parts of a release, packed from programs of a debug build. Debug programs stand for those
//! of every platform.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use epilogue_deploy::release::platform::{ALL, Platform};
use epilogue_deploy::release::{audit, checksums, image, pack};
use epilogue_deploy::{documents, krew};
use lab::paths::{program, workspace_root};

use super::{VERSION, change_a_byte, checksums_hold, done, extracted, source};

/// A plugin that runs, without symbols. The other programs are texts: they need not run.
fn programs(directory: &Path) -> PathBuf {
    let programs = directory.join("programs");
    fs::create_dir_all(&programs).expect("a directory");
    for name in image::PROGRAMS {
        fs::write(programs.join(name), format!("the program {name}")).expect("must be writable");
    }
    let plugin = "kubectl-epilogue";
    done(Command::new("strip").arg("-o").arg(programs.join(plugin)).arg(program(plugin)));
    programs
}

/// All files of a release that need no build, in this directory.
fn packed(programs: &Path, target: &Path) -> PathBuf {
    let (source, out) = (source(target), target.join("out"));
    fs::create_dir_all(&out).expect("a directory");
    let built: Vec<(Platform, PathBuf)> =
        ALL.into_iter().map(|platform| (platform, programs.to_owned())).collect();
    for (platform, programs) in &built {
        pack::platform(&source, programs, platform, &out).expect("image and archive");
    }
    pack::plugins(&source, &built, &out).expect("archives of the plugin");
    pack::chart(&source, None, &out).expect("the chart");
    pack::krew(&source, &ALL, &out).expect("the manifest");
    checksums::write(&out).expect("checksums");
    out
}

/// The files of a directory by name.
fn content(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    paths.map(|path| (name(&path), fs::read(&path).expect("a file"))).collect()
}

#[test]
fn the_same_programs_make_the_same_files_and_checksums_hold() {
    let directory = tempfile::tempdir().expect("a directory");
    let programs = programs(directory.path());
    let [first, second] =
        ["first", "second"].map(|name| packed(&programs, &directory.path().join(name)));
    let (one, other) = (content(&first), content(&second));
    let expected = [
        "SHA256SUMS".to_owned(),
        format!("epilogue-{VERSION}.tgz"),
        format!("epilogue-v{VERSION}-linux-amd64.oci.tar"),
        format!("epilogue-v{VERSION}-linux-amd64.tar.gz"),
        format!("epilogue-v{VERSION}-linux-arm64.oci.tar"),
        format!("epilogue-v{VERSION}-linux-arm64.tar.gz"),
        "epilogue.yaml".to_owned(),
        format!("kubectl-epilogue-v{VERSION}-linux-amd64.tar.gz"),
        format!("kubectl-epilogue-v{VERSION}-linux-arm64.tar.gz"),
    ];
    assert_eq!(one.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    for (name, bytes) in &one {
        assert!(*bytes == other[name], "{name} differs");
    }
    assert!(checksums_hold(&first));
    plugin_archive_is_complete(&first);
    krew_manifest_names_the_archives(&first);
    for name in expected.iter().filter(|name| *name != "SHA256SUMS") {
        change_a_byte(&second.join(name));
        assert!(!checksums_hold(&second), "a changed byte of {name}");
        fs::write(second.join(name), &other[name]).expect("must be writable");
    }
    assert!(checksums_hold(&second));
}

fn plugin_archive_is_complete(out: &Path) {
    let archive = extracted(&out.join(krew::archive("linux", "amd64")));
    let version = done(Command::new(archive.path().join("kubectl-epilogue")).arg("--version"));
    assert!(version.contains(VERSION), "{version}");
    let complete = fs::read_to_string(archive.path().join("kubectl_complete-epilogue"));
    assert!(complete.expect("a script").contains("__complete"));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = fs::read_to_string(archive.path().join("completion").join(shell));
        assert!(script.expect(shell).contains("doctor"), "{shell}");
    }
    for page in ["kubectl-epilogue.1", "kubectl-epilogue-doctor.1"] {
        assert!(archive.path().join("man").join(page).is_file(), "{page}");
    }
    assert!(archive.path().join("LICENSE").is_file());
}

fn krew_manifest_names_the_archives(out: &Path) {
    let manifest = documents(&out.join("epilogue.yaml")).expect("YAML").remove(0);
    let sums = fs::read_to_string(out.join(checksums::FILE)).expect("checksums");
    let platforms = manifest["spec"]["platforms"].as_array().expect("platforms");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let listed: Vec<String> = platforms
        .iter()
        .map(|it| {
            let uri = text(&it["uri"]);
            let (_, file) = uri.rsplit_once('/').expect("a file");
            format!("{}  {file}", text(&it["sha256"]))
        })
        .collect();
    assert_eq!(listed.len(), ALL.len(), "only what the release has");
    assert!(listed.iter().all(|line| sums.lines().any(|sum| sum == line)), "{listed:?}");
}

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The chart of a release, extracted, and the lines of `tar --list --verbose`.
fn chart(digest: Option<&str>) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    pack::chart(&source(directory.path()), digest, directory.path()).expect("a package");
    let package = directory.path().join(format!("epilogue-{VERSION}.tgz"));
    let list = done(Command::new("tar").args(["--list", "--verbose", "--file"]).arg(&package));
    (extracted(&package), list)
}

/// Argo CD refuses a chart with links that leave its directory, and Flux drops them.
#[test]
fn the_chart_of_a_release_is_files_alone_and_has_all_that_its_links_lead_to() {
    let (package, list) = chart(None);
    assert!(list.lines().count() > 30, "{list}");
    for line in list.lines() {
        assert!(line.starts_with(['-', 'd']) && line.contains(" epilogue/"), "{line}");
    }
    let chart = workspace_root().join("deploy/chart");
    let links = fs::read_dir(&chart).expect("the chart").map(|entry| entry.expect("an entry"));
    let links = links.filter(|entry| entry.file_type().expect("a type").is_symlink());
    let names: Vec<_> = links.map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 8);
    for name in names {
        let (packed, linked) = (package.path().join("epilogue").join(&name), chart.join(&name));
        assert_eq!(packed.is_dir(), linked.is_dir(), "{name:?}");
        assert!(packed.exists(), "{name:?}");
    }
}

#[test]
fn the_chart_of_a_release_names_the_pushed_image_by_its_digest() {
    for digest in [None, Some(DIGEST)] {
        let (package, _) = chart(digest);
        let yaml = |file: &str| {
            documents(&package.path().join("epilogue").join(file)).expect("YAML").remove(0)
        };
        assert_eq!(yaml("values.yaml")["image"]["digest"], digest.unwrap_or_default());
        let images = &yaml("Chart.yaml")["annotations"]["artifacthub.io/images"];
        let images = images.as_str().expect("text");
        let is_of = |version: &str| images.contains(&format!("dev/epilogue{version}\n"));
        assert_eq!(is_of(&format!("@{DIGEST}")), digest.is_some(), "{images}");
        assert_eq!(is_of(&format!(":{VERSION}")), digest.is_none(), "{images}");
    }
}

#[test]
fn a_program_without_audit_data_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let bill = directory.path().join("bill.json");
    fs::write(&bill, r#"{"components": [], "metadata": {}}"#).expect("must be writable");
    let error = audit::compare(&program("kubectl-epilogue"), &bill).expect_err("no data");
    assert!(error.to_string().contains("cargo auditable build"), "{error}");
}
