//! Models the watches of a process: they list, deliver, stall, merge events and break.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{NamespaceView, NodeView};
use controller_core::state::Event as StateEvent;
use controller_core::view::{Job, Pod, PodGroup, Version, Workload};
use epilogue_common::watch_event::WatchEvent;

use super::api::{Api, Sighting};
use super::process::Life;
use super::situations::Met;
use super::watched::Watched;
use super::world::{Event, World};

/// The kinds that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Jobs,
    Pods,
    Nodes,
    Namespaces,
    Workloads,
    PodGroups,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Jobs, Self::Pods, Self::Nodes, Self::Namespaces, Self::Workloads, Self::PodGroups];

    /// Those that this API serves.
    pub(super) fn of(api: &Api) -> &'static [Self] {
        if api.serves_groups { &Self::ALL } else { &Self::ALL[..4] }
    }
}

/// The watches of one process.
#[derive(Debug, Default)]
pub(super) struct Watches {
    jobs: Watch<Job>,
    pods: Watch<Pod>,
    nodes: Watch<NodeView>,
    namespaces: Watch<NamespaceView>,
    workloads: Watch<Workload>,
    pod_groups: Watch<PodGroup>,
}

/// A watch of one kind.
#[derive(Debug)]
struct Watch<T> {
    /// How much of the log it has delivered.
    position: usize,
    roused: bool,
    listed: bool,
    listing: Option<Listing<T>>,
}

/// A list in progress: its remaining objects, and its version.
#[derive(Debug)]
struct Listing<T> {
    items: VecDeque<Arc<T>>,
    version: Version,
}

/// What a watch has for its process.
enum Came {
    Event(StateEvent),
    /// An event that a later one includes.
    Merged,
    Nothing,
}

/// A kind of object that each process watches.
trait OfProcess: Watched {
    fn watch(watches: &mut Watches) -> &mut Watch<Self>;
}

impl OfProcess for Job {
    fn watch(watches: &mut Watches) -> &mut Watch<Self> {
        &mut watches.jobs
    }
}

impl OfProcess for Pod {
    fn watch(watches: &mut Watches) -> &mut Watch<Self> {
        &mut watches.pods
    }
}

impl OfProcess for NodeView {
    fn watch(watches: &mut Watches) -> &mut Watch<Self> {
        &mut watches.nodes
    }
}

impl OfProcess for NamespaceView {
    fn watch(watches: &mut Watches) -> &mut Watch<Self> {
        &mut watches.namespaces
    }
}

impl OfProcess for Workload {
    fn watch(watches: &mut Watches) -> &mut Watch<Self> {
        &mut watches.workloads
    }
}

impl OfProcess for PodGroup {
    fn watch(watches: &mut Watches) -> &mut Watch<Self> {
        &mut watches.pod_groups
    }
}

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Self { position: 0, roused: false, listed: false, listing: None }
    }
}

impl<T: Watched> Watch<T> {
    fn is_pending(&self, api: &Api) -> bool {
        self.listing.is_some() || self.position < T::log(api).len()
    }

    /// Whether it has shown all that happened.
    fn is_current(&self, api: &Api) -> bool {
        self.listed && !self.is_pending(api)
    }

    fn begin(&mut self, api: &Api, items: Vec<Arc<T>>) {
        self.position = T::log(api).len();
        self.listing = Some(Listing { items: items.into(), version: api.version() });
    }

    /// The next event: of the list in progress, or else of the watch.
    fn next(&mut self, api: &Api, until: Option<usize>) -> Came {
        if let Some(listing) = &mut self.listing {
            let event = if let Some(object) = listing.items.pop_front() {
                WatchEvent::Shown(object)
            } else {
                let version = listing.version.to_string();
                (self.listing, self.listed) = (None, true);
                WatchEvent::ListEnds(version)
            };
            return Came::Event(T::event(event));
        }
        let position = self.position;
        let Some(sighting) = T::log(api).get(position) else { return Came::Nothing };
        self.position += 1;
        let later = &T::log(api)[position + 1..until.unwrap_or(0).max(position + 1)];
        let event = match sighting {
            Sighting::Shown(object) => {
                let again =
                    |later: &Sighting<T>| later.shown().is_some_and(|it| it.is_same(object));
                if later.iter().any(again) {
                    return Came::Merged;
                }
                WatchEvent::Shown(Arc::clone(object))
            }
            Sighting::Gone(object, version) => WatchEvent::Gone(Arc::new(object.at(*version))),
        };
        Came::Event(T::event(event))
    }
}

impl Watches {
    /// Whether all were listed, which the workers wait for. ([Q7])
    pub(super) fn are_listed(&self) -> bool {
        let others = self.nodes.listed && self.namespaces.listed;
        self.jobs.listed && self.pods.listed && others
    }

    fn roused(&mut self, kind: Kind) -> &mut bool {
        match kind {
            Kind::Jobs => &mut self.jobs.roused,
            Kind::Pods => &mut self.pods.roused,
            Kind::Nodes => &mut self.nodes.roused,
            Kind::Namespaces => &mut self.namespaces.roused,
            Kind::Workloads => &mut self.workloads.roused,
            Kind::PodGroups => &mut self.pod_groups.roused,
        }
    }

    fn is_pending(&self, kind: Kind, api: &Api) -> bool {
        match kind {
            Kind::Jobs => self.jobs.is_pending(api),
            Kind::Pods => self.pods.is_pending(api),
            Kind::Nodes => self.nodes.is_pending(api),
            Kind::Namespaces => self.namespaces.is_pending(api),
            Kind::Workloads => self.workloads.is_pending(api),
            Kind::PodGroups => self.pod_groups.is_pending(api),
        }
    }
}

