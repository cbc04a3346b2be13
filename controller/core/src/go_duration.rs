//! Parses durations as Go programs write them: `1s`, `500ms`, `1.5h`, `10m0s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Units with their nanoseconds. A longer name comes before its own prefix.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration from a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GoDurationError {
    /// The text is not a duration.
    #[error("invalid duration {0:?}: expected a number with a unit, such as 500ms, 1s or 10m0s")]
    Syntax(String),
    /// The duration is negative.
    #[error("invalid duration {0:?}: expected 0 or more")]
    Negative(String),
    /// The duration is too long.
    #[error("invalid duration {0:?}: expected at most 2540400h")]
    TooLong(String),
}

impl FromStr for GoDuration {
    type Err = GoDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let nanos = nanos(unsigned).map_err(|why| why(text.to_owned()))?;
        if text.starts_with('-') {
            return Err(GoDurationError::Negative(text.to_owned()));
        }
        Ok(Self(Duration::from_nanos(nanos)))
    }
}

/// The nanoseconds of a text without a sign, or the kind of its error.
fn nanos(text: &str) -> Result<u64, fn(String) -> GoDurationError> {
    if text == "0" {
        return Ok(0);
    }
    if text.is_empty() {
        return Err(GoDurationError::Syntax);
    }
    let (mut rest, mut total) = (text, Some(0_u64));
    while !rest.is_empty() {
        let (nanos, after) = part(rest).ok_or(GoDurationError::Syntax as fn(String) -> _)?;
        // Go counts nanoseconds in 63 bits.
        total = total
            .zip(nanos)
            .and_then(|(total, nanos)| total.checked_add(nanos))
            .filter(|total| i64::try_from(*total).is_ok());
        rest = after;
    }
    total.ok_or(GoDurationError::TooLong)
}

/// The nanoseconds of one number with its unit, `None` on overflow, and the rest of the text.
fn part(text: &str) -> Option<(Option<u64>, &str)> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (unit, nanos) = UNITS.iter().find(|(unit, _)| {
        rest.strip_prefix(unit).is_some_and(|after| !after.starts_with(char::is_alphabetic))
    })?;
    let after = &rest[unit.len()..];
    let whole = if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok() };
    let total = whole
        .and_then(|whole| whole.checked_mul(*nanos))
        .and_then(|total| total.checked_add(fraction_of(fraction, *nanos)));
    Some((total, after))
}

/// The nanoseconds of a decimal fraction of a unit, rounded down.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let (numerator, denominator) =
        digits.bytes().take(18).fold((0_u128, 1_u128), |(numerator, denominator), digit| {
            (numerator * 10 + u128::from(digit - b'0'), denominator * 10)
        });
    u64::try_from(u128::from(unit) * numerator / denominator).unwrap_or(0)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let (seconds, below) = (self.0.as_secs(), self.0.subsec_nanos());
        if below != 0 {
            let unit = [(1_000_000, "ms"), (1_000, "us")];
            let fit = unit.iter().find(|(size, _)| nanos.is_multiple_of(*size));
            return match fit {
                Some((size, name)) => write!(formatter, "{}{name}", nanos / size),
                None => write!(formatter, "{nanos}ns"),
            };
        }
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, 0, seconds) => write!(formatter, "{seconds}s"),
            (0, minutes, seconds) => write!(formatter, "{minutes}m{seconds}s"),
            (hours, minutes, seconds) => write!(formatter, "{hours}h{minutes}m{seconds}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> Option<u128> {
        text.parse::<GoDuration>().ok().map(|duration| duration.0.as_nanos())
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let (ms, s) = (1_000_000, 1_000_000_000);
        let table = [
            ("0", 0),
            ("0s", 0),
            ("+5s", 5 * s),
            ("1s", s),
            ("500ms", 500 * ms),
            ("10m0s", 600 * s),
            ("1h2m3s", 3723 * s),
            ("1.5h", 5400 * s),
            (".5s", 500 * ms),
            ("1.s", s),
            ("1.000000001s", s + 1),
            ("3ns", 3),
            ("7us", 7_000),
            ("7\u{b5}s", 7_000),
            ("1m1ms", 60 * s + ms),
        ];
        for (text, expected) in table {
            assert_eq!(nanos(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_an_example() {
        for text in ["", "1", "s", "1x", "1s2", ".s", "1..5s", "1 s", "+", "1sm", "\u{1f600}"] {
            let error = text.parse::<GoDuration>().expect_err(text).to_string();
            assert!(error.contains("500ms, 1s or 10m0s"), "{text}: {error}");
        }
        let negative = "-1s".parse::<GoDuration>().expect_err("must be refused");
        assert!(matches!(negative, GoDurationError::Negative(_)), "{negative}");
        let long = "2562048h".parse::<GoDuration>().expect_err("must be refused");
        assert!(matches!(long, GoDurationError::TooLong(_)), "{long}");
    }

    #[test]
    fn any_number_of_signs_is_refused() {
        for signs in ["--", "+-", "-+", "++", &"-".repeat(1 << 20)] {
            let error = format!("{signs}5s").parse::<GoDuration>().expect_err("must be refused");
            assert!(matches!(error, GoDurationError::Syntax(_)));
        }
    }

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for text in ["0s", "1s", "500ms", "10m0s", "1h2m3s", "1500ms", "7us", "3ns"] {
            assert_eq!(text.parse::<GoDuration>().expect("must parse").to_string(), text);
        }
    }
}
