//! Knows the usual values of `spec.managedBy` and guesses which one a typo meant.

use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};

use crate::spelling::nearest;

/// The value of Kueue's MultiKueue.
pub const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";

const KNOWN: [&str; 3] = [MANAGED_BY, RESERVED_MANAGED_BY, MULTI_KUEUE];
/// The most edits that count as a typo; beyond it the value is another name.
const EDITS_MAX: usize = 4;

/// Whether the value is a known one.
pub fn is_known(value: &str) -> bool {
    KNOWN.contains(&value)
}

/// The known value that was probably meant.
pub fn meant(value: &str) -> Option<&'static str> {
    let (edits, known) = nearest(value, KNOWN)?;
    (edits <= EDITS_MAX).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

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
