//! `lab matrix`: runs the suites of the compatibility matrix on each version in turn, and writes
//! `docs/versions.md` after each. With `--nodes`, the nodes of each kind.

mod nodes;

use anyhow::{bail, ensure};
use lab::binary::GoProgram;
use lab::kubernetes::Version;
use lab::matrix::{self, Record, Run};
use lab::vm::System;
use lab::{ControlPlane, Options};
use tokio::signal::unix::{SignalKind, signal};

use super::{prepare, test};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A version, such as 1.33; may be repeated. By default all versions run
    #[arg(long, value_name = "VERSION")]
    kubernetes: Vec<Version>,
    /// End nodes of each system and kubelet in place of running suites; takes hours, emulated
    #[arg(long)]
    nodes: bool,
    /// Only nodes of this system: debian-12, debian-13, debian-sid, newest-runtime
    #[arg(long, value_name = "NAME", requires = "nodes")]
    system: Vec<System>,
    /// Only this story: reboot, soft-reboot, power-cut, poweroff, kubelet-stopped, memory
    #[arg(long, value_name = "NAME", requires = "nodes")]
    story: Vec<String>,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        outcome = Box::pin(nodes::run(arguments)), if arguments.nodes => outcome,
        outcome = Box::pin(each(arguments)), if !arguments.nodes => outcome,
        // Dropping what runs kills it.
        _ = terminate.recv() => bail!("ended by SIGTERM"),
        _ = interrupt.recv() => bail!("ended by SIGINT"),
    }
}

async fn each(arguments: &Arguments) -> anyhow::Result<()> {
    let all = Version::KNOWN.to_vec();
    let named = &arguments.kubernetes;
    let versions = if named.is_empty() { &all } else { named };
    let mut incomplete = Vec::new();
    for version in versions {
        println!("── Kubernetes {version}");
        match one(*version).await {
            Ok(run) => {
                if !run.failed.is_empty() {
                    incomplete.push(format!("{version}: {} tests failed", run.failed.len()));
                }
                // Read again: another matrix may have recorded another version meanwhile.
                let mut record = Record::read()?;
                record.add(*version, run);
                record.write()?;
                println!("wrote {}", matrix::page_path().display());
            }
            Err(error) => incomplete.push(format!("{version} did not run: {error:#}")),
        }
    }
    ensure!(incomplete.is_empty(), "{}", incomplete.join("; "));
    Ok(())
}

async fn one(version: Version) -> anyhow::Result<Run> {
    prepare::run_of(version, &[GoProgram::ControlPlane]).await?;
    let options = Options::unique("matrix").kubernetes(version);
    let control_plane = ControlPlane::start(options).await?;
    let gates = matrix::of_server(&control_plane.admin_client().await?).await;
    control_plane.stop().await?;
    let report = test::report_on(version, &matrix::SUITES).await?;
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    Ok(Run { date, gates: gates?, ..report })
}
