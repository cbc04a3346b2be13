//! `lab node table`: prints what the API shows of a node's pods after each way of ending, without
//! our agent and with it. With `--write` it records that and writes the pages.

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use lab::binary::GoProgram;
use lab::node_table::{
    self, Case, Cell, Column, End, Entry, JobController, Kubelet, Outcome, Record, STORY_FLAGS,
    Scenario, Table, Versions,
};
use lab::paths::LabDir;
use lab::vm::Kit;

use super::agent::Agent;
use crate::commands::{build, docs, prepare};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// poweroff, reboot, forgotten, refused, agent-killed, kubelet-stopped, kubelet-frozen,
    /// kubelet-gone, kubelet-killed, unannounced, drained, soft-reboot, power-cut,
    /// power-cut-during, power-lost; by default all
    scenarios: Vec<String>,
    /// Only with the kubelet's own graceful shutdown off, or on
    #[arg(long)]
    graceful: Option<Switch>,
    /// Only without the agent, or with it installed like this
    #[arg(long)]
    agent: Option<Agent>,
    /// With the flags of the tests' stories in place of the agent's defaults
    #[arg(long)]
    story_flags: bool,
    /// With the kubelet as the child of its unit's main process, and the runtime's socket elsewhere
    #[arg(long)]
    wrapped: bool,
    /// Who runs the Jobs; by default kube-controller-manager without the agent, else our controller
    #[arg(long)]
    jobs: Option<Jobs>,
    /// Play the cells of the pages, record them in tests/node/ends.json, and write the pages
    #[arg(long, conflicts_with_all = ["story_flags", "wrapped", "jobs", "agent"])]
    write: bool,
    /// Of the cells of the pages, only those of this column
    #[arg(long, requires = "write", value_parser = column)]
    column: Option<Column>,
    /// Of the cells of the pages, only those that no run with these versions is recorded of
    #[arg(long, requires = "write")]
    missing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Jobs {
    /// kube-controller-manager
    Upstream,
    /// Our controller
    Ours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    Off,
    On,
}

fn column(name: &str) -> Result<Column, String> {
    let names = "expected one of today, agent, release, bare-pods";
    serde_json::from_value(name.into()).map_err(|_| names.to_owned())
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for name in &arguments.scenarios {
        let known = Scenario::ALL.iter().any(|scenario| scenario.name() == name);
        let all = Scenario::ALL.map(Scenario::name).join(", ");
        ensure!(known, "there is no scenario {name:?}: expected one of {all}");
    }
    prepare::run(&GoProgram::ALL).await?;
    build::debug(&["epilogue-controller"]).await?;
    let kit = Kit::ensure(&LabDir::of_workspace()).await?;
    if arguments.write {
        return Box::pin(write(&kit, arguments)).await;
    }
    let cases = cases(arguments);
    ensure!(!cases.is_empty(), "no such case");
    for case in cases {
        let begun = std::time::Instant::now();
        eprintln!("playing: {case}");
        match node_table::play(&kit, case).await {
            Ok((outcome, removed)) => print(&case, &outcome, removed.as_ref()),
            Err(error) => println!("### {case}\n\nnot played: {error:#}\n"),
        }
        eprintln!("took {} s", begun.elapsed().as_secs());
    }
    Ok(())
}

fn print(case: &Case, outcome: &Outcome, removed: Option<&Outcome>) {
    println!("{}", node_table::render(&case.to_string(), outcome));
    if let Some(removed) = removed {
        let title = format!("{case}, and its node is removed");
        println!("{}", node_table::render(&title, removed));
    }
}

impl Arguments {
    fn jobs_with(&self, agent: Agent) -> JobController {
        match (self.jobs, agent) {
            (Some(Jobs::Upstream), _) | (None, Agent::None) => JobController::Upstream,
            (Some(Jobs::Ours) | None, _) => JobController::Ours,
        }
    }

