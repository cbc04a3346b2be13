//! The agent: past facts in, imperatives out.

mod status;

use std::time::Duration;

pub use status::{LockState, RunStatus, Status, Tries};

use crate::pod::PodUid;
use crate::protocol::action::{Action, ActionId};
use crate::protocol::event::{Event, Now};
use crate::protocol::journal::Record;
use crate::shutdown::bands::Bands;
use crate::shutdown::candidates::BarePods;

/// What the operator has decided.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The agent's own pod, where it runs as one.
    pub own_pod: Option<PodUid>,
    /// The bands; none turns the ending of pods off.
    pub bands: Option<Bands>,
    /// Replace leaves pods of a higher priority to the system.
    pub priority_max: i32,
    /// What Replace does with pods that have no controller.
    pub bare_pods: BarePods,
    /// Whether the container runtime's socket may be used.
    pub runtime: bool,
    /// Whether logind's drop-in may be written.
    pub raise_delay: bool,
    /// Whether the agent may act; else it observes.
    pub enforce: bool,
    /// API calls at once.
    pub in_flight_max: usize,
}

/// The state machine.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    status: Status,
}

impl Agent {
    /// An agent that has just started and found this journal.
    pub fn new(settings: Settings, journal: &[Record], now: Now) -> Self {
        let _ = (journal, now);
        Self { settings, status: Status::default() }
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, event: Event, now: Now) {
        let _ = (event, now, &self.settings);
    }

    /// The next thing to do, until there is none.
    pub fn poll_action(&mut self, now: Now) -> Option<(ActionId, Action)> {
        let _ = now;
        None
    }

    /// When `poll_action` is to be called again if nothing happens before, on CLOCK_MONOTONIC.
    pub fn deadline(&self) -> Option<Duration> {
        None
    }

    /// What others may see.
    pub fn status(&self) -> &Status {
        &self.status
    }
}
