//! Runs the agent's process, and reads its admin server.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use doubles::bus::PrivateBus;

use crate::audit::Audit;
use crate::error::LabError;
use crate::process::{Process, Program};

const ANSWER_MAX: Duration = Duration::from_secs(5);
const STOP_GRACE: Duration = Duration::from_secs(15);

/// The agent, running.
#[derive(Debug)]
pub(super) struct Agent {
    process: Process,
    program: Program,
    admin: SocketAddr,
    /// Dropped after the process.
    _audit: Audit,
}

impl Agent {
    /// Starts it. The directory of its log is created if missing.
    pub(super) fn start(
        binary: &Path,
        arguments: Vec<String>,
        bus: &PrivateBus,
        admin: SocketAddr,
        log: &Path,
        audit: Audit,
    ) -> Result<Self, LabError> {
        let dir = log.parent().expect("a log has a directory");
        std::fs::create_dir_all(dir).map_err(LabError::file("create", dir))?;
        let program = Program::new("epilogue-agent", binary, arguments, log)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &bus.address);
        Ok(Self { process: Process::spawn_program(&program)?, program, admin, _audit: audit })
    }

    pub(super) fn log(&self) -> PathBuf {
        self.program.log.clone()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn check(&mut self) -> Result<(), LabError> {
        self.process.check()
    }

    pub(super) async fn kill(&mut self) {
        self.process.kill().await;
    }

    pub(super) fn start_again(&mut self) -> Result<(), LabError> {
        self.process = Process::spawn_program(&self.program)?;
        Ok(())
    }

    /// From the next start on, it is this program.
    pub(super) fn replace_by(&mut self, binary: &Path) {
        binary.clone_into(&mut self.program.path);
    }

    pub(super) async fn stop(self) {
        self.process.stop(STOP_GRACE).await;
    }

    /// A page of the admin server, its status line first; empty if there is no answer.
    pub(super) async fn page(&self, path: &str) -> String {
        let asked = timeout(ANSWER_MAX, get(self.admin, path)).await;
        asked.map(Result::unwrap_or_default).unwrap_or_default()
    }
}

async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
