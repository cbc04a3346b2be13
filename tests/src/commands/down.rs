//! `lab down`: asks the supervisor of a lab to stop it, and waits until all its processes are gone.

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use lab::observe_until;
use lab::paths::LabDir;
use lab::run_dir::{self, State};
use nix::sys::signal::Signal;

/// Longer than all graces of an orderly stop together.
const ORDERLY_WITHIN: Duration = Duration::from_secs(45);
const KILLED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which lab; by default the only one that runs
    #[arg(long)]
    name: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let labs = LabDir::of_workspace();
    let dir = match arguments.name {
        Some(name) => labs.runs().join(name),
        None => only_running(&labs)?,
    };
    ensure!(run_dir::is_held(&dir), "no such lab runs; see: cargo lab status");
    let Some(state) = State::read(&dir) else {
        bail!("the lab in {} is just starting; try again in a moment", dir.display());
    };
    end(&dir, &state).await?;
    println!("lab {} has ended; its logs: {}", state.name, dir.join("logs").display());
    Ok(())
}

fn only_running(labs: &LabDir) -> anyhow::Result<std::path::PathBuf> {
    let mut running = run_dir::list(labs);
    running.retain(|dir| run_dir::is_held(dir));
    match running.len() {
        0 => bail!("no lab runs"),
        1 => Ok(running.remove(0)),
        _ => bail!("several labs run; say which by --name, see: cargo lab status"),
    }
}

async fn end(dir: &Path, state: &State) -> anyhow::Result<()> {
    state.supervisor.signal(Signal::SIGTERM);
    if gone(dir, state, ORDERLY_WITHIN).await {
        return Ok(());
    }
    state.supervisor.signal(Signal::SIGKILL);
    // Children end with their supervisor; this is for one that hangs.
    for process in &state.processes {
        process.signal(Signal::SIGKILL);
    }
    ensure!(gone(dir, state, KILLED_WITHIN).await, "processes of the lab do not end: {state:?}");
    Ok(())
}

async fn gone(dir: &Path, state: &State, within: Duration) -> bool {
    let observe = || async {
        let alive = state.processes.iter().any(lab::process::ProcessRecord::is_alive);
        !alive && !state.supervisor.is_alive() && !run_dir::is_held(dir)
    };
    observe_until(within, observe, |gone| *gone).await.is_ok()
}
