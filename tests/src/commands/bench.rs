//! `lab bench`: compares our controller with upstream in figures.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lab::bench::picture::{Group, svg};
use lab::bench::{self, Contender, Life, Plan, Scenario};
use lab::binary::GoProgram;
use lab::paths::{release_program, small_program};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{build, prepare};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Measure something other than Jobs as such
    #[arg(value_enum)]
    what: Option<What>,
    /// Only this scenario; may be given several times
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// Pods that run, for `hold` and `wide`
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pods: u32,
    /// Nodes that write as much, for `admission`
    #[arg(long, value_name = "N", default_value_t = 5_000,
          value_parser = clap::value_parser!(u32).range(10..=100_000))]
    nodes: u32,
    /// Runs of each contender per scenario, or pairs of `admission`; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// The contenders to measure
    #[arg(long, value_enum, default_value_t = Who::Both)]
    contender: Who,
    /// Let the nodes write Running too, which makes them take more of the machine
    #[arg(long)]
    with_running: bool,
    /// Measure this build of our controller instead of building one, to compare two states of it
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Print this instead of tables
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Draw the ratios of ours to upstream into this file too
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// What the admission policies cost the API server at the writes of `--nodes`
    Admission,
    /// The agent's shutdown
    Agent,
    /// How soon fifty nodes that get a notice at once have marked their pods, and what the sources
    /// of notices cost an agent at rest
    Notices,
    /// How long one tenant's Jobs wait while another floods the controller
    Tenants,
    /// What running pods cost: memory of each, and a restart until the first pod of a new Job
    Hold,
    /// What one Job with that many running pods costs itself, and a serial Job next to it
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Who {
    Ours,
    Reference,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Json,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let compares = matches!(arguments.what, None | Some(What::Hold));
    anyhow::ensure!(
        arguments.svg.is_none() || (compares && arguments.contender == Who::Both),
        "--svg draws ratios of Jobs or of `hold`, and needs both contenders"
    );
    if arguments.what == Some(What::Agent) {
        prepare::run(&[GoProgram::ControlPlane]).await?;
        return agent(arguments.binary).await;
    }
    if arguments.what == Some(What::Notices) {
        prepare::run(&[GoProgram::ControlPlane]).await?;
        let binary = agents_program(arguments.binary).await?;
        let waits = bench::notices::fleet(binary.clone()).await?;
        print!("{}", bench::notices::fleet_line(&waits));
        let rows = bench::notices::at_rest(binary, arguments.runs).await?;
        print!("{}", bench::notices::table(&rows));
        return Ok(());
    }
    if arguments.what == Some(What::Admission) {
        prepare::run(&[GoProgram::ControlPlane]).await?;
        let measured = bench::admission::run(arguments.nodes, usize::from(arguments.runs)).await?;
        print!("{}", bench::admission::table(&measured));
        return Ok(());
    }
    prepare::run(&[GoProgram::ControlPlane, GoProgram::ControllerManager]).await?;
    let plan = plan(&arguments);
    if plan.contenders.contains(&Contender::Ours) && arguments.binary.is_none() {
        build::release("epilogue-controller").await?;
    }
    if arguments.what == Some(What::Tenants) {
        print!("{}", bench::tenants::table(&bench::tenants::run(&plan).await?));
        return Ok(());
    }
    if arguments.what == Some(What::Wide) {
        print!("{}", bench::wide::table(&bench::wide::run(&plan, arguments.pods).await?));
        return Ok(());
    }
    if arguments.what == Some(What::Hold) {
        let held = bench::hold::run(&plan, arguments.pods).await?;
        print!("{}", bench::hold::table(&held));
        return draw(arguments.svg.as_deref(), &[bench::hold::bars(&held)]);
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let mut runs = std::pin::pin!(compare_all(&arguments, &plan, &stop));
    loop {
        tokio::select! {
            outcome = &mut runs => return outcome,
            _ = terminate.recv() => stop.cancel(),
            _ = interrupt.recv() => stop.cancel(),
        }
    }
}

async fn agent(binary: Option<PathBuf>) -> anyhow::Result<()> {
    let binary = agents_program(binary).await?;
    print!("{}", bench::agent::table(&bench::agent::shutdowns(binary).await?));
    Ok(())
}

/// This program, or else one as it ships.
async fn agents_program(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given);
    }
    build::small("epilogue-agent").await?;
    Ok(small_program("epilogue-agent"))
}

fn plan(arguments: &Arguments) -> Plan {
    let contenders = match arguments.contender {
        Who::Ours => vec![Contender::Ours],
        Who::Reference => vec![Contender::Reference, Contender::Throttled],
        Who::Both => vec![Contender::Ours, Contender::Reference, Contender::Throttled],
    };
    let life = if arguments.with_running { Life::WithRunning } else { Life::EndOnly };
    let built = || release_program("epilogue-controller");
    let binary = arguments.binary.clone().unwrap_or_else(built);
    Plan { contenders, runs: usize::from(arguments.runs), life, binary }
}

async fn compare_all(
    arguments: &Arguments,
    plan: &Plan,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let scenarios =
        if arguments.scenario.is_empty() { &Scenario::USUAL[..] } else { &arguments.scenario };
    let mut all = Vec::new();
    let mut groups = Vec::new();
    for scenario in scenarios {
        let results = bench::compare(*scenario, plan, stop).await?;
        groups.push(results.bars());
        match arguments.output {
            None => println!("\n{}", results.table()),
            Some(Output::Json) => all.push(results.json()),
        }
    }
    match arguments.output {
        Some(Output::Json) => println!("{:#}", Value::Array(all)),
        None if arguments.scenario.is_empty() => {
            println!("\n{}", bench::wide::table(&bench::wide::run(plan, arguments.pods).await?));
            println!("{LEGEND}");
        }
        None => println!("{LEGEND}"),
    }
    draw(arguments.svg.as_deref(), &groups)
}

fn draw(path: Option<&Path>, groups: &[Group]) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let picture = svg("The controller's costs, ours divided by upstream's", groups);
    std::fs::write(path, picture).with_context(|| format!("write {}", path.display()))
}

const LEGEND: &str = "\
wall: from the first Job's creation to the last Complete. writes: the controller's, by the API
server's count. CPU: from the load's start until the controller is at rest again. rss_before
holds, for upstream, the whole kube-controller-manager with only its Job controller on.
foreign_cpu_share: the part of the machine that others took meanwhile; above 0.1, times and CPU
mean little. Upstream runs without its client's limit, and at its default of 20 requests a
second where that takes no minutes.";
