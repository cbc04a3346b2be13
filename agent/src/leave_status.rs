//! Implements `epilogue-agent leave-status`: waits until `leave` is done on each node, and prints
//! the nodes where it is not. Changes nothing.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent_core::leave_status::{LeaveStatus, Verdict};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::client;
use http::Method;
use kube::Client;
use serde_json::Value;

use crate::args::LeaveStatusArgs;
use crate::calls::send;
use crate::run::block_on;

/// Time between two samples: `leave` takes about a second.
const PERIOD: Duration = Duration::from_secs(2);
/// Pods per page; a reply with all pods of a large cluster is too large.
const PAGE: usize = 500;

/// Waits; exits with 1 if a node that lives is not done in time.
pub fn run(args: &LeaveStatusArgs) -> anyhow::Result<ExitCode> {
    block_on(wait(args))
}

async fn wait(args: &LeaveStatusArgs) -> anyhow::Result<ExitCode> {
    let client = client::connect(&args.client()).await?;
    let started = Instant::now();
    let mut done = None;
    loop {
        let is_over = started.elapsed() >= args.timeout.duration();
        match sample(&client, args).await {
            Ok(status) => {
                if done.replace(status.done) != Some(status.done) {
                    println!("leave is done on {} of {} nodes", status.done, status.expected);
                }
                match status.verdict(is_over) {
                    Verdict::Wait => {}
                    verdict => return Ok(conclusion(&status, &verdict)),
                }
            }
            Err(failure) if is_over => anyhow::bail!("cannot read the DaemonSets: {failure}"),
            Err(failure) => eprintln!("epilogue-agent: {failure}; tries again"),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Prints what is left; returns the exit code.
fn conclusion(status: &LeaveStatus, verdict: &Verdict) -> ExitCode {
    for name in &status.not_ready {
        println!("not done: daemonset/{name}: it does not exist, or runs no `leave`");
    }
    for (node, why) in &status.not_done {
        println!("not done: node {node}: {why}");
    }
    for node in &status.not_started {
        println!(
            "not reached: node {node}: no kubelet starts the pod; run `epilogue-agent leave` there"
        );
    }
    if *verdict == Verdict::Failed {
        println!("to uninstall nevertheless: helm uninstall --no-hooks");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Reads the DaemonSets and their pods once.
async fn sample(client: &Client, args: &LeaveStatusArgs) -> Outcome<LeaveStatus> {
    let namespace = &args.namespace;
    let mut sets = Vec::new();
    for name in &args.daemon_set {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        let set = match send(client, Method::GET, &path, None).await {
            Ok(set) => Some(set),
            Err(Failure { kind: FailureKind::NotFound, .. }) => None,
            Err(failure) => return Err(failure),
        };
        sets.push((name.clone(), set));
    }
    let (mut pods, mut next) = (Vec::new(), String::new());
    loop {
        let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let path = format!("/api/v1/namespaces/{namespace}/pods?limit={PAGE}{more}");
        let mut page = send(client, Method::GET, &path, None).await?;
        if let Value::Array(items) = page["items"].take() {
            pods.extend(items);
        }
        match page["metadata"]["continue"].take() {
            Value::String(token) if !token.is_empty() => next = token,
            _ => return Ok(LeaveStatus::of(&sets, &pods)),
        }
    }
}
