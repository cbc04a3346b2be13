//! Judges Jobs: whether one failed because disruptions counted as failures, or waits for a pod
//! whose terminal phase never comes.

use std::collections::BTreeMap;

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::job_reason::{POD_FAILURE_POLICY, without_rule};
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use epilogue_common::pod_end::Counted;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{AffectedJob, Basis, DisruptedPod, Help};
use super::attribution::{Attribution, counts_as_failure};
use super::failed_message;
use super::pod::PodSeen;
use controller_core::view::lenient::lenient_time;

/// `spec.backoffLimit` of a Job that has none.
const BACKOFF_LIMIT: u64 = 6;

/// A Job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireJob {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Meta {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    backoff_limit: Option<u64>,
    backoff_limit_per_index: Option<u64>,
    pod_failure_policy: Option<Policy>,
    template: Option<Template>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: TemplateSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TemplateSpec {
    restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Policy {
    rules: Option<Vec<PolicyRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PolicyRule {
    action: String,
    on_pod_conditions: Option<Vec<Pattern>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pattern {
    #[serde(rename = "type")]
    kind: String,
    status: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    failed: Option<u64>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    #[serde(deserialize_with = "lenient_time")]
    last_transition_time: Option<Time>,
}

/// Namespace and name of a Job.
pub(super) type JobName = (String, String);

/// The pods of each Job: those that were disrupted, and the work of the others; and what events of
/// Jobs say.
#[derive(Debug)]
pub(super) struct PodsOfJobs<'a> {
    said: &'a Attribution<'a>,
    disrupted: BTreeMap<JobName, Vec<&'a DisruptedPod>>,
    work: BTreeMap<JobName, u64>,
}

impl<'a> PodsOfJobs<'a> {
    pub(super) fn new(
        (pods, now): (&[PodSeen], Timestamp),
        disrupted: &'a [DisruptedPod],
        said: &'a Attribution<'a>,
    ) -> Self {
        let mut of = Self { said, disrupted: BTreeMap::new(), work: BTreeMap::new() };
        for pod in disrupted {
            let Some(job) = &pod.job else { continue };
            of.disrupted.entry((pod.namespace.clone(), job.clone())).or_default().push(pod);
        }
        for pod in pods {
            let Some(job) = pod.job() else { continue };
            let key = (pod.view.namespace.to_string(), job.to_owned());
            let is_disrupted = of
                .disrupted
                .get(&key)
                .is_some_and(|all| all.iter().any(|disrupted| disrupted.name == *pod.view.name));
            let work = pod.run_time(now).filter(|_| !is_disrupted);
            let sum = of.work.entry(key).or_default();
            *sum = sum.saturating_add(work.unwrap_or(0));
        }
        of
    }

    fn disrupted(&self, job: &JobName) -> &[&'a DisruptedPod] {
        self.disrupted.get(job).map_or(&[], Vec::as_slice)
    }
}

impl WireJob {
    fn condition(&self, kind: &str) -> Option<&Condition> {
        let mut all = self.status.conditions.iter().flatten();
        all.find(|each| each.kind == kind && each.status == "True")
    }

    /// Whether the first rule about DisruptionTarget ignores it.
    fn ignores_disruptions(&self) -> bool {
        let policy = self.spec.pod_failure_policy.as_ref();
        let mut rules = policy.into_iter().flat_map(|policy| policy.rules.iter().flatten());
        let rule = rules.find(|rule| {
            rule.on_pod_conditions.iter().flatten().any(|pattern| {
                let status = pattern.status.as_deref().unwrap_or("True");
                pattern.kind == DISRUPTION_TARGET && status == "True"
            })
        });
        rule.is_some_and(|rule| rule.action == "Ignore")
    }

    fn restarts_in_place(&self) -> bool {
        let template = self.spec.template.as_ref();
        template.is_some_and(|it| it.spec.restart_policy.as_deref() == Some("OnFailure"))
    }

    /// Whether disruptions made the difference, and why; `None` if they did not.
    fn difference(&self, failed: &Condition, counted: &Failures<'_>) -> Option<(Basis, String)> {
        let Failures { pods, unnamed, by_message, .. } = counted;
        let number = counted.number();
        let seen = pods.iter().filter(|pod| pod.basis == Basis::Seen).count() as u64;
        let seen = seen.saturating_add(*unnamed).max(*by_message);
        let failures = self.status.failed.unwrap_or(0);
        let reason = failed.reason.as_deref().unwrap_or_default();
        if reason == "DisruptionLimitExceeded" {
            let how = "its disruptions exceeded its disruption-limit";
            return Some((Basis::Seen, how.to_owned()));
        }
        if without_rule(reason) == POD_FAILURE_POLICY {
            return counted.named_by(failed);
        }
        let is_exact = reason == "BackoffLimitExceeded"
            && self.spec.backoff_limit_per_index.is_none()
            && !self.restarts_in_place();
        if !is_exact {
            let how = format!("{number} of its pods were disrupted before it failed ({reason})");
            return Some((Basis::Estimated, how));
        }
        let limit = self.spec.backoff_limit.unwrap_or(BACKOFF_LIMIT);
        let own = |number: u64| failures.saturating_sub(number) <= limit;
        let words = |number: u64| {
            format!("{number} of {failures} failures were disruptions; backoffLimit is {limit}")
        };
        if failures > limit && own(seen) {
            Some((Basis::Seen, words(seen)))
        } else if own(number) {
            Some((Basis::Estimated, words(number)))
        } else {
            None
        }
    }
}

/// The disruptions that count as failures of a failed Job.
struct Failures<'a> {
    pods: Vec<&'a DisruptedPod>,
    /// Those that an event only counts.
    unnamed: u64,
    /// Those that the condition's message counts: the same ones, or those whose pods and events
    /// are gone.
    by_message: u64,
    /// A pod whose event says that it failed the Job.
    decided: Option<&'a DisruptedPod>,
}

impl<'a> Failures<'a> {
    fn new(job: &WireJob, name: &JobName, failed: &Condition, of: &PodsOfJobs<'a>) -> Self {
        let ignores = job.ignores_disruptions();
        let uid = &job.metadata.uid;
        let said = |pod: &DisruptedPod| {
            let (event, _) = of.said.end(&name.0, &pod.name)?;
            (event.job.name == name.1).then_some(event)
        };
        let counts = |pod: &&DisruptedPod| match said(pod) {
            Some(event) => event.job.may_have(uid) && counts_as_failure(event, !ignores),
            // A failure with DisruptionTarget counts only without a rule that ignores it.
            None => {
                pod.code == Code::FailureWithoutDisruptionTarget
                    || pod.code == Code::DisruptionReported && !ignores
            }
        };
        let pods: Vec<_> = of.disrupted(name).iter().copied().filter(counts).collect();
        let decides =
            |pod: &&DisruptedPod| said(pod).is_some_and(|it| it.counted == Counted::JobFailed);
        let message = failed.message.as_deref().unwrap_or_default();
        Self {
            decided: pods.iter().copied().find(decides),
            pods,
            unnamed: of.said.unnamed_failures((&name.0, &name.1, uid), !ignores),
            by_message: failed_message::disruptions(message),
        }
    }

    fn number(&self) -> u64 {
        (self.pods.len() as u64).saturating_add(self.unnamed).max(self.by_message)
    }

    /// The disruption by which a rule failed the Job.
    fn named_by(&self, failed: &Condition) -> Option<(Basis, String)> {
        if let Some(pod) = self.decided {
            return Some((Basis::Seen, format!("the event about pod {} says it", pod.name)));
        }
        let message = failed.message.as_deref().unwrap_or_default();
        let is_named = |pod: &&&DisruptedPod| {
            message.contains(&format!("pod {}/{} ", pod.namespace, pod.name))
        };
        if let Some(pod) = self.pods.iter().find(is_named) {
            let how = format!("the condition names pod {}, a disruption", pod.name);
            return Some((pod.basis, how));
        }
        let how = "the condition's message names a disruption";
        (self.by_message > 0).then(|| (Basis::Seen, how.to_owned()))
    }
}

/// The Jobs among the objects that failed by disruptions, or that wait.
pub(super) fn affected(
    objects: &[Value],
    pods: &PodsOfJobs<'_>,
    from: Timestamp,
) -> Vec<AffectedJob> {
    let jobs = objects.iter().filter(|object| object["kind"] == "Job");
    let jobs = jobs.filter_map(|object| WireJob::deserialize(object).ok());
    jobs.filter_map(|job| {
        let name = (job.metadata.namespace.clone(), job.metadata.name.clone());
        if let Some(failed) = job.condition("Failed") {
            let at = failed.last_transition_time.as_ref().map(|time| time.0);
            return at.is_none_or(|at| at >= from).then(|| by_failure(&job, name, failed, pods))?;
        }
        if job.condition("Complete").is_some() { None } else { by_wait(&job, name, pods) }
    })
    .collect()
}

fn by_failure(
    job: &WireJob,
    name: JobName,
    failed: &Condition,
    pods: &PodsOfJobs<'_>,
) -> Option<AffectedJob> {
    let ignores = job.ignores_disruptions();
    let counted = Failures::new(job, &name, failed, pods);
    let exceeded = failed.reason.as_deref() == Some("DisruptionLimitExceeded");
    if counted.number() == 0 && !exceeded {
        return None;
    }
    let (basis, how) = job.difference(failed, &counted)?;
    let (epilogue, epilogue_how) = part(ignores, &counted.pods);
    Some(AffectedJob {
        code: Code::JobFailedByDisruptions,
        reason: failed.reason.clone(),
        at: failed.last_transition_time.as_ref().map(|time| time.0),
        failures: job.status.failed.unwrap_or(0),
        disruptions: counted.number(),
        backoff_limit: job.spec.backoff_limit,
        ignores_disruptions: ignores,
        basis,
        how,
        work_seconds: pods.work.get(&name).copied().unwrap_or(0),
        epilogue,
        epilogue_how,
        namespace: name.0,
        name: name.1,
    })
}

fn part(ignores: bool, counted: &[&DisruptedPod]) -> (Help, String) {
    if !ignores {
        let how = "no rule of its podFailurePolicy ignores DisruptionTarget: a true cause alone \
                   does not save it";
        return (Help::Nothing, how.to_owned());
    }
    if counted.iter().any(|pod| pod.epilogue == Help::WouldHaveActed) {
        let how = "with DisruptionTarget on its pods, its podFailurePolicy ignores these failures";
        (Help::WouldHaveActed, how.to_owned())
    } else {
        (Help::Nothing, "Epilogue has no part in these disruptions".to_owned())
    }
}

fn by_wait(job: &WireJob, name: JobName, pods: &PodsOfJobs<'_>) -> Option<AffectedJob> {
    let missing = pods.disrupted(&name).iter().filter(|pod| pod.waited_seconds.is_some());
    let missing: Vec<_> = missing.copied().collect();
    let basis = missing.iter().map(|pod| pod.basis).min()?;
    let helped = missing.iter().find(|pod| pod.epilogue != Help::Nothing);
    let number = missing.len();
    Some(AffectedJob {
        code: Code::JobWaitsForLostPod,
        reason: None,
        at: missing.iter().filter_map(|pod| pod.at).min(),
        failures: job.status.failed.unwrap_or(0),
        disruptions: number as u64,
        backoff_limit: job.spec.backoff_limit,
        ignores_disruptions: job.ignores_disruptions(),
        basis,
        how: format!("{number} of its pods have no terminal phase, and count as active"),
        work_seconds: 0,
        epilogue: helped.map_or(Help::Nothing, |pod| pod.epilogue),
        epilogue_how: helped
            .or(missing.first())
            .map_or_else(String::new, |pod| pod.epilogue_how.clone()),
        namespace: name.0,
        name: name.1,
    })
}
