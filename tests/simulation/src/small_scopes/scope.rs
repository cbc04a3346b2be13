//! Defines what a scope contains: the Job, the processes, and how many faults may happen.

use controller_core::job::Settings;
use controller_core::view::{Job, JobKey, WireJob};
use epilogue_common::names::MANAGED_BY;
use epilogue_common::names::job_option::PENDING_TIMEOUT;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::SignedDuration;
use serde_json::json;

use super::kubelet::Ending;
use super::sabotage::Sabotage;

/// What a scope contains.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// A name for the command line.
    pub name: &'static str,
    /// `completions`, and `parallelism` unless that is less.
    pub pods: i32,
    /// The most pods at once.
    pub at_once: i32,
    /// `completionMode: Indexed`.
    pub indexed: bool,
    /// `backoffLimit`.
    pub backoff_limit: i32,
    /// What sets this Job apart.
    pub kind: JobKind,
    /// How often a second process, which believes that it leads too, syncs the Job.
    pub second_leader: u8,
    /// How many faults of each kind may happen.
    pub faults: Faults,
    /// How pods may end, besides success.
    pub endings: &'static [Ending],
    /// States with more pods than this are not followed.
    pub pods_max: u8,
    /// How many states it has; a change of the code may change that.
    pub states: usize,
    /// Break the controller, to check the checks.
    pub sabotage: Option<Sabotage>,
}

/// What sets a Job apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Nothing.
    Plain,
    /// `podReplacementPolicy: Failed`.
    ReplacesFailed,
    /// `podFailurePolicy` with `Ignore` for disruptions, which implies replacing only failed pods.
    IgnoresDisruptions,
    /// `epilogue.dev/pending-timeout`, which every pending pod exceeds.
    PendingTimeout,
    /// `backoffLimitPerIndex: 1`.
    PerIndex,
    /// `scheduling` with a gang; the API serves Workloads and PodGroups.
    Gang,
    /// The same with `disruptionMode: all`.
    WholeGang,
    /// The same with `podReplacementPolicy: Failed`, too.
    WholeGangOfDead,
}

/// How many faults of each kind may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Processes that die; another takes their place.
    pub crashes: u8,
    /// Calls whose reply is lost, or that are lost themselves.
    pub lost_replies: u8,
    /// Watches that hold events back for a while.
    pub late_watches: u8,
    /// Pods that do not end by success.
    pub endings: u8,
}

impl Faults {
    /// No fault.
    pub const NONE: Self = Self { crashes: 0, lost_replies: 0, late_watches: 0, endings: 0 };

    /// At most one crash, one lost reply, one late watch, and this many bad endings.
    pub const fn one_each(endings: u8) -> Self {
        Self { crashes: 1, lost_replies: 1, late_watches: 1, endings }
    }
}

/// How far an exploration goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// It fails beyond this many states.
    pub states_max: usize,
    /// When more states than this wait, the newest is explored first, which adds few. Until then
    /// the order is breadth-first, in which a violation has a shortest path.
    pub waiting_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { states_max: 1_000_000, waiting_max: 3_000 }
    }
}

/// The name of the Job.
pub(super) fn key() -> JobKey {
    JobKey::new("ns", "job")
}

/// The program's settings without backoff, which would need a clock.
pub(super) fn settings() -> Settings {
    Settings {
        default_job_pod_failure_backoff: SignedDuration::ZERO,
        max_job_pod_failure_backoff: SignedDuration::ZERO,
        ..Settings::default()
    }
}

impl Scope {
    /// How far the clock of processes is ahead of all times in the API.
    pub(super) fn clock_ahead(&self) -> SignedDuration {
        match self.kind {
            JobKind::PendingTimeout => SignedDuration::from_hours(1),
            _ => SignedDuration::ZERO,
        }
    }

    /// Whether pods wait for a node; otherwise they start as they are created.
    pub(super) fn has_pending_pods(&self) -> bool {
        self.kind == JobKind::PendingTimeout || self.endings.contains(&Ending::DeletePending)
    }

    /// Whether pods that have succeeded may be called Failed.
    pub(super) fn pods_are_refused(&self) -> bool {
        self.endings.contains(&Ending::Refuse)
    }

    pub(super) fn replaces_failed_only(&self) -> bool {
        let kinds =
            [JobKind::ReplacesFailed, JobKind::IgnoresDisruptions, JobKind::WholeGangOfDead];
        kinds.contains(&self.kind)
    }

    /// Whether its pods are in a group.
    pub(super) fn is_gang(&self) -> bool {
        self.kind == JobKind::Gang || self.is_disrupted_whole()
    }

    /// Whether its group is disrupted as a whole.
    pub(super) fn is_disrupted_whole(&self) -> bool {
        matches!(self.kind, JobKind::WholeGang | JobKind::WholeGangOfDead)
    }

    pub(super) fn job(&self) -> Job {
        let mut spec = json!({
            "managedBy": MANAGED_BY,
            "parallelism": self.at_once,
            "completions": self.pods,
            "completionMode": if self.indexed { "Indexed" } else { "NonIndexed" },
            "backoffLimit": self.backoff_limit,
            "selector": {"matchLabels": {"app": "job"}},
            "template": {
                "metadata": {"labels": {"app": "job"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
            },
        });
        let mut metadata = json!({"namespace": "ns", "name": "job"});
        match self.kind {
            JobKind::Plain => {}
            JobKind::ReplacesFailed => spec["podReplacementPolicy"] = "Failed".into(),
            JobKind::IgnoresDisruptions => {
                let disrupted = json!([{"type": DISRUPTION_TARGET, "status": "True"}]);
                let rule = json!({"action": "Ignore", "onPodConditions": disrupted});
                spec["podFailurePolicy"] = json!({"rules": [rule]});
            }
            JobKind::PendingTimeout => metadata["annotations"][PENDING_TIMEOUT] = "1s".into(),
            JobKind::PerIndex => spec["backoffLimitPerIndex"] = 1.into(),
            JobKind::Gang | JobKind::WholeGang | JobKind::WholeGangOfDead => {
                spec["scheduling"] = json!({"schedulingPolicy": {"gang": {}}});
            }
        }
        if self.is_disrupted_whole() {
            spec["scheduling"]["disruptionMode"] = json!({"all": {}});
        }
        if self.kind == JobKind::WholeGangOfDead {
            spec["podReplacementPolicy"] = "Failed".into();
        }
        let parsed = WireJob::parse(json!({"metadata": metadata, "spec": spec}));
        parsed.and_then(WireJob::view).expect("the Job of a scope must be a Job")
    }
}
