//! Queues keys so that namespaces take turns, and none holds all that there is: a namespace with
//! many keys, or with slow ones, delays only itself.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// A namespace may hold this many times what is free. So one alone holds two thirds, two hold two
/// fifths each, and a part is always left for one that comes next.
const SHARE: usize = 2;
/// A namespace is alone once it took this many keys without another between them. At a hundred
/// calls a second, that is longer than a neighbour rests between two of its calls.
const ALONE_AFTER: usize = 256;

/// A key of a queue.
pub trait Key: Clone + Eq + Hash {
    /// The namespace of the key; empty if it has none.
    fn namespace(&self) -> &str;
}

/// First in, first out within a namespace; the namespaces take turns. A key that was taken must be
/// given back.
#[derive(Debug)]
pub struct Turns<K> {
    /// The namespaces that have keys, or hold some.
    lanes: HashMap<Arc<str>, Lane<K>>,
    /// Each namespace with keys, once; the first one is next.
    order: VecDeque<Arc<str>>,
    len: usize,
    /// How many namespaces have keys and hold none.
    idle: usize,
    /// How many more keys may be taken before one is given back.
    free: usize,
    /// How many keys a namespace may hold that is not alone, however many are free.
    of_one: usize,
    /// The namespace that took the last key, and how many it took without another between them.
    row: (Arc<str>, usize),
}

#[derive(Debug)]
struct Lane<K> {
    keys: VecDeque<K>,
    /// How many of its keys are taken.
    held: usize,
}

