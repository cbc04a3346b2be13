//! Selects the pods that a shutdown terminates, the pods that it excludes, and the pods that get
//! `DisruptionTarget` before any kill. ([AP5], [AP8])

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::Mode;
use crate::pod::{Owner, PodSource, PodUid, PodView, RestartPolicy};

/// Inputs of the selection other than the pods.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The agent's mode in this shutdown.
    pub mode: Mode,
    /// The agent's own pod, if it runs in one.
    pub own_pod: Option<PodUid>,
    /// In Replace, the agent leaves pods of a higher priority to the system's own stop.
    pub priority_max: i32,
    /// How Replace treats pods without a controller.
    pub bare_pods: BarePods,
}

impl Scope {
    /// Whether Replace leaves the pod because it has no controller.
    pub fn leaves_bare(&self, pod: &PodView) -> bool {
        self.mode == Mode::Replace && pod.owner == Owner::None && self.bare_pods == BarePods::Leave
    }
}

/// How Replace treats pods without a controller, which are never recreated. ([AP26])
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BarePods {
    /// Leaves them: they stop with the node.
    #[default]
    Leave,
    /// Deletes them.
    Delete,
    /// Terminates them by `spec.activeDeadlineSeconds`, which keeps the object. ([API17])
    DeadlineLever,
}

/// Why a shutdown excludes a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Excluded {
    /// The pod is static, and its mirror's status belongs to the kubelet. ([SD22])
    Static,
    /// The pod is terminal, and keeps its result. ([SD11], [API8])
    Terminal,
    /// The pod is the agent's own.
    Ourselves,
    /// The agent does not terminate a pod that its controller would recreate on the same node.
    /// ([W10])
    DaemonSet,
    /// Replace leaves pods of this priority to the system.
    AbovePriorityMax,
    /// Observe excludes all pods.
    NotOurs,
}

/// Why a pod gets `DisruptionTarget` before any kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MarkReason {
    /// The agent will delete it, or terminate it by its deadline.
    WillBeEnded,
    /// The pod has been deleted, and was running when the shutdown came.
    Terminating,
    /// No container of it can run again, so a lost report cannot make the mark wrong. ([AP5])
    CannotRunAgain,
}

/// One patch of the first step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The pod.
    pub uid: PodUid,
    /// Why the pod gets the mark so early.
    pub reason: MarkReason,
}

/// Why the pod is not a candidate of a shutdown; `None` for a candidate.
///
/// In Assist a DaemonSet's pod is a candidate: the kubelet kills it like any other.
pub fn excluded(pod: &PodView, scope: &Scope) -> Option<Excluded> {
    if scope.mode == Mode::Observe {
        return Some(Excluded::NotOurs);
    }
    if pod.source == PodSource::Static {
        return Some(Excluded::Static);
    }
    if pod.is_terminal() {
        return Some(Excluded::Terminal);
    }
    if scope.own_pod.as_ref() == Some(&pod.uid) {
        return Some(Excluded::Ourselves);
    }
    if scope.mode == Mode::Assist {
        return None;
    }
    // DIVERGES(upstream): upstream terminates them too. They are recreated at once for the
    // departing node, whose kubelet refuses them again and again, or is dead.
    if pod.owner == Owner::DaemonSet {
        return Some(Excluded::DaemonSet);
    }
    let above = scope.mode == Mode::Replace && pod.priority > scope.priority_max;
    above.then_some(Excluded::AbovePriorityMax)
}

/// Whether the agent itself terminates the pod in Replace.
pub fn is_ended_by_us(pod: &PodView, scope: &Scope) -> bool {
    let wanted = pod.owner != Owner::None || scope.bare_pods != BarePods::Leave;
    scope.mode == Mode::Replace && excluded(pod, scope).is_none() && wanted
}

/// Why the pod gets `DisruptionTarget` before any kill; `None` if it comes with the kill. Also
/// `None` if the pod has one, which stays because a foreign reason is more specific. ([AP7])
///
/// Pods that Replace leaves to the system for their priority are not candidates. Those that cannot
/// run again still stop with the machine, so they get the mark.
pub fn mark_reason(pod: &PodView, scope: &Scope) -> Option<MarkReason> {
    let left_alone = excluded(pod, scope).is_some_and(|why| why != Excluded::AbovePriorityMax);
    if left_alone || pod.is_disrupted() {
        return None;
    }
    if pod.is_terminating() {
        // The deleter of a pod that never ran defines the cause. ([PT1])
        return pod.has_run.then_some(MarkReason::Terminating);
    }
    if is_ended_by_us(pod, scope) {
        return Some(MarkReason::WillBeEnded);
    }
    pod.ends_with_its_sandbox().then_some(MarkReason::CannotRunAgain)
}

