//! Why a container died: what the kernel, systemd-oomd and the runtime say of kills for memory, and
//! the condition `epilogue.dev/OOMKilled` that a Job's policy can match.

use super::Agent;
use crate::pod::PodUid;
use crate::protocol::pressure::{OomKill, OomdKill};

/// What is known of kills.
#[derive(Debug, Default)]
pub(super) struct Causes {}

impl Causes {
    pub(super) fn pod_gone(&mut self, _uid: &PodUid) {}
}

impl Agent {
    pub(super) fn oom_killed(&mut self, _kill: OomKill) {}

    pub(super) fn oomd_killed(&mut self, _kill: OomdKill) {}

    /// Writes the conditions that are due.
    pub(super) fn cause_on(&mut self) {}
}
