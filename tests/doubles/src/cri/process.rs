//! Runs a process as a container: in its own process group, ended by signals, with its real exit
//! code.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// The behaviour of the process.
#[derive(Clone, Debug)]
pub enum Script {
    /// Dies of SIGTERM: 143.
    Obedient,
    /// Exits successfully at SIGTERM: 0.
    Clean,
    /// Exits successfully this long after SIGTERM: 0.
    Slow(Duration),
    /// Ignores SIGTERM: 137.
    Stubborn,
    /// Exits by itself at once.
    Exits(u8),
    /// Is created and never started.
    NeverStarted,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    /// In ns since 1970.
    pub finished_at: i64,
}

/// A started process.
#[derive(Clone, Debug)]
pub struct Process {
    body: Body,
    exit: watch::Receiver<Option<Exit>>,
}

/// What receives the signals.
#[derive(Clone)]
enum Body {
    /// A process group of this machine.
    Group(Pid),
    /// A model of one.
    Model(Arc<dyn Fn(Signal) + Send + Sync>),
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(group) => write!(formatter, "{group}"),
            Self::Model(_) => formatter.write_str("a model"),
        }
    }
}

impl Script {
    fn command(&self) -> Option<Command> {
        let shell = |text: String| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(text);
            command
        };
        let at_term = |what: &str| {
            shell(format!("trap '{what}' TERM; echo ready; while :; do sleep 3600 & wait $!; done"))
        };
        Some(match self {
            Self::Obedient => shell("echo ready; exec sleep 3600".into()),
            Self::Clean => at_term("exit 0"),
            Self::Slow(time) => at_term(&format!("sleep {}; exit 0", time.as_secs_f64())),
            Self::Stubborn => shell("trap '' TERM; echo ready; exec sleep 3600".into()),
            Self::Exits(code) => shell(format!("echo ready; exit {code}")),
            Self::NeverStarted => return None,
        })
    }

    /// Starts the process and waits until it is set up; `None` if the script never starts it.
    pub(super) async fn start(&self, host: &tokio::runtime::Handle) -> Option<Process> {
        let mut command = self.command()?;
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = {
            let _context = host.enter();
            command.spawn().expect("`sh` must be startable")
        };
        let pid = child.id().expect("it must not have been waited for");
        let group = Pid::from_raw(pid.cast_signed());
        let (sender, exit) = watch::channel(None);
        let (ready, set_up) = tokio::sync::oneshot::channel();
        // Ends with the process, or with the double if that is earlier.
        host.spawn(async move {
            let stdout = child.stdout.take().expect("it must be piped");
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line).await;
            let _ = ready.send(());
            let _ = sender.send(Some(ended(&mut child, group).await));
        });
        set_up.await.expect("the process must say that it is ready");
        let process = Process { body: Body::Group(group), exit };
        if matches!(self, Self::Exits(_)) {
            process.ended().await;
        }
        Some(process)
    }
}

async fn ended(child: &mut Child, group: Pid) -> Exit {
    let status = child.wait().await.expect("the process must be ours");
    // When its first process ends, a container's others end too.
    let _ = killpg(group, Signal::SIGKILL);
    Exit { code: code(status), finished_at: now() }
}

fn code(status: ExitStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    status.code().or(by_signal).expect("a process ends by itself or by a signal")
}

/// In ns since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it must be after 1970");
    i64::try_from(since.as_nanos()).expect("it must be before 2262")
}

impl Process {
    /// A model of a process, which receives signals and says when it has ended.
    pub fn model(
        signal: impl Fn(Signal) + Send + Sync + 'static,
        exit: watch::Receiver<Option<Exit>>,
    ) -> Self {
        Self { body: Body::Model(Arc::new(signal)), exit }
    }

    /// A process that receives nothing, and never ends.
    pub(super) fn idle() -> Self {
        Self::model(|_| {}, watch::channel(None).1)
    }

    /// How it ended, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        let mut exit = self.exit.clone();
        let _ = exit.wait_for(Option::is_some).await;
    }

    /// Sends SIGTERM to the first process, as runtimes do.
    pub(super) fn terminate(&self) {
        match &self.body {
            _ if self.exit().is_some() => {}
            Body::Group(group) => drop(kill(*group, Signal::SIGTERM)),
            Body::Model(signal) => signal(Signal::SIGTERM),
        }
    }

    /// Sends SIGKILL to the whole group.
    pub(super) fn kill(&self) {
        match &self.body {
            _ if self.exit().is_some() => {}
            Body::Group(group) => drop(killpg(*group, Signal::SIGKILL)),
            Body::Model(signal) => signal(Signal::SIGKILL),
        }
    }
}
