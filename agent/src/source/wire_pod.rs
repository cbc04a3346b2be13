//! Parses a pod from the wire, as far as the agent reads it. Skips everything else while parsing,
//! so that a pod costs no more memory than its view. Parses everything that the API admits.

use agent_core::pod::{
    Details, Disruption, Owner, Phase, PodSource, PodUid, PodView, RestartPolicy,
};
use agent_core::termination::patches::DEADLINE_SECONDS;
use epilogue_common::names::TRACKING_FINALIZER;
use epilogue_common::names::node::SHUTTING_DOWN_TAINT;
use epilogue_common::names::pod_condition::OOM_KILLED;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::wire_asks::{Amounts, Resources, Volume};

/// Actions of a container's restart rules.
const RESTART: &str = "Restart";
const RESTART_ALL: &str = "RestartAllContainers";
/// The runtime's reason for a container that the kernel killed for lack of memory.
const OOM_KILLED_REASON: &str = "OOMKilled";

/// The part of a pod that the agent reads.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WirePod {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    namespace: String,
    name: String,
    generation: i64,
    resource_version: String,
    annotations: Option<Annotations>,
    owner_references: Option<Vec<OwnerReference>>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<String>,
    finalizers: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<String>,
    #[serde(rename = "epilogue.dev/end-signal")]
    end_signal: Option<String>,
    #[serde(rename = "kubectl.kubernetes.io/default-container")]
    default_container: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnerReference {
    api_version: String,
    kind: String,
    controller: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    restart_policy: Option<String>,
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
    active_deadline_seconds: Option<i64>,
    pub(super) containers: Option<Vec<Container>>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) resources: Option<Resources>,
    pub(super) overhead: Option<Amounts>,
    pub(super) volumes: Option<Vec<Volume>>,
    resource_claims: Option<Vec<IgnoredAny>>,
    tolerations: Option<Vec<Toleration>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Toleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub(super) name: String,
    restart_policy: Option<String>,
    restart_policy_rules: Option<Vec<RestartRule>>,
    pub(super) resources: Option<Resources>,
    lifecycle: Option<Lifecycle>,
}

