//! Counts how often a simulation met each situation, so that its suite fails once its worlds no
//! longer meet one. A check whose situation never comes cannot fail.

use std::fmt::{self, Write};
use std::ops::AddAssign;

/// How often each of `N` situations was met.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tally<const N: usize>([u32; N]);

impl<const N: usize> fmt::Debug for Tally<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = self.0.iter().filter(|count| **count > 0).count();
        write!(formatter, "{met} of {N} situations")
    }
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> AddAssign for Tally<N> {
    fn add_assign(&mut self, other: Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(count);
        }
    }
}

impl<const N: usize> Tally<N> {
    pub(crate) fn count(&mut self, number: usize) {
        self.0[number] = self.0[number].saturating_add(1);
    }

    /// The counts of those situations whose words are `wanted`, as a table, and the words of those
    /// that were met fewer than `least` times.
    pub fn table<'a>(
        &self,
        words: &[&'a str; N],
        wanted: impl Fn(&str) -> bool,
        least: u32,
    ) -> (String, Vec<&'a str>) {
        let rows = words.iter().zip(self.0).filter(|(words, _)| wanted(words));
        let (mut table, mut rare) = (String::new(), Vec::new());
        for (words, count) in rows {
            writeln!(table, "{count:>8} {words}").expect("a String must take it");
            if count < least {
                rare.push(*words);
            }
        }
        (table, rare)
    }
}

/// Makes `Met` with a variant for each situation, the words of each, and their `Met`s' tally.
macro_rules! situations {
    ($($name:ident: $words:literal;)*) => {
        /// A situation that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Met {
            $(#[doc = $words] $name,)*
        }

        /// What each situation is, in the order of the tally.
        pub const SITUATIONS: [&str; [$($words),*].len()] = [$($words),*];

        /// How often each was met.
        pub type Counts = $crate::tally::Tally<{ SITUATIONS.len() }>;
    };
}

pub(crate) use situations;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_situation_that_is_met_too_rarely_is_named() {
        let (mut tally, mut other) = (Tally::<3>::default(), Tally::default());
        tally.count(0);
        other.count(0);
        other.count(2);
        tally += other;
        let words = ["a crash", "a freeze", "killed after a call"];
        let (table, rare) = tally.table(&words, |words| !words.starts_with("killed"), 2);
        assert_eq!(table, "       2 a crash\n       0 a freeze\n");
        assert_eq!(rare, ["a freeze"]);
    }
}
