//! `lab demo`: shows Jobs through disruptions, live, on a control plane of its own.

use lab::binary::{self, GoProgram};
use lab::controller::Setup;
use lab::kubernetes::Version;
use lab::paths::{LabDir, PROGRAMS_ENV};
use lab::{ControlPlane, Name, Options, demo, tools};
use tokio::signal::unix::{SignalKind, signal};

use super::build;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Keep the control plane at the end, for kubectl, until Ctrl-C
    #[arg(long)]
    keep: bool,

    /// The version of Kubernetes, such as 1.33
    #[arg(long, value_name = "VERSION", default_value_t = Version::DEFAULT)]
    kubernetes: Version,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    prepare(arguments.kubernetes).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    eprintln!("starting etcd and kube-apiserver …");
    // Without kube-controller-manager and kube-scheduler, which take minutes to compile. No Job of
    // the demo needs garbage collection, its namespace goes with the control plane, and the nodes
    // bind pods themselves.
    let options = Options::new(Name::FirstFree("demo".to_owned())).kubernetes(arguments.kubernetes);
    let control_plane = ControlPlane::start(options).await?;
    let setup = Setup::debug(&control_plane.dir().join("controller"));
    let outcome = tokio::select! {
        outcome = demo::play(control_plane.cluster(), &setup) => outcome,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    let kubeconfig = control_plane.kubeconfig_path().display().to_string();
    if outcome.is_ok() && arguments.keep {
        println!("\nThe Jobs are still there; Ctrl-C stops the laboratory. Show them by");
        for command in ["get jobs,pods", "describe job disrupted", "get events"] {
            println!("  kubectl --kubeconfig {kubeconfig} -n demo {command}");
        }
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    } else if outcome.is_ok() {
        println!("\nTo show the Jobs by kubectl afterwards: cargo lab demo --keep");
        println!("For a control plane of your own:           cargo lab up --nodes 3 --kcm");
    }
    control_plane.stop().await?;
    outcome
}

/// Compiles Go and Rust concurrently: each leaves a core idle at its end.
async fn prepare(version: Version) -> anyhow::Result<()> {
    if std::env::var_os(PROGRAMS_ENV).is_some() {
        // A test runs it, with programs that are built already.
        return Ok(());
    }
    let labs = LabDir::of_workspace();
    let go = async { Ok(binary::ensure(&labs, version, &[GoProgram::ControlPlane]).await?) };
    let rust = async {
        tools::ensure().await?;
        build::debug(&["epilogue-controller", "epilogue-agent"]).await
    };
    tokio::try_join!(go, rust).map(|_| ())
}
