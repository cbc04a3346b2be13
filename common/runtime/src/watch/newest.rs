//! Remembers the newest version of one kind that the program knows, from its watch and from the
//! answers to its calls. Each kind has its own: kinds may be stored in different etcds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Signs;
use super::error::RESTORED;

/// The newest version of one kind that the program knows. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Newest(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    version: AtomicU64,
    /// Where the watch of the kind counts its failures.
    signs: OnceLock<Signs>,
}

impl Newest {
    /// The version; 0 if none is known, or if versions are not numbers.
    pub fn get(&self) -> u64 {
        self.0.version.load(Ordering::Relaxed)
    }

    /// Takes the version of a live answer; 0 if it is not a number. The API's version was at least
    /// `floor` before the call was sent.
    ///
    /// Returns whether the answer shows that the API has gone back to an earlier version since, and
    /// that was not known. It counts as a failure of the watch: the caller has it list again.
    pub fn answered(&self, floor: u64, version: u64) -> bool {
        if version == 0 || version >= floor {
            self.reached(version);
            return false;
        }
        let is_news = self.get() >= floor;
        if is_news {
            self.forget();
            self.0.signs.get().inspect(|signs| signs.failed(RESTORED));
        }
        is_news
    }

    /// The watch of the kind begins.
    pub(super) fn watched(&self, signs: &Signs) {
        // A second watch of the kind would count as the first.
        let _ = self.0.signs.set(signs.clone());
    }

    /// All changes up to this version exist.
    pub fn reached(&self, version: u64) {
        self.0.version.fetch_max(version, Ordering::Relaxed);
    }

    /// The API has gone back: versions count on from what it shows now.
    pub(super) fn forget(&self) {
        self.0.version.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use prometheus::proto::LabelPair;

    use super::super::Watches;
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
        newest.reached(20);
        assert!(!newest.answered(other, 21), "that is known");
    }

    #[test]
    fn what_an_answer_shows_counts_as_a_failure_of_the_watch() {
        let registry = Registry::new();
        let signs = Watches::new(&registry).expect("must register").of("pods");
        let newest = Newest::default();
        newest.watched(&signs);
        newest.reached(50);
        let floors = [newest.get(), newest.get()];
        let news = floors.map(|floor| newest.answered(floor, 20));
        assert_eq!(news, [true, false]);
        let all = registry.gather();
        let failures = all.iter().find(|it| it.name() == "epilogue_watch_failures_total");
        let counted = &failures.expect("must be counted").get_metric()[0];
        let labels: Vec<&str> = counted.get_label().iter().map(LabelPair::value).collect();
        assert_eq!((labels, counted.get_counter().get_value()), (vec!["restored", "pods"], 1.0));
    }
}
