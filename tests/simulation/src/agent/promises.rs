//! What the agent promises, in the verdicts' own words: which pods a shutdown is about, how the
//! granted delay is divided, when a node is short. Nothing here calls the agent's code, so a
//! mistake there does not take the verdict along. The agent's types serve as data.

use std::time::Duration;

use agent_core::agent::Settings;
use agent_core::pod::{Owner, Phase, PodSource, PodView, RestartPolicy};
use agent_core::pressure::signal::Signal;
use agent_core::pressure::thresholds::{Limit, Threshold};
use agent_core::shutdown::Mode;
use agent_core::shutdown::candidates::BarePods;

/// The kubelet's reason, and so the agent's. ([SD14])
pub(super) const REASON: &str = "TerminationByKubelet";
/// The kubelet's message for a pod that a shutdown terminates. ([SD14])
pub(super) const SHUTDOWN_MESSAGE: &str =
    "Pod was terminated in response to imminent node shutdown.";
/// The agent's message for a pod that went with its node. ([W5])
pub(super) const LOST_MESSAGE: &str = "Pod was lost when its node went down without notice.";
/// The agent's message for a pod without a sandbox, which no kubelet starts or reports. ([W21])
pub(super) const ABANDONED_MESSAGE: &str =
    "Pod lost its sandbox, and its kubelet makes no other for restartPolicy Never.";
/// systemd's default of InhibitDelayMaxSec.
pub(super) const DELAY_DEFAULT: Duration = Duration::from_secs(5);
/// What a lock may last beyond the periods of the priority groups. ([AP13])
pub(super) const FOR_REPORTS: Duration = Duration::from_secs(10);

/// Moments of a shutdown since its announcement, by what logind grants. ([AP11])
pub(super) struct Times {
    /// How long pods may take to end, between marks and reports.
    pub to_end: Duration,
    /// From when on the agent writes what is not reported by then.
    pub last_writes: Duration,
    /// When the lock goes.
    pub end: Duration,
    /// What is left of the delay then.
    pub left: Duration,
}

/// Divides what logind grants: first the reserve, the journal's and the marks' share, and that of
/// the reports, each within its limits. What is left is for the pods.
pub(super) fn times(granted: Duration) -> Times {
    let millis = u64::try_from(granted.as_millis()).unwrap_or(u64::MAX).min(7 * 24 * 3_600_000);
    let reserve = (millis / 20).clamp(250, 1_000).min(millis);
    let journal = 150.min(millis - reserve);
    let marks = (millis / 5).min(2_000).min(millis - reserve - journal);
    let before = reserve + journal + marks;
    let reports = (millis * 3 / 20).clamp(1_400, 10_000).min(millis - before);
    let end = millis - reserve;
    Times {
        to_end: Duration::from_millis(millis - before - reports),
        last_writes: Duration::from_millis(end - reports / 5),
        end: Duration::from_millis(end),
        left: Duration::from_millis(reserve),
    }
}

/// The fewest whole seconds that give the priority groups their periods, and ten more. ([AP15])
pub(super) fn needed(settings: &Settings) -> Option<Duration> {
    let groups = settings.priority_groups.as_ref()?.as_slice();
    let periods: u64 = groups.iter().map(|group| group.period_seconds).sum();
    let enough =
        |seconds: &u64| times(Duration::from_secs(*seconds)).to_end >= Duration::from_secs(periods);
    let divided = (periods..periods + 60).find(enough)?;
    Some(Duration::from_secs(divided.max(periods + FOR_REPORTS.as_secs())))
}

/// Whether a shutdown terminates the pod, by anyone's hand, if it is not terminal. ([AP8])
pub(super) fn concerns(view: &PodView, mode: Mode, settings: &Settings) -> bool {
    let shuts_down =
        view.source != PodSource::Static && settings.own_pod.as_ref() != Some(&view.uid);
    let recreated = view.owner == Owner::DaemonSet;
    match mode {
        Mode::Observe => false,
        Mode::Assist => shuts_down,
        Mode::Substitute => shuts_down && !recreated,
        Mode::Replace => shuts_down && !recreated && view.priority <= settings.priority_max,
    }
}

/// Whether a shutdown in Replace waits for the pod: a pod without a controller is left, unless
/// the settings say so. ([AP26])
pub(super) fn is_waited_for(view: &PodView, settings: &Settings) -> bool {
    concerns(view, Mode::Replace, settings)
        && (view.owner != Owner::None || settings.bare_pods != BarePods::Leave)
}

/// Whether the view's phase is Succeeded or Failed.
pub(super) fn is_terminal(view: &PodView) -> bool {
    view.phase == Phase::Succeeded || view.phase == Phase::Failed
}

/// Whether the pod that ran has had its only run once its containers have exited: none of those
/// that decide about its end restarts. ([AP5])
pub(super) fn had_its_only_run(view: &PodView) -> bool {
    view.has_run && lasts_one_sandbox(view) && view.restarts_in_place == RestartPolicy::Never
}

/// Whether the pod ends with its sandbox, as at a boot: sidecars and containers with a policy of
/// their own restart only in it. ([W20])
pub(super) fn lasts_one_sandbox(view: &PodView) -> bool {
    view.restart_policy == RestartPolicy::Never && !view.restarts_all
}

/// The amount of a threshold's limit, of this capacity. ([EV20])
pub(super) fn amount(limit: Limit, capacity: u64) -> u64 {
    match limit {
        Limit::Amount(quantity) => quantity.units,
        Limit::Part(millionths) => {
            let exact = u128::from(millionths) * u128::from(capacity) / 1_000_000;
            u64::try_from(exact).unwrap_or(u64::MAX)
        }
    }
}

/// Whether less than the limit is available. ([EV20])
pub(super) fn is_short(threshold: &Threshold, available: u64, capacity: u64) -> bool {
    available < amount(threshold.limit, capacity)
}

/// Whether so little is available that the agent may go on once it was short. ([EV20])
pub(super) fn may_reclaim(threshold: &Threshold, available: u64, capacity: u64) -> bool {
    let reclaim = threshold.reclaim.map_or(0, |limit| amount(limit, capacity));
    available < amount(threshold.limit, capacity).saturating_add(reclaim)
}

/// What a node lacks: the word in messages, and the kubelet's condition. ([EV29])
const RESOURCES: [(&str, &str); 4] = [
    ("memory", "MemoryPressure"),
    ("ephemeral-storage", "DiskPressure"),
    ("inodes", "DiskPressure"),
    ("pids", "PIDPressure"),
];

/// The word for the signal's resource, and the kubelet's condition for it.
pub(super) fn resource(signal: Signal) -> (&'static str, &'static str) {
    RESOURCES[match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => 0,
        Signal::NodefsAvailable | Signal::ImagefsAvailable | Signal::ContainerfsAvailable => 1,
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree | Signal::ContainerfsInodesFree => 2,
        Signal::PidAvailable => 3,
    }]
}

/// The kubelet's condition for a resource of a message.
pub(super) fn condition_of(resource: &str) -> Option<&'static str> {
    RESOURCES.iter().find(|(word, _)| *word == resource).map(|(_, condition)| *condition)
}
