//! Knows the usual values of `spec.managedBy` and guesses which one a typo meant.

use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};

/// The value of Kueue's MultiKueue.
pub(super) const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";

const KNOWN: [&str; 3] = [MANAGED_BY, RESERVED_MANAGED_BY, MULTI_KUEUE];
/// The most edits that count as a typo; beyond it the value is another name.
const EDITS_MAX: usize = 4;

/// Whether the value is a known one.
pub(super) fn is_known(value: &str) -> bool {
    KNOWN.contains(&value)
}

/// The known value that was probably meant.
pub(super) fn meant(value: &str) -> Option<&'static str> {
    let value = value.to_lowercase();
    let near = KNOWN.iter().map(|known| (edits(&value, known), *known)).min()?;
    (near.0 <= EDITS_MAX).then_some(near.1)
}

/// The Levenshtein distance: how many characters to insert, remove or change. Values have at most
/// 63 characters.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        let table = [("", "", 0), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "acb", 2)];
        for (from, to, expected) in table {
            assert_eq!((edits(from, to), edits(to, from)), (expected, expected), "{from} {to}");
        }
    }

    #[test]
    fn a_slip_of_the_hand_is_understood_and_another_name_is_not() {
        let table = [
            ("epilogue.dev/job-controler", Some(MANAGED_BY)),
            ("epilog.dev/job-controller", Some(MANAGED_BY)),
            ("Epilogue.dev/Job-Controller", Some(MANAGED_BY)),
            ("kubernetes.io/jobcontroller", Some(RESERVED_MANAGED_BY)),
            ("kueue.x-k8s.io/multi-kueue", Some(MULTI_KUEUE)),
            ("example.com/other", None),
        ];
        for (value, expected) in table {
            assert_eq!(meant(value), expected, "{value}");
        }
    }
}