/// What a kubelet does about a container that exits with one of these codes.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RestartRule {
    action: String,
    exit_codes: Option<ExitCodes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ExitCodes {
    operator: String,
    values: Option<Vec<i64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifecycle {
    pre_stop: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Option<String>,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    restart_count: i64,
    state: Option<State>,
    last_state: Option<State>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Running>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    reason: Option<String>,
    exit_code: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: Option<String>,
}

impl WirePod {
    /// Whether it is this pod, and not another one of the same name.
    pub(crate) fn is(&self, uid: &PodUid) -> bool {
        self.metadata.uid == uid.0
    }

    /// What the core decides by.
    pub(crate) fn view(self) -> PodView {
        let Self { metadata, spec, status } = self;
        let owner = owner(metadata.owner_references.as_deref().unwrap_or_default());
        let annotations = metadata.annotations.unwrap_or_default();
        let mirror = annotations.mirror.is_some();
        let mut statuses = status.container_statuses.unwrap_or_default();
        let running_since = statuses.iter().filter_map(ContainerStatus::running_since).max();
        statuses.extend(status.init_container_statuses.unwrap_or_default());
        let conditions = status.conditions.unwrap_or_default();
        let asks = spec.asks();
        let details = Details {
            deleted_at: time(metadata.deletion_timestamp.as_deref()),
            oom_killed: oom_killed(&conditions),
            end_signal: annotations.end_signal.map(|text| text.chars().take(64).collect()),
            default_container: annotations.default_container.filter(|it| it.len() <= 63),
            ..details(metadata.finalizers.as_deref(), &spec, &statuses)
        };
        let containers = spec.containers.unwrap_or_default();
        let inits = spec.init_containers.unwrap_or_default();
        let pod_policy = restart_policy(spec.restart_policy.as_deref());
        PodView {
            uid: PodUid(metadata.uid),
            namespace: metadata.namespace,
            name: metadata.name,
            generation: metadata.generation,
            resource_version: metadata.resource_version,
            source: if mirror { PodSource::Static } else { PodSource::Api },
            owner,
            restart_policy: pod_policy,
            restarts_in_place: restarts_in_place(&containers, pod_policy),
            restarts_all: containers.iter().chain(&inits).any(Container::restarts_all),
            sidecars: names(inits.into_iter().filter(Container::is_sidecar)),
            priority: spec.priority.unwrap_or(0),
            grace_seconds: spec.termination_grace_period_seconds.map(seconds),
            deadline_set: spec.active_deadline_seconds == Some(i64::from(DEADLINE_SECONDS)),
            deletion_grace_seconds: deletion(
                metadata.deletion_timestamp.as_deref(),
                metadata.deletion_grace_period_seconds,
            ),
            phase: phase(status.phase.as_deref()),
            has_run: statuses.iter().any(ContainerStatus::has_run),
            containers: names(containers.into_iter()),
            running_since,
            disruption: disruption(conditions),
            asks,
            details,
        }
    }
}

impl Container {
    /// After which exits it starts again: by its own policy and rules, or else by the pod's policy.
    /// A kubelet reads no rules where the container has no policy. ([API19])
    fn restarts(&self, pod: RestartPolicy) -> RestartPolicy {
        let Some(own) = self.restart_policy.as_deref() else { return pod };
        let own = restart_policy(Some(own));
        let restarting = || self.rules().filter(|rule| rule.restarts());
        let first_of_success = self.rules().find(|rule| rule.matches(0));
        match first_of_success {
            Some(rule) if rule.restarts() => RestartPolicy::Always,
            _ if restarting().next().is_some() => own.max(RestartPolicy::OnFailure),
            _ => own,
        }
    }

    fn restarts_all(&self) -> bool {
        self.rules().any(|rule| rule.action == RESTART_ALL)
    }

    fn rules(&self) -> impl Iterator<Item = &RestartRule> {
        self.restart_policy_rules.iter().flatten()
    }

    pub(super) fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl RestartRule {
    fn restarts(&self) -> bool {
        self.action == RESTART || self.action == RESTART_ALL
    }

    fn matches(&self, code: i64) -> bool {
        let Some(ExitCodes { operator, values }) = &self.exit_codes else { return false };
        let among = values.iter().flatten().any(|value| *value == code);
        match operator.as_str() {
            "In" => among,
            "NotIn" => !among,
            _ => false,
        }
    }
}

impl ContainerStatus {
    fn has_run(&self) -> bool {
        let shown = |state: &State| state.running.is_some() || state.terminated.is_some();
        let now = self.state.as_ref().is_some_and(shown);
        now || self.restart_count > 0 || self.last_state.as_ref().is_some_and(shown)
    }

    /// Whether it, or its previous run, was killed for lack of memory. The runtime gives this
    /// reason for the kill of any of its processes: a container that then exited with 0 has lived
    /// on.
    fn oom_killed(&self) -> bool {
        let states = [&self.state, &self.last_state].into_iter().flatten();
        let mut ends = states.filter_map(|state| state.terminated.as_ref());
        ends.any(|end| end.exit_code != 0 && end.reason.as_deref() == Some(OOM_KILLED_REASON))
    }

    /// Its name, and the runtime's id without the runtime's prefix.
    fn id(&self) -> Option<(String, String)> {
        let id = self.container_id.as_deref()?;
        let id = id.split_once("://").map_or(id, |(_, id)| id);
        (!id.is_empty()).then(|| (self.name.clone(), id.to_owned()))
    }

    fn running_since(&self) -> Option<Timestamp> {
        time(self.state.as_ref()?.running.as_ref()?.started_at.as_deref())
    }
}

fn names(containers: impl Iterator<Item = Container>) -> Vec<String> {
    exact(containers.map(|container| container.name))
}

/// A list with no more capacity than it needs: it does not reuse its source's allocation.
pub(super) fn exact<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list: Vec<_> = items.collect();
    list.shrink_to_fit();
    list
}

/// The details, without those that need other parts of the object.
fn details(finalizers: Option<&[String]>, spec: &Spec, statuses: &[ContainerStatus]) -> Details {
    let finalizers = finalizers.unwrap_or_default();
    let name = |status: &ContainerStatus| status.name.clone();
    let containers = spec.containers.iter().chain(&spec.init_containers).flatten();
    let hooks = |container: &Container| {
        container.lifecycle.as_ref().is_some_and(|it| it.pre_stop.is_some())
    };
    Details {
        pre_stop: containers.into_iter().any(hooks),
        tolerates_shutdown: spec.tolerations.iter().flatten().any(Toleration::of_shutdown),
        job_finalizer: finalizers.iter().any(|finalizer| finalizer == TRACKING_FINALIZER),
        resource_claims: spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
        persistent_volumes: spec.volumes.iter().flatten().any(Volume::outlives_pod),
        attachable_volumes: spec.volumes.iter().flatten().filter(|it| it.may_be_attached()).count(),
        memory_volumes: spec.volumes.iter().flatten().any(Volume::in_memory),
        oom_reported: exact(statuses.iter().filter(|status| status.oom_killed()).map(name)),
        restarted: statuses.iter().any(|status| status.restart_count > 0),
        container_ids: exact(statuses.iter().filter_map(ContainerStatus::id)),
        ..Details::default()
    }
}

impl Toleration {
    /// Whether it tolerates the agent's taint, which has no value, at binding.
    fn of_shutdown(&self) -> bool {
        let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
        let exists = self.operator.as_deref() == Some("Exists");
        let key = match self.key.as_deref().unwrap_or_default() {
            "" => exists,
            key => key == SHUTTING_DOWN_TAINT && (exists || empty(&self.value)),
        };
        key && (empty(&self.effect) || self.effect.as_deref() == Some("NoSchedule"))
    }
}

fn owner(references: &[OwnerReference]) -> Owner {
    let Some(owner) = references.iter().find(|owner| owner.controller == Some(true)) else {
        return Owner::None;
    };
    match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("batch/v1", "Job") => Owner::Job,
        ("apps/v1", "DaemonSet") => Owner::DaemonSet,
        _ => Owner::Other,
    }
}