impl<K: Key> Turns<K> {
    /// An empty queue, of whose keys at most this many are taken at once.
    pub fn new(max: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            order: VecDeque::new(),
            len: 0,
            idle: 0,
            free: max,
            of_one: usize::MAX,
            row: ("".into(), ALONE_AFTER),
        }
    }

    /// While several namespaces take keys, none holds more than this many, however many are free.
    #[must_use]
    pub fn each_at_most(self, of_one: usize) -> Self {
        Self { of_one, ..self }
    }

    /// Appends a key to its namespace.
    pub fn push(&mut self, key: K) {
        self.len += 1;
        if let Some(lane) = self.lanes.get_mut(key.namespace()) {
            if lane.keys.is_empty() {
                self.order.push_back(key.namespace().into());
                self.idle += usize::from(lane.held == 0);
            }
            lane.keys.push_back(key);
            return;
        }
        let namespace: Arc<str> = key.namespace().into();
        self.order.push_back(Arc::clone(&namespace));
        self.idle += 1;
        self.lanes.insert(namespace, Lane { keys: VecDeque::from([key]), held: 0 });
    }

    /// Takes the oldest key of the next namespace that may hold one more.
    pub fn pop(&mut self) -> Option<K> {
        self.pop_below(usize::MAX)
    }

    /// Takes the oldest key of the next namespace that holds none.
    pub fn pop_idle(&mut self) -> Option<K> {
        self.pop_below(1)
    }

    /// Takes the oldest key of the next namespace that holds fewer than so many.
    fn pop_below(&mut self, limit: usize) -> Option<K> {
        let turn = self.next(limit)?;
        self.order.rotate_left(turn);
        let namespace = self.order.pop_front()?;
        let lane = self.lanes.get_mut(&namespace)?;
        let key = lane.keys.pop_front()?;
        self.idle -= usize::from(lane.held == 0);
        lane.held += 1;
        self.len -= 1;
        self.free -= 1;
        self.row = match std::mem::take(&mut self.row) {
            (last, taken) if last == namespace => (last, taken.saturating_add(1)),
            _ => (Arc::clone(&namespace), 1),
        };
        if !lane.keys.is_empty() {
            self.order.push_back(namespace);
        }
        Some(key)
    }

    /// Gives a key of this namespace back.
    pub fn give_back(&mut self, namespace: &str) {
        let Some(lane) = self.lanes.get_mut(namespace).filter(|lane| lane.held > 0) else { return };
        lane.held -= 1;
        self.free += 1;
        match (lane.held, lane.keys.is_empty()) {
            (0, true) => drop(self.lanes.remove(namespace)),
            (0, false) => self.idle += 1,
            _ => {}
        }
    }

    /// Whether a key could be taken now.
    pub fn has_next(&self) -> bool {
        self.has_idle() || self.next(usize::MAX).is_some()
    }

    /// Whether a key could be taken of a namespace that holds none.
    pub fn has_idle(&self) -> bool {
        self.free > 0 && self.idle > 0
    }

    /// How many keys wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the next namespace that holds fewer keys than so many. Only those before it
    /// hold keys, so they are few.
    fn next(&self, limit: usize) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let is_alone = self.row.1 >= ALONE_AFTER && self.lanes.len() == 1;
        let of_one = if is_alone { usize::MAX } else { self.of_one };
        let share = self.free.saturating_mul(SHARE).min(of_one).min(limit);
        let held = |namespace| self.lanes.get(namespace).map_or(0, |lane: &Lane<K>| lane.held);
        self.order.iter().position(|namespace| held(namespace) < share)
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
        let mut turns = Turns::new(1_000);
        (0..5).for_each(|number| turns.push(("many", number)));
        turns.push(("few", 0));
        assert!(turns.has_next() && !turns.is_empty());
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
        assert!(turns.is_empty() && !turns.has_next() && turns.order.is_empty());
        for (namespace, _) in expected {
            turns.give_back(namespace);
        }
        assert!(turns.lanes.is_empty(), "nothing is kept of a namespace without keys");
        assert_eq!(turns.free, 1_000);
    }

    impl<K> Turns<K> {
        fn is_sound(&self) -> bool {
            let is_idle = |lane: &&Lane<K>| lane.held == 0 && !lane.keys.is_empty();
            self.idle == self.lanes.values().filter(is_idle).count()
                && self.len == self.lanes.values().map(|lane| lane.keys.len()).sum::<usize>()
        }
    }

    #[test]
    fn the_number_of_idle_namespaces_is_kept_through_every_change() {
        let mut turns = Turns::new(4);
        let mut held = Vec::new();
        for step in 0..2_000_u32 {
            let namespace = ["a", "b", "c"][step as usize * 7 % 11 % 3];
            match step * 13 % 17 % 4 {
                0 | 1 if turns.len() < 20 => turns.push((namespace, step)),
                2 => held.extend(turns.pop_idle()),
                _ if step % 5 == 0 => held.extend(turns.pop()),
                _ => held.pop().into_iter().for_each(|(name, _)| turns.give_back(name)),
            }
            assert!(turns.is_sound(), "step {step}: {turns:?}");
            assert_eq!(turns.has_idle(), turns.next(1).is_some());
            assert_eq!(turns.has_next(), turns.next(usize::MAX).is_some());
        }
        assert!(!held.is_empty() || !turns.is_empty());
    }

    fn hold(turns: &mut Turns<(&'static str, u32)>, namespace: &'static str) -> usize {
        (0..100).for_each(|number| turns.push((namespace, number)));
        let before = turns.free;
        while turns.pop().is_some() {}
        before - turns.free
    }

    #[test]
    fn however_many_namespaces_hold_all_they_may_the_next_one_finds_a_place() {
        let mut turns = Turns::new(90);
        let held: Vec<usize> = ["a", "b", "c"].map(|name| hold(&mut turns, name)).to_vec();
        assert_eq!(held, [60, 20, 7]);
        turns.push(("late", 0));
        assert_eq!(turns.pop(), Some(("late", 0)), "though hundreds wait before it");
        // What comes back goes to those that hold less.
        (0..6).for_each(|_| turns.give_back("a"));
        let taken: Vec<_> = std::iter::from_fn(|| turns.pop()).map(|(name, _)| name).collect();
        assert_eq!(taken, ["c"; 3]);
    }

    #[test]
    fn next_to_others_no_namespace_holds_more_than_each_may() {
        let mut turns = Turns::new(90).each_at_most(16);
        assert_eq!(hold(&mut turns, "a"), 16, "it is not alone yet");
        let held: Vec<usize> = ["b", "c", "d", "e", "f"].map(|it| hold(&mut turns, it)).to_vec();
        assert_eq!(held, [16, 16, 16, 16, 7], "the last one has two thirds of what is left");
        turns.push(("late", 0));
        assert_eq!(turns.pop(), Some(("late", 0)));
    }

    #[test]
    fn a_namespace_that_was_alone_for_long_holds_two_thirds_until_another_comes() {
        let mut turns = Turns::new(90).each_at_most(16);
        for number in 0..256 {
            turns.push(("a", number));
            assert!(turns.pop().is_some());
            turns.give_back("a");
        }
        assert_eq!(hold(&mut turns, "a"), 60);
        turns.push(("late", 0));
        assert_eq!(turns.pop(), Some(("late", 0)));
        (0..45).for_each(|_| turns.give_back("a"));
        assert_eq!(turns.pop().map(|(name, _)| name), Some("a"), "15 are left");
        turns.give_back("late");
        assert_eq!(turns.pop(), None, "the other one is gone, and may come back soon");
    }

    #[test]
    fn nothing_is_taken_beyond_the_maximum() {
        let mut turns = Turns::new(2);
        (0..3).for_each(|number| turns.push(("a", number)));
        assert_eq!([turns.pop(), turns.pop(), turns.pop()], [Some(("a", 0)), Some(("a", 1)), None]);
        assert!(!turns.has_next() && turns.len() == 1);
        turns.give_back("a");
        assert_eq!(turns.pop(), Some(("a", 2)));
        turns.give_back("b");
        assert_eq!(turns.free, 0, "what was not taken cannot be given back");
    }

    #[test]
    fn an_idle_namespace_is_one_that_holds_no_key() {
        let mut turns = Turns::new(90);
        turns.push(("a", 0));
        turns.push(("a", 1));
        assert_eq!(turns.pop_idle(), Some(("a", 0)));
        assert!(turns.has_next() && !turns.has_idle());
        turns.push(("b", 0));
        assert!(turns.has_idle());
        assert_eq!(turns.pop_idle(), Some(("b", 0)), "though a is before it");
        assert_eq!(turns.pop_idle(), None);
        turns.give_back("a");
        assert_eq!(turns.pop_idle(), Some(("a", 1)));
    }

    /// In every sequence nothing is lost, and no key waits for more than one key of each other
    /// namespace.
    #[test]
    fn a_namespace_waits_for_at_most_one_turn_of_each_other() {
        let mut turns = Turns::new(1_000);
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
