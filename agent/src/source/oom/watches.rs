//! Watches the cgroups' tree for changes: inotify on directories, and on `memory.events`, which the
//! kernel marks as modified with each count.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The changes since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    /// A cgroup came or went.
    pub(super) listed: bool,
    /// There were too many changes, and some are lost.
    pub(super) lost: bool,
    /// Cgroups of pods with a changed counter.
    pub(super) pods: BTreeSet<PathBuf>,
}

/// All watches.
#[derive(Debug)]
pub(super) struct Watches {
    queue: AsyncFd<Queue>,
    /// The pod that a watched file belongs to; `None` for a directory.
    by_descriptor: HashMap<WatchDescriptor, Option<PathBuf>>,
    /// Whether the kernel has ever refused a watch.
    refused: bool,
}

#[derive(Debug)]
struct Queue(Inotify);

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watches {
    pub(super) fn new() -> io::Result<Self> {
        let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        #[expect(deprecated, reason = "its successor is unsafe; Inotify keeps what that asks for")]
        let queue = AsyncFd::with_interest(Queue(queue), Interest::READABLE)?;
        Ok(Self { queue, by_descriptor: HashMap::new(), refused: false })
    }

    /// Whether the kernel has ever refused a watch.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Watches a directory for what appears and disappears.
    pub(super) fn directory(&mut self, path: &Path) -> Option<WatchDescriptor> {
        let of = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        self.add(path, of, None)
    }

    /// Watches a pod's file for new counts.
    pub(super) fn file(&mut self, path: &Path, pod: &Path) -> Option<WatchDescriptor> {
        self.add(path, AddWatchFlags::IN_MODIFY, Some(pod.to_owned()))
    }

    fn add(
        &mut self,
        path: &Path,
        of: AddWatchFlags,
        pod: Option<PathBuf>,
    ) -> Option<WatchDescriptor> {
        match self.queue.get_ref().0.add_watch(path, of) {
            Ok(descriptor) => {
                self.by_descriptor.insert(descriptor, pod);
                Some(descriptor)
            }
            // It is already gone, or never existed.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV) => None,
            Err(error) => {
                if !std::mem::replace(&mut self.refused, true) {
                    let path = path.display();
                    tracing::warn!(%path, %error, "can't be watched: checked every second now");
                }
                None
            }
        }
    }

    /// Drops a watch. The kernel keeps the watch of a cgroup's file after the cgroup is gone.
    pub(super) fn remove(&mut self, descriptor: Option<WatchDescriptor>) {
        if let Some(descriptor) = descriptor
            && self.by_descriptor.remove(&descriptor).is_some()
        {
            // A watch that went by itself needs no removal.
            let _ = self.queue.get_ref().0.rm_watch(descriptor);
        }
    }

    /// Waits for the next changes.
    pub(super) async fn next(&mut self) -> io::Result<Signs> {
        loop {
            let mut ready = self.queue.readable().await?;
            match ready.try_io(|queue| queue.get_ref().0.read_events().map_err(io::Error::from)) {
                Ok(events) => {
                    let events = events?;
                    drop(ready);
                    return Ok(self.signs(&events));
                }
                Err(_would_block) => {}
            }
        }
    }

    fn signs(&mut self, events: &[InotifyEvent]) -> Signs {
        let mut signs = Signs::default();
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                signs.lost = true;
            } else if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                self.by_descriptor.remove(&event.wd);
            } else {
                match self.by_descriptor.get(&event.wd) {
                    Some(Some(pod)) => drop(signs.pods.insert(pod.clone())),
                    Some(None) => signs.listed = true,
                    None => {}
                }
            }
        }
        signs
    }
}
