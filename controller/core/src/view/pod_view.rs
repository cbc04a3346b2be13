//! Reads the view of a pod from what the API sends.

use std::collections::BTreeMap;
use std::sync::Arc;

use epilogue_common::names::disruption_reason::DELETION_BY_POD_GC;
use epilogue_common::names::node::{ENDS_AT, TERMINATED_AT};
use epilogue_common::names::pod_condition::{DISRUPTION_TARGET, READY};
use epilogue_common::names::{
    COMPLETION_INDEX, GANG_ATTEMPT, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT,
    TRACKING_FINALIZER, pod_condition,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::Version;
use super::gc_facts::{GcFacts, Rare, Said, Target, WholeSecond};
use super::interner::{Interner, intern};
use super::pod::{
    Condition, Container, ContainerKind, Deletion, EndedBy, FailureCounts, Phase, Pod,
    ReadyCondition, Terminated,
};
use super::wire::{
    WireCondition, WireContainerSpec, WireContainerStatus, WirePod, WirePodSpec, WirePodStatus,
    WireTerminated,
};

/// The action of a container's rule that restarts all containers of its pod.
const RESTART_ALL: &str = "RestartAllContainers";
/// The condition of a pod that has a node.
const SCHEDULED: &str = "PodScheduled";
/// The annotation on the API's copy of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

impl WirePod {
    /// Succeeded or Failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The earliest start of any container. A view has it of pods with a `DisruptionTarget` only.
    pub fn first_start(&self) -> Option<Timestamp> {
        first_start(&self.status)
    }

    /// The view of this pod.
    pub fn view(self, interner: &mut Interner) -> Pod {
        let phase = Phase::parse(self.status.phase.as_deref().unwrap_or_default());
        let terminal = matches!(phase, Phase::Succeeded | Phase::Failed);
        let gc = GcFacts::read(&self, terminal, interner);
        let metadata = self.metadata;
        let annotations = metadata.annotations.unwrap_or_default();
        let mut labels = metadata.labels.unwrap_or_default();
        let index_label = labels.remove(COMPLETION_INDEX).map(String::into_boxed_str);
        let owner = interner.owner(metadata.owner_references.as_deref());
        let group = self.spec.scheduling_group.and_then(|group| group.pod_group_name);
        let group = group.map(|name| interner.text(&name));
        let shown_running_since = shown_running_since(&self.status, &annotations);
        let conditions = self.status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|each| each.kind == READY).map(|each| ReadyCondition {
            is_true: each.status == "True",
            is_false: each.status == "False",
            since: each.last_transition_time.as_ref().map(|time| time.0),
        });
        let containers = containers(
            self.status.container_statuses.unwrap_or_default(),
            self.status.init_container_statuses.unwrap_or_default(),
            &self.spec.init_containers,
            interner,
        );
        let count = |name: &str| {
            annotations.get(name).and_then(|text| parse_number(text)).unwrap_or_default()
        };
        Pod {
            uid: metadata.uid.unwrap_or_default().into(),
            version: Version::parse(metadata.resource_version.as_deref().unwrap_or_default()),
            namespace: interner.text(metadata.namespace.as_deref().unwrap_or_default()),
            name: metadata.name.unwrap_or_default().into(),
            labels: intern(&mut interner.labels, labels.into()),
            index_label,
            owner,
            group,
            created: metadata.creation_timestamp.map(|time| time.0),
            deletion: metadata.deletion_timestamp.map(|time| Deletion {
                at: time.0,
                grace_seconds: metadata.deletion_grace_period_seconds.unwrap_or(0),
            }),
            tracked: metadata.finalizers.iter().flatten().any(|each| each == TRACKING_FINALIZER),
            node: self
                .spec
                .node_name
                .filter(|name| !name.is_empty())
                .map(|name| interner.text(&name)),
            phase,
            index: annotations.get(COMPLETION_INDEX).and_then(|text| parse_number(text)),
            failures: FailureCounts {
                counted: count(INDEX_FAILURE_COUNT),
                ignored: count(INDEX_IGNORED_FAILURE_COUNT),
            },
            attempt: count(GANG_ATTEMPT),
            conditions: shared_conditions(conditions, interner),
            ready,
            containers,
            shown_running_since,
            gc,
        }
    }
}

