//! Packs archives of programs, the plugin's archives, the chart and the krew manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::{copy, remove, tar_gz};
use super::command::output;
use super::error::ReleaseError;
use super::image;
use super::platform::Platform;
use super::source::Source;
use crate::krew::{self, KrewError};

const PLUGIN: &str = "kubectl-epilogue";
const RUNS_HERE: &str = "programs of the first platform must run on this machine";

/// Packs the image of a platform, and an archive with its programs for hosts.
pub fn platform(
    source: &Source,
    programs: &Path,
    platform: &Platform,
    out: &Path,
) -> Result<(), ReleaseError> {
    image::pack(source, programs, platform, out)?;
    let stage = stage(source, &format!("programs-{}", platform.arch))?;
    for program in image::PROGRAMS {
        copy(&programs.join(program), &stage.join(program))?;
    }
    copy(&source.directory.join("LICENSE"), &stage.join("LICENSE"))?;
    copy(&source.directory.join("deploy/systemd"), &stage.join("systemd"))?;
    let name = format!("epilogue-v{}-linux-{}.tar.gz", source.version, platform.arch);
    tar_gz(&stage, &out.join(name), &source.epoch)
}

/// Packs the plugin for each platform, with completion and man pages. Each platform comes with the
/// directory of its programs; those of the first one run on this machine.
pub fn plugins(
    source: &Source,
    built: &[(Platform, PathBuf)],
    out: &Path,
) -> Result<(), ReleaseError> {
    let first = built.first().map(|(_, programs)| programs.join(PLUGIN)).unwrap_or_default();
    let run = |arguments: &[&str]| output(Command::new(&first).args(arguments), RUNS_HERE);
    for (platform, programs) in built {
        let stage = stage(source, &format!("plugin-{}", platform.arch))?;
        copy(&programs.join(PLUGIN), &stage.join(PLUGIN))?;
        copy(&source.directory.join("LICENSE"), &stage.join("LICENSE"))?;
        let completion = stage.join("completion");
        fs::create_dir_all(&completion).map_err(ReleaseError::file(&completion))?;
        for shell in ["bash", "zsh", "fish", "powershell"] {
            write(&completion.join(shell), &run(&["completion", shell])?)?;
        }
        let complete = stage.join("kubectl_complete-epilogue");
        write(&complete, &run(&["completion", "kubectl"])?)?;
        make_executable(&complete)?;
        let pages = stage.join("man");
        run(&["man", "--directory", &pages.to_string_lossy()])?;
        tar_gz(&stage, &out.join(krew::archive("linux", platform.arch)), &source.epoch)?;
    }
    Ok(())
}

/// Packs the chart with the files behind its links, but without those of `.helmignore`. The image
/// has this digest, if it was pushed.
pub fn chart(source: &Source, digest: Option<&str>, out: &Path) -> Result<(), ReleaseError> {
    let chart = source.directory.join("deploy/chart");
    let stage = stage(source, "chart")?;
    let root = stage.join("epilogue");
    copy(&chart, &root)?;
    let path = chart.join(".helmignore");
    let ignored = fs::read_to_string(&path).map_err(ReleaseError::file(&path))?;
    for line in ignored.lines().filter(|line| !line.starts_with('#')) {
        remove_ignored(&root, line)?;
    }
    if let Some(digest) = digest {
        pin(source, &root, digest)?;
    }
    let name = format!("epilogue-{}.tgz", source.version);
    tar_gz(&stage, &out.join(name), &source.epoch)
}

/// Writes the image's digest into the value, and into the annotation that lists the images.
fn pin(source: &Source, chart: &Path, digest: &str) -> Result<(), ReleaseError> {
    let tag = format!("registry.epilogue.dev/epilogue:{}", source.version);
    let files = [
        ("values.yaml", "\n  digest: \"\"\n".to_owned(), format!("\n  digest: {digest}\n")),
        ("Chart.yaml", tag, format!("registry.epilogue.dev/epilogue@{digest}")),
    ];
    for (file, unpinned, pinned) in files {
        let path = chart.join(file);
        let text = fs::read_to_string(&path).map_err(ReleaseError::file(&path))?;
        if !text.contains(&unpinned) {
            return Err(ReleaseError::NotPinned(path));
        }
        write(&path, &text.replacen(&unpinned, &pinned, 1))?;
    }
    Ok(())
}

/// Removes a path that has a slash, or all files of this name.
fn remove_ignored(directory: &Path, pattern: &str) -> Result<(), ReleaseError> {
    if pattern.contains('/') {
        return remove(&directory.join(pattern));
    }
    for entry in fs::read_dir(directory).map_err(ReleaseError::file(directory))? {
        let path = entry.map_err(ReleaseError::file(directory))?.path();
        if path.file_name().is_some_and(|name| name == pattern) {
            remove(&path)?;
        } else if path.is_dir() {
            remove_ignored(&path, pattern)?;
        }
    }
    Ok(())
}

/// Writes the krew manifest for the platforms of the release.
pub fn krew(source: &Source, platforms: &[Platform], out: &Path) -> Result<(), ReleaseError> {
    let template = source.directory.join("deploy/krew/epilogue.yaml");
    let architectures: Vec<&str> = platforms.iter().map(|platform| platform.arch).collect();
    let manifest = krew::manifest_from(&template, out, Some(&architectures))?;
    let text = serde_yaml_ng::to_string(&manifest).map_err(KrewError::from)?;
    write(&out.join("epilogue.yaml"), &text)
}

/// An empty directory for the content of an archive.
fn stage(source: &Source, name: &str) -> Result<PathBuf, ReleaseError> {
    let stage = source.target.join("release-stage").join(name);
    remove(&stage)?;
    fs::create_dir_all(&stage).map_err(ReleaseError::file(&stage))?;
    Ok(stage)
}

fn write(path: &Path, text: &str) -> Result<(), ReleaseError> {
    fs::write(path, text).map_err(ReleaseError::file(path))
}

fn make_executable(path: &Path) -> Result<(), ReleaseError> {
    use std::os::unix::fs::PermissionsExt as _;
    let permissions = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, permissions).map_err(ReleaseError::file(path))
}
