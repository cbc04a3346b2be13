//! `lab up`: runs a control plane until Ctrl-C, SIGTERM or `lab down`.

use std::convert::Infallible;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use lab::binary::GoProgram;
use lab::control_plane::flags::ALL_CONTROLLERS;
use lab::kubernetes::Version;
use lab::nodes::{self, Bind, SimulatedNodes};
use lab::paths::LabDir;
use lab::run_dir::{Phase, State};
use lab::vm::{self, Boot, Kit, KubeletConfig, Node, start_request};
use lab::{ControlPlane, Name, Options, observe_until};
use tokio::signal::unix::{SignalKind, signal};

use super::node::agent::Agent;
use super::prepare;

/// How often requests of `lab node start` are looked for.
const REQUESTS_EVERY: Duration = Duration::from_millis(500);
const DETACHED_READY_WITHIN: Duration = Duration::from_mins(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Simulated nodes to add; they run the pods bound to them, and bind the others themselves
    /// unless there is a scheduler
    #[arg(long, default_value_t = 0)]
    nodes: usize,

    /// Real nodes to add, each a virtual machine with systemd, containerd and kubelet: vm or
    /// vm=N. See `cargo lab node --help`
    #[arg(long, value_name = "vm[=N]", value_parser = machines)]
    node: Option<usize>,

    /// Install the agent of this checkout on the real nodes, enforcing, as `deploy/` does it
    ///
    /// As a DaemonSet, its pods need a scheduler and the DaemonSet controller: --scheduler --kcm.
    #[arg(long, value_name = "HOW", default_value = "none", requires = "node")]
    agent: Agent,

    /// A KubeletConfiguration in YAML for the real nodes, merged over the laboratory's: maps by
    /// their keys, null removes a field
    #[arg(long, value_name = "FILE", requires = "node")]
    kubelet_config: Option<PathBuf>,

    /// Run kube-controller-manager, by default with all controllers
    ///
    /// Its Job controller leaves Jobs alone whose spec.managedBy names another controller, so the
    /// default is right alongside ours. For a controller of ours that runs with --manage-all-jobs,
    /// switch it off: --kcm=*,-job-controller. Without --kcm nothing deletes namespaces, collects
    /// garbage or makes service accounts; only the namespace `default` has its own.
    #[arg(
        long,
        value_name = "CONTROLLERS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ALL_CONTROLLERS
    )]
    kcm: Option<String>,

    /// Run kube-scheduler
    #[arg(long)]
    scheduler: bool,

    /// The version of Kubernetes, such as 1.33; a real node keeps its own
    #[arg(long, value_name = "VERSION", default_value_t = Version::DEFAULT)]
    kubernetes: Version,

    /// Leave it running in the background; stop it by `cargo lab down`
    #[arg(long)]
    detach: bool,

    /// Its name; by default `default`, or `default-2`, … if that runs already
    #[arg(long)]
    name: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    // First, because the rest takes minutes.
    kubelet(&arguments)?;
    agent_can_run(&arguments)?;
    prepare::run_of(arguments.kubernetes, &programs(&arguments)).await?;
    if arguments.node.is_some() {
        // Here, because it may take minutes, longer than a start in the background may take.
        Kit::ensure(&LabDir::of_workspace()).await?;
    }
    if arguments.detach { detached().await } else { attached(&arguments).await }
}

/// The configuration of the real nodes' kubelets.
fn kubelet(arguments: &Arguments) -> anyhow::Result<KubeletConfig> {
    let laboratorys = KubeletConfig::default();
    let Some(path) = &arguments.kubelet_config else { return Ok(laboratorys) };
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    laboratorys.merge(&text).with_context(|| format!("--kubelet-config {}", path.display()))
}

fn agent_can_run(arguments: &Arguments) -> anyhow::Result<()> {
    let has_both = arguments.scheduler && arguments.kcm.is_some();
    ensure!(
        !matches!(arguments.agent, Agent::DaemonSet | Agent::Chart) || has_both,
        "--agent daemon-set or chart: nothing would create and schedule its pods; add --scheduler \
         --kcm"
    );
    Ok(())
}