/// Since when a pod is Failed while its status shows a running container. `None` if a writer states
/// that no container runs, or if the status does not show since when.
fn shown_running_since(
    status: &WirePodStatus,
    annotations: &BTreeMap<String, String>,
) -> Option<Timestamp> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let runs = |each: &WireContainerStatus| {
        each.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let is_shown = status.phase.as_deref() == Some("Failed")
        && lists.into_iter().flatten().flatten().any(runs);
    if !is_shown || annotations.contains_key(TERMINATED_AT) {
        return None;
    }
    let mut since = None;
    for each in status.conditions.iter().flatten() {
        let holds = each.status == "True";
        let by_gc = each.reason.as_deref() == Some(DELETION_BY_POD_GC);
        match each.kind.as_str() {
            pod_condition::ENDED if holds => return None,
            DISRUPTION_TARGET if holds && by_gc => return None,
            DISRUPTION_TARGET if !holds => {}
            DISRUPTION_TARGET | READY => {
                since = since.max(each.last_transition_time.as_ref().map(|time| time.0));
            }
            _ => {}
        }
    }
    since
}

/// The number in an annotation; indexes and counts are non-negative 32-bit integers. ([I1], [I8])
fn parse_number(text: &str) -> Option<u32> {
    text.parse::<i32>().ok().and_then(|index| u32::try_from(index).ok())
}

fn shared_conditions(conditions: Vec<WireCondition>, interner: &mut Interner) -> Arc<[Condition]> {
    let slim: Arc<[Condition]> = conditions
        .into_iter()
        .map(|each| Condition { kind: each.kind.into(), status: each.status.into() })
        .collect();
    if let Some(shared) = interner.conditions.get(&slim) {
        return Arc::clone(shared);
    }
    interner.conditions.insert(Arc::clone(&slim));
    slim
}

fn containers(
    regular: Vec<WireContainerStatus>,
    init: Vec<WireContainerStatus>,
    init_specs: &[WireContainerSpec],
    interner: &mut Interner,
) -> Box<[Container]> {
    let is_sidecar = |name: &str| {
        init_specs
            .iter()
            .any(|spec| spec.name == name && spec.restart_policy.as_deref() == Some("Always"))
    };
    let regular = regular.into_iter().map(|status| (ContainerKind::Regular, status));
    let init = init.into_iter().map(|status| {
        let sidecar = is_sidecar(&status.name);
        (if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init }, status)
    });
    regular
        .chain(init)
        .map(|(kind, status)| {
            let state = status.state;
            let waiting = state.as_ref().and_then(|state| state.waiting.as_ref());
            let terminated = state.as_ref().and_then(|state| state.terminated.as_ref());
            let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            Container {
                name: interner.text(&status.name),
                kind,
                restarts: u32::try_from(status.restart_count).unwrap_or(0),
                waiting: waiting
                    .and_then(|each| each.reason.as_deref())
                    .map(|reason| interner.text(reason)),
                terminated: terminated.map(Terminated::read),
                last: last.map(Terminated::read).map(Box::new),
            }
        })
        .collect()
}

impl Terminated {
    fn read(wire: &WireTerminated) -> Self {
        Self {
            exit_code: wire.exit_code,
            finished_at: wire.finished_at.as_ref().map(|time| time.0),
            by: EndedBy::read(wire.reason.as_deref().unwrap_or_default(), wire.exit_code),
        }
    }
}

