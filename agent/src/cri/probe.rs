//! Checks for `check` whether the agent could rely on the runtime now.

use std::collections::BTreeSet;

use agent_core::check::runtime::{RuntimeAnswers, RuntimeFacts};
use futures::future::join_all;
use jiff::Timestamp;

use super::client::Client;
use super::endpoint::FLAG;
use super::error::CriError;
use super::wire::{Container, ContainerState, POD_UID_LABEL, RuntimeCondition};
use super::{Runtime, state};

/// How many of the newest exited containers the check reads.
const ENDS_MAX: usize = 8;

impl Runtime {
    /// What the runtime reports of itself.
    pub async fn probe(&self) -> RuntimeFacts {
        let client = match self.client().await {
            Ok(client) => client,
            Err(error) => return unreached(&error),
        };
        let socket = self.socket().map_or_else(String::new, |path| path.display().to_string());
        match ask(&client).await {
            Ok(answers) => RuntimeFacts::Answers(Box::new(RuntimeAnswers { socket, ..answers })),
            Err(error) if error.is_unimplemented() => RuntimeFacts::Absent {
                found: format!("the listener at {socket} does not speak CRI v1"),
                remedy: format!("name the kubelet's containerRuntimeEndpoint by {FLAG}"),
            },
            Err(error) => RuntimeFacts::Mute { socket, error: error.to_string() },
        }
    }
}

fn unreached(error: &CriError) -> RuntimeFacts {
    match error {
        CriError::NoSocket { .. } | CriError::Ambiguous { .. } | CriError::NotThere { .. } => {
            let text = error.to_string();
            let (found, remedy) = text.split_once("; ").unwrap_or((&text, ""));
            let without = "without it no pod can be stopped while the kubelet is down";
            RuntimeFacts::Absent { found: format!("{found}; {without}"), remedy: remedy.to_owned() }
        }
        _ => RuntimeFacts::Mute { socket: String::new(), error: error.to_string() },
    }
}

async fn ask(client: &Client) -> Result<RuntimeAnswers, CriError> {
    let version = client.version().await?;
    let conditions = client.status().await?;
    let sandboxes = client.sandboxes(None).await?;
    let containers = client.containers(None).await?;
    let made = sandboxes.iter().map(|sandbox| sandbox.created_at);
    let made = made.chain(containers.iter().map(|container| container.created_at)).max();
    let pods: BTreeSet<_> =
        sandboxes.iter().filter_map(|sandbox| sandbox.labels.get(POD_UID_LABEL)).collect();
    let ended = last_end(client, containers).await?;
    let failing = |condition: &&RuntimeCondition| !condition.status;
    Ok(RuntimeAnswers {
        socket: String::new(),
        version: format!("{} {}", version.runtime_name, version.runtime_version),
        failing: conditions.iter().filter(failing).map(words).collect(),
        not_ready: conditions.iter().filter(failing).any(|failed| failed.kind == "RuntimeReady"),
        latest: made.and_then(state::timestamp).max(ended),
        pods: pods.len(),
    })
}

fn words(condition: &RuntimeCondition) -> String {
    let RuntimeCondition { kind, reason, message, .. } = condition;
    format!("{kind} ({reason}: {message})")
}

/// When the last of the newest containers ended.
async fn last_end(
    client: &Client,
    mut containers: Vec<Container>,
) -> Result<Option<Timestamp>, CriError> {
    containers.retain(|container| container.state() == ContainerState::Exited);
    containers.sort_by_key(|container| std::cmp::Reverse(container.created_at));
    containers.truncate(ENDS_MAX);
    let statuses = containers.iter().map(|container| client.container(&container.id));
    let mut last = None;
    for status in join_all(statuses).await {
        last = last.max(status?.and_then(|status| state::timestamp(status.finished_at)));
    }
    Ok(last)
}
