//! Finds pods that their kubelet rejected for a reason of its node, and that lack DisruptionTarget.
//!
//! A kubelet that rejects a pod writes the phase Failed with the reason, and no condition. So no
//! rule of a podFailurePolicy can match, and the failure counts against `backoffLimit`.

use std::sync::Arc;

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::SignedDuration;

use super::input::SyncInput;
use crate::job_pods::{JobPods, Kind};
use crate::view::{Phase, Pod};

/// How long writes of the condition are tried. Then the pod counts as it is.
const TRIED_FOR: SignedDuration = SignedDuration::from_mins(1);

/// Resources that other pods of the node took first, such as `OutOfcpu` or `OutOfexample.com/gpu`.
const OUT_OF: &str = "OutOf";
/// Reasons that say something of the node at that moment: the same pod may run on another node, or
/// later. ([F7])
const OF_NODES: [&str; 11] = [
    // A device, or something else that the kubelet did not foresee.
    "UnexpectedAdmissionError",
    // The node has other labels than when the pod was scheduled.
    "NodeAffinity",
    "NodeName",
    // Another pod has the port.
    "NodePorts",
    // A taint with NoExecute came after the pod was scheduled.
    "TaintToleration",
    "NodeShutdown",
    // The free resources are spread over NUMA nodes.
    "TopologyAffinityError",
    // The CSI driver's limit is lower than the scheduler knew.
    "VolumeAttachmentLimitExceeded",
    // The kubelet could not read its node, or not say why.
    "InvalidNodeInfo",
    "UnknownReason",
    "UnexpectedPredicateFailureType",
];

/// Whether the kubelet rejected this pod for a reason of its node.
///
/// Left out are reasons by which the pod asks for what its node does not offer, and its next pod
/// would as well: `SysctlForbidden`, `AppArmor`, `PodOSNotSupported`,
/// `PodOSSelectorNodeLabelDoesNotMatch`, `SupplementalGroupsPolicyNotSupported`,
/// `PodLevelResourcesNotSupported`, `PodFeatureUnsupported`,
/// `InitContainerRestartPolicyForbidden`, `SMTAlignmentError`, `EmptyPodSharedPoolError`. So is
/// `Evicted`, which is also the reason of a pod that exceeded its own limit. ([F7])
pub fn is_rejected_by_node(pod: &Pod) -> bool {
    let by_node = |reason: &str| reason.starts_with(OUT_OF) || OF_NODES.contains(&reason);
    pod.phase == Phase::Failed && pod.gc.reason().is_some_and(by_node)
}

/// The rejected pods that get the condition before they are counted, as many as one sync writes.
///
/// DIVERGES(upstream): a pod that its kubelet rejected for a reason of its node is a disruption
/// target. Upstream counts it like a failure of its program, and no rule can match it. ([F7])
pub(super) fn unmarked(input: &SyncInput<'_>, pods: &JobPods) -> Vec<Arc<Pod>> {
    if !input.settings.rejected_disruption_target {
        return Vec::new();
    }
    let listed = input.job.status.uncounted_terminated_pods.as_ref();
    let is_listed = |pod: &Pod| {
        let failed = listed.and_then(|lists| lists.failed.as_deref()).unwrap_or_default();
        failed.iter().any(|uid| uid == pod.uid.as_str())
    };
    let tries = |pod: &Pod| {
        let since = input.memory.marking_since.get(&pod.uid);
        since.is_none_or(|since| input.now.duration_since(*since) < TRIED_FOR)
    };
    pods.of_kind(Kind::Unsettled)
        .filter(|pod| is_rejected_by_node(pod) && !pod.has_condition(DISRUPTION_TARGET))
        .filter(|pod| pod.tracked && !input.memory.removed_finalizers.contains(&pod.uid))
        .filter(|pod| tries(pod) && !is_listed(pod))
        .take(input.settings.max_pod_create_delete_per_sync)
        .cloned()
        .collect()
}
