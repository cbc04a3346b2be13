//! What stands still in a cluster, why, and what ends that: the judgement of `kubectl epilogue
//! doctor`. Whether a pod can be ended is pod GC's to say, and is asked there.

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

/// What takes no longer than this is no trouble: whoever is in charge is given the time.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// All that is wrong, by rule and subject. `lease` is the one that the controller of this project
/// holds while it works; none if it runs without.
pub fn findings(scene: &Scene, lease: Option<&LeaseName>, now: Timestamp) -> Vec<Finding> {
    let mut found = pods::findings(scene, now);
    found.extend(jobs::findings(scene, lease, now));
    found.extend(nodes::findings(scene, now));
    found.sort_by(|a, b| (a.rule, &a.subject).cmp(&(b.rule, &b.subject)));
    found
}

/// What could not be judged, because a kind of object was not read.
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

/// Whether so much time has passed that whoever was in charge must have acted.
fn is_overdue(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since) > MARGIN
}

/// The API's own form of time.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
