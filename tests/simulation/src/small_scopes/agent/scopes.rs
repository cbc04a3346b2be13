//! The scopes: small ones, which the suite explores, and large ones to explore by hand.

use super::scope::{Faults, Kubelet, PodKind, Scope};

const TWO: &[PodKind] = &[PodKind::HANGING_JOB, PodKind::SERVICE];
const ONE: &[PodKind] = &[PodKind::HANGING_JOB];
const OTHER: &[PodKind] = &[PodKind::JOB, PodKind::HANGING_SERVICE];
const MESH: &[PodKind] = &[PodKind::MESH_JOB];
const DISRUPTED: &[PodKind] = &[PodKind::DISRUPTED_JOB, PodKind::SERVICE];

/// Two pods under a live kubelet, and no fault.
pub const LIVES: Scope = Scope {
    name: "agent-lives",
    pods: TWO,
    kubelet: Kubelet::Lives,
    other_lock: false,
    decides_later: false,
    faults: Faults::NONE,
    states: 3_374,
    sabotage: None,
};
/// Two pods without a kubelet, and no fault.
pub(super) const STOPPED: Scope =
    Scope { name: "agent-stopped", states: 65, kubelet: Kubelet::Stopped, ..LIVES };
/// Two pods under a kubelet that shuts down itself, and no fault.
pub(super) const SHUTS_DOWN: Scope =
    Scope { name: "agent-shuts-down", states: 94, kubelet: Kubelet::ShutsDown, ..LIVES };

/// One cancel.
pub(super) const CANCEL: Faults = Faults { cancels: 1, ..Faults::NONE };
/// One restart of the agent.
pub(super) const RESTART: Faults = Faults { restarts: 1, ..Faults::NONE };
/// One refusal.
pub(super) const REFUSAL: Faults = Faults { refusals: 1, ..Faults::NONE };
/// One lost reply.
pub(super) const LOST: Faults = Faults { lost_replies: 1, ..Faults::NONE };
/// A cancel and a restart.
pub(super) const CANCEL_RESTART: Faults = Faults { restarts: 1, ..CANCEL };
/// Each of them, once.
pub(super) const ONE_EACH: Faults = Faults { refusals: 1, lost_replies: 1, ..CANCEL_RESTART };

/// A cancelled shutdown under a live kubelet, with one pod.
pub const CANCELLED: Scope =
    Scope { name: "agent-lives-cancel", states: 2_725, pods: ONE, faults: CANCEL, ..LIVES };
/// A cancelled shutdown, in which the agent dies.
pub(super) const CANCELLED_RESTARTED: Scope = Scope {
    name: "agent-lives-cancel-restart",
    states: 53_498,
    other_lock: true,
    faults: CANCEL_RESTART,
    ..CANCELLED
};
/// A cancelled shutdown, and a pod with the mark of somebody else.
pub const OTHERS_MARK: Scope =
    Scope { name: "agent-disrupted", states: 2_976, pods: DISRUPTED, faults: CANCEL, ..STOPPED };

/// All scopes that the suite explores.
pub const SMALL: &[Scope] = &[
    LIVES,
    STOPPED,
    SHUTS_DOWN,
    Scope { name: "agent-lives-later", states: 29_814, decides_later: true, ..LIVES },
    Scope { name: "agent-stopped-later", states: 183, decides_later: true, ..STOPPED },
    CANCELLED,
    CANCELLED_RESTARTED,
    Scope { name: "agent-stopped-cancel", states: 1_078, faults: CANCEL, ..STOPPED },
    Scope { name: "agent-shuts-down-cancel", states: 12_442, faults: CANCEL, ..SHUTS_DOWN },
    Scope {
        name: "agent-lives-restart",
        states: 3_542,
        pods: ONE,
        other_lock: true,
        faults: RESTART,
        ..LIVES
    },
    Scope {
        name: "agent-stopped-restart",
        states: 6_373,
        other_lock: true,
        faults: RESTART,
        ..STOPPED
    },
    Scope { name: "agent-lives-refusal", states: 5_738, faults: REFUSAL, ..LIVES },
    Scope { name: "agent-stopped-refusal", states: 173, faults: REFUSAL, ..STOPPED },
    Scope { name: "agent-lives-lost", states: 8_308, faults: LOST, ..LIVES },
    Scope { name: "agent-stopped-lost", states: 226, faults: LOST, ..STOPPED },
    Scope { name: "agent-other", states: 226, pods: OTHER, faults: LOST, ..STOPPED },
    Scope {
        name: "agent-stopped-cancel-restart",
        states: 63_211,
        other_lock: true,
        faults: CANCEL_RESTART,
        ..STOPPED
    },
    Scope {
        name: "agent-stopped-sidecar",
        states: 57_837,
        pods: MESH,
        other_lock: true,
        faults: Faults { ends: 1, ..CANCEL_RESTART },
        ..STOPPED
    },
    OTHERS_MARK,
];

/// Explored by hand.
pub const LARGE: &[Scope] = &[
    Scope {
        name: "agent-large-each",
        states: 244_908,
        pods: ONE,
        other_lock: true,
        faults: ONE_EACH,
        ..STOPPED
    },
    Scope { name: "agent-large-stopped", other_lock: true, faults: ONE_EACH, ..STOPPED },
    Scope { name: "agent-large-lives-cancel", states: 556_642, faults: CANCEL, ..LIVES },
    Scope { name: "agent-large-lives-restart", other_lock: true, faults: RESTART, ..LIVES },
    Scope { name: "agent-large-shuts-down", other_lock: true, faults: ONE_EACH, ..SHUTS_DOWN },
    Scope {
        name: "agent-large-lives-cancel-restart",
        other_lock: true,
        faults: CANCEL_RESTART,
        ..LIVES
    },
];
