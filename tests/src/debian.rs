//! Provides programs of Debian for tests, unpacked and never installed: an installation would start
//! their services on this machine.

use std::path::Path;

use tokio::process::Command;

use crate::error::LabError;
use crate::tools;

/// A real logind for the agent's tests. It needs no systemd, so it runs in namespaces of its own,
/// also in a container.
pub const ELOGIND: Unpacked = Unpacked {
    program: "elogind",
    needed_for: "the agent's tests against a real logind",
    packages: &["elogind", "libelogind0"],
};

/// The checker of rules for Prometheus.
pub const PROMTOOL: Unpacked = Unpacked {
    program: "promtool",
    needed_for: "the unit tests of the alerts",
    packages: &["prometheus"],
};

/// The library of seccomp, for a runc of one's own.
pub const LIBSECCOMP: Unpacked = Unpacked {
    program: "libseccomp",
    needed_for: "building runc",
    packages: &["libseccomp-dev", "libseccomp2"],
};

/// A program, and the packages that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Unpacked {
    program: &'static str,
    needed_for: &'static str,
    packages: &'static [&'static str],
}

/// Unpacks a program into `dir`, unless it is already there.
pub async fn ensure(wanted: Unpacked, dir: &Path) -> Result<(), LabError> {
    if dir.exists() {
        return Ok(());
    }
    eprintln!("unpacking {} …", wanted.packages.join(" "));
    let new = dir.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&new).map_err(LabError::file("create", &new))?;
    let unpacked = match unpack(wanted, &new).await {
        // The package lists are missing or too old.
        false if tools::update_lists().await => unpack(wanted, &new).await,
        unpacked => unpacked,
    };
    if !unpacked {
        // A leftover directory does no harm.
        let _ = std::fs::remove_dir_all(&new);
        return Err(missing(wanted, dir));
    }
    match std::fs::rename(&new, dir) {
        // Another lab was faster.
        Err(_) if dir.exists() => std::fs::remove_dir_all(&new),
        renamed => renamed,
    }
    .map_err(LabError::file("write", dir))
}

fn missing(wanted: Unpacked, dir: &Path) -> LabError {
    let dir = dir.display();
    LabError::ToolMissing {
        program: wanted.program,
        needed_for: wanted.needed_for,
        remedy: format!(
            "sudo apt-get update, then in an empty directory: apt-get download {}, and \
             dpkg -x FILE {dir} for each (or your system's way to get them there)",
            wanted.packages.join(" ")
        ),
    }
}

/// Whether all packages were downloaded and unpacked.
async fn unpack(wanted: Unpacked, dir: &Path) -> bool {
    let mut download = Command::new("apt-get");
    download.arg("download").args(wanted.packages).current_dir(dir);
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
    archives.len() == wanted.packages.len()
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
        let message = missing(ELOGIND, Path::new("/lab/elogind")).to_string();
        assert!(message.contains("apt-get download elogind libelogind0"), "{message}");
        assert!(message.contains("dpkg -x FILE /lab/elogind"), "{message}");
    }

    #[tokio::test]
    async fn what_is_there_is_not_fetched_again() {
        let dir = tempfile::tempdir().expect("must be creatable");
        ensure(PROMTOOL, dir.path()).await.expect("there is nothing to do");
    }
}
