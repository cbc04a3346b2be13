//! Parses the time range of a report: `30m`, `24h`, `7d`.

use std::str::FromStr;

use jiff::SignedDuration;
use thiserror::Error;

/// A year: no object of a cluster says more about an earlier time.
const DAYS_MAX: i64 = 366;
const EXPECTED: &str = "expected a number of minutes, hours or days from 1m to 366d, such as 30m, \
                        24h or 7d";

/// How far back a report goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since(pub SignedDuration);

/// The text is not such a duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{EXPECTED}")]
pub(crate) struct NotSince;

impl FromStr for Since {
    type Err = NotSince;

    fn from_str(text: &str) -> Result<Self, NotSince> {
        let unit = text.chars().next_back().ok_or(NotSince)?;
        let digits = text.strip_suffix(unit).unwrap_or_default();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let minutes: i64 = match unit {
            'm' => 1,
            'h' => 60,
            'd' => 24 * 60,
            _ => return Err(NotSince),
        };
        let number: i64 = digits.parse().ok().filter(|_| is_number).ok_or(NotSince)?;
        let minutes = number.checked_mul(minutes).ok_or(NotSince)?;
        if (1..=DAYS_MAX * 24 * 60).contains(&minutes) {
            Ok(Self(SignedDuration::from_mins(minutes)))
        } else {
            Err(NotSince)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_hours_and_days_are_read_and_no_other_text() {
        let minutes = |text: &str| text.parse::<Since>().ok().map(|since| since.0.as_mins());
        let table = [("30m", 30), ("24h", 1440), ("7d", 10_080), ("1m", 1), ("366d", 527_040)];
        for (text, expected) in table {
            assert_eq!(minutes(text), Some(expected), "{text}");
        }
        let wrong = ["", "d", "7", "7w", "-1d", "+1d", "1.5h", "1h30m", "0m", "367d", "7 d", "7é"];
        for text in wrong.into_iter().chain(["99999999999999999999d", "9223372036854775807d"]) {
            assert_eq!(minutes(text), None, "{text}");
        }
        assert!(NotSince.to_string().ends_with("such as 30m, 24h or 7d"));
    }
}
