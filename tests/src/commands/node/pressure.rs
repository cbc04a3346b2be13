//! `lab node pressure`: shows what ends when a pod exhausts the node, how soon, and what the API
//! shows, without our agent and with it. Also plays pods that are deleted before they ran.

use lab::binary::GoProgram;
use lab::node_pressure::{self, Install, Kind, Setting, Stuck};
use lab::paths::LabDir;
use lab::vm::Kit;

use super::agent::Agent;
use crate::commands::prepare;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// memory, disk, disk-layer, pids, own-limit, stuck (the kubelet stops), hanging (it lives); by
    /// default the first five
    kinds: Vec<String>,
    /// How many runs of each; for stuck and hanging, how many pods at once
    #[arg(long, default_value_t = 30)]
    runs: u32,
    /// Only with the agent installed like this; by default none and host
    #[arg(long)]
    agent: Option<Agent>,
    /// Megabytes or processes a second that the pod takes
    #[arg(long)]
    rate: Option<u32>,
    /// The kubelet's threshold, such as 300Mi
    #[arg(long)]
    kubelet: Option<String>,
    /// The agent's threshold
    #[arg(long)]
    threshold: Option<String>,
    /// For stuck and hanging: the agent's --stuck-after, in seconds
    #[arg(long, value_name = "SECONDS")]
    stuck_after: Option<u32>,
    /// Leave the kernel's guard against thrashing off, as it is by default
    #[arg(long)]
    no_guard: bool,
    /// Also print each run as a line of JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn agents(&self) -> Vec<Option<Install>> {
        let both = || vec![Agent::None, Agent::Host];
        let agents = self.agent.map_or_else(both, |only| vec![only]);
        agents.into_iter().map(Agent::install).collect()
    }
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (settings, stuck) = (settings(arguments), stuck(arguments));
    anyhow::ensure!(!settings.is_empty() || !stuck.is_empty(), "no such kind");
    prepare::run(&GoProgram::ALL).await?;
    let kit = Kit::ensure(&LabDir::of_workspace()).await?;
    for setting in settings {
        eprintln!("playing: {setting}");
        let seen = |run: &node_pressure::Run| {
            if arguments.json {
                println!("{}", serde_json::to_string(run).expect("a run must be JSON"));
            } else {
                eprintln!("{run:?}");
            }
        };
        match node_pressure::play(&kit, &setting, seen).await {
            Ok((runs, losses)) => println!("{}", node_pressure::render(&setting, &runs, &losses)),
            Err(error) => println!("### {setting}\n\nnot played: {error:#}\n"),
        }
    }
    for stuck in stuck {
        println!("{stuck:?}");
        for hung in node_pressure::play_stuck(&kit, stuck).await? {
            println!("{}", serde_json::to_string(&hung).expect("a result must be JSON"));
        }
    }
    Ok(())
}

fn stuck(arguments: &Arguments) -> Vec<Stuck> {
    let mut all = Vec::new();
    for (name, kubelet_stops) in [("stuck", true), ("hanging", false)] {
        if !arguments.kinds.iter().any(|kind| kind == name) {
            continue;
        }
        for agent in arguments.agents() {
            let (pods, after_seconds) = (arguments.runs, arguments.stuck_after);
            all.push(Stuck { agent, pods, kubelet_stops, after_seconds });
        }
    }
    all
}

fn settings(arguments: &Arguments) -> Vec<Setting> {
    let mut settings = Vec::new();
    for kind in Kind::ALL {
        let named = arguments.kinds.iter().any(|name| name == kind.name());
        if !named && !arguments.kinds.is_empty() {
            continue;
        }
        for agent in arguments.agents() {
            let mut setting = Setting::of(kind, agent, arguments.runs);
            setting.rate = arguments.rate.unwrap_or(setting.rate);
            setting.kubelet = arguments.kubelet.clone().unwrap_or(setting.kubelet);
            setting.threshold = arguments.threshold.clone().unwrap_or(setting.threshold);
            setting.guard = !arguments.no_guard;
            settings.push(setting);
        }
    }
    settings
}
