//! Represents sets of completion indexes and their text form. ([I2], [I3])

use std::fmt;
use std::fmt::Write as _;

/// A set of completion indexes, as ascending intervals that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    /// First and last index of each interval.
    intervals: Vec<(u32, u32)>,
    size: u32,
}

impl IndexSet {
    /// Reads the API's text, and skips what does not parse or lies beyond `bound`. Reading stops at
    /// the first interval that begins beyond it. ([I3])
    pub fn parse(text: &str, bound: u32) -> Self {
        let mut set = Self::default();
        for part in text.split(',') {
            let mut ends = part.splitn(3, '-');
            let (first, last) = (ends.next().unwrap_or_default(), ends.next());
            let Ok(first) = first.parse::<u32>() else { continue };
            let Ok(last) = last.map_or(Ok(first), str::parse::<u32>) else { continue };
            if first >= bound {
                break;
            }
            let last = last.min(bound - 1);
            if first <= last {
                set.push(first, last);
            }
        }
        set
    }

    /// A set of indexes in any order.
    pub fn collect(indexes: impl IntoIterator<Item = u32>) -> Self {
        let mut sorted: Vec<u32> = indexes.into_iter().collect();
        sorted.sort_unstable();
        let mut set = Self::default();
        for index in sorted {
            set.push(index, index);
        }
        set
    }

    /// The indexes of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut set = Self::default();
        let (mut left, mut right) =
            (self.intervals.iter().peekable(), other.intervals.iter().peekable());
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) if a.0 <= b.0 => left.next(),
                (_, Some(_)) => right.next(),
                (Some(_), None) => left.next(),
                (None, None) => return set,
            };
            if let Some(&(first, last)) = next {
                set.push(first, last);
            }
        }
    }

    /// How many indexes are in both sets.
    pub fn intersection_size(&self, other: &Self) -> u32 {
        let (mut left, mut right, mut size) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.intervals.get(left), other.intervals.get(right)) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                size += last - first + 1;
            }
            if a.1 < b.1 {
                left += 1;
            } else {
                right += 1;
            }
        }
        size
    }

    /// Whether the index is in the set.
    pub fn contains(&self, index: u32) -> bool {
        let after = self.intervals.partition_point(|interval| interval.0 <= index);
        after > 0 && index <= self.intervals[after - 1].1
    }

    /// The highest index.
    pub fn last(&self) -> Option<u32> {
        self.intervals.last().map(|interval| interval.1)
    }

    /// Adds an index. Returns whether it is new.
    pub fn insert(&mut self, index: u32) -> bool {
        let next = self.intervals.partition_point(|interval| interval.0 <= index);
        let follows = match next.checked_sub(1).map(|previous| self.intervals[previous]) {
            Some((_, last)) if index <= last => return false,
            Some((_, last)) => last + 1 == index,
            None => false,
        };
        let leads = self.intervals.get(next).is_some_and(|following| following.0 == index + 1);
        match (follows, leads) {
            (true, true) => {
                self.intervals[next - 1].1 = self.intervals[next].1;
                self.intervals.remove(next);
            }
            (true, false) => self.intervals[next - 1].1 = index,
            (false, true) => self.intervals[next].0 = index,
            (false, false) => self.intervals.insert(next, (index, index)),
        }
        self.size += 1;
        true
    }

    /// Removes an index. Returns whether it was there.
    pub fn remove(&mut self, index: u32) -> bool {
        let after = self.intervals.partition_point(|interval| interval.0 <= index);
        let Some(place) = after.checked_sub(1).filter(|place| index <= self.intervals[*place].1)
        else {
            return false;
        };
        match self.intervals[place] {
            (first, last) if first == last => {
                self.intervals.remove(place);
            }
            (first, _) if first == index => self.intervals[place].0 = index + 1,
            (_, last) if last == index => self.intervals[place].1 = index - 1,
            (first, last) => {
                self.intervals[place] = (first, index - 1);
                self.intervals.insert(after, (index + 1, last));
            }
        }
        self.size -= 1;
        true
    }

    /// The number of indexes.
    pub fn len(&self) -> u32 {
        self.size
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The lowest indexes below `bound` that are neither in the set nor `taken`, at most `count`.
    pub fn lowest_missing(
        &self,
        bound: u32,
        count: usize,
        taken: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let mut missing = Vec::with_capacity(count.min(bound as usize));
        let mut next = 0;
        for &(first, last) in self.intervals.iter().chain(std::iter::once(&(bound, bound))) {
            missing.extend(
                (next..first.min(bound)).filter(|&each| !taken(each)).take(count - missing.len()),
            );
            if missing.len() == count {
                break;
            }
            next = last.saturating_add(1);
        }
        missing
    }

    /// Appends an interval that begins no earlier than the last one.
    fn push(&mut self, first: u32, last: u32) {
        match self.intervals.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => {
                self.size += last.saturating_sub(previous.1);
                previous.1 = previous.1.max(last);
            }
            _ => {
                self.size += last - first + 1;
                self.intervals.push((first, last));
            }
        }
    }
}

