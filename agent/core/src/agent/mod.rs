//! The agent's state machine: facts come in, actions go out. `advance` makes every decision, from
//! what the agent knows and the clock. An event only adds to what the agent knows.
//!
//! These rules hold in every order of events, after every crash and at every speed of the API:
//!
//! - The agent never writes `Failed` while a container of the pod may run. The runtime must first
//!   prove that nothing runs. Alongside a live kubelet it also waits until the end of the available
//!   time. A deleted pod that hangs does not wait for that, where the operator enables this.
//!   ([AP3], [PT13])
//! - The agent sends `DisruptionTarget` before it terminates the pod, or with the phase, never
//!   later.
//! - The agent keeps the lock while a report is awaited or one of its writes is unacknowledged. It
//!   never keeps the lock longer than the available time.
//! - The agent never touches a static pod.
//! - After a cancelled shutdown the agent reverts its writes on pods that live on. It starts at
//!   once and continues until the API shows the result.
//! - The agent writes `Failed` at most once per pod and run without a fresh read in between.
//! - Every write can be repeated: it carries the UID, and a mark carries the time from the journal.

mod boot_recovery;
mod calls;
mod cancel;
mod disruption_target;
mod events;
mod eviction;
mod exit_check;
mod group_deletion;
mod journal_replay;
mod left;
mod mode;
mod node;
mod notices;
mod observed_shutdown;
mod oom;
mod own_marks_reverted;
mod own_marks_survivors;
mod pods;
mod policies;
mod preflight;
mod refusals;
mod release;
mod report_fallback;
mod results;
mod shutdown;
mod shutdown_run;
mod standing;
mod status;
mod stuck;
mod summary;
#[cfg(test)]
mod tests;
mod writer;

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

pub use mode::{ARMED_LASTS, Allowed, Detected, Kubelet, detect, kubelet};
pub use notices::REASONS;
pub use status::{
    EvictionCount, LeftReason, LockState, OomStatus, OomTally, PressureStatus, ShutdownStatus,
    SignalStatus, StallStatus, Status, StuckStatus, Tries, VictimStatus, WouldHave,
};

use crate::pod::PodUid;
use crate::pressure::stall::StallConfig;
use crate::pressure::watch::EvictionConfig;
use crate::protocol::action::{Action, ActionId};
use crate::protocol::event::{Event, Now};
use crate::protocol::journal::Record;
use crate::shutdown::candidates::BarePods;
use crate::shutdown::priority_groups::PriorityGroups;
use crate::termination::clock::Clock;
use crate::termination::hanging::StuckTimes;

use calls::Calls;
use journal_replay::JournaledShutdown;
use notices::Notices;
use pods::Pods;
use shutdown::Shutdown;
use standing::{KubeletMemory, Logind};
use writer::Writer;

/// Limit of decision rounds at one moment; a shutdown has fewer steps.
const ROUNDS_MAX: usize = 8;

/// The operator's configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The node's wall clock at the start of this boot, if it was recorded then.
    pub booted_at: Option<Timestamp>,
    /// The agent's own pod, if the agent runs as one.
    pub own_pod: Option<PodUid>,
    /// The priority groups; `None` turns pod termination off.
    pub priority_groups: Option<PriorityGroups>,
    /// Replace does not terminate pods of a higher priority.
    pub priority_max: i32,
    /// What Replace does with pods that have no controller.
    pub bare_pods: BarePods,
    /// Whether the agent may use the container runtime's socket.
    pub runtime: bool,
    /// Whether the node runs logind; without it the agent detects no shutdowns but does everything
    /// else.
    pub logind: bool,
    /// Whether the agent may write logind's drop-in.
    pub raise_delay: bool,
    /// Whether the agent may act; otherwise it observes.
    pub enforce: bool,
    /// Limit of concurrent API calls.
    pub in_flight_max: usize,
    /// What the agent does outside of shutdowns.
    pub features: Features,
}

/// Whether the agent acts, only reports, or does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// The agent does not check.
    #[default]
    Off,
    /// The agent reports by events and metrics.
    Observe,
    /// The agent acts.
    Enforce,
}

/// What the agent does outside of shutdowns; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// Node pressure.
    pub pressure: Enforcement,
    /// Eviction thresholds and times.
    pub eviction: EvictionConfig,
    /// When a stall counts.
    pub stalls: StallConfig,
    /// Whether pods with OOM kills get a condition that states the cause.
    pub oom_causes: bool,
    /// Whether a kernel OOM kill of a node without memory counts as a disruption.
    pub node_oom_disrupts: bool,
    /// Deleted pods that no kubelet terminates. ([PT7])
    pub stuck_pods: Enforcement,
    /// Whether the agent fails a pod that hangs in its start under a live kubelet. ([PT13])
    pub fail_hanging_starts: bool,
    /// Wait times for stuck pods.
    pub stuck_times: StuckTimes,
}

