//! Lets etcd or kube-apiserver fail, and etcd go back to an earlier time.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::{ControlPlane, ready, spawn};
use crate::error::LabError;
use crate::process::Process;

/// A program of the control plane that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
        }
    }
}

impl ControlPlane {
    /// Kills it by SIGKILL; returns when it is gone.
    pub async fn kill(&mut self, part: Part) {
        self.process_mut(part).kill().await;
    }

    /// Starts it again after [`Self::kill`], as it was; returns when it answers.
    pub async fn start_again(&mut self, part: Part) -> Result<(), LabError> {
        let process = spawn(&self.options, &self.layout, part)?;
        *self.process_mut(part) = process;
        let layout = self.layout.clone();
        match part {
            Part::Etcd => ready::listens(self.process_mut(part), layout.etcd_client_port).await,
            Part::ApiServer => ready::api_answers(self.process_mut(part), &layout).await,
        }
    }

    /// Adds a flag of kube-apiserver, from its next start on.
    pub fn add_api_server_flag(&mut self, flag: String) {
        self.options.api_server_flags.push(flag);
    }

    /// Takes a snapshot of etcd, and returns its path. etcd stands still meanwhile, so that its
    /// files are as after a SIGKILL.
    pub fn snapshot_etcd(&mut self) -> Result<PathBuf, LabError> {
        let snapshot = self.layout.dir.join("etcd-snapshot");
        let data = self.layout.etcd_data();
        let etcd = self.process_mut(Part::Etcd).record().clone();
        etcd.signal(Signal::SIGSTOP);
        let copied = copy(&data, &snapshot);
        etcd.signal(Signal::SIGCONT);
        copied?;
        Ok(snapshot)
    }

    /// Gives etcd the data of a snapshot. Neither it nor kube-apiserver may run.
    pub fn restore_etcd(&self, snapshot: &Path) -> Result<(), LabError> {
        let data = self.layout.etcd_data();
        std::fs::remove_dir_all(&data).map_err(LabError::file("remove", &data))?;
        copy(snapshot, &data)
    }

    fn process_mut(&mut self, part: Part) -> &mut Process {
        let is_it = |process: &&mut Process| process.record().name == part.name();
        self.processes.iter_mut().find(is_it).expect("a control plane must have it")
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), LabError> {
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status();
    let failed = LabError::file("copy", from);
    match copied {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(std::io::Error::other(format!("cp: {status}")))),
        Err(error) => Err(failed(error)),
    }
}
