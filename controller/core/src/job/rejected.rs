//! Tells which pods their kubelet rejected for a reason of its node.
//!
//! A kubelet that rejects a pod writes the phase Failed with the reason, and no condition. So no
//! rule of a podFailurePolicy can match, and the failure counts against `backoffLimit`.

use crate::view::{Phase, Pod};

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
