//! The state of the double, which a test reads and changes.

use tokio::time::Instant;
use zbus::fdo;

/// What, who, why, mode, uid, pid.
pub type Lock = (String, String, String, String, u32, u32);

/// The state of the double, which a test reads and changes.
#[derive(Clone, Debug)]
pub struct State {
    /// `InhibitDelayMaxUSec`; a change is never announced.
    pub delay_us_max: u64,
    /// `InhibitorsMax`.
    pub inhibitors_max: usize,
    /// `ScheduledShutdown`.
    pub scheduled: (String, u64),
    /// Whether the caller may not take locks, as a user without polkit's permission.
    pub denies: bool,
    /// Whether it leaves requests for a lock unanswered.
    pub hangs: bool,
    /// How many it has left unanswered.
    pub hung: usize,
    /// How it answers for `PreparingForShutdown`.
    pub candour: Candour,
    /// Whether it knows `PrepareForShutdownWithMetadata`. (systemd ≥ 255)
    pub metadata: bool,
    /// Locks with their numbers, in the order in which they were taken.
    pub locks: Vec<(u64, Lock)>,
    /// The pipes of the locks' descriptors, as the kernel names them.
    pub pipes: Vec<String>,
    /// `+1` for a granted lock, `-1` for a released one.
    pub history: Vec<i64>,
    /// When the time of the action in progress is over.
    pub pending: Option<Instant>,
    /// Why the last action that ran began.
    pub down: Option<Down>,
    pub(super) taken: u64,
}

/// Why an action ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// No lock delayed it.
    AtOnce,
    /// The last lock was released.
    Released,
    /// The time was over.
    TimedOut,
}

/// How it answers for `PreparingForShutdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candour {
    /// With the truth.
    Honest,
    /// Always with `false`.
    Denying,
    /// Never: the call does not return.
    Mute,
    /// With an error, as `ListInhibitors` does then.
    Refusing,
}

impl State {
    /// How many locks were ever granted.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Who holds locks.
    pub fn holders(&self) -> Vec<&str> {
        self.locks.iter().map(|(_, lock)| lock.1.as_str()).collect()
    }

    pub(super) fn is_held(&self) -> bool {
        let holds = |lock: &Lock| lock.3 == "delay" && lock.0.split(':').any(|it| it == "shutdown");
        self.locks.iter().any(|(_, lock)| holds(lock))
    }

    pub(super) fn speaks(&self) -> fdo::Result<()> {
        match self.candour {
            Candour::Refusing => Err(fdo::Error::NoReply("mute".into())),
            Candour::Honest | Candour::Denying | Candour::Mute => Ok(()),
        }
    }

    pub(super) fn preparing(&self) -> bool {
        self.pending.is_some() || self.down.is_some()
    }
}
