//! Watches the cgroups' tree for changes: inotify on directories, and on `memory.events`, which the
//! kernel marks as modified with each count.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor};

use crate::inotify::Notices;

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
    notices: Notices,
    /// The pod that a watched file belongs to; `None` for a directory.
    by_descriptor: HashMap<WatchDescriptor, Option<PathBuf>>,
    /// Whether the kernel has ever refused a watch.
    refused: bool,
}

impl Watches {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { notices: Notices::new()?, by_descriptor: HashMap::new(), refused: false })
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
        match self.notices.add(path, of) {
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
            self.notices.remove(descriptor);
        }
    }

    /// Waits for the next changes.
    pub(super) async fn next(&mut self) -> io::Result<Signs> {
        let events = self.notices.next().await?;
        Ok(self.signs(&events))
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
