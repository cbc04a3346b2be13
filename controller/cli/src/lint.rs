//! Runs `kubectl epilogue lint`: parses its flags, reads manifests or a cluster, prints the
//! findings.

mod files;
mod rules;

use std::collections::BTreeSet;
use std::path::PathBuf;

use self::rules::{Facts, Finding, Report, lint};
use anyhow::Context as _;
use epilogue_common::finding_code::{FindingCode as Code, docs_line};
use serde::Serialize;
use serde_json::Value;

use crate::doctor::{LEASE, Lease, lease};
use crate::list::list;
use crate::source;
use crate::{Answer, CANNOT_JUDGE, printable};

/// At most so many hints, errors and kinds are printed.
const NOTES_MAX: usize = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// File with manifests as YAML documents or JSON objects, or a directory with such files; - for
    /// standard input. May be given several times
    #[arg(short, long, value_name = "FILE", conflicts_with_all =
          ["namespace", "all_namespaces", "context", "kubeconfig"])]
    filename: Vec<PathBuf>,
    /// More files, for -f *.yaml of a shell
    #[arg(value_name = "FILE", conflicts_with_all =
          ["namespace", "all_namespaces", "context", "kubeconfig"])]
    files: Vec<PathBuf>,
    /// Read the subdirectories of directories, too. Links to directories are not followed
    #[arg(short = 'R', long, conflicts_with_all =
          ["namespace", "all_namespaces", "context", "kubeconfig"])]
    recursive: bool,
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

/// Exit code 0 if there are no findings, 1 otherwise; 2 if something could not be read.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Answer> {
    let mut facts = Facts { manage_all_jobs: arguments.manage_all_jobs };
    if !arguments.filename.is_empty() || !arguments.files.is_empty() {
        return of_files(&arguments, facts);
    }
    anyhow::ensure!(!arguments.recursive, "-R reads directories; name one by -f");
    let (objects, not_judged, runs_all) = cluster(&arguments).await?;
    facts.manage_all_jobs |= runs_all;
    answer(lint(&objects, facts), not_judged, &arguments, false, None)
}

/// Prints the judgement: with the file of each finding, and with the kinds that are not judged.
fn answer(
    report: Report,
    not_judged: Vec<Omission>,
    arguments: &Arguments,
    with_files: bool,
    others: Option<&BTreeSet<String>>,
) -> anyhow::Result<Answer> {
    let code = u8::from(!report.findings.is_empty());
    let answer = Judgement { judged: report.judged, findings: report.findings, not_judged };
    let text = match arguments.output {
        Output::Text => text(&answer, with_files, others),
        Output::Json => serde_json::to_string_pretty(&answer)?,
        Output::Yaml => serde_yaml_ng::to_string(&answer)?,
    };
    Ok(Answer { text, code })
}

/// Judges files. What could not be read, and what a user may want to know, goes to standard error;
/// exit code 2 if a file could not be read.
fn of_files(arguments: &Arguments, facts: Facts) -> anyhow::Result<Answer> {
    let paths: Vec<PathBuf> = arguments.filename.iter().chain(&arguments.files).cloned().collect();
    let files = files::read(&paths, arguments.recursive)?;
    let show = |kind: &str, text: &str| eprintln!("{kind}: {}", printable(text));
    files.hints.iter().take(NOTES_MAX).for_each(|text| show("hint", text));
    let mut errors = files.errors.iter().take(NOTES_MAX);
    if let Some(first) = errors.next() {
        errors.clone().for_each(|text| show("error", text));
        if let Some(more) = files.errors.len().checked_sub(NOTES_MAX).filter(|more| *more > 0) {
            show("error", &format!("{more} more files could not be read"));
        }
        anyhow::ensure!(!files.objects.is_empty(), "{first}");
        show("error", first);
    }
    let mut report = lint(&files.objects, facts);
    for finding in &mut report.findings {
        if let Some(place) = files.places.get(finding.object) {
            finding.file = Some(place.file.clone());
            finding.line = place.line;
        }
    }
    let others = files.objects.iter().filter(|_| report.judged == 0).map(kind).collect();
    let mut answer = answer(report, Vec::new(), arguments, files.are_several(), Some(&others))?;
    if !files.errors.is_empty() {
        answer.code = CANNOT_JUDGE;
    }
    Ok(answer)
}

/// The kind of an object that lint does not check, as it may be printed.
fn kind(object: &Value) -> String {
    let printed = |text: &str| {
        let text = text.chars().filter(char::is_ascii_graphic);
        text.take(63).collect::<String>()
    };
    let version = object["apiVersion"].as_str().map(printed).unwrap_or_default();
    match object["kind"].as_str().map(printed) {
        Some(kind) if kind == "Job" || kind == "CronJob" => format!("{kind} of {version}"),
        Some(kind) => kind,
        None => "objects without a kind".to_owned(),
    }
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
fn text(answer: &Judgement, with_files: bool, others: Option<&BTreeSet<String>>) -> String {
    let found = &answer.findings;
    let mut lines = table(found, with_files);
    if found.is_empty() {
        let others = match others.filter(|_| answer.judged == 0) {
            None => String::new(),
            Some(others) if others.is_empty() => "; there are no objects".to_owned(),
            Some(others) => {
                let names: Vec<&str> = others.iter().take(NOTES_MAX).map(String::as_str).collect();
                format!("; lint does not check what is there: {}", names.join(", "))
            }
        };
        lines.push(format!("nothing found in {} Jobs and CronJobs{others}", answer.judged));
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

fn table(found: &[Finding], with_files: bool) -> Vec<String> {
    const TITLES: [&str; 3] = ["SUBJECT", "SEVERITY", "PROBLEM"];
    if found.is_empty() {
        return Vec::new();
    }
    let widest = found.iter().map(|each| each.subject.len()).max().unwrap_or(0);
    let first = widest.max(TITLES[0].len());
    let second = TITLES[1].len();
    let mut lines = vec![format!("{:first$}  {:second$}  {}", TITLES[0], TITLES[1], TITLES[2])];
    for Finding { severity, code, subject, field, problem, remedy, file, line, .. } in found {
        let severity = severity.as_str();
        let place = match (file.as_deref().filter(|_| with_files), line) {
            (Some(file), Some(line)) => printable(&format!("  ({file}:{line})")),
            (Some(file), None) => printable(&format!("  ({file})")),
            (None, _) => String::new(),
        };
        let words = format!("{field}: {problem}  [{code}]{place}");
        lines.push(format!("{subject:first$}  {severity:second$}  {words}"));
        lines.push(format!("{:first$}  {:second$}  -> {remedy}", "", ""));
    }
    lines
}
