//! `lab matrix --nodes`: ends a node of each platform in the ways of the matrix, and records what
//! the API then shows.

use anyhow::ensure;
use lab::binary::GoProgram;
use lab::matrix::nodes::{Dated, Ends, Nodes, STORIES};
use lab::matrix::{self, Record};
use lab::node_pressure::{self, Kind, Pressure};
use lab::node_table::{Case, End, Install, JobController, Kubelet, Scenario, Table};
use lab::paths::LabDir;
use lab::vm::{Kit, Platform};

use super::Arguments;
use crate::commands::{build, prepare};

/// The story of a pod that takes the node's memory.
const MEMORY: &str = "memory";

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for name in &arguments.story {
        let names: Vec<&str> = STORIES.map(Scenario::name).into_iter().chain([MEMORY]).collect();
        let expected = names.join(", ");
        ensure!(names.contains(&name.as_str()), "--story {name}: expected one of {expected}");
    }
    let platforms = platforms(arguments);
    ensure!(!platforms.is_empty(), "the matrix has no such node; docs/versions.md lists its nodes");
    let mut failed = Vec::new();
    for platform in platforms {
        println!("── {platform}");
        if let Err(error) = Box::pin(one(platform, &arguments.story)).await {
            failed.push(format!("{platform}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "not played: {}", failed.join("; "));
    Ok(())
}

fn platforms(arguments: &Arguments) -> Vec<Platform> {
    let (systems, versions) = (&arguments.system, &arguments.kubernetes);
    let mut all = Platform::all();
    all.retain(|platform| {
        (systems.is_empty() || systems.contains(&platform.system))
            && (versions.is_empty() || versions.contains(&platform.kubernetes))
    });
    all
}

async fn one(platform: Platform, named: &[String]) -> anyhow::Result<()> {
    prepare::run_of(platform.kubernetes, &GoProgram::ALL).await?;
    build::debug(&["epilogue-controller"]).await?;
    let kit = Kit::of(&LabDir::of_workspace(), platform).await?;
    let is_wanted = |name: &str| named.is_empty() || named.iter().any(|one| one == name);
    let stories = STORIES.into_iter().filter(|story| {
        let exists = *story != Scenario::SoftReboot || platform.system.has_soft_reboot();
        exists && is_wanted(story.name())
    });
    let (mut table, mut failed) = (None, Vec::new());
    for story in stories {
        let at = std::time::Instant::now();
        // A story that fails leaves its machine to no other.
        if let Err(error) = Box::pin(play(&kit, &mut table, story)).await {
            failed.push(format!("{}: {error:#}", story.name()));
        }
        eprintln!("{}: took {} s", story.name(), at.elapsed().as_secs());
    }
    if let Some(table) = table {
        table.strike().await?;
    }
    if is_wanted(MEMORY)
        && let Err(error) = memory(&kit).await
    {
        failed.push(format!("{MEMORY}: {error:#}"));
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Plays a story on this machine or a new one, and records it; leaves the machine if it still runs.
async fn play(kit: &Kit, machine: &mut Option<Table>, story: Scenario) -> anyhow::Result<()> {
    let mut table = match machine.take() {
        Some(table) => table,
        None => Table::set(kit, case(story)).await?.waiting_for_lost_node(),
    };
    let outcome = table.play(story).await?;
    let mut seen = Ends { end: End::of(&outcome), removed: None };
    let title = format!("{}: {}", kit.platform, story.name());
    println!("{}", lab::node_table::render(&title, &outcome));
    if table.is_off() {
        seen.removed = Some(End::of(&table.remove_node().await?));
        table.strike().await?;
    } else {
        *machine = Some(table);
    }
    let seen = Dated::today(seen);
    record(kit, |run| drop(run.ends.insert(story.name().to_owned(), seen)))
}

/// As a user has it: the defaults of agent and controller.
fn case(scenario: Scenario) -> Case {
    let (kubelet, jobs) = (Kubelet::Usual, JobController::Ours);
    let agent = Some(Install::Host);
    Case { scenario, kubelet, graceful: false, agent, flags: &[], jobs }
}

async fn memory(kit: &Kit) -> anyhow::Result<()> {
    let setting = node_pressure::Setting::of(Kind::Memory, Some(Install::Host), 1);
    let mut pressure = Pressure::set(kit, &setting, None).await?;
    let (seen, _) = pressure.play(&setting).await?;
    pressure.strike().await?;
    println!("{seen:?}");
    record(kit, |run| run.memory = Some(Dated::today(seen)))
}

/// Read again each time: another process may record meanwhile.
fn record(kit: &Kit, put: impl FnOnce(&mut matrix::nodes::Run)) -> anyhow::Result<()> {
    let mut nodes = Nodes::read()?;
    put(nodes.run(kit.platform, kit.packages()?.into_iter().collect()));
    nodes.write()?;
    matrix::write_page(&Record::read()?)?;
    Ok(())
}
