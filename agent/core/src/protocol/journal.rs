//! Defines the records of one shutdown, which survive a crash of the agent or the machine. The sink
//! adds framing, checksum and sync. ([AP18])

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ending::Source;
use crate::pod::{PodRef, PodUid};
use crate::shutdown::Mode;

/// One entry of the journal; entries keep the order of writing.
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
        /// The time that was left by then.
        granted: Duration,
        /// The mode at the start of the shutdown.
        mode: Mode,
        /// The kind of shutdown that its source announced.
        kind: Option<ShutdownKind>,
        /// Who announced it.
        #[serde(default, skip_serializing_if = "Source::is_logind")]
        source: Source,
    },
    /// A planned step for a pod, written before the step.
    Intent {
        /// UID of the pod.
        uid: PodUid,
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// The planned step.
        intent: Intent,
        /// The `lastTransitionTime` of the patch; boot recovery sends the same.
        at: Timestamp,
    },
    /// The API has acknowledged the step, or shows its result.
    Acknowledged {
        /// UID of the pod.
        uid: PodUid,
        /// The acknowledged step.
        intent: Intent,
    },
    /// The agent released the lock.
    Released {
        /// The pods that the API had not shown as terminated by then.
        unreported: Vec<PodUid>,
    },
}

impl Record {
    /// An intended write to a pod.
    pub fn intent(pod: &PodRef, intent: Intent, at: Timestamp) -> Self {
        let PodRef { namespace, name, uid } = pod.clone();
        Self::Intent { uid, namespace, name, intent, at }
    }

    /// An acknowledged write to a pod.
    pub fn acknowledged(uid: &PodUid, intent: Intent) -> Self {
        Self::Acknowledged { uid: uid.clone(), intent }
    }
}

/// `type` of `PrepareForShutdownWithMetadata`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShutdownKind {
    /// The machine powers off.
    Poweroff,
    /// The machine restarts.
    Reboot,
    /// The machine halts.
    Halt,
    /// The machine boots another kernel.
    Kexec,
    /// Another user space starts under the same kernel; the boot id stays.
    SoftReboot,
    /// An unknown word.
    #[serde(untagged)]
    Other(String),
}

impl ShutdownKind {
    /// The kind of this name, as logind writes it. Of an unknown one not more than its beginning is
    /// kept.
    pub fn named(name: &str) -> Self {
        match name {
            "poweroff" => Self::Poweroff,
            "reboot" => Self::Reboot,
            "halt" => Self::Halt,
            "kexec" => Self::Kexec,
            "soft-reboot" => Self::SoftReboot,
            other => Self::Other(other.chars().take(64).collect()),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Poweroff => "poweroff",
            Self::Reboot => "reboot",
            Self::Halt => "halt",
            Self::Kexec => "kexec",
            Self::SoftReboot => "soft-reboot",
            Self::Other(name) => name,
        }
    }
}

/// A step for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Intent {
    /// Sets `DisruptionTarget=True`.
    Mark,
    /// Sets `DisruptionTarget=True`; no container of the pod has run by then.
    MarkBeforeStart,
    /// Does nothing, because all containers had exited before the shutdown.
    LeaveExited,
    /// Deletes the pod, or sets the deadline.
    End,
    /// Sets `phase=Failed`.
    Fail,
    /// Sets `DisruptionTarget=False`.
    Clear,
}
