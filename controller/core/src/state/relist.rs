//! Finds what a new list lacks.

use std::collections::HashSet;
use std::hash::Hash;

/// The objects of one kind that a list in progress has shown. Once it is complete, an object that
/// it lacks is gone. ([H12])
#[derive(Clone, Debug)]
pub(super) struct Relist<K> {
    listed: Option<HashSet<K>>,
}

/// The objects that a complete list has shown.
#[derive(Debug)]
pub(super) struct Listed<K>(HashSet<K>);

impl<K> Default for Relist<K> {
    fn default() -> Self {
        Self { listed: None }
    }
}

impl<K: Clone + Eq + Hash + Ord> Relist<K> {
    /// A list begins; an unfinished one is void.
    pub(super) fn begin(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// An object was shown, in the list or by the watch.
    pub(super) fn saw(&mut self, key: &K) {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
    }

    /// Whether a list is in progress.
    pub(super) fn is_open(&self) -> bool {
        self.listed.is_some()
    }

    /// The list is complete.
    pub(super) fn end(&mut self) -> Listed<K> {
        Listed(self.listed.take().unwrap_or_default())
    }
}

impl<K: Clone + Eq + Hash + Ord> Listed<K> {
    /// Whether the list has shown this object.
    pub(super) fn has(&self, key: &K) -> bool {
        self.0.contains(key)
    }

    /// The known objects that are gone, in order.
    pub(super) fn lost<'a>(&self, known: impl IntoIterator<Item = &'a K>) -> Vec<K>
    where
        K: 'a,
    {
        let mut lost: Vec<K> = known.into_iter().filter(|key| !self.has(key)).cloned().collect();
        lost.sort();
        lost
    }
}
