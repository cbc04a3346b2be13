//! Accesses the host's files, all under one root, and its ports, so that a test can pass others.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use agent_core::shutdown::logind_conf::{ConfFile, DROP_IN_DIRS, MAIN_FILES};
use thiserror::Error;
use tokio::task::JoinError;

use crate::ports::Ports;

/// The host's files and ports.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    /// Whether slow files are read and written by the agent's own thread.
    inline: bool,
    ports: Ports,
}

/// Names the system bus for every client of D-Bus.
const BUS_VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";

/// Maximum size of a file of the kernel; they are far shorter.
const KERNEL_BYTES_MAX: u64 = 64 << 10;

/// Why a file of the host could not be read or written.
#[derive(Debug, Error)]
#[error("cannot {verb} {path}")]
pub struct HostError {
    verb: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl HostError {
    /// What turns the system's error into this one.
    pub(crate) fn of(
        verb: &'static str,
        path: &Path,
    ) -> impl Fn(io::Error) -> Self + Clone + use<> {
        let path = path.to_owned();
        move |source| Self { verb, path: path.clone(), source }
    }

    /// The system's error.
    pub fn cause(&self) -> &io::Error {
        &self.source
    }
}

impl Host {
    /// The host whose files lie under `root`.
    pub fn new(root: PathBuf) -> Self {
        Self { root, inline: false, ports: Ports::default() }
    }

    /// The same host, whose files do not take a thread: then runs in paused time replay.
    #[must_use]
    pub fn inline(self) -> Self {
        Self { inline: true, ..self }
    }

    /// The same host with these ports, in place of the kernel's.
    #[must_use]
    pub fn with_ports(self, ports: Ports) -> Self {
        Self { ports, ..self }
    }

    /// The host's ports.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Does blocking work on a thread of its own: a slow disk must not delay the rest.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match self.try_blocking(work).await {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down: no task waits for the answer.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// The same; an error if the work panicked, or if the runtime is shutting down.
    pub(crate) async fn try_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        if self.inline {
            return Ok(work());
        }
        tokio::task::spawn_blocking(work).await
    }

    /// The path of a host's file.
    pub fn path(&self, host_path: &str) -> PathBuf {
        self.root.join(host_path.trim_start_matches('/'))
    }

    /// The address of the system bus: the one that the environment names, as for every client of
    /// D-Bus, else the host's own.
    pub(crate) fn bus_address(&self) -> String {
        let given = std::env::var(BUS_VARIABLE).ok().filter(|address| !address.is_empty());
        given.unwrap_or_else(|| self.own_bus_address())
    }

    /// The address of the host's own system bus.
    pub fn own_bus_address(&self) -> String {
        format!("unix:path={}", self.path("/run/dbus/system_bus_socket").display())
    }

    /// All files of logind's configuration, with their paths on the host.
    pub fn logind_conf_files(&self) -> Result<Vec<ConfFile>, HostError> {
        let mut files = Vec::new();
        for path in MAIN_FILES {
            files.extend(self.conf_file(path)?);
        }
        for dir in DROP_IN_DIRS {
            for name in names(&self.path(dir))? {
                files.extend(self.conf_file(&format!("{dir}/{name}"))?);
            }
        }
        Ok(files)
    }

