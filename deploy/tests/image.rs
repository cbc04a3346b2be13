//! Checks that the image archive is well-formed, holds only the programs, and is reproducible. The
//! packed programs are two text files here; `deploy/image/build` checks that the real ones are
//! static.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const PROGRAMS: [&str; 2] = ["epilogue-agent", "epilogue-controller"];

fn run(command: &mut Command) -> String {
    let output = command.output().expect("GNU tar and coreutils must be installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("must be text")
}

fn script(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("image").join(name))
}

/// Packs an archive of two programs in this directory.
fn packed(dir: &Path) -> PathBuf {
    let archive = dir.join("image.tar");
    let mut pack = script("pack");
    pack.arg(&archive).arg("registry.example/epilogue:1.2.3");
    for program in PROGRAMS {
        let path = dir.join(program);
        fs::write(&path, format!("#!/bin/sh\necho {program}\n")).expect("must be writable");
        // Packing makes it executable, whatever its mode is.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("must be settable");
        pack.arg(path);
    }
    run(&mut pack);
    archive
}

fn unpacked(dir: &Path) -> PathBuf {
    let root = dir.join("image");
    fs::create_dir(&root).expect("must be creatable");
    let archive = packed(dir);
    run(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("-C").arg(&root));
    root
}

fn read(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blob that a descriptor names; its size must match.
fn blob(root: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().expect("must have a digest");
    let path = root.join("blobs").join(digest.replace(':', "/"));
    let size = fs::metadata(&path).expect("must be there").len();
    assert_eq!(descriptor["size"], size, "{digest}");
    path
}

#[test]
fn an_index_leads_to_every_blob_and_each_is_what_its_name_says() {
    let dir = tempfile::tempdir().expect("must be creatable");
    let root = unpacked(dir.path());
    assert_eq!(read(&root.join("oci-layout")), json!({"imageLayoutVersion": "1.0.0"}));
    let index = read(&root.join("index.json"));
    assert_eq!(index["manifests"].as_array().map(Vec::len), Some(1));
    let manifest_path = blob(&root, &index["manifests"][0]);
    let manifest = read(&manifest_path);
    let config_path = blob(&root, &manifest["config"]);
    let layer_path = blob(&root, &manifest["layers"][0]);
    let config = read(&config_path);
    assert_eq!(config["rootfs"]["diff_ids"], json!([manifest["layers"][0]["digest"]]));
    assert_eq!(config["architecture"], index["manifests"][0]["platform"]["architecture"]);
    assert_eq!(config["config"]["User"], "65532:65532");

    let listed = [manifest_path, config_path, layer_path];
    let blobs = fs::read_dir(root.join("blobs/sha256")).expect("must be there");
    let blobs: Vec<PathBuf> = blobs.map(|entry| entry.expect("must be readable").path()).collect();
    assert_eq!(blobs.len(), listed.len());
    for path in blobs {
        assert!(listed.contains(&path), "{}", path.display());
        let sum = run(Command::new("sha256sum").arg(&path));
        let name = path.file_name().and_then(|name| name.to_str()).expect("must be text");
        assert_eq!(sum.split(' ').next(), Some(name));
    }
    // The names that containerd and older engines use.
    let annotations = &index["manifests"][0]["annotations"];
    assert_eq!(annotations["io.containerd.image.name"], "registry.example/epilogue:1.2.3");
    let older = read(&root.join("manifest.json"));
    assert_eq!(older[0]["RepoTags"], json!(["registry.example/epilogue:1.2.3"]));
    for path in [&older[0]["Config"], &older[0]["Layers"][0]] {
        assert!(root.join(path.as_str().expect("must be a path")).is_file(), "{path}");
    }
}

#[test]
fn the_layer_holds_the_programs_and_nothing_else() {
    let dir = tempfile::tempdir().expect("must be creatable");
    let root = unpacked(dir.path());
    let index = read(&root.join("index.json"));
    let manifest = read(&blob(&root, &index["manifests"][0]));
    let layer = blob(&root, &manifest["layers"][0]);
    let list = |options: &[&str]| run(Command::new("tar").args(options).arg("-tvf").arg(&layer));
    let lines = list(&["--numeric-owner", "--utc", "--full-time"]);
    let files: BTreeMap<&str, Vec<&str>> = lines
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|mut fields| (fields.pop().expect("a line must have fields"), fields))
        .collect();
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), PROGRAMS);
    for fields in files.values() {
        assert_eq!((fields[0], fields[1]), ("-rwxr-xr-x", "0/0"), "{lines}");
        assert_eq!(fields[3..], ["1970-01-01", "00:00:00"], "{lines}");
    }
}

#[test]
fn the_same_programs_make_the_same_archive() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("must be creatable"));
    let [first, second] = dirs.each_ref().map(|dir| {
        let archive = packed(dir.path());
        fs::read(archive).expect("must be readable")
    });
    assert!(first == second);
}

#[test]
fn the_revision_is_the_commit_and_says_whether_files_differ() {
    let dir = tempfile::tempdir().expect("must be creatable");
    let (place, readme) = (dir.path().join("deploy/image"), dir.path().join("README.md"));
    fs::create_dir_all(&place).expect("must be creatable");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("image/revision");
    let copy = place.join("revision");
    fs::copy(source, &copy).expect("must be copyable");
    fs::write(&readme, "one").expect("must be writable");
    let revision = |given: Option<&str>| {
        let mut script = Command::new(&copy);
        // The directory may lie in the checkout of something else.
        script.env_remove("EPILOGUE_REVISION").env("GIT_CEILING_DIRECTORIES", dir.path());
        run(script.envs(given.map(|given| ("EPILOGUE_REVISION", given)))).trim().to_owned()
    };
    assert_eq!(revision(Some("v1.2.3")), "v1.2.3");

    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(dir.path()).args(["-c", "user.name=t", "-c", "user.email=t@t.example"]);
        run(git.args(arguments)).trim().to_owned()
    };
    git(&["init", "--quiet"]);
    assert_eq!(revision(None), "unknown", "no commit");
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "One"]);
    let commit = git(&["rev-parse", "HEAD"]);
    assert_eq!(revision(None), commit);
    fs::write(&readme, "two").expect("must be writable");
    assert_eq!(revision(None), commit + "-dirty");
}
