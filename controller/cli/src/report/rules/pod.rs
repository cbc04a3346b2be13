//! Reads a pod for a report: the view of pod GC, and what only a report reads.

use epilogue_common::names::pod_condition::ENDED;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use controller_core::disruption_times::{lost_work, run_time};
use controller_core::view::{Interner, Pod, WirePod};

/// A pod.
#[derive(Clone, Debug)]
pub(super) struct PodSeen {
    pub(super) view: Pod,
    /// `metadata.labels["app.kubernetes.io/name"]`.
    pub(super) app: Option<String>,
    /// `status.message`, which a dump does not have.
    pub(super) message: String,
    /// The message of the condition `epilogue.dev/Ended`, if it is True.
    pub(super) ended_by_us: bool,
    /// The first start of a container.
    pub(super) started: Option<Timestamp>,
    /// How the regular containers ended.
    pub(super) exits: Vec<Exit>,
    runs_to_completion: bool,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct More {
    metadata: MoreMeta,
    spec: MoreSpec,
    status: MoreStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoreMeta {
    labels: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MoreSpec {
    restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MoreStatus {
    message: Option<String>,
    conditions: Option<Vec<MoreCondition>>,
    container_statuses: Option<Vec<MoreContainer>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoreCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoreContainer {
    state: Option<MoreState>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoreState {
    terminated: Option<Terminated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: Option<String>,
}

impl PodSeen {
    pub(super) fn read(object: &Value, interner: &mut Interner) -> Result<Self, serde_json::Error> {
        let pod = WirePod::deserialize(object)?;
        let started = pod.first_start();
        let view = pod.view(interner);
        let More { metadata, spec, status } = More::deserialize(object)?;
        let states: Vec<MoreState> =
            status.container_statuses.into_iter().flatten().filter_map(|it| it.state).collect();
        let mut conditions = status.conditions.into_iter().flatten();
        Ok(Self {
            view,
            app: metadata.labels.and_then(|mut all| all.remove("app.kubernetes.io/name")),
            message: status.message.unwrap_or_default(),
            ended_by_us: conditions.any(|each| each.kind == ENDED && each.status == "True"),
            started,
            exits: states.into_iter().filter_map(MoreState::exit).collect(),
            runs_to_completion: spec.restart_policy.is_some_and(|policy| policy != "Always"),
        })
    }

    /// Its Job, if it has one.
    pub(super) fn job(&self) -> Option<&str> {
        self.view.owner.as_ref().filter(|_| self.view.is_of_job()).map(|owner| &*owner.name)
    }

    /// The work that is lost with it if it was disrupted at this time. A pod that runs for ever
    /// loses none.
    pub(super) fn lost_work(&self, at: Option<Timestamp>, now: Timestamp) -> Option<u64> {
        let lost = lost_work(&self.view, self.started, at?, now);
        lost.filter(|_| self.runs_to_completion).map(|work| work.as_secs())
    }

    /// How long it ran until its end; only of pods that ended and run to completion.
    pub(super) fn run_time(&self, now: Timestamp) -> Option<u64> {
        let ran = run_time(&self.view, self.started, self.view.gc.finished()?, now);
        ran.filter(|_| self.runs_to_completion).map(|ran| ran.as_secs())
    }

    /// A container whose end its runtime does not know: the machine or the runtime went down.
    /// containerd says 255 and Unknown after a restart, the kubelet ContainerStatusUnknown.
    pub(super) fn lost_exit(&self) -> Option<&Exit> {
        self.exits.iter().find(|exit| {
            exit.reason == "ContainerStatusUnknown" || exit.code == 255 && exit.reason == "Unknown"
        })
    }

    /// A container that a signal terminated.
    pub(super) fn signalled_exit(&self) -> Option<&Exit> {
        self.exits.iter().find(|exit| matches!(exit.code, 137 | 143))
    }
}

impl MoreState {
    fn exit(self) -> Option<Exit> {
        let ended = self.terminated?;
        Some(Exit { code: ended.exit_code, reason: ended.reason.unwrap_or_default() })
    }
}
