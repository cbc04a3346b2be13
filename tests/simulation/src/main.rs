//! `cargo lab sim`: runs seeds of the simulation; for the first failure, prints its trace and the
//! command that replays it.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use anyhow::{bail, ensure};
use clap::Parser;
use simulation::small_scopes::{self, Limits, Scope};
use simulation::{agent, controller};

/// A quarter of the time goes to memory; with this allocator a fifth less in all.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Simulate the controller, or the agent, by seeds.
#[derive(Debug, Parser)]
#[command(name = "cargo lab sim", bin_name = "cargo lab sim")]
struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to run from there on, on all processors; from 10,000 on by a build that is
    /// optimised throughout
    #[arg(long, alias = "count", default_value_t = 1)]
    seeds: u64,
    /// Simulate the agent on its node, not the controller
    #[arg(long)]
    agent: bool,
    /// Kill the agent after this many actions
    #[arg(long, requires = "agent")]
    crash_after: Option<u64>,
    /// Kill the agent when it first is in this stage
    #[arg(long, requires = "agent")]
    crash_in: Option<agent::Stage>,
    /// Leave out all other faults
    #[arg(long, requires = "agent")]
    strict: bool,
    /// Leave out what strains the node
    #[arg(long, requires = "agent")]
    unstrained: bool,
    /// Explore small scopes exhaustively: `small`, `large`, or the name of one
    #[arg(long, value_name = "SCOPES", num_args = 0..=1, default_missing_value = "small")]
    exhaustive: Option<String>,
    /// Give up a scope with more states than this
    #[arg(long, requires = "exhaustive", default_value_t = 20_000_000)]
    states_max: usize,
    /// Show how often each situation was met
    #[arg(long)]
    met: bool,
    /// Show what happens, also when nothing fails
    #[arg(long)]
    verbose: bool,
    /// Show what happens, with each decision of the agent: what it gives, when it wakes, the report
    #[arg(long, requires = "agent")]
    plan: bool,
}

/// How often situations were met, in either simulation.
#[derive(Default)]
struct Counts {
    agent: agent::Counts,
    controller: controller::Counts,
}

/// Outcome of one seed, of either simulation.
struct Seen {
    violations: Vec<String>,
    failure: String,
    stats: String,
    met: Counts,
    trace: Vec<String>,
}

/// Outcome of all seeds.
#[derive(Default)]
struct Total {
    passed: u64,
    failed: Vec<u64>,
    met: Counts,
}

fn main() -> anyhow::Result<()> {
    let arguments = &Arguments::parse();
    if let Some(which) = &arguments.exhaustive {
        return explore(which, arguments.states_max);
    }
    let Total { passed, mut failed, met } = simulate_all(arguments);
    failed.sort_unstable();
    if arguments.met {
        let (agent, controller) = (arguments.agent, !arguments.agent);
        print!("{}", met.agent.table(&agent::SITUATIONS, |_| agent, 0).0);
        print!("{}", met.controller.table(&controller::SITUATIONS, |_| controller, 0).0);
    }
    println!("{passed} passed, {} failed", failed.len());
    ensure!(failed.is_empty(), "seeds that failed: {failed:?}");
    Ok(())
}

/// Runs all seeds, each on a thread of its own choice, and prints what each shows, as it ends.
fn simulate_all(arguments: &Arguments) -> Total {
    let verbose = arguments.verbose || arguments.plan;
    let seeds = arguments.seed..arguments.seed.saturating_add(arguments.seeds);
    let next = &Mutex::new(seeds);
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    // What is verbose comes in the order of the seeds.
    let threads = if verbose { 1 } else { processors };
    let (sender, ended) = mpsc::channel();
    let mut total = Total::default();
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(seed) = take() {
                    if sender.send((seed, simulate(arguments, seed, verbose))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (seed, seen) in ended {
            total.add(arguments, seed, &seen);
        }
    });
    total
}

