//! Formats times, and says which problems are old enough to report.

use jiff::{SignedDuration, Timestamp};

/// A problem younger than this is not reported: the component in charge gets the time to act.
pub(super) const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// Whether the component in charge had enough time to act.
pub(super) fn is_overdue(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since) > MARGIN
}

/// Formats a time as the API does.
pub(super) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
