//! Provides a real logind for the agent's tests: Debian's elogind, unpacked and never installed. It
//! needs no systemd, so it runs in namespaces of its own, also in a container.

use std::path::Path;

use tokio::process::Command;

use crate::error::LabError;
use crate::paths::LabDir;
use crate::tools;

const PACKAGES: [&str; 2] = ["elogind", "libelogind0"];

/// Unpacks it, unless it is already there.
pub async fn ensure(labs: &LabDir) -> Result<(), LabError> {
    let dir = labs.elogind();
    if dir.exists() {
        return Ok(());
    }
    eprintln!("unpacking {} …", PACKAGES.join(" "));
    let new = dir.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&new).map_err(LabError::file("create", &new))?;
    let unpacked = match unpack(&new).await {
        // The package lists are missing or too old.
        false if tools::update_lists().await => unpack(&new).await,
        unpacked => unpacked,
    };
    if !unpacked {
        // A leftover directory does no harm.
        let _ = std::fs::remove_dir_all(&new);
        return Err(missing(&dir));
    }
    match std::fs::rename(&new, &dir) {
        // Another lab was faster.
        Err(_) if dir.exists() => std::fs::remove_dir_all(&new),
        renamed => renamed,
    }
    .map_err(LabError::file("write", dir))
}

fn missing(dir: &Path) -> LabError {
    let dir = dir.display();
    LabError::ToolMissing {
        program: "elogind",
        needed_for: "the agent's tests against a real logind",
        remedy: format!(
            "sudo apt-get update, then in an empty directory: apt-get download {}, and \
             dpkg -x FILE {dir} for each (or your system's way to get them there)",
            PACKAGES.join(" ")
        ),
    }
}

/// Whether both packages were downloaded and unpacked.
async fn unpack(dir: &Path) -> bool {
    let mut download = Command::new("apt-get");
    download.arg("download").args(PACKAGES).current_dir(dir);
    if !succeeds(download).await {
        return false;
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let paths = entries.flatten().map(|entry| entry.path());
    let archives: Vec<_> = paths.filter(|path| path.extension() == Some("deb".as_ref())).collect();
    for archive in &archives {
        let mut extract = Command::new("dpkg");
        extract.arg("-x").arg(archive).arg(dir);
        if !succeeds(extract).await {
            return false;
        }
    }
    archives.len() == PACKAGES.len()
}

/// Their output is noise unless they fail; the caller then names what is missing.
async fn succeeds(mut command: Command) -> bool {
    match command.output().await {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_commands() {
        let message = missing(Path::new("/lab/elogind")).to_string();
        assert!(message.contains("apt-get download elogind libelogind0"), "{message}");
        assert!(message.contains("dpkg -x FILE /lab/elogind"), "{message}");
    }

    #[tokio::test]
    async fn what_is_there_is_not_fetched_again() {
        let labs = tempfile::tempdir().expect("must be creatable");
        let labs = LabDir::at(labs.path());
        std::fs::create_dir_all(labs.elogind()).expect("must be creatable");
        ensure(&labs).await.expect("there is nothing to do");
    }
}
