//! `lab node table`: prints what the API shows of a node's pods after each way of ending, without
//! our agent and with it.

use anyhow::ensure;
use clap::ValueEnum;
use lab::binary::GoProgram;
use lab::node_table::{self, Case, JobController, Kubelet, Scenario};
use lab::paths::LabDir;
use lab::vm::Kit;

use super::agent::Agent;
use crate::commands::{build, prepare};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// poweroff, reboot, forgotten, refused, agent-killed, kubelet-stopped, kubelet-frozen,
    /// kubelet-gone, kubelet-killed, unannounced, power-cut, power-cut-during; by default all
    scenarios: Vec<String>,
    /// Only with the kubelet's own graceful shutdown off, or on
    #[arg(long)]
    graceful: Option<Switch>,
    /// Only without the agent, or with it installed like this
    #[arg(long)]
    agent: Option<Agent>,
    /// With the kubelet as the child of its unit's main process, and the runtime's socket elsewhere
    #[arg(long)]
    wrapped: bool,
    /// Who runs the Jobs; by default kube-controller-manager without the agent, else our controller
    #[arg(long)]
    jobs: Option<Jobs>,
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

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let cases = cases(arguments);
    ensure!(!cases.is_empty(), "no such case");
    prepare::run(&GoProgram::ALL).await?;
    build::debug(&["epilogue-controller"]).await?;
    let kit = Kit::ensure(&LabDir::of_workspace()).await?;
    for case in cases {
        let begun = std::time::Instant::now();
        eprintln!("playing: {case}");
        match node_table::play(&kit, case).await {
            Ok((outcome, removed)) => {
                println!("{}", node_table::render(&case.to_string(), &outcome));
                if let Some(removed) = removed {
                    let title = format!("{case}, and its node is removed");
                    println!("{}", node_table::render(&title, &removed));
                }
            }
            Err(error) => println!("### {case}\n\nnot played: {error:#}\n"),
        }
        eprintln!("took {} s", begun.elapsed().as_secs());
    }
    Ok(())
}

impl Arguments {
    fn jobs_with(&self, agent: Agent) -> JobController {
        match (self.jobs, agent) {
            (Some(Jobs::Upstream), _) | (None, Agent::None) => JobController::Upstream,
            (Some(Jobs::Ours) | None, _) => JobController::Ours,
        }
    }
}

fn cases(arguments: &Arguments) -> Vec<Case> {
    let mut cases = Vec::new();
    for scenario in Scenario::ALL {
        let named = arguments.scenarios.iter().any(|name| name == scenario.name());
        if !named && !arguments.scenarios.is_empty() {
            continue;
        }
        for (switch, graceful) in [(Switch::Off, false), (Switch::On, true)] {
            for agent in Agent::ALL {
                let wanted = arguments.graceful.is_none_or(|only| only == switch)
                    && arguments.agent.is_none_or(|only| only == agent)
                    // Without an agent there is no process to kill.
                    && (scenario != Scenario::AgentKilled || agent != Agent::None);
                if wanted {
                    let jobs = arguments.jobs_with(agent);
                    let kubelet = if arguments.wrapped { Kubelet::Wrapped } else { Kubelet::Usual };
                    let agent = agent.install();
                    cases.push(Case { scenario, kubelet, graceful, agent, jobs });
                }
            }
        }
    }
    cases
}
