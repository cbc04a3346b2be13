//! Runs a real logind and its bus in namespaces. Nothing in them reaches the machine: their
//! programs that end machines only record their calls. The kernel turns a reboot in a pid namespace
//! into the end of that namespace.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use agent_core::check::facts::Inhibitor;
use doubles::bus::{PrivateBus, WITHOUT_DESCRIPTORS};
use epilogue_agent::bus::Bus;
use epilogue_agent::host::Host;
use epilogue_agent::sink::logind::LogindSink;
use epilogue_agent::source::logind::{Logind, NAME};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::standing::{WITHIN, words};

const CONF: &str = "etc/systemd/logind.conf.d";
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Replaces the programs that end machines: records its call, one per line.
const ACTION: &str = "#!/bin/sh\necho \"$0 $*\" >>\"$EPILOGUE_TEST_ACTIONS\"\n";

/// A machine with a bus and a logind.
#[derive(Debug)]
pub(crate) struct Machine {
    orders: Orders,
    answers: Lines<BufReader<ChildStdout>>,
    _unshare: Child,
    bus: PrivateBus,
    dir: TempDir,
}

/// Sends commands to the namespace's shell.
#[derive(Clone, Debug)]
pub(crate) struct Orders(Arc<Mutex<std::io::PipeWriter>>);

impl Orders {
    /// Sends `start`, `kill` or `hup`.
    pub(crate) fn send(&self, order: &str) {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipe, "{order}").expect("the namespace must live");
    }
}

impl Machine {
    /// A machine whose logind grants this many seconds.
    pub(crate) async fn start(delay_seconds: u64) -> Self {
        Self::with(&delay_conf(delay_seconds)).await
    }

    /// A machine whose logind has this configuration.
    pub(crate) async fn with(conf: &str) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "a logind in namespaces of its own needs root: `sudo -E cargo lab test elogind`"
        );
        let dir = tempfile::tempdir().expect("must be creatable");
        write(dir.path(), &format!("{CONF}/10-test.conf"), conf);
        write(dir.path(), "action", ACTION);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.path().join("action"), executable).expect("must be ours");
        write(dir.path(), "actions", "");
        let bus = PrivateBus::start(dir.path());
        let (reader, writer) = std::io::pipe().expect("a pipe must be creatable");
        let mut unshare = namespaces(dir.path(), &bus.address)
            .stdin(reader)
            .spawn()
            .expect("bash must be installed");
        let stdout = unshare.stdout.take().expect("its output must be piped");
        let orders = Orders(Arc::new(Mutex::new(writer)));
        let answers = BufReader::new(stdout).lines();
        let mut machine = Self { orders, answers, _unshare: unshare, bus, dir };
        machine.expect("ready").await;
        machine.order("start").await;
        machine.until_owned().await;
        machine
    }

    /// Its files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a drop-in of logind's.
    pub(crate) fn write_conf(&self, name: &str, delay_seconds: u64) {
        write(self.dir.path(), &format!("{CONF}/{name}"), &delay_conf(delay_seconds));
    }

    /// The text of a drop-in.
    pub(crate) fn conf(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(CONF).join(name)).unwrap_or_default()
    }

    pub(crate) fn address(&self) -> &str {
        &self.bus.address
    }

    pub(crate) fn sink(&self) -> LogindSink {
        let host = Host::new(self.dir.path().to_owned());
        LogindSink::new(self.bus.address.clone(), host, words())
    }

    pub(crate) fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Sends the shell a command, and waits until it is done.
    pub(crate) async fn order(&mut self, order: &str) {
        self.orders.send(order);
        self.expect(order).await;
    }

    async fn expect(&mut self, word: &str) {
        let line = timeout(WITHIN, self.answers.next_line()).await;
        let line = line.unwrap_or_else(|elapsed| panic!("{elapsed}: no {word}; {}", self.log()));
        let line = line.expect("its output must be readable");
        assert_eq!(line.as_deref(), Some(word), "{}", self.log());
    }

    async fn until_owned(&self) {
        let bus = Bus::connect(&self.address().to_owned().into())
            .await
            .expect("the private bus must answer");
        let end = Instant::now() + WITHIN;
        while bus.owner_of(NAME).await.expect("the private bus must answer").is_none() {
            assert!(Instant::now() < end, "elogind does not come: {}", self.log());
            sleep(POLL).await;
        }
        bus.close().await;
    }

    /// Sends a signal that only logind should send.
    pub(crate) async fn forge(&self, is_going_down: bool) {
        let connection = zbus::connection::Builder::address(self.address())
            .build()
            .await
            .expect("the private bus must answer");
        let path = "/org/freedesktop/login1";
        let interface = "org.freedesktop.login1.Manager";
        let body = (is_going_down,);
        connection
            .emit_signal(None::<&str>, path, interface, "PrepareForShutdown", &body)
            .await
            .expect("the private bus must take it");
        connection.close().await.expect("the connection must be closable");
    }

    /// Takes a delay lock on something; the error's name and message where it is refused.
    pub(crate) async fn inhibit(&self, what: &str) -> Result<OwnedFd, String> {
        let connection = zbus::connection::Builder::address(self.address())
            .build()
            .await
            .expect("the private bus must answer");
        let path = "/org/freedesktop/login1";
        let interface = Some("org.freedesktop.login1.Manager");
        let body = (what, "test", "test", "delay");
        let reply = connection.call_method(Some(NAME), path, interface, "Inhibit", &body).await;
        let lock = reply.map_err(|error| error.to_string()).map(|reply| {
            let lock: zbus::OwnedFd = reply.body().deserialize().expect("a descriptor");
            OwnedFd::from(lock)
        });
        connection.close().await.expect("the connection must be closable");
        lock
    }

    /// Waits for a state of the list of locks.
    pub(crate) async fn until_locks(
        &self,
        what: &str,
        holds: impl Fn(&[Inhibitor]) -> bool,
    ) -> Vec<Inhibitor> {
        let end = Instant::now() + WITHIN;
        loop {
            let list = self.inhibitors().await;
            if holds(&list) {
                return list;
            }
            assert!(Instant::now() < end, "{what}: {list:?}; {}", self.log());
            sleep(POLL).await;
        }
    }

    /// Calls a method of logind's manager, as root.
    pub(crate) async fn call<B>(&self, method: &str, body: &B)
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let connection = zbus::connection::Builder::address(self.address())
            .build()
            .await
            .expect("the private bus must answer");
        let path = "/org/freedesktop/login1";
        let interface = Some("org.freedesktop.login1.Manager");
        let called = connection.call_method(Some(NAME), path, interface, method, body).await;
        called.unwrap_or_else(|error| panic!("{method}: {error}; {}", self.log()));
        connection.close().await.expect("the connection must be closable");
    }

    /// The locks of all processes.
    pub(crate) async fn inhibitors(&self) -> Vec<Inhibitor> {
        let bus = Bus::connect(&self.address().to_owned().into())
            .await
            .expect("the private bus must answer");
        let logind = Logind::on(&bus).await.expect("elogind must be there");
        let list = logind.inhibitors().await.expect("elogind must answer");
        bus.close().await;
        list
    }

    /// The calls of programs that end machines, one per line.
    pub(crate) fn actions(&self) -> String {
        fs::read_to_string(self.dir.path().join("actions")).expect("must be there")
    }

    pub(crate) async fn until_action(&self) {
        let end = Instant::now() + WITHIN;
        while self.actions().is_empty() {
            assert!(Instant::now() < end, "the machine does not go down: {}", self.log());
            sleep(POLL).await;
        }
    }

    fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        format!("of the namespace: {}; of elogind: {}", read("namespace.log"), read("elogind.log"))
    }
}

