//! A deterministic simulation of a node with an agent. The agent's real state machine runs against
//! models of the API, the kubelet, the container runtime, logind and the disk. It runs under
//! faults, in virtual time; a seed replays exactly.

pub(crate) mod api;
mod crossing;
mod disk;
mod eviction_verdicts;
mod graceful;
mod hangs;
mod kernel;
mod kubelet;
mod kubelet_evictions;
mod kubelet_facts;
mod ledger;
mod logind;
mod machine;
mod measuring;
pub(crate) mod merge;
mod needs;
mod notices;
mod oom_verdicts;
mod population;
mod pressure_ledger;
pub(crate) mod print;
mod process;
mod promises;
mod refusing;
mod replacements;
mod reports;
mod runtime;
mod sabotage;
mod scenario;
mod settled;
mod shortage_verdicts;
mod sinks;
mod situations;
mod strain;
mod strain_sabotage;
mod stuck_verdicts;
mod unannounced;
mod verdicts;
mod volumes;
mod wire;
mod world;

use std::collections::BTreeMap;

pub use sabotage::Sabotage;
pub use situations::{Counts, SITUATIONS, Stage};
use world::World;

/// How a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep a trace of the events.
    pub trace: bool,
    /// Show each decision in the trace: all that it gives, and the report.
    pub plan: bool,
    /// Break the agent, to check the checks.
    pub sabotage: Option<Sabotage>,
    /// Kill the agent after this many actions that act on something.
    pub crash_after: Option<u64>,
    /// Kill the agent when it first is in this stage.
    pub crash_in: Option<Stage>,
    /// Leave out all faults.
    pub strict: bool,
    /// Leave out what strains the node: the seed is about its shutdowns.
    pub unstrained: bool,
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Actions of the agent that act on something: neither lines of its log nor measurements.
    pub actions: u64,
    /// How often the process ended.
    pub crashes: u64,
    /// Whether it was killed in the stage that the options name.
    pub crashes_in_stage: u64,
    /// How often the machine powered off.
    pub power_offs: u64,
    /// Pods whose containers a shutdown terminated while they ran.
    pub ended: u64,
    /// Of those with restartPolicy Never, the pods that are marked at the end.
    pub reported: u64,
    /// Of those, the pods whose end does not show the disruption.
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
    /// How often each situation was met.
    pub met: Counts,
}

/// Outcome of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The violations; empty if all is well.
    pub violations: Vec<String>,
    /// Counts of the run.
    pub stats: Stats,
    /// Each pod's end: phase, whether disrupted, whether its object is gone.
    pub ends: BTreeMap<String, String>,
    /// The trace, if requested.
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

/// Describes a failed seed, with the command that replays it.
pub fn failure(seed: u64, options: Options, report: &Report) -> String {
    let violations = report.violations.join("\n  ");
    let strict = if options.strict { " --strict" } else { "" };
    let unstrained = if options.unstrained { " --unstrained" } else { "" };
    let crash = options.crash_after.map(|count| format!(" --crash-after {count}"));
    let crash = crash.unwrap_or_default();
    let stage = options.crash_in.map(|stage| format!(" --crash-in {}", stage.name()));
    let stage = stage.unwrap_or_default();
    let replay =
        format!("cargo lab sim --agent --seed {seed} --verbose{strict}{unstrained}{crash}{stage}");
    format!("seed {seed} failed:\n  {violations}\n  replay: {replay}\n")
}
