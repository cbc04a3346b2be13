//! Runs commands inside a machine, by ssh over one shared connection.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::error::VmError;
use crate::error::LabError;

/// For any command: an emulated machine with both processors busy is slow at everything.
const WITHIN: Duration = Duration::from_mins(2);

/// The shared connection's socket in a machine's directory.
pub(super) const SOCKET: &str = "ssh.sock";

/// The shell of one machine.
#[derive(Clone, Debug)]
pub struct Shell {
    dir: PathBuf,
    key: PathBuf,
    port: u16,
}

impl Shell {
    /// The machine with its files in `dir`, whose sshd is reachable at `port` of 127.0.0.1.
    pub fn new(dir: &Path, key: &Path, port: u16) -> Self {
        Self { dir: dir.to_owned(), key: key.to_owned(), port }
    }

    /// The arguments of `ssh` up to the host, inclusive.
    pub fn arguments(&self) -> Vec<String> {
        let options = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
            "ConnectTimeout=60",
            // A machine that was reset does not close its connections.
            "ServerAliveInterval=5",
            "ServerAliveCountMax=6",
            // The default guards against quantum computers, which do not exist yet, and takes an
            // emulated processor a second.
            "KexAlgorithms=curve25519-sha256",
        ];
        let mut arguments = vec!["-F".into(), "/dev/null".into()];
        arguments.extend(options.iter().flat_map(|option| ["-o".to_owned(), (*option).into()]));
        arguments.extend(["-i".into(), self.key.display().to_string()]);
        arguments.extend(["-p".into(), self.port.to_string(), "root@127.0.0.1".into()]);
        arguments
    }

    /// Runs a command line and returns its output, whatever its exit code.
    pub async fn try_run(&self, command: &str, input: &[u8]) -> Result<Output, VmError> {
        let failed = |source| LabError::Spawn { program: "ssh".into(), source };
        let late = |_| VmError::Late {
            what: format!("`{command}` in the virtual machine"),
            within: WITHIN,
            last: "no end".into(),
            dir: self.dir.clone(),
        };
        let run = async {
            let mut child = self.command(command).spawn()?;
            let mut stdin = child.stdin.take().expect("stdin must be a pipe, as asked for");
            // A command that reads no input may have ended before the write.
            let _ = stdin.write_all(input).await;
            drop(stdin);
            child.wait_with_output().await
        };
        Ok(tokio::time::timeout(WITHIN, run).await.map_err(late)?.map_err(failed)?)
    }

    /// Runs a command line and returns its output; an exit code other than 0 is an error.
    pub async fn run(&self, command: &str) -> Result<String, VmError> {
        self.run_with(command, &[]).await
    }

    /// The same with standard input.
    pub async fn run_with(&self, command: &str, input: &[u8]) -> Result<String, VmError> {
        let output = self.try_run(command, input).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(VmError::Command {
            command: command.to_owned(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn command(&self, command: &str) -> Command {
        let mut ssh = Command::new("ssh");
        // The first command leaves a process with the connection behind, which ends with the
        // machine or when idle; later commands take a tenth of the time.
        ssh.args(["-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-S", SOCKET])
            .args(self.arguments())
            .arg(command)
            .current_dir(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        ssh
    }
}
