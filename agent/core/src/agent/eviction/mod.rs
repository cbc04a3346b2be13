//! The node's pressure: when it is looked at, what follows, and the end of a victim.
//! (spec/node-agent.md §2, §8.4)

use epilogue_common::outcome::{Failure, Outcome};

use super::outbox::EvictStep;
use super::{Agent, Features};
use crate::pod::PodUid;
use crate::protocol::event::ActionResult;
use crate::protocol::pressure::{Figures, Measured, Resource, Stalling};

/// What is known of the node's pressure, and the victims under way.
#[derive(Debug)]
pub(super) struct Evictions {}

impl Evictions {
    pub(super) fn new(_features: &Features) -> Self {
        Self {}
    }

    pub(super) fn pod_gone(&mut self, _uid: &PodUid) {}
}

impl Agent {
    pub(super) fn pressure_rose(&mut self, _what: Stalling) {}

    /// Goes on with measuring, choosing and ending.
    pub(super) fn evict_on(&mut self) {}

    pub(super) fn measured(&mut self, _measured: Measured) {}

    pub(super) fn pods_measured(&mut self, _of: Resource, _figures: Result<Figures, Failure>) {}

    pub(super) fn node_condition_set(&mut self, _kind: &'static str, _result: &Outcome<()>) {}

    pub(super) fn evict_result(&mut self, _step: EvictStep, _uid: &PodUid, _result: ActionResult) {}
}
