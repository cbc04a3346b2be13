//! Holds labels in two allocations, however many there are: a tenant may give his pods thousands
//! each.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Labels, sorted by key. The default has none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// All keys and values, one after the other.
    text: Box<str>,
    /// Where each key ends, and its value.
    ends: Box<[(u32, u32)]>,
}

impl Labels {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let (found, value) = self.at(middle);
            match found.cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(value),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// All labels, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.ends.len()).map(|place| self.at(place))
    }

    fn at(&self, place: usize) -> (&str, &str) {
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_end, end) = self.ends[place];
        let part = |from: u32, to: u32| &self.text[from as usize..to as usize];
        (part(begin, key_end), part(key_end, end))
    }
}

/// The API stores no object whose labels have 4 GiB.
impl From<BTreeMap<String, String>> for Labels {
    fn from(map: BTreeMap<String, String>) -> Self {
        let size = map.iter().map(|(key, value)| key.len() + value.len()).sum();
        let (mut text, mut ends) = (String::with_capacity(size), Vec::with_capacity(map.len()));
        let end = |text: &str| u32::try_from(text.len()).unwrap_or(u32::MAX);
        for (key, value) in map {
            text.push_str(&key);
            let key_end = end(&text);
            text.push_str(&value);
            ends.push((key_end, end(&text)));
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
        self.ends.hash(state);
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn labels_are_those_of_the_map(
            map in proptest::collection::btree_map("[a-c]{0,3}", "[a-c]{0,3}", 0..20),
            other in "[a-c]{0,3}",
        ) {
            let labels = Labels::from(map.clone());
            prop_assert_eq!(labels.is_empty(), map.is_empty());
            for key in map.keys().chain([&other]) {
                prop_assert_eq!(labels.get(key), map.get(key).map(String::as_str));
            }
            let all: Vec<_> = labels.iter().collect();
            let expected: Vec<_> = map.iter().map(|(key, value)| (&**key, &**value)).collect();
            prop_assert_eq!(all, expected);
        }
    }

    /// A map takes about 100 bytes more for each.
    #[test]
    fn a_label_takes_eight_bytes_beyond_its_text() {
        let map = (0..15_000).map(|number| (format!("k{number:06}"), format!("v{number:06}")));
        let labels = Labels::from(map.collect::<BTreeMap<_, _>>());
        assert_eq!(labels.get("k012345"), Some("v012345"));
        let size = labels.text.len() + size_of_val(&*labels.ends);
        assert_eq!(size, 15_000 * (14 + 8));
    }
}
