//! What a cloud says of the end of the machine, and the dates in which it says so.
//!
//! A notice has a point in time, not the time that is left: so it stays right while a later answer
//! of the service cannot be read.

use std::time::Duration;

use agent_core::protocol::ending::{Ending, ShutdownKind};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde_json::Value;

/// Maximum number of characters that an error repeats of an answer.
const EXCERPT_CHARS_MAX: usize = 60;
/// An end whose source does not say the time is before all that are further away than this. Its
/// time may have come already; but a deadline that is near tells more, and both begin at once.
const NEAR: Duration = Duration::from_mins(2);

/// An end of the machine at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// `None` if the source does not say it.
    pub(super) at: Option<Timestamp>,
    pub(super) kind: Option<ShutdownKind>,
    pub(super) certain: bool,
}

impl Notice {
    /// An end that will come unless its source withdraws it.
    pub(super) fn certain(at: Option<Timestamp>, kind: ShutdownKind) -> Self {
        Self { at, kind: Some(kind), certain: true }
    }

    /// An end that may not come.
    pub(super) fn uncertain(at: Option<Timestamp>) -> Self {
        Self { at, kind: None, certain: false }
    }

    /// The end as the core wants it.
    pub(super) fn ending(self, now: Timestamp) -> Ending {
        let within = self.at.map(|at| left(at, now));
        Ending { within, kind: self.kind, certain: self.certain }
    }
}

/// The notice that counts: the earliest of the certain ones; without one, of the others.
pub(super) fn soonest(notices: impl IntoIterator<Item = Notice>, now: Timestamp) -> Option<Notice> {
    notices.into_iter().min_by_key(|notice| {
        let within = notice.at.map_or(NEAR, |at| left(at, now));
        (!notice.certain, within)
    })
}

/// The time until then: zero if it is past.
fn left(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// The time after this, or the last that there is.
pub(super) fn after(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_add(time).unwrap_or(Timestamp::MAX)
}

/// Reads a date of RFC 3339, as in `2017-09-18T08:22:00Z`, or of RFC 1123, as in
/// `Mon, 19 Sep 2016 18:29:47 GMT` or without the weekday.
pub(super) fn date(text: &str) -> Result<Timestamp, String> {
    const RFC_1123: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);
    let text = text.trim();
    let read = text.parse().or_else(|_| RFC_1123.parse_timestamp(text));
    read.map_err(|_| format!("{} is not a date", excerpt(text)))
}

/// The text of an object's field.
pub(super) fn string<'a>(object: &'a Value, name: &str) -> Result<&'a str, String> {
    let value = object.get(name).ok_or_else(|| format!("{name} is not there"))?;
    value.as_str().ok_or_else(|| format!("{name} is not a string"))
}

/// The beginning of a text from outside, on one line.
pub(super) fn excerpt(text: &str) -> String {
    let short: String = text.chars().take(EXCERPT_CHARS_MAX).collect();
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_in_the_forms_of_the_clouds() {
        let table = [
            ("2017-09-18T08:22:00Z", Some(1_505_722_920)),
            ("2019-03-14T20:00:00.000Z", Some(1_552_593_600)),
            ("2024-12-01T19:00:01+00:00", Some(1_733_079_601)),
            ("21 Jan 2019 09:00:43 GMT", Some(1_548_061_243)),
            (" 1 Jan 2019 09:00:43 GMT\n", Some(1_546_333_243)),
            ("Mon, 19 Sep 2016 18:29:47 GMT", Some(1_474_309_787)),
            // The weekday is wrong, and says nothing that the rest does not.
            ("Fri, 19 Sep 2016 18:29:47 GMT", Some(1_474_309_787)),
            ("30 Dec 9999 00:00:00 GMT", Some(253_402_128_000)),
            ("31 Dec 9999 00:00:00 GMT", None),
            ("1 Jan 0001 00:00:00 GMT", Some(-62_135_596_800)),
            ("", None),
            ("GMT", None),
            ("1505722920", None),
            ("2017-09-18T08:22:00", None),
            ("30 Feb 2019 09:00:43 GMT", None),
            ("31 Dec 99999 00:00:00 GMT", None),
            ("\u{0}", None),
        ];
        for (text, expected) in table {
            assert_eq!(date(text).ok().map(Timestamp::as_second), expected, "{text:?}");
        }
    }

    #[test]
    fn the_earliest_certain_notice_counts() {
        let now = Timestamp::UNIX_EPOCH;
        let end = |seconds: Option<u64>, certain| Notice {
            at: seconds.map(|seconds| after(now, Duration::from_secs(seconds))),
            kind: None,
            certain,
        };
        let table = [
            (vec![], None),
            (vec![end(Some(9), true), end(Some(5), true)], Some((Some(5), true))),
            (vec![end(Some(5), false), end(Some(9), true)], Some((Some(9), true))),
            (vec![end(None, false), end(Some(9_999), true)], Some((Some(9_999), true))),
            (vec![end(None, true), end(Some(90), true)], Some((Some(90), true))),
            (vec![end(None, true), end(Some(121), true)], Some((None, true))),
            (vec![end(Some(9), false), end(Some(5), false)], Some((Some(5), false))),
        ];
        for (notices, expected) in table {
            let expected = expected.map(|(seconds, certain)| end(seconds, certain));
            assert_eq!(soonest(notices.clone(), now), expected, "{notices:?}");
        }
    }

    #[test]
    fn the_time_that_is_left_is_never_less_than_zero() {
        let (least, most) = (Timestamp::MIN, Timestamp::MAX);
        assert_eq!(left(least, most), Duration::ZERO);
        assert!(left(most, least) > Duration::from_hours(24 * 365 * 9_000));
        assert_eq!(after(most, Duration::MAX), most);
        assert_eq!(after(least, Duration::MAX), most);
    }

    #[test]
    fn an_excerpt_is_short() {
        assert_eq!(excerpt("<html>\n"), r#""<html>\n""#);
        assert_eq!(excerpt(&"é".repeat(1 << 20)).chars().count(), EXCERPT_CHARS_MAX + 2);
    }
}
