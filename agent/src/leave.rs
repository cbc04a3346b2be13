//! Implements `epilogue-agent leave`: removes what an agent has left on its host and on its node's
//! object, and prints what it did. It can run twice. It changes nothing during a shutdown or while
//! an agent runs.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use agent_core::check::facts::Inhibitor;
use agent_core::shutdown::logind_conf::OUR_DROP_IN;
use anyhow::Context as _;
use epilogue_common::names::node::{READINESS, SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::names::node_condition;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::client;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{LeaveArgs, LeaveConfig};
use crate::bus::{Bus, CallError};
use crate::calls::{MERGE, STRATEGIC, is_our_taint, send};
use crate::host::Host;
use crate::run::block_on;
use crate::sink::journal::FILE_NAME;
use crate::source::logind::{Logind, NAME, UNIT};
use crate::source::systemd::Systemd;

/// Maximum number of attempts after conflicts: others write to the node's object too.
const CONFLICTS_MAX: usize = 5;

/// The result of one part: what was done, or why not.
type Done = Result<String, String>;

/// Removes everything; exits with 1 if a part fails.
pub fn run(args: &LeaveArgs, config: LeaveConfig) -> anyhow::Result<ExitCode> {
    block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let code = leave(args, config).await;
        if args.wait && code == ExitCode::SUCCESS {
            println!("waits for SIGTERM");
            terminate.recv().await;
        }
        Ok(code)
    })
}

async fn leave(args: &LeaveArgs, config: LeaveConfig) -> ExitCode {
    let host = Host::new(args.host.root.clone());
    let address = host.bus_address();
    let bus = Bus::connect(&address.into()).await.ok();
    if let Err(why) = objection(bus.as_ref()).await {
        eprintln!("epilogue-agent: {why}; nothing was changed");
        return ExitCode::FAILURE;
    }
    let mut failed = false;
    let mut print = |part: &str, done: Done| match done {
        Ok(text) => println!("{part:<8} {text}"),
        Err(text) => {
            failed = true;
            println!("{part:<8} failed: {text}");
        }
    };
    print("logind", drop_in(&host, bus.as_ref()).await);
    print("journal", journal(&config.state_dir));
    match config.api {
        None => {
            print("node", Ok("left as it is: give --kubeconfig to have it restored".to_owned()));
        }
        Some((options, node)) => {
            let restored = match client::connect(&options).await {
                Ok(client) => restore_node(&client, &node).await.map_err(|it| it.to_string()),
                Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
            };
            print("node", restored);
        }
    }
    if let Some(bus) = bus {
        bus.close().await;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Why `leave` must change nothing now, if so. Without a bus, or without logind on it, the node has
/// no announced shutdown. A logind that does not answer may be shutting down.
async fn objection(bus: Option<&Bus>) -> Result<(), String> {
    let Some(bus) = bus else { return Ok(()) };
    let unknown = |what: &'static str| {
        move |CallError { message, .. }| {
            format!("logind does not say {what} ({message}): try again when it answers")
        }
    };
    let goes_down = "whether the node is shutting down";
    if bus.owner_of(NAME).await.map_err(unknown("whether it runs"))?.is_none() {
        return Ok(());
    }
    let logind = Logind::on(bus).await.map_err(unknown(goes_down))?;
    if logind.preparing().await.map_err(unknown(goes_down))? {
        return Err("the node is shutting down".to_owned());
    }
    let locks = logind.inhibitors().await.map_err(unknown("whether an agent holds a lock"))?;
    if locks.iter().any(Inhibitor::is_agents) {
        return Err("an agent runs on this node: stop it first".to_owned());
    }
    Ok(())
}

async fn drop_in(host: &Host, bus: Option<&Bus>) -> Done {
    if !remove(&host.path(OUR_DROP_IN))? {
        return Ok(format!("there is no {OUR_DROP_IN}"));
    }
    let by_hand = format!("run `systemctl kill -s HUP {UNIT}`");
    let Some(bus) = bus else {
        return Err(format!("removed {OUR_DROP_IN}, but the bus is unreachable: {by_hand}"));
    };
    match Systemd::on(bus).hang_up(UNIT).await {
        Ok(()) => Ok(format!("removed {OUR_DROP_IN}, and had logind read its files again")),
        Err(error) => Err(format!("removed {OUR_DROP_IN}, but {}: {by_hand}", error.message)),
    }
}

fn journal(state_dir: &Path) -> Done {
    let path = state_dir.join(FILE_NAME);
    let removed = remove(&path)?;
    // In a pod the directory is a mount, and stays on the host; so does one with files of others.
    let _ = std::fs::remove_dir(state_dir);
    Ok(format!("{} {}", if removed { "removed" } else { "there is no" }, path.display()))
}

/// Removes a file; whether it existed.
fn remove(path: &Path) -> Result<bool, String> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("cannot remove {}: {error}", path.display())),
    }
}

/// Removes the annotation, taint and conditions from the node's object.
async fn restore_node(client: &Client, node: &str) -> Outcome<String> {
    let path = format!("/api/v1/nodes/{node}");
    for _ in 0..CONFLICTS_MAX {
        let found = match send(client, Method::GET, &path, None).await {
            Ok(found) => found,
            Err(failure) if failure.kind == FailureKind::NotFound => {
                return Ok(format!("there is no node {node}"));
            }
            Err(failure) => return Err(failure),
        };
        match restore(client, &path, &found).await {
            Err(failure) if failure.kind == FailureKind::Conflict => {}
            Ok(done) if done.is_empty() => return Ok(format!("{node} has nothing of the agent's")),
            Ok(done) => return Ok(format!("removed from {node}: {}", done.join(", "))),
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::new(FailureKind::Conflict, "the node's object changes all the time; try again"))
}

fn is_ours(condition: &Value) -> bool {
    let text = |name: &str| condition[name].as_str().unwrap_or_default();
    node_condition::is_ours(text("type"), text("message"))
}

/// Makes one attempt on the object as it was read; returns what it removed.
async fn restore(client: &Client, path: &str, node: &Value) -> Outcome<Vec<String>> {
    let mut done = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (taints, others): (Vec<_>, Vec<_>) =
        list(&node["spec"]["taints"]).into_iter().partition(is_our_taint);
    let mut body = json!({"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}});
    for name in [STATE, READINESS] {
        if !node["metadata"]["annotations"][name].is_null() {
            body["metadata"]["annotations"][name] = Value::Null;
            done.push(format!("annotation {name}"));
        }
    }
    if !taints.is_empty() {
        body["spec"]["taints"] = others.into();
        done.push(format!("taint {SHUTTING_DOWN_TAINT}"));
    }
    if !done.is_empty() {
        send(client, Method::PATCH, path, Some((MERGE, body))).await?;
    }
    let conditions = list(&node["status"]["conditions"]).into_iter();
    let kinds: Vec<Value> = conditions.filter(is_ours).map(|it| it["type"].clone()).collect();
    if !kinds.is_empty() {
        let removed = kinds.iter().map(|kind| json!({"$patch": "delete", "type": kind}));
        let body = json!({"status": {"conditions": removed.collect::<Vec<_>>()}});
        send(client, Method::PATCH, &format!("{path}/status"), Some((STRATEGIC, body))).await?;
        done.extend(kinds.iter().filter_map(Value::as_str).map(|kind| format!("condition {kind}")));
    }
    Ok(done)
}
