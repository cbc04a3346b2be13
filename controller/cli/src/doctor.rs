//! Runs `kubectl epilogue doctor`: parses its flags, judges a cluster or a dump, prints the answer.

pub(crate) mod rules;
mod text;

use std::path::PathBuf;

use self::rules::{Finding, GangState, NodeVerdict, Omission, Scene};
use self::rules::{findings, gang_state, node_report, omissions};
use epilogue_common::finding_code::FindingCode;
use jiff::Timestamp;
use serde::Serialize;

use crate::Answer;
use crate::colour::Paint;
use crate::kind::Kind;
use crate::lease::LeaseName;
use crate::read::{self, Scope};
use crate::source;

/// The lease that the manifests give to epilogue-controller.
pub(crate) const LEASE: &str = "epilogue-system/epilogue-controller";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Node to check for readiness to shut down, as NAME or node/NAME; without it, doctor checks
    /// the namespace for what is stuck
    #[arg(value_name = "NODE", value_parser = node,
          conflicts_with_all = ["namespace", "all_namespaces"])]
    node: Option<String>,
    /// Namespace; default: that of the kubeconfig's context
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
    /// Check a dump instead of a cluster: the output of `kubectl epilogue dump`, or of `kubectl get
    /// pod,job,node,namespace,lease,event -A -o yaml`; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["context", "kubeconfig"])]
    filename: Option<PathBuf>,
    /// Time to check for, such as 2026-01-31T12:00:00Z; default: now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Lease that epilogue-controller holds while it works, or none if it runs without a lease
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = lease,
          default_value = LEASE)]
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

/// The value of `--controller-lease`: a lease, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct Lease(pub(crate) Option<LeaseName>);

/// The JSON or YAML answer for a namespace.
#[derive(Debug, Serialize)]
struct Judgement {
    findings: Vec<Finding>,
    not_judged: Vec<Omission>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gang_scheduling: Option<GangState>,
}

/// Reads the name of a node, with or without `node/`.
fn node(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once('/').unwrap_or(("node", text));
    let is_node = matches!(kind, "no" | "node" | "nodes");
    let name = Some(name).filter(|name| is_node && !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| "expected a node, such as node/worker-1".to_owned())
}

/// Reads the value of `--controller-lease`.
pub(crate) fn lease(text: &str) -> Result<Lease, String> {
    if text == "none" {
        return Ok(Lease(None));
    }
    text.parse().map(|name| Lease(Some(name)))
}

/// Exit code 0 if there are no findings, 1 otherwise.
pub(crate) async fn run(arguments: Arguments, paint: Paint) -> anyhow::Result<Answer> {
    match &arguments.node {
        Some(node) => of_node(&arguments, node, paint).await,
        None => of_cluster(&arguments, paint).await,
    }
}

async fn of_cluster(arguments: &Arguments, paint: Paint) -> anyhow::Result<Answer> {
    let lease = arguments.controller_lease.0.as_ref();
    let (scene, now) = if arguments.filename.is_some() {
        dumped(arguments)?
    } else {
        let (client, home) = connect(arguments).await?;
        let namespace = arguments.namespace.clone().unwrap_or(home);
        let namespace = (!arguments.all_namespaces).then_some(namespace);
        let scope = Scope::Namespace { namespace: namespace.as_deref(), lease };
        live(&client, &scope, arguments.at).await?
    };
    anyhow::ensure!(
        scene.has_read(Kind::Pod) || scene.has_read(Kind::Job),
        "found neither pods nor Jobs that may be read; use an account that may list them, or \
         another namespace or dump  [{}]",
        FindingCode::NothingToJudge
    );
    let found = findings(&scene, lease, now);
    let code = u8::from(!found.is_empty());
    let answer = Judgement {
        findings: found,
        not_judged: omissions(&scene),
        gang_scheduling: gang_state(&scene, lease),
    };
    let text = match arguments.output {
        Output::Text => text::findings(&answer, now, paint),
        Output::Json => serde_json::to_string_pretty(&answer)?,
        Output::Yaml => serde_yaml_ng::to_string(&answer)?,
    };
    Ok(Answer { text, code })
}

async fn of_node(arguments: &Arguments, node: &str, paint: Paint) -> anyhow::Result<Answer> {
    let (scene, now) = if arguments.filename.is_some() {
        dumped(arguments)?
    } else {
        let (client, _) = connect(arguments).await?;
        live(&client, &Scope::Node(node), arguments.at).await?
    };
    let Some(report) = node_report(&scene, node, now) else {
        let code = FindingCode::NodeNotFound;
        anyhow::bail!("node {node} not found; kubectl get nodes lists them  [{code}]");
    };
    let fails = report.verdict == NodeVerdict::Fail || !report.findings.is_empty();
    let text = match arguments.output {
        Output::Text => text::node(&report, now, paint),
        Output::Json => serde_json::to_string_pretty(&report)?,
        Output::Yaml => serde_yaml_ng::to_string(&report)?,
    };
    Ok(Answer { text, code: u8::from(fails) })
}

async fn connect(arguments: &Arguments) -> Result<(kube::Client, String), source::SourceError> {
    source::client(arguments.kubeconfig.clone(), arguments.context.clone()).await
}

async fn live(
    client: &kube::Client,
    scope: &Scope<'_>,
    at: Option<Timestamp>,
) -> anyhow::Result<(Scene, Timestamp)> {
    let (read, objects) = read::cluster(client, scope).await?;
    if let Scope::Namespace { namespace: Some(name), .. } = scope
        && read.contains(&Kind::Namespace)
        && !objects.iter().any(|it| it["kind"] == "Namespace" && it["metadata"]["name"] == *name)
    {
        let code = FindingCode::NamespaceNotFound;
        anyhow::bail!("namespace {name} not found; kubectl get namespaces lists them  [{code}]");
    }
    let now = at.unwrap_or_else(Timestamp::now);
    Ok((Scene::new(read, objects, now)?, now))
}

/// A kind without objects in the dump counts as not read, unless an empty list stands for it.
fn dumped(arguments: &Arguments) -> anyhow::Result<(Scene, Timestamp)> {
    let path = arguments.filename.as_deref().expect("it must be asked for");
    let mut objects = source::objects(path)?;
    let read = read::kinds(&objects);
    if let Some(namespace) = &arguments.namespace {
        let of_namespace = |object: &serde_json::Value| {
            let scoped = object["kind"] == "Pod" || object["kind"] == "Job";
            !scoped || object["metadata"]["namespace"] == namespace.as_str()
        };
        objects.retain(of_namespace);
    }
    let now = arguments.at.unwrap_or_else(Timestamp::now);
    Ok((Scene::new(read, objects, now)?, now))
}
