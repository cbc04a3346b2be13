//! The agent: past facts in, imperatives out. All that it decides, it decides in `advance`, from
//! what it knows and the clock; an event only adds to what it knows.
//!
//! What holds in every order of events, after every crash and at every speed of the API:
//!
//! - `Failed` is never written while a container of the pod may run: only after the runtime proved
//!   that nothing runs, and beside a live kubelet only at the end of the time there is, or for a
//!   deleted pod in which it hangs and where the operator asks for it. ([AP3], [PT13])
//! - `DisruptionTarget` is sent before the pod is ended, or with its phase, never after it.
//! - The lock is not released while a report is awaited or a write of ours is unacknowledged and
//!   time is left; and never later than the time there is.
//! - A static pod is never touched.
//! - A cancelled shutdown takes back what it wrote on pods that live on, at once, and until the
//!   API shows it.
//! - `Failed` is written at most once per pod and run without a fresh read in between.
//! - Every write can be repeated: it carries the UID, and a mark the time from the journal.

mod boot_recovery;
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
mod oom;
mod outbox;
mod own_marks_reverted;
mod own_marks_survivors;
mod pods;
mod policies;
mod preflight;
mod refusals;
mod release;
mod report_fallback;
mod results;
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
    SignalStatus, StallStatus, Status, StuckStatus, Tries, VictimStatus,
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

use journal_replay::JournaledShutdown;
use notices::Notices;
use outbox::Outbox;
use pods::Pods;
use shutdown_run::Shutdown;
use standing::{KubeletMemory, Logind};
use writer::Writer;

/// Rounds of decisions at one moment; a shutdown has fewer steps.
const ROUNDS_MAX: usize = 8;

/// What the operator has decided.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// What the node's clock showed when this boot began, where somebody noted it then.
    pub booted_at: Option<Timestamp>,
    /// The agent's own pod, where it runs as one.
    pub own_pod: Option<PodUid>,
    /// The priority groups; none turns the ending of pods off.
    pub priority_groups: Option<PriorityGroups>,
    /// Replace leaves pods of a higher priority to the system.
    pub priority_max: i32,
    /// What Replace does with pods that have no controller.
    pub bare_pods: BarePods,
    /// Whether the container runtime's socket may be used.
    pub runtime: bool,
    /// Whether the node has a logind; without one no shutdown is heard, and the rest goes on.
    pub logind: bool,
    /// Whether logind's drop-in may be written.
    pub raise_delay: bool,
    /// Whether the agent may act; else it observes.
    pub enforce: bool,
    /// API calls at once.
    pub in_flight_max: usize,
    /// What it does outside of shutdowns.
    pub features: Features,
}

/// Whether something is done, only said, or left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Not even looked at.
    #[default]
    Off,
    /// Said by events and metrics.
    Observe,
    /// Done.
    Enforce,
}

/// What the agent does outside of shutdowns; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// Of the node's pressure.
    pub pressure: Enforcement,
    /// Thresholds and times.
    pub eviction: EvictionConfig,
    /// When stalls count.
    pub stalls: StallConfig,
    /// Whether pods whose containers were killed for memory get a condition that says so.
    pub oom_causes: bool,
    /// Whether a pod that the kernel killed because the node had no memory counts as disrupted.
    pub node_oom_disrupts: bool,
    /// Of deleted pods that no kubelet ends. ([PT7])
    pub stuck_pods: Enforcement,
    /// Whether a pod that hangs in its start under a live kubelet is failed. ([PT13])
    pub fail_hanging_starts: bool,
    /// How long is waited before that.
    pub stuck_times: StuckTimes,
}

/// The state machine.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    clock: Clock,
    outbox: Outbox,
    notices: Notices,
    pods: Pods,
    kubelet: KubeletMemory,
    logind: Logind,
    node: node::NodeWrites,
    writer: Writer,
    /// What the journal says of a shutdown of this boot, until logind has said whether it goes on.
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
    /// When the agent was told to stop.
    stop_at: Option<Duration>,
    status: Status,
}

impl Agent {
    /// An agent that has just started and found this journal.
    pub fn new(settings: Settings, journal: &[Record], now: Now) -> Self {
        let logind = if settings.logind { Logind::default() } else { Logind::absent() };
        let (in_flight_max, enforce) = (settings.in_flight_max, settings.enforce);
        let evictions = eviction::Evictions::new(&settings.features);
        let mut agent = Self {
            settings,
            clock: Clock::new(now),
            outbox: Outbox::new(in_flight_max),
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

    /// Takes in what has happened.
    pub fn handle(&mut self, event: Event, now: Now) {
        self.clock_to(now);
        self.take_in(event);
        self.advance();
    }

    /// The next thing to do, until there is none.
    pub fn poll_action(&mut self, now: Now) -> Option<(ActionId, Action)> {
        if let Some(action) = self.outbox.fetch() {
            return Some(action);
        }
        self.clock_to(now);
        self.advance();
        self.outbox.fetch()
    }

    /// When `poll_action` is to be called again if nothing happens before, on CLOCK_MONOTONIC.
    pub fn deadline(&self) -> Option<Duration> {
        self.clock.wake()
    }

    /// What others may see.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Goes on to a moment. Time that CLOCK_MONOTONIC did not count was a suspend: what was known
    /// of the kubelet is of before it. ([AP22])
    fn clock_to(&mut self, now: Now) {
        let suspended = |now: Now| now.boot.saturating_sub(now.monotonic);
        let before = suspended(self.clock.now());
        self.clock.set(now);
        if suspended(now) > before + Duration::from_secs(1) {
            self.kubelet.armed_at = None;
            self.outbox.log(false, None, "the machine was suspended");
        }
    }

    /// Decides what to do from what is known now. Asked again with nothing new, it does nothing.
    fn advance(&mut self) {
        // One decision may be the ground of another.
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
