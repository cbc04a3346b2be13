//! Carries out `--drain`, `--suspend` and `--release-finalizers`, and reports progress on standard
//! error.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::leave::rules::{JobRef, Jobs, Release, inventory, suspend_patch};
use anyhow::{Context as _, ensure};
use controller_core::view::{Job, WireJob};
use epilogue_runtime::api_error::foreign;
use http::{Request, header};
use jiff::Timestamp;
use serde_json::Value;

use crate::ask::ask;
use crate::source::SourceError;

use super::{Arguments, DryRun, live};

/// Time between two lists of the Jobs.
const PERIOD: Duration = Duration::from_secs(2);
/// A report names at most this many Jobs.
const NAMED_MAX: usize = 5;
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Does what the flags ask for; returns what it changed.
pub(super) async fn carry_out(
    client: &kube::Client,
    arguments: &Arguments,
) -> anyhow::Result<Vec<String>> {
    match arguments {
        Arguments { drain: true, .. } => drain(client, arguments).await.map(|()| Vec::new()),
        Arguments { suspend: true, .. } => suspend(client, arguments).await,
        Arguments { release_finalizers: true, .. } => release(client, arguments).await,
        _ => Ok(Vec::new()),
    }
}

async fn jobs(client: &kube::Client, arguments: &Arguments) -> anyhow::Result<Jobs> {
    let facts = arguments.facts();
    Ok(Jobs::read(&live::jobs(client, arguments).await?, facts)?)
}

async fn drain(client: &kube::Client, arguments: &Arguments) -> anyhow::Result<()> {
    wait(client, arguments, "in progress", Jobs::in_progress).await
}

/// Waits until no Job is selected. Reports each change of their number, and Jobs that are new.
async fn wait(
    client: &kube::Client,
    arguments: &Arguments,
    what: &str,
    select: impl Fn(&Jobs) -> Vec<JobRef>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut known: Option<BTreeSet<JobRef>> = None;
    let mut count = usize::MAX;
    loop {
        let found: BTreeSet<JobRef> = select(&jobs(client, arguments).await?).into_iter().collect();
        if let Some(known) = &mut known {
            for new in found.difference(known) {
                eprintln!("new: {}", new.subject());
            }
            known.extend(found.iter().cloned());
        }
        known.get_or_insert_with(|| found.clone());
        if found.len() != count {
            count = found.len();
            eprintln!("{count} Jobs {what}{}", named(&found));
        }
        if found.is_empty() || started.elapsed() >= arguments.timeout.0 {
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn named(jobs: &BTreeSet<JobRef>) -> String {
    let names: Vec<String> = jobs.iter().take(NAMED_MAX).map(JobRef::subject).collect();
    match jobs.len() {
        0 => String::new(),
        count if count > NAMED_MAX => {
            format!(": {} and {} more", names.join(", "), count - NAMED_MAX)
        }
        _ => format!(": {}", names.join(", ")),
    }
}

async fn suspend(client: &kube::Client, arguments: &Arguments) -> anyhow::Result<Vec<String>> {
    let mut changed = Vec::new();
    for job in jobs(client, arguments).await?.to_suspend() {
        let path = format!("/apis/batch/v1/namespaces/{}/jobs/{}", job.namespace, job.name);
        let subject = job.subject();
        if patch(client, arguments, &path, MERGE, &suspend_patch(&job)).await? {
            changed.push(subject);
        } else {
            eprintln!("{subject} is gone");
        }
    }
    if arguments.dry_run.is_none() {
        wait(client, arguments, "with pods to remove", Jobs::not_yet_stopped).await?;
    }
    Ok(changed)
}

async fn release(client: &kube::Client, arguments: &Arguments) -> anyhow::Result<Vec<String>> {
    let live = live::read(client, arguments).await?;
    let unread = ["Pod", "Job"].into_iter().find(|kind| live.not_read.contains(kind));
    ensure!(unread.is_none(), "{} objects may not be read", unread.unwrap_or_default());
    let facts = arguments.facts();
    let mut changed = Vec::new();
    for found in inventory(&live.objects, facts, Timestamp::now())?.releases {
        let Release { namespace, name, .. } = &found;
        let subject = format!("pod/{namespace}/{name}");
        // The list may be old: what counts is the Job as it is now.
        if !found.holds(job(client, &found).await?.as_ref()) {
            eprintln!("{subject} keeps its finalizer: its Job has changed");
            continue;
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        if patch(client, arguments, &path, STRATEGIC, &found.patch).await? {
            changed.push(subject);
        }
    }
    Ok(changed)
}

/// The Job of a pod as it is now; `None` if no Job has its name.
async fn job(client: &kube::Client, of: &Release) -> anyhow::Result<Option<Job>> {
    let path = format!("/apis/batch/v1/namespaces/{}/jobs/{}", of.namespace, of.job);
    let request = Request::get(&path).body(Vec::new())?;
    match ask(client, request).await {
        Ok(object) => Ok(Some(WireJob::parse(object).and_then(WireJob::view)?)),
        // A proxy's 404 does not say that the Job is gone.
        Err(error) if foreign(&error).is_some() => Err(SourceError::api(&path, error).into()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(SourceError::api(&path, error).into()),
    }
}

/// Sends a patch; whether the object still exists. The patch names its UID: another object of the
/// same name is a conflict, and counts as gone.
async fn patch(
    client: &kube::Client,
    arguments: &Arguments,
    path: &str,
    kind: &str,
    body: &Value,
) -> anyhow::Result<bool> {
    let query = match arguments.dry_run {
        Some(DryRun::Client) => return Ok(true),
        Some(DryRun::Server) => "?dryRun=All",
        None => "",
    };
    let request = Request::patch(format!("{path}{query}")).header(header::CONTENT_TYPE, kind);
    match ask(client, request.body(body.to_string().into_bytes())?).await {
        Ok(_) => Ok(true),
        Err(error) if foreign(&error).is_some() => {
            Err(SourceError::api(path, error)).context("cannot patch")
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot patch {path}")),
    }
}
