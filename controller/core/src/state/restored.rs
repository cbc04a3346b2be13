//! Starts anew once the API has gone back to an earlier version, as when etcd is restored from a
//! snapshot.
//!
//! What the watches have shown since then has not happened, and what is remembered of it would
//! never come true: a finalizer that was removed, a version that was written. So all of it goes, as
//! with a new process, and nothing is decided until each watch has listed again. A Job of today
//! with pods of another past would be counted wrong.

use std::collections::BTreeMap;

use epilogue_common::watch_event::WatchEvent;

use super::event::{Event, Now, Reaction};
use super::gc::Gc;
use super::groups::Groups;
use super::{ClusterState, Pods, Relist};
use crate::disruption_times::DisruptionTimes;
use crate::view::Version;

/// The kind of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Jobs,
    Pods,
    Nodes,
    Namespaces,
    Workloads,
    PodGroups,
}

/// What an event says about its watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    ListBegins,
    ListEnds,
    /// The watch has noticed that the API has gone back.
    Restored,
    /// Nothing.
    None,
}

/// The watches that have not listed again yet, and whether the list of each has begun. One that had
/// begun before is not whole: what it had shown is forgotten.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(BTreeMap<Kind, bool>);

impl Awaited {
    /// Whether each watch has listed what there is.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A list begins.
    fn begins(&mut self, kind: Kind) {
        if let Some(begun) = self.0.get_mut(&kind) {
            *begun = true;
        }
    }

    /// A list is complete. Whether it was the last one that was awaited.
    fn ends(&mut self, kind: Kind) -> bool {
        let whole = self.0.get(&kind).is_some_and(|begun| *begun);
        if whole {
            self.0.remove(&kind);
        }
        whole && self.is_empty()
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
            Self::Workload(_) => Kind::Workloads,
            Self::PodGroup(_) => Kind::PodGroups,
        }
    }

    /// What it says about its watch.
    pub(super) fn sign(&self) -> Sign {
        fn sign<T>(event: &WatchEvent<T>) -> Sign {
            match event {
                WatchEvent::ListBegins => Sign::ListBegins,
                WatchEvent::ListEnds(_) => Sign::ListEnds,
                WatchEvent::Restored => Sign::Restored,
                _ => Sign::None,
            }
        }
        match self {
            Self::Job(event) => sign(event),
            Self::Pod(event) => sign(event),
            Self::Node(event) => sign(event),
            Self::Namespace(event) => sign(event),
            Self::Workload(event) => sign(event),
            Self::PodGroup(event) => sign(event),
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
        event.sign() == Sign::Restored
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
        if event.sign() == Sign::Restored && self.awaited.0.contains_key(&event.kind()) {
            return Reaction::default();
        }
        self.restores += 1;
        self.pods = Pods::default();
        self.disruption_times = DisruptionTimes::default();
        self.pod_list = Relist::default();
        self.jobs = self.jobs.emptied();
        self.gc = self.gc.as_ref().map(|gc| Gc::new(gc.settings().clone()));
        let kinds = [Kind::Jobs, Kind::Pods].into_iter();
        let of_gc = self.gc.iter().flat_map(|_| [Kind::Nodes, Kind::Namespaces]);
        self.groups = self.groups.take().map(|_| Groups::default());
        let of_groups = self.groups.iter().flat_map(|_| [Kind::Workloads, Kind::PodGroups]);
        let kinds = kinds.chain(of_gc).chain(of_groups);
        self.awaited = Awaited(kinds.map(|kind| (kind, false)).collect());
        Reaction { relist: true, ..Reaction::default() }
    }

    /// Follows the lists that are awaited. After the last one, everything is enqueued.
    pub(super) fn follow_lists(
        &mut self,
        kind: Kind,
        sign: Sign,
        now: &Now,
        reaction: &mut Reaction,
    ) {
        match sign {
            Sign::ListBegins => self.awaited.begins(kind),
            Sign::ListEnds if self.awaited.ends(kind) => {
                reaction.entries = self.everything(now);
            }
            _ => {}
        }
    }
}
