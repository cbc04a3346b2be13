//! A deterministic simulation of a node with an agent: the agent's real state machine against
//! models of the API, the kubelet, the container runtime, logind and the disk, under faults, in
//! virtual time. A seed replays exactly.

mod api;
mod disk;
mod eviction_verdicts;
mod graceful;
mod hangs;
mod kernel;
mod kubelet;
mod kubelet_evictions;
mod ledger;
mod logind;
mod machine;
mod measuring;
mod merge;
mod needs;
mod oom_verdicts;
mod population;
mod pressure_ledger;
mod print;
mod process;
mod refusing;
mod reports;
mod runtime;
mod sabotage;
mod scenario;
mod settled;
mod sinks;
mod strain;
mod strain_sabotage;
mod stuck_verdicts;
mod verdicts;
mod wire;
mod world;

use std::collections::BTreeMap;

pub use sabotage::Sabotage;
use world::World;

/// How a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep what happens.
    pub trace: bool,
    /// Break the agent, so that the checks can be checked.
    pub sabotage: Option<Sabotage>,
    /// Kill the agent after so many actions.
    pub crash_after: Option<u64>,
    /// Leave out all faults.
    pub strict: bool,
    /// Leave out what strains the node: its shutdowns are what the seed is about.
    pub unstrained: bool,
}

/// What a run was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Actions of the agent.
    pub actions: u64,
    /// Times that the process ended.
    pub crashes: u64,
    /// Times that the machine went off.
    pub power_offs: u64,
    /// Pods whose containers a shutdown ended while they ran.
    pub ended: u64,
    /// Of those that never restart, the ones that were marked by the end.
    pub reported: u64,
    /// Of those, the ones whose end says nothing of the disruption.
    pub untold: u64,
    /// Marks that were on the wire when the pod's own end came.
    pub crossed: u64,
    /// Marks that a kubelet had cached and wrote again. ([ST8])
    pub sticky: u64,
    /// OOM kills by the kernel.
    pub oom_kills: u64,
    /// Pods that the agent began to evict.
    pub evictions: u64,
    /// Pods that the kubelet evicted.
    pub kubelet_evictions: u64,
    /// Deleted pods that the agent failed.
    pub unstuck: u64,
    /// Virtual seconds.
    pub seconds: u64,
}

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was violated; nothing when all is well.
    pub violations: Vec<String>,
    /// What the run was made of.
    pub stats: Stats,
    /// Each pod's end: phase, whether disrupted, whether its object is gone.
    pub ends: BTreeMap<String, String>,
    /// What happened, when it was asked for.
    pub trace: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, options: Options) -> Report {
    let mut world = World::new(seed, options);
    world.run();
    let trace = world.take_trace();
    let ends = world.ends();
    Report { violations: world.ledger.violations, stats: world.stats, ends, trace }
}

/// A failed seed in words, with the command that replays it.
pub fn failure(seed: u64, options: Options, report: &Report) -> String {
    let violations = report.violations.join("\n  ");
    let strict = if options.strict { " --strict" } else { "" };
    let unstrained = if options.unstrained { " --unstrained" } else { "" };
    let crash = options.crash_after.map(|count| format!(" --crash-after {count}"));
    let crash = crash.unwrap_or_default();
    let replay =
        format!("cargo lab sim --agent --seed {seed} --verbose{strict}{unstrained}{crash}");
    format!("seed {seed} failed:\n  {violations}\n  replay: {replay}\n")
}
