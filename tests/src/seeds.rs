//! Reads which seeds a random test is to replay.

use std::ops::RangeInclusive;

/// The seeds that an environment variable asks for: one, such as `17`, or several, such as `1-500`.
///
/// # Panics
///
/// If its text is neither.
pub fn asked_for(variable: &str) -> Option<RangeInclusive<u64>> {
    let text = std::env::var(variable).ok()?;
    Some(parse(&text).unwrap_or_else(|| panic!("{variable}: expected 17 or 1-500")))
}

fn parse(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_or_a_range_is_read() {
        assert_eq!(parse("17"), Some(17..=17));
        assert_eq!(parse("1-500"), Some(1..=500));
        for text in ["", "a", "1-", "-1", "1-2-3"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
