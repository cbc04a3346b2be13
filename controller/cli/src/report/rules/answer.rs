//! Defines what a report says. Serialized, it is the stable JSON of `kubectl epilogue report`.

use std::collections::BTreeMap;

use epilogue_common::finding_code::FindingCode;
use jiff::Timestamp;
use serde::Serialize;

use super::disruption_times::DisruptionTime;
use super::lost_work::JobLostWork;
use super::metrics::MetricSum;
use crate::doctor::rules::Omission;

/// The version of the JSON form. A field may be added; none changes its meaning.
pub(crate) const VERSION: u32 = 1;

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The beginning of the time range.
    pub(crate) from: Timestamp,
    /// Its end.
    pub(crate) to: Timestamp,
    /// The namespace; `None` for all.
    pub(crate) namespace: Option<String>,
    /// The time of the oldest event that was read.
    pub(crate) oldest_event: Option<Timestamp>,
    /// The pods of Epilogue that run; `None` if one namespace was read.
    pub(crate) installed: Option<Installed>,
    /// How the controller runs, as its lease says; `None` if that has not been read.
    pub(crate) controller: Option<ControllerRuns>,
    /// The figures.
    pub(crate) figures: Vec<Figure>,
    /// How pods ended, as their Jobs' events and disrupted pods tell.
    pub(crate) ends: Ends,
    /// The disrupted pods, latest first.
    pub(crate) pods: Vec<DisruptedPod>,
    /// The Jobs that have lost work with those pods, the most first.
    pub(crate) lost_work: Vec<JobLostWork>,
    /// The Jobs that failed by disruptions, or that wait.
    pub(crate) jobs: Vec<AffectedJob>,
    /// What happened to nodes, by their events.
    pub(crate) nodes: Vec<NodeDisruption>,
    /// The number of each event of Epilogue.
    pub(crate) events: Vec<EventCount>,
    /// How long disruptions took, since each controller started.
    pub(crate) disruption_times: Vec<DisruptionTime>,
    /// Counters of Epilogue, since each program started.
    pub(crate) metrics: Vec<MetricSum>,
    /// What the report cannot know.
    pub(crate) not_known: Vec<Omission>,
}

/// The pods of Epilogue that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Installed {
    /// Agents in pods. Agents that are services of the host have no pods.
    pub(crate) agents: usize,
    /// Replicas of the controller.
    pub(crate) controllers: usize,
}

/// How the controller runs, or ran last. What its lease does not say is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ControllerRuns {
    /// Its version.
    pub(crate) version: Option<String>,
    /// Whether it runs all Jobs without `spec.managedBy`.
    pub(crate) manage_all_jobs: Option<bool>,
    /// The namespaces that it watches; all if there are none.
    pub(crate) namespaces: Vec<String>,
    /// The value of `--pod-gc`.
    pub(crate) mode: Option<String>,
    /// That no replica works, and why; `None` if one does.
    pub(crate) idle: Option<String>,
}

/// How a number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Basis {
    /// Objects or events of the API say so.
    Seen,
    /// It follows from what they say, under an assumption.
    Estimated,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// Pods.
    Pods,
    /// Jobs.
    Jobs,
    /// Seconds.
    Seconds,
}

/// One number, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Figure {
    /// Its name: a code of troubleshooting, or one of [`super::totals`].
    pub(crate) name: &'static str,
    /// What it says.
    pub(crate) text: &'static str,
    /// What it counts.
    pub(crate) unit: Unit,
    /// The part that was seen.
    pub(crate) seen: u64,
    /// The part that is estimated.
    pub(crate) estimated: u64,
    /// How it came about.
    pub(crate) how: &'static str,
}

/// How pods ended, each counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Ends {
    /// How many.
    pub(crate) total: u64,
    /// How many of them were disruptions.
    pub(crate) disruptions: u64,
    /// By cause: disruptions first, the most frequent first.
    pub(crate) by_cause: Vec<CauseEnds>,
    /// By Job, those with the most ends first.
    pub(crate) by_job: Vec<JobEnds>,
    /// By node likewise.
    pub(crate) by_node: Vec<NodeEnds>,
    /// By hour, the earliest first.
    pub(crate) by_hour: Vec<HourEnds>,
    /// Those whose hour is not known.
    pub(crate) between: Vec<EndsBetween>,
}

