//! Says without a call whether the lease is certainly held, so that no write leaves a process that
//! was frozen while another candidate took over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// Open while the lease is certainly held: until the renew deadline after the last renewal. It
/// needs no task, so it closes also in a process that nothing has woken yet.
#[derive(Clone, Debug)]
pub struct Fence {
    began: Instant,
    /// The end, in nanoseconds since the fence was made.
    until: Arc<AtomicU64>,
}

impl Fence {
    /// A closed fence.
    pub fn closed() -> Self {
        Self { began: Instant::now(), until: Arc::default() }
    }

    /// Opens the fence until this moment.
    pub(super) fn open_until(&self, end: Instant) {
        self.until.store(self.nanos(end), Ordering::Relaxed);
    }

    /// Closes the fence.
    pub(super) fn close(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Whether a write may be sent now.
    pub fn is_open(&self) -> bool {
        self.nanos(Instant::now()) < self.until.load(Ordering::Relaxed)
    }

    fn nanos(&self, at: Instant) -> u64 {
        let nanos = at.saturating_duration_since(self.began).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}
