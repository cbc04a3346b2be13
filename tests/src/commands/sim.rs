//! `lab sim`: runs seeds of the simulation; of the first that fails, shows what happened and how
//! to see it again.

use anyhow::ensure;
use lab::sim::{self, Options};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to run from there on
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Show what happens, also when nothing fails
    #[arg(long)]
    verbose: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (mut passed, mut failed) = (0_u64, Vec::new());
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.count) {
        let trace = arguments.verbose;
        let report = sim::run(seed, Options { trace, ..Options::default() });
        if trace {
            println!("{}", report.trace.join("\n"));
        }
        if report.violations.is_empty() {
            passed += 1;
        } else {
            print!("{}", sim::failure(seed, &report));
            if failed.is_empty() && !trace {
                let again = sim::run(seed, Options { trace: true, ..Options::default() });
                println!("{}", again.trace.join("\n"));
            }
            failed.push(seed);
        }
        if arguments.count == 1 {
            println!("{:?}", report.stats);
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    ensure!(failed.is_empty(), "seeds that failed: {failed:?}");
    Ok(())
}
