//! Parses Kubernetes amounts (`100Mi`, `1500`, `1.5Gi`, `2k`) into whole units, and prints the
//! canonical form of the kubelet's messages. ([EV13])

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// Suffixes of powers of 1024, in descending order.
const BINARY: [(&str, u64); 6] = [
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
];

/// Suffixes of powers of 1000, in descending order.
const DECIMAL: [(&str, u64); 6] = [
    ("E", 1_000_000_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// Below 1024 the decimal form applies, whatever the format.
const BINARY_MIN: u64 = 1_024;
/// Maximum number of digits after the point; further ones are smaller than any unit.
const FRACTION_DIGITS_MAX: usize = 18;

/// How a quantity is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Format {
    /// By powers of 1024: bytes.
    Binary,
    /// By powers of 1000: counts.
    Decimal,
}

/// An amount of whole units; equality ignores the printed format.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantity {
    /// Number of units.
    pub units: u64,
    /// Format in print.
    pub format: Format,
}

/// The error for a text that is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid amount {0:?}: expected a number with or without a unit, such as 100Mi, 2G or 1200"
)]
pub struct QuantityError(pub String);

impl Quantity {
    /// An amount of bytes.
    pub const fn bytes(units: u64) -> Self {
        Self { units, format: Format::Binary }
    }

    /// A count of things.
    pub const fn count(units: u64) -> Self {
        Self { units, format: Format::Decimal }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.units == other.units
    }
}

impl Eq for Quantity {}

impl FromStr for Quantity {
    type Err = QuantityError;

    /// Rounds up to whole units, as upstream's `Value()` does. Negative amounts are invalid,
    /// because no resource here can be negative.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bad = || QuantityError(text.to_owned());
        let number = text.strip_prefix('+').unwrap_or(text);
        let end = number
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(number.len());
        let (number, suffix) = number.split_at(end);
        let (scale, format) = scale(suffix).ok_or_else(bad)?;
        let units = times(number, scale).ok_or_else(bad)?;
        Ok(Self { units, format })
    }
}

/// Factor of a suffix: a numerator and a power of ten as denominator.
#[derive(Clone, Copy)]
struct Scale {
    multiplier: u64,
    divisor: u64,
}

fn scale(suffix: &str) -> Option<(Scale, Format)> {
    let whole = |multiplier| Scale { multiplier, divisor: 1 };
    let part = |divisor| Scale { multiplier: 1, divisor };
    if let Some((_, multiplier)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((whole(*multiplier), Format::Binary));
    }
    if let Some((_, multiplier)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((whole(*multiplier), Format::Decimal));
    }
    let scale = match suffix {
        "" => whole(1),
        "m" => part(1_000),
        "u" => part(1_000_000),
        "n" => part(1_000_000_000),
        _ => exponent(suffix)?,
    };
    Some((scale, Format::Decimal))
}

/// Parses an exponent such as `e3` or `E-3`.
fn exponent(suffix: &str) -> Option<Scale> {
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_u64.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 {
        Scale { multiplier: 1, divisor: power }
    } else {
        Scale { multiplier: power, divisor: 1 }
    })
}

/// Multiplies a decimal number by a scale and rounds up; `None` if it is not a number, or
/// overflows.
fn times(number: &str, scale: Scale) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_empty = whole.is_empty() && fraction.is_empty();
    if is_empty || fraction.contains('.') || fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let parsed = |digits: &str| if digits.is_empty() { Some(0_u128) } else { digits.parse().ok() };
    let fraction_power = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits = parsed(whole)?.checked_mul(fraction_power)?.checked_add(parsed(fraction)?)?;
    let numerator = digits.checked_mul(u128::from(scale.multiplier))?;
    let denominator = fraction_power.checked_mul(u128::from(scale.divisor))?;
    u64::try_from(numerator.div_ceil(denominator)).ok()
}

impl fmt::Display for Quantity {
    /// Uses the greatest unit that leaves a whole number.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffixes = match self.format {
            Format::Binary if self.units >= BINARY_MIN => &BINARY,
            _ => &DECIMAL,
        };
        let fits = |(_, scale): &&(&str, u64)| self.units > 0 && self.units.is_multiple_of(*scale);
        match suffixes.iter().find(fits) {
            Some((suffix, scale)) => write!(formatter, "{}{suffix}", self.units / scale),
            None => write!(formatter, "{}", self.units),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(text: &str) -> Result<u64, QuantityError> {
        text.parse::<Quantity>().map(|quantity| quantity.units)
    }

    #[test]
    fn amounts_are_read_as_whole_units() {
        let table = [
            ("100Mi", 104_857_600),
            ("1.5Gi", 1_610_612_736),
            ("2k", 2_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1E", 1_000_000_000_000_000_000),
            ("25e-1", 3),
            ("1200", 1_200),
            ("+5", 5),
            (".5k", 500),
            ("5.", 5),
            // rounded up
            ("0.3", 1),
            ("1500m", 2),
            ("1n", 1),
            ("0", 0),
            ("15Ei", 17_293_822_569_102_704_640),
        ];
        for (text, expected) in table {
            assert_eq!(units(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_without_a_panic() {
        for text in [
            "",
            ".",
            "-1",
            "1.2.3",
            "Mi",
            "1 Mi",
            "1MiB",
            "0x10",
            "1K",
            "16Ei",
            "1e99",
            "1e-99",
            "٣",
            "99999999999999999999999999999999999999999999",
            "1.0000000000000000000001",
            "1é",
        ] {
            assert!(units(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn amounts_are_printed_in_the_canonical_form() {
        let table = [
            // As in the kubelet's messages. ([EV13])
            (Quantity::bytes(2 << 30), "2Gi"),
            (Quantity::bytes(1500 << 20), "1500Mi"),
            (Quantity::bytes(1536 << 20), "1536Mi"),
            (Quantity::count(1_200), "1200"),
            (Quantity::count(500), "500"),
            (Quantity::count(2_000), "2k"),
            (Quantity::bytes(1_000), "1k"),
            (Quantity::bytes(1_023), "1023"),
            (Quantity::bytes(1_024), "1Ki"),
            (Quantity::bytes(1_025), "1025"),
            (Quantity::bytes(0), "0"),
        ];
        for (quantity, expected) in table {
            assert_eq!(quantity.to_string(), expected);
        }
    }
}
