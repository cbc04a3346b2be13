//! Runs `kubectl epilogue explain`: parses its flags, reads a Job and its pods, prints an
//! explanation.

pub(crate) mod rules;

use std::path::PathBuf;
use std::str::FromStr;

use controller_core::job::{Memory, Settings, SyncInput, Versions};
use controller_core::job_pods::JobPods;
use jiff::{SignedDuration, Timestamp};

use rules::Known;

use crate::colour::Paint;
use crate::doctor::{LEASE, Lease, lease};
use crate::render;
use crate::source::{self, Picture, Wanted};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Job, as job/NAME, job NAME or NAME; or one pod of a Job, as pod/NAME or pod NAME; optional
    /// with --filename
    #[arg(value_name = "job/NAME", num_args = 1..=2)]
    names: Vec<Name>,
    /// Namespace; default: that of the kubeconfig's context
    #[arg(short, long)]
    namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: the one that kubectl uses
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Explain from a dump instead of a cluster: the output of `kubectl epilogue dump`, or of
    /// `kubectl get job,pod -o yaml`; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["context", "kubeconfig"])]
    filename: Option<PathBuf>,
    /// Time to explain for, such as 2026-01-31T12:00:00Z; default: now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Explain as a controller with --manage-all-jobs treats the Job; its lease says so, too
    #[arg(long)]
    manage_all_jobs: bool,
    /// Lease that epilogue-controller holds while it works, or none if it runs without a lease
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = lease, default_value = LEASE)]
    controller_lease: Lease,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// What the API calls a Job.
const KINDS: [&str; 4] = ["job", "jobs", "job.batch", "jobs.batch"];

/// What it calls a pod.
const POD_KINDS: [&str; 3] = ["pod", "pods", "po"];

/// A word that names a Job or its kind, or with the kind before it a Job or a pod.
#[derive(Clone, Debug)]
enum Name {
    Word(String),
    Of(Wanted),
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            None if !text.is_empty() => Ok(Self::Word(text.to_owned())),
            Some((kind, name)) if KINDS.contains(&kind) && !name.is_empty() => {
                Ok(Self::Of(Wanted::Job(name.to_owned())))
            }
            Some((kind, name)) if POD_KINDS.contains(&kind) && !name.is_empty() => {
                Ok(Self::Of(Wanted::Pod(name.to_owned())))
            }
            _ => Err("expected a Job, such as job/backup, or a pod of one".to_owned()),
        }
    }
}

/// What the words name; `None` without any.
fn wanted(names: &[Name]) -> anyhow::Result<Option<Wanted>> {
    Ok(match names {
        [] => None,
        [Name::Of(wanted)] => Some(wanted.clone()),
        [Name::Word(name)] => Some(Wanted::Job(name.clone())),
        [Name::Word(kind), Name::Word(name)] if KINDS.contains(&kind.as_str()) => {
            Some(Wanted::Job(name.clone()))
        }
        [Name::Word(kind), Name::Word(name)] if POD_KINDS.contains(&kind.as_str()) => {
            Some(Wanted::Pod(name.clone()))
        }
        [Name::Word(first) | Name::Of(Wanted::Job(first) | Wanted::Pod(first)), ..] => {
            anyhow::bail!("expected one Job, such as job/{first}; found several names")
        }
    })
}

pub(crate) async fn run(arguments: Arguments, paint: Paint) -> anyhow::Result<String> {
    let wanted = wanted(&arguments.names)?;
    let namespace = arguments.namespace.as_deref();
    let lease = arguments.controller_lease.0.as_ref();
    let picture = match (&arguments.filename, &wanted) {
        (Some(path), wanted) => source::dump(path, namespace, wanted.as_ref(), lease)?,
        (None, Some(wanted)) => {
            let kubeconfig = arguments.kubeconfig.clone();
            let context = arguments.context.clone();
            source::cluster(kubeconfig, context, namespace, wanted, lease).await?
        }
        (None, None) => anyhow::bail!("name a Job, as job/NAME, or give a dump by --filename"),
    };
    let only = wanted.as_ref().and_then(Wanted::pod);
    answer(&picture, only, &arguments, paint)
}

fn answer(
    picture: &Picture,
    only: Option<&str>,
    arguments: &Arguments,
    paint: Paint,
) -> anyhow::Result<String> {
    let setup = picture.controller.setup();
    let namespace = &picture.job.key.namespace;
    let runs_all = setup.and_then(|setup| setup.runs_unmanaged(namespace)) == Some(true);
    let manage_all_jobs = arguments.manage_all_jobs || runs_all;
    let input = SyncInput {
        job: &picture.job,
        pods: &JobPods::of(&picture.job, &picture.pods),
        memory: &Memory::default(),
        groups: picture.groups.as_ref(),
        seen: Versions::default(),
        now: arguments.at.unwrap_or_else(Timestamp::now),
        settings: &Settings { manage_all_jobs, ..Settings::default() },
        // What the next write shows, whenever it comes.
        counts_max: SignedDuration::ZERO,
    };
    let objects = picture.pod_objects.iter();
    let known = Known {
        job: &picture.job_object,
        pods: objects.filter_map(|pod| Some((pod["metadata"]["uid"].as_str()?, pod))).collect(),
        events: picture.events.as_deref(),
        controller: &picture.controller,
        only,
    };
    let explanation = rules::explain(&input, &known);
    Ok(match arguments.output {
        Output::Text => render::text(&explanation, paint),
        Output::Json => serde_json::to_string_pretty(&explanation)?,
        Output::Yaml => serde_yaml_ng::to_string(&explanation)?,
    })
}
