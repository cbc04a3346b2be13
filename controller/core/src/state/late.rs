//! Jobs whose sync waits until the watches have come to a version. A wait, and an event that ends
//! it, cost no search over the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::Versions;
use crate::view::{JobKey, Version};

/// Jobs whose sync found a watch behind our own writes. ([Z2])
#[derive(Clone, Debug, Default)]
pub(super) struct Late {
    awaited: BTreeMap<JobKey, Versions>,
    /// The Jobs that the watch of each kind holds up, by the version that they await.
    by_kind: [BTreeSet<(Version, JobKey)>; 4],
}

impl Late {
    /// This Job waits for these versions, and for no others.
    pub(super) fn wait(&mut self, key: JobKey, versions: Versions) {
        self.forget(&key);
        for (waits, version) in self.by_kind.iter_mut().zip(versions.each()) {
            waits.insert((version, key.clone()));
        }
        self.awaited.insert(key, versions);
    }

    /// This Job waits no longer.
    pub(super) fn forget(&mut self, key: &JobKey) {
        if let Some((key, versions)) = self.awaited.remove_entry(key) {
            for (waits, version) in self.by_kind.iter_mut().zip(versions.each()) {
                waits.remove(&(version, key.clone()));
            }
        }
    }

    /// The watches have come this far. Removes the Jobs for which that is enough, and returns them.
    pub(super) fn caught_up(&mut self, seen: Versions) -> Vec<JobKey> {
        let kinds = self.by_kind.iter_mut().zip(seen.each());
        let popped: Vec<JobKey> = kinds.flat_map(|(waits, seen)| pop_up_to(waits, seen)).collect();
        let mut ready = Vec::new();
        for key in popped {
            let Some(versions) = self.awaited.get(&key) else { continue };
            if seen.covers(versions) {
                self.awaited.remove(&key);
                ready.push(key);
            }
        }
        ready
    }

    /// The Jobs that wait, and for what.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&JobKey, &Versions)> {
        self.awaited.iter()
    }
}

fn pop_up_to(waits: &mut BTreeSet<(Version, JobKey)>, seen: Version) -> Vec<JobKey> {
    let mut popped = Vec::new();
    while waits.first().is_some_and(|(version, _)| *version <= seen) {
        popped.extend(waits.pop_first().map(|(_, key)| key));
    }
    popped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> JobKey {
        JobKey::new("default", format!("job-{number}"))
    }

    fn at(jobs: u64, pods: u64) -> Versions {
        Versions { jobs: Version(jobs), pods: Version(pods), ..Versions::default() }
    }

    #[test]
    fn a_job_waits_until_both_watches_have_come_to_what_it_awaits() {
        type Row<'a> = (&'a [Versions], &'a [(Versions, bool)]);
        let rows: [Row<'_>; 7] = [
            (&[at(5, 0)], &[(at(4, 9), false), (at(5, 9), true), (at(6, 9), false)]),
            (&[at(0, 5)], &[(at(9, 4), false), (at(9, 5), true)]),
            (&[at(5, 5)], &[(at(5, 4), false), (at(5, 5), true)]),
            (&[at(5, 5)], &[(at(4, 5), false), (at(5, 5), true)]),
            (&[at(0, 0)], &[(at(0, 0), true), (at(1, 1), false)]),
            // A later wait takes the place of the earlier one.
            (&[at(5, 5), at(7, 0)], &[(at(5, 5), false), (at(7, 0), true)]),
            (&[at(7, 0), at(5, 5)], &[(at(5, 5), true), (at(7, 5), false)]),
        ];
        for (row, (waits, steps)) in rows.into_iter().enumerate() {
            let mut late = Late::default();
            for versions in waits {
                late.wait(key(1), *versions);
            }
            for (seen, expected) in steps {
                assert_eq!(!late.caught_up(*seen).is_empty(), *expected, "row {row}: {seen:?}");
            }
            assert_eq!(late.iter().count(), 0, "row {row}");
            assert!(late.by_kind.iter().all(BTreeSet::is_empty), "row {row}");
        }
    }

    #[test]
    fn a_job_that_is_gone_waits_no_longer() {
        let mut late = Late::default();
        late.wait(key(1), at(5, 5));
        late.wait(key(2), at(5, 5));
        late.forget(&key(1));
        late.forget(&key(3));
        assert_eq!(late.caught_up(at(5, 5)), [key(2)]);
    }

    /// With a search over all waits for each of them this takes minutes.
    #[test]
    fn a_hundred_thousand_waits_and_events_cost_no_search() {
        let mut late = Late::default();
        let all = 0..100_000;
        for number in all.clone() {
            late.wait(key(number), at(0, number + 1));
        }
        for number in all {
            assert_eq!(late.caught_up(at(0, number + 1)), [key(number)]);
        }
    }
}
