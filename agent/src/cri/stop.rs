//! Stops a pod through the runtime when there is no kubelet to stop it: the regular containers
//! together, then the sidecars, then the sandbox. ([AP25])
//!
//! The runtime's answers to the stops decide nothing: at the end the agent reads again what runs.

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::action::Reach;
use agent_core::protocol::event::RuntimeState;
use futures::future::join_all;
use tokio::time::Instant;

use super::client::{Client, READ_TIME_MAX};
use super::error::CriError;
use super::state::{self, Listed};
use super::wire::Container;

/// Time of a stop in addition to its grace and its waits for answers: for the reads before and
/// after.
const READING: Duration = Duration::from_secs(3);
/// Grace of sidecars when the others have used up the pod's.
const SIDECAR_GRACE_MIN: u32 = 1;

/// The time limits of one stop.
#[derive(Clone, Copy, Debug)]
struct Time {
    /// When the grace is over.
    grace_end: Instant,
    /// When the stopping is over, and only the last read remains.
    end: Instant,
    /// How much longer than the grace the agent waits for an answer.
    stop_timeout: Duration,
}

impl Time {
    /// Limits that begin now. The end includes the stop timeouts of the containers and of the
    /// sandbox after them.
    fn from_now(grace_seconds: u32, stop_timeout: Duration) -> Self {
        let grace_end = Instant::now() + Duration::from_secs(grace_seconds.into());
        let end = grace_end + stop_timeout + stop_timeout + READING - READ_TIME_MAX;
        Self { grace_end, end, stop_timeout }
    }

    /// `wanted`, or the time that remains if that is less.
    fn at_most(self, wanted: Duration) -> Duration {
        wanted.min(self.end.saturating_duration_since(Instant::now()))
    }

    /// Whole seconds of the grace that remain.
    fn grace_left(self) -> u32 {
        let left = self.grace_end.saturating_duration_since(Instant::now()).as_secs();
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}

/// The fields of `Action::StopPod`.
#[derive(Clone, Copy, Debug)]
pub struct Stop<'a> {
    /// The time between SIGTERM and SIGKILL.
    pub grace_seconds: u32,
    /// The names of the containers that stop last.
    pub sidecars: &'a [String],
    /// How much of the pod to stop.
    pub reach: Reach,
    /// How much longer than the grace the agent waits for each answer.
    pub stop_timeout: Duration,
}

/// Stops the pod, and returns what is left of it.
pub(super) async fn stop(
    client: &Client,
    uid: &PodUid,
    wanted: Stop<'_>,
) -> Result<RuntimeState, CriError> {
    let Stop { grace_seconds, sidecars, reach, stop_timeout } = wanted;
    let time = Time::from_now(grace_seconds, stop_timeout);
    let listed = Listed::read(client, Some(uid)).await?;
    let stopped = match stop_alive(client, &listed, grace_seconds, sidecars, time).await {
        Ok(()) if reach == Reach::Pod => stop_rest(client, uid, &listed, time).await,
        stopped => stopped,
    };
    let state = state::read(client, uid).await;
    match (state, stopped) {
        (Ok(state), _) => Ok(state),
        // The first failure is closer to the cause.
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(error),
    }
}

async fn stop_alive(
    client: &Client,
    listed: &Listed,
    grace_seconds: u32,
    sidecars: &[String],
    time: Time,
) -> Result<(), CriError> {
    let is_sidecar = |container: &&Container| {
        sidecars.iter().any(|sidecar| sidecar.as_str() == container.name())
    };
    let (last, first): (Vec<_>, Vec<_>) = listed.alive().partition(is_sidecar);
    stop_containers(client, &first, grace_seconds, time).await?;
    let grace_left = time.grace_left().max(SIDECAR_GRACE_MIN).min(grace_seconds);
    stop_containers(client, &last, grace_left, time).await
}

async fn stop_rest(
    client: &Client,
    uid: &PodUid,
    listed: &Listed,
    time: Time,
) -> Result<(), CriError> {
    stop_sandboxes(client, listed, time).await?;
    if listed.alive().next().is_none() {
        return Ok(());
    }
    remove_never_started(client, uid, time).await
}

/// Stops all of them at once. Fails if the runtime answers for none: it hangs, and further calls
/// would hang too.
async fn stop_containers(
    client: &Client,
    containers: &[&Container],
    grace_seconds: u32,
    time: Time,
) -> Result<(), CriError> {
    let within = Duration::from_secs(grace_seconds.into()) + time.stop_timeout;
    let stops = containers
        .iter()
        .map(|container| client.stop_container(&container.id, grace_seconds, time.at_most(within)));
    all_hang(join_all(stops).await)
}

/// Without a sandbox nothing of the pod can start again. The call may fail later, when it takes
/// down the network; reading the state shows that.
async fn stop_sandboxes(client: &Client, listed: &Listed, time: Time) -> Result<(), CriError> {
    let stops = listed
        .ready()
        .map(|sandbox| client.stop_sandbox(&sandbox.id, time.at_most(time.stop_timeout)));
    all_hang(join_all(stops).await)
}

/// Removes the containers that were created and never started. containerd does not stop a container
/// that does not run, and a kubelet that comes back would show it as one that is yet to start. It
/// has no exit code to lose.
async fn remove_never_started(client: &Client, uid: &PodUid, time: Time) -> Result<(), CriError> {
    let listed = Listed::read(client, Some(uid)).await?;
    let removals = listed
        .never_started()
        .map(|container| client.remove_container(&container.id, time.at_most(time.stop_timeout)));
    all_hang(join_all(removals).await)
}

fn all_hang(results: Vec<Result<(), CriError>>) -> Result<(), CriError> {
    let hang = |result: &Result<(), CriError>| result.as_ref().is_err_and(CriError::is_no_answer);
    if results.iter().all(hang) { results.into_iter().next().unwrap_or(Ok(())) } else { Ok(()) }
}
