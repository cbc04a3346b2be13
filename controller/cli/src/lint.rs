//! Runs `kubectl epilogue lint`: parses its flags, reads manifests or a cluster, prints the
//! findings.

mod rules;

use std::path::{Path, PathBuf};

use self::rules::{Facts, Finding, lint};
use anyhow::Context as _;
use epilogue_common::finding_code::{FindingCode as Code, docs_line};
use serde::Serialize;
use serde_json::Value;

use crate::Answer;
use crate::doctor::{LEASE, Lease, lease};
use crate::list::list;
use crate::source;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// File with manifests as YAML documents or as a JSON list, or a directory with such files; -
    /// for standard input. May be given several times
    #[arg(short, long, value_name = "FILE", conflicts_with_all =
          ["namespace", "all_namespaces", "context", "kubeconfig"])]
    filename: Vec<PathBuf>,
    /// Namespace to check in the cluster; default: that of the kubeconfig's context
    #[arg(short, long)]
    namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: the one that kubectl uses
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Check as a controller with --manage-all-jobs treats the Jobs; in a cluster its lease says
    /// so, too
    #[arg(long)]
    manage_all_jobs: bool,
    /// Lease that epilogue-controller holds while it works, or none if it runs without a lease
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = lease, default_value = LEASE)]
    controller_lease: Lease,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// The JSON or YAML answer.
#[derive(Debug, Serialize)]
struct Judgement {
    judged: usize,
    findings: Vec<Finding>,
    not_judged: Vec<Omission>,
}

/// A kind of objects that was not read.
#[derive(Debug, Serialize)]
struct Omission {
    code: Code,
    text: String,
}

/// Exit code 0 if there are no findings, 1 otherwise.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Answer> {
    let mut facts = Facts { manage_all_jobs: arguments.manage_all_jobs };
    let (objects, not_judged) = if arguments.filename.is_empty() {
        let (objects, not_judged, runs_all) = cluster(&arguments).await?;
        facts.manage_all_jobs |= runs_all;
        (objects, not_judged)
    } else {
        (files(&arguments.filename)?, Vec::new())
    };
    let report = lint(&objects, facts);
    let code = u8::from(!report.findings.is_empty());
    let answer = Judgement { judged: report.judged, findings: report.findings, not_judged };
    let text = match arguments.output {
        Output::Text => text(&answer),
        Output::Json => serde_json::to_string_pretty(&answer)?,
        Output::Yaml => serde_yaml_ng::to_string(&answer)?,
    };
    Ok(Answer { text, code })
}

fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let stdin = paths.iter().filter(|path| *path == Path::new("-")).count();
    anyhow::ensure!(stdin < 2, "standard input can be read once; give --filename=- once");
    let mut objects = Vec::new();
    for path in paths {
        for file in manifests(path)? {
            objects.extend(source::objects(&file)?);
        }
    }
    Ok(objects)
}

/// The file at a path, or the manifests in the directory there, as `kubectl apply` takes them.
fn manifests(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let read = || format!("cannot read the directory {}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(read)? {
        let file = entry.with_context(read)?.path();
        let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default();
        if file.is_file() && ["yaml", "yml", "json"].contains(&extension) {
            files.push(file);
        }
    }
    files.sort();
    anyhow::ensure!(
        !files.is_empty(),
        "{} holds no manifest; expected files named *.yaml, *.yml or *.json",
        path.display()
    );
    Ok(files)
}

/// The objects, what was not read, and whether the controller runs all Jobs among them, as far as
/// its lease says.
async fn cluster(arguments: &Arguments) -> anyhow::Result<(Vec<Value>, Vec<Omission>, bool)> {
    let (kubeconfig, context) = (arguments.kubeconfig.clone(), arguments.context.clone());
    let (client, home) = source::client(kubeconfig, context).await?;
    let namespace = arguments.namespace.as_ref().unwrap_or(&home);
    let of =
        if arguments.all_namespaces { String::new() } else { format!("namespaces/{namespace}/") };
    let jobs = list(&client, "Job", &format!("/apis/batch/v1/{of}jobs"), "").await?;
    let mut objects = jobs.context(
        "the Jobs may not be read; use an account that may list them, or another namespace",
    )?;
    let mut not_judged = Vec::new();
    let others = [
        ("CronJob", format!("/apis/batch/v1/{of}cronjobs"), Code::CronJobsNotRead, "CronJobs"),
        (
            "ResourceQuota",
            format!("/api/v1/{of}resourcequotas"),
            Code::QuotasNotRead,
            "ResourceQuotas",
        ),
    ];
    for (kind, path, code, plural) in others {
        match list(&client, kind, &path, "").await? {
            Some(found) => objects.extend(found),
            None => not_judged.push(Omission { code, text: format!("{plural} were not read") }),
        }
    }
    let controller = source::controller(&client, arguments.controller_lease.0.as_ref()).await?;
    let runs_all = controller.setup().is_some_and(|setup| {
        if arguments.all_namespaces {
            setup.namespaces.is_empty() && setup.manage_all_jobs == Some(true)
        } else {
            setup.runs_unmanaged(namespace) == Some(true)
        }
    });
    Ok((objects, not_judged, runs_all))
}

/// The table of findings, then what could not be judged.
fn text(answer: &Judgement) -> String {
    let found = &answer.findings;
    let mut lines = table(found);
    if found.is_empty() {
        lines.push(format!("nothing found in {} Jobs and CronJobs", answer.judged));
    }
    if !answer.not_judged.is_empty() {
        lines.push(String::new());
        let omitted = answer.not_judged.iter();
        lines.extend(omitted.map(|it| format!("not judged: {}  [{}]", it.text, it.code)));
    }
    if !found.is_empty() || !answer.not_judged.is_empty() {
        lines.push(String::new());
        lines.push(docs_line());
    }
    lines.join("\n")
}

fn table(found: &[Finding]) -> Vec<String> {
    const TITLES: [&str; 3] = ["SUBJECT", "SEVERITY", "PROBLEM"];
    if found.is_empty() {
        return Vec::new();
    }
    let widest = found.iter().map(|each| each.subject.len()).max().unwrap_or(0);
    let first = widest.max(TITLES[0].len());
    let second = TITLES[1].len();
    let mut lines = vec![format!("{:first$}  {:second$}  {}", TITLES[0], TITLES[1], TITLES[2])];
    for Finding { severity, code, subject, field, problem, remedy } in found {
        let severity = severity.as_str();
        lines.push(format!("{subject:first$}  {severity:second$}  {field}: {problem}  [{code}]"));
        lines.push(format!("{:first$}  {:second$}  -> {remedy}", "", ""));
    }
    lines
}