    fn selects(&self, scenario: Scenario, graceful: bool) -> bool {
        let named = self.scenarios.iter().any(|name| name == scenario.name());
        let switch = if graceful { Switch::On } else { Switch::Off };
        (named || self.scenarios.is_empty()) && self.graceful.is_none_or(|only| only == switch)
    }
}

fn cases(arguments: &Arguments) -> Vec<Case> {
    let mut cases = Vec::new();
    for scenario in Scenario::ALL {
        for graceful in [false, true] {
            for agent in Agent::ALL {
                let wanted = arguments.selects(scenario, graceful)
                    && arguments.agent.is_none_or(|only| only == agent)
                    // Without an agent there is no process to kill.
                    && (scenario != Scenario::AgentKilled || agent != Agent::None);
                if wanted {
                    let jobs = arguments.jobs_with(agent);
                    let kubelet = if arguments.wrapped { Kubelet::Wrapped } else { Kubelet::Usual };
                    let flags: &[&str] = if arguments.story_flags { &STORY_FLAGS } else { &[] };
                    let agent = agent.install();
                    cases.push(Case { scenario, kubelet, graceful, agent, flags, jobs });
                }
            }
        }
    }
    cases
}

/// Plays the selected cells of the pages, and records each as soon as it is played.
async fn write(kit: &Kit, arguments: &Arguments) -> anyhow::Result<()> {
    let (versions, record) = (Versions::current(kit)?, Record::read()?);
    let is_recorded = |cell: &Cell| record.of(cell).is_some_and(|entry| entry.versions == versions);
    let cells = Cell::all().into_iter().filter(|cell| {
        arguments.selects(cell.scenario, cell.graceful)
            && arguments.column.is_none_or(|only| only == cell.column)
            && !(arguments.missing && is_recorded(cell))
    });
    let mut machine: Option<Machine> = None;
    let mut failed = Vec::new();
    for cell in cells {
        let (case, begun) = (cell.case(), std::time::Instant::now());
        eprintln!("playing: {case}");
        match play(kit, &mut machine, case).await {
            Ok((end, removed)) => {
                let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
                // Another process may record meanwhile.
                let mut record = Record::read()?;
                record.put(Entry { cell, date, versions: versions.clone(), end, removed });
                record.write()?;
            }
            Err(error) => {
                println!("### {case}\n\nnot played: {error:#}\n");
                failed.push(case.to_string());
                machine = None;
            }
        }
        if cell.is_last_of_a_machine()
            && let Some(Machine(_, table)) = machine.take()
        {
            table.strike().await?;
        }
        eprintln!("took {} s", begun.elapsed().as_secs());
    }
    if let Some(Machine(_, table)) = machine {
        table.strike().await?;
    }
    docs::ends_of_nodes(false)?;
    ensure!(failed.is_empty(), "not played: {}", failed.join("; "));
    Ok(())
}

/// A machine that runs, with a case of it.
struct Machine(Case, Table);

/// Plays a case on this machine if it fits, else on a new one.
async fn play(
    kit: &Kit,
    machine: &mut Option<Machine>,
    case: Case,
) -> anyhow::Result<(End, Option<End>)> {
    if machine.as_ref().is_some_and(|Machine(last, _)| !last.shares_machine(&case))
        && let Some(Machine(_, table)) = machine.take()
    {
        table.strike().await?;
    }
    let mut table = match machine.take() {
        Some(Machine(_, table)) => table,
        None => Table::set(kit, case).await?.waiting_for_lost_node(),
    };
    let outcome = table
        .play(case.scenario)
        .await
        .with_context(|| format!("files: {}", table.dir().display()))?;
    if !table.is_off() {
        print(&case, &outcome, None);
        *machine = Some(Machine(case, table));
        return Ok((End::of(&outcome), None));
    }
    let removed = table.remove_node().await?;
    print(&case, &outcome, Some(&removed));
    table.strike().await?;
    Ok((End::of(&outcome), Some(End::of(&removed))))
}