impl World {
    /// A watch breaks and lists again. Lists are consistent reads.
    pub(super) fn relist(&mut self, number: usize, kind: Kind) {
        self.say(|_| format!("p{number} lists {kind:?}"));
        match kind {
            Kind::Jobs => self.begin_list::<Job>(number),
            Kind::Pods => self.begin_list::<Pod>(number),
            Kind::Nodes => self.begin_list::<NodeView>(number),
            Kind::Namespaces => self.begin_list::<NamespaceView>(number),
            Kind::Workloads => self.begin_list::<Workload>(number),
            Kind::PodGroups => self.begin_list::<PodGroup>(number),
        }
        self.rouse(number, kind);
    }

    fn begin_list<T: OfProcess>(&mut self, number: usize) {
        let mut items = T::objects(&self.api);
        self.random.shuffle(&mut items);
        T::watch(&mut self.processes[number].watches).begin(&self.api, items);
        self.hand_over(number, T::event(WatchEvent::ListBegins));
    }

    /// Lets a watch with pending events deliver them, in its own time.
    pub(super) fn rouse(&mut self, number: usize, kind: Kind) {
        let process = &mut self.processes[number];
        let idle = process.life != Life::Leads || !process.watches.is_pending(kind, &self.api);
        if idle || std::mem::replace(process.watches.roused(kind), true) {
            return;
        }
        let delay = self.watch_delay(kind);
        self.agenda.after(delay, Event::Watch { process: number, kind });
    }

    /// Stalled watches deliver soon, now that faults have ended.
    pub(super) fn end_stalls(&mut self) {
        for number in 0..self.processes.len() {
            for &kind in Kind::of(&self.api) {
                *self.processes[number].watches.roused(kind) = false;
                self.rouse(number, kind);
            }
        }
    }

    /// Nodes change rarely, so their watch stalls more often than others do. Otherwise the cases
    /// would hardly come up.
    fn watch_delay(&mut self, kind: Kind) -> Duration {
        let stalls = !self.is_quiet() && self.behaviour.watch_stalls > 0;
        if kind == Kind::Nodes && stalls && self.random.percent(20) {
            self.met(Met::WatchStalls);
            return self.random.millis(10_000, 200_000);
        }
        if self.is_quiet() || !self.random.per_mille(self.behaviour.watch_stalls) {
            return self.random.millis(1, 30);
        }
        self.met(Met::WatchStalls);
        match self.random.below(10) {
            0 => self.random.millis(10_000, 400_000),
            1..4 => self.random.millis(2_000, 20_000),
            _ => self.random.millis(100, 3_000),
        }
    }

    /// A watch delivers some events, part of a list, or breaks.
    pub(super) fn deliver(&mut self, number: usize, kind: Kind) {
        let process = &mut self.processes[number];
        *process.watches.roused(kind) = false;
        if process.life != Life::Leads {
            return;
        }
        if !self.is_quiet() && self.random.per_mille(self.behaviour.watch_breaks) {
            self.met(Met::WatchBreaks);
            self.relist(number, kind);
            return;
        }
        match kind {
            Kind::Jobs => self.deliver_some::<Job>(number),
            Kind::Pods => self.deliver_some::<Pod>(number),
            Kind::Nodes => self.deliver_some::<NodeView>(number),
            Kind::Namespaces => self.deliver_some::<NamespaceView>(number),
            Kind::Workloads => self.deliver_some::<Workload>(number),
            Kind::PodGroups => self.deliver_some::<PodGroup>(number),
        }
        self.check_queues(number);
    }

    /// Events that are delivered together may be merged.
    fn deliver_some<T: OfProcess>(&mut self, number: usize) {
        let coalesces = self.behaviour.coalesces;
        let count = 1 + self.random.below(if coalesces { 12 } else { 4 });
        let watch = T::watch(&mut self.processes[number].watches);
        let merges = coalesces && watch.listing.is_none();
        let until = merges.then(|| T::log(&self.api).len().min(watch.position + count));
        for _ in 0..count {
            let watch = T::watch(&mut self.processes[number].watches);
            match watch.next(&self.api, until) {
                Came::Event(event) => self.hand_over(number, event),
                Came::Merged => {}
                Came::Nothing => break,
            }
        }
    }

    /// The API sends bookmarks to watches without pending events.
    pub(super) fn bookmark(&mut self) {
        let Some(number) = self.leader() else { return };
        let up_to = self.api.version().to_string();
        let watches = &self.processes[number].watches;
        let jobs = watches.jobs.is_current(&self.api);
        let pods = watches.pods.is_current(&self.api);
        let workloads = watches.workloads.is_current(&self.api);
        let pod_groups = watches.pod_groups.is_current(&self.api);
        if jobs {
            self.hand_over(number, StateEvent::Job(WatchEvent::UpTo(up_to.clone())));
        }
        if pods {
            self.hand_over(number, StateEvent::Pod(WatchEvent::UpTo(up_to.clone())));
        }
        if workloads {
            self.hand_over(number, StateEvent::Workload(WatchEvent::UpTo(up_to.clone())));
        }
        if pod_groups {
            self.hand_over(number, StateEvent::PodGroup(WatchEvent::UpTo(up_to)));
        }
        self.check_queues(number);
    }
}