/// Orders the marks by value: pods of Jobs with a `podFailurePolicy`, other Jobs' pods, bare pods
/// that never restart, the rest. Within each rank the namespaces take turns, so that one with many
/// pods does not displace another with few.
///
/// DIVERGES(upstream): the condition precedes the termination. In upstream it comes with the phase,
/// after the containers have stopped, and is lost if that report is lost. ([W2], [AP1])
pub fn pre_mark(pods: &[PodView], scope: &Scope) -> Vec<Mark> {
    let mut ranks: BTreeMap<Rank, Namespaces<'_>> = BTreeMap::new();
    for pod in pods {
        if let Some(reason) = mark_reason(pod, scope) {
            let namespaces = ranks.entry(Rank::of(pod)).or_default();
            namespaces.entry(&pod.namespace).or_default().push((pod, reason));
        }
    }
    ranks.into_values().flat_map(in_turns).collect()
}

/// The pods to mark, by namespace.
type Namespaces<'a> = BTreeMap<&'a str, Vec<(&'a PodView, MarkReason)>>;

fn in_turns(namespaces: Namespaces<'_>) -> Vec<Mark> {
    let mut queues: VecDeque<_> = namespaces
        .into_values()
        .map(|mut pods| {
            pods.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
            pods.into_iter()
        })
        .collect();
    let mut marks = Vec::new();
    while let Some(mut queue) = queues.pop_front() {
        if let Some((pod, reason)) = queue.next() {
            marks.push(Mark { uid: pod.uid.clone(), reason });
            queues.push_back(queue);
        }
    }
    marks
}

/// Value of a pod's mark, best first.
///
/// Only the Job shows whether it has a `podFailurePolicy`, and the agent does not read Jobs. That
/// would require the right to read all Jobs of the cluster. But the API allows a policy only if the
/// Job's pods never restart, so other Jobs' pods come after them. ([AP6])
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    JobThatMayHaveFailurePolicy,
    Job,
    BareNever,
    Rest,
}