/// The widest of what the regular containers do. Init containers and sidecars start again while the
/// pod lives, and decide nothing about its end.
fn restarts_in_place(containers: &[Container], pod: RestartPolicy) -> RestartPolicy {
    containers.iter().map(|container| container.restarts(pod)).max().unwrap_or(pod)
}

/// The API defaults to Always.
fn restart_policy(text: Option<&str>) -> RestartPolicy {
    match text {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

fn phase(text: Option<&str>) -> Phase {
    match text {
        None | Some("" | "Pending") => Phase::Pending,
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some(_) => Phase::Unknown,
    }
}

/// A negative grace is one second. ([API8])
fn seconds(grace: i64) -> u32 {
    if grace < 0 { 1 } else { u32::try_from(grace).unwrap_or(u32::MAX) }
}

/// The grace of a deletion. Both values exist or neither does; a deletion without grace would be
/// one of zero.
fn deletion(at: Option<&str>, grace: Option<i64>) -> Option<u32> {
    match (at, grace) {
        (None, None) => None,
        (_, grace) => Some(grace.map_or(0, seconds)),
    }
}

fn disruption(conditions: Vec<Condition>) -> Option<Disruption> {
    let condition = conditions.into_iter().find(|condition| condition.kind == Disruption::TYPE)?;
    Some(Disruption {
        stands: condition.status == "True",
        reason: condition.reason.unwrap_or_default(),
        message: condition.message.unwrap_or_default(),
        since: time(condition.last_transition_time.as_deref()),
    })
}

fn oom_killed(conditions: &[Condition]) -> Option<(bool, String)> {
    let condition = conditions.iter().find(|condition| condition.kind == OOM_KILLED)?;
    Some((condition.status == "True", condition.reason.clone().unwrap_or_default()))
}

fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::pod::{Asks, ContainerAsks};
    use serde_json::{Value, json};

    fn view(pod: Value) -> PodView {
        serde_json::from_value::<WirePod>(pod).expect("must parse").view()
    }

    fn with_status(status: &Value) -> PodView {
        view(json!({"metadata": {"uid": "u"}, "status": status}))
    }

    #[test]
    fn a_hook_before_the_stop_is_seen_in_any_container() {
        let hook = json!({"preStop": {"exec": {"command": ["sh"]}}});
        let table = [
            (json!({"containers": [{"name": "a", "lifecycle": hook}]}), true),
            (json!({"containers": [{"name": "a", "lifecycle": {"postStart": {}}}]}), false),
            (json!({"initContainers": [{"name": "a", "lifecycle": hook}]}), true),
            (json!({"containers": [{"name": "a", "lifecycle": {"preStop": null}}]}), false),
        ];
        for (spec, expected) in table {
            let pod = view(json!({"metadata": {"uid": "u"}, "spec": spec}));
            assert_eq!(pod.details.pre_stop, expected, "{spec}");
        }
    }

    #[test]
    fn a_pod_tolerates_a_shutdown_by_the_key_of_the_taint_or_by_none() {
        let table = [
            (json!([{"operator": "Exists"}]), true),
            (json!([{"operator": "Exists", "effect": "NoSchedule"}]), true),
            (json!([{"operator": "Exists", "effect": "NoExecute"}]), false),
            (json!([{"key": "epilogue.dev/shutting-down", "operator": "Exists"}]), true),
            (json!([{"key": "epilogue.dev/shutting-down"}]), true),
            (json!([{"key": "epilogue.dev/shutting-down", "value": "x"}]), false),
            (json!([{"key": "other", "operator": "Exists"}]), false),
            (json!([]), false),
            (json!(null), false),
        ];
        for (tolerations, expected) in table {
            let pod = view(json!({"metadata": {"uid": "u"}, "spec": {"tolerations": tolerations}}));
            assert_eq!(pod.details.tolerates_shutdown, expected, "{tolerations}");
        }
    }

    #[test]
    fn all_that_decisions_depend_on_is_read() {
        let pod = view(json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "uid": "u", "namespace": "jobs", "name": "a-0", "generation": 3,
                "resourceVersion": "4711", "managedFields": [{"manager": "kubelet"}],
                "annotations": {"other": "x"},
                "deletionTimestamp": "2026-11-21T14:00:30Z", "deletionGracePeriodSeconds": 30,
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"},
                    {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "j",
                     "controller": true},
                ],
            },
            "spec": {
                "restartPolicy": "Never", "priority": 7, "terminationGracePeriodSeconds": 20,
                "activeDeadlineSeconds": 1,
                "containers": [{"name": "main", "image": "x"}, {"name": "second"}],
                "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init"}],
            },
            "status": {
                "phase": "Running",
                "conditions": [
                    {"type": "Ready", "status": "True"},
                    {"type": "DisruptionTarget", "status": "True", "reason": "R", "message": "M",
                     "lastTransitionTime": "2026-11-21T14:00:00Z"},
                ],
                "containerStatuses": [
                    {"name": "main", "state": {"running": {"startedAt": "2026-11-21T13:00:00Z"}}},
                    {"name": "second",
                     "state": {"running": {"startedAt": "2026-11-21T13:00:02Z"}}},
                ],
            },
        }));
        let at = |text: &str| text.parse().expect("must be a time");
        let expected = PodView {
            uid: PodUid("u".into()),
            namespace: "jobs".into(),
            name: "a-0".into(),
            generation: 3,
            resource_version: "4711".into(),
            source: PodSource::Api,
            owner: Owner::Job,
            restart_policy: RestartPolicy::Never,
            restarts_in_place: RestartPolicy::Never,
            restarts_all: false,
            sidecars: vec!["side".into()],
            priority: 7,
            grace_seconds: Some(20),
            deletion_grace_seconds: Some(30),
            deadline_set: true,
            phase: Phase::Running,
            has_run: true,
            containers: vec!["main".into(), "second".into()],
            running_since: Some(at("2026-11-21T13:00:02Z")),
            disruption: Some(Disruption {
                stands: true,
                reason: "R".into(),
                message: "M".into(),
                since: Some(at("2026-11-21T14:00:00Z")),
            }),
            asks: Asks {
                containers: [("main", false), ("second", false), ("side", true), ("init", true)]
                    .map(|(name, init)| ContainerAsks {
                        name: name.into(),
                        init,
                        sidecar: name == "side",
                        ..ContainerAsks::default()
                    })
                    .into(),
                ..Asks::default()
            },
            details: Details { deleted_at: Some(at("2026-11-21T14:00:30Z")), ..Details::default() },
        };
        assert_eq!(pod, expected);
    }

    #[test]
    fn a_pod_that_says_nothing_has_the_api_s_defaults() {
        let pod = view(json!({"metadata": {"uid": "u"}}));
        assert_eq!((pod.owner, pod.source), (Owner::None, PodSource::Api));
        assert_eq!((pod.phase, pod.restart_policy), (Phase::Pending, RestartPolicy::Always));
        assert_eq!((pod.priority, pod.grace_seconds), (0, None));
        assert_eq!((pod.restarts_in_place, pod.restarts_all), (RestartPolicy::Always, false));
        assert!(!pod.has_run && !pod.is_terminating());
    }

    #[test]
    fn a_mirror_is_a_static_pod_s() {
        let pod = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "controller": true}]}});
        let pod = view(pod);
        assert_eq!((pod.source, pod.owner), (PodSource::Static, Owner::Other));
    }

    #[test]
    fn a_pod_has_run_when_any_container_ever_did() {
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
        let table = [
            (json!({}), false),
            (json!({"containerStatuses": [{"state": waiting}]}), false),
            (json!({"containerStatuses": [{"state": waiting, "restartCount": 1}]}), true),
            (json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}), true),
            (
                json!({"containerStatuses": [{"state": waiting,
                "lastState": {"terminated": {"exitCode": 1}}}]}),
                true,
            ),
            (
                json!({"initContainerStatuses": [{"state": {"running": {}}}],
                "containerStatuses": [{"state": waiting}]}),
                true,
            ),
        ];
        for (status, expected) in table {
            assert_eq!(with_status(&status).has_run, expected, "{status}");
        }
    }

    /// What the regular containers of a pod with this policy do, and whether all may start anew.
    fn restarts(pod: &str, list: &str, container: &Value) -> (RestartPolicy, bool) {
        let mut spec = json!({"restartPolicy": pod, "containers": [{"name": "main"}]});
        match list {
            "containers" => spec[list] = json!([container]),
            list => spec[list] = json!([container, {"name": "init"}]),
        }
        let pod = view(json!({"spec": spec}));
        (pod.restarts_in_place, pod.restarts_all)
    }

    #[test]
    fn a_regular_container_s_own_policy_and_rules_come_before_the_pod_s() {
        use RestartPolicy::{Always, Never, OnFailure};
        let rule = |action: &str, operator: &str, values: Value| {
            let codes = json!({"operator": operator, "values": values});
            json!({"action": action, "exitCodes": codes})
        };
        let ruled = |rules: Value| json!({"restartPolicy": "Never", "restartPolicyRules": rules});
        let own = |policy: &str| json!({"restartPolicy": policy});
        let on_42 = rule("Restart", "In", json!([42]));
        let all_on_42 = rule("RestartAllContainers", "In", json!([42]));
        let table = [
            ("Never", "containers", json!({}), (Never, false)),
            ("OnFailure", "containers", json!({}), (OnFailure, false)),
            ("Never", "containers", own("Never"), (Never, false)),
            ("Never", "containers", own("OnFailure"), (OnFailure, false)),
            ("Never", "containers", own("Always"), (Always, false)),
            ("Always", "containers", own("Never"), (Never, false)),
            ("Never", "containers", ruled(json!([on_42])), (OnFailure, false)),
            ("Never", "containers", ruled(json!([])), (Never, false)),
            ("Never", "containers", ruled(json!([all_on_42])), (OnFailure, true)),
            (
                "Never",
                "containers",
                ruled(json!([rule("Restart", "In", json!([0]))])),
                (Always, false),
            ),
            (
                "Never",
                "containers",
                ruled(json!([rule("Restart", "NotIn", json!([1]))])),
                (Always, false),
            ),
            (
                "Never",
                "containers",
                ruled(json!([rule("Later", "In", json!([0]))])),
                (Never, false),
            ),
            // Rules without a policy are not admitted, and a kubelet does not read them.
            ("Never", "containers", json!({"restartPolicyRules": [on_42]}), (Never, false)),
            // Native sidecars and init containers decide nothing, but for a rule for all.
            ("Never", "initContainers", own("Always"), (Never, false)),
            ("Never", "initContainers", own("OnFailure"), (Never, false)),
            ("Never", "initContainers", ruled(json!([on_42])), (Never, false)),
            ("Never", "initContainers", ruled(json!([all_on_42])), (Never, true)),
        ];
        for (pod, list, container, expected) in table {
            assert_eq!(restarts(pod, list, &container), expected, "{pod} {container}");
        }
    }

    #[test]
    fn odd_values_are_taken_as_the_api_means_them() {
        let pod = view(json!({"spec": {"terminationGracePeriodSeconds": -5},
            "metadata": {"deletionTimestamp": "2026-11-21T14:00:30Z"},
            "status": {"phase": "Odd", "conditions": [{"type": "DisruptionTarget",
                "status": "False", "reason": null, "lastTransitionTime": "yesterday"}]}}));
        assert_eq!((pod.grace_seconds, pod.deletion_grace_seconds), (Some(1), Some(0)));
        assert_eq!(pod.phase, Phase::Unknown);
        let disruption = pod.disruption.expect("must be there");
        assert!(!disruption.stands && disruption.since.is_none() && disruption.reason.is_empty());
    }

    #[test]
    fn what_pressure_and_hanging_pods_are_judged_by_is_read() {
        let pod = view(json!({
            "metadata": {"uid": "u", "deletionTimestamp": "2026-11-21T14:00:30Z",
                "annotations": {"epilogue.dev/end-signal": "USR1@90s",
                    "kubectl.kubernetes.io/default-container": "main"},
                "finalizers": ["example.com/a", "batch.kubernetes.io/job-tracking"]},
            "spec": {
                "resources": {"requests": {"memory": "3Gi", "cpu": "1"}},
                "overhead": {"memory": "1Gi"},
                "resourceClaims": [{"name": "gpu"}],
                "containers": [{"name": "main", "resources": {
                    "requests": {"memory": "1Gi", "ephemeral-storage": "2Gi", "cpu": "100m"},
                    "limits": {"memory": "2Gi", "ephemeral-storage": "4Gi", "x.io/dev": "1"}}}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
            },
            "status": {
                "conditions": [{"type": "epilogue.dev/OOMKilled", "status": "True",
                    "reason": "ContainerLimit"}],
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://abc", "restartCount": 2},
                    {"name": "new", "containerID": ""}, {"name": "newer"}],
                "initContainerStatuses": [{"name": "init", "containerID": "cri-o://def"}],
            },
        }));
        let main = ContainerAsks {
            name: "main".into(),
            init: false,
            sidecar: false,
            memory: 1 << 30,
            memory_limit: Some(2 << 30),
            storage: 2 << 30,
            storage_limit: Some(4 << 30),
        };
        let asks = Asks {
            memory: 4 << 30,
            memory_of_pod: true,
            memory_limit: None,
            storage: 2 << 30,
            containers: vec![main],
            empty_dirs: vec![("scratch".into(), 1 << 30)],
        };
        assert_eq!(pod.asks, asks);
        let id = |name: &str, id: &str| (name.to_owned(), id.to_owned());
        let details = Details {
            deleted_at: Some("2026-11-21T14:00:30Z".parse().expect("must be a time")),
            pre_stop: false,
            tolerates_shutdown: false,
            job_finalizer: true,
            resource_claims: true,
            persistent_volumes: true,
            attachable_volumes: 1,
            memory_volumes: false,
            restarted: true,
            end_signal: Some("USR1@90s".into()),
            default_container: Some("main".into()),
            container_ids: vec![id("main", "abc"), id("init", "def")],
            oom_killed: Some((true, "ContainerLimit".into())),
            oom_reported: Vec::new(),
        };
        assert_eq!(pod.details, details);
    }

    #[test]
    fn nulls_and_empty_lists_are_as_if_not_there() {
        let pod = view(json!({
            "metadata": {"uid": "u", "finalizers": null},
            "spec": {"resources": null, "overhead": null, "resourceClaims": [], "volumes": null,
                "containers": [{"name": "c", "resources": {"requests": null, "limits": null}}]},
            "status": {"conditions": [{"type": "epilogue.dev/OOMKilled", "status": "False"}],
                "containerStatuses": [{"name": "c", "containerID": null}]},
        }));
        let expected = Details { oom_killed: Some((false, String::new())), ..Details::default() };
        assert_eq!(pod.details, expected);
        assert_eq!((pod.asks.memory, pod.asks.memory_of_pod), (0, false));
    }

    #[test]
    fn containers_whose_last_end_was_for_want_of_memory_are_named() {
        let ended = |reason: Value| json!({"terminated": {"exitCode": 137, "reason": reason}});
        let pod = with_status(&json!({
            "containerStatuses": [
                {"name": "now", "state": ended(json!("OOMKilled"))},
                {"name": "before", "state": {"running": {}},
                 "lastState": ended(json!("OOMKilled"))},
                {"name": "error", "state": ended(json!("Error"))},
                // A child was killed, and the container did its work all the same.
                {"name": "well", "state": {"terminated": {"exitCode": 0, "reason": "OOMKilled"}}},
                {"name": "silent", "state": ended(json!(null)), "lastState": null},
                {"name": "waits", "state": {"waiting": {"reason": "OOMKilled"}}}],
            "initContainerStatuses": [{"name": "init", "state": ended(json!("OOMKilled"))}],
        }));
        assert_eq!(pod.details.oom_reported, ["now", "before", "init"]);
    }
}
