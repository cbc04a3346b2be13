//! Finds annotations, what agents left on nodes, and the objects of the installation.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::job_option::{ALL, FORCE_FAIL_AFTER};
use epilogue_common::names::node::{READINESS, SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::names::node_condition;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::jobs::Jobs;
use super::{Facts, Left, of_kind, subject};

/// The label of every object of the installation, with its value.
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "epilogue");
/// Kinds whose objects are not of the installation, whatever labels they have.
const NOT_INSTALLED: [&str; 4] = ["Job", "CronJob", "Pod", "Node"];

pub(super) fn left(objects: &[Value], jobs: &Jobs, facts: Facts) -> Vec<Left> {
    let annotated = annotated(objects, jobs);
    let annotated = Left::some(Code::AnnotationLeft, "objects with annotations", annotated);
    if facts.jobs_only {
        return annotated.into_iter().collect();
    }
    let nodes = of_kind(objects, "Node").filter(|node| has_state(node)).map(subject).collect();
    let installed = objects.iter().filter(|object| is_installed(object)).map(subject).collect();
    let parts = [
        annotated,
        Left::some(Code::NodeStateLeft, "nodes with an agent's state", nodes),
        Left::some(Code::InstallationLeft, "installed objects", installed),
    ];
    parts.into_iter().flatten().collect()
}

/// Unfinished Jobs that another controller runs, and namespaces. No other controller knows these
/// annotations.
fn annotated(objects: &[Value], jobs: &Jobs) -> Vec<String> {
    let has_option = |names: &dyn Fn(&str) -> bool| ALL.iter().any(|name| names(name));
    let others = jobs.iter().filter(|job| !job.is_finished() && job.is_managed_by_upstream());
    let others = others.filter(|job| has_option(&|name| job.annotations.contains_key(name)));
    let namespaces = of_kind(objects, "Namespace")
        .filter(|object| object["metadata"]["annotations"][FORCE_FAIL_AFTER].is_string());
    others.map(|job| format!("job/{}", job.key)).chain(namespaces.map(subject)).collect()
}

fn has_state(node: &Value) -> bool {
    let annotations = &node["metadata"]["annotations"];
    let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let is_ours = |condition: &Value| {
        let text = |name: &str| condition[name].as_str().unwrap_or_default();
        node_condition::is_ours(text("type"), text("message"))
    };
    [STATE, READINESS].iter().any(|name| annotations[name].is_string())
        || items(&node["spec"]["taints"]).iter().any(|taint| taint["key"] == SHUTTING_DOWN_TAINT)
        || items(&node["status"]["conditions"]).iter().any(is_ours)
}

/// The lease has no labels, because the controller makes it itself.
fn is_installed(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    let labelled = object["metadata"]["labels"][PART_OF.0] == PART_OF.1;
    kind == "Lease" || labelled && !NOT_INSTALLED.contains(&kind)
}

/// The replica that holds the controller's lease.
pub(super) fn holder(objects: &[Value], now: Timestamp) -> Option<&str> {
    let lease = of_kind(objects, "Lease").next()?;
    let spec = &lease["spec"];
    let renewed: Timestamp = spec["renewTime"].as_str()?.parse().ok()?;
    let lasts = SignedDuration::from_secs(spec["leaseDurationSeconds"].as_i64()?);
    let holder = spec["holderIdentity"].as_str().filter(|holder| !holder.is_empty())?;
    (now.duration_since(renewed) <= lasts).then_some(holder)
}
