//! Reads the runtime's state: of one pod with its exit codes, or which of all pods may run.

use std::collections::BTreeMap;

use agent_core::pod::PodUid;
use agent_core::protocol::action::PodRef;
use agent_core::protocol::event::{RuntimeContainer, RuntimePod, RuntimeState};
use futures::future::try_join_all;
use jiff::Timestamp;

use super::client::Client;
use super::error::CriError;
use super::wire::{
    CONFIG_SOURCE_ANNOTATION, CONTAINER_NAME_LABEL, Container, ContainerState, POD_NAME_LABEL,
    POD_NAMESPACE_LABEL, POD_UID_LABEL, PodSandbox, PodSandboxState,
};

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
    pub(super) async fn read(client: &Client, of: Option<&PodUid>) -> Result<Self, CriError> {
        let client = client.one_read();
        let mut containers = client.containers(of).await?;
        containers.sort_by_key(|container| container.created_at);
        Ok(Self { containers, sandboxes: client.sandboxes(of).await? })
    }

    /// The containers that are not known to have exited.
    pub(super) fn alive(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.state() != ContainerState::Exited)
    }

    /// The containers that never started and cannot start any more: their sandbox is not ready.
    pub(super) fn never_started(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| self.never_starts(container))
    }

    fn never_starts(&self, container: &Container) -> bool {
        container.state() == ContainerState::Created
            && !self.ready().any(|sandbox| sandbox.id == container.pod_sandbox_id)
    }

    /// Whether nothing of the container runs, nor can: it has exited, or was never started.
    fn is_over(&self, container: &Container) -> bool {
        container.state() == ContainerState::Exited || self.never_starts(container)
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
            let counts = !self.is_over(container) || !replaced();
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
    let client = client.one_read();
    let listed = Listed::read(&client, Some(uid)).await?;
    let containers = listed.latest();
    let containers = containers.map(|each| with_exit(&client, each, listed.is_over(each)));
    Ok(RuntimeState {
        containers: try_join_all(containers).await?,
        sandbox_ready: listed.ready().next().is_some(),
        sandbox_known: !listed.sandboxes.is_empty(),
    })
}

/// All pods that the runtime knows. What no kubelet has labelled is not a pod's.
pub(super) async fn read_all(client: &Client) -> Result<Vec<RuntimePod>, CriError> {
    Ok(grouped(&Listed::read(client, None).await?))
}

fn grouped(listed: &Listed) -> Vec<RuntimePod> {
    let mut pods = BTreeMap::new();
    let sandboxes = listed.sandboxes.iter().map(|sandbox| {
        let source = sandbox.annotations.get(CONFIG_SOURCE_ANNOTATION);
        let is_static = source.is_some_and(|source| source != "api");
        (&sandbox.labels, is_static, sandbox.state() == PodSandboxState::Ready)
    });
    let containers = listed
        .containers
        .iter()
        .map(|container| (&container.labels, false, !listed.is_over(container)));
    for (labels, is_static, may_run) in sandboxes.chain(containers) {
        let Some(uid) = labels.get(POD_UID_LABEL) else { continue };
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let pod = pods.entry(uid).or_insert_with(|| RuntimePod {
            pod: PodRef {
                namespace: label(POD_NAMESPACE_LABEL),
                name: label(POD_NAME_LABEL),
                uid: PodUid(uid.clone()),
            },
            is_static: false,
            may_run: false,
        });
        pod.is_static |= is_static;
        pod.may_run |= may_run;
    }
    pods.into_values().collect()
}

/// A container, with how it ended if it has. A container that was removed since it was listed keeps
/// its state from the list. One that never started has no exit code.
async fn with_exit(
    client: &Client,
    listed: &Container,
    is_over: bool,
) -> Result<RuntimeContainer, CriError> {
    let mut container = RuntimeContainer {
        id: listed.id.clone(),
        name: listed.name().to_owned(),
        exited: is_over,
        exit_code: None,
        finished_at: None,
        reason: String::new(),
    };
    if listed.state() != ContainerState::Exited {
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
        assert_eq!(ids(listed.never_started()), [] as [&str; 0]);
    }

    #[test]
    fn all_pods_are_grouped_by_their_uid_and_what_may_run_shows() {
        use ContainerState::{Created, Exited};
        let of = |uid: &str| {
            let label = |key: &str, of: &str| (key.to_owned(), of.to_owned());
            let (name, space) = (label(POD_NAME_LABEL, uid), label(POD_NAMESPACE_LABEL, "space"));
            BTreeMap::from([label(POD_UID_LABEL, uid), name, space])
        };
        let place = |uid: &str, state, source: &str| PodSandbox {
            labels: of(uid),
            annotations: [(CONFIG_SOURCE_ANNOTATION.to_owned(), source.to_owned())].into(),
            ..sandbox(uid, state)
        };
        let container =
            |uid: &str, state| Container { labels: of(uid), ..container("c", 1, state, uid) };
        let listed = Listed {
            containers: vec![
                container("alive", Created),
                container("created", Created),
                container("ended", Exited),
                Container { labels: BTreeMap::new(), ..container("foreign", Created) },
            ],
            sandboxes: vec![
                place("alive", PodSandboxState::Ready, "api"),
                place("created", PodSandboxState::NotReady, "api"),
                place("ended", PodSandboxState::NotReady, "api"),
                place("file", PodSandboxState::Ready, "file"),
                PodSandbox { labels: of("old"), ..sandbox("old", PodSandboxState::Ready) },
            ],
        };
        let found = grouped(&listed);
        let found = found.iter().map(|pod| (pod.pod.name.as_str(), pod.is_static, pod.may_run));
        let expected = [
            ("alive", false, true),
            // Power went between its creation and its start.
            ("created", false, false),
            ("ended", false, false),
            ("file", true, true),
            ("old", false, true),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_created_container_never_starts_once_its_own_sandbox_is_down() {
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
        assert_eq!(ids(listed.never_started()), ["a-1", "d-4"]);
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
