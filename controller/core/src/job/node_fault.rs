//! Finds pods that failed by a fault of their node and lack DisruptionTarget: they get it before
//! they are counted.

use std::fmt;
use std::sync::Arc;

use epilogue_common::names::disruption_reason::{LOST_BY_NODE, REJECTED_BY_KUBELET};
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::SignedDuration;

use super::input::{NodeBoots, SyncInput};
use super::lost::{Loss, loss};
use super::rejected::is_rejected_by_node;
use crate::job_pods::{JobPods, Kind};
use crate::view::{Phase, Pod};

/// How long writes of the condition are tried. Then the pod counts as it is.
const TRIED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// How long a pod waits for its node to show a boot. A kubelet that starts writes its pods and its
/// node independently, the latter every 10 s.
const BOOT_SHOWN_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// A failed pod, and what its node did to it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFault {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What its node did.
    pub kind: FaultKind,
}

/// What a node did to a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Its kubelet rejected it, for a reason of the node.
    Rejected,
    /// It lost its containers; in the boot that was seen.
    Lost(Option<NodeBoots>),
}

/// Failed pods whose condition decides how they count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeFaults {
    /// These get it now, as many as one sync writes.
    pub unmarked: Vec<NodeFault>,
    /// Their node may show soon that it has booted.
    pub open: Vec<Arc<Pod>>,
}

/// Finds them.
///
/// DIVERGES(upstream): a pod that its kubelet rejected for a reason of its node is a disruption
/// target. Upstream counts it like a failure of its program, and no rule can match it. ([F7])
///
/// DIVERGES(upstream): so is a pod whose containers its node lost in a boot. ([F8])
pub(super) fn find(input: &SyncInput<'_>, pods: &JobPods) -> NodeFaults {
    let listed = input.job.status.uncounted_terminated_pods.as_ref();
    let is_listed = |pod: &Pod| {
        let failed = listed.and_then(|lists| lists.failed.as_deref()).unwrap_or_default();
        failed.iter().any(|uid| uid == pod.uid.as_str())
    };
    let tried = |pod: &Pod| {
        let since = input.memory.marking_since.get(&pod.uid);
        since.map_or(SignedDuration::ZERO, |since| input.now.duration_since(*since))
    };
    let mut faults = NodeFaults::default();
    let uncounted = pods
        .of_kind(Kind::Unsettled)
        .filter(|pod| pod.tracked && !input.memory.removed_finalizers.contains(&pod.uid))
        .filter(|pod| !pod.has_condition(DISRUPTION_TARGET))
        .filter(|pod| tried(pod) < TRIED_FOR && !is_listed(pod));
    for pod in uncounted {
        let kind = match lost(input, pod) {
            Loss::Lost(boots) => FaultKind::Lost(boots.cloned()),
            Loss::NoBootYet if tried(pod) < BOOT_SHOWN_WITHIN => {
                faults.open.push(Arc::clone(pod));
                continue;
            }
            _ if input.settings.rejected_disruption_target && is_rejected_by_node(pod) => {
                FaultKind::Rejected
            }
            _ => continue,
        };
        faults.unmarked.push(NodeFault { pod: Arc::clone(pod), kind });
    }
    faults.unmarked.truncate(input.settings.max_pod_create_delete_per_sync);
    faults
}

/// The same pods, with those as Running that wait for their node: each is left uncounted, and no
/// other pod of the Job waits for it.
pub(super) fn as_running(mut pods: JobPods, open: &[Arc<Pod>]) -> JobPods {
    for pod in open {
        let mut pod = Arc::clone(pod);
        Arc::make_mut(&mut pod).phase = Phase::Running;
        pods.alter(pod);
    }
    pods
}

fn lost<'a>(input: &SyncInput<'a>, pod: &Pod) -> Loss<'a> {
    if !input.settings.lost_disruption_target {
        return Loss::None;
    }
    loss(pod, input.memory.boots.get(&pod.uid))
}

impl FaultKind {
    /// The reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Rejected => REJECTED_BY_KUBELET,
            Self::Lost(_) => LOST_BY_NODE,
        }
    }
}

/// The message of the condition.
impl fmt::Display for NodeFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FaultKind::Rejected => {
                let reason = self.pod.gc.reason().unwrap_or_default();
                write!(formatter, "the kubelet rejected the pod: {reason}")
            }
            FaultKind::Lost(Some(NodeBoots::Booted { from, to, .. })) => write!(
                formatter,
                "the pod's containers ended with the boot of their node (boot {from} then, {to} \
                 now)"
            ),
            FaultKind::Lost(_) => formatter
                .write_str("the node lost the pod's containers; how they ended is not known"),
        }
    }
}