    /// The name of a running process.
    pub fn process_name(&self, pid: u32) -> Option<String> {
        let name = fs::read_to_string(self.path(&format!("/proc/{pid}/comm"))).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// The id of this boot, which the kernel draws at each boot.
    pub fn boot_id(&self) -> Result<String, HostError> {
        let path = self.path("/proc/sys/kernel/random/boot_id");
        let text = fs::read_to_string(&path).map_err(HostError::of("read", &path))?;
        Ok(text.trim().to_owned())
    }

    /// Writes a file of logind's configuration, whole or not at all: mode 0644. Makes its directory
    /// with mode 0755 if that is missing.
    pub fn write_conf_file(&self, host_path: &str, text: &str) -> Result<(), HostError> {
        let path = self.path(host_path);
        write_whole(&path, text).map_err(HostError::of("write", &path))
    }

    fn conf_file(&self, host_path: &str) -> Result<Option<ConfFile>, HostError> {
        let path = self.path(host_path);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(ConfFile {
                path: host_path.to_owned(),
                text: String::from_utf8_lossy(&bytes).into_owned(),
            })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(HostError::of("read", &path)(error)),
        }
    }
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if !dir.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    // logind does not read this name, should the file stay behind.
    let new = path.with_extension("new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    // The process's umask may have cleared bits.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn names(dir: &Path) -> Result<Vec<String>, HostError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        entries => entries.map_err(HostError::of("list", dir))?,
    };
    entries
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.as_ref().map_or(true, |name| is_conf(name)))
        .collect::<Result<_, _>>()
        .map_err(HostError::of("list", dir))
}

/// Reads a file of the kernel, up to the maximum size.
pub(crate) fn read_kernel(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4 << 10);
    fs::File::open(path)?.take(KERNEL_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

fn is_conf(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, termination)| termination == "conf")
}

/// A directory in a file's place does not count as a file of logind either.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loginds_files_are_found_under_the_root() {
        let root = tempfile::tempdir().expect("must be creatable");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("must have one")).expect("must be creatable");
            fs::write(path, text).expect("must be writable");
        };
        write("etc/systemd/logind.conf", "main");
        write("etc/systemd/logind.conf.d/a.conf", "a");
        write("etc/systemd/logind.conf.d/readme", "no");
        write("usr/lib/systemd/logind.conf.d/b.conf", "b");
        write("etc/systemd/logind.conf.d/dir.conf/inside", "no");
        let link = root.path().join("etc/systemd/logind.conf.d/mask.conf");
        std::os::unix::fs::symlink("/dev/null", link).expect("must be linkable");
        write("proc/77/comm", "kubelet\n");
        write("proc/sys/kernel/random/boot_id", "one-boot\n");

        let host = Host::new(root.path().to_owned());
        let mut files = host.logind_conf_files().expect("must be readable");
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let found: Vec<_> =
            files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
        let expected = [
            ("/etc/systemd/logind.conf", "main"),
            ("/etc/systemd/logind.conf.d/a.conf", "a"),
            ("/etc/systemd/logind.conf.d/mask.conf", ""),
            ("/usr/lib/systemd/logind.conf.d/b.conf", "b"),
        ];
        assert_eq!(found, expected);
        assert_eq!(host.process_name(77).as_deref(), Some("kubelet"));
        assert_eq!(host.process_name(78), None);
        assert_eq!(host.boot_id().expect("must be readable"), "one-boot");
        assert!(host.own_bus_address().ends_with("/run/dbus/system_bus_socket"));
        let empty = Host::new(root.path().join("none"));
        assert_eq!(empty.logind_conf_files().expect("must be readable"), []);
    }
    #[test]
    fn a_conf_file_is_written_whole_and_readable_for_all() {
        let root = tempfile::tempdir().expect("must be creatable");
        let host = Host::new(root.path().to_owned());
        let path = "/etc/systemd/logind.conf.d/zz.conf";
        for text in ["first, longer", "second"] {
            host.write_conf_file(path, text).expect("must be writable");
            assert_eq!(fs::read_to_string(host.path(path)).expect("must be there"), text);
        }
        let mode = |path: &Path| fs::metadata(path).expect("must be there").permissions().mode();
        assert_eq!(mode(&host.path(path)) & 0o777, 0o644);
        let dir = host.path("/etc/systemd/logind.conf.d");
        assert_eq!(mode(&dir) & 0o777, 0o755);
        let left: Vec<_> = fs::read_dir(dir).expect("must be there").collect();
        assert_eq!(left.len(), 1, "{left:?}");

        fs::write(root.path().join("file"), "").expect("must be writable");
        let error = host.write_conf_file("/file/a.conf", "").expect_err("must fail");
        assert_eq!(error.cause().kind(), io::ErrorKind::AlreadyExists, "{error}");
    }
}
