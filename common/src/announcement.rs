//! Defines the annotation `epilogue.dev/state` of a node: the agent writes it, the controller reads
//! it. ([AP20], [AP21])

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// The state that an agent announces for its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// No shutdown is in progress.
    Idle,
    /// The node is shutting down.
    ShuttingDown {
        /// The boot that the shutdown ends, as in `status.nodeInfo.bootID`.
        boot_id: String,
        /// When the agent learned of the shutdown, by the API's clock.
        since: Timestamp,
    },
    /// The drained record, written before the machine goes down. The container runtime proved that
    /// only pods of DaemonSets, static pods and the agent's own ran.
    Drained {
        /// The boot that ended.
        boot_id: String,
        /// When the agent observed it, by the API's clock.
        at: Timestamp,
    },
}

/// The text is not a valid announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnAnnouncement;

impl fmt::Display for NotAnAnnouncement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("expected idle, shutting-down;boot=ID;since=TIME or drained;boot=ID;at=TIME")
    }
}

impl std::error::Error for NotAnAnnouncement {}

impl fmt::Display for Announcement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |at: &Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        match self {
            Self::Idle => formatter.write_str("idle"),
            Self::ShuttingDown { boot_id, since } => {
                write!(formatter, "shutting-down;boot={boot_id};since={}", seconds(since))
            }
            Self::Drained { boot_id, at } => {
                write!(formatter, "drained;boot={boot_id};at={}", seconds(at))
            }
        }
    }
}

impl FromStr for Announcement {
    type Err = NotAnAnnouncement;

    fn from_str(text: &str) -> Result<Self, NotAnAnnouncement> {
        let mut parts = text.split(';');
        let word = parts.next();
        let mut field = |name: &str| {
            let value = parts.next().and_then(|part| part.strip_prefix(name)?.strip_prefix('='));
            value.filter(|value| !value.is_empty()).ok_or(NotAnAnnouncement)
        };
        let time = |text: &str| text.parse().map_err(|_| NotAnAnnouncement);
        let announcement = match word {
            Some("idle") => Self::Idle,
            Some("shutting-down") => Self::ShuttingDown {
                boot_id: field("boot")?.to_owned(),
                since: time(field("since")?)?,
            },
            Some("drained") => {
                Self::Drained { boot_id: field("boot")?.to_owned(), at: time(field("at")?)? }
            }
            _ => return Err(NotAnAnnouncement),
        };
        parts.next().is_none().then_some(announcement).ok_or(NotAnAnnouncement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let at = "2026-11-21T14:05:06Z".parse().expect("must be a time");
        let boot_id = "7d0c9ee0-3a1d".to_owned();
        let table = [
            (Announcement::Idle, "idle"),
            (
                Announcement::ShuttingDown { boot_id: boot_id.clone(), since: at },
                "shutting-down;boot=7d0c9ee0-3a1d;since=2026-11-21T14:05:06Z",
            ),
            (
                Announcement::Drained { boot_id, at },
                "drained;boot=7d0c9ee0-3a1d;at=2026-11-21T14:05:06Z",
            ),
        ];
        for (announcement, text) in table {
            assert_eq!(announcement.to_string(), text);
            assert_eq!(text.parse(), Ok(announcement));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "Idle",
            "idle;x",
            "shutting-down",
            "shutting-down;boot=;since=2026-11-21T14:05:06Z",
            "shutting-down;since=2026-11-21T14:05:06Z;boot=b",
            "shutting-down;boot=b;since=yesterday",
            "drained;boot=b;at=2026-11-21T14:05:06Z;",
        ] {
            assert_eq!(text.parse::<Announcement>(), Err(NotAnAnnouncement), "{text:?}");
        }
    }
}
