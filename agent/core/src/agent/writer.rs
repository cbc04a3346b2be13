//! Writes the journal's records to the disk, one write at a time and in order.

use std::collections::VecDeque;
use std::time::Duration;

use epilogue_common::outcome::Outcome;
use jiff::Timestamp;

use crate::protocol::action::Action;
use crate::protocol::journal::Record;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX};
use crate::termination::clock::Clock;

/// Further records are dropped: the disk has refused writes for a long time.
const PENDING_MAX: usize = 10_000;

#[derive(Clone, Debug)]
enum Write {
    Append(Vec<Record>),
    Close,
}

/// An intent in the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    /// The time of the intent, which a mark carries.
    pub(super) at: Timestamp,
    /// When the record was handed in, on CLOCK_MONOTONIC, and the writer's mark for it.
    pub(super) since: Duration,
    pub(super) until: u64,
}

impl Recorded {
    /// A record that is on the disk.
    pub(super) fn durable(at: Timestamp) -> Self {
        Self { at, since: Duration::ZERO, until: 0 }
    }

    /// Whether the disk may still take the record within this time of its handing in.
    pub(super) fn is_awaited(&self, within: Duration, clock: &Clock, journal: &Writer) -> bool {
        !journal.is_durable(self.until)
            && !journal.is_refused()
            && !clock.reached(self.since + within)
    }
}

/// The records to write.
#[derive(Clone, Debug, Default)]
pub(super) struct Writer {
    pending: VecDeque<Write>,
    attempt: Attempt,
    /// How many records were handed in, and how many of them are on the disk.
    handed: u64,
    durable: u64,
    open: bool,
    warned: bool,
}

impl Writer {
    /// `open`: whether the journal had records at the start.
    pub(super) fn new(open: bool) -> Self {
        Self { open, ..Self::default() }
    }

    /// Whether the journal has records, or will have.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Hands in records; returns the mark to pass to `is_durable`.
    pub(super) fn append(&mut self, records: impl IntoIterator<Item = Record>) -> u64 {
        let before = self.handed;
        let busy = self.attempt.is_in_flight();
        let held = self.pending.iter().map(Write::len).sum::<usize>();
        for record in records.into_iter().take(PENDING_MAX.saturating_sub(held)) {
            self.handed += 1;
            self.open = true;
            let last_is_free = !busy || self.pending.len() > 1;
            match self.pending.back_mut() {
                Some(Write::Append(batch)) if last_is_free => batch.push(record),
                _ => self.pending.push_back(Write::Append(vec![record])),
            }
        }
        if self.handed > before && !busy {
            self.attempt.want();
        }
        self.handed
    }

    /// Closes the journal: the shutdown is over.
    pub(super) fn close(&mut self) {
        if self.open {
            self.open = false;
            self.pending.push_back(Write::Close);
        }
    }

    pub(super) fn is_durable(&self, mark: u64) -> bool {
        self.durable >= mark
    }

    /// Whether the disk refused the last write: such a journal is as good as closed.
    pub(super) fn is_refused(&self) -> bool {
        self.warned
    }

    /// Returns the next write, if it is due.
    pub(super) fn next(&mut self, clock: &Clock) -> Option<Action> {
        let action = match self.pending.front()? {
            Write::Append(batch) => Action::Journal(batch.clone()),
            Write::Close => Action::CloseJournal,
        };
        if !self.attempt.is_open() {
            self.attempt = Attempt::wanted();
        }
        if !self.attempt.is_due(clock) {
            return None;
        }
        self.attempt.sent();
        Some(action)
    }

    /// Takes the result of the write under way; returns a warning, if there is one.
    pub(super) fn finished(&mut self, clock: &Clock, result: &Outcome<()>) -> Option<String> {
        let Err(failure) = result else {
            self.attempt.done();
            let written = self.pending.pop_front();
            self.durable += written.map_or(0, |write| match write {
                Write::Append(batch) => batch.len() as u64,
                Write::Close => 0,
            });
            self.warned = false;
            return None;
        };
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 0 };
        self.attempt.failed(clock.monotonic(), pace, Some(failure));
        let first = !std::mem::replace(&mut self.warned, true);
        first.then(|| format!("the journal cannot be written: {failure}"))
    }
}

impl Write {
    fn len(&self) -> usize {
        match self {
            Self::Append(batch) => batch.len(),
            Self::Close => 0,
        }
    }
}
