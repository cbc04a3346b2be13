//! Parses time spans in systemd's syntax: `5s`, `1min 30s`, `1.5h`, `infinity`, and a bare number
//! for seconds. A Go duration means the same here. (systemd.time(7), "Parsing time spans"; tested
//! against systemd 252)

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

const SECOND: u64 = 1_000_000;

/// Units with their microseconds; a longer name comes before its own prefix.
const UNITS: [(&str, u64); 30] = [
    ("seconds", SECOND),
    ("second", SECOND),
    ("sec", SECOND),
    ("s", SECOND),
    ("minutes", 60 * SECOND),
    ("minute", 60 * SECOND),
    ("min", 60 * SECOND),
    ("months", 2_629_800 * SECOND),
    ("month", 2_629_800 * SECOND),
    ("M", 2_629_800 * SECOND),
    ("msec", 1_000),
    ("ms", 1_000),
    ("m", 60 * SECOND),
    ("hours", 3_600 * SECOND),
    ("hour", 3_600 * SECOND),
    ("hr", 3_600 * SECOND),
    ("h", 3_600 * SECOND),
    ("days", 86_400 * SECOND),
    ("day", 86_400 * SECOND),
    ("d", 86_400 * SECOND),
    ("weeks", 604_800 * SECOND),
    ("week", 604_800 * SECOND),
    ("w", 604_800 * SECOND),
    ("years", 31_557_600 * SECOND),
    ("year", 31_557_600 * SECOND),
    ("y", 31_557_600 * SECOND),
    ("usec", 1),
    ("us", 1),
    ("\u{3bc}s", 1),
    ("\u{b5}s", 1),
];

/// A time span; `u64::MAX` microseconds mean infinity, as in systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(u64);

/// Why a text is not a time span.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TimeSpanError {
    /// The text has invalid syntax.
    #[error("invalid duration {0:?}: expected a number with a unit, such as 30s or 2min")]
    Syntax(String),
    /// The span is negative or too long.
    #[error("invalid duration {0:?}: expected 0 or more, and at most some thousand years")]
    Bounds(String),
}

impl TimeSpan {
    /// An infinite span.
    pub const INFINITY: Self = Self(u64::MAX);

    /// A span in microseconds, as D-Bus properties give it.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// A span in seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(SECOND))
    }

    /// The span in whole seconds, rounded up; `None` if it is infinite.
    pub fn whole_seconds(self) -> Option<u64> {
        (self != Self::INFINITY).then(|| self.0.div_ceil(SECOND))
    }

    /// The span as a duration; the longest duration if it is infinite.
    pub fn duration(self) -> Duration {
        if self == Self::INFINITY { Duration::MAX } else { Duration::from_micros(self.0) }
    }
}

impl From<Duration> for TimeSpan {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl FromStr for TimeSpan {
    type Err = TimeSpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bounds = || TimeSpanError::Bounds(text.to_owned());
        let syntax = || TimeSpanError::Syntax(text.to_owned());
        let mut rest = text.trim_matches(is_space);
        if rest == "infinity" {
            return Ok(Self::INFINITY);
        }
        if rest.is_empty() {
            return Err(syntax());
        }
        let mut total = 0_u64;
        while !rest.is_empty() {
            if rest.starts_with('-') {
                return Err(bounds());
            }
            let (number, after) = Number::parse(rest).ok_or_else(syntax)?;
            let (unit, after) = unit(after).ok_or_else(syntax)?;
            let micros = number.micros(unit).ok_or_else(bounds)?;
            total = total.checked_add(micros).filter(|sum| *sum < u64::MAX).ok_or_else(bounds)?;
            rest = after.trim_start_matches(is_space);
        }
        Ok(Self(total))
    }
}

/// White space as systemd defines it.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// Digits before and after a point.
struct Number<'a> {
    whole: &'a str,
    fraction: Option<&'a str>,
}

