//! `cargo lab`: the laboratory's command line. One sub command, one file in `commands/`.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{bench, demo, docs, down, fuzz, matrix, node, prepare, sim, status, test, up};

/// A real Kubernetes API on this machine, and the tests and demos that run on it.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show Jobs through disruptions, live, in under two minutes
    Demo(demo::Arguments),
    /// Start a control plane and keep it until Ctrl-C
    Up(up::Arguments),
    /// Stop a running lab
    Down(down::Arguments),
    /// Inspect a real node (`lab up --node vm`), or end it in one of the ways nodes end
    Node(node::Arguments),
    /// Show the labs of this checkout
    Status,
    /// Run the tests: all, or those named
    Test(test::Arguments),
    /// Run four suites on each version of Kubernetes, and write docs/versions.md
    Matrix(matrix::Arguments),
    /// Compare our controller with upstream, in figures
    Bench(bench::Arguments),
    /// Simulate the controller, or the agent, by seeds
    Sim(sim::Arguments),
    /// Feed well-formed inputs, changed at random, to whatever reads them
    Fuzz(fuzz::Arguments),
    /// Bring the pages up to date with the code, check their links, and build the book
    Docs(docs::Arguments),
    /// Install the tools and build the control plane that everything else needs
    Prepare(prepare::Arguments),
}

// On the current thread: children that end with their parent's thread (see `Process`) belong to the
// main thread, which lives as long as the lab.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With its causes, without the backtrace that `Debug` adds: errors name the remedy.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(arguments) => demo::run(arguments).await,
        Command::Up(arguments) => up::run(arguments).await,
        Command::Down(arguments) => down::run(arguments).await,
        Command::Node(arguments) => node::run(arguments).await,
        Command::Status => {
            status::run();
            Ok(())
        }
        Command::Test(arguments) => test::run(arguments).await,
        Command::Matrix(arguments) => matrix::run(&arguments).await,
        Command::Bench(arguments) => bench::run(arguments).await,
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Docs(arguments) => docs::run(&arguments).await,
        Command::Prepare(arguments) => prepare::all(&arguments).await,
    }
}