impl GcFacts {
    /// Reads a pod. `terminal` says whether it is Succeeded or Failed.
    fn read(pod: &WirePod, terminal: bool, interner: &mut Interner) -> Self {
        let (meta, spec, status) = (&pod.metadata, &pod.spec, &pod.status);
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let regular = status.container_statuses.as_deref().unwrap_or_default();
        let init = status.init_container_statuses.as_deref().unwrap_or_default();
        let created = || time(meta.creation_timestamp.as_ref());
        let finished = terminal.then(|| finished(regular, conditions).or_else(created)).flatten();
        let running_since = regular.iter().filter_map(running_since).min();
        let last_start = regular.iter().chain(init).filter_map(started).max();
        Self {
            generation: meta.generation.unwrap_or(0),
            is_static: meta.annotations.iter().flatten().any(|(key, _)| key == MIRROR_ANNOTATION),
            survives_sandbox: survives_sandbox(spec),
            running_since: WholeSecond::new(running_since),
            last_start: WholeSecond::new(last_start),
            finished: WholeSecond::new(finished),
            rare: Rare::read(meta, spec, status, interner),
        }
    }
}

impl Rare {
    /// `None` if the pod has nothing of it.
    fn read(
        meta: &ObjectMeta,
        spec: &WirePodSpec,
        status: &WirePodStatus,
        interner: &mut Interner,
    ) -> Option<Box<Self>> {
        let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let target = target(conditions, interner);
        let is_disrupted = target.is_some();
        let mut of = |kind: &str, value: &str| {
            let condition = conditions.iter().find(|each| each.kind == kind)?;
            let holds = condition.status == value;
            holds.then(|| interner.text(condition.reason.as_deref().unwrap_or_default()))
        };
        let rare = Self {
            ended: of(pod_condition::ENDED, "True"),
            oom_killed: of(pod_condition::OOM_KILLED, "True"),
            unscheduled: of(SCHEDULED, "False"),
            reason: reason.map(|reason| interner.text(reason)),
            deadline: deadline(spec.active_deadline_seconds, status.start_time.as_ref()),
            target,
            ends_at: is_disrupted.then(|| ends_at(meta)).flatten(),
            first_start: is_disrupted.then(|| first_start(status)).flatten(),
        };
        (rare != Self::default()).then(|| Box::new(rare))
    }
}

/// The last end of a regular container, or else when the pod ceased to be ready.
fn finished(regular: &[WireContainerStatus], conditions: &[WireCondition]) -> Option<Timestamp> {
    let ends = regular
        .iter()
        .filter_map(|each| time(each.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()));
    let unready = || {
        let ready = conditions.iter().find(|each| each.kind == READY && each.status == "False")?;
        time(ready.last_transition_time.as_ref())
    };
    ends.max().or_else(unready)
}

/// A container's own policy holds while the pod's sandbox does. A rule that restarts all containers
/// gets a new sandbox, if it matches the exit code, which is not known before. ([W20])
fn survives_sandbox(spec: &WirePodSpec) -> bool {
    let containers = spec.containers.iter().chain(&spec.init_containers);
    let mut rules = containers.filter_map(|each| each.restart_policy_rules.as_ref()).flatten();
    spec.restart_policy.as_deref() != Some("Never") || rules.any(|rule| rule.action == RESTART_ALL)
}

fn deadline(seconds: Option<i64>, start: Option<&Time>) -> Option<Timestamp> {
    time(start)?.checked_add(SignedDuration::from_secs(seconds?)).ok()
}

/// A text that is no time counts as absent: whoever may write pods may write it.
fn ends_at(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.annotations.as_ref()?.get(ENDS_AT)?.parse().ok()
}

fn first_start(status: &WirePodStatus) -> Option<Timestamp> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().filter_map(started).min()
}

fn target(conditions: &[WireCondition], interner: &mut Interner) -> Option<Target> {
    let condition = conditions.iter().find(|each| each.kind == DISRUPTION_TARGET)?;
    Some(Target {
        stands: condition.status == "True",
        reason: interner.text(condition.reason.as_deref().unwrap_or_default()),
        says: Said::read(condition.message.as_deref().unwrap_or_default()),
        since: time(condition.last_transition_time.as_ref()),
    })
}

fn running_since(status: &WireContainerStatus) -> Option<Timestamp> {
    time(status.state.as_ref()?.running.as_ref()?.started_at.as_ref())
}

fn started(status: &WireContainerStatus) -> Option<Timestamp> {
    let state = status.state.as_ref()?;
    let terminated = || time(state.terminated.as_ref()?.started_at.as_ref());
    running_since(status).or_else(terminated)
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}
