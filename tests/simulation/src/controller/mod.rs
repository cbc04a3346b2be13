//! A deterministic simulation of the whole controller. Its real decisions run against models of the
//! API, of kubelets and of users, under faults, in virtual time. A seed replays exactly.

pub(crate) mod agenda;
pub(crate) mod api;
mod calls;
mod chaos;
mod checks;
mod group_rules;
mod groups;
mod housekeeping;
mod indexes;
mod kubelet;
mod ledger;
mod nodes;
mod pod_gc_rules;
pub(crate) mod pod_object;
mod process;
pub(crate) mod random;
mod release_rules;
mod sabotage;
mod scenario;
mod settled;
mod shutdowns;
mod situations;
mod users;
pub(crate) mod watched;
mod watches;
mod work;
mod world;

pub(crate) use calls::described;
pub use random::Random;
pub use situations::{Counts, SITUATIONS};
pub use world::Stats;
use world::World;

/// How a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep a trace of the events.
    pub trace: bool,
    /// Break the controller, to check the checks.
    pub sabotage: Option<Sabotage>,
}

/// A mistake that a controller could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Counts once more if it does not know whether a write succeeded.
    CountAgain,
    /// Releases terminated pods before it has listed them.
    ReleaseFirst,
    /// Does not wait until its caches show the pods that it created.
    ForgetCreations,
    /// Forgets creations without a reply.
    ForgetDoubts,
    /// Does not remember what it released and wrote.
    ForgetReleases,
    /// Misses the events of some pods that finish.
    MissEvents,
    /// Takes a PodGroup that is disrupted as a whole for one whose pods are disrupted one by one.
    SpareGroup,
    /// Pod GC does not ask the API for a node that its watch does not show.
    TrustWatch,
    /// Pod GC patches a pod whatever its version is by then.
    ForgetVersion,
    /// Pod GC takes a silent node for one whose machine is off.
    EndSilent,
    /// Pod GC takes every node for one that shuts down.
    MarkAnyone,
    /// Pod GC resets a condition without looking for a shutdown, or waiting.
    ClearAtOnce,
    /// Pod GC resets no condition.
    KeepMarks,
    /// Pod GC removes no taint.
    KeepTaints,
    /// Pod GC takes every boot for one after the announcement.
    UntaintEarly,
    /// Pod GC does not notice that a namespace revokes its policy.
    KeepConsent,
}

/// Outcome of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The violations; empty if all is well.
    pub violations: Vec<String>,
    /// Counts of the run.
    pub stats: Stats,
    /// The trace, if requested.
    pub trace: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, options: Options) -> Report {
    let mut world = World::new(seed, options);
    world.run();
    let trace = world.take_trace();
    Report { violations: world.ledger.violations, stats: world.stats, trace }
}

/// Describes a failed seed, with the command that replays it.
pub fn failure(seed: u64, report: &Report) -> String {
    let violations = report.violations.join("\n  ");
    let replay = format!("cargo lab sim --seed {seed} --verbose");
    format!("seed {seed} failed:\n  {violations}\n  replay: {replay}\n")
}
