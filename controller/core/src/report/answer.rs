//! Defines what a report says. Serialized, it is the stable JSON of `kubectl epilogue report`.

use epilogue_common::finding_code::FindingCode;
use jiff::Timestamp;
use serde::Serialize;

use super::metrics::MetricSum;
use crate::doctor::Omission;

/// The version of the JSON form. A field may be added; none changes its meaning.
pub const VERSION: u32 = 1;

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The beginning of the time range.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
    /// The namespace; `None` for all.
    pub namespace: Option<String>,
    /// The time of the oldest event that was read.
    pub oldest_event: Option<Timestamp>,
    /// The pods of Epilogue that run; `None` if one namespace was read.
    pub installed: Option<Installed>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The disrupted pods, latest first.
    pub pods: Vec<DisruptedPod>,
    /// The Jobs that failed by disruptions, or that wait.
    pub jobs: Vec<AffectedJob>,
    /// What happened to nodes, by their events.
    pub nodes: Vec<NodeDisruption>,
    /// The number of each event of Epilogue.
    pub events: Vec<EventCount>,
    /// Counters of Epilogue, since each program started.
    pub metrics: Vec<MetricSum>,
    /// What the report cannot know.
    pub not_known: Vec<Omission>,
}

/// The pods of Epilogue that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// Agents in pods. Agents that are services of the host have no pods.
    pub agents: usize,
    /// Replicas of the controller.
    pub controllers: usize,
}

/// How a number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Objects or events of the API say so.
    Seen,
    /// It follows from what they say, under an assumption.
    Estimated,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Pods.
    Pods,
    /// Jobs.
    Jobs,
    /// Seconds.
    Seconds,
}

/// One number, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Its name: a code of troubleshooting, or one of [`super::totals`].
    pub name: &'static str,
    /// What it says.
    pub text: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// The part that was seen.
    pub seen: u64,
    /// The part that is estimated.
    pub estimated: u64,
    /// How it came about.
    pub how: &'static str,
}

/// What disrupted a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Its node object is gone.
    NodeGone,
    /// Its node has booted.
    NodeRebooted,
    /// Its node shut down.
    NodeShutdown,
    /// Its node does not report.
    NodeSilent,
    /// Its node was short of a resource.
    NodePressure,
    /// A pod of a higher priority took its place.
    Preemption,
    /// Its node got a taint that it does not tolerate.
    Taint,
    /// It was evicted through the API, as in a drain.
    Drain,
    /// It was deleted, and does not terminate.
    Stuck,
}

/// What Epilogue has to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Help {
    /// Epilogue acted.
    Acted,
    /// Epilogue would have acted, set to enforce.
    WouldHaveActed,
    /// Epilogue would not have changed it.
    NoHelp,
    /// Kubernetes reported the disruption itself.
    NotNeeded,
}

/// A pod that was disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DisruptedPod {
    /// What became of it; docs/troubleshooting.md explains the code.
    pub code: FindingCode,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// Its node, where it is known.
    pub node: Option<String>,
    /// Its Job, if it has one.
    pub job: Option<String>,
    /// What disrupted it.
    pub cause: Cause,
    /// Whether that was seen.
    pub basis: Basis,
    /// By what.
    pub how: String,
    /// When it was disrupted, where it is known.
    pub at: Option<Timestamp>,
    /// How long it ran until then; only of pods that run to completion.
    pub work_seconds: Option<u64>,
    /// How long it has been without a terminal phase since.
    pub waited_seconds: Option<u64>,
    /// What Epilogue has to do with it.
    pub epilogue: Help,
    /// Whether that was seen.
    pub epilogue_basis: Basis,
    /// Why.
    pub epilogue_how: String,
}

/// A Job that failed by disruptions, or that waits for a pod that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AffectedJob {
    /// What became of it; docs/troubleshooting.md explains the code.
    pub code: FindingCode,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The reason of its condition Failed.
    pub reason: Option<String>,
    /// When it failed.
    pub at: Option<Timestamp>,
    /// `status.failed`.
    pub failures: u64,
    /// Its disrupted pods that count as failures, or that it waits for.
    pub disruptions: u64,
    /// `spec.backoffLimit`.
    pub backoff_limit: Option<u64>,
    /// Whether its podFailurePolicy ignores DisruptionTarget.
    pub ignores_disruptions: bool,
    /// Whether disruptions made the difference for certain.
    pub basis: Basis,
    /// Why.
    pub how: String,
    /// How long its other pods ran: work that failed with it.
    pub work_seconds: u64,
    /// What Epilogue has to do with it.
    pub epilogue: Help,
    /// Why.
    pub epilogue_how: String,
}

/// An event of a node that disrupts its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDisruption {
    /// The node.
    pub node: String,
    /// `reason` of the event.
    pub reason: &'static str,
    /// What it does to pods.
    pub cause: Cause,
    /// When.
    pub at: Timestamp,
}

/// The number of one kind of events of Epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventCount {
    /// `epilogue-agent` or `epilogue-controller`.
    pub program: &'static str,
    /// `reason`.
    pub reason: &'static str,
    /// How many.
    pub events: u64,
    /// About how many pods or nodes.
    pub objects: u64,
}
