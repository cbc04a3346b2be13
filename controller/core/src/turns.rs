//! Queues keys so that namespaces take turns: a namespace with many keys delays only itself.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// A key of a queue.
pub trait Key: Clone + Eq + Hash {
    /// The namespace of the key; empty if it has none.
    fn namespace(&self) -> &str;
}

/// First in, first out within a namespace; the namespaces take turns.
#[derive(Debug)]
pub(crate) struct Turns<K> {
    lanes: HashMap<Arc<str>, VecDeque<K>>,
    /// Each namespace with keys, once; the first one is next.
    order: VecDeque<Arc<str>>,
    len: usize,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { lanes: HashMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<K: Key> Turns<K> {
    /// Appends a key to its namespace.
    pub(crate) fn push(&mut self, key: K) {
        self.len += 1;
        if let Some(lane) = self.lanes.get_mut(key.namespace()) {
            lane.push_back(key);
            return;
        }
        let namespace: Arc<str> = key.namespace().into();
        self.order.push_back(Arc::clone(&namespace));
        self.lanes.insert(namespace, VecDeque::from([key]));
    }

    /// The oldest key of the next namespace.
    pub(crate) fn pop(&mut self) -> Option<K> {
        let namespace = self.order.pop_front()?;
        let lane = self.lanes.get_mut(&namespace)?;
        let key = lane.pop_front()?;
        self.len -= 1;
        if lane.is_empty() {
            self.lanes.remove(&namespace);
        } else {
            self.order.push_back(namespace);
        }
        Some(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Key for (&'static str, u32) {
        fn namespace(&self) -> &str {
            self.0
        }
    }

    #[test]
    fn namespaces_take_turns_and_each_keeps_its_order() {
        let mut turns = Turns::default();
        (0..5).for_each(|number| turns.push(("many", number)));
        turns.push(("few", 0));
        let mut order = vec![turns.pop(), turns.pop()];
        turns.push(("late", 0));
        order.extend(std::iter::from_fn(|| turns.pop()).map(Some));
        let expected = [
            ("many", 0),
            ("few", 0),
            ("many", 1),
            ("late", 0),
            ("many", 2),
            ("many", 3),
            ("many", 4),
        ];
        assert_eq!(order.into_iter().flatten().collect::<Vec<_>>(), expected);
        assert!(turns.is_empty() && turns.lanes.is_empty() && turns.order.is_empty());
    }

    /// In every sequence nothing is lost, and no key waits for more than one key of each other
    /// namespace.
    #[test]
    fn a_namespace_waits_for_at_most_one_turn_of_each_other() {
        let mut turns = Turns::default();
        let names = ["a", "b", "c", "d"];
        let mut pushed = 0;
        for round in 0_u32..200 {
            for (place, name) in names.iter().enumerate() {
                if round.is_multiple_of(u32::try_from(place).unwrap_or(0) + 1) {
                    turns.push((*name, round));
                    pushed += 1;
                }
            }
        }
        assert_eq!(turns.len(), pushed);
        let mut since: HashMap<&str, usize> = HashMap::new();
        let mut left: HashMap<&str, usize> = HashMap::new();
        let all: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        for (name, _) in &all {
            *left.entry(name).or_default() += 1;
        }
        assert_eq!(all.len(), pushed);
        for (name, _) in all {
            for (other, waited) in &mut since {
                *waited += 1;
                assert!(left[other] == 0 || *waited <= names.len(), "{other} waits for {waited}");
            }
            since.insert(name, 0);
            *left.entry(name).or_default() -= 1;
        }
    }
}
