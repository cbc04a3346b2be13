//! Judges a cluster for `kubectl epilogue doctor`: what makes no progress, why, and what would
//! help. Pod GC decides whether a pod can be failed.

mod finding;
mod jobs;
mod known;
mod node_report;
mod nodes;
mod pods;
mod scene;
#[cfg(test)]
mod tests;

pub use finding::{Finding, Rule};
pub use node_report::{NodeCheck, NodeReport, NodeVerdict, node_report};
pub use scene::{AgentPod, Kind, LeaseName, Scene, SceneError};

use jiff::{SignedDuration, Timestamp};

/// A problem younger than this is not reported: the component in charge gets the time to act.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// All findings, by rule and subject. `lease` is the one that the controller of this project holds
/// while it works, or `None` if it runs without one.
pub fn findings(scene: &Scene, lease: Option<&LeaseName>, now: Timestamp) -> Vec<Finding> {
    let mut found = pods::findings(scene, now);
    found.extend(jobs::findings(scene, lease, now));
    found.extend(nodes::findings(scene, now));
    found.sort_by(|a, b| (a.rule, &a.subject).cmp(&(b.rule, &b.subject)));
    found
}

/// The checks that were left out because a kind of object was not read.
pub fn omissions(scene: &Scene) -> Vec<String> {
    let table = [
        (Kind::Pod, "pods that hang, finalizers and DisruptionTarget"),
        (Kind::Job, "finalizers, and Jobs that nobody serves"),
        (Kind::Node, "whether pods' nodes exist and speak"),
        (Kind::Lease, "whether the controller and the kubelets live"),
        (Kind::Namespace, "what namespaces say of force-fail-after"),
    ];
    let unread = table.iter().filter(|(kind, _)| !scene.has_read(*kind));
    unread.map(|(kind, what)| format!("{} were not read: {what}", kind.plural())).collect()
}

/// Whether the component in charge had enough time to act.
fn is_overdue(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since) > MARGIN
}

/// Formats a time as the API does.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
