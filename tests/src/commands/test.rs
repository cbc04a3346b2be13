//! `lab test`: builds what the tests need, gives those of tier 3 one control plane, runs cargo's
//! own test runner and repeats its closing lines. Judges nothing itself.

mod report;
mod selection;

use std::io::{BufRead as _, BufReader, IsTerminal as _, PipeReader, Write as _};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, bail, ensure};
use lab::cluster::{DIR_ENV, KUBECONFIG_ENV};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::paths::workspace_root;
use lab::{ControlPlane, Options};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::prepare;
use report::Report;
use selection::{Selection, Suites};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Suites, packages or parts of tests' names; `core` for the pure crates only
    #[arg(value_name = "core | SUITE | PACKAGE | TEST")]
    filters: Vec<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let suites = Suites::of_metadata(&metadata().await?)?;
    let selection = suites.select(&arguments.filters);
    if selection.needs_logind {
        prepare::logind().await?;
    }
    let report = if selection.needs_control_plane {
        prepare::run().await?;
        build_programs(&selection).await?;
        with_control_plane(&selection).await?
    } else {
        run_all(&selection, None).await?
    };
    print!("{report}");
    let unmatched = report.unmatched(&selection.names);
    ensure!(unmatched.is_empty(), "no test matches {unmatched:?}; {suites}");
    ensure!(report.is_success(), "not all tests passed; their failures are above");
    Ok(())
}

/// Starts one control plane, runs the tests against it, and ends it, whatever they did.
async fn with_control_plane(selection: &Selection) -> anyhow::Result<Report> {
    let options = Options::unique("test").controller_manager(QUIET_CONTROLLERS);
    let control_plane = ControlPlane::start(options).await?;
    eprintln!("control plane {} at {}", control_plane.dir().display(), control_plane.server());
    let outcome = run_all(selection, Some(&control_plane)).await;
    let logs = control_plane.dir().join("logs");
    control_plane.stop().await?;
    let report = outcome?;
    if !report.is_success() {
        eprintln!("the control plane's logs: {}", logs.display());
    }
    Ok(report)
}

async fn run_all(
    selection: &Selection,
    control_plane: Option<&ControlPlane>,
) -> anyhow::Result<Report> {
    let mut report = Report::default();
    for arguments in &selection.runs {
        report = run_cargo(arguments, &selection.names, control_plane, report).await?;
    }
    Ok(report)
}

async fn metadata() -> anyhow::Result<serde_json::Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("start cargo")?;
    ensure!(output.status.success(), "cargo metadata ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("read cargo metadata")
}

/// Suites start our programs; cargo by itself builds programs for tests of their own package only.
async fn build_programs(selection: &Selection) -> anyhow::Result<()> {
    let mut build = cargo();
    build.arg("build").args(selection.build_arguments());
    let status = build.status().await.context("start cargo")?;
    ensure!(status.success(), "our own programs were not built");
    Ok(())
}

/// Runs `cargo test`, passes its output on as it comes, and reads from it what it says.
async fn run_cargo(
    arguments: &[String],
    names: &[String],
    control_plane: Option<&ControlPlane>,
    report: Report,
) -> anyhow::Result<Report> {
    let color = if std::io::stdout().is_terminal() { "always" } else { "never" };
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    let mut command = cargo();
    command
        .args(["test", "--no-fail-fast", "--color", color])
        .args(arguments)
        .args(["--", "--color", color])
        .args(names)
        .stdin(Stdio::null())
        // One pipe for both, so that a suite's heading and its results keep their order.
        .stdout(writer.try_clone().context("share the pipe")?)
        .stderr(writer)
        .process_group(0);
    if let Some(control_plane) = control_plane {
        command.env(KUBECONFIG_ENV, control_plane.kubeconfig_path());
        command.env(DIR_ENV, control_plane.dir());
    }
    let child = command.spawn().context("start cargo test")?;
    // The command holds the pipe's other end; the reader would wait for it for ever.
    drop(command);
    let reading = tokio::task::spawn_blocking(move || pass_on(reader, report));
    let status = wait(child).await?;
    let mut report = reading.await.context("read the tests' output")?;
    report.finish_run(status.success());
    Ok(report)
}

/// Waits for the tests; at Ctrl-C or SIGTERM ends them, cargo and test programs alike.
async fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let group = Pid::from_raw(child.id().context("cargo must have a pid")? as i32);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let interruption = tokio::select! {
        status = child.wait() => return Ok(status?),
        _ = terminate.recv() => Signal::SIGTERM,
        _ = interrupt.recv() => Signal::SIGINT,
    };
    // An error means that they ended meanwhile.
    let _ = killpg(group, Signal::SIGKILL);
    child.wait().await?;
    bail!("ended by {interruption}")
}

fn pass_on(reader: PipeReader, mut report: Report) -> Report {
    let mut stdout = std::io::stdout();
    for line in BufReader::new(reader).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        // A closed stdout must not end the tests.
        let _ = writeln!(stdout, "{line}");
        report.read(&line);
    }
    report
}

fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace_root()).kill_on_drop(true);
    command
}
