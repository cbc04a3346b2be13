//! Measures how long each part of a long test took, for its output.

use std::fmt;
use std::time::{Duration, Instant};

/// Parts in their order, each with its time.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    since: Instant,
    parts: Vec<(String, Duration)>,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self { since: Instant::now(), parts: Vec::new() }
    }
}

impl Stopwatch {
    /// Ends a part: the time since the last one's end.
    pub fn lap(&mut self, part: impl Into<String>) {
        self.parts.push((part.into(), self.since.elapsed()));
        self.since = Instant::now();
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: Duration = self.parts.iter().map(|(_, took)| took).sum();
        write!(formatter, "{:.1} s:", total.as_secs_f64())?;
        for (part, took) in &self.parts {
            write!(formatter, " {part} {:.1}", took.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_printed_in_order_after_their_sum() {
        let parts = [("boot".to_owned(), 1500), ("pods".to_owned(), 2500)]
            .map(|(part, milliseconds)| (part, Duration::from_millis(milliseconds)));
        let watch = Stopwatch { parts: parts.into(), ..Stopwatch::default() };
        assert_eq!(watch.to_string(), "4.0 s: boot 1.5 pods 2.5");
    }
}
