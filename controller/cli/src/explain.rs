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
use crate::source::{self, Picture};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Job, as job/NAME, job NAME or NAME; optional with --filename
    #[arg(value_name = "job/NAME", num_args = 1..=2)]
    job: Vec<JobName>,
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

/// A Job's name, with or without `job/`.
#[derive(Clone, Debug)]
struct JobName(String);

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            None if !text.is_empty() => Ok(Self(text.to_owned())),
            Some((kind, name)) if KINDS.contains(&kind) && !name.is_empty() => {
                Ok(Self(name.to_owned()))
            }
            _ => Err("expected a Job, such as job/backup".to_owned()),
        }
    }
}

pub(crate) async fn run(arguments: Arguments, paint: Paint) -> anyhow::Result<String> {
    let name = match &arguments.job[..] {
        [] => None,
        [JobName(name)] => Some(name.as_str()),
        [JobName(kind), JobName(name)] if KINDS.contains(&kind.as_str()) => Some(name.as_str()),
        [JobName(first), ..] => {
            anyhow::bail!("expected one Job, such as job/{first}; found several names")
        }
    };
    let namespace = arguments.namespace.as_deref();
    let lease = arguments.controller_lease.0.as_ref();
    let picture = match (&arguments.filename, name) {
        (Some(path), name) => source::dump(path, namespace, name, lease)?,
        (None, Some(name)) => {
            let kubeconfig = arguments.kubeconfig.clone();
            let context = arguments.context.clone();
            source::cluster(kubeconfig, context, namespace, name, lease).await?
        }
        (None, None) => anyhow::bail!("name a Job, as job/NAME, or give a dump by --filename"),
    };
    answer(&picture, &arguments, paint)
}

fn answer(picture: &Picture, arguments: &Arguments, paint: Paint) -> anyhow::Result<String> {
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
    };
    let explanation = rules::explain(&input, &known);
    Ok(match arguments.output {
        Output::Text => render::text(&explanation, paint),
        Output::Json => serde_json::to_string_pretty(&explanation)?,
        Output::Yaml => serde_yaml_ng::to_string(&explanation)?,
    })
}