impl<'a> Number<'a> {
    fn parse(text: &'a str) -> Option<(Self, &'a str)> {
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let (whole, rest) = digits(unsigned);
        let Some(behind) = rest.strip_prefix('.') else {
            return (!whole.is_empty()).then_some((Self { whole, fraction: None }, rest));
        };
        if whole.is_empty() && unsigned.len() != text.len() {
            return None;
        }
        let (fraction, rest) = digits(behind);
        let number = Self { whole, fraction: Some(fraction) };
        (!fraction.is_empty()).then_some((number, rest))
    }

    fn micros(&self, unit: u64) -> Option<u64> {
        let whole = if self.whole.is_empty() { 0 } else { self.whole.parse::<u64>().ok()? };
        let mut total = whole.checked_mul(unit)?;
        let mut digit_unit = unit;
        for digit in self.fraction.unwrap_or_default().bytes() {
            digit_unit /= 10;
            total = total.checked_add(u64::from(digit - b'0') * digit_unit)?;
        }
        Some(total)
    }
}

/// Parses the unit after a number; seconds without a unit.
fn unit(text: &str) -> Option<(u64, &str)> {
    let spaced = text.trim_start_matches(is_space);
    let known = UNITS.iter().find(|(name, _)| spaced.starts_with(name));
    if let Some((name, micros)) = known {
        return Some((*micros, &spaced[name.len()..]));
    }
    // `12.34.56` is an error and `12.34 .56` two numbers.
    let parted = spaced.is_empty() || spaced.len() < text.len();
    parted.then_some((SECOND, spaced))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for TimeSpan {
    /// In seconds, to the millisecond: `90s`, `2.2s`, `0.15s`, `infinity`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::INFINITY {
            return formatter.write_str("infinity");
        }
        let (seconds, millis) = (self.0 / SECOND, self.0 % SECOND / 1_000);
        if millis == 0 {
            return write!(formatter, "{seconds}s");
        }
        let fraction = format!("{millis:03}");
        write!(formatter, "{seconds}.{}s", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Result<u64, TimeSpanError> {
        text.parse::<TimeSpan>().map(|span| span.0)
    }

    /// The values are those of `systemd-analyze timespan` 252.
    #[test]
    fn spans_are_read_as_systemd_reads_them() {
        let table = [
            ("5", 5_000_000),
            ("5s", 5_000_000),
            (" 5 s ", 5_000_000),
            ("+5", 5_000_000),
            ("1min 30s", 90_000_000),
            ("1m1", 61_000_000),
            ("90 sec 1", 91_000_000),
            ("1.5h", 5_400_000_000),
            (".5s", 500_000),
            ("1.5", 1_500_000),
            ("12.34 .56", 12_900_000),
            ("500ms", 500_000),
            ("5\u{3bc}s", 5),
            ("2M", 5_259_600_000_000),
            ("1y", 31_557_600_000_000),
            ("10m0s", 600_000_000),
            ("0", 0),
            ("infinity", u64::MAX),
        ];
        for (text, expected) in table {
            assert_eq!(micros(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in ["", " ", "5.", "12.34.56", "5minfoo", "3.sec", "infinitys", "s", "5s-", "x"] {
            assert!(micros(text).is_err(), "{text}");
        }
        for text in ["-5", "1s -1s", "99999999999y", "18446744073709551615us"] {
            assert!(matches!(micros(text), Err(TimeSpanError::Bounds(_))), "{text}");
        }
    }

    #[test]
    fn spans_are_printed_in_seconds() {
        let table = [("1min 30s", "90s"), ("2200ms", "2.2s"), ("150ms", "0.15s"), ("0", "0s")];
        for (text, printed) in table {
            assert_eq!(text.parse::<TimeSpan>().expect("must parse").to_string(), printed);
        }
        assert_eq!(TimeSpan::INFINITY.to_string(), "infinity");
    }
}