/// The ends of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CauseEnds {
    /// The cause, as the label `cause` of `epilogue_pod_ends_total`.
    pub(crate) cause: String,
    /// Whether it is a disruption.
    pub(crate) disruption: bool,
    /// How many.
    pub(crate) ends: u64,
    /// How many counted in which way, where a Job's event says it.
    pub(crate) counted: BTreeMap<&'static str, u64>,
}

/// The ends of one Job's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct JobEnds {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
    /// How many.
    pub(crate) ends: u64,
    /// How many of them were disruptions.
    pub(crate) disruptions: u64,
    /// How many of which cause.
    pub(crate) causes: BTreeMap<String, u64>,
}

/// The ends on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeEnds {
    /// The node; `None` where it is not known.
    pub(crate) node: Option<String>,
    /// How many.
    pub(crate) ends: u64,
    /// How many of them were disruptions.
    pub(crate) disruptions: u64,
    /// How many of which cause.
    pub(crate) causes: BTreeMap<String, u64>,
}

/// The ends of one cause in one hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HourEnds {
    /// The beginning of the hour.
    pub(crate) at: Timestamp,
    /// The cause.
    pub(crate) cause: String,
    /// How many.
    pub(crate) ends: u64,
}

/// Ends of one cause at times between two that are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EndsBetween {
    /// Not before.
    pub(crate) from: Timestamp,
    /// Not after.
    pub(crate) to: Timestamp,
    /// The cause.
    pub(crate) cause: String,
    /// How many.
    pub(crate) ends: u64,
}

/// What disrupted a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cause {
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
pub(crate) enum Help {
    /// Epilogue acted.
    Acted,
    /// Epilogue would have acted, set to enforce.
    WouldHaveActed,
    /// Epilogue would not have changed it.
    #[serde(rename = "no-help")]
    Nothing,
    /// Kubernetes reported the disruption itself.
    NotNeeded,
}

/// A pod that was disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DisruptedPod {
    /// What became of it; docs/troubleshooting.md explains the code.
    pub(crate) code: FindingCode,
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
    /// Its node, where it is known.
    pub(crate) node: Option<String>,
    /// Its Job, if it has one.
    pub(crate) job: Option<String>,
    /// What disrupted it.
    pub(crate) cause: Cause,
    /// Whether that was seen.
    pub(crate) basis: Basis,
    /// By what.
    pub(crate) how: String,
    /// When it was disrupted, where it is known.
    pub(crate) at: Option<Timestamp>,
    /// How long it ran until then; only of pods that run to completion.
    pub(crate) work_seconds: Option<u64>,
    /// How long it has been without a terminal phase since.
    pub(crate) waited_seconds: Option<u64>,
    /// What Epilogue has to do with it.
    pub(crate) epilogue: Help,
    /// Whether that was seen.
    pub(crate) epilogue_basis: Basis,
    /// Why.
    pub(crate) epilogue_how: String,
}

/// A Job that failed by disruptions, or that waits for a pod that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AffectedJob {
    /// What became of it; docs/troubleshooting.md explains the code.
    pub(crate) code: FindingCode,
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
    /// The reason of its condition Failed.
    pub(crate) reason: Option<String>,
    /// When it failed.
    pub(crate) at: Option<Timestamp>,
    /// `status.failed`.
    pub(crate) failures: u64,
    /// Its disrupted pods that count as failures, or that it waits for.
    pub(crate) disruptions: u64,
    /// `spec.backoffLimit`.
    pub(crate) backoff_limit: Option<u64>,
    /// Whether its podFailurePolicy ignores DisruptionTarget.
    pub(crate) ignores_disruptions: bool,
    /// Whether disruptions made the difference for certain.
    pub(crate) basis: Basis,
    /// Why.
    pub(crate) how: String,
    /// How long its other pods ran: work that failed with it.
    pub(crate) work_seconds: u64,
    /// What Epilogue has to do with it.
    pub(crate) epilogue: Help,
    /// Why.
    pub(crate) epilogue_how: String,
}

/// An event of a node that disrupts its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeDisruption {
    /// The node.
    pub(crate) node: String,
    /// `reason` of the event.
    pub(crate) reason: &'static str,
    /// What it does to pods.
    pub(crate) cause: Cause,
    /// When.
    pub(crate) at: Timestamp,
}

/// The number of one kind of events of Epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EventCount {
    /// `epilogue-agent` or `epilogue-controller`.
    pub(crate) program: &'static str,
    /// `reason`.
    pub(crate) reason: &'static str,
    /// How many.
    pub(crate) events: u64,
    /// About how many pods or nodes.
    pub(crate) objects: u64,
}
