//! Reads quantities of resources as the API writes them: `2`, `500m`, `1.5Gi`, `1e3`.

use serde_json::Value;

/// Suffixes and their factors in billionths.
const SUFFIXES: [(&str, i128); 16] = [
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("", NANO),
    ("k", NANO * 1_000),
    ("M", NANO * 1_000_000),
    ("G", NANO * 1_000_000_000),
    ("T", NANO * 1_000_000_000_000),
    ("P", NANO * 1_000_000_000_000_000),
    ("E", NANO * 1_000_000_000_000_000_000),
    ("Ki", NANO << 10),
    ("Mi", NANO << 20),
    ("Gi", NANO << 30),
    ("Ti", NANO << 40),
    ("Pi", NANO << 50),
    ("Ei", NANO << 60),
];
const NANO: i128 = 1_000_000_000;
/// Further digits are smaller than the API stores.
const DIGITS_MAX: usize = 18;

/// The quantity in billionths; `None` if it cannot be read.
pub(super) fn billionths(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse(text),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    }
}

fn parse(text: &str) -> Option<i128> {
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let text = text.strip_prefix('+').unwrap_or(text);
    let (number, suffix) = text.split_at(text.find(|it| !is_number(it)).unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let factor = factor(suffix)?;
    let fraction = fraction.get(..DIGITS_MAX.min(fraction.len()))?;
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let unit = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    whole.checked_mul(factor)?.checked_add(part.checked_mul(factor)? / unit)
}

fn factor(suffix: &str) -> Option<i128> {
    if let Some((_, factor)) = SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some(*factor);
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    if exponent < 0 { Some(NANO / power) } else { NANO.checked_mul(power) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_are_read_as_the_api_reads_them() {
        let table = [
            (json!("2"), Some(2 * NANO)),
            (json!(2), Some(2 * NANO)),
            (json!("500m"), Some(NANO / 2)),
            (json!("0.5"), Some(NANO / 2)),
            (json!(".5"), Some(NANO / 2)),
            (json!("1.5Gi"), Some((3 << 29) * NANO)),
            (json!("1e3"), Some(1_000 * NANO)),
            (json!("1E"), Some(NANO * 1_000_000_000_000_000_000)),
            (json!("100n"), Some(100)),
            (json!("5e-1"), Some(NANO / 2)),
            (json!("1e400"), None),
            (json!("9".repeat(60)), None),
            (json!("Gi"), None),
            (json!("1.2.3"), None),
            (json!("-1"), None),
            (json!("1\u{b5}"), None),
            (json!(true), None),
            (json!(null), None),
        ];
        for (value, expected) in table {
            assert_eq!(billionths(&value), expected, "{value}");
        }
    }
}
