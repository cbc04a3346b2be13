//! `lab demo`: the main job, live, on a control plane of its own.

use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::Setup;
use lab::{ControlPlane, Name, Options, demo};
use tokio::signal::unix::{SignalKind, signal};

use super::{build, prepare};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Keep the control plane at the end, to look around by kubectl, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    prepare::run().await?;
    build::debug("epilogue-controller").await?;
    build::debug("epilogue-agent").await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    eprintln!("starting etcd, kube-apiserver and kube-scheduler …");
    let options =
        Options::new(Name::FirstFree("demo".to_owned())).controller_manager(QUIET_CONTROLLERS);
    let options = options.scheduler();
    let control_plane = ControlPlane::start(options).await?;
    let setup = Setup::debug(&control_plane.dir().join("controller"));
    let outcome = tokio::select! {
        outcome = demo::play(control_plane.cluster(), &setup) => outcome,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    let kubeconfig = control_plane.kubeconfig_path().display().to_string();
    if outcome.is_ok() && arguments.keep {
        println!("\nThe Jobs are still there; Ctrl-C ends the laboratory. Look at them by");
        for command in ["get jobs,pods", "describe job disrupted", "get events"] {
            println!("  kubectl --kubeconfig {kubeconfig} -n demo {command}");
        }
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    } else if outcome.is_ok() {
        println!("\nTo look at the Jobs by kubectl afterwards: cargo lab demo --keep");
        println!("For a control plane of your own:           cargo lab up --nodes 3 --kcm");
    }
    control_plane.stop().await?;
    outcome
}
