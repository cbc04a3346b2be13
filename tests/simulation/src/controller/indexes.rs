//! Reads `completedIndexes` and `failedIndexes`, for the verdicts alone.

use std::ops::RangeInclusive;

/// Indexes as the API writes them, e.g. `0,2-4`.
pub(super) struct Indexes(Vec<RangeInclusive<u32>>);

impl Indexes {
    /// Reads a field; a part that is no range of numbers holds no index.
    pub(super) fn of(field: Option<&str>) -> Self {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        Self(field.unwrap_or_default().split(',').filter_map(range).collect())
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.0.iter().any(|range| range.contains(&index))
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|range| range.clone().count()).sum()
    }
}
