//! Runs `kubectl epilogue leave`: parses its flags, carries out what they ask for, then lists what
//! is left.

mod actions;
mod live;
mod rules;
mod text;

use std::path::PathBuf;

use self::rules::{Facts, Inventory, inventory};
use controller_core::go_duration::GoDuration;
use epilogue_common::finding_code::FindingCode as Code;
use jiff::Timestamp;
use serde::Serialize;

use crate::doctor::{LEASE, Lease, lease};
use crate::{Answer, CANNOT_JUDGE, source};

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("action"))]
pub(crate) struct Arguments {
    /// Wait until the Jobs in progress that name this controller finish
    #[arg(long, group = "action")]
    drain: bool,
    /// Suspend these Jobs, and wait until the controller has removed their pods; they stay, and
    /// only this controller can resume them
    #[arg(long, group = "action")]
    suspend: bool,
    /// Remove the tracking finalizer from pods that no controller will count: their Job is gone, or
    /// it is finished and its status contains them
    #[arg(long, group = "action")]
    release_finalizers: bool,
    /// Maximum time for --drain and --suspend, such as 90s or 1h
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    timeout: GoDuration,
    /// Only print what --suspend and --release-finalizers would change, or let the server check it
    #[arg(long, value_enum, value_name = "WHERE", requires = "action", conflicts_with = "drain")]
    dry_run: Option<DryRun>,
    /// The controller that leaves runs with --manage-all-jobs; its lease says so, too
    #[arg(long)]
    manage_all_jobs: bool,
    /// What to list: jobs leaves out what `helm uninstall` removes, and nodes
    #[arg(long, value_enum, default_value_t = Scope::All)]
    scope: Scope,
    /// Only this namespace, and only --scope=jobs; default: all namespaces
    #[arg(short, long)]
    namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: the one that kubectl uses
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Lease that epilogue-controller holds while it works, or none if it runs without a lease
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = lease, default_value = LEASE)]
    controller_lease: Lease,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DryRun {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scope {
    All,
    Jobs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// The JSON or YAML answer.
#[derive(Debug, Serialize)]
struct Answered {
    /// What this run changed or, with `--dry-run`, would change.
    changed: Vec<String>,
    #[serde(flatten)]
    inventory: Inventory,
    not_read: Vec<Omission>,
}

/// A kind of objects that was not read.
#[derive(Debug, Serialize)]
struct Omission {
    code: Code,
    kind: &'static str,
}

impl Arguments {
    fn facts(&self) -> Facts {
        let jobs_only = self.scope == Scope::Jobs || self.namespace.is_some();
        Facts { manage_all_jobs: self.manage_all_jobs, jobs_only }
    }
}

/// Exit code 0 if nothing is left, 1 if something is, 2 if a kind could not be read.
pub(crate) async fn run(mut arguments: Arguments) -> anyhow::Result<Answer> {
    let kubeconfig = arguments.kubeconfig.clone();
    let (client, _) = source::client(kubeconfig, arguments.context.clone()).await?;
    let lease = arguments.controller_lease.0.as_ref();
    let setup = source::controller(&client, lease).await?;
    // Also of a controller that was stopped already.
    let runs_all = setup.setup().and_then(|setup| setup.manage_all_jobs) == Some(true);
    arguments.manage_all_jobs |= runs_all;
    let changed = actions::carry_out(&client, &arguments).await?;
    let live = live::read(&client, &arguments).await?;
    let facts = arguments.facts();
    let inventory = inventory(&live.objects, facts, Timestamp::now())?;
    let code = match () {
        () if !inventory.left.is_empty() => 1,
        () if !live.not_read.is_empty() => CANNOT_JUDGE,
        () => 0,
    };
    let omission = |kind| Omission { code: Code::KindNotRead, kind };
    let not_read = live.not_read.into_iter().map(omission).collect();
    let answer = Answered { changed, inventory, not_read };
    let text = match arguments.output {
        Output::Text => text::text(&answer),
        Output::Json => serde_json::to_string_pretty(&answer)?,
        Output::Yaml => serde_yaml_ng::to_string(&answer)?,
    };
    Ok(Answer { text, code })
}
