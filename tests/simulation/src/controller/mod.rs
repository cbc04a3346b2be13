//! A deterministic simulation of the whole controller: its real decisions against a model of the
//! API, of kubelets and of users, under faults, in virtual time. A seed replays exactly.

pub(crate) mod agenda;
mod api;
mod calls;
mod chaos;
mod housekeeping;
mod kubelet;
mod ledger;
mod process;
pub(crate) mod random;
mod release_rules;
mod scenario;
mod settled;
mod store;
mod users;
mod work;
mod world;

use controller_core::job::MemoryUpdate;

pub use world::Stats;
use world::World;

/// How a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep what happens.
    pub trace: bool,
    /// Break the controller, so that the checks can be checked.
    pub sabotage: Option<Sabotage>,
}

/// A mistake that a controller could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Counts once more when it does not know whether a write went through.
    CountAgain,
    /// Releases terminated pods before it has listed them.
    ReleaseFirst,
    /// Does not wait to see the pods that it created.
    ForgetCreations,
    /// Does not remember what it released and wrote.
    ForgetReleases,
    /// Misses the events of some pods that end.
    MissEvents,
}

impl Sabotage {
    fn remembers(self, change: &MemoryUpdate) -> bool {
        match self {
            Self::CountAgain | Self::ReleaseFirst | Self::MissEvents => true,
            Self::ForgetCreations => !matches!(change, MemoryUpdate::Created(_)),
            Self::ForgetReleases => !matches!(
                change,
                MemoryUpdate::RemovingFinalizer(_)
                    | MemoryUpdate::PodWritten(_)
                    | MemoryUpdate::JobWritten(_)
            ),
        }
    }
}

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was violated; nothing when all is well.
    pub violations: Vec<String>,
    /// What the run was made of.
    pub stats: Stats,
    /// What happened, when it was asked for.
    pub trace: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, options: Options) -> Report {
    let mut world = World::new(seed, options);
    world.run();
    let trace = world.take_trace();
    Report { violations: world.ledger.violations, stats: world.stats, trace }
}

/// A failed seed in words, with the command that replays it.
pub fn failure(seed: u64, report: &Report) -> String {
    let violations = report.violations.join("\n  ");
    let replay = format!("cargo lab sim --seed {seed} --verbose");
    format!("seed {seed} failed:\n  {violations}\n  replay: {replay}\n")
}
