//! Provides the programs that the laboratory needs on the machine: a table, a check, and an
//! installation by apt-get if possible. Otherwise it returns an error with the command.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::error::LabError;

/// Where a tool comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A package of Debian.
    Apt(&'static str),
    /// A program that only a user should install, and the instructions.
    Person(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct Tool {
    program: &'static str,
    source: Source,
    needed_for: &'static str,
}

/// kubectl is not in it: the lab prints commands for it and never runs it.
const TOOLS: [Tool; 5] = [
    Tool {
        program: "go",
        // Debian's own is older than the version in Kubernetes' go.mod.
        source: Source::Person("Go 1.26 or newer from https://go.dev/dl/"),
        needed_for: "building etcd and Kubernetes",
    },
    Tool {
        program: "protoc",
        source: Source::Apt("protobuf-compiler"),
        needed_for: "building the agent's CRI client",
    },
    Tool {
        program: "dbus-daemon",
        source: Source::Apt("dbus"),
        needed_for: "the agent's tests against a private bus",
    },
    Tool {
        program: "setpriv",
        source: Source::Apt("util-linux"),
        needed_for: "children that end with the lab",
    },
    Tool {
        program: "chrt",
        source: Source::Apt("util-linux"),
        needed_for: "tests that take what others leave of the cores",
    },
];

/// Further tools for a machine that runs nodes.
const NODE_TOOLS: [Tool; 7] = [
    node_tool("qemu-system-x86_64", "qemu-system-x86"),
    node_tool("qemu-img", "qemu-utils"),
    node_tool("mmdebstrap", "mmdebstrap"),
    node_tool("mke2fs", "e2fsprogs"),
    node_tool("cpio", "cpio"),
    node_tool("ssh", "openssh-client"),
    node_tool("systemd-nspawn", "systemd-container"),
];

/// The program that opens pages without a screen.
const BROWSER: Tool = Tool {
    program: "chromium-headless-shell",
    source: Source::Apt("chromium-headless-shell"),
    needed_for: "checking the page of kubectl epilogue report",
};

/// The program by which a Go program finds a C library.
const PKG_CONFIG: Tool =
    Tool { program: "pkg-config", source: Source::Apt("pkg-config"), needed_for: "building runc" };

const fn node_tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, source: Source::Apt(package), needed_for: "a real node in a virtual machine" }
}

/// Ensures every tool.
pub async fn ensure() -> Result<(), LabError> {
    ensure_all(&TOOLS).await
}

/// Ensures the tools that only a real node needs, [`crate::vm`].
pub async fn ensure_for_nodes() -> Result<(), LabError> {
    ensure_all(&NODE_TOOLS).await
}

/// Ensures a browser.
pub async fn ensure_for_pages() -> Result<(), LabError> {
    ensure_all(&[BROWSER]).await
}

/// Ensures what a container runtime is built with.
pub async fn ensure_for_runtime() -> Result<(), LabError> {
    ensure_all(&[PKG_CONFIG]).await
}

async fn ensure_all(tools: &[Tool]) -> Result<(), LabError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let missing = missing(tools, &directories);
    if missing.is_empty() {
        return Ok(());
    }
    let packages = packages(&missing);
    if !packages.is_empty() && apt_is_possible(&directories).await {
        eprintln!("installing {} …", packages.join(" "));
        apt_get(&["update"]).await?;
        // A new machine is often in its first automatic upgrade, which holds the lock.
        let install =
            ["install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"];
        apt_get(&[&install[..], &packages].concat()).await?;
    }
    self::missing(tools, &directories).first().map_or(Ok(()), |tool| Err(error_of(tool)))
}

/// Runs apt-get update; returns whether that was possible.
pub(crate) async fn update_lists() -> bool {
    can_install().await && apt_get(&["update"]).await.is_ok()
}

/// Whether this machine can install packages of Debian.
pub(crate) async fn can_install() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    apt_is_possible(&directories).await
}

fn missing(tools: &[Tool], directories: &[PathBuf]) -> Vec<Tool> {
    tools.iter().copied().filter(|tool| !is_installed(tool.program, directories)).collect()
}

fn is_installed(program: &str, directories: &[PathBuf]) -> bool {
    directories.iter().any(|directory| directory.join(program).is_file())
}

fn packages(tools: &[Tool]) -> Vec<&'static str> {
    let apt = |tool: &Tool| match tool.source {
        Source::Apt(package) => Some(package),
        Source::Person(_) => None,
    };
    let mut packages: Vec<_> = tools.iter().filter_map(apt).collect();
    // Tools of one package are next to each other.
    packages.dedup();
    packages
}

fn error_of(tool: &Tool) -> LabError {
    let remedy = match tool.source {
        Source::Apt(package) => format!("sudo apt-get install {package} (or your system's way)"),
        Source::Person(remedy) => remedy.to_owned(),
    };
    LabError::ToolMissing { program: tool.program, needed_for: tool.needed_for, remedy }
}

/// Debian, and root or a sudo without a password.
async fn apt_is_possible(directories: &[PathBuf]) -> bool {
    let debian = Path::new("/etc/debian_version").exists();
    debian && is_installed("apt-get", directories) && (is_root() || sudo_is_silent().await)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

async fn sudo_is_silent() -> bool {
    let asked = Command::new("sudo").args(["--non-interactive", "true"]).output().await;
    asked.is_ok_and(|output| output.status.success())
}

async fn apt_get(args: &[&str]) -> Result<(), LabError> {
    let mut command = if is_root() {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--non-interactive", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        sudo
    };
    let failed = |source| LabError::Spawn { program: "apt-get".into(), source };
    // Its output is noise unless it fails; then the caller's second check names what is missing.
    let output = command
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .await
        .map_err(failed)?;
    if !output.status.success() {
        eprintln!("apt-get {}:\n{}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_an_empty_machine_everything_is_missing() {
        assert_eq!(missing(&TOOLS, &[]).len(), TOOLS.len());
        assert_eq!(packages(&TOOLS), ["protobuf-compiler", "dbus", "util-linux"]);
    }

    #[test]
    fn the_error_names_the_command() {
        let protoc = TOOLS.iter().find(|tool| tool.program == "protoc").expect("in the table");
        let message = error_of(protoc).to_string();
        assert!(message.contains("sudo apt-get install protobuf-compiler"), "{message}");
    }
}