/// The API's text: `0`, `1,2` for two in a row, `3-5` for more. ([I2])
impl fmt::Display for IndexSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, &(first, last)) in self.intervals.iter().enumerate() {
            if position > 0 {
                formatter.write_char(',')?;
            }
            match last - first {
                0 => write!(formatter, "{first}")?,
                1 => write!(formatter, "{first},{last}")?,
                _ => write!(formatter, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shortest_for_runs_of_three_or_more() {
        for (indexes, text) in [
            (vec![], ""),
            (vec![7], "7"),
            (vec![2, 1], "1,2"),
            (vec![3, 1, 2], "1-3"),
            (vec![0, 1, 2, 4, 6, 7], "0-2,4,6,7"),
            (vec![5, 5, 5], "5"),
        ] {
            let set = IndexSet::collect(indexes.clone());
            assert_eq!(set.to_string(), text, "{indexes:?}");
            assert_eq!(IndexSet::parse(text, 100), set, "{text}");
        }
    }

    #[test]
    fn parsing_skips_what_it_cannot_read_and_stops_at_the_bound() {
        for (text, bound, read) in [
            ("1,x,3", 10, "1,3"),
            ("1-x,3", 10, "3"),
            ("1-2-9,4", 10, "1,2,4"),
            ("1-20", 5, "1-4"),
            ("5,1", 5, ""),
            ("0,1,2,3", 10, "0-3"),
            ("0-2,3-4", 10, "0-4"),
            ("", 10, ""),
            ("0", 0, ""),
        ] {
            assert_eq!(IndexSet::parse(text, bound).to_string(), read, "{text} below {bound}");
        }
    }

    #[test]
    fn union_and_intersection_count_each_index_once() {
        let left = IndexSet::parse("0-2,6,7", 100);
        let right = IndexSet::parse("2-4,7-9", 100);
        let both = left.union(&right);
        assert_eq!(both.to_string(), "0-4,6-9");
        assert_eq!(both.len(), 9);
        assert_eq!(left.intersection_size(&right), 2);
        assert_eq!(right.intersection_size(&left), 2);
        assert!(both.contains(4) && !both.contains(5));
    }

    #[test]
    fn indexes_come_and_go_one_by_one() {
        let mut set = IndexSet::default();
        for (index, text) in [(5, "5"), (7, "5,7"), (6, "5-7"), (0, "0,5-7"), (4, "0,4-7")] {
            assert!(set.insert(index) && !set.insert(index), "{index}");
            assert_eq!(
                (set.to_string(), set.len()),
                (text.to_owned(), IndexSet::parse(text, 9).len())
            );
        }
        assert_eq!(set.last(), Some(7));
        for (index, text) in [(6, "0,4,5,7"), (0, "4,5,7"), (5, "4,7"), (7, "4"), (4, "")] {
            assert!(set.remove(index) && !set.remove(index), "{index}");
            assert_eq!(set, IndexSet::parse(text, 9), "{text}");
        }
        assert!(set.insert(u32::MAX) && set.insert(u32::MAX - 1) && set.remove(u32::MAX));
    }

    #[test]
    fn lowest_missing_skips_members_and_taken_ones() {
        let set = IndexSet::parse("0,1,4", 100);
        assert_eq!(set.lowest_missing(8, 3, |each| each == 2), [3, 5, 6]);
        assert_eq!(set.lowest_missing(4, 9, |_| false), [2, 3]);
        assert_eq!(IndexSet::default().lowest_missing(2, 5, |_| false), [0, 1]);
        assert!(set.lowest_missing(8, 0, |_| false).is_empty());
    }

    #[test]
    fn a_hundred_thousand_indexes_in_the_worst_shape_survive_the_text() {
        let odd = IndexSet::collect((0..100_000).filter(|each| each % 2 == 1));
        let text = odd.to_string();
        assert_eq!(odd.len(), 50_000);
        assert_eq!(IndexSet::parse(&text, 100_000), odd);
    }
}
