//! Starts anew once the API has gone back to an earlier version, as when etcd is restored from a
//! snapshot.
//!
//! What the watches have shown since then has not happened, and what is remembered of it would
//! never come true: a finalizer that was removed, a version that was written. So all of it goes, as
//! with a new process, and nothing is decided until each watch has listed again. A Job of today
//! with pods of another past would be counted wrong.

use std::collections::BTreeSet;

use epilogue_common::watch_event::WatchEvent;

use super::event::{Event, Now, Reaction};
use super::gc::Gc;
use super::jobs::Jobs;
use super::{ClusterState, Pods, Relist};
use crate::view::Version;

/// The kind of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Jobs,
    Pods,
    Nodes,
    Namespaces,
}

/// The watches that have not listed again yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(BTreeSet<Kind>);

impl Awaited {
    /// Whether each watch has listed what there is.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Event {
    /// The kind of its watch.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Job(_) => Kind::Jobs,
            Self::Pod(_) => Kind::Pods,
            Self::Node(_) => Kind::Nodes,
            Self::Namespace(_) => Kind::Namespaces,
        }
    }

    /// Whether the watch has noticed that the API has gone back.
    fn says_restored(&self) -> bool {
        match self {
            Self::Job(event) => matches!(event, WatchEvent::Restored),
            Self::Pod(event) => matches!(event, WatchEvent::Restored),
            Self::Node(event) => matches!(event, WatchEvent::Restored),
            Self::Namespace(event) => matches!(event, WatchEvent::Restored),
        }
    }

    /// Whether it ends a list.
    pub(super) fn ends_list(&self) -> bool {
        match self {
            Self::Job(event) => matches!(event, WatchEvent::ListEnds(_)),
            Self::Pod(event) => matches!(event, WatchEvent::ListEnds(_)),
            Self::Node(event) => matches!(event, WatchEvent::ListEnds(_)),
            Self::Namespace(event) => matches!(event, WatchEvent::ListEnds(_)),
        }
    }
}

impl ClusterState {
    /// Whether the event shows that the API has gone back: the watch says so, or it shows a version
    /// older than one that it has shown. Lists are consistent reads.
    pub(super) fn is_of_the_past(&self, event: &Event) -> bool {
        let seen = self.jobs.seen();
        let is_older = |listed: &str, seen: Version| {
            let listed = Version::parse(listed);
            listed != Version::default() && listed < seen
        };
        event.says_restored()
            || match event {
                Event::Job(WatchEvent::Shown(job)) => {
                    let known = self.jobs.get(&job.key).filter(|known| known.uid == job.uid);
                    known.is_some_and(|known| job.version < known.version)
                }
                Event::Pod(WatchEvent::Shown(pod)) => {
                    self.pods.get(&pod.uid).is_some_and(|known| pod.version < known.version)
                }
                Event::Job(WatchEvent::ListEnds(version)) => is_older(version, seen.jobs),
                Event::Pod(WatchEvent::ListEnds(version)) => is_older(version, seen.pods),
                _ => false,
            }
    }

    /// Forgets everything, and asks for new lists. A watch whose list is awaited adds nothing to
    /// that when it notices by itself.
    pub(super) fn restored(&mut self, event: &Event) -> Reaction {
        if event.says_restored() && self.awaited.0.contains(&event.kind()) {
            return Reaction::default();
        }
        self.pods = Pods::default();
        self.pod_list = Relist::default();
        self.jobs = Jobs::new(self.jobs.batching());
        self.gc = self.gc.as_ref().map(|gc| Gc::new(gc.settings().clone()));
        let kinds = [Kind::Jobs, Kind::Pods].into_iter();
        let of_gc = self.gc.iter().flat_map(|_| [Kind::Nodes, Kind::Namespaces]);
        self.awaited = Awaited(kinds.chain(of_gc).collect());
        Reaction { relist: true, ..Reaction::default() }
    }

    /// Records that a list is complete. After the last one that was awaited, everything is
    /// enqueued.
    pub(super) fn listed(&mut self, kind: Kind, now: &Now, reaction: &mut Reaction) {
        if self.awaited.0.remove(&kind) && self.awaited.is_empty() {
            reaction.entries = self.everything(now);
        }
    }
}