/// `unshare`, which kills what it has started when it ends, and ends with this process.
fn namespaces(dir: &Path, address: &str) -> Command {
    let elogind = Elogind::find();
    let log = fs::File::create(dir.join("namespace.log")).expect("must be creatable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/elogind/namespace.sh");
    let mut command = Command::new("bash");
    command
        .args(["-c", WITHOUT_DESCRIPTORS, "bash", "unshare"])
        .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--propagation", "private"])
        .args(["--fork", "--kill-child", "--mount-proc", "bash"])
        .args([script.as_path(), dir, &elogind.program])
        .arg(elogind.libraries)
        .env("DBUS_SYSTEM_BUS_ADDRESS", address)
        .env("EPILOGUE_TEST_ACTIONS", dir.join("actions"))
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true);
    command
}

/// The files that `cargo lab prepare` has unpacked.
struct Elogind {
    program: PathBuf,
    /// The value of `LD_LIBRARY_PATH`.
    libraries: OsString,
}

impl Elogind {
    fn find() -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("must be in target");
        let root = target.join("lab/elogind");
        let mut files = Vec::new();
        list(&root, &mut files);
        let program = files.iter().find(|path| {
            path.file_name() == Some("elogind".as_ref())
                && fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o111 != 0)
                && path
                    .components()
                    .any(|part| part.as_os_str() == "lib" || part.as_os_str() == "libexec")
        });
        let program = program.cloned().unwrap_or_else(|| {
            panic!("no elogind in {}; `cargo lab prepare` puts it there", root.display())
        });
        let mut libraries: Vec<&Path> = files
            .iter()
            .filter(|path| path.to_string_lossy().contains(".so"))
            .filter_map(|path| path.parent())
            .collect();
        libraries.dedup();
        let libraries = std::env::join_paths(libraries).expect("no path must have a colon");
        Self { program, libraries }
    }
}

/// All files below `dir`; links count as files.
fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

fn delay_conf(seconds: u64) -> String {
    format!("[Login]\nInhibitDelayMaxSec={seconds}\n")
}

pub(crate) fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    let dir = path.parent().expect("must lie in a directory");
    fs::create_dir_all(dir).expect("the root must be writable");
    fs::write(path, text).expect("the root must be writable");
}
