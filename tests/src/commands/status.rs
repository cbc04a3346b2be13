//! `lab status`: lists the running labs of this checkout, and how to reach them.

use lab::paths::LabDir;
use lab::run_dir::{self, State};

pub(crate) fn run() {
    let running: Vec<State> = run_dir::list(&LabDir::of_workspace())
        .iter()
        .filter(|dir| run_dir::is_held(dir))
        .filter_map(|dir| State::read(dir))
        .collect();
    if running.is_empty() {
        println!("no lab runs; start one: cargo lab up");
    }
    for state in running {
        println!("{} ({:?}) {}", state.name, state.phase, state.server);
        println!("  export KUBECONFIG={}", state.kubeconfig.display());
        for process in state.processes {
            let life = if process.is_alive() { "runs" } else { "has ended" };
            println!("  {} {life}, pid {}", process.name, process.pid);
        }
    }
}
