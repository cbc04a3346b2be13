//! One child process of a lab: started so that it cannot outlive the lab, stopped in two steps.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::process::{Child, ChildStdin, Command};

use crate::error::LabError;

/// How much of a log an error shows.
const LOG_TAIL_BYTES: i64 = 4096;

/// The program to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// A short name for logs and errors, such as "kube-apiserver".
    pub name: String,
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables added to the environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where stdout and stderr go.
    pub log: PathBuf,
}

impl Program {
    /// A program with arguments. Those of ours act; others, and former versions of ours, do not
    /// read this variable.
    pub fn new<A: Into<OsString>>(
        name: &str,
        path: &Path,
        args: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Self {
        Self {
            name: name.to_owned(),
            path: path.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            env: vec![("EPILOGUE_MODE".into(), "enforce".into())],
            log: log.to_owned(),
        }
    }

    /// Adds a variable to the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}

/// A running child. Dropped without [`Process::stop`], it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    record: ProcessRecord,
    child: Child,
    /// Held open while the child should live; closing it ends the child, whatever the cause.
    lifeline: Option<ChildStdin>,
}

impl Process {
    /// Starts a sub command of the control-plane binary, which exits when its stdin is closed.
    pub fn spawn_control_plane(program: &Program) -> Result<Self, LabError> {
        let mut command = Command::new(&program.path);
        command.args(&program.args).env("EXIT_WITH_STDIN", "1").stdin(Stdio::piped());
        Self::spawn(program, command)
    }

    /// Starts any other program, which the kernel kills when the calling thread ends.
    ///
    /// Call it from a thread that lives as long as the child should: the main thread, a test's own,
    /// a runtime's worker; never from `spawn_blocking`, whose threads end when idle.
    pub fn spawn_program(program: &Program) -> Result<Self, LabError> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&program.path).args(&program.args);
        command.stdin(Stdio::null());
        Self::spawn(program, command)
    }

    fn spawn(program: &Program, mut command: Command) -> Result<Self, LabError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&program.log)
            .map_err(LabError::file("open", &program.log))?;
        let log_again = log.try_clone().map_err(LabError::file("open", &program.log))?;
        let failed = |source| LabError::Spawn { program: program.name.clone(), source };
        command
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .stdout(log)
            .stderr(log_again)
            // Ctrl-C reaches the whole foreground group: in a group of their own the children end
            // in the lab's order, etcd last.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let pid = child.id().expect("a child that was not waited for must have a pid");
        Ok(Self {
            name: program.name.clone(),
            log: program.log.clone(),
            record: ProcessRecord::of(&program.name, pid),
            // Taken out because `Child::wait` would close it.
            lifeline: child.stdin.take(),
            child,
        })
    }

    /// Its name, pid and start time, to find it again from another process.
    pub fn record(&self) -> &ProcessRecord {
        &self.record
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.record.pid
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until it exits by itself. Cancel safe.
    pub async fn ended(&mut self) -> LabError {
        let status = self.child.wait().await.expect("a child of our own must be waitable");
        self.end_of(status)
    }

    /// Fails if it has exited.
    pub fn check(&mut self) -> Result<(), LabError> {
        let status = self.child.try_wait().expect("a child of our own must be waitable");
        status.map_or(Ok(()), |status| Err(self.end_of(status)))
    }

    /// Asks it to exit (SIGTERM), waits `grace`, then kills it. Returns when it is gone.
    pub async fn stop(mut self, grace: Duration) {
        if let Some(pid) = self.child.id() {
            // An error means that it exited meanwhile, which the wait below sees too.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        }
        if tokio::time::timeout(grace, self.child.wait()).await.is_err() {
            self.kill().await;
        }
        drop(self.lifeline.take());
    }

    /// Kills it (SIGKILL) and returns when it is gone.
    pub async fn kill(&mut self) {
        // An error means that it exited meanwhile.
        let _ = self.child.kill().await;
    }

    fn end_of(&self, status: ExitStatus) -> LabError {
        LabError::Ended {
            name: self.name.clone(),
            status,
            log: self.log.clone(),
            log_tail: log_tail(&self.log),
        }
    }
}

/// The last lines of a log; empty if it cannot be read.
fn log_tail(path: &Path) -> String {
    let tail = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len() as i64;
        file.seek(SeekFrom::End(-length.min(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    tail().unwrap_or_default()
}

/// A process as other processes know it. The start time distinguishes it from a later one with the
/// same pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// For example "kube-apiserver".
    pub name: String,
    /// Its pid.
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
}

impl ProcessRecord {
    /// The record of a process that runs now.
    pub fn of(name: &str, pid: u32) -> Self {
        let start_time = start_time(pid).unwrap_or_default();
        Self { name: name.to_owned(), pid, start_time }
    }

    /// Whether exactly this process still runs.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// Signals it, if it still is the same process.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            // An error means that it exited meanwhile.
            let _ = kill(Pid::from_raw(self.pid as i32), signal);
        }
    }
}

/// Field 22 of /proc/PID/stat; `None` for a process that is gone or only waits to be reaped.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_start_time(&stat)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The name in parentheses may itself contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let numbers = (4..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let stat = format!("77 (a ) b) S {numbers} 4711 23");
        assert_eq!(parse_start_time(&stat), Some(4711));
        assert_eq!(parse_start_time(&stat.replace(") S ", ") Z ")), None);
    }

    #[test]
    fn this_process_is_alive_and_another_start_time_is_not_it() {
        let mut record = ProcessRecord::of("self", std::process::id());
        assert!(record.is_alive());
        record.start_time += 1;
        assert!(!record.is_alive());
    }
}
