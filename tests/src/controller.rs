//! Runs our controller as a process of the laboratory: under its own service account, with the
//! rights of deploy/, never as an administrator.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::audit::{Audit, Expected};
use crate::cluster::Cluster;
use crate::error::LabError;
use crate::install::{self, CONTROLLER, NAMESPACE, OBSERVER};
use crate::paths::program;
use crate::process::{Process, Program};

/// Texts that the controller must never log: refusals by RBAC, and plans that fail `--check-plans`.
const NEVER_LOGGED: [&str; 2] = ["is forbidden: User", BROKEN_PLAN];
const BROKEN_PLAN: &str = "the plan does not hold";

/// Time for the controller to exit by itself.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// How to run the controller.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program.
    pub binary: PathBuf,
    /// Arguments in addition to those that the laboratory sets.
    pub arguments: Vec<String>,
    /// Directory of its kubeconfig and log; created if missing.
    pub dir: PathBuf,
    /// What the API answers it.
    pub expected: Expected,
}

/// The running controller.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    program: Program,
    /// Dropped after the process.
    audit: Arc<Audit>,
}

impl Setup {
    /// The debug build, with its files in `dir`.
    pub fn debug(dir: &Path) -> Self {
        let binary = program("epilogue-controller");
        Self { binary, arguments: Vec::new(), dir: dir.to_owned(), expected: Expected::default() }
    }

    /// Only Jobs and pods of this namespace, so that tests can share a control plane.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.argument(&format!("--namespace={namespace}"))
    }

    /// What the API answers it.
    #[must_use]
    pub fn expected(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }
}

impl Controller {
    /// Installs the rights and starts the controller with them. Does not wait until it is ready.
    pub async fn start(cluster: &Cluster, setup: &Setup) -> Result<Self, LabError> {
        install::apply_rights(&cluster.admin_client().await?).await?;
        Self::start_installed(cluster, setup).await
    }

    /// Starts it where its account and rights are installed already.
    pub async fn start_installed(cluster: &Cluster, setup: &Setup) -> Result<Self, LabError> {
        std::fs::create_dir_all(&setup.dir).map_err(LabError::file("create", &setup.dir))?;
        let kubeconfig = setup.dir.join("controller.kubeconfig");
        let observes = setup.arguments.iter().any(|argument| argument == "--mode=observe");
        let account = format!("{CONTROLLER}{}", if observes { OBSERVER } else { "" });
        cluster.write_service_account_kubeconfig(NAMESPACE, &account, &kubeconfig).await?;
        let own = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
            "--metrics-bind-address=0".to_owned(),
            "--log-format=text".to_owned(),
        ];
        // The caller's arguments come last and win.
        let given = |argument: &String| {
            let name = argument.split('=').next().unwrap_or_default();
            setup.arguments.iter().any(|each| each.split('=').next() == Some(name))
        };
        let arguments =
            own.iter().filter(|argument| !given(argument)).chain(&setup.arguments).cloned();
        let log = setup.dir.join("controller.log");
        let program = Program::new("epilogue-controller", &setup.binary, arguments, &log);
        let mut namespaces =
            setup.arguments.iter().filter_map(|argument| argument.strip_prefix("--namespace="));
        let scope = namespaces.next_back().unwrap_or_default();
        let audit = Arc::new(Audit::new(cluster, scope, setup.expected));
        Ok(Self { process: Process::spawn_program(&program)?, program, audit })
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// An error with the end of its log if it has ended by itself.
    pub fn check(&mut self) -> Result<(), LabError> {
        self.process.check()
    }

    /// Its metrics; it has to serve them: `--metrics-bind-address=127.0.0.1:0`.
    pub async fn metrics(&self) -> std::io::Result<String> {
        let log = std::fs::read_to_string(self.log())?;
        let address = log.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let mut stream = TcpStream::connect(address.unwrap_or_default()).await?;
        let request = "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// The first line so far that it must never log.
    pub fn never_logged(&self) -> Option<String> {
        never_logged(&std::fs::read_to_string(self.log()).unwrap_or_default()).map(str::to_owned)
    }

    /// Kills it by SIGKILL and restarts it at once.
    pub async fn kill_and_restart(&mut self) -> Result<(), LabError> {
        self.process.kill().await;
        self.process = Process::spawn_program(&self.program)?;
        Ok(())
    }

    /// Kills it by SIGKILL.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Starts a second one alongside, with the same arguments and the same log.
    pub fn start_another(&self) -> Result<Self, LabError> {
        let program = self.program.clone();
        let audit = Arc::clone(&self.audit);
        Ok(Self { process: Process::spawn_program(&program)?, program, audit })
    }

    /// Stops it by SIGTERM, and checks its log, where kube-apiserver was started anew: until such a
    /// one has read the roles, it refuses everything.
    ///
    /// # Panics
    ///
    /// If a plan did not hold.
    pub async fn stop_after_outage(self) {
        let log = self.log().to_owned();
        self.process.stop(STOP_GRACE).await;
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let line = log.lines().find(|line| line.contains(BROKEN_PLAN));
        assert!(line.is_none(), "{}", line.unwrap_or_default());
    }

    /// Stops it by SIGTERM, and checks its log.
    ///
    /// # Panics
    ///
    /// If it has logged a line that it must never log. If the API has refused it what must be
    /// accepted, it fails where it is dropped as well.
    pub async fn stop(self) {
        let log = self.log().to_owned();
        self.process.stop(STOP_GRACE).await;
        check_log(&std::fs::read_to_string(&log).unwrap_or_default());
    }
}

/// Panics on a line that our controller must never log.
fn check_log(log: &str) {
    let line = never_logged(log);
    assert!(line.is_none(), "{}", line.unwrap_or_default());
}

/// The first line of a log that the controller must never log.
pub(crate) fn never_logged(log: &str) -> Option<&str> {
    log.lines().find(|line| NEVER_LOGGED.iter().any(|words| line.contains(words)))
}

#[cfg(test)]
mod tests {
    use super::check_log;

    #[test]
    fn a_plan_that_does_not_hold_and_a_missing_right_fail_a_test() {
        check_log("WARN conflict");
        for line in ["ERROR the plan does not hold", "pods is forbidden: User \"x\" cannot"] {
            assert!(std::panic::catch_unwind(|| check_log(line)).is_err(), "{line}");
        }
    }
}
