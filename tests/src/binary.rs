//! The control-plane binary: built from `tests/control-plane/` when its sources, the Go version
//! or the flags changed.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;

use crate::error::LabError;
use crate::paths::{LabDir, workspace_root};

/// Makes `/version` and the kubelet's report those of the release.
const VERSION_FLAGS: &str = "-s -w \
    -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=36";

const PROGRESS_EVERY: Duration = Duration::from_secs(20);

/// Builds the binary if it is missing or stale, and gives its path. Prints progress to stderr.
pub async fn ensure(labs: &LabDir) -> Result<PathBuf, LabError> {
    let (binary, stamp) = (labs.control_plane_binary(), labs.bin().join("control-plane.stamp"));
    std::fs::create_dir_all(labs.bin()).map_err(LabError::file("create", labs.bin()))?;
    // Two labs that start at once build once.
    let lock_path = labs.bin().join("control-plane.lock");
    let lock = File::create(&lock_path).map_err(LabError::file("open", &lock_path))?;
    lock.lock().map_err(LabError::file("lock", &lock_path))?;

    let wanted = wanted_stamp(&workspace_root().join("tests/control-plane")).await?;
    let built = std::fs::read_to_string(&stamp).unwrap_or_default();
    if !binary.exists() || built != wanted {
        build(&binary).await?;
        std::fs::write(&stamp, wanted).map_err(LabError::file("write", stamp))?;
    }
    Ok(binary)
}

/// Everything the binary depends on, as text: equal texts, equal binaries.
async fn wanted_stamp(sources: &Path) -> Result<String, LabError> {
    let version = go().arg("version").output().await.map_err(spawn_failed)?.stdout;
    let mut stamp = format!("{}{VERSION_FLAGS}\n", String::from_utf8_lossy(&version));
    let entries = std::fs::read_dir(sources).map_err(LabError::file("read", sources))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_source(path))
        .collect();
    paths.sort();
    for path in paths {
        let content = std::fs::read(&path).map_err(LabError::file("read", &path))?;
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        writeln!(stamp, "{name} {:016x}", hasher.finish()).expect("a String must take text");
    }
    Ok(stamp)
}

fn is_source(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("go" | "mod" | "sum"))
}

async fn build(binary: &Path) -> Result<(), LabError> {
    eprintln!("building the control plane (about 5 minutes the first time) …");
    let start = Instant::now();
    // Beside the old one and then renamed: a lab that runs from the old one is not disturbed.
    let new = binary.with_extension("new");
    let mut child = go()
        .args(["build", "-trimpath", "-ldflags", VERSION_FLAGS, "-o"])
        .arg(&new)
        .arg(".")
        .current_dir(workspace_root().join("tests/control-plane"))
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(spawn_failed)?;
    let status = loop {
        match tokio::time::timeout(PROGRESS_EVERY, child.wait()).await {
            Ok(status) => break status.map_err(spawn_failed)?,
            Err(_) => eprintln!("building the control plane … {} s", start.elapsed().as_secs()),
        }
    };
    if !status.success() {
        return Err(LabError::Build(status));
    }
    std::fs::rename(&new, binary).map_err(LabError::file("write", binary))?;
    eprintln!("built the control plane in {} s", start.elapsed().as_secs());
    Ok(())
}

fn go() -> Command {
    Command::new("go")
}

fn spawn_failed(source: std::io::Error) -> LabError {
    LabError::Spawn { program: "go".into(), source }
}
