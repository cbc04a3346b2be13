//! What survives a crash of the agent or of the machine: the records of one shutdown. Framing,
//! checksum and sync are the sink's. ([AP18])

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::event::ShutdownKind;
use crate::pod::PodUid;
use crate::shutdown::Mode;

/// One entry; the order is that of writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// A shutdown has begun.
    Begun {
        /// `/proc/sys/kernel/random/boot_id`.
        boot_id: String,
        /// CLOCK_BOOTTIME at the signal.
        at: Duration,
        /// The API's time at the signal.
        wall: Timestamp,
        /// What logind granted.
        granted: Duration,
        /// The mode at the beginning.
        mode: Mode,
        /// What was announced.
        kind: Option<ShutdownKind>,
    },
    /// What is going to be done to a pod; written before it is.
    Intent {
        /// The pod.
        uid: PodUid,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What.
        intent: Intent,
        /// The `lastTransitionTime` that the patch carries: a replay sends the same.
        at: Timestamp,
    },
    /// The API has acknowledged what was intended, or shows it.
    Acknowledged {
        /// The pod.
        uid: PodUid,
        /// What.
        intent: Intent,
    },
    /// The lock was released.
    Released {
        /// The pods whose end the API had not shown by then.
        unreported: Vec<PodUid>,
    },
}

/// What is done to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Intent {
    /// Its `DisruptionTarget`.
    Mark,
    /// The same, and no container of it had run by then.
    MarkBeforeStart,
    /// Nothing: all its containers had exited before the shutdown.
    LeaveExited,
    /// Its deletion, or the deadline lever.
    End,
    /// Its `phase=Failed`.
    Fail,
    /// Its `DisruptionTarget` taken back.
    Clear,
}
