//! A whole release of a clone: static programs, tools, registry, signatures. Too long for each run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use epilogue_deploy::krew;
use epilogue_deploy::release::platform::ALL;
use epilogue_deploy::release::tools::{TOOLS_ENV, Tools};
use epilogue_deploy::release::{audit, checksums, image, sign};
use lab::paths::workspace_root;
use serde_json::Value;

use super::registry::{Registry, packed_digest};
use super::{VERSION, change_a_byte, checksums_hold, done, extracted, source, tried};

const PROGRAMS: [&str; 3] = ["epilogue-agent", "epilogue-controller", "kubectl-epilogue"];
const PASSWORD: (&str, &str) = ("COSIGN_PASSWORD", "of the test");

/// A clone of the last commit, with a section for the version and a tag. Its path stays, so that a
/// second run builds less.
fn tagged_clone(directory: &Path) -> PathBuf {
    let clone = directory.join("clone");
    if clone.exists() {
        fs::remove_dir_all(&clone).expect("must be removable");
    }
    let mut git = Command::new("git");
    done(git.args(["clone", "--quiet", "--no-local"]).arg(workspace_root()).arg(&clone));
    let path = clone.join("CHANGELOG.md");
    let changes = fs::read_to_string(&path).expect("the changelog");
    let heading = "## [Unreleased]\n";
    assert!(changes.contains(heading));
    let section = format!("{heading}\n## [{VERSION}] - 2026-01-31\n");
    fs::write(&path, changes.replace(heading, &section)).expect("must be writable");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&clone).args(["-c", "user.name=t", "-c", "user.email=t@t.example"]);
        done(git.args(arguments));
    };
    git(&["commit", "--quiet", "--all", "--message", "The release"]);
    git(&["tag", &format!("v{VERSION}")]);
    clone
}

/// A pair of keys; returns the private one and the public one.
fn keys(cosign: &Path, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let mut generate = Command::new(cosign);
    generate.args(["generate-key-pair", "--output-key-prefix", name]).envs([PASSWORD]);
    done(generate.current_dir(directory));
    (directory.join(format!("{name}.key")), directory.join(format!("{name}.pub")))
}

/// Whether the signature of the checksums is valid by this public key.
fn checksums_are_signed(cosign: &Path, public: &Path, out: &Path) -> bool {
    let mut verify = Command::new(cosign);
    verify.args(["verify-blob", "--insecure-ignore-tlog", "--key"]).arg(public);
    tried(verify.args(["--bundle", sign::BUNDLE, checksums::FILE]).current_dir(out)).0
}

/// Whether the signature of the image is valid by this public key.
fn is_signed(cosign: &Path, public: &Path, reference: &str) -> bool {
    let mut verify = Command::new(cosign);
    verify.args(["verify", "--insecure-ignore-tlog", "--key"]).arg(public);
    tried(verify.arg(reference)).0
}

#[test]
fn rare_a_release_of_a_tag_is_static_signed_and_lists_its_parts() {
    let directory = workspace_root().join("target/release-test");
    fs::create_dir_all(&directory).expect("a directory");
    let scratch = tempfile::tempdir().expect("a directory");
    let (tools, clone) = (Tools::of(&workspace_root()), tagged_clone(&directory));
    let cosign = tools.cosign().expect("cosign must be buildable");
    let (private, public) = keys(&cosign, scratch.path(), "release");
    let (_, stranger) = keys(&cosign, scratch.path(), "stranger");
    let registry = Registry::start(&tools, scratch.path());
    let out = scratch.path().join("out");
    let mut release = Command::new(clone.join("deploy/release"));
    release
        .arg(format!("v{VERSION}"))
        .arg("--out")
        .arg(&out)
        .arg("--key")
        .arg(&private)
        .args(["--registry", &registry.address])
        .env(TOOLS_ENV, workspace_root().join("target/release-tools"))
        .env("CARGO_TARGET_DIR", directory.join("build"))
        .envs([PASSWORD]);
    println!("{}", done(&mut release));

    let notes = fs::read_to_string(out.join("RELEASE_NOTES.md")).expect("notes");
    assert!(notes.starts_with("### Added\n"), "{notes}");
    programs_run_and_their_dependencies_are_listed(&out, &commit_of(&clone));
    let reference = fs::read_to_string(out.join("IMAGE")).expect("the image's name");
    let reference = reference.trim();
    image_is_the_packed_one(&tools, &out, reference);
    chart_pins_the_image(&out, reference);

    assert!(is_signed(&cosign, &public, reference));
    assert!(!is_signed(&cosign, &stranger, reference), "another key");
    let other = format!("{}/epilogue:other", registry.address);
    let crane = tools.crane().expect("crane");
    done(
        Command::new(crane)
            .args(["mutate", "--label", "a=b", "--tag", &other])
            .arg(format!("{}/epilogue:{VERSION}-amd64", registry.address)),
    );
    assert!(!is_signed(&cosign, &public, &other), "a changed image");

    assert!(checksums_hold(&out) && checksums_are_signed(&cosign, &public, &out));
    assert!(!checksums_are_signed(&cosign, &stranger, &out), "another key");
    change_a_byte(&out.join(krew::archive("linux", "amd64")));
    assert!(!checksums_hold(&out), "a changed archive");
    change_a_byte(&out.join(checksums::FILE));
    assert!(!checksums_are_signed(&cosign, &public, &out), "changed checksums");
}

