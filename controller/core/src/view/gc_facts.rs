//! Reads what only pod GC and disruption need of a pod, in few bytes: all pods of the cluster have
//! it.

use std::sync::Arc;

use epilogue_common::names::pod_condition::{DISRUPTION_TARGET, READY};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::wire::{
    Interner, WireCondition, WireContainerStatus, WirePod, WirePodSpec, WirePodStatus,
};

/// The annotation on the API's copy of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What only pod GC and disruption read of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcFacts {
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it is the mirror of a static pod.
    pub is_static: bool,
    /// Whether one of its containers can start again in place: by the pod's restartPolicy, or a
    /// container's own policy or rules. ([API19])
    pub may_restart: bool,
    running_since: WholeSecond,
    last_start: WholeSecond,
    finished: WholeSecond,
    rare: Option<Box<Rare>>,
}

/// What few pods have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rare {
    reason: Option<Arc<str>>,
    deadline: Option<Timestamp>,
    target: Option<Target>,
}

/// The condition `DisruptionTarget` of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether its status is `True`.
    pub stands: bool,
    /// `reason`.
    pub reason: Arc<str>,
    /// `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

/// A time of the API, which may be absent. The API keeps whole seconds, so that 8 bytes do where an
/// `Option<Timestamp>` takes 24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WholeSecond(i64);

impl WholeSecond {
    const ABSENT: Self = Self(i64::MIN);

    fn new(time: Option<Timestamp>) -> Self {
        time.map_or(Self::ABSENT, |time| Self(time.as_second()))
    }

    fn get(self) -> Option<Timestamp> {
        Timestamp::from_second(self.0).ok()
    }
}

impl Default for WholeSecond {
    fn default() -> Self {
        Self::ABSENT
    }
}

impl GcFacts {
    /// Reads a pod. `terminal` says whether it is Succeeded or Failed.
    pub(super) fn read(pod: &WirePod, terminal: bool, interner: &mut Interner) -> Self {
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
            may_restart: may_restart(spec),
            running_since: WholeSecond::new(running_since),
            last_start: WholeSecond::new(last_start),
            finished: WholeSecond::new(finished),
            rare: Rare::read(spec, status, interner),
        }
    }

    /// The earliest start of the regular containers that run; `None` if none runs.
    pub fn running_since(&self) -> Option<Timestamp> {
        self.running_since.get()
    }

    /// The latest start of any container, as far as the status shows.
    pub fn last_start(&self) -> Option<Timestamp> {
        self.last_start.get()
    }

    /// When the last container ended; only of terminal pods.
    pub fn finished(&self) -> Option<Timestamp> {
        self.finished.get()
    }

    /// `status.reason`.
    pub fn reason(&self) -> Option<&str> {
        self.rare.as_ref()?.reason.as_deref()
    }

    /// When its `activeDeadlineSeconds` end.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.deadline
    }

    /// The condition `DisruptionTarget`.
    pub fn target(&self) -> Option<&Target> {
        self.rare.as_ref()?.target.as_ref()
    }
}

impl Rare {
    /// `None` if the pod has nothing of it.
    fn read(
        spec: &WirePodSpec,
        status: &WirePodStatus,
        interner: &mut Interner,
    ) -> Option<Box<Self>> {
        let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
        let rare = Self {
            reason: reason.map(|reason| interner.text(reason)),
            deadline: deadline(spec.active_deadline_seconds, status.start_time.as_ref()),
            target: target(status.conditions.as_deref().unwrap_or_default(), interner),
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

fn may_restart(spec: &WirePodSpec) -> bool {
    let own = |own: Option<&str>| own.is_some_and(|policy| policy != "Never");
    let containers = spec.containers.iter().chain(&spec.init_containers);
    own(Some(spec.restart_policy.as_deref().unwrap_or("Always")))
        || containers
            .into_iter()
            .any(|each| own(each.restart_policy.as_deref()) || each.restart_policy_rules.is_some())
}

fn deadline(seconds: Option<i64>, start: Option<&Time>) -> Option<Timestamp> {
    time(start)?.checked_add(SignedDuration::from_secs(seconds?)).ok()
}

fn target(conditions: &[WireCondition], interner: &mut Interner) -> Option<Target> {
    let condition = conditions.iter().find(|each| each.kind == DISRUPTION_TARGET)?;
    Some(Target {
        stands: condition.status == "True",
        reason: interner.text(condition.reason.as_deref().unwrap_or_default()),
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
