//! Runs `kubectl epilogue report`: parses its flags, reads a cluster or a dump, prints the report.

mod counters;
mod ends_picture;
mod html;
mod picture;
pub(crate) mod rules;
mod text;

use std::path::PathBuf;

use self::rules::{EventLog, Input, Metrics, Since, report};
use crate::kind::Kind;
use anyhow::ensure;
use jiff::Timestamp;

use crate::colour::Paint;
use crate::doctor::{LEASE, Lease, lease};
use crate::lease::Controller;
use crate::list::each_page;
use crate::read::{self, Scope};
use crate::source;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How far back the report goes: a number of minutes, hours or days, such as 30m, 24h or 7d.
    /// Events go back one hour by default, and the report says so
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    since: Since,
    /// One namespace; default: all
    #[arg(short, long)]
    namespace: Option<String>,
    /// All namespaces, the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: the one that kubectl uses
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Report on a dump instead of a cluster: the output of `kubectl epilogue dump`, or of `kubectl
    /// get pod,job,node,namespace,lease,event -A -o yaml`; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["context", "kubeconfig"])]
    filename: Option<PathBuf>,
    /// End of the report, such as 2026-01-31T12:00:00Z; default: now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Leave out the counters of Epilogue's programs. Reading them needs the right get pods/proxy
    #[arg(long)]
    no_metrics: bool,
    /// Lease that epilogue-controller holds while it works, or none if it runs without a lease
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = lease, default_value = LEASE)]
    controller_lease: Lease,
    /// Output format; html is one file, for `> report.html`
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    Html,
}

pub(crate) async fn run(arguments: Arguments, paint: Paint) -> anyhow::Result<String> {
    let input = match &arguments.filename {
        Some(_) => dumped(&arguments)?,
        None => live(&arguments).await?,
    };
    ensure!(
        input.read.contains(&Kind::Pod) || input.read.contains(&Kind::Event),
        "found neither pods nor events that may be read; use an account that may list them, or \
         another --namespace, --context or dump"
    );
    let answer = report(&input)?;
    Ok(match arguments.output {
        Output::Text => text::text(&answer, paint),
        Output::Json => serde_json::to_string_pretty(&answer)?,
        Output::Html => html::page(&answer),
    })
}

async fn live(arguments: &Arguments) -> anyhow::Result<Input> {
    let kubeconfig = arguments.kubeconfig.clone();
    let (client, _) = source::client(kubeconfig, arguments.context.clone()).await?;
    let namespace = arguments.namespace.clone();
    let scope = Scope::Namespace { namespace: namespace.as_deref(), lease: None };
    let (mut read, objects) = read::cluster(&client, &scope).await?;
    let mut events = EventLog::default();
    let mut all_read = true;
    for (path, selector) in read::events(namespace.as_deref()) {
        let add = |page: Vec<_>| page.iter().for_each(|event| events.add(event));
        all_read &= each_page(&client, &path, &selector, add).await?;
    }
    if all_read {
        read.push(Kind::Event);
    }
    let metrics = if arguments.no_metrics {
        Metrics::none("--no-metrics")
    } else if namespace.is_some() {
        Metrics::none("one namespace was read; without -n they are read")
    } else {
        counters::read(&client, &objects).await
    };
    let controller = source::controller(&client, arguments.controller_lease.0.as_ref()).await?;
    let (since, now) = (arguments.since, arguments.at.unwrap_or_else(Timestamp::now));
    Ok(Input { read, objects, events, metrics, controller, namespace, since, now })
}

/// A kind without objects in the dump counts as not read, unless an empty list stands for it.
fn dumped(arguments: &Arguments) -> anyhow::Result<Input> {
    let path = arguments.filename.as_deref().expect("it must be asked for");
    let mut objects = source::objects(path)?;
    let read = read::kinds(&objects);
    let namespace = arguments.namespace.clone();
    if let Some(namespace) = &namespace {
        objects.retain(|object| {
            let scoped = object["kind"] == "Pod" || object["kind"] == "Job";
            let about = &object["involvedObject"]["kind"];
            let of_pod = about == "Pod" || about == "Job";
            let home = if of_pod { &object["involvedObject"] } else { &object["metadata"] };
            !scoped && !of_pod || home["namespace"] == namespace.as_str()
        });
    }
    let mut events = EventLog::default();
    for event in objects.iter().filter(|object| object["kind"] == "Event") {
        events.add(event);
    }
    objects.retain(|object| object["kind"] != "Event");
    let (since, now) = (arguments.since, arguments.at.unwrap_or_else(Timestamp::now));
    let metrics = Metrics::none("a dump has none");
    let leases = read.contains(&Kind::Lease).then_some(&*objects);
    let controller = Controller::of(arguments.controller_lease.0.as_ref(), leases)?;
    Ok(Input { read, objects, events, metrics, controller, namespace, since, now })
}