/// The requested upstream programs.
fn programs(arguments: &Arguments) -> Vec<GoProgram> {
    let mut programs = vec![GoProgram::ControlPlane];
    programs.extend(arguments.scheduler.then_some(GoProgram::Scheduler));
    programs.extend(arguments.kcm.as_ref().map(|_| GoProgram::ControllerManager));
    programs.extend(arguments.node.map(|_| GoProgram::Kubelet));
    programs
}

async fn attached(arguments: &Arguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let started = tokio::select! {
        started = start(arguments) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let (mut control_plane, nodes) = started;
    println!("{}", describe(&control_plane));
    let mut machines = tokio::select! {
        machines = start_machines(arguments, &control_plane) => machines?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    println!("Ctrl-C ends it.");
    let unasked = tokio::select! {
        ended = control_plane.ended() => Some(ended),
        never = start_on_request(&mut machines) => match never {},
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    // The end of the lab is a power cut for them: no client is left to read their reports.
    drop(machines);
    if let (Some(nodes), None) = (nodes, &unasked) {
        nodes.stop().await?;
    }
    control_plane.stop().await?;
    unasked.map_or(Ok(()), |ended| Err(ended.into()))
}

async fn start(arguments: &Arguments) -> anyhow::Result<(ControlPlane, Option<SimulatedNodes>)> {
    let control_plane = ControlPlane::start(options(arguments)).await?;
    if arguments.nodes == 0 {
        return Ok((control_plane, None));
    }
    let options = nodes::Options {
        nodes: arguments.nodes,
        // Binding is the scheduler's work, if there is one.
        bind: if arguments.scheduler { Bind::Never } else { Bind::RoundRobin },
        ..nodes::Options::default()
    };
    let nodes = SimulatedNodes::start(control_plane.admin_client().await?, options).await?;
    Ok((control_plane, Some(nodes)))
}

async fn start_machines(
    arguments: &Arguments,
    control_plane: &ControlPlane,
) -> anyhow::Result<Vec<Node>> {
    let mut machines = Vec::new();
    let Some(count) = arguments.node else { return Ok(machines) };
    let kit = Kit::ensure(&LabDir::of_workspace()).await?;
    let (cluster, dir) = (control_plane.cluster(), control_plane.dir());
    let (kubelet, agent) = (kubelet(arguments)?, arguments.agent.install());
    for number in 1..=count {
        let name = format!("vm-{number}");
        if let Some(how) = agent {
            vm::agent::prepare(how, &kit, dir, &name).await?;
        }
        // Cold: out of one snapshot, several nodes would have the same boot id. And the disk stays,
        // so that the machine can be started again.
        let node = Node::start(&kit, cluster, dir, &name, Boot::Cold, &kubelet).await?;
        if let Some(how) = agent {
            vm::agent::install(how, &node, cluster, &[]).await?;
            println!("the agent of {name} is ready");
        }
        machines.push(node);
        println!("node {name} is Ready: cargo lab node ssh {name}");
    }
    Ok(machines)
}

/// Starts machines again as `lab node start` asks.
async fn start_on_request(machines: &mut [Node]) -> Infallible {
    loop {
        for node in machines.iter_mut() {
            let dir = node.machine().dir().to_owned();
            if !start_request::is_asked(&dir) {
                continue;
            }
            let outcome = node.start_again().await;
            match &outcome {
                Ok(()) => println!("node {} has started again", node.name()),
                Err(error) => eprintln!("{} did not start again: {error}", node.name()),
            }
            let answer = start_request::answer(&dir, outcome.map_err(|error| error.to_string()));
            if let Err(error) = answer {
                eprintln!("{error}");
            }
        }
        tokio::time::sleep(REQUESTS_EVERY).await;
    }
}

/// How many virtual machines `vm` or `vm=N` requests.
fn machines(text: &str) -> Result<usize, String> {
    let count = match text {
        "vm" => Some(1),
        _ => text.strip_prefix("vm=").and_then(|count| count.parse().ok()),
    };
    count.ok_or_else(|| "either vm or vm=N".to_owned())
}

fn options(arguments: &Arguments) -> Options {
    let name = match &arguments.name {
        Some(name) => Name::Exactly(name.clone()),
        None => Name::FirstFree("default".into()),
    };
    let mut options = Options::new(name).kubernetes(arguments.kubernetes);
    if let Some(controllers) = &arguments.kcm {
        options = options.controller_manager(controllers);
    }
    if arguments.scheduler {
        options = options.scheduler();
    }
    options
}

fn describe(control_plane: &ControlPlane) -> String {
    let kubeconfig = control_plane.kubeconfig_path().display();
    format!(
        "lab {} is ready at {}\n  export KUBECONFIG={kubeconfig}\n  \
         kubectl --kubeconfig {kubeconfig} get namespaces",
        control_plane.name(),
        control_plane.server(),
    )
}

/// Starts this program again without `--detach`, in a session of its own, and waits until its lab
/// is ready.
async fn detached() -> anyhow::Result<()> {
    let labs = LabDir::of_workspace();
    std::fs::create_dir_all(labs.runs())?;
    let log_path = labs.runs().join("detached.log");
    let log = File::create(&log_path).with_context(|| format!("open {}", log_path.display()))?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    // Not `current_exe`: a rebuild may have replaced the file meanwhile.
    let mut supervisor = Command::new("/proc/self/exe")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("start the supervisor")?;

    let pid = supervisor.id();
    let state = move || {
        let exited = supervisor.try_wait().ok().flatten();
        let labs = labs.clone();
        async move { (exited, ready_state_of(&labs, pid)) }
    };
    let seen = observe_until(DETACHED_READY_WITHIN, state, |(exited, ready)| {
        exited.is_some() || ready.is_some()
    });
    let Ok((None, Some(ready))) = seen.await else {
        bail!("the lab did not start:\n{}", std::fs::read_to_string(&log_path)?);
    };
    println!("lab {} is ready at {}", ready.name, ready.server);
    println!("  export KUBECONFIG={}", ready.kubeconfig.display());
    println!("  cargo lab down --name {}", ready.name);
    Ok(())
}

fn ready_state_of(labs: &LabDir, supervisor: u32) -> Option<State> {
    lab::run_dir::list(labs)
        .iter()
        .filter_map(|dir| State::read(dir))
        .find(|state| state.supervisor.pid == supervisor && state.phase == Phase::Ready)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(flags: &[&str]) -> Result<Arguments, String> {
        let line = Line::try_parse_from(["up"].iter().chain(flags));
        line.map(|line| line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn an_agent_needs_a_real_node_and_a_daemon_set_its_controllers() {
        assert_eq!(parsed(&["--node=vm"]).expect("valid").agent, Agent::None);
        for flags in [["--agent=host"], ["--kubelet-config=k.yaml"]] {
            let error = parsed(&flags).expect_err("must be refused");
            assert!(error.contains("--node <vm[=N]>"), "{error}");
        }
        let refused = |flags: &[&str]| {
            agent_can_run(&parsed(flags).expect("valid")).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&["--node=vm", "--agent=host"]), None);
        let error = refused(&["--node=vm", "--agent=daemon-set", "--kcm"]).expect("no scheduler");
        assert!(error.contains("add --scheduler --kcm"), "{error}");
        let all = ["--node=vm", "--agent=daemon-set", "--kcm", "--scheduler"];
        assert_eq!(refused(&all), None);
    }

    #[test]
    fn the_kubelet_s_file_is_read_before_anything_starts_and_its_errors_name_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kubelet.yaml");
        let flag = format!("--kubelet-config={}", path.display());
        let of_file = || kubelet(&parsed(&["--node=vm", &flag]).expect("valid"));
        let error = format!("{:#}", of_file().expect_err("no file"));
        assert!(error.contains("kubelet.yaml"), "{error}");
        std::fs::write(&path, "kind: Pod\n").expect("must be writable");
        let error = format!("{:#}", of_file().expect_err("another kind"));
        assert!(error.contains("kubelet.yaml: kind is \"Pod\""), "{error}");
        std::fs::write(&path, "maxPods: 7\n").expect("must be writable");
        assert!(of_file().expect("a configuration").render().contains("\"maxPods\": 7"));
    }
}
