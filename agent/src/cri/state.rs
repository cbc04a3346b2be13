//! Reads the runtime's state of one pod.

use agent_core::pod::PodUid;
use agent_core::protocol::event::{RuntimeContainer, RuntimeState};
use futures::future::try_join_all;
use jiff::Timestamp;
use tokio::time::timeout;

use super::client::{Client, READ_TIME_MAX};
use super::error::CriError;
use super::wire::{CONTAINER_NAME_LABEL, Container, ContainerState, PodSandbox, PodSandboxState};

/// A pod's containers and sandboxes, as listed.
#[derive(Debug)]
pub(super) struct Listed {
    /// Oldest first.
    pub(super) containers: Vec<Container>,
    pub(super) sandboxes: Vec<PodSandbox>,
}

impl Listed {
    /// Reads the lists, within the time of one read.
    ///
    /// The containers come first. A container that appears between the two reads shows by its
    /// sandbox, which is then ready. In the other order it would not show at all.
    pub(super) async fn read(client: &Client, uid: &PodUid) -> Result<Self, CriError> {
        let lists = async {
            let mut containers = client.containers(Some(uid)).await?;
            containers.sort_by_key(|container| container.created_at);
            Ok(Self { containers, sandboxes: client.sandboxes(Some(uid)).await? })
        };
        in_time("ListContainers", lists).await
    }

    /// The containers that are not known to have exited.
    pub(super) fn alive(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.state() != ContainerState::Exited)
    }

    /// The containers that never started and cannot start any more: their sandbox is not ready.
    pub(super) fn stillborn(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| {
            container.state() == ContainerState::Created
                && !self.ready().any(|sandbox| sandbox.id == container.pod_sandbox_id)
        })
    }

    /// The sandboxes in which containers can run.
    pub(super) fn ready(&self) -> impl Iterator<Item = &PodSandbox> {
        self.sandboxes.iter().filter(|sandbox| sandbox.state() == PodSandboxState::Ready)
    }

    /// The containers that matter: all that may run, and of each name the newest that has exited.
    /// What exited before a restart says nothing about the pod's end.
    fn latest(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().enumerate().filter_map(|(at, container)| {
            let replaced = || {
                let mut later = self.containers[at + 1..].iter();
                later.any(|other| container.name() == other.name())
            };
            let counts = container.state() != ContainerState::Exited || !replaced();
            counts.then_some(container)
        })
    }
}

impl Container {
    /// The container's name in the pod's spec.
    pub fn name(&self) -> &str {
        self.labels.get(CONTAINER_NAME_LABEL).map_or("", String::as_str)
    }
}

/// The runtime's state of the pod, with exit codes.
pub(super) async fn read(client: &Client, uid: &PodUid) -> Result<RuntimeState, CriError> {
    let state = async {
        let listed = Listed::read(client, uid).await?;
        let containers = listed.latest().map(|container| with_exit(client, container));
        Ok(RuntimeState {
            containers: try_join_all(containers).await?,
            sandbox_ready: listed.ready().next().is_some(),
            sandbox_known: !listed.sandboxes.is_empty(),
        })
    };
    in_time("ContainerStatus", state).await
}

/// A container, with how it ended if it has. A container that was removed since it was listed keeps
/// its state from the list.
async fn with_exit(client: &Client, listed: &Container) -> Result<RuntimeContainer, CriError> {
    let mut container = RuntimeContainer {
        id: listed.id.clone(),
        name: listed.name().to_owned(),
        exited: listed.state() == ContainerState::Exited,
        exit_code: None,
        finished_at: None,
        reason: String::new(),
    };
    if !container.exited {
        return Ok(container);
    }
    if let Some(status) = client.container(&listed.id).await? {
        container.exited = status.state() == ContainerState::Exited;
        container.exit_code = container.exited.then_some(status.exit_code);
        container.finished_at = timestamp(status.finished_at);
        container.reason = status.reason;
    }
    Ok(container)
}

/// A time from the runtime; `None` if it is 0 or less.
pub(super) fn timestamp(nanos: i64) -> Option<Timestamp> {
    if nanos <= 0 {
        return None;
    }
    Timestamp::from_nanosecond(i128::from(nanos)).ok()
}

/// Limits several reads to the time of one, so that a slow runtime does not delay each of them.
async fn in_time<T>(
    call: &'static str,
    work: impl Future<Output = Result<T, CriError>>,
) -> Result<T, CriError> {
    match timeout(READ_TIME_MAX, work).await {
        Ok(result) => result,
        Err(_) => Err(CriError::NoAnswer { call, within: READ_TIME_MAX }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, created_at: i64, state: ContainerState, sandbox: &str) -> Container {
        Container {
            id: format!("{name}-{created_at}"),
            pod_sandbox_id: sandbox.into(),
            state: state.into(),
            created_at,
            labels: [(CONTAINER_NAME_LABEL.to_owned(), name.to_owned())].into(),
        }
    }

    fn sandbox(id: &str, state: PodSandboxState) -> PodSandbox {
        PodSandbox { id: id.into(), state: state.into(), ..PodSandbox::default() }
    }

    fn ids<'a>(containers: impl Iterator<Item = &'a Container>) -> Vec<&'a str> {
        containers.map(|container| container.id.as_str()).collect()
    }

    #[test]
    fn only_the_newest_exit_of_a_name_counts_and_all_that_may_run_do() {
        use ContainerState::{Created, Exited, Running, Unknown};
        let listed = Listed {
            containers: vec![
                container("init", 1, Exited, "s"),
                container("a", 2, Exited, "s"),
                container("b", 3, Unknown, "s"),
                container("a", 4, Exited, "s"),
                container("b", 5, Running, "s"),
                container("c", 6, Created, "s"),
            ],
            sandboxes: vec![sandbox("s", PodSandboxState::Ready)],
        };
        assert_eq!(ids(listed.latest()), ["init-1", "b-3", "a-4", "b-5", "c-6"]);
        assert_eq!(ids(listed.alive()), ["b-3", "b-5", "c-6"]);
        assert_eq!(ids(listed.stillborn()), [] as [&str; 0]);
    }

    #[test]
    fn a_created_container_is_stillborn_once_its_own_sandbox_is_down() {
        use ContainerState::{Created, Running};
        let listed = Listed {
            containers: vec![
                container("a", 1, Created, "old"),
                container("b", 2, Running, "old"),
                container("c", 3, Created, "new"),
                container("d", 4, Created, "gone"),
            ],
            sandboxes: vec![
                sandbox("old", PodSandboxState::NotReady),
                sandbox("new", PodSandboxState::Ready),
            ],
        };
        assert_eq!(ids(listed.stillborn()), ["a-1", "d-4"]);
        assert_eq!(listed.ready().count(), 1);
    }

    #[test]
    fn a_state_of_a_later_protocol_is_not_taken_as_stopped() {
        let unknown = Container { state: 77, ..Container::default() };
        assert_ne!(unknown.state(), ContainerState::Exited);
        let unknown = PodSandbox { state: 77, ..PodSandbox::default() };
        assert_eq!(unknown.state(), PodSandboxState::Ready);
    }

    #[test]
    fn no_time_of_the_runtime_is_out_of_bounds() {
        assert_eq!(timestamp(0), None);
        assert_eq!(timestamp(-1), None);
        assert_eq!(timestamp(1_000_000_000), Timestamp::from_second(1).ok());
        assert!(timestamp(i64::MAX).is_some());
    }
}
