//! Remembers the newest version of one kind that the program knows, from its watch and from the
//! answers to its calls. Each kind has its own: kinds may be stored in different etcds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The newest version of one kind that the program knows. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Newest(Arc<AtomicU64>);

impl Newest {
    /// The version; 0 if none is known, or if versions are not numbers.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the version of a live answer; 0 if it is not a number. The API's version was at least
    /// `floor` before the call was sent.
    ///
    /// Returns whether the answer shows that the API has gone back to an earlier version since, and
    /// that was not known.
    pub fn answered(&self, floor: u64, version: u64) -> bool {
        if version == 0 || version >= floor {
            self.reached(version);
            return false;
        }
        self.get() >= floor
    }

    /// All changes up to this version exist.
    pub(super) fn reached(&self, version: u64) {
        self.0.fetch_max(version, Ordering::Relaxed);
    }

    /// The API has gone back: versions count on from what it shows now.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_older_than_what_was_known_shows_that_the_api_has_gone_back() {
        let newest = Newest::default();
        newest.reached(50);
        let (before, other) = (newest.get(), newest.get());
        assert!(!newest.answered(before, 60));
        assert!(!newest.answered(before, 55), "it was overtaken by another answer");
        assert!(!newest.answered(before, 50), "nothing was changed");
        assert!(!newest.answered(before, 0), "an opaque version");
        assert_eq!(newest.get(), 60);
        assert!(newest.answered(before, 20));
        newest.forget();
        newest.reached(20);
        assert!(!newest.answered(other, 21), "that is known");
    }
}
