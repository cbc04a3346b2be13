//! Runs `kubectl epilogue dump`: reads a cluster, and writes the part that `doctor`, `explain` and
//! `report` read.

pub(crate) mod rules;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use self::rules::{kept_fields, redact};
use crate::kind::Kind;
use anyhow::Context as _;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::doctor::Lease;
use crate::read::{self, Scope};
use crate::source;

/// The columns of the help's list of fields.
const WIDTH: usize = 96;

#[derive(Debug, clap::Args)]
#[command(after_long_help = fields())]
pub(crate) struct Arguments {
    /// Namespace; default: that of the kubeconfig's context
    #[arg(short, long)]
    namespace: Option<String>,
    /// All namespaces; `doctor NODE` needs such a dump
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: the one that kubectl uses
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Redact this dump instead of a cluster: the output of `kubectl get
    /// pod,job,node,namespace,lease,event -A -o yaml`; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all =
          ["context", "kubeconfig", "namespace", "all_namespaces"])]
    filename: Option<PathBuf>,
    /// Lease that epilogue-controller holds while it works, or none if it runs without a lease
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = crate::doctor::lease,
          default_value = crate::doctor::LEASE)]
    controller_lease: Lease,
    /// File for the dump; default: standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<Value>,
}

/// What the help says of each kind.
fn fields() -> String {
    let mut text = "Kept fields, apart from apiVersion and kind. Pods, selectors and templates of \
                    Jobs also keep the\nlabels that a selector of a Job names. Events are those \
                    that doctor and report read; only\nthose of agents about nodes keep their \
                    message. Of the oldest event, the time stays.\n"
        .to_owned();
    for kind in Kind::ALL {
        let mut line = format!("\n{}:", kind.name());
        for field in kept_fields(kind) {
            if line.len() + field.len() > WIDTH {
                text += &line;
                "\n ".clone_into(&mut line);
            }
            write!(line, " {field}").expect("a String takes text");
        }
        text = text + &line + "\n";
    }
    text
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<String> {
    let dump = match &arguments.filename {
        Some(path) => yaml(redact(&source::objects(path)?))?,
        None => live(arguments).await?,
    };
    let Some(path) = &arguments.output else { return Ok(dump) };
    write(path, &dump)?;
    Ok(format!("wrote {}", path.display()))
}

/// Reads a cluster. A kind without objects becomes an empty list, so that it counts as read.
async fn live(arguments: &Arguments) -> anyhow::Result<String> {
    let kubeconfig = arguments.kubeconfig.clone();
    let (client, home) = source::client(kubeconfig, arguments.context.clone()).await?;
    let namespace = arguments.namespace.clone().unwrap_or(home);
    let namespace = (!arguments.all_namespaces).then_some(namespace.as_str());
    let scope = Scope::Dump { namespace, lease: arguments.controller_lease.0.as_ref() };
    let (read, mut objects) = read::cluster(&client, &scope).await?;
    anyhow::ensure!(
        read.contains(&Kind::Pod) || read.contains(&Kind::Job),
        "neither pods nor Jobs may be read; use an account that may list them, or another \
         --namespace or --context"
    );
    objects.retain(|object| read.iter().any(|kind| object["kind"] == kind.name()));
    let mut items = redact(&objects);
    for kind in &read {
        if items.iter().all(|item| item["kind"] != kind.name()) {
            let version = kind.api_version();
            items.push(json!({"apiVersion": version, "kind": kind.list_name(), "items": []}));
        }
    }
    let unread = Kind::ALL.into_iter().filter(|kind| !read.contains(kind));
    let unread: Vec<&str> = unread.map(Kind::plural).collect();
    if !unread.is_empty() {
        eprintln!("warning: not in the dump, because they may not be read: {}", unread.join(", "));
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    Ok(format!("# kubectl epilogue doctor -A -f FILE --at={now}\n{}", yaml(items)?))
}

fn yaml(items: Vec<Value>) -> anyhow::Result<String> {
    Ok(serde_yaml_ng::to_string(&List { api_version: "v1", kind: "List", items })?)
}

fn write(path: &Path, dump: &str) -> anyhow::Result<()> {
    std::fs::write(path, dump).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_help_lists_every_field_that_is_kept() {
        let mut command = crate::Arguments::command();
        let dump = command.find_subcommand_mut("dump").expect("must be there");
        let help = dump.render_long_help().to_string();
        let words: Vec<&str> = help.split_whitespace().collect();
        for kind in Kind::ALL {
            assert!(words.contains(&format!("{}:", kind.name()).as_str()), "{help}");
            for field in kept_fields(kind) {
                assert!(words.contains(field), "{field}");
            }
        }
    }
}
