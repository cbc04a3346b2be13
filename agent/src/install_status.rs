//! Implements `epilogue-agent install-status`: waits until an installation works, and prints what
//! does not. Changes nothing.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent_core::install_status::{Finding, Renewals, Seen};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::client;
use http::Method;
use kube::Client;
use serde_json::Value;

use crate::args::InstallStatusArgs;
use crate::calls::send;
use crate::run::block_on;

/// Time between two samples: a leader renews its lease about as often.
const PERIOD: Duration = Duration::from_secs(2);
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// Waits; exits with 1 if a part does not work in time.
pub fn run(args: &InstallStatusArgs) -> anyhow::Result<ExitCode> {
    block_on(wait(args))
}

async fn wait(args: &InstallStatusArgs) -> anyhow::Result<ExitCode> {
    let client = client::connect(&args.client()).await?;
    let started = Instant::now();
    let mut renewals = Renewals::default();
    loop {
        let is_over = started.elapsed() >= args.timeout.duration();
        match sample(&client, args).await {
            Ok(seen) => {
                let findings = seen.findings(&mut renewals);
                if is_over || findings.iter().all(|finding| finding.remedy.is_none()) {
                    return Ok(conclusion(&findings));
                }
            }
            Err(failure) if is_over => anyhow::bail!("cannot read the installation: {failure}"),
            Err(failure) => eprintln!("epilogue-agent: {failure}; tries again"),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Prints each finding with what to do; returns the exit code.
fn conclusion(findings: &[Finding]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for Finding { text, remedy } in findings {
        let Some(remedy) = remedy else {
            println!("works: {text}");
            continue;
        };
        code = ExitCode::FAILURE;
        println!("does not work: {text}\n  to do: {remedy}");
    }
    code
}

/// Reads all parts once.
async fn sample(client: &Client, args: &InstallStatusArgs) -> Outcome<Seen> {
    let mut seen = Seen::default();
    for name in &args.policy {
        let policy = get(client, &format!("{POLICIES}/{name}")).await?;
        let binding = get(client, &format!("{BINDINGS}/{name}")).await?;
        seen.policies.push((name.clone(), policy, binding));
    }
    for place in &args.daemon_set {
        let (namespace, name) = (&place.namespace, &place.name);
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        seen.daemon_sets.push((place.clone(), get(client, &path).await?));
    }
    if let Some(place) = &args.controller {
        let (namespace, name) = (&place.namespace, &place.name);
        let deployment = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
        let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        let (deployment, lease) = (get(client, &deployment).await?, get(client, &lease).await?);
        seen.controller = Some((place.clone(), deployment, lease));
    }
    Ok(seen)
}

/// An object, or `None` if there is no such object.
async fn get(client: &Client, path: &str) -> Outcome<Option<Value>> {
    match send(client, Method::GET, path, None).await {
        Ok(object) => Ok(Some(object)),
        Err(Failure { kind: FailureKind::NotFound, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}
