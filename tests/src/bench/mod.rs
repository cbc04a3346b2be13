//! The bench: compares our controller with upstream on the same laboratory. Runs alternate, each on
//! a fresh control plane, and the figures stand side by side. It asserts the right outcome, never a
//! time.
//!
//! `contender` starts the measured controller, `scenario` is the load, `run` applies and measures
//! it; `exposition`, `requests` and `usage` read the figures, `figures`, `report` and `picture`
//! summarise them.

pub mod admission;
pub mod agent;
mod contender;
mod exposition;
mod figures;
pub mod hold;
pub mod notices;
pub mod picture;
mod report;
mod requests;
mod run;
mod scenario;
pub mod tenants;
mod usage;
pub mod wide;

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

/// The runs to make.
#[derive(Clone, Debug)]
pub struct Plan {
    pub contenders: Vec<Contender>,
    pub runs: usize,
    pub life: Life,
    /// Our controller.
    pub binary: PathBuf,
}

impl Plan {
    /// The contenders of a scenario. At 20 requests a second, the big scenarios would take minutes
    /// and show only the limit.
    fn contenders(&self, scenario: Scenario) -> impl Iterator<Item = Contender> + '_ {
        let takes_part =
            move |contender: &Contender| *contender != Contender::Throttled || scenario.is_small();
        self.contenders.iter().copied().filter(takes_part)
    }
}

/// All runs of a scenario, the contenders in turns, so that a machine that gets slower or noisier
/// affects all of them. If `stop` is cancelled, everything stops, and the result is an error.
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
    let rate = scenario.rate_limit();
    let mut bed = tokio::select! {
        bed = Bed::start(contender, plan.binary.clone(), plan.life, rate) => bed?,
        // Dropping what has started kills it.
        () = stop.cancelled() => anyhow::bail!("interrupted"),
    };
    let outcome = tokio::select! {
        outcome = run::measure(&bed, scenario, contender) => outcome,
        () = stop.cancelled() => Err(anyhow::anyhow!("interrupted")),
    };
    // A dead controller explains any other failure.
    let outcome = bed.check().map_err(anyhow::Error::from).and(outcome);
    bed.stop().await?;
    outcome
}
