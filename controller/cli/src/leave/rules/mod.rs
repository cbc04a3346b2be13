//! Lists for `kubectl epilogue leave` what a cluster still has of this project: Jobs, pods with
//! the tracking finalizer, annotations, what agents left on nodes, and installed objects. Says
//! what goes next, and which finalizers may be removed without the controller.

mod finalizers;
mod installed;
mod jobs;
mod steps;
#[cfg(test)]
mod tests;

pub(crate) use finalizers::{HeldPod, Release};
pub(crate) use jobs::{JobRef, Jobs, suspend_patch};

use epilogue_common::finding_code::FindingCode as Code;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

/// What `leave` knows besides the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Whether the controller runs, or ran, with `--manage-all-jobs`.
    pub(crate) manage_all_jobs: bool,
    /// Whether objects of the installation and the state of nodes do not count.
    pub(crate) jobs_only: bool,
}

/// One kind of thing that is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Left {
    /// The code, which `docs/troubleshooting.md` explains.
    pub(crate) code: Code,
    /// What it is, in the plural.
    pub(crate) what: &'static str,
    /// `job/NAMESPACE/NAME` and the like, sorted.
    pub(crate) names: Vec<String>,
}

/// What a cluster has of this project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Inventory {
    /// What has to go, or needs the controller or another one.
    pub(crate) left: Vec<Left>,
    /// What stays as a record, or goes on under kube-controller-manager. It needs nothing.
    pub(crate) stays: Vec<Left>,
    /// What to do, in order; empty if nothing is left.
    pub(crate) steps: Vec<String>,
    /// The pods that `--release-finalizers` releases.
    #[serde(skip)]
    pub(crate) releases: Vec<Release>,
}

/// An object does not have the form that the API gives it.
#[derive(Debug, Error)]
#[error("{kind} {name} is not as the API would give it")]
pub(crate) struct LeaveError {
    kind: &'static str,
    name: String,
    #[source]
    source: serde_json::Error,
}

/// The inventory of these objects. Pods must have been listed before Jobs: otherwise the Job of a
/// new pod seems to be gone.
pub(crate) fn inventory(
    objects: &[Value],
    facts: Facts,
    now: Timestamp,
) -> Result<Inventory, LeaveError> {
    let jobs = Jobs::read(objects, facts)?;
    let held = finalizers::held_pods(objects, &jobs)?;
    let (mut left, mut stays) = (jobs.left(), jobs.stay());
    left.extend(finalizers::left(&held));
    left.extend(installed::left(objects, &jobs, facts));
    for each in left.iter_mut().chain(&mut stays) {
        each.names.sort();
    }
    let steps = steps::steps(&left, &stays, facts, installed::holder(objects, now));
    let releases = held.into_iter().filter_map(HeldPod::release).collect();
    Ok(Inventory { left, stays, steps, releases })
}

impl Left {
    /// These names, or nothing if there are none.
    fn some(code: Code, what: &'static str, names: Vec<String>) -> Option<Self> {
        (!names.is_empty()).then_some(Self { code, what, names })
    }
}

/// The objects of a kind.
fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// `kind/NAMESPACE/NAME`, or `kind/NAME`.
fn subject(object: &Value) -> String {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]).to_lowercase();
    let name = text(&object["metadata"]["name"]);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind}/{namespace}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

/// An error that names the object.
fn unreadable(kind: &'static str, object: &Value, source: serde_json::Error) -> LeaveError {
    let name = object["metadata"]["name"].as_str().unwrap_or("without a name").to_owned();
    LeaveError { kind, name, source }
}
