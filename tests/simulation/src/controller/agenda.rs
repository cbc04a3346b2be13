//! The virtual clock: delivers events in the order of time. Waiting costs nothing.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time since the simulation began.
pub(crate) type Moment = Duration;

/// Events to come. Events of the same time keep the order in which they were added.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    now: Moment,
    added: u64,
    events: BTreeMap<(Moment, u64), E>,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { now: Moment::ZERO, added: 0, events: BTreeMap::new() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Adds an event.
    pub(crate) fn after(&mut self, delay: Duration, event: E) {
        self.added += 1;
        self.events.insert((self.now + delay, self.added), event);
    }

    /// The next event; the clock moves on to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_their_adding() {
        let mut agenda = Agenda::new();
        for (seconds, name) in [(2, "c"), (1, "a"), (1, "b")] {
            agenda.after(Duration::from_secs(seconds), name);
        }
        let events: Vec<_> = (0..3).filter_map(|_| agenda.next()).collect();
        assert_eq!(events, ["a", "b", "c"]);
        assert_eq!((agenda.next(), agenda.now()), (None, Duration::from_secs(2)));
    }
}
