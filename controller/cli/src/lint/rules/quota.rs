//! Compares the pods that a Job runs at once with what the ResourceQuotas of its namespace allow.

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::Value;

use super::facts::items;
use super::finding::{Finding, Severity};
use super::manifest::Manifest;
use super::quantity::billionths;

/// Names in a quota, with the field of a container's `resources` and the resource that they limit.
const LIMITED: [(&str, &str, &str); 6] = [
    ("cpu", "requests", "cpu"),
    ("memory", "requests", "memory"),
    ("requests.cpu", "requests", "cpu"),
    ("requests.memory", "requests", "memory"),
    ("limits.cpu", "limits", "cpu"),
    ("limits.memory", "limits", "memory"),
];
/// Names in a quota that limit the number of pods.
const PODS: [&str; 2] = ["pods", "count/pods"];

/// The quotas without scopes. Those with scopes cover some pods only.
pub(super) struct Quotas<'a>(Vec<&'a Value>);

impl<'a> Quotas<'a> {
    pub(super) fn read(objects: &'a [Value]) -> Self {
        let is_one = |object: &&Value| {
            let spec = &object["spec"];
            object["kind"] == "ResourceQuota"
                && spec["scopes"].is_null()
                && spec["scopeSelector"].is_null()
        };
        Self(objects.iter().filter(is_one).collect())
    }

    fn of(&self, namespace: Option<&str>) -> impl Iterator<Item = &'a Value> {
        let is_here = move |quota: &&&Value| quota["metadata"]["namespace"].as_str() == namespace;
        self.0.iter().filter(is_here).copied()
    }
}

/// One limit of a quota.
struct Limit<'a> {
    quota: &'a str,
    name: &'a str,
    hard: &'a Value,
    /// What one pod needs, and how many of those the quota allows.
    need: i128,
    allowed: i128,
}

pub(super) fn findings(manifest: &Manifest<'_>, quotas: &Quotas<'_>) -> Vec<Finding> {
    let pods = at_once(manifest.spec());
    let mut found = Vec::new();
    for quota in quotas.of(manifest.namespace()) {
        let over = limits(manifest.pod(), quota).into_iter().filter(|it| it.allowed < pods);
        // The tightest limit of a quota says enough.
        found.extend(over.min_by_key(|it| it.allowed).map(|it| finding(manifest, pods, &it)));
    }
    found
}

/// How many pods the Job runs at once.
fn at_once(spec: &Value) -> i128 {
    let parallelism = spec["parallelism"].as_i64().unwrap_or(1).max(0);
    let completions = spec["completions"].as_i64().unwrap_or(i64::MAX).max(0);
    parallelism.min(completions).into()
}

fn limits<'a>(pod: &Value, quota: &'a Value) -> Vec<Limit<'a>> {
    let name = quota["metadata"]["name"].as_str().unwrap_or("?");
    let hard = quota["spec"]["hard"].as_object().into_iter().flatten();
    hard.filter_map(|(key, hard)| {
        let limit = billionths(hard)?;
        let need = if PODS.contains(&key.as_str()) {
            1_000_000_000
        } else {
            let (_, field, resource) = LIMITED.iter().find(|(name, ..)| name == key)?;
            of_pod(pod, field, resource)?
        };
        let allowed = limit.checked_div(need)?;
        Some(Limit { quota: name, name: key, hard, need, allowed })
    })
    .collect()
}

fn finding(manifest: &Manifest<'_>, pods: i128, limit: &Limit<'_>) -> Finding {
    let Limit { quota, name, hard, allowed, .. } = limit;
    let hard = hard.as_str().map_or_else(|| hard.to_string(), str::to_owned);
    let of = format!("ResourceQuota {quota} allows {name}: {hard}");
    if *allowed == 0 && limit.need > 0 {
        let problem = format!("not one pod fits: {of}");
        let remedy = "lower what the pod requests, or raise the quota";
        let rule = (Severity::Error, Code::ParallelismOverQuota);
        return manifest.found(rule, "spec.template.spec", problem, remedy);
    }
    let problem = format!("{pods} pods at once, but {allowed} fit: {of}");
    let remedy = format!("write {allowed} or less, or raise the quota");
    let rule = (Severity::Warning, Code::ParallelismOverQuota);
    manifest.found(rule, "spec.parallelism", problem, remedy)
}

/// What a pod needs of a resource; `None` if it does not say so. Containers run together; an init
/// container runs together with the sidecars before it.
fn of_pod(pod: &Value, field: &str, resource: &str) -> Option<i128> {
    let overhead = billionths(&pod["overhead"][resource]).unwrap_or(0);
    if let Some(whole) = billionths(&pod["resources"][field][resource]) {
        return whole.checked_add(overhead);
    }
    let (mut sidecars, mut most) = (0_i128, 0_i128);
    for container in items(&pod["initContainers"]) {
        let need = of_container(container, field, resource);
        most = most.max(sidecars.checked_add(need)?);
        if container["restartPolicy"] == "Always" {
            sidecars = sidecars.checked_add(need)?;
        }
    }
    let all = items(&pod["containers"]);
    let together = all.map(|container| of_container(container, field, resource));
    let together = together.into_iter().try_fold(sidecars, i128::checked_add)?;
    let need = together.max(most).checked_add(overhead)?;
    (need > 0).then_some(need)
}

/// A request defaults to the limit.
fn of_container(container: &Value, field: &str, resource: &str) -> i128 {
    let resources = &container["resources"];
    let own = billionths(&resources[field][resource]);
    let limit = || billionths(&resources["limits"][resource]).filter(|_| field == "requests");
    own.or_else(limit).unwrap_or(0)
}
