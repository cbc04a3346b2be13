//! Runs our controller as a process of the laboratory: under its own service account, with the
//! rights of deploy/, never as an administrator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::error::LabError;
use crate::install::{self, CONTROLLER, NAMESPACE};
use crate::paths::program;
use crate::process::{Process, Program};

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
}

/// The running controller.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    program: Program,
}

impl Setup {
    /// The debug build, with its files in `dir`.
    pub fn debug(dir: &Path) -> Self {
        let binary = program("epilogue-controller");
        Self { binary, arguments: Vec::new(), dir: dir.to_owned() }
    }

    /// Only Jobs and pods of this namespace, so that tests can share a control plane.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.argument(&format!("--namespace={namespace}"))
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
        std::fs::create_dir_all(&setup.dir).map_err(LabError::file("create", &setup.dir))?;
        let kubeconfig = setup.dir.join("controller.kubeconfig");
        cluster.write_service_account_kubeconfig(NAMESPACE, CONTROLLER, &kubeconfig).await?;
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
        Ok(Self { process: Process::spawn_program(&program)?, program })
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
        Ok(Self { process: Process::spawn_program(&program)?, program })
    }

    /// Stops it by SIGTERM.
    pub async fn stop(self) {
        self.process.stop(STOP_GRACE).await;
    }
}