impl Rank {
    fn of(pod: &PodView) -> Self {
        match pod.owner {
            Owner::Job if pod.restart_policy == RestartPolicy::Never => {
                Self::JobThatMayHaveFailurePolicy
            }
            Owner::Job => Self::Job,
            Owner::None if pod.ends_with_its_sandbox() => Self::BareNever,
            _ => Self::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Phase;
    use crate::pod::tests::pod;

    fn scope(mode: Mode) -> Scope {
        let own_pod = Some(PodUid("uid-agent".into()));
        Scope { mode, own_pod, priority_max: 1_000_000_000, bare_pods: BarePods::Leave }
    }

    fn static_pod() -> PodView {
        pod("static").with(|pod| pod.source = PodSource::Static)
    }

    #[test]
    fn some_pods_are_never_touched() {
        use Mode::{Assist, Observe, Replace, Substitute};
        let daemon = || pod("daemon").owner(Owner::DaemonSet);
        let table = [
            // Static pods, in every mode. ([AP8], [SD22])
            (Assist, static_pod(), Some(Excluded::Static)),
            (Replace, static_pod(), Some(Excluded::Static)),
            (Substitute, static_pod().phase(Phase::Failed), Some(Excluded::Static)),
            // Terminal pods keep their result. ([SD11], [API8])
            (Assist, pod("a").phase(Phase::Succeeded), Some(Excluded::Terminal)),
            (Replace, pod("a").phase(Phase::Failed).deleting(9), Some(Excluded::Terminal)),
            (Substitute, pod("a").phase(Phase::Failed), Some(Excluded::Terminal)),
            // The agent's own pod; in Replace also pods above the maximum. ([AP8])
            (Assist, pod("agent"), Some(Excluded::Ourselves)),
            (Replace, pod("agent").owner(Owner::DaemonSet), Some(Excluded::Ourselves)),
            (Replace, pod("a").priority(1_000_000_001), Some(Excluded::AbovePriorityMax)),
            (Replace, pod("a").priority(1_000_000_000), None),
            (Assist, pod("a").priority(2_000_001_000), None),
            // Where the agent terminates, DaemonSets' pods would come back at once. ([AP8], [W10])
            (Replace, daemon(), Some(Excluded::DaemonSet)),
            (Assist, daemon(), None),
            (Substitute, daemon(), Some(Excluded::DaemonSet)),
            (Substitute, pod("a").priority(2_000_001_000), None),
            // Pods that never started, and terminating ones, are candidates. ([SD11])
            (Replace, pod("a").not_started(), None),
            (Replace, pod("a").deleting(30), None),
            (Replace, pod("a").phase(Phase::Unknown), None),
            (Observe, pod("a"), Some(Excluded::NotOurs)),
        ];
        for (mode, pod, expected) in table {
            assert_eq!(excluded(&pod, &scope(mode)), expected, "{mode:?} {}", pod.name);
        }
    }

    #[test]
    fn only_pods_that_cannot_survive_are_marked_early() {
        use MarkReason::{CannotRunAgain, Terminating, WillBeEnded};
        use Mode::{Assist, Observe, Replace, Substitute};
        let job = || pod("job").owner(Owner::Job).never();
        let table = [
            // The agent terminates them. ([AP5])
            (Replace, job(), Some(WillBeEnded)),
            (Replace, pod("a").owner(Owner::Other), Some(WillBeEnded)),
            (Replace, job().not_started(), Some(WillBeEnded)),
            // Bare pods stay; those that cannot restart get DisruptionTarget. ([AP26])
            (Replace, pod("a"), None),
            (Replace, pod("a").never(), Some(CannotRunAgain)),
            // Deleted by another client: only those that had run. ([AP5], [PT1])
            (Assist, pod("a").deleting(30), Some(Terminating)),
            (Replace, pod("a").owner(Owner::Other).deleting(30), Some(Terminating)),
            (Assist, pod("a").never().not_started().deleting(30), None),
            (Replace, job().not_started().deleting(30), None),
            // They ran and cannot restart. ([AP5])
            (Assist, job(), Some(CannotRunAgain)),
            (Substitute, job(), Some(CannotRunAgain)),
            (Assist, pod("a"), None),
            // The sandbox goes, and with it what sidecars and containers would restart in.
            (Assist, job().sidecar(), Some(CannotRunAgain)),
            (Replace, pod("a").never().sidecar(), Some(CannotRunAgain)),
            (
                Assist,
                job().with(|pod| pod.restarts_in_place = RestartPolicy::Always),
                Some(CannotRunAgain),
            ),
            (Assist, job().with(|pod| pod.restarts_all = true), None),
            (Replace, pod("a").never().owner(Owner::DaemonSet), None),
            (Replace, job().priority(1_000_000_001), Some(CannotRunAgain)),
            (Replace, pod("a").priority(1_000_000_001), None),
            // The pod would start after the reboot, with a wrong condition. ([AP5])
            (Assist, job().not_started(), None),
            // An existing DisruptionTarget stays. ([AP7])
            (Replace, job().disrupted("PreemptionByScheduler"), None),
            (Assist, job().disrupted("TerminationByKubelet"), None),
            (Assist, static_pod().never(), None),
            (Observe, job(), None),
        ];
        for (row, (mode, pod, expected)) in table.into_iter().enumerate() {
            assert_eq!(mark_reason(&pod, &scope(mode)), expected, "row {row} {mode:?}");
        }
    }

    #[test]
    fn bare_pods_are_ended_by_the_agent_where_the_operator_says_so() {
        for (bare_pods, ended) in
            [(BarePods::Leave, false), (BarePods::Delete, true), (BarePods::DeadlineLever, true)]
        {
            let scope = Scope { bare_pods, ..scope(Mode::Replace) };
            assert_eq!(is_ended_by_us(&pod("bare"), &scope), ended, "{bare_pods:?}");
            assert!(is_ended_by_us(&pod("owned").owner(Owner::Other), &scope));
        }
        let assist = Scope { bare_pods: BarePods::Delete, ..scope(Mode::Assist) };
        assert!(!is_ended_by_us(&pod("bare"), &assist), "Assist never deletes a pod");
    }

    #[test]
    fn marks_go_by_value_and_then_by_namespace_in_turns() {
        // Jobs with Never, other Jobs, bare Never pods, the rest. ([AP6])
        let pods = [
            pod("rest").owner(Owner::Other),
            pod("bare").never(),
            pod("z-1").namespace("z").owner(Owner::Job),
            pod("a-2").namespace("a").owner(Owner::Job),
            pod("a-3").namespace("a").owner(Owner::Job),
            pod("a-1").namespace("a").owner(Owner::Job),
            pod("z-2").namespace("z").owner(Owner::Job),
            pod("never").namespace("z").owner(Owner::Job).never(),
        ];
        let marks = pre_mark(&pods, &scope(Mode::Replace));
        let order: Vec<_> = marks.iter().map(|mark| mark.uid.0.as_str()).collect();
        let expected = ["never", "a-1", "z-1", "a-2", "z-2", "a-3", "bare", "rest"];
        assert_eq!(order, expected.map(|name| format!("uid-{name}")));
    }
}
