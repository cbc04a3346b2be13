//! Defines what the state takes and what it returns.

use std::sync::Arc;
use std::time::Duration;

use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};

use crate::disruption_times::Observations;
use crate::job::{JobGroups, Memory, Versions};
use crate::job_pods::JobPods;
use crate::orphans::Orphans;
use crate::podgc::{NamespaceView, NodeView, Wake};
use crate::view::{Job, JobKey, Pod, PodGroup, Workload};
use crate::workqueue::Moment;

/// An event of one of the watches.
#[derive(Clone, Debug)]
pub enum Event {
    /// Of the watch of Jobs.
    Job(WatchEvent<Arc<Job>>),
    /// Of the watch of pods.
    Pod(WatchEvent<Arc<Pod>>),
    /// Of the watch of nodes.
    Node(WatchEvent<NodeView>),
    /// Of the watch of namespaces.
    Namespace(WatchEvent<NamespaceView>),
    /// Of the watch of Workloads.
    Workload(WatchEvent<Arc<Workload>>),
    /// Of the watch of PodGroups.
    PodGroup(WatchEvent<Arc<PodGroup>>),
}

/// The time of an event, and the load at that time.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The time of day, which times of the API compare with.
    pub time: Timestamp,
    /// The time on the clock of the work queue.
    pub elapsed: Moment,
    /// Whether Jobs wait for a worker.
    pub has_backlog: bool,
    /// Whether calls wait for the limit of requests.
    pub is_limited: bool,
}

/// What one event enqueues, counts and reports.
#[derive(Clone, Debug, Default)]
pub struct Reaction {
    /// What to enqueue, in this order.
    pub entries: Vec<Entry>,
    /// For `terminated_pods_tracking_finalizer_total`. ([M7])
    pub tracked_terminal: Vec<&'static str>,
    /// For `jobs_by_external_controller_total`. ([M6])
    pub external: Option<String>,
    /// The Job that rests because the pod of this event cannot be read.
    pub rests: Option<Arc<Job>>,
    /// Pods whose end by a disruption this event shows, and their Jobs, whoever runs those.
    pub disrupted: Vec<(Arc<Job>, Arc<Pod>)>,
    /// How far disruptions of pods of our Jobs have come.
    pub disruption_times: Observations,
    /// The namespace whose Jobs have more templates than are kept, from this event on.
    pub template_budget: Option<Arc<str>>,
    /// Whether a Job asks for a scheduling group, and the API is not known to serve any.
    pub asks_for_group: bool,
    /// Whether each watch must list again, because the API has gone back to an earlier version.
    pub relist: bool,
}

/// An item for a work queue, and the delay that it is added after. An item without delay is added
/// at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Sync this Job.
    Job(JobKey, Option<Duration>),
    /// Check whether finalizers are to be removed.
    Orphans(Orphans, Option<Duration>),
    /// A check of pod GC.
    Check(Wake),
}

/// The input of a plan, except for time and settings.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The Job.
    pub job: Arc<Job>,
    /// Its pods, and those that it may adopt.
    pub pods: JobPods,
    /// What is remembered of it.
    pub memory: Memory,
    /// Its scheduling objects; `None` where the API serves none.
    pub groups: Option<JobGroups>,
    /// How far the watches have come.
    pub seen: Versions,
    /// How long the status may lack new pods.
    pub counts_max: SignedDuration,
    /// How often the API had gone back to an earlier version.
    pub restores: u64,
}
