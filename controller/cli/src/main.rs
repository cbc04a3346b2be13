//! Parses the command line of `kubectl epilogue`, runs one subcommand and sets the exit code.

mod ask;
mod colour;
mod completion;
mod doctor;
mod document;
mod dump;
mod explain;
mod failed_read;
mod gang;
mod kind;
mod lease;
mod leave;
mod lint;
mod list;
mod man;
mod read;
mod render;
mod report;
#[cfg(test)]
mod samples;
mod source;
mod waits;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Exit code of `doctor`, `lint`, `leave` and `report` if they could not judge; 1 means that the
/// first three have findings.
const CANNOT_JUDGE: u8 = 2;

/// Explains what the Epilogue controller does with a Job, finds what is stuck in a cluster, checks
/// manifests of Jobs, and lists what is left before an uninstallation.
///
/// Installed on the PATH as kubectl-epilogue, it runs as `kubectl epilogue`.
#[derive(Debug, Parser)]
#[command(name = "kubectl-epilogue", bin_name = "kubectl epilogue", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Colours in text; auto: on a terminal, unless NO_COLOR is set or TERM is dumb
    #[arg(long, global = true, value_enum, value_name = "WHEN",
          default_value_t = colour::When::Auto, display_order = 100)]
    color: colour::When,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explain what a Job waits for, what each pod counts as, and what the next sync does
    Explain(explain::Arguments),
    /// Find stuck pods, leftover finalizers and Jobs without a controller, or check one node; says
    /// why and what to do. Exits with 1 if it has findings, and with 2 if it could not judge
    Doctor(doctor::Arguments),
    /// Find mistakes in Jobs and CronJobs, in files or in a cluster: rules that never match, limits
    /// that are missing, annotations without effect. Exits with 1 if it has findings, and with 2 if
    /// it could not read
    Lint(lint::Arguments),
    /// List what a cluster still has of this project before it is uninstalled: Jobs, finalizers,
    /// annotations, objects. Changes nothing without --drain, --suspend or --release-finalizers.
    /// Exits with 0 only if nothing is left, with 1 if something is, and with 2 if it could not
    /// read
    Leave(leave::Arguments),
    /// Report what disruptions cost, and what Epilogue did or would have done: terminal phases that
    /// never came, failures without their cause, Jobs that failed by it. Exits with 2 if it could
    /// not read
    Report(report::Arguments),
    /// Write a redacted dump, which `doctor -f`, `explain -f` and `report -f` read
    ///
    /// It keeps the fields that these read, and no others: no environment, no command, no image, no
    /// volume, no message of a pod. Names stay, and so do the messages of conditions of Jobs and
    /// nodes and of agents' events about nodes: read the dump before you share it.
    Dump(dump::Arguments),
    /// Print a completion script for a shell, or the program by which kubectl completes the plugin
    Completion(completion::Arguments),
    /// Write man pages, one for each subcommand
    Man(man::Arguments),
    /// Complete words for kubectl
    #[command(name = "__complete", hide = true)]
    Complete(completion::Words),
}

/// The text to print, and the exit code.
#[derive(Debug)]
struct Answer {
    text: String,
    code: u8,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { command, color } = Arguments::parse();
    let paint = match &command {
        Command::Explain(_) | Command::Doctor(_) | Command::Report(_) => color.paint(),
        _ => colour::Paint::Plain,
    };
    let judges = matches!(
        command,
        Command::Doctor(_) | Command::Lint(_) | Command::Leave(_) | Command::Report(_)
    );
    let code_of_errors = if judges { CANNOT_JUDGE } else { 1 };
    let printed = run(command, paint).await.and_then(|Answer { text, code }| {
        paint.print(text.trim_end())?;
        Ok(code)
    });
    match printed {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {}", printable(&format!("{error:#}")));
            ExitCode::from(code_of_errors)
        }
    }
}

/// A text for a terminal: names of files and messages of servers may hold escape sequences.
fn printable(text: &str) -> String {
    let escaped = |each: char| each.is_control() && each != '\n';
    text.chars().fold(String::with_capacity(text.len()), |mut printable, each| {
        if escaped(each) {
            printable.extend(each.escape_default());
        } else {
            printable.push(each);
        }
        printable
    })
}

async fn run(command: Command, paint: colour::Paint) -> anyhow::Result<Answer> {
    let text = match command {
        Command::Doctor(arguments) => return doctor::run(arguments, paint).await,
        Command::Lint(arguments) => return lint::run(arguments).await,
        Command::Leave(arguments) => return leave::run(arguments).await,
        Command::Report(arguments) => report::run(arguments, paint).await?,
        Command::Explain(arguments) => explain::run(arguments, paint).await?,
        Command::Dump(arguments) => dump::run(&arguments).await?,
        Command::Completion(arguments) => completion::script(&arguments, Arguments::command()),
        Command::Man(arguments) => man::write(&arguments, Arguments::command())?,
        Command::Complete(words) => completion::complete(&words, Arguments::command()),
    };
    Ok(Answer { text, code: 0 })
}
