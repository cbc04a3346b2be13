//! Waits for the kernel's notices of changed files (inotify).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A queue of notices.
#[derive(Debug)]
pub(crate) struct Notices {
    queue: AsyncFd<Queue>,
}

#[derive(Debug)]
struct Queue(Inotify);

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Notices {
    pub(crate) fn new() -> io::Result<Self> {
        let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        #[expect(deprecated, reason = "its successor is unsafe; Inotify keeps what that asks for")]
        let queue = AsyncFd::with_interest(Queue(queue), Interest::READABLE)?;
        Ok(Self { queue })
    }

    /// Watches a file or a directory.
    pub(crate) fn add(&self, path: &Path, of: AddWatchFlags) -> nix::Result<WatchDescriptor> {
        self.queue.get_ref().0.add_watch(path, of)
    }

    /// Ends a watch. One that ended by itself needs no removal.
    pub(crate) fn remove(&self, descriptor: WatchDescriptor) {
        let _ = self.queue.get_ref().0.rm_watch(descriptor);
    }

    /// Waits for the next notices.
    pub(crate) async fn next(&self) -> io::Result<Vec<InotifyEvent>> {
        loop {
            let mut ready = self.queue.readable().await?;
            match ready.try_io(|queue| queue.get_ref().0.read_events().map_err(io::Error::from)) {
                Ok(events) => return events,
                Err(_would_block) => {}
            }
        }
    }
}
