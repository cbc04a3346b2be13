//! Holds what the agent knows: its configuration, the clocks, and what the sources report. Only
//! `Agent::learn` and the answers change it; the parts of the agent read it.

use std::time::Duration;

use super::endings::Endings;
use super::kubelet::KubeletMemory;
use super::mode::{Allowed, Detected, detect};
use super::pods::Pods;
use super::settings::Settings;
use super::volumes::VolumeMemory;
use crate::pod::PodUid;
use crate::protocol::ending::Source;
use crate::protocol::event::{LogindState, NodeView, Now};
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::shutdown::budget::wanted_delay;
use crate::shutdown::priority_groups::PriorityGroups;
use crate::termination::clock::Clock;

/// What the agent knows.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) pods: Pods,
    pub(super) kubelet: KubeletMemory,
    pub(super) logind: LogindFacts,
    pub(super) endings: Endings,
    pub(super) node: Option<NodeView>,
    pub(super) volumes: VolumeMemory,
    /// The admission policy that is missing or too loose.
    pub(super) policy_missing: Option<String>,
    /// When the agent received the request to stop.
    pub(super) stop_at: Option<Duration>,
    pub(super) situation: Situation,
}

/// What logind last reported.
#[derive(Clone, Debug, Default)]
pub(super) struct LogindFacts {
    pub(super) state: Option<LogindState>,
    pub(super) connected: bool,
}

/// What the other parts have to know of the shutdown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Situation {
    /// Whether a shutdown is taken up, its lock released or not.
    pub(super) runs: bool,
    /// Whether it is at its first step: the journal and the marks.
    pub(super) marks: bool,
    /// Whether its lock is released.
    pub(super) released: bool,
    /// Whether it terminates all pods in its own order, or may turn out to.
    pub(super) owns_pods: bool,
    /// Whether a shutdown of the journal waits for logind's or the runtime's answer.
    pub(super) journaled: bool,
    /// Whether the API has not acknowledged a mark or a report yet.
    pub(super) unacknowledged: bool,
}

impl Situation {
    /// Whether a shutdown holds its lock, so that its time runs.
    pub(super) fn is_urgent(self) -> bool {
        self.runs && !self.released
    }
}

/// What has changed since the last decision, in its order.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// The first list of pods.
    FirstList,
    /// The API has gone back to an earlier version.
    Restored,
    /// The API shows another state of the pod.
    Pod(PodUid),
    /// The API no longer has the pod.
    PodGone(PodUid),
}

impl Facts {
    pub(super) fn new(settings: Settings, now: Now) -> Self {
        let logind = if settings.logind { LogindFacts::default() } else { LogindFacts::absent() };
        Self {
            settings,
            clock: Clock::new(now),
            pods: Pods::default(),
            kubelet: KubeletMemory::default(),
            logind,
            endings: Endings::default(),
            node: None,
            volumes: VolumeMemory::default(),
            policy_missing: None,
            stop_at: None,
            situation: Situation::default(),
        }
    }

    /// What the agent is allowed to do.
    pub(super) fn allowed(&self) -> Allowed {
        Allowed {
            enforce: self.settings.enforce,
            runtime: self.settings.runtime,
            ends_pods: self.settings.priority_groups.is_some(),
        }
    }

    /// The mode of a shutdown that comes now.
    pub(super) fn detected(&self) -> Detected {
        let now = self.clock.monotonic();
        let armed_ago = self.kubelet.armed_at.map(|at| now.saturating_sub(at));
        detect(self.kubelet.judged(), armed_ago, self.allowed())
    }

    /// The mode of a shutdown that this source announces now. A kubelet follows logind alone, and
    /// does nothing at a notice.
    pub(super) fn detected_for(&self, source: Source) -> Detected {
        let found = self.detected();
        if !source.gives_notice() || found.mode != Mode::Assist || found.marks_only {
            return found;
        }
        let why = "the end is announced ahead of logind, and kubelets follow logind alone";
        Detected { mode: Mode::Replace, marks_only: !self.allowed().ends_pods, why }
    }

    /// The mode of a shutdown as far as it can be foreseen.
    pub(super) fn foreseen(&self) -> Detected {
        detect(self.kubelet.judged(), None, self.allowed())
    }

    /// The priority groups where the agent terminates pods. Where the operator has set none, they
    /// are those of a kubelet that does not carry them out itself: it got no lock, or died. ([SD4])
    pub(super) fn priority_groups(&self) -> Option<&PriorityGroups> {
        let own = self.settings.priority_groups.as_ref()?;
        let of_kubelet = self.kubelet.groups.as_ref();
        Some(of_kubelet.filter(|_| !self.settings.priority_groups_given).unwrap_or(own))
    }

    /// The delay that the priority groups and the kubelet need.
    pub(super) fn wanted_delay(&self) -> Duration {
        let kubelet = self.kubelet.facts.as_ref();
        let period = kubelet.and_then(KubeletFacts::shutdown_period);
        let armed = kubelet.is_some_and(|facts| facts.lock_armed == Some(true));
        let own = self.settings.priority_groups.as_ref();
        wanted_delay(if armed { own } else { self.priority_groups() }, period)
    }

    /// Whether logind prepares a shutdown.
    pub(super) fn is_preparing(&self) -> bool {
        self.endings.of(Source::Logind).is_some()
    }

    /// Whether logind has reported that it prepares no shutdown.
    pub(super) fn is_calm(&self) -> bool {
        self.logind.state.is_some() && !self.is_preparing()
    }

    /// Remembers which volumes are in use, and by which pods they may be.
    pub(super) fn note_volumes(&mut self) {
        let in_use = self.node.as_ref().map(|view| &view.volumes_in_use);
        self.volumes.note(in_use, &self.pods, self.clock.monotonic());
    }

    /// Whether this is the agent's own pod.
    pub(super) fn is_own(&self, uid: &PodUid) -> bool {
        self.settings.own_pod.as_ref() == Some(uid)
    }

    /// Whether new pods stay away from the node, as notice was given of an end that is near.
    pub(super) fn keeps_pods_away(&self) -> bool {
        let sign = self.node.as_ref().and_then(|view| view.end_sign.as_ref());
        let needs_taint = sign.is_some_and(|sign| sign.needs_taint);
        self.endings.keeps_pods_away(&self.clock)
            || needs_taint && self.endings.of(Source::Node).is_some()
    }

    /// Whether the node has our taint.
    pub(super) fn is_tainted(&self) -> bool {
        self.node.as_ref().is_some_and(|view| view.tainted)
    }
}

impl LogindFacts {
    /// The state of a node without logind: as far as can be known, no shutdown goes on there.
    fn absent() -> Self {
        let state = LogindState {
            owner: String::new(),
            delay: None,
            preparing: false,
            scheduled: None,
            lock_listed: None,
        };
        Self { state: Some(state), ..Self::default() }
    }
}