/// The commit that is checked out.
fn commit_of(clone: &Path) -> String {
    let mut git = Command::new("git");
    done(git.arg("-C").arg(clone).args(["rev-parse", "HEAD"])).trim().to_owned()
}

fn programs_run_and_their_dependencies_are_listed(out: &Path, commit: &str) {
    let hosts = extracted(&out.join(format!("epilogue-v{VERSION}-linux-amd64.tar.gz")));
    let plugin = extracted(&out.join(krew::archive("linux", "amd64")));
    for name in PROGRAMS {
        let place = if name == "kubectl-epilogue" { &plugin } else { &hosts };
        let program = place.path().join(name);
        let version = done(Command::new(&program).arg("--version"));
        assert!(version.contains(VERSION), "{name}: {version}");
        let bill = out.join(format!("{name}-v{VERSION}-linux-amd64.cdx.json"));
        let contained = audit::packages(&program).expect("audit data");
        let has = |name: &str| contained.iter().any(|(package, _)| package == name);
        assert!(has("ring") && has("epilogue-common") && contained.len() > 100, "{name}");
        audit::compare(&program, &bill).expect("the SBOM names each of them");
        an_sbom_without_a_dependency_is_refused(&program, &bill);
        let text = fs::read_to_string(&bill).expect("text");
        let here = workspace_root().display().to_string();
        assert!(!text.contains(&here), "{name}: a path of this machine");
        let bytes = fs::read(&program).expect("a program");
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!has(&here), "{name}: a path of this machine");
        // The plugin writes nothing that would name it.
        assert!(name == "kubectl-epilogue" || has(commit), "{name}: the revision is unknown");
    }
}

fn an_sbom_without_a_dependency_is_refused(program: &Path, bill: &Path) {
    let text = fs::read(bill).expect("text");
    let mut value: Value = serde_json::from_slice(&text).expect("JSON");
    let components = value["components"].as_array_mut().expect("components");
    components.retain(|component| component["name"] != "ring");
    let changed = tempfile::NamedTempFile::new().expect("a file");
    fs::write(changed.path(), value.to_string()).expect("must be writable");
    let error = audit::compare(program, changed.path()).expect_err("must be refused");
    assert!(error.to_string().contains("lacks ring"), "{error}");
}

fn chart_pins_the_image(out: &Path, reference: &str) {
    let package = extracted(&out.join(format!("epilogue-{VERSION}.tgz")));
    let values = fs::read_to_string(package.path().join("epilogue/values.yaml")).expect("values");
    let (_, digest) = reference.split_once('@').expect("a digest");
    assert!(values.contains(&format!("\n  digest: {digest}\n")), "{reference}");
}

fn image_is_the_packed_one(tools: &Tools, out: &Path, reference: &str) {
    let crane = tools.crane().expect("crane");
    let platform = ALL[0];
    let pulled = done(Command::new(&crane).args(["digest", "--platform=linux/amd64", reference]));
    let scratch = tempfile::tempdir().expect("a directory");
    let source = source(scratch.path());
    let file = image::file(&source, &platform, out);
    assert_eq!(pulled.trim(), packed_digest(&file));
    let root = scratch.path().join("root.tar");
    done(Command::new(&crane).args(["export", "--platform=linux/amd64", reference]).arg(&root));
    let root = extracted(&root);
    // The same programs make the same image again.
    image::pack(&source, root.path(), &platform, scratch.path()).expect("an image");
    let again = image::file(&source, &platform, scratch.path());
    let read = |path: &Path| fs::read(path).expect("an image");
    assert!(read(&again) == read(&file));
}
