//! `lab node lost`: counts the pods of a node whose end is in the API when a graceful shutdown is
//! over.

use lab::binary::GoProgram;
use lab::node_table;
use lab::paths::LabDir;
use lab::vm::Kit;

use super::agent::Agent;
use crate::commands::prepare;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many pods run on it
    #[arg(long, default_value_t = 30)]
    pods: u32,
    /// Without the agent, or with it installed like this
    #[arg(long, default_value = "none")]
    agent: Agent,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    prepare::run(&GoProgram::ALL).await?;
    let kit = Kit::ensure(&LabDir::of_workspace()).await?;
    let lost = node_table::lost(&kit, arguments.agent.install(), arguments.pods).await?;
    println!("{} of {} pods are reported", lost.reported, lost.pods);
    for other in lost.others {
        println!("not reported: {other}");
    }
    Ok(())
}