/// The agent's state machine.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    clock: Clock,
    calls: Calls,
    notices: Notices,
    pods: Pods,
    kubelet: KubeletMemory,
    logind: Logind,
    node: node::NodeWrites,
    writer: Writer,
    /// The shutdown of this boot in the journal, until logind reports whether it goes on.
    journaled: Option<JournaledShutdown>,
    shutdown: Option<Shutdown>,
    revoked_marks: cancel::RevokedMarks,
    boot_recovery: boot_recovery::BootRecovery,
    survivors: own_marks_survivors::Survivors,
    evictions: eviction::Evictions,
    oom: oom::Oom,
    stuck: stuck::Stuck,
    reverted_writes: own_marks_reverted::RevertedWrites,
    refusals: refusals::Refusals,
    policies: policies::Policies,
    /// When the agent received the request to stop.
    stop_at: Option<Duration>,
    status: Status,
}

impl Agent {
    /// Creates an agent that has just started and found this journal.
    pub fn new(settings: Settings, journal: &[Record], now: Now) -> Self {
        let logind = if settings.logind { Logind::default() } else { Logind::absent() };
        let (in_flight_max, enforce) = (settings.in_flight_max, settings.enforce);
        let evictions = eviction::Evictions::new(&settings.features);
        let mut agent = Self {
            settings,
            clock: Clock::new(now),
            calls: Calls::new(in_flight_max),
            notices: Notices::default(),
            pods: Pods::default(),
            kubelet: KubeletMemory::default(),
            logind,
            node: node::NodeWrites::default(),
            writer: Writer::new(!journal.is_empty()),
            journaled: None,
            shutdown: None,
            revoked_marks: cancel::RevokedMarks::default(),
            boot_recovery: boot_recovery::BootRecovery::default(),
            survivors: own_marks_survivors::Survivors::default(),
            evictions,
            oom: oom::Oom::default(),
            stuck: stuck::Stuck::default(),
            reverted_writes: own_marks_reverted::RevertedWrites::default(),
            refusals: refusals::Refusals::default(),
            policies: policies::Policies::new(enforce),
            stop_at: None,
            status: Status::default(),
        };
        agent.recall(journal);
        agent.summarize();
        agent
    }

    /// Processes one event.
    pub fn handle(&mut self, event: Event, now: Now) {
        self.clock_to(now);
        self.take_in(event);
        self.advance();
    }

    /// Returns the next action, until there are no more.
    pub fn poll_action(&mut self, now: Now) -> Option<(ActionId, Action)> {
        if let Some(action) = self.calls.fetch() {
            return Some(action);
        }
        self.clock_to(now);
        self.advance();
        self.calls.fetch()
    }

    /// When to call `poll_action` again without an event, on CLOCK_MONOTONIC.
    pub fn deadline(&self) -> Option<Duration> {
        self.clock.wake()
    }

    /// The state for metrics, `/readyz` and `doctor`.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Sets the clock. Time that CLOCK_MONOTONIC did not count was a suspend. Facts about the
    /// kubelet are older than the suspend. ([AP22])
    fn clock_to(&mut self, now: Now) {
        let suspended = |now: Now| now.boot.saturating_sub(now.monotonic);
        let before = suspended(self.clock.now());
        self.clock.set(now);
        if suspended(now) > before + Duration::from_secs(1) {
            self.kubelet.armed_at = None;
            self.calls.log(false, None, "the machine was suspended");
        }
    }

    /// Decides what to do from what is known now. A repeated call without new facts does nothing.
    fn advance(&mut self) {
        // One decision may cause another.
        for _ in 0..ROUNDS_MAX {
            let before = self.status.clone();
            self.clock.set(self.clock.now());
            self.decide();
            self.summarize();
            if self.status == before {
                return;
            }
        }
    }

    fn decide(&mut self) {
        self.forget_refusals();
        self.settle_journaled();
        self.heed_policies();
        self.stand();
        self.write_node();
        self.advance_shutdown();
        self.advance_revocations();
        self.advance_boot_recovery();
        self.find_survivors();
        self.advance_oom();
        self.advance_evictions();
        self.advance_stuck();
        self.write_node();
        self.write_journal();
        self.send_events();
    }
}
