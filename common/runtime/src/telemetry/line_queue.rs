//! Holds log lines until a thread has written them. A reader of the log that stands still delays
//! that thread alone: lines beyond a limit are dropped and counted.

use std::io::{self, Write};
use std::mem;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

/// Maximum of bytes that wait: some thousand lines. As many again may be on their way to the
/// reader.
const BYTES_MAX: usize = 1024 * 1024;
/// A larger buffer is returned to the allocator once it is written.
const BYTES_KEPT: usize = 64 * 1024;

/// Log lines in their order.
pub(super) struct LineQueue {
    state: Mutex<State>,
    changed: Condvar,
    dropped: IntCounter,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    is_writing: bool,
}

/// One line's way into the queue. Each `write` is a whole line and never fails.
#[derive(Clone, Copy)]
pub(super) struct Entrance(pub(super) &'static LineQueue);

impl LineQueue {
    pub(super) fn new() -> Self {
        let dropped = IntCounter::new(
            "epilogue_log_lines_dropped_total",
            "Lines of the log that were dropped because stderr did not take them.",
        );
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            dropped: dropped.expect("a constant name must be valid"),
        }
    }

    /// The number of dropped lines.
    pub(super) fn dropped(&self) -> &IntCounter {
        &self.dropped
    }

    /// Adds a line, or counts it where too much waits.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.waiting.len() + line.len() > BYTES_MAX {
            self.dropped.inc();
            return;
        }
        state.waiting.extend_from_slice(line);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until all lines are written, at most `limit`. Returns whether they are.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.is_writing || !state.waiting.is_empty() {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// Waits for lines and writes all of them. `batch` is only memory to use again.
    pub(super) fn write_to(&self, writer: &mut impl Write, batch: &mut Vec<u8>) {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            self.changed.wait(&mut state);
        }
        mem::swap(&mut state.waiting, batch);
        state.is_writing = true;
        drop(state);
        if writer.write_all(batch).and_then(|()| writer.flush()).is_err() {
            let lines = batch.split(|byte| *byte == b'\n').skip(1).count();
            self.dropped.inc_by(u64::try_from(lines).unwrap_or(u64::MAX));
        }
        batch.clear();
        if batch.capacity() > BYTES_KEPT {
            *batch = Vec::new();
        }
        self.state.lock().is_writing = false;
        self.changed.notify_all();
    }
}

impl Write for Entrance {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, pipe};
    use std::sync::Arc;
    use std::thread;

    const SOON: Duration = Duration::from_secs(10);

    /// A queue with a thread that writes it to a pipe.
    fn queue() -> (Arc<LineQueue>, io::PipeReader) {
        let queue = Arc::new(LineQueue::new());
        let (reader, mut writer) = pipe().expect("a pipe");
        let written = Arc::clone(&queue);
        thread::spawn(move || {
            let mut batch = Vec::new();
            loop {
                written.write_to(&mut writer, &mut batch);
            }
        });
        (queue, reader)
    }

    #[test]
    fn a_reader_that_stands_still_delays_no_line_and_costs_no_more_than_the_limit() {
        let (queue, mut reader) = queue();
        let line = [[b'a'; 999].as_slice(), b"\n"].concat();
        let begun = Instant::now();
        let pushed = 10_000;
        for _ in 0..pushed {
            queue.push(&line);
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        let dropped = queue.dropped().get();
        let kept = pushed - dropped;
        let most = 2 * u64::try_from(BYTES_MAX / line.len()).expect("small");
        assert!(kept > 0 && kept <= most, "{kept} of {most}");
        assert!(queue.state.lock().waiting.capacity() <= 2 * BYTES_MAX);

        let begun = Instant::now();
        assert!(!queue.flush(Duration::from_millis(100)), "the reader stands still");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());

        let reads = thread::spawn(move || {
            let mut bytes = vec![0; usize::try_from(kept).expect("small") * 1000];
            reader.read_exact(&mut bytes).expect("what was kept");
            bytes
        });
        assert!(queue.flush(SOON), "the reader is back");
        let bytes = reads.join().expect("must end");
        assert!(bytes.chunks(1000).all(|read| read == line), "whole lines, and no others");
        assert_eq!(queue.dropped().get(), dropped);
    }

    #[test]
    fn lines_keep_their_order_and_a_flush_waits_for_all() {
        let (queue, mut reader) = queue();
        let lines: Vec<String> = (0..100).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            queue.push(line.as_bytes());
        }
        assert!(queue.flush(SOON));
        let mut bytes = vec![0; lines.concat().len()];
        reader.read_exact(&mut bytes).expect("all lines");
        assert_eq!(String::from_utf8_lossy(&bytes), lines.concat());
        assert_eq!(queue.dropped().get(), 0);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_do_not_hold_up_the_end() {
        let (queue, reader) = queue();
        drop(reader);
        queue.push(b"one\n");
        assert!(queue.flush(SOON));
        assert_eq!(queue.dropped().get(), 1);
    }

    #[test]
    fn a_line_beyond_the_limit_is_dropped_alone() {
        let (queue, mut reader) = queue();
        queue.push(&vec![b'a'; BYTES_MAX + 1]);
        queue.push(b"b\n");
        assert!(queue.flush(SOON));
        let mut bytes = [0; 2];
        reader.read_exact(&mut bytes).expect("the short line");
        assert_eq!((&bytes, queue.dropped().get()), (b"b\n", 1));
    }
}
