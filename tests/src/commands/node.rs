//! `lab node`: inspects a real node of a lab, and ends it in one of the ways nodes end.

pub(crate) mod agent;
mod lost;
mod pressure;
mod table;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use lab::paths::LabDir;
use lab::run_dir::State;
use lab::vm::record::Record;
use lab::vm::{monitor, start_request};
use nix::sys::signal::Signal;
use serde_json::json;

/// A boot, and the time until its node is Ready, at their limits.
const START_WITHIN: Duration = Duration::from_mins(6);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run a command on the node NAME (or LAB/NAME), or a shell
    Ssh {
        name: String,
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Power it off in order; logind's locks delay it
    Poweroff { name: String },
    /// Reboot it in order
    Reboot { name: String },
    /// Cut its power
    Cut { name: String },
    /// Start it again after a power-off or a cut
    Start { name: String },
    /// Stop its processors: simulates a host that hangs, or a cut network
    Pause { name: String },
    /// Resume it
    Resume { name: String },
    /// Show its journal, from its boot to its end
    Log { name: String },
    /// Play how a node ends, on a machine each, and print what the API then shows of its pods
    Table(table::Arguments),
    /// Power off a node with many running pods, and count those whose end is in the API
    Lost(lost::Arguments),
    /// Let pods exhaust the node, and print what ends, how soon, and what the API shows
    Pressure(pressure::Arguments),
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let labs = LabDir::of_workspace();
    match arguments.action {
        Action::Ssh { name, command } => {
            let (record, _) = alive(&labs, &name)?;
            bail!("start ssh: {}", ssh(&record).args(command).exec())
        }
        Action::Poweroff { name } => begin(&labs, &name, "poweroff"),
        Action::Reboot { name } => begin(&labs, &name, "reboot"),
        Action::Cut { name } => {
            alive(&labs, &name)?.0.qemu.signal(Signal::SIGKILL);
            Ok(())
        }
        Action::Start { name } => start(&labs, &name).await,
        Action::Pause { name } => send(&labs, &name, "stop").await,
        Action::Resume { name } => send(&labs, &name, "cont").await,
        Action::Table(arguments) => table::run(&arguments).await,
        Action::Lost(arguments) => lost::run(&arguments).await,
        Action::Pressure(arguments) => pressure::run(&arguments).await,
        Action::Log { name } => show_log(&Record::find(&labs, &name)?.1),
    }
}

fn alive(labs: &LabDir, name: &str) -> anyhow::Result<(Record, std::path::PathBuf)> {
    let (record, dir) = Record::find(labs, name)?;
    ensure!(record.qemu.is_alive(), "{name} is off; its files: {}", dir.display());
    Ok((record, dir))
}

fn ssh(record: &Record) -> Command {
    let mut command = Command::new("ssh");
    command.args(&record.ssh_arguments);
    command
}

fn begin(labs: &LabDir, name: &str, verb: &str) -> anyhow::Result<()> {
    let (record, _) = alive(labs, name)?;
    let remote = format!("systemd-run --quiet --no-block --collect systemctl {verb}");
    let status = ssh(&record).arg(remote).status().context("start ssh")?;
    ensure!(status.success(), "ssh ended with {status}");
    println!("{name}: {verb} has begun; follow it by: cargo lab node log {name}");
    Ok(())
}

/// The lab that holds the machine starts it, so that both end together.
async fn start(labs: &LabDir, name: &str) -> anyhow::Result<()> {
    let (record, dir) = Record::find(labs, name)?;
    ensure!(!record.qemu.is_alive(), "{name} is not off; its files: {}", dir.display());
    let lab = dir.ancestors().nth(2).and_then(State::read);
    let holder = lab.filter(|lab| lab.supervisor.is_alive());
    ensure!(holder.is_some(), "the lab of {name} is gone: start another by cargo lab up");
    start_request::ask(&dir)?;
    match start_request::answered(&dir, START_WITHIN).await {
        Some(Ok(())) => println!("node {name} is Ready: cargo lab node ssh {name}"),
        Some(Err(why)) => bail!("{name} did not start: {why}"),
        None => bail!(
            "{name} did not start within {START_WITHIN:?}: only a lab of `cargo lab up` starts \
             machines; its files: {}",
            dir.display()
        ),
    }
    Ok(())
}

async fn send(labs: &LabDir, name: &str, command: &str) -> anyhow::Result<()> {
    let (_, dir) = alive(labs, name)?;
    monitor::execute(&dir, command, json!({})).await?;
    Ok(())
}

fn show_log(dir: &Path) -> anyhow::Result<()> {
    let path = dir.join("journal.log");
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
