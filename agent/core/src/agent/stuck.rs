//! Deleted pods that no kubelet brings to an end: when the runtime proves that nothing of them
//! runs, they become Failed. (spec/node-agent.md §3.3, §9.9)

use super::Agent;
use crate::pod::PodUid;

/// The pods that are looked at.
#[derive(Debug, Default)]
pub(super) struct Stuck {}

impl Stuck {
    pub(super) fn pod_gone(&mut self, _uid: &PodUid) {}
}

impl Agent {
    /// Goes on with looking and ending.
    pub(super) fn unstick_on(&mut self) {}
}