impl Total {
    /// Adds what a seed has shown, and prints it.
    fn add(&mut self, arguments: &Arguments, seed: u64, seen: &Seen) {
        let verbose = arguments.verbose || arguments.plan;
        self.met.agent += seen.met.agent;
        self.met.controller += seen.met.controller;
        if verbose {
            println!("{}", seen.trace.join("\n"));
        }
        if seen.violations.is_empty() {
            self.passed += 1;
        } else {
            print!("{}", seen.failure);
            if self.failed.is_empty() && !verbose {
                println!("{}", simulate(arguments, seed, true).trace.join("\n"));
            }
            self.failed.push(seed);
        }
        if arguments.seeds == 1 {
            println!("{}", seen.stats);
        }
    }
}

/// Explores scopes, and prints what each of them has.
fn explore(which: &str, states_max: usize) -> anyhow::Result<()> {
    let limits = Limits { states_max, ..Limits::default() };
    let scopes: Vec<AnyScope> = AnyScope::all().filter(|scope| scope.is(which)).collect();
    let names = || AnyScope::all().map(AnyScope::name).collect::<Vec<_>>().join(", ");
    ensure!(!scopes.is_empty(), "no scope {which:?}: expected small, large, or one of {}", names());
    println!("| scope | states | actions | at rest | beyond | seconds |");
    println!("|---|---|---|---|---|---|");
    for scope in scopes {
        let began = Instant::now();
        let report = scope.explore(limits);
        let seconds = began.elapsed().as_secs_f64();
        let small_scopes::Report { states, transitions, settled, beyond, .. } = report;
        let name = scope.name();
        println!("| {name} | {states} | {transitions} | {settled} | {beyond} | {seconds:.1} |");
        if let Some(violation) = &report.violation {
            bail!("{}", small_scopes::failure(name, violation));
        }
    }
    Ok(())
}

/// A scope of either program.
#[derive(Clone, Copy)]
enum AnyScope {
    Controller(&'static Scope),
    Agent(&'static small_scopes::agent::Scope),
}

impl AnyScope {
    fn small() -> impl Iterator<Item = Self> {
        let agent = small_scopes::agent::SMALL.iter().map(Self::Agent);
        small_scopes::small().map(Self::Controller).chain(agent)
    }

    fn large() -> impl Iterator<Item = Self> {
        let agent = small_scopes::agent::LARGE.iter().map(Self::Agent);
        small_scopes::LARGE.iter().map(Self::Controller).chain(agent)
    }

    fn all() -> impl Iterator<Item = Self> {
        Self::small().chain(Self::large())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Controller(scope) => scope.name,
            Self::Agent(scope) => scope.name,
        }
    }

    fn explore(self, limits: Limits) -> small_scopes::Report {
        match self {
            Self::Controller(scope) => small_scopes::explore(scope, limits),
            Self::Agent(scope) => small_scopes::explore_agent(scope, limits),
        }
    }

    /// Whether `small`, `large` or a name means it.
    fn is(self, which: &str) -> bool {
        let among = |mut scopes: Box<dyn Iterator<Item = Self>>| {
            scopes.any(|scope| scope.name() == self.name())
        };
        match which {
            "small" => among(Box::new(Self::small())),
            "large" => among(Box::new(Self::large())),
            name => self.name() == name,
        }
    }
}

fn simulate(arguments: &Arguments, seed: u64, trace: bool) -> Seen {
    if arguments.agent {
        let (strict, crash_after) = (arguments.strict, arguments.crash_after);
        let (unstrained, plan) = (arguments.unstrained, arguments.plan);
        let crash_in = arguments.crash_in;
        let options = agent::Options {
            trace,
            plan,
            strict,
            crash_after,
            crash_in,
            unstrained,
            sabotage: None,
        };
        let report = agent::run(seed, options);
        let failure = agent::failure(seed, options, &report);
        let stats = format!("{:?}\n{:#?}", report.stats, report.ends);
        let met = Counts { agent: report.stats.met, ..Counts::default() };
        return Seen { violations: report.violations, failure, stats, met, trace: report.trace };
    }
    let report =
        controller::run(seed, controller::Options { trace, ..controller::Options::default() });
    let failure = controller::failure(seed, &report);
    let stats = format!("{:?}", report.stats);
    let met = Counts { controller: report.stats.met, ..Counts::default() };
    Seen { violations: report.violations, failure, stats, met, trace: report.trace }
}
