//! The bench: our controller and the reference on the same laboratory, one after the other and
//! again, each on a fresh control plane, with figures side by side. Asserts that the outcome is
//! right, never a time.
//!
//! `contender` starts who is measured, `scenario` is the load, `run` gives it and measures;
//! `exposition`, `requests` and `usage` read the figures, `figures` and `report` sum them up.

pub mod agent;
mod contender;
mod exposition;
mod figures;
mod report;
mod requests;
mod run;
mod scenario;
pub mod tenants;
mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use contender::Bed;

pub use contender::{Contender, Life};
pub use figures::Figures;
pub use report::Results;
pub use requests::Writes;
pub use scenario::Scenario;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub contenders: Vec<Contender>,
    pub runs: usize,
    pub life: Life,
    /// Our controller.
    pub binary: PathBuf,
}

impl Plan {
    /// Those that take part in a scenario. At 20 requests a second the big ones would take minutes
    /// and show nothing but the limit.
    fn contenders(&self, scenario: Scenario) -> impl Iterator<Item = Contender> + '_ {
        let takes_part =
            move |contender: &Contender| *contender != Contender::Throttled || scenario.is_small();
        self.contenders.iter().copied().filter(takes_part)
    }
}

/// All runs of a scenario, the contenders in turns, so that a machine that gets slower or noisier
/// does so for all of them. When `stop` is cancelled, everything is ended and that is an error.
pub async fn compare(
    scenario: Scenario,
    plan: &Plan,
    stop: &CancellationToken,
) -> anyhow::Result<Results> {
    let mut runs: BTreeMap<Contender, Vec<Figures>> = BTreeMap::new();
    for round in 1..=plan.runs {
        for contender in plan.contenders(scenario) {
            let what = format!("{}, {}, run {round}", scenario.name(), contender.title());
            eprint!("{what} …");
            let figures = one(scenario, contender, plan, stop).await.context(what)?;
            eprintln!(" {:.2} s", figures.wall.as_secs_f64());
            runs.entry(contender).or_default().push(figures);
        }
    }
    Ok(Results { scenario, runs })
}

async fn one(
    scenario: Scenario,
    contender: Contender,
    plan: &Plan,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    let mut bed = tokio::select! {
        bed = Bed::start(contender, plan.binary.clone(), plan.life) => bed?,
        // What was started already is killed when it is dropped.
        () = stop.cancelled() => anyhow::bail!("interrupted"),
    };
    let outcome = tokio::select! {
        outcome = run::measure(&bed, scenario, contender) => outcome,
        () = stop.cancelled() => Err(anyhow::anyhow!("interrupted")),
    };
    // A controller that is gone explains whatever else went wrong.
    let outcome = bed.check().map_err(anyhow::Error::from).and(outcome);
    bed.stop().await?;
    outcome
}
